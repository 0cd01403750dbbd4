// A weight from the order of its file into the order of its kernels, whatever that is: a table says where each element comes
// from (runtime/order.py).
//
//   element e of block b of out = raw element table[e] of block b, or a constant
//
// An element has 16 bits, or 4: INT4 codes, and a scale as four of them. A warp writes 128 contiguous bytes; what it gathers
// lies in a few rows of one matrix, and the table is the same for every block, so both come from L2.
// Test: tests/runtime/test_order.py (emulated), tests/gpu/test_stream.py
#pragma once
#include "ddtree/prims.cuh"

namespace ddtree {

struct Rearrange {
    u64 words, period;   // words of 32 bits in all and in a block
    u64 source;          // bytes of a block of `raw`
};

constexpr u32 REARRANGE_CONSTANT = 0xFFFF0000u;   // table entries from here on are values

template <int bits>
DEVICE u32 element(const u8* block, u32 entry) {
    if (entry >= REARRANGE_CONSTANT) return entry & 0xFFFF;
    if constexpr (bits == 16) return reinterpret_cast<const u16*>(block)[entry];
    return block[entry / 2] >> (entry % 2 * 4) & 15;
}

template <class Config>
DEVICE void rearrange(const Rearrange* what, const u8* raw, const u32* table, u32* out) {
    pdl_launch_dependents();
    pdl_wait();
    constexpr int each = 32 / Config::bits;
    const u64 stride = u64(gridDim.x) * Config::threads;
    for (u64 i = u64(blockIdx.x) * Config::threads + threadIdx.x; i < what->words; i += stride) {
        const u64 block = i / what->period, at = i - block * what->period;
        u32 word = 0;
#pragma unroll
        for (int j = 0; j < each; ++j)
            word |= element<Config::bits>(raw + block * what->source, table[at * each + j]) << (Config::bits * j);
        out[i] = word;
    }
}

}  // namespace ddtree
