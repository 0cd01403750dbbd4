"""Faults in what follows the sum over ranks."""

MUTATIONS = [
    ("all_reduce.cuh", "sums[i] = round_bf16(unpack8(residual[i]) + sums[i]);", "sums[i] = unpack8(residual[i]) + sums[i];"),
    ("all_reduce.cuh", "return round_bf16(total(", "return (total("),
    ("all_reduce.cuh", "a + size_t(row) * Config::width + place(i) * 8", "a + place(i) * 8"),
    ("all_reduce.cuh", "scale, unpack8(gain[i])", "scale, unpack8(gain[0])"),
    ("all_reduce.cuh", "if (exists(i)) store8(sum + first, place(i), sums[i]);", "if (exists(i)) store8(sum + first, i, sums[i]);"),
]  # fmt: skip
