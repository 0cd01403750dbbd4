// The list of row tiles of a decode step, made by every block for itself in shared memory.
//
//   tile[i]       expert | rows << 12, 1..8 rows
//   pair[8 i + c] row * top_k + slot of column c
//
// Tiles 0 .. top_k - 1 are the experts of row 0 in slot order, so that the first copies can start before there is a list; then
// the other experts in order. Rows of an expert are in row order, eight to a tile.
#pragma once
#include "ddtree/expert_plan.cuh"

namespace ddtree {

template <class Config>
struct RowList {
    using P = ExpertPlan<Config>;
    static constexpr int kPerThread = (P::kPairs + P::kThreads - 1) / P::kThreads;   // choices: thread + i * kThreads
    static constexpr int kExperts = (Config::experts + P::kThreads - 1) / P::kThreads;   // of a thread, successive ones

    u16 *tile, *pair;
    u32* rows_of;   // [experts][2] bit masks of the rows that chose it
    u16 *first;     // [experts] its first tile past those of row 0
    u16 *slot_of;   // [experts] its tile among those of row 0
    u32* counts;    // [warps]

    DEVICE explicit RowList(u8* smem)
        : tile(reinterpret_cast<u16*>(smem + P::kTiles)), pair(reinterpret_cast<u16*>(smem + P::kTilePairs)),
          rows_of(reinterpret_cast<u32*>(smem + P::kSums)), first(reinterpret_cast<u16*>(rows_of + 2 * Config::experts)),
          slot_of(first + Config::experts), counts(reinterpret_cast<u32*>(smem + P::kQueue) + 4) {}

    // Returns the number of tiles; ids[i] is choice thread + i * kThreads, -1 past the last. The whole block calls it.
    DEVICE int make(const int (&ids)[kPerThread], int rows) const {
        const int thread = threadIdx.x;
        if (rows == 1) {
            if (thread < P::kTopK) tile[thread] = u16(ids[0] | 1 << 12), pair[8 * thread] = u16(thread);
            __syncthreads();
            return P::kTopK;
        }
        __syncthreads();   // the sums whose place the masks take are read
        for (int i = thread; i < 2 * Config::experts; i += P::kThreads) rows_of[i] = 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kPerThread; ++i)
            if (ids[i] >= 0) {
                const int row = row_of(i);
                atomicOr(rows_of + 2 * ids[i] + row / 32, 1u << row % 32);
            }
        __syncthreads();
        if (thread < P::kTopK) {
            tile[thread] = u16(ids[0] | min(count(ids[0]), 8) << 12);
            slot_of[ids[0]] = u16(thread);
        }
        const int total = number_tiles();
#pragma unroll
        for (int i = 0; i < kPerThread; ++i)
            if (ids[i] >= 0) pair[8 * tile_at(ids[i], row_of(i)) + rank(ids[i], row_of(i)) % 8] = u16(thread + i * P::kThreads);
        __syncthreads();
        return total;
    }

private:
    static DEVICE int row_of(int i) { return (int(threadIdx.x) + i * P::kThreads) / P::kTopK; }
    DEVICE int count(int expert) const { return __popc(rows_of[2 * expert]) + __popc(rows_of[2 * expert + 1]); }
    DEVICE int of_row_0(int expert) const { return rows_of[2 * expert] & 1; }

    // Rows of the expert before this one.
    DEVICE int rank(int expert, int row) const {
        const u32 low = rows_of[2 * expert], high = rows_of[2 * expert + 1], below = (1u << row % 32) - 1;
        return row < 32 ? __popc(low & below) : __popc(low) + __popc(high & below);
    }

    DEVICE int tile_at(int expert, int row) const {
        const int eight = rank(expert, row) / 8, ahead = of_row_0(expert);
        return ahead && eight == 0 ? slot_of[expert] : first[expert] + eight - ahead;
    }

    // Sets `first`, and `tile` of all that follow those of row 0: a prefix sum over experts.
    DEVICE int number_tiles() const {
        const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
        int left[kExperts], mine = 0;   // rows that still need a tile
#pragma unroll
        for (int i = 0; i < kExperts; ++i) {
            const int expert = thread * kExperts + i;
            left[i] = expert < Config::experts ? count(expert) - 8 * of_row_0(expert) : 0;
            mine += max(left[i] + 7, 0) / 8;
        }
        int scan = mine;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const int before = __shfl_up_sync(0xffffffffu, scan, distance);
            if (lane >= distance) scan += before;
        }
        if (lane == 31) counts[warp] = scan;
        __syncthreads();
        int next = P::kTopK + scan - mine, total = P::kTopK;
#pragma unroll
        for (int w = 0; w < P::kWarps; ++w) {
            if (w < warp) next += counts[w];
            total += counts[w];
        }
#pragma unroll
        for (int i = 0; i < kExperts; ++i) {
            const int expert = thread * kExperts + i;
            if (expert < Config::experts) first[expert] = u16(next);
            for (int rows = left[i]; rows > 0; rows -= 8) tile[next++] = u16(expert | min(rows, 8) << 12);
        }
        __syncthreads();
        return total;
    }
};

}  // namespace ddtree
