// The emulated machine: one launch at a time, every thread of a block a fiber on the calling OS thread.
#pragma once
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulation/barriers.h"
#include "emulation/entry.h"
#include "emulation/hardware.h"
#include "emulation/warp.h"

namespace emu {

constexpr size_t page_size = 4096;
constexpr size_t static_shared_capacity = 8192;  // where SHARED_ARRAYs live, below the dynamic part
constexpr size_t shared_limit = 101376;          // bytes a block may use on sm_120
constexpr unsigned char poison = 0xff;           // of shared memory: NaN as bf16 and float, -1 as integer

struct Buffer {                         // one array argument; mirrored in module.py
    uint64_t address, bytes, argument;  // argument: its position in the kernel's parameter list
};

struct Options {      // mirrored in module.py
    int order;        // 0 forward, 1 reverse, 2 random
    int depth_first;  // 1: a released thread runs before those that wait longer
    int seed;
    int delay_copies;  // 1: asynchronous copies poison their target and happen at the wait
    int cooperative;   // 1: all blocks are resident at once
    int check_races;   // needs a kernel built in check mode
    int exact_mma;     // 1: an H200's rounding, slower
    double timeout_s;
    int buffer_count;
    const Buffer* buffers;
};

struct Result {  // mirrored in module.py
    uint64_t switches, collectives, barriers, mmas;
    double seconds;
    uint64_t pc;             // offset in the kernel's library of the access to blame, or 0
    uint32_t static_shared;  // bytes of SHARED_ARRAYs
    char message[4000];
};

enum class State : uint8_t { ready, running, in_collective, in_barrier, done };
enum class Collective : uint8_t { sync, shuffle, ballot, match, reduce, ldmatrix, mma, named_barrier };

struct Block;
struct Warp;

struct PendingCopy {  // cp.async of one thread
    unsigned char* to;
    const void* from;
    bool valid;
    int group;
    Site site;
};

struct BulkCopy {
    unsigned barrier;  // shared address
    unsigned char* to;
    const void* from;
    unsigned bytes;
};

struct Fiber : ThreadView {
    void* stack_pointer;
    unsigned id;  // in the block
    Warp* warp;
    Block* block;
    State state;
    Site site;  // where it waits
    Collective collective;
    unsigned mask;
    void* argument;  // of the collective, on this fiber's stack
    int barrier;
    Votes votes;
    int copy_group;
    std::vector<PendingCopy> copies;
};

struct Warp {
    Fiber* lane[32];
    unsigned present, waiting, exited;  // lane masks
};

struct Barrier {
    int expected;  // threads of a named barrier; 0 for __syncthreads
    int arrived;
    Site site;  // of the first arrival
    Votes votes;
    unsigned generation;
    std::vector<Fiber*> waiting;
};

struct Block {
    uint3 index;
    unsigned id, live;
    Fiber* fibers;
    Barrier barriers[16];
    std::vector<Warp> warps;
    std::vector<BulkCopy> bulk_copies;
    std::map<unsigned, uint64_t> mbarriers;   // shared address: what its memory must hold
    unsigned char* shared;  // static part, then dynamic part
};

struct Machine {
    Options options;
    std::string error;
    uint64_t pc;
    Result* result;
    unsigned threads_per_block, dynamic_shared;
    std::vector<Fiber> fibers;
    std::vector<Block> blocks;  // resident ones
    std::vector<Fiber*> ring;   // runnable fibers, a circular buffer
    size_t ring_head, ring_count;
    uint64_t live, idle_yields, random_state;
    void* main_stack_pointer;
    sigjmp_buf escape;
    volatile bool active, expired;
};
extern Machine machine;

inline Fiber* running() { return static_cast<Fiber*>(current); }
inline bool same(Site a, Site b) { return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file)); }

// ---- failure.cpp
std::string format(const char*, ...);
std::string name_of(const Fiber*);
std::string name_of(Site);
[[noreturn]] void stop(const std::string& message);  // ends the launch
[[noreturn]] void fail_at(Site, const std::string& message);
[[noreturn]] void deadlock();

// ---- fibers.cpp
void enqueue(Fiber*);
void enqueue_all(Fiber**, int);  // in the schedule's order
void block_current();            // runs another fiber until this one is made ready again
void run_until_idle();
void prepare_stack(Fiber*, size_t slot, void (*entry)());
void reserve_stacks(size_t count);
bool on_a_stack(const void*);
uint64_t random_number();
[[noreturn]] void leave_fibers();

// ---- warp.cpp
void collect(unsigned mask, Collective, void* argument, void (*resolve)(Warp&, unsigned mask), Site);
const char* name_of(Collective);

// ---- barriers.cpp
void thread_exits();

// ---- memory.cpp
void reserve_shared(size_t blocks, unsigned dynamic_bytes);
unsigned char* shared_of(size_t block);
size_t shared_capacity();  // bytes of a block's region, static part and red zone included
void poison_shared(Block&);
void check_red_zone(const Block&);
unsigned char* from_shared(unsigned address, unsigned bytes, unsigned alignment, const char* what, Site);
std::string name_of_shared(size_t offset);
size_t static_shared_used();
const Buffer* buffer_of(const void*);
std::string describe_address(uint64_t);  // for a fault

// ---- copies.cpp
void check_finished_copies(Fiber*);  // a thread exits
void check_finished_copies(const Block&);

// ---- races.cpp: vector clocks; all of it does nothing unless options.check_races
enum class Access { read, write, atomic };
void races_begin(unsigned blocks);
void races_begin_block(Block&);
void races_end();
void check_access(const void*, size_t bytes, Access, const void* pc = nullptr);
// Inside a block: what threads released to a barrier, warp or mbarrier (the key) is acquired after it was published.
void release_to(const void* key, Fiber*);
void publish(const void* key);
void acquire_from(const void* key, Fiber*);
// Between blocks: a word of global memory.
void release_flag(const void* word, Fiber*);
void acquire_flag(const void* word, Fiber*);

}  // namespace emu
