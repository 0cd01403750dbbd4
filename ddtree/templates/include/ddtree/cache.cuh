// Where the rows of a cache lie, and the two ops that put them there as they are.
//
//   pages    [page][64][row]; windowed: [sequence][ring][row], position p at p % ring
//   scratch  [sequence][64][row]
//   Config   row_bytes, a multiple of 16; ring, positions of a windowed cache's ring, 0 for pages; threads
//
// Tests: tests/ops/test_cache_write.py, tests/ops/test_cache_commit.py
#pragma once
#include "ddtree/copy.cuh"

namespace ddtree {

// Index of a committed position's row among all rows of the cache; its page must be mapped.
template <int RING>
DEVICE size_t page_slot(const Rows* rows, int sequence, int position) {
    if constexpr (RING > 0) return size_t(sequence) * RING + position % RING;
    const int page = rows->pages[size_t(sequence) * rows->pages_per_sequence + position / kPage];
    return size_t(page) * kPage + position % kPage;
}

DEVICE size_t scratch_slot(int sequence, int node) { return size_t(sequence) * kScratch + node; }

// Tree row `row` goes to this slot of scratch.
DEVICE size_t tree_slot(const Rows* rows, size_t row) { return scratch_slot(rows->sequence[row], rows->node[row]); }

// Committed row `row` goes to this slot of the pages.
template <int RING>
DEVICE size_t committed_slot(const Rows* rows, size_t row) {
    return page_slot<RING>(rows, rows->sequence[row], rows->position[row]);
}

// Whether a later row of the step takes the same place of the ring. Rows of a sequence stand side by side in position
// order; the earlier row is skipped, so that no two blocks write one slot.
template <int RING>
DEVICE bool overwritten(const Rows* rows, size_t row) {
    if constexpr (RING > 0) return row + RING < rows->count && rows->sequence[row + RING] == rows->sequence[row];
    return false;
}

// Tree rows go to scratch. grid (rows)
template <class Config>
DEVICE void cache_write_tree(const unsigned char* x, const Rows* rows, unsigned char* scratch) {
    pdl_launch_dependents();
    pdl_wait();
    const size_t row = blockIdx.x;
    if (row >= rows->count) return;
    copy_row<Config>(scratch + tree_slot(rows, row) * Config::row_bytes, x + row * Config::row_bytes);
}

// Committed rows go to pages. grid (rows)
template <class Config>
DEVICE void cache_write_pages(const unsigned char* x, const Rows* rows, unsigned char* pages) {
    pdl_launch_dependents();
    pdl_wait();
    const size_t row = blockIdx.x;
    if (row >= rows->count || overwritten<Config::ring>(rows, row)) return;
    copy_row<Config>(pages + committed_slot<Config::ring>(rows, row) * Config::row_bytes, x + row * Config::row_bytes);
}

// The n-th of some pointers, by selection: an array of parameters that is indexed at run time would need local memory.
template <class Pointer, class... Pointers>
DEVICE Pointer nth(u32 n, Pointer first, Pointers... others) {
    u32 i = 0;
    ((first = ++i == n ? others : first), ...);
    return first;
}

// Entry j of a sequence's path goes to position committed + j, in every layer. path [sequences][Config::depth].
// grid (depth, sequences, layers)
template <class Config>
DEVICE void cache_commit(const int* path, const int* length, const Rows* rows, const unsigned char* scratch, unsigned char* pages) {
    pdl_launch_dependents();
    pdl_wait();
    const int entry = blockIdx.x, sequence = blockIdx.y;
    if (sequence >= rows->sequences || entry >= length[sequence]) return;
    const size_t from = scratch_slot(sequence, path[sequence * Config::depth + entry]);
    const size_t to = page_slot<Config::ring>(rows, sequence, rows->committed[sequence] + entry);
    copy_row<Config>(pages + to * Config::row_bytes, scratch + from * Config::row_bytes);
}

}  // namespace ddtree
