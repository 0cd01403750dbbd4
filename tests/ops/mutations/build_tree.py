"""Faults in the best-first tree."""

MUTATIONS = [
    (
        "build_tree.cuh",
        "(best.score - double(own[0])) + double(own[1])",
        "best.score + (double(own[1]) - double(own[0]))",
    ),
    ("build_tree.cuh", "best.rank + 1 < k,", "best.rank + 2 < k,"),
    ("build_tree.cuh", "best.depth < depths;", "best.depth < depths - 1;"),
    ("build_tree.cuh", "word < 4 && __popc", "word < 1 && __popc"),
    ("build_tree.cuh", "least = __reduce_min_sync(all, mine)", "least = __reduce_max_sync(all, in ? mine : 0u)"),
    ("build_tree.cuh", "for (int other = slot + 32;", "for (int other = open;"),
    ("build_tree.cuh", "return a.ranks[word] < b.ranks[word];", "return a.ranks[word] > b.ranks[word];"),
    ("build_tree.cuh", "frontier[slot] = frontier[free];", ""),
    ("build_tree.cuh", "min(max(budget[sequence], 0), nodes - 1)", "min(max(budget[sequence], 1), nodes - 1)"),
    ("build_tree.cuh", "DOMAIN == Domain::wanted ? rows->wanted[i] : i", "i"),
]
