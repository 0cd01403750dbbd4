"""Faults in how several products share a launch."""

MUTATIONS = [
    ("product.cuh", "(blockIdx.y - first_block) / Config::split", "blockIdx.y / Config::split"),
    ("product.cuh", "+ first_block / Config::split + row_block", "+ row_block"),
]
