"""Faults in latent_write.cuh and in the slots of cache.cuh."""

MUTATIONS = [
    ("latent_write.cuh", "scratch + tree_slot(rows, row)", "scratch + row"),
    (
        "latent_write.cuh",
        "scratch + tree_slot(rows, row) * (Config::latent + Config::rope)",
        "scratch + tree_slot(rows, row) * Config::latent",
    ),
    ("latent_write.cuh", "if (row >= rows->count) return;", ""),
    ("latent_write.cuh", " || overwritten<Config::ring>(rows, row)", ""),
    ("latent_write.cuh", "committed_slot<Config::ring>", "committed_slot<0>"),
    ("cache.cuh", "rows->sequence[row], rows->position[row])", "rows->sequence[row], int(row))"),
    ("mla_latent.cuh", "const bf16* from = x + row", "const bf16* from = x + (row ^ 1)"),
]
