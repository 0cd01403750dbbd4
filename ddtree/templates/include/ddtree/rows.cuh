// The row table of a step, as kernels see it (graph/rows.py has the meaning of each array).
//
// It lives in device memory, so that a captured graph can be replayed with other rows: launches cover the row capacity,
// and blocks of rows at or past `count` do nothing.
#pragma once
#include "ddtree/prims.cuh"

namespace ddtree {

struct Rows {
    int count;              // rows in use
    int wanted_count;       // rows whose logits are wanted
    int sequences;          // sequence slots in use
    int pages_per_sequence; // columns of `pages`
    const int* sequence;    // [count] sequence slot
    const int* position;    // [count] absolute position
    const int* parent;      // [count] row of the tree parent, -1 for a root
    const int* node;        // [count] slot in the sequence's tree scratch
    const int* committed;   // [sequences] committed positions
    const int* pages;       // [sequences][pages_per_sequence] physical page, -1 where none is mapped
    const int* wanted;      // [wanted_count] rows whose logits are wanted
    const int* source;      // [count] row of the step before from which features come
};

constexpr int kPage = 64;     // positions of a page
constexpr int kScratch = 64;  // tree rows of a sequence

}  // namespace ddtree
