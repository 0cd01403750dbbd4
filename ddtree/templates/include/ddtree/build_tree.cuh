// Each sequence's draft tree: the most probable prefixes under the drafter's marginals, best first.
//
//   anchor, budget                      [sequences] int32
//   log_prob, token                     [drafted rows, k] fp32, int32; `depths` consecutive rows for each sequence that
//                                       drafts, best candidate first
//   node_token, node_parent, node_depth [sequences, nodes] int32, -1 past `count`
//   node_score, count                   [sequences, nodes] fp64, -inf past `count`; [sequences] int32, 0 without rows
//   grid (sequences), block 32: one warp builds one tree; nodes <= 64, depths <= 16, k <= 255
//
// The same steps as graph/ops/build_tree.py: pop the best candidate, push its next sibling and its best child. Scores are
// fp64 sums in the reference's order, so trees are equal bit for bit. Equal scores are ordered by the tuple of ranks along
// the path, packed as bytes of rank + 1, first depth on top: absent ranks are 0, so a prefix precedes its extensions.
// A pop adds at most one candidate, so as many slots as nodes hold them all. Sequences are independent blocks.
// Test: tests/ops/test_build_tree.py
#pragma once
#include "ddtree/domain.cuh"
#include "ddtree/order.cuh"

namespace ddtree {

struct Candidate {
    double score;
    u32 ranks[4];
    int parent, depth, rank;
};

DEVICE Candidate candidate(const Candidate& like, int depth, int rank, int parent, double score) {
    Candidate c = like;
    const int at = (depth - 1) / 4, shift = 24 - 8 * ((depth - 1) % 4);
#pragma unroll
    for (int word = 0; word < 4; ++word) {   // masks, because an index known only at run time would need local memory
        const u32 byte = word == at ? 0xffu << shift : 0;
        c.ranks[word] = (c.ranks[word] & ~byte) | (u32(rank + 1) * 0x01010101u & byte);
    }
    c.score = score;
    c.parent = parent;
    c.depth = depth;
    c.rank = rank;
    return c;
}

DEVICE bool precedes(const Candidate& a, const Candidate& b) {
    const u64 x = order_bits(a.score), y = order_bits(b.score);
    if (x != y) return x > y;
#pragma unroll
    for (int word = 0; word < 4; ++word)
        if (a.ranks[word] != b.ranks[word]) return a.ranks[word] < b.ranks[word];
    return false;
}

// Slot of the first of `open` candidates, found by all lanes of a warp together.
DEVICE int first_candidate(const Candidate* frontier, int open) {
    constexpr u32 all = 0xffffffffu;
    int slot = threadIdx.x;
#pragma unroll 1
    for (int other = slot + 32; other < open; other += 32)
        if (precedes(frontier[other], frontier[slot])) slot = other;
    bool in = slot < open;
    const u64 order = in ? order_bits(frontier[slot].score) : 0;
    const u32 high = __reduce_max_sync(all, u32(order >> 32));
    in = in && u32(order >> 32) == high;
    const u32 low = __reduce_max_sync(all, in ? u32(order) : 0u);
    in = in && u32(order) == low;
#pragma unroll 1
    for (int word = 0; word < 4 && __popc(__ballot_sync(all, in)) > 1; ++word) {   // a tie
        const u32 mine = in ? frontier[slot].ranks[word] : all, least = __reduce_min_sync(all, mine);
        in = in && mine == least;
    }
    return __shfl_sync(all, slot, __ffs(__ballot_sync(all, in)) - 1);
}

// The first drafted row of a sequence, or the number of rows when it has none; all lanes of a warp together.
template <Domain DOMAIN>
DEVICE int first_row(int sequence, const Rows* rows) {
    const int count = live<DOMAIN>(rows);
    int first = count;
#pragma unroll 1
    for (int i = threadIdx.x; i < count && first == count; i += 32) {
        const int row = DOMAIN == Domain::wanted ? rows->wanted[i] : i;
        if (rows->sequence[row] == sequence) first = i;
    }
    return __reduce_min_sync(0xffffffffu, first);
}

template <class Config>
DEVICE void build_tree(const int* anchor, const int* budget, const float* log_prob, const int* token, const Rows* rows,
                       int* node_token, int* node_parent, int* node_depth, double* node_score, int* count) {
    constexpr int depths = Config::depths, k = Config::k, nodes = Config::nodes;
    static_assert(depths <= 16 && k <= 255, "ranks are packed as 16 bytes");
    static_assert(2 * nodes * sizeof(Candidate) + depths * k * sizeof(float) == Config::smem, "what the launch gives");
    DYN_SMEM(memory);
    auto* frontier = reinterpret_cast<Candidate*>(memory);
    auto* chosen = frontier + nodes;
    auto* lp = reinterpret_cast<float*>(chosen + nodes);
    pdl_launch_dependents();
    pdl_wait();
    const int sequence = blockIdx.x, lane = threadIdx.x;
    if (sequence >= rows->sequences) return;
    const int first = first_row<Config::domain>(sequence, rows);
    const bool drafted = first < live<Config::domain>(rows);
    log_prob += size_t(first) * k;
    token += size_t(first) * k;
    if (drafted) {
#pragma unroll 4
        for (int i = lane; i < depths * k; i += 32) lp[i] = log_prob[i];
    }
    __syncwarp();

    const int last = drafted ? min(max(budget[sequence], 0), nodes - 1) : 0;   // nodes are numbered by choice, the root is 0
    int open = 1, used = 1;
    if (lane == 0 && last > 0) frontier[0] = candidate(Candidate{}, 1, 0, 0, double(lp[0]));
#pragma unroll 1
    for (; used <= last && open > 0; ++used) {
        __syncwarp();
        const int slot = first_candidate(frontier, open);
        const Candidate best = frontier[slot];
        const bool sibling = best.rank + 1 < k, child = best.depth < depths;
        __syncwarp();
        if (lane == 0) {
            chosen[used] = best;
            int free = open - 1;
            frontier[slot] = frontier[free];
            if (sibling) {
                const float* own = lp + (best.depth - 1) * k + best.rank;
                const double score = (best.score - double(own[0])) + double(own[1]);
                frontier[free++] = candidate(best, best.depth, best.rank + 1, best.parent, score);
            }
            if (child) frontier[free] = candidate(best, best.depth + 1, 0, used, best.score + double(lp[best.depth * k]));
        }
        open += int(sibling) + int(child) - 1;
    }
    __syncwarp();

    const size_t row = size_t(sequence) * nodes;
#pragma unroll 1
    for (int node = lane; node < nodes; node += 32) {
        const bool root = drafted && node == 0, live = node > 0 && node < used;
        const Candidate& c = chosen[node];
        node_token[row + node] = root ? anchor[sequence] : live ? token[(c.depth - 1) * k + c.rank] : -1;
        node_parent[row + node] = live ? c.parent : -1;
        node_depth[row + node] = root ? 0 : live ? c.depth : -1;
        node_score[row + node] = root ? 0. : live ? c.score : -double(kInfinity);
    }
    if (lane == 0) count[sequence] = drafted ? used : 0;
}

}  // namespace ddtree
