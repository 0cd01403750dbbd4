"""Faults in rms_norm.cuh that the fused addition shows."""

MUTATIONS = [
    (
        "rms_norm.cuh",
        "round_bf16(load8_coherent(a, v) + load8_coherent(b, v))",
        "load8_coherent(a, v) + load8_coherent(b, v)",
    ),
    ("rms_norm.cuh", "+ load8_coherent(b, v)", "+ load8_coherent(a, v)"),
    ("rms_norm.cuh", "store8(sum, v, total);", ""),
    ("rms_norm.cuh", "store8(sum, v, total);", "store8(sum, v % (Config::width / 8), total);"),
    ("rms_norm.cuh", "return total;", "return load8_coherent(a, v);"),
    ("rms_norm.cuh", "size_t(live<Config::domain>(rows)) * Config::heads", "size_t(rows->count) * Config::heads"),
]
