// Collectives of tensor parallelism, as arithmetic: every rank reads all ranks' parts and computes the whole itself.
//
//   parts  [ranks] pointers to each rank's x, in rank order, own part included; peer memory or, on one card, any memory
//   all_reduce  x, y [rows, width] bf16: y = sum of the parts in rank order in fp32, rounded once
//   all_gather  x [rows, words], y [rows, ranks * words], counted in 16-byte words of any type: parts side by side
//   grid covers the row capacity up to some limit, blocks stride over the rest
//
// The parts must be complete and visible when the kernel starts: waiting for other GPUs is the caller's. Every rank adds in
// the same order and an element is one thread's, so all ranks, and any number of rows, give the same bits.
// Tests: tests/ops/test_all_reduce.py, tests/ops/test_all_gather.py
#pragma once
#include "ddtree/domain.cuh"
#include "ddtree/vec.cuh"

namespace ddtree {

template <class Config>
DEVICE void all_reduce(const bf16* const* parts, const Rows* rows, bf16* y) {
    static_assert(Config::width % 8 == 0, "16-byte accesses");
    pdl_launch_dependents();
    pdl_wait();
    const size_t vectors = live<Config::domain>(rows) * size_t(Config::width / 8);
    for (size_t v = blockIdx.x * size_t(Config::threads) + threadIdx.x; v < vectors; v += size_t(gridDim.x) * Config::threads) {
        Vec8 part[Config::ranks];
#pragma unroll
        for (int rank = 0; rank < Config::ranks; ++rank) part[rank] = load8_coherent(parts[rank] + v * 8, 0);
#pragma unroll
        for (int rank = 1; rank < Config::ranks; ++rank) part[0] = part[0] + part[rank];
        store8(y + v * 8, 0, part[0]);
    }
}

template <class Config>
DEVICE void all_gather(const uint4* const* parts, const Rows* rows, uint4* y) {
    constexpr int words = Config::words, wide = Config::ranks * words;
    pdl_launch_dependents();
    pdl_wait();
    const size_t total = live<Config::domain>(rows) * size_t(wide);
    for (size_t i = blockIdx.x * size_t(Config::threads) + threadIdx.x; i < total; i += size_t(gridDim.x) * Config::threads) {
        const size_t row = i / wide;
        const int column = int(i % wide);
        store16(y + i, load16_coherent(parts[column / words] + row * words + column % words));
    }
}

}  // namespace ddtree
