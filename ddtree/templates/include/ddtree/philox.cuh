// Philox4x32-10, a counter-based random generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), and
// Gumbel noise made of it. A word is a pure function of key and counter, so it does not depend on threads or rows.
// Test: tests/ops/test_sample.py (known answers of the Random123 library, and the NumPy reference word for word)
#pragma once
#include "ddtree/prims.cuh"

namespace ddtree {

DEVICE uint4 philox4x32(uint4 c, u64 key) {
    u32 k0 = u32(key), k1 = u32(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u32 hi0 = __umulhi(c.x, 0xD2511F53u), lo0 = c.x * 0xD2511F53u;
        const u32 hi1 = __umulhi(c.z, 0xCD9E8D57u), lo1 = c.z * 0xCD9E8D57u;
        c = make_uint4(hi1 ^ c.y ^ k0, lo1, hi0 ^ c.w ^ k1, lo0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

// Standard Gumbel noise of a random word: -log(-log(1 - u)), u in (0, 1) the word as a fraction of 2^32. Through log1p,
// because the largest values, which decide a maximum, come from small u, where fp32 is finest.
DEVICE float gumbel_of(u32 word) {
    const float u = fminf((float(word) + 0.5f) * 0x1p-32f, 1.f - 0x1p-24f);   // 1 would be a noise of -inf
    return -logf(-log1pf(-u));
}

DEVICE float gumbel(u64 seed, int position, int token) {
    return gumbel_of(philox4x32(make_uint4(u32(token), u32(position), 0, 0), seed).x);
}

}  // namespace ddtree
