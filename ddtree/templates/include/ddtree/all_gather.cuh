// The ranks' parts side by side, in one shot: every rank posts its rows to all.
//
//   x  [rows, words], y  [rows, ranks * words], counted in 16-byte words of bf16 or fp32; a NaN may get another payload
//   grid  blocks that are resident at once, striding over the words; a mailbox holds [ranks][rows][words]
//
// Tests: tests/ops/test_all_gather.py
#pragma once
#include "ddtree/domain.cuh"
#include "ddtree/ranks.cuh"

namespace ddtree {

template <class Config>
DEVICE void all_gather(const uint4* x, const Rows* rows, Group* group, uint4* y) {
    constexpr int ranks = Config::ranks, words = Config::words, threads = Config::threads;
    static_assert(ranks <= kMostRanks, "room for the ranks in Group");
    pdl_launch_dependents();
    pdl_wait();
    const Mail mail = open_mail(group);
    const int me = group->rank;
    const size_t total = size_t(live<Config::domain>(rows)) * words, stride = size_t(gridDim.x) * threads;
    const size_t first = size_t(blockIdx.x) * threads + threadIdx.x;
    uint4* outbox[ranks];   // of the next rank, and so on, this one last
#pragma unroll
    for (int k = 0; k < ranks; ++k) outbox[k] = mail.outbox((me + 1 + k) % ranks);
    for (size_t i = first; i < total; i += stride) {
        const uint4 word = load16_coherent(x + i);
#pragma unroll
        for (int k = 0; k < ranks - 1; ++k) post(outbox[k] + me * total + i, word);
    }
    clear_last<threads>(mail);
    for (size_t i = first; i < total; i += stride) {
        uint4 parts[ranks];
        await(mail, [&](int r) { return r == me ? nullptr : mail.inbox + r * total + i; }, [](int r) { return r; }, parts);
        const uint4 own = filled(load16_coherent(x + i));   // the bits that the others get
#pragma unroll
        for (int r = 0; r < ranks; ++r) store16(y + (i / words * ranks + r) * words + i % words, r == me ? own : parts[r]);
    }
    close_mail(mail, ranks * total);
}

}  // namespace ddtree
