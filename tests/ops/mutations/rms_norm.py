"""Faults in rms_norm.cuh."""

MUTATIONS = [
    ("rms_norm.cuh", "round_bf16(x * scale) * weight", "x * scale * weight"),
    ("rms_norm.cuh", "/ WIDTH + eps", "/ (WIDTH + eps)"),
    ("rms_norm.cuh", "distance = LANES / 2", "distance = LANES / 4"),
    ("rms_norm.cuh", "exists && v < vectors ? read", "v < vectors ? read"),
    ("rms_norm.cuh", "if (exists && v < vectors) store8", "if (v < vectors) store8"),
]
