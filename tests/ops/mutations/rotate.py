"""Faults in rope.cuh and rotate.cuh."""

MUTATIONS = [
    ("rope.cuh", "x = fmaf(quarters, 4.37113883e-8f, x);", ""),
    ("rope.cuh", "quadrant == 1 || quadrant == 2", "quadrant == 1 || quadrant == 3"),
    ("rope.cuh", "quadrant & 1 ? cosine : sine", "sine"),
    ("rope.cuh", "turn.sin * gain", "turn.sin"),
    ("rope.cuh", "first + 1 : pair + DIM / 2", "first + 1 : pair + 1"),
    ("rope.cuh", "__fmul_rn(b, turn.cos), __fmul_rn(a, turn.sin)", "__fmul_rn(b, turn.cos), __fmul_rn(-a, turn.sin)"),
    # the last term of the sine is missing, at most 3e-7
    ("rope.cuh", "fmaf(square, 2.75573192e-6f, -1.98412698e-4f)", "fmaf(square, 0.f, -1.98412698e-4f)"),
    ("rotate.cuh", "rows->position[row]", "rows->position[0]"),
    ("rotate.cuh", "head += Config::columns", "head += 2 * Config::columns"),
]
