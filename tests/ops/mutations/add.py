"""Faults in elementwise.cuh that the sum shows."""

MUTATIONS = [
    ("elementwise.cuh", "return a + b;", "return a - b;"),
    ("elementwise.cuh", "const int v = blockIdx.x * Config::threads + threadIdx.x", "const int v = threadIdx.x"),
    ("elementwise.cuh", "if (v >= live<Config::domain>(rows) * (Config::width / 8)) return;", ""),
    ("elementwise.cuh", "load8_coherent(b, v)", "load8_coherent(b, v % (Config::width / 8))"),
]
