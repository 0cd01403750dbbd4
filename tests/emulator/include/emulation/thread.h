// What a kernel sees of its own thread.
#pragma once
#include "language.h"

namespace emu {

// Source position of a call: a default argument of everything that can fail or wait.
struct Site {
    const char* file;
    int line;
    static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
};

struct ThreadView {
    uint3 index, block_index;
    unsigned lane;
};

extern ThreadView* current;  // the running thread
extern dim3 grid_size, block_size;

void yield(Site);  // lets others run: the body of every spin loop
[[noreturn]] void fail(Site, const char* format, ...);

}  // namespace emu

#define threadIdx (emu::current->index)
#define blockIdx (emu::current->block_index)
#define blockDim (emu::block_size)
#define gridDim (emu::grid_size)
#define warpSize 32

[[noreturn]] inline void __trap(emu::Site site = emu::Site::here()) { emu::fail(site, "__trap()"); }
inline void __nanosleep(unsigned, emu::Site site = emu::Site::here()) { emu::yield(site); }
