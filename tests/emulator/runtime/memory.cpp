// Shared memory of the resident blocks, alignment checks and accesses that other blocks may see.
#include "machine.h"

#include <sys/mman.h>

#include <cstring>

namespace emu {

// A slot a block: [guard page ... static part | dynamic part | red zone][guard page ...], the red zone less than 1024
// bytes, so that the dynamic part starts 1024-byte aligned and an overrun soon meets the guard page.
static unsigned char* shared_map;
static size_t shared_map_bytes, slot_bytes, capacity;
static unsigned launch_number;
static size_t static_used;
constexpr unsigned char red_zone = 0xa5;

static size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

void reserve_shared(size_t blocks, unsigned dynamic_bytes) {
    ++launch_number;
    static_used = 0;
    const size_t new_capacity = static_shared_capacity + round_up(dynamic_bytes, 1024);
    const size_t new_slot = round_up(new_capacity, page_size) + page_size, bytes = new_slot * blocks + page_size;
    if (new_capacity == capacity && bytes == shared_map_bytes) return;
    if (shared_map) munmap(shared_map, shared_map_bytes);
    shared_map =
        static_cast<unsigned char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    shared_map_bytes = bytes;
    slot_bytes = new_slot;
    capacity = new_capacity;
    for (size_t i = 0; i <= blocks; ++i) mprotect(shared_map + i * slot_bytes, page_size, PROT_NONE);
}

unsigned char* shared_of(size_t block) { return shared_map + (block + 1) * slot_bytes - capacity; }
size_t shared_capacity() { return capacity; }
size_t static_shared_used() { return static_used; }

static size_t shared_end() { return static_shared_capacity + machine.dynamic_shared; }

void poison_shared(Block& b) {
    memset(b.shared, poison, shared_end());
    memset(b.shared + shared_end(), red_zone, capacity - shared_end());
}

void check_red_zone(const Block& b) {
    const auto wrong = [&](size_t i) {
        machine.error = format("block (%u,%u,%u) wrote outside its shared memory, at %s", b.index.x, b.index.y,
                               b.index.z, name_of_shared(i).c_str());
    };
    for (size_t i = static_used; i < static_shared_capacity; ++i)
        if (b.shared[i] != poison) return wrong(i);
    for (size_t i = shared_end(); i < capacity; ++i)
        if (b.shared[i] != red_zone) return wrong(i);
}

std::string name_of_shared(size_t offset) {
    if (offset < static_used) return format("SHARED_ARRAY byte %zu", offset);
    return format("smem%+ld of %u bytes", long(offset) - long(static_shared_capacity), machine.dynamic_shared);
}

unsigned char* dynamic_shared() { return running()->block->shared + static_shared_capacity; }

void* static_shared(SharedSlot& slot, size_t bytes) {
    if (slot.launch != launch_number) {
        slot.launch = launch_number;
        slot.offset = unsigned(static_used);
        static_used += round_up(bytes, 16);
        if (static_used > static_shared_capacity)
            stop(format("SHARED_ARRAYs exceed the emulator's %zu bytes", static_shared_capacity));
        if (static_used + machine.dynamic_shared > shared_limit)
            stop(format("shared memory: %zu static + %u dynamic bytes exceed %zu", static_used, machine.dynamic_shared,
                        shared_limit));
    }
    return running()->block->shared + slot.offset;
}

unsigned to_shared(const void* p, Site site) {
    const size_t offset = static_cast<const unsigned char*>(p) - running()->block->shared;
    if (offset > shared_end()) fail_at(site, format("address %p is not in this block's shared memory", p));
    return unsigned(offset);
}

unsigned char* from_shared(unsigned address, unsigned bytes, unsigned alignment, const char* what, Site site) {
    const bool in_static = size_t(address) + bytes <= static_used;
    const bool in_dynamic = address >= static_shared_capacity && size_t(address) + bytes <= shared_end();
    if (!in_static && !in_dynamic)
        fail_at(site, format("%s: %u bytes at %s are out of bounds", what, bytes, name_of_shared(address).c_str()));
    if (address % alignment)
        fail_at(site, format("%s: %s is not %u-byte aligned", what, name_of_shared(address).c_str(), alignment));
    return running()->block->shared + address;
}

// ---- global memory
const Buffer* buffer_of(const void* p) {
    const Options& o = machine.options;
    for (int i = 0; i < o.buffer_count; ++i)
        if (uint64_t(p) - o.buffers[i].address < o.buffers[i].bytes) return &o.buffers[i];
    return nullptr;
}

bool is_global(const void* p) { return buffer_of(p); }

std::string describe_address(uint64_t address) {
    if (address < page_size) return format("byte %ld of a null pointer", long(address));
    const Options& o = machine.options;
    int64_t nearest = 1 << 16;  // farther away, the address has nothing to do with an argument
    std::string text = format("address %p", reinterpret_cast<void*>(address));
    for (int i = 0; i < o.buffer_count; ++i) {
        const Buffer& b = o.buffers[i];
        const int64_t before = int64_t(b.address - address), past = int64_t(address - b.address - b.bytes);
        const int64_t distance = before > 0 ? before : past;
        if (distance < 0 || distance >= nearest) continue;
        nearest = distance;
        text = format("%ld bytes %s argument %d", long(distance), before > 0 ? "before" : "past the end of",
                      int(b.argument));
    }
    for (const Block& b : machine.blocks) {
        const int64_t offset = int64_t(address - uint64_t(b.shared));
        if (offset >= -int64_t(page_size) && offset < int64_t(capacity + page_size)) return name_of_shared(offset);
    }
    if (on_a_stack(reinterpret_cast<void*>(address))) return "the thread's stack is exhausted";
    return text;
}

void misaligned(const void* p, int bytes, const char* what, Site site) {
    fail_at(site, format("%s: address %p is not %d-byte aligned", what, p, bytes));
}

void check_prefetch(const void* p, unsigned bytes, Site site) {
    check_aligned(p, 16, "prefetch_l2", site);
    if (bytes % 16) fail_at(site, format("prefetch_l2: %u bytes is not a multiple of 16", bytes));
    const Buffer* b = buffer_of(p);
    if (b && uint64_t(p) + bytes > b->address + b->bytes)
        fail_at(site, format("prefetch_l2: %u bytes at %p pass the end of argument %d", bytes, p, int(b->argument)));
}

// Fibers never interrupt each other, so plain loads and stores are atomic; the race checker is told what they are.
template <class T>
static T load_atomic(const T* p) {
    check_access(p, sizeof(T), Access::atomic);
    return *p;
}

uint4 load16_relaxed(const void* p, Site site) {
    check_aligned(p, 16, "load16_relaxed", site);
    running()->site = site;
    const uint4 v = load_atomic(static_cast<const uint4*>(p));
    yield(site);
    return v;
}

void store16_relaxed(void* p, uint4 v, Site site) {
    check_aligned(p, 16, "store16_relaxed", site);
    running()->site = site;
    check_access(p, sizeof v, Access::atomic);
    memcpy(p, &v, sizeof v);
}

unsigned load_acquire(const unsigned* p, Site site) {
    check_aligned(p, 4, "ld_acquire", site);
    yield(site);  // before the load: what it returns is what the acquire synchronises with
    const unsigned v = load_atomic(p);
    acquire_flag(p, running());
    return v;
}

void store_release(unsigned* p, unsigned v, Site site) {
    check_aligned(p, 4, "st_release", site);
    running()->site = site;
    check_access(p, sizeof v, Access::atomic);
    release_flag(p, running());
    *p = v;
}

unsigned add_acquire_release(unsigned* p, unsigned v, Site site) {
    check_aligned(p, 4, "atom_add_acq_rel", site);
    running()->site = site;
    const unsigned old = load_atomic(p);
    acquire_flag(p, running());
    release_flag(p, running());
    *p = old + v;
    return old;
}

void add_relaxed(unsigned* p, unsigned v) { *p = load_atomic(p) + v; }

uint64_t atomic_load(const void* p, int bytes) {
    check_access(p, bytes, Access::atomic);
    uint64_t v = 0;
    memcpy(&v, p, bytes);
    return v;
}

void atomic_store(void* p, uint64_t v, int bytes) { memcpy(p, &v, bytes); }

}  // namespace emu
