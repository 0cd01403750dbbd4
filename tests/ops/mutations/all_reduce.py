"""Faults in the sum over ranks."""

MUTATIONS = [
    ("ranks.cuh", "part[0] = part[0] + part[rank];", "part[0] = round_bf16(part[0] + part[rank]);"),
    (
        "ranks.cuh",
        "for (int rank = 1; rank < Config::ranks; ++rank)",
        "for (int rank = Config::ranks - 1; rank > 0; --rank)",
    ),
    ("ranks.cuh", "load8_coherent(parts[rank] + v * 8, 0)", "load8_coherent(parts[0] + v * 8, 0)"),
    ("ranks.cuh", "live<Config::domain>(rows) * size_t(Config::width / 8)", "16 * size_t(Config::width / 8)"),
]
