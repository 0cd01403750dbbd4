// Types, conversions and register arithmetic. PTX sections name chapters of the PTX ISA, "Instruction Set".
#pragma once

#ifdef DDTREE_EMULATED
#define DEVICE inline
#define PRIM inline
// Where a wrapper was called from: the emulator's messages say so. Last parameter of every wrapper that can fail.
#define SITE emu::Site site = emu::Site::here()
#define AND_SITE , SITE
#define PASS_SITE , site
#else
#define DEVICE __device__ __forceinline__
#define PRIM __device__ __forceinline__
#define SITE
#define AND_SITE
#define PASS_SITE
#endif

// KERNEL(threads) name(parameters) { ... }   or   KERNEL(threads, min_blocks_per_sm) name(parameters) { ... }
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)

namespace ddtree {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct alignas(2) bf16 {
    u16 bits;
};
struct alignas(4) bf16x2 {
    bf16 lo, hi;
};

template <class To, class From>
PRIM To bitcast(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "bitcast between types of one size");
    return __builtin_bit_cast(To, from);
}

// ---- conversions: nearest, ties to even; a NaN becomes 0x7fff (PTX: cvt)
PRIM float to_float(bf16 x) { return bitcast<float>(u32(x.bits) << 16); }

PRIM bf16 to_bf16(float x) {
#ifdef DDTREE_EMULATED
    return {emu::bf16_bits(x)};
#else
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
#endif
}

PRIM float round_bf16(float x) { return to_float(to_bf16(x)); }

PRIM u32 pack_bf16(float lo, float hi) {
#ifdef DDTREE_EMULATED
    return u32(emu::bf16_bits(lo)) | u32(emu::bf16_bits(hi)) << 16;
#else
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    return y;
#endif
}

PRIM float bf16_lo(u32 pair) { return bitcast<float>(pair << 16); }
PRIM float bf16_hi(u32 pair) { return bitcast<float>(pair & 0xffff0000u); }
PRIM bf16x2 make_bf16x2(float lo, float hi) { return bitcast<bf16x2>(pack_bf16(lo, hi)); }
PRIM float2 to_float2(bf16x2 x) { return make_float2(to_float(x.lo), to_float(x.hi)); }

// ---- pairs: each half rounded once. The explicit .rn keeps ptxas from fusing a product into a later sum
PRIM bf16x2 add2(bf16x2 a, bf16x2 b) {   // PTX: add{.rnd}.bf16x2 (half precision floating point)
#ifdef DDTREE_EMULATED
    return make_bf16x2(to_float(a.lo) + to_float(b.lo), to_float(a.hi) + to_float(b.hi));
#else
    u32 d;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(bitcast<u32>(a)), "r"(bitcast<u32>(b)));
    return bitcast<bf16x2>(d);
#endif
}

PRIM bf16x2 sub2(bf16x2 a, bf16x2 b) {   // PTX: sub{.rnd}.bf16x2
#ifdef DDTREE_EMULATED
    return make_bf16x2(to_float(a.lo) - to_float(b.lo), to_float(a.hi) - to_float(b.hi));
#else
    u32 d;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(bitcast<u32>(a)), "r"(bitcast<u32>(b)));
    return bitcast<bf16x2>(d);
#endif
}

PRIM bf16x2 mul2(bf16x2 a, bf16x2 b) {   // PTX: mul{.rnd}.bf16x2
#ifdef DDTREE_EMULATED
    return make_bf16x2(to_float(a.lo) * to_float(b.lo), to_float(a.hi) * to_float(b.hi));
#else
    u32 d;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(bitcast<u32>(a)), "r"(bitcast<u32>(b)));
    return bitcast<bf16x2>(d);
#endif
}

PRIM bf16x2 fma2(bf16x2 a, bf16x2 b, bf16x2 c) {   // PTX: fma.rn.bf16x2
#ifdef DDTREE_EMULATED
    return {{emu::bf16_fma(to_float(a.lo), to_float(b.lo), to_float(c.lo))},
            {emu::bf16_fma(to_float(a.hi), to_float(b.hi), to_float(c.hi))}};
#else
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(d) : "r"(bitcast<u32>(a)), "r"(bitcast<u32>(b)), "r"(bitcast<u32>(c)));
    return bitcast<bf16x2>(d);
#endif
}

// One half of a pair in both. Written as moves, which become an operand's half selector; a byte permutation would not.
PRIM bf16x2 dup_lo(u32 pair) {
#ifdef DDTREE_EMULATED
    return bitcast<bf16x2>(__byte_perm(pair, 0, 0x1010));
#else
    u32 d;
    asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %1; mov.b32 %0, {lo, lo};}" : "=r"(d) : "r"(pair));
    return bitcast<bf16x2>(d);
#endif
}
PRIM bf16x2 dup_hi(u32 pair) {
#ifdef DDTREE_EMULATED
    return bitcast<bf16x2>(__byte_perm(pair, 0, 0x3232));
#else
    u32 d;
    asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %1; mov.b32 %0, {hi, hi};}" : "=r"(d) : "r"(pair));
    return bitcast<bf16x2>(d);
#endif
}

// x, but the compiler does not know. What is computed from it in a loop stays there, and holds no registers across it.
PRIM u32 opaque(u32 x) {
#ifndef DDTREE_EMULATED
    asm volatile("" : "+r"(x));
#endif
    return x;
}

// ---- single instructions
// 2^x within 2 ulp; subnormal results are zero. PTX: ex2.approx.ftz.f32
PRIM float ex2(float x) {
#ifdef DDTREE_EMULATED
    return emu::ex2(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// Any bitwise function of three words: LUT = f(0xf0, 0xcc, 0xaa). PTX: lop3
template <int LUT>
PRIM u32 lop3(u32 a, u32 b, u32 c) {
#ifdef DDTREE_EMULATED
    return emu::lop3(a, b, c, LUT);
#else
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(d) : "r"(a), "r"(b), "r"(c), "n"(LUT));
    return d;
#endif
}

// The larger of each unsigned half. PTX: max.u16x2
PRIM u32 max_u16x2(u32 a, u32 b) {
#ifdef DDTREE_EMULATED
    return max(a >> 16, b >> 16) << 16 | max(a & 0xffffu, b & 0xffffu);
#else
    u32 d;
    asm("max.u16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
#endif
}

// Eight unsigned nibbles to (nibble - 8) in bf16, exact: out[p] = {nibble p, nibble p + 4}.
// A nibble OR-ed into the mantissa of 128.0 is 128 + nibble; subtracting 136 leaves nibble - 8.
PRIM void int4x8_to_bf16(u32 nibbles, bf16x2 (&out)[4]) {
    constexpr int and_or = (0xf0 & 0xcc) | 0xaa;
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        const u32 biased = lop3<and_or>(nibbles >> (4 * p), 0x000f000fu, 0x43004300u);
        out[p] = sub2(bitcast<bf16x2>(biased), bitcast<bf16x2>(0x43084308u));
    }
}

}  // namespace ddtree

// Kernel signatures stand outside the namespace.
using ddtree::bf16;
using ddtree::bf16x2;
using ddtree::u16;
using ddtree::u32;
using ddtree::u64;
using ddtree::u8;
