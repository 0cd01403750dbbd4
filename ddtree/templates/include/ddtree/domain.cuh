// What the first axis of a tensor counts (graph/tensor.py), and how much of it is live in this step.
#pragma once
#include "ddtree/rows.cuh"

namespace ddtree {

enum class Domain { rows, wanted, sequences };

template <Domain DOMAIN>
DEVICE int live(const Rows* rows) {
    if constexpr (DOMAIN == Domain::rows) return rows->count;
    if constexpr (DOMAIN == Domain::wanted) return rows->wanted_count;
    return rows->sequences;
}

}  // namespace ddtree
