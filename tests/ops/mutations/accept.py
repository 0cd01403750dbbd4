"""Faults in the walk along the accepted path."""

MUTATIONS = [
    (
        "accept.cuh",
        "matches[row] = up >= 0 && ids[row] == chosen[up];",
        "matches[row] = up >= 0 && ids[row] == chosen[row];",
    ),
    ("accept.cuh", "parent[at] >= 0 && matches[at]) {", "parent[at] >= 0) {"),
    ("accept.cuh", "= rows->node[row];", "= row;"),
    ("accept.cuh", "atomicMax(longest + s, depth + 1);", "atomicMax(longest + s, depth);"),
    ("accept.cuh", "while (depth < width &&", "while (depth < width - 2 &&"),
    ("accept.cuh", "path[i] = emitted[i] = -1;", "path[i] = -1;"),
    ("accept.cuh", "longest[s] = 0;", ";"),
    # a row below `depths` is stored past its sequence's places
    ("accept.cuh", "if (depth < width && parent[at] < 0) {", "if (parent[at] < 0) {"),
]
