// Race detector: vector clocks (FastTrack, Flanagan & Freund 2009) over barriers, warps and mbarriers inside a block,
// and over acquire/release words of global memory between blocks.
//
// A thread's knowledge: one clock per thread of its own block (dense), and what it acquired about other blocks (shared,
// immutable). Every two bytes of shared memory and of the array arguments have a cell with the last write and two last
// reads.
#include "machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <unordered_map>

namespace emu {

using Clocks = std::vector<uint32_t>;        // by thread of a block
using Foreign = std::map<unsigned, Clocks>;  // by block
using ForeignPointer = std::shared_ptr<const Foreign>;

struct Epoch {  // one access
    uint32_t block = 0;
    uint32_t thread : 10 = 0;
    uint32_t bytes : 2 = 0;  // which of the cell's bytes; 0: no access
    uint32_t atomic : 1 = 0;
    uint32_t clock = 0;
};

struct Cell {
    Epoch write, read, other_read;  // other_read: the last read of another warp or block than `read`
};
constexpr size_t cell_bytes = 2;

struct LocalSync {
    Clocks collected, published;
    ForeignPointer foreign, published_foreign;
};

struct ThreadClocks {
    Clocks local;
    ForeignPointer foreign;
};

static std::vector<std::vector<ThreadClocks>> clocks;  // by resident block, thread
static std::vector<std::vector<Cell>> shared_cells;    // by resident block
static std::unordered_map<const void*, LocalSync> local_syncs;
static std::unordered_map<const void*, ForeignPointer> flags;

struct GlobalCells {
    Cell* cells;
    size_t bytes;
};
static std::vector<GlobalCells> global_cells;  // by buffer; pages are touched only where the kernel accesses

static bool enabled() { return machine.options.check_races; }
static size_t slot_of(const Block& b) { return &b - machine.blocks.data(); }
static ThreadClocks& clocks_of(const Fiber* f) { return clocks[slot_of(*f->block)][f->id]; }

void races_begin(unsigned resident_blocks) {
    races_end();
    if (!enabled()) return;
    clocks.assign(resident_blocks, {});
    shared_cells.assign(resident_blocks, {});
    for (int i = 0; i < machine.options.buffer_count; ++i) {
        const size_t bytes = (machine.options.buffers[i].bytes / cell_bytes + 1) * sizeof(Cell);
        void* cells = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (cells == MAP_FAILED) return stop("out of memory: cannot map the race checker's cells");
        global_cells.push_back({static_cast<Cell*>(cells), bytes});
    }
}

void races_begin_block(Block& b) {
    if (!enabled()) return;
    if (!machine.options.cooperative) local_syncs.clear();
    shared_cells[slot_of(b)].assign(shared_capacity() / cell_bytes, Cell{});
    auto& threads = clocks[slot_of(b)];
    threads.assign(machine.threads_per_block, {Clocks(machine.threads_per_block, 0), nullptr});
    for (size_t i = 0; i < threads.size(); ++i) threads[i].local[i] = 1;
}

void races_end() {
    for (const GlobalCells& g : global_cells) munmap(g.cells, g.bytes);
    global_cells.clear();
    local_syncs.clear();
    flags.clear();
}

// ---- happens-before
static void join(Clocks& into, const Clocks& from) {
    if (into.size() < from.size()) into.resize(from.size(), 0);
    for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

static bool covers(const Foreign& a, const Foreign& b) {
    return std::all_of(b.begin(), b.end(), [&](const auto& entry) {
        const auto found = a.find(entry.first);
        if (found == a.end()) return false;
        for (size_t i = 0; i < entry.second.size(); ++i)
            if (entry.second[i] > found->second[i]) return false;
        return true;
    });
}

static ForeignPointer merged(const ForeignPointer& a, const ForeignPointer& b) {
    if (a == b || !b) return a;
    if (!a || covers(*b, *a)) return b;
    if (covers(*a, *b)) return a;
    auto both = std::make_shared<Foreign>(*a);
    for (const auto& [block, theirs] : *b) join((*both)[block], theirs);
    return both;
}

static void learn(Fiber* f, const ForeignPointer& news) {
    ThreadClocks& mine = clocks_of(f);
    if (!news || news == mine.foreign) return;
    mine.foreign = merged(mine.foreign, news);
    const auto about_me = news->find(f->block->id);
    if (about_me != news->end()) join(mine.local, about_me->second);
}

void release_to(const void* key, Fiber* f) {
    if (!enabled()) return;
    ThreadClocks& mine = clocks_of(f);
    LocalSync& sync = local_syncs[key];
    join(sync.collected, mine.local);
    sync.foreign = merged(sync.foreign, mine.foreign);
    ++mine.local[f->id];
}

void publish(const void* key) {
    if (!enabled()) return;
    LocalSync& sync = local_syncs[key];
    sync.published = sync.collected;
    sync.published_foreign = sync.foreign;
}

void acquire_from(const void* key, Fiber* f) {
    if (!enabled()) return;
    const LocalSync& sync = local_syncs[key];
    join(clocks_of(f).local, sync.published);
    learn(f, sync.published_foreign);
}

void release_flag(const void* word, Fiber* f) {
    if (!enabled()) return;
    ThreadClocks& mine = clocks_of(f);
    ForeignPointer& flag = flags[word];
    auto all = std::make_shared<Foreign>(flag ? *flag : Foreign{});
    if (mine.foreign)
        for (const auto& [block, theirs] : *mine.foreign) join((*all)[block], theirs);
    join((*all)[f->block->id], mine.local);
    flag = all;
    ++mine.local[f->id];
}

void acquire_flag(const void* word, Fiber* f) {
    if (!enabled()) return;
    const auto flag = flags.find(word);
    if (flag != flags.end()) learn(f, flag->second);
}

static bool ordered(const Epoch& earlier, const Fiber* f, const ThreadClocks& mine) {
    if (!earlier.bytes) return true;
    if (earlier.block == f->block->id) return earlier.clock <= mine.local[earlier.thread];
    if (!mine.foreign) return false;
    const auto known = mine.foreign->find(earlier.block);
    return known != mine.foreign->end() && earlier.clock <= known->second[earlier.thread];
}

// ---- accesses
static std::string thread_name(const Epoch& e) {
    const dim3 &g = grid_size, &b = block_size;
    return format("block (%u,%u,%u) thread (%u,%u,%u)", e.block % g.x, e.block / g.x % g.y, e.block / g.x / g.y,
                  e.thread % b.x, e.thread / b.x % b.y, e.thread / b.x / b.y);
}

[[noreturn]] static void report(const char* kind, const std::string& where, const Epoch& other, const void* pc) {
    Fiber* f = running();
    machine.pc = uint64_t(pc);
    stop((pc ? "" : name_of(f->site) + ": ") + "race (" + kind + ") on " + where + ": " + name_of(f) + " and " +
         thread_name(other) + " are not ordered by any barrier or flag");
}

// Checks one cell and records the access. `where` is called only for a message.
template <class Where>
static void visit(Cell& cell, const Epoch& now, Access kind, const Fiber* f, const ThreadClocks& mine, Where where,
                  const void* pc) {
    const bool write = kind != Access::read;
    const auto conflicts = [&](const Epoch& e) {
        return (e.bytes & now.bytes) && !(e.atomic && now.atomic) && !ordered(e, f, mine);
    };
    if (conflicts(cell.write)) report(write ? "write after write" : "read after write", where(), cell.write, pc);
    if (!write) {
        if (cell.read.block != now.block || cell.read.thread / 32 != now.thread / 32) cell.other_read = cell.read;
        cell.read = now;
        return;
    }
    if (conflicts(cell.read)) report("write after read", where(), cell.read, pc);
    if (conflicts(cell.other_read)) report("write after read", where(), cell.other_read, pc);
    cell.write = now;
    if (kind == Access::write) cell.read = cell.other_read = Epoch{};
}

static unsigned char bytes_of_cell(size_t cell, size_t offset, size_t end) {
    unsigned char mask = 0;
    for (size_t i = 0; i < cell_bytes; ++i)
        mask |= (cell * cell_bytes + i >= offset && cell * cell_bytes + i < end) << i;
    return mask;
}

template <class Name>
static void visit_range(Cell* cells, size_t offset, size_t bytes, Access kind, Name name, const void* pc) {
    const Fiber* f = running();
    const ThreadClocks& mine = clocks_of(f);
    Epoch now;
    now.block = f->block->id;
    now.thread = f->id;
    now.clock = mine.local[f->id];
    now.atomic = kind == Access::atomic;
    const size_t end = offset + bytes;
    for (size_t cell = offset / cell_bytes; cell * cell_bytes < end; ++cell) {
        now.bytes = bytes_of_cell(cell, offset, end);
        visit(cells[cell], now, kind, f, mine, [&] { return name(std::max(offset, cell * cell_bytes)); }, pc);
    }
}

void check_access(const void* p, size_t bytes, Access kind, const void* pc) {
    if (!enabled() || !current) return;
    const Block& block = *running()->block;
    const size_t offset = static_cast<const unsigned char*>(p) - block.shared;
    if (offset < shared_capacity()) {
        const bool in_static = offset + bytes <= static_shared_used();
        const bool in_dynamic =
            offset >= static_shared_capacity && offset + bytes <= static_shared_capacity + machine.dynamic_shared;
        if (!in_static && !in_dynamic) {
            machine.pc = uint64_t(pc);
            stop(name_of(running()) + ": shared-memory access out of bounds, at " + name_of_shared(offset));
        }
        return visit_range(shared_cells[slot_of(block)].data(), offset, bytes, kind, name_of_shared, pc);
    }
    if (on_a_stack(p)) return;
    const Buffer* buffer = buffer_of(p);
    if (!buffer) return;
    const auto name = [buffer](size_t byte) { return format("argument %d byte %zu", int(buffer->argument), byte); };
    visit_range(global_cells[buffer - machine.options.buffers].cells, uint64_t(p) - buffer->address, bytes, kind, name,
                pc);
}

}  // namespace emu
