"""Faults in how the product tells heads apart (catches: tests/ops/test_mla_value.py)."""

MUTATIONS = [
    # every head reads the latents of head 0
    ("product.cuh", "Config::x_stride + batch * Config::x_batch", "Config::x_stride"),
    # every head writes the values of head 0
    ("product.cuh", "* y_stride + batch * Config::y_batch", "* y_stride"),
    # every head multiplies by the weight of head 0
    ("product.cuh", "size_t(batch) * P::kTiles * Config::steps + step", "step"),
    # the second block of a head repeats the first one's rows of y
    ("product.cuh", "batch * Config::y_batch + begin;", "batch * Config::y_batch;"),
]
