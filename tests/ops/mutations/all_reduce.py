"""Faults in the sum over ranks."""

MUTATIONS = [
    (
        "all_reduce.cuh",
        "sum = sum + unpack8(me == r ? mine : words[r]);",
        "sum = round_bf16(sum + unpack8(me == r ? mine : words[r]));",
    ),
    (
        "all_reduce.cuh",
        "for (int r = 1; r < ranks; ++r) sum = sum",
        "for (int r = ranks - 1; r > 0; --r) sum = sum",
    ),
    ("all_reduce.cuh", "unpack8(me == 0 ? mine : words[0])", "unpack8(mine)"),
    (
        "all_reduce.cuh",
        "return (size_t(from) * count + row) * vectors + v;",
        "return size_t(from) * count * vectors + v;",
    ),
    ("all_reduce.cuh", "return (size_t(from) * count + row) * part + i;", "return (size_t(from) * count) * part + i;"),
    ("all_reduce.cuh", "i < part && me * part + i < vectors", "i < part - 1 && me * part + i < vectors"),
    ("all_reduce.cuh", "v / part != me", "v / part > me"),
]
