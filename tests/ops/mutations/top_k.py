"""Faults in the selection of candidates."""

MUTATIONS = [
    ("top_k.cuh", "if (rank == k - 1)", "if (rank == k - 2)"),
    # absent keys reach the bound of a chunk with fewer than k keys: more than there is room for
    ("top_k.cuh", "shared->bound = max(mine, u64(1));", "shared->bound = mine;"),
    ("top_k.cuh", "key_of(i); key >= bound)", "key_of(i); key > bound)"),
    ("top_k.cuh", "place += shared->reaching[other] > key", "place += shared->reaching[other] < key"),
    ("top_k.cuh", "id(i) < Config::vocab ? row[id(i)] : -kInfinity", "id(i) < Config::vocab ? row[id(i)] : 0.f"),
    ("top_k.cuh", "total += shared->sums[c].y * expf(shared->sums[c].x - origin)", "total += shared->sums[c].y"),
    ("top_k.cuh", "if (shared->before == Config::chunks - 1) {", "if (shared->before == Config::chunks - 2) {"),
    ("top_k.cuh", "if (threadIdx.x == 0) arrivals[r] = 0;", ""),
    ("order.cuh", "<< 32 | ~u32(id); }", "<< 32 | u32(id); }"),
    ("order.cuh", "const u32 bits = bitcast<u32>(x == 0.f ? 0.f : x);", "const u32 bits = bitcast<u32>(x);"),
    ("order.cuh", "return bits >> 31 ? ~bits : bits | 0x80000000u;", "return bits | 0x80000000u;"),
]
