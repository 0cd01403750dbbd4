"""Faults in mla_query.cuh; those of the product are in linear.py."""

MUTATIONS = [
    # the first elements of a head are turned, not those behind nope
    ("mla_query.cuh", "head * Config::x_batch + Config::inner;", "head * Config::x_batch;"),
    # the rotated part overwrites the latent part
    ("mla_query.cuh", "head * Config::y_batch + Config::out;", "head * Config::y_batch;"),
    # every head gets head 0's rotation
    ("mla_query.cuh", "+ head * Config::x_batch + Config::inner", "+ Config::inner"),
    # rows take their number for their position
    ("mla_query.cuh", "float(rows->position[row])", "float(row)"),
    # rows past the live ones are turned
    ("mla_query.cuh", "min(live<Config::domain>(rows) - first, Plan<Config>::kTokens)", "Plan<Config>::kTokens"),
    # the blocks of a head leave gaps between their shares
    ("mla_query.cuh", "i += gridDim.y * blockDim.x", "i += 2 * gridDim.y * blockDim.x"),
    # the second group of rows repeats the first
    ("mla_query.cuh", "const int row = first + i / pairs", "const int row = i / pairs"),
]
