// Messages and the way out of a failed launch.
#include "machine.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace emu {

std::string format(const char* text, ...) {
    char buffer[1500];
    va_list arguments;
    va_start(arguments, text);
    vsnprintf(buffer, sizeof buffer, text, arguments);
    va_end(arguments);
    return buffer;
}

std::string name_of(const Fiber* f) {
    return format("block (%u,%u,%u) thread (%u,%u,%u)", f->block_index.x, f->block_index.y, f->block_index.z,
                  f->index.x, f->index.y, f->index.z);
}

std::string name_of(Site site) {
    const char* slash = strrchr(site.file, '/');
    return format("%s:%d", slash ? slash + 1 : site.file, site.line);
}

void stop(const std::string& message) {
    if (machine.error.empty()) machine.error = message;
    leave_fibers();
}

void fail_at(Site site, const std::string& message) {
    stop(name_of(site) + ": " + name_of(running()) + ": " + message);
}

void fail(Site site, const char* text, ...) {
    char buffer[1500];
    va_list arguments;
    va_start(arguments, text);
    vsnprintf(buffer, sizeof buffer, text, arguments);
    va_end(arguments);
    fail_at(site, buffer);
}

static bool same_place(const Fiber& a, const Fiber& b) {
    if (a.state != b.state) return false;
    if (a.state == State::done) return true;
    if (!same(a.site, b.site)) return false;
    return a.state != State::in_collective || (a.mask == b.mask && a.collective == b.collective);
}

static std::string place_of(const Block& block, const Fiber& f) {
    if (f.state == State::done) return "exited";
    if (f.state == State::in_collective)
        return format("wait in %s (mask %08x) at %s", name_of(f.collective), f.mask, name_of(f.site).c_str());
    const Barrier& b = block.barriers[f.barrier];
    return format("wait at barrier %d at %s (%d of %d arrived)", f.barrier, name_of(f.site).c_str(), b.arrived,
                  b.expected ? b.expected : int(block.live));
}

void deadlock() {
    constexpr int shown_groups = 8;
    std::string message = "deadlock: no thread can run.";
    int groups = 0;
    for (const Block& block : machine.blocks) {
        if (!block.live) continue;
        message += format(" block (%u,%u,%u):", block.index.x, block.index.y, block.index.z);
        for (unsigned first = 0, next; first < machine.threads_per_block; first = next) {
            for (next = first + 1;
                 next < machine.threads_per_block && same_place(block.fibers[first], block.fibers[next]);)
                ++next;
            if (++groups > shown_groups) stop(message + " ...");
            message += format(" threads %u-%u %s;", first, next - 1, place_of(block, block.fibers[first]).c_str());
        }
    }
    stop(message);
}

}  // namespace emu
