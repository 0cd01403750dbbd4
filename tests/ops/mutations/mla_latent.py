"""Faults in mla_latent.cuh."""

MUTATIONS = [
    ("mla_latent.cuh", "v < vectors ? load8_coherent(from, v)", "v < vectors + 1 ? load8_coherent(from, v)"),
    ("mla_latent.cuh", "inverse_rms<Config::latent,", "inverse_rms<Config::latent + Config::rope,"),
    ("mla_latent.cuh", "pair = v - Config::lanes", "pair = v % 16"),
    ("mla_latent.cuh", "from + Config::latent, to + Config::latent", "from + Config::latent, to"),
]
