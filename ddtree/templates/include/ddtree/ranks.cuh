// A group of tensor-parallel ranks, as kernels see it: messages through each other's memory, and a watch over every wait.
//
// Each rank has a mailbox in its own memory, which its peers write: three buffers of 16-byte words that messages use in turn.
// A word is empty (an element of all ones) or complete. Every 4-byte element arrives whole, so the data is its own flag: no
// fence, no barrier, no second trip (the scheme of TensorRT-LLM's "Lamport" all-reduce). Elements of all ones are sent as
// 0x7fffffff: as bf16 or fp32 one NaN for another.
//
// A message is one launch of a collective; all ranks launch the same ones in the same order. Its blocks
//   post         words to peers, all of them before the first wait
//   clear_last   empty what the message before left in this rank's mailbox
//   await        words from peers
//   close        the last block to end hands the turn on, so that a replayed graph goes on where it stopped
// Three buffers are enough: who posts message n + 2 has read this rank's words of message n + 1, which this rank posted after
// its launch n had ended, and launch n emptied the buffer of n - 1, which is that of n + 2.
//
// A wait longer than `limit` sets `failed` on all ranks; then no rank waits any more and everything ends, with garbage.
// `missing` says for whom a rank waited, so that the host can name the rank that no other rank heard of.
//
// Blocks wait for the same block of other ranks: a grid must be resident at once, ranks that share a GPU all together.
// Layout of Group: templates/group.py. Tests: tests/ops/test_ranks.py, test_all_reduce.py, test_all_gather.py
#pragma once
#include "ddtree/prims.cuh"

namespace ddtree {

constexpr int kMostRanks = 8;
constexpr u32 kPollsPerLook = 64;   // polls between two looks at the clock
constexpr u32 kEmpty = 0xffffffffu;

struct alignas(16) Group {
    u32 rank, ranks;
    u32 buffer;     // words of each of the three buffers
    u32 one_shot;   // words of the longest message that an all-reduce sends to every rank as a whole
    u64 limit;      // nanoseconds that a wait may take
    u32 turn;       // buffer of the next message: 0, 1, 2, 0, ...
    u32 extent;     // words of this rank's mailbox that the last message may have used
    u32 failed, failed_pad[3];   // not 0: a rank gave up waiting. Any rank writes it
    u32 arrivals;   // blocks of the running message that are done
    u32 missing;    // bit r: this rank waited for rank r when it gave up
    uint4* mailbox[kMostRanks];
    u32* failures[kMostRanks];   // every rank's `failed`
};

// A message under way, as a thread sees it.
struct Mail {
    Group* group;
    const uint4* inbox;   // this rank's buffer
    bool broken;          // the group had failed before the message began

    // A rank's buffer of this message.
    DEVICE uint4* outbox(int to) const { return group->mailbox[to] + size_t(group->turn) * group->buffer; }
};

DEVICE bool is_empty(uint4 w) { return w.x == kEmpty || w.y == kEmpty || w.z == kEmpty || w.w == kEmpty; }

DEVICE uint4 filled(uint4 w) {
    const auto element = [](u32 e) { return e == kEmpty ? 0x7fffffffu : e; };
    return make_uint4(element(w.x), element(w.y), element(w.z), element(w.w));
}

DEVICE Mail open_mail(Group* group) {   // after pdl_wait
    Mail mail{group, nullptr, load16_relaxed_sys(&group->failed).x != 0};
    mail.inbox = mail.outbox(int(group->rank));
    return mail;
}

DEVICE void post(uint4* at, uint4 word) { store16_relaxed_sys(at, filled(word)); }

template <int THREADS>
DEVICE void clear_last(const Mail& mail) {
    const Group& group = *mail.group;
    uint4* last = group.mailbox[group.rank] + size_t((group.turn + 2) % 3) * group.buffer;
    for (u32 w = blockIdx.x * THREADS + threadIdx.x; w < group.extent; w += gridDim.x * THREADS)
        store16_relaxed_sys(last + w, make_uint4(kEmpty, kEmpty, kEmpty, kEmpty));
}

// Whether to wait no longer; the first who finds so tells all ranks. `since`: 0 before the first look at the clock.
DEVICE bool give_up(const Mail& mail, int missing, u64* since) {
    Group& group = *mail.group;
    if (mail.broken) return true;
    const u64 now = nanoseconds();
    if (*since == 0) *since = now;
    const bool failed = load16_relaxed_sys(&group.failed).x != 0;
    if (!failed && now - *since < group.limit) return false;
    atomicOr(&group.missing, 1u << missing);
    if (!failed)
        for (u32 r = 0; r < group.ranks; ++r) st_release_sys(group.failures[r], 1);
    return true;
}

// Waits for COUNT words at once. at(i): where word i stands, null for none, which gives 0; from(i): the rank that posts it.
template <int COUNT, class At, class From>
DEVICE void await(const Mail& mail, At at, From from, uint4 (&words)[COUNT]) {
    u64 since = 0;
    for (u32 polls = 1;; ++polls) {
        int missing = -1;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) words[i] = at(i) ? load16_relaxed_sys(at(i)) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = COUNT - 1; i >= 0; --i)
            if (is_empty(words[i])) missing = from(i);
        if (missing < 0 || (polls % kPollsPerLook == 0 && give_up(mail, missing, &since))) return;
    }
}

// Every thread of every block, when the block has awaited all its words. `extent`: words of a mailbox that the message used.
DEVICE void close_mail(const Mail& mail, size_t extent) {
    Group& group = *mail.group;
    __syncthreads();
    if (threadIdx.x == 0 && atom_add_acq_rel(&group.arrivals, 1) == gridDim.x - 1) {
        group.arrivals = 0;
        group.extent = u32(extent);
        group.turn = (group.turn + 1) % 3;
    }
}

}  // namespace ddtree
