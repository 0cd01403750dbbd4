// Sum over the ranks of a group, alone and with the residual addition and the norm that follow it.
//
//   x, y   [rows, width] bf16: y = sum of the ranks' x in rank order in fp32, rounded once
//   a      [rows, width] bf16, sum = a + y, rounded; normalised [rows, width] bf16 as in rms_norm.cuh; weight [width] bf16
//   Config width, ranks, threads, domain; lanes and eps of the norm
//   grid   blocks that are resident at once; block b has rows b, b + grid, ...; a thread has the same vectors as in the norm
//
// One shot, for messages of up to `one_shot` words: every rank posts its rows to all and sums everything itself. A mailbox
// holds [ranks][rows][vectors]. Two shots, for longer ones: each row is in parts, one to a rank, which sums it and posts the
// sum to all, so that a rank sends twice a message instead of ranks - 1 of them. A mailbox holds [ranks][rows][part], then sums
// [rows][vectors]. Either way an element is added in rank order and rounded once: the same bits, on all ranks, in any company.
// Tests: tests/ops/test_all_reduce.py, tests/ops/test_all_reduce_add_rms_norm.py
#pragma once
#include "ddtree/ranks.cuh"
#include "ddtree/rms_norm.cuh"

namespace ddtree {

template <class Config>
struct Reduction {
    static constexpr int ranks = Config::ranks, threads = Config::threads;
    static constexpr int vectors = Config::width / 8;                      // of a row
    static constexpr int each = (vectors + threads - 1) / threads;        // of a thread: t, t + threads, ...
    static constexpr int part = (vectors + ranks - 1) / ranks;            // of a rank in two shots
    static_assert(Config::width % 8 == 0 && ranks <= kMostRanks, "16-byte vectors, and room for the ranks in Group");

    Mail mail;
    const bf16* x;
    int count, me;   // rows, this rank
    bool one_shot;

    DEVICE Reduction(Group* group, const bf16* x, int count) : mail(open_mail(group)), x(x), count(count), me(group->rank) {
        one_shot = u32(count) * vectors <= group->one_shot;
    }

    DEVICE const uint4* mine(int row, int v) const { return reinterpret_cast<const uint4*>(x) + size_t(row) * vectors + v; }
    DEVICE size_t whole(int from, int row, int v) const { return (size_t(from) * count + row) * vectors + v; }
    DEVICE size_t of_part(int from, int row, int i) const { return (size_t(from) * count + row) * part + i; }
    DEVICE size_t sum(int row, int v) const { return (size_t(ranks) * count) * part + size_t(row) * vectors + v; }
    DEVICE size_t extent() const { return one_shot ? whole(ranks, 0, 0) : sum(count, 0); }

    // To the other ranks, each rank beginning with another one, and last to itself if `all`.
    DEVICE void post_all(size_t place, uint4 word, bool all) const {
        uint4* outbox[ranks];
#pragma unroll
        for (int k = 0; k < ranks; ++k) outbox[k] = mail.outbox(me + 1 + k < ranks ? me + 1 + k : me + 1 + k - ranks);
#pragma unroll
        for (int k = 0; k < ranks; ++k)
            if (k < ranks - 1 || all) post(outbox[k] + place, word);
    }

    DEVICE void post_row(int row) const {
#pragma unroll
        for (int i = 0; i < each; ++i) {
            const int v = i * threads + int(threadIdx.x);
            if (v >= vectors) break;
            const uint4 word = load16_coherent(mine(row, v));
            if (one_shot) {
                post_all(whole(me, row, v), word, false);
            } else if (v / part != me) {
                post(mail.outbox(v / part) + of_part(me, row, v % part), word);
            }
        }
    }

    // A vector of all ranks, added in rank order: where each peer's word stands in the mailbox, and this rank's own.
    template <class Place>
    DEVICE Vec8 total(const uint4* own, Place place) const {
        uint4 words[ranks];
        await(mail, [&](int r) { return r == me ? nullptr : mail.inbox + place(r); }, [](int r) { return r; }, words);
        const uint4 mine = load16_coherent(own);
        Vec8 sum = unpack8(me == 0 ? mine : words[0]);
#pragma unroll
        for (int r = 1; r < ranks; ++r) sum = sum + unpack8(me == r ? mine : words[r]);
        return sum;
    }

    // Two shots: this rank's part of the row, summed and posted to all, itself included.
    DEVICE void sum_part(int row) const {
        for (int i = threadIdx.x; i < part && me * part + i < vectors; i += threads) {
            const int v = me * part + i;
            post_all(sum(row, v), pack8(total(mine(row, v), [&](int r) { return of_part(r, row, i); })), true);
        }
    }

    DEVICE Vec8 collect_vector(int row, int v) const {
        if (one_shot) return round_bf16(total(mine(row, v), [&](int r) { return whole(r, row, v); }));
        uint4 word[1];
        await(mail, [&](int) { return mail.inbox + sum(row, v); }, [&](int) { return v / part; }, word);
        return unpack8(word[0]);
    }

    // The sums of a thread's vectors of a row, rounded; zero past the row's end.
    DEVICE void collect(int row, Vec8 (&sums)[each]) const {
#pragma unroll
        for (int i = 0; i < each; ++i) {
            const int v = i * threads + int(threadIdx.x);
            sums[i] = v < vectors ? collect_vector(row, v) : Vec8::zero();
        }
    }
};

// Calls use.ask(row) before the wait for a row, then use.take(row, sums). After pdl_wait.
template <class Config, class Use>
DEVICE void reduce_rows(const bf16* x, const Rows* rows, Group* group, Use use) {
    using R = Reduction<Config>;
    const R message(group, x, live<Config::domain>(rows));
    for (int row = blockIdx.x; row < message.count; row += gridDim.x) message.post_row(row);
    clear_last<Config::threads>(message.mail);
    if (!message.one_shot)
        for (int row = blockIdx.x; row < message.count; row += gridDim.x) message.sum_part(row);
    for (int row = blockIdx.x; row < message.count; row += gridDim.x) {
        Vec8 sums[R::each];
        use.ask(row);
        message.collect(row, sums);
        use.take(row, sums);
    }
    close_mail(message.mail, message.extent());
}

template <class Config>
struct StoreRow {
    bf16* y;

    DEVICE void ask(int) {}
    DEVICE void take(int row, const Vec8 (&sums)[Reduction<Config>::each]) {
#pragma unroll
        for (int i = 0; i < Reduction<Config>::each; ++i)
            if (const int v = i * Config::threads + int(threadIdx.x); v < Config::width / 8)
                store8(y + size_t(row) * Config::width, v, sums[i]);
    }
};

template <class Config>
DEVICE void all_reduce(const bf16* x, const Rows* rows, Group* group, bf16* y) {
    pdl_launch_dependents();
    pdl_wait();
    reduce_rows<Config>(x, rows, group, StoreRow<Config>{y});
}

template <class Config>
struct AddAndNormalise {
    static constexpr int each = Reduction<Config>::each;
    const bf16* a;
    bf16 *sum, *y;
    uint4 gain[each], residual[each];

    static DEVICE int place(int i) { return i * Config::threads + int(threadIdx.x); }
    static DEVICE bool exists(int i) { return place(i) < Config::width / 8; }

    DEVICE void ask(int row) {
#pragma unroll
        for (int i = 0; i < each; ++i)
            residual[i] = exists(i) ? load16_coherent(a + size_t(row) * Config::width + place(i) * 8) : make_uint4(0, 0, 0, 0);
    }

    DEVICE void take(int row, Vec8 (&sums)[each]) {
        const size_t first = size_t(row) * Config::width;
#pragma unroll
        for (int i = 0; i < each; ++i) {
            sums[i] = round_bf16(unpack8(residual[i]) + sums[i]);
            if (exists(i)) store8(sum + first, place(i), sums[i]);
        }
        const float scale = inverse_rms<Config::width, Config::lanes>(sums, Config::eps);
#pragma unroll
        for (int i = 0; i < each; ++i)
            if (exists(i)) store8(y + first, place(i), normalised(sums[i], scale, unpack8(gain[i])));
    }
};

template <class Config>
DEVICE void all_reduce_add_rms_norm(const bf16* x, const bf16* a, const bf16* weight, const Rows* rows, Group* group, bf16* sum,
                                    bf16* y) {
    using Use = AddAndNormalise<Config>;
    pdl_launch_dependents();
    Use use{a, sum, y};
#pragma unroll
    for (int i = 0; i < Use::each; ++i) use.gain[i] = Use::exists(i) ? load16(weight + Use::place(i) * 8) : make_uint4(0, 0, 0, 0);
    pdl_wait();
    reduce_rows<Config>(x, rows, group, use);
}

}  // namespace ddtree
