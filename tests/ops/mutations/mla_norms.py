"""Faults in mla_norms.cuh and in what it changes of the kernels that it joins."""

MUTATIONS = [
    ("mla_norms.cuh", "if (blockIdx.y == 0) rms_norm", "if (blockIdx.x == 0) rms_norm"),
    (
        "mla_norms.cuh",
        "(latent, latent_weight, rows, cache, frequency);\n    else",
        "(latent, weight, rows, cache, frequency);\n    else",
    ),
    (
        "mla_norms.cuh",
        "latent_write_pages<Config>(latent, latent_weight",
        "latent_write_pages<Config>(x, latent_weight",
    ),
    ("mla_latent.cuh", "if (v >= Config::lanes && v < Config::lanes + 32)", "if (v >= Config::lanes + 32)"),
]
