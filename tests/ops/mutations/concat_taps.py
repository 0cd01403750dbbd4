"""Faults in copy.cuh that the feature taps show."""

MUTATIONS = [
    ("copy.cuh", "int t = 1; t < Config::taps;", "int t = 1; t < Config::taps - 1;"),
    ("copy.cuh", "(row * Config::taps + tap)", "(tap * gridDim.x + row)"),
    ("copy.cuh", "from + row * Config::row_bytes", "from"),
]
