// Random contents of a weight in its kernels' layout, from a counter-based generator.
//
//   word i of out = base[i % period] | (random word i & mask[i % period])
//
// `base` and `mask` are a packed template of one unit (a matrix, or one expert of many): what packing makes of the fixed bits
// (an exponent) and of the free ones (signs, mantissas, INT4 codes). Padding has neither, so it stays zero.
// Test: tests/gpu/test_rank_step.py, tests/runtime/test_random_weights.py (emulated)
#pragma once
#include "ddtree/philox.cuh"

namespace ddtree {

struct RandomFill {
    u64 words, period;   // words of 32 bits in all and in the template
    u64 seed;
};

template <class Config>
DEVICE void random_fill(const RandomFill* fill, const u32* base, const u32* mask, u32* out) {
    pdl_launch_dependents();
    pdl_wait();
    const u64 quads = (fill->words + 3) / 4, stride = u64(gridDim.x) * Config::threads;
    for (u64 q = u64(blockIdx.x) * Config::threads + threadIdx.x; q < quads; q += stride) {
        const uint4 r = philox4x32(make_uint4(u32(q), u32(q >> 32), 0, 0), fill->seed);
        const u32 random[4] = {r.x, r.y, r.z, r.w};
        u64 at = 4 * q % fill->period;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (4 * q + j < fill->words) out[4 * q + j] = base[at] | (random[j] & mask[at]);
            if (++at == fill->period) at = 0;
        }
    }
}

}  // namespace ddtree
