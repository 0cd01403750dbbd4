// Eight values at a time: one 16-byte access of bf16, fp32 in registers.
#pragma once
#include "ddtree/prims.cuh"

namespace ddtree {

struct Vec8 {
    float v[8];

    static DEVICE Vec8 zero() { return fill(0.f); }
    static DEVICE Vec8 fill(float x) { return {{x, x, x, x, x, x, x, x}}; }
    DEVICE float& operator[](int i) { return v[i]; }
    DEVICE float operator[](int i) const { return v[i]; }
};

DEVICE Vec8 unpack8(uint4 raw) {   // 8 bf16, first in the lowest half
    return {{bf16_lo(raw.x), bf16_hi(raw.x), bf16_lo(raw.y), bf16_hi(raw.y),
             bf16_lo(raw.z), bf16_hi(raw.z), bf16_lo(raw.w), bf16_hi(raw.w)}};
}

DEVICE uint4 pack8(const Vec8& x) {   // rounds to nearest even
    return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}

// Vector i of a row, i.e. elements 8 i .. 8 i + 7; the row starts 16-byte aligned.
DEVICE Vec8 load8(const bf16* row, int i AND_SITE) { return unpack8(load16(row + size_t(i) * 8 PASS_SITE)); }
DEVICE Vec8 load8_stream(const bf16* row, int i AND_SITE) {
    return unpack8(load16_stream(row + size_t(i) * 8 PASS_SITE));
}
DEVICE Vec8 load8_coherent(const bf16* row, int i AND_SITE) {
    return unpack8(load16_coherent(row + size_t(i) * 8 PASS_SITE));
}
DEVICE void store8(bf16* row, int i, const Vec8& x AND_SITE) { store16(row + size_t(i) * 8, pack8(x) PASS_SITE); }

DEVICE Vec8 load8(const float* row, int i AND_SITE) {
    const uint4 a = load16(row + size_t(i) * 8 PASS_SITE), b = load16(row + size_t(i) * 8 + 4 PASS_SITE);
    return {{bitcast<float>(a.x), bitcast<float>(a.y), bitcast<float>(a.z), bitcast<float>(a.w),
             bitcast<float>(b.x), bitcast<float>(b.y), bitcast<float>(b.z), bitcast<float>(b.w)}};
}

DEVICE void store8(float* row, int i, const Vec8& x AND_SITE) {
    float* to = row + size_t(i) * 8;
    const auto bits = [](float y) { return bitcast<u32>(y); };
    store16(to, make_uint4(bits(x[0]), bits(x[1]), bits(x[2]), bits(x[3])) PASS_SITE);
    store16(to + 4, make_uint4(bits(x[4]), bits(x[5]), bits(x[6]), bits(x[7])) PASS_SITE);
}

DEVICE Vec8 operator+(Vec8 a, const Vec8& b) {
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] += b[i];
    return a;
}

DEVICE Vec8 operator-(Vec8 a, const Vec8& b) {
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] -= b[i];
    return a;
}

DEVICE Vec8 operator*(Vec8 a, const Vec8& b) {
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] *= b[i];
    return a;
}

DEVICE Vec8 operator*(Vec8 a, float s) {
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] *= s;
    return a;
}

DEVICE Vec8 fma(const Vec8& a, const Vec8& b, Vec8 c) {   // a b + c, each element rounded once
#pragma unroll
    for (int i = 0; i < 8; ++i) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}

DEVICE Vec8 fma(float a, const Vec8& b, Vec8 c) {
#pragma unroll
    for (int i = 0; i < 8; ++i) c[i] = fmaf(a, b[i], c[i]);
    return c;
}

DEVICE Vec8 round_bf16(Vec8 x) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = round_bf16(x[i]);
    return x;
}

// sum + a[0] b[0] + a[1] b[1] + ... in this order, each step fused
DEVICE float dot(const Vec8& a, const Vec8& b, float sum = 0.f) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(a[i], b[i], sum);
    return sum;
}

}  // namespace ddtree
