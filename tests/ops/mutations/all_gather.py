"""Faults in joining the ranks' columns."""

MUTATIONS = [
    ("ranks.cuh", "parts[column / words] + row * words", "parts[column % Config::ranks] + row * words"),
    ("ranks.cuh", "+ row * words + column % words", "+ row * wide + column % words"),
    ("ranks.cuh", "live<Config::domain>(rows) * size_t(wide)", "live<Config::domain>(rows) * size_t(wide) / 2"),
]
