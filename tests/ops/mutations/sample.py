"""Faults in the choice of the next token."""

MUTATIONS = [
    ("sample.cuh", "rows->position[row] + 1", "rows->position[row]"),
    ("sample.cuh", "x < kInfinity ? key : kNoDistribution", "key"),
    ("sample.cuh", "rows->wanted[i] : i, s =", "i : i, s ="),
    ("sample.cuh", "sum < target) last", "sum <= target) last"),
    ("sample.cuh", "carry = atomicAdd(low + bin, part) + part < part;", "carry = 0; atomicAdd(low + bin, part);"),
    ("sample.cuh", "u64 sum = before + block_sum_before", "u64 sum = block_sum_before"),
    ("sample.cuh", "if (shift == 0 || h->alone) return low;", "return low;"),
    ("sample.cuh", "if (double(target) < share) ++target;", "target += 2;"),
    ("philox.cuh", "hi1 ^ c.y ^ k0, lo1, hi0 ^ c.w ^ k1, lo0", "hi0 ^ c.y ^ k0, lo1, hi1 ^ c.w ^ k1, lo0"),
    ("philox.cuh", "round < 10", "round < 9"),
    ("philox.cuh", "return -logf(-log1pf(-u));", "return logf(-log1pf(-u));"),
]
