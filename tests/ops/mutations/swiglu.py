"""Faults in elementwise.cuh that the gated activation shows."""

MUTATIONS = [
    ("elementwise.cuh", "(x >= 0.f ? 1.f : e)", "1.f"),
    ("elementwise.cuh", "expf(-fabsf(x))", "expf(x)"),
    ("elementwise.cuh", "silu(gate[i]) * up[i]", "round_bf16(silu(gate[i])) * up[i]"),
]
