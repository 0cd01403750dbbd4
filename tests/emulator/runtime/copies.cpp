// Asynchronous copies. Delayed mode: the target is poisoned when the copy is issued and filled only by the wait, so
// that a missing wait shows; immediate mode: filled when issued, so that a missing barrier before the issue shows.
#include "machine.h"

#include <algorithm>
#include <cstring>

namespace emu {

// ---- cp.async
static void perform(const PendingCopy& c) {
    running()->site = c.site;
    check_access(c.to, 16, Access::write);
    if (c.valid) {
        check_access(c.from, 16, Access::read);
        memcpy(c.to, c.from, 16);
    } else {
        memset(c.to, 0, 16);
    }
}

void copy_async16(unsigned shared, const void* from, bool valid, Site site) {
    Fiber* f = running();
    unsigned char* to = from_shared(shared, 16, 16, "cp_async16", site);
    check_aligned(from, 16, "cp_async16 source", site);
    const PendingCopy copy{to, from, valid, f->copy_group, site};
    if (!machine.options.delay_copies) return perform(copy);
    f->site = site;
    check_access(to, 16, Access::write);
    memset(to, poison, 16);
    f->copies.push_back(copy);
}

void copy_async_commit() { ++running()->copy_group; }

void copy_async_wait(int pending) {
    Fiber* f = running();
    const auto done = [&](const PendingCopy& c) {
        if (c.group >= f->copy_group - pending) return false;
        perform(c);
        return true;
    };
    f->copies.erase(std::remove_if(f->copies.begin(), f->copies.end(), done), f->copies.end());
}

void check_finished_copies(Fiber* f) {
    if (f->copies.empty()) return;
    fail_at(f->copies[0].site, "the thread exits with cp.async copies that it never waited for");
}

// ---- mbarriers and bulk copies
struct MBarrier {               // lies in the kernel's 8 bytes of shared memory
    int32_t bytes;              // still to come in this phase; negative if copies came first
    uint16_t arrivals;          // still to come in this phase
    uint16_t count_and_parity;  // parity of the current phase in bit 15
    unsigned count() const { return count_and_parity & 0x7fff; }
    unsigned parity() const { return count_and_parity >> 15; }
};

// An mbarrier's memory is the hardware's until the block ends: ordinary stores to it are undefined, even when nobody waits any more.
static void require_intact(const Block& b, unsigned shared) {
    const auto known = b.mbarriers.find(shared);
    if (known != b.mbarriers.end() && memcmp(b.shared + shared, &known->second, sizeof known->second))
        stop(format("block (%u,%u,%u): the mbarrier at smem+%u was overwritten", b.index.x, b.index.y, b.index.z, shared));
}

static void note(Block& b, const MBarrier* m) {
    memcpy(&b.mbarriers[unsigned(reinterpret_cast<const unsigned char*>(m) - b.shared)], m, sizeof *m);
}

static MBarrier* mbarrier_at(unsigned shared, Site site) {
    auto* m = reinterpret_cast<MBarrier*>(from_shared(shared, 8, 8, "mbarrier", site));
    running()->site = site;
    check_access(m, sizeof *m, Access::atomic);
    require_intact(*running()->block, shared);
    if (m->arrivals > m->count()) fail_at(site, "mbarrier: not initialised");
    return m;
}

static void complete_phase(MBarrier* m) {
    note(*running()->block, m);
    if (m->arrivals || m->bytes) return;
    m->arrivals = uint16_t(m->count());
    m->count_and_parity ^= 0x8000;
    note(*running()->block, m);
    machine.idle_yields = 0;
    publish(m);
}

void mbarrier_init(unsigned shared, unsigned count, Site site) {
    auto* m = reinterpret_cast<MBarrier*>(from_shared(shared, 8, 8, "mbar_init", site));
    if (!count || count > 0x7fff) fail_at(site, format("mbar_init: count %u", count));
    running()->site = site;
    check_access(m, sizeof *m, Access::write);
    *m = {0, uint16_t(count), uint16_t(count)};
    note(*running()->block, m);
}

void mbarrier_arrive(unsigned shared, unsigned expected_bytes, Site site) {
    MBarrier* m = mbarrier_at(shared, site);
    release_to(m, running());
    if (!m->arrivals) fail_at(site, format("mbarrier: more arrivals than its count %u in one phase", m->count()));
    m->bytes += int32_t(expected_bytes);
    --m->arrivals;
    complete_phase(m);
}

static void land(const BulkCopy& c) {
    memcpy(c.to, c.from, c.bytes);
    auto* m = reinterpret_cast<MBarrier*>(running()->block->shared + c.barrier);
    m->bytes -= int32_t(c.bytes);
    complete_phase(m);
}

void bulk_load(unsigned shared, const void* from, unsigned bytes, unsigned barrier, Site site) {
    if (!bytes || bytes % 16) fail_at(site, format("bulk_load: %u bytes is not a positive multiple of 16", bytes));
    check_aligned(from, 16, "bulk_load source", site);
    unsigned char* to = from_shared(shared, bytes, 16, "bulk_load", site);
    MBarrier* m = mbarrier_at(barrier, site);
    check_access(to, bytes, Access::write);
    check_access(from, bytes, Access::read);
    release_to(m, running());
    const BulkCopy copy{barrier, to, from, bytes};
    if (!machine.options.delay_copies) return land(copy);
    memset(to, poison, bytes);
    running()->block->bulk_copies.push_back(copy);
}

void mbarrier_wait(unsigned shared, unsigned parity, Site site) {
    MBarrier* m = mbarrier_at(shared, site);
    while (m->parity() == parity) {  // the phase of this parity is the current one: not complete
        yield(site);
        if (m->parity() != parity) break;
        std::vector<BulkCopy> landing;
        auto& copies = running()->block->bulk_copies;
        const auto mine = [&](const BulkCopy& c) {
            if (c.barrier == shared) landing.push_back(c);
            return c.barrier == shared;
        };
        copies.erase(std::remove_if(copies.begin(), copies.end(), mine), copies.end());
        for (const BulkCopy& c : landing) land(c);
    }
    acquire_from(m, running());
}

void check_finished_copies(const Block& b) {
    if (!b.bulk_copies.empty())
        stop(format("block (%u,%u,%u) exits with a bulk copy in flight: nobody waited for its mbarrier", b.index.x,
                    b.index.y, b.index.z));
    for (const auto& known : b.mbarriers) require_intact(b, known.first);
}

}  // namespace emu
