// Arithmetic and bit functions of CUDA C, with the GPU's treatment of NaN, signed zero and subnormals.
#pragma once
#include "thread.h"

extern "C" {
float sqrtf(float) noexcept;
float expf(float) noexcept;
float exp2f(float) noexcept;
float expm1f(float) noexcept;
float logf(float) noexcept;
float log2f(float) noexcept;
float log10f(float) noexcept;
float log1pf(float) noexcept;
float powf(float, float) noexcept;
float sinf(float) noexcept;
float cosf(float) noexcept;
float tanhf(float) noexcept;
float erff(float) noexcept;
float fabsf(float) noexcept;
float floorf(float) noexcept;
float ceilf(float) noexcept;
float truncf(float) noexcept;
float rintf(float) noexcept;
float roundf(float) noexcept;
float fmodf(float, float) noexcept;
float fmaf(float, float, float) noexcept;
float copysignf(float, float) noexcept;
double sqrt(double) noexcept;
double exp(double) noexcept;
double log(double) noexcept;
double fabs(double) noexcept;
double fmin(double, double) noexcept;
double fmax(double, double) noexcept;
}

inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
inline double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }

namespace emu {

constexpr unsigned quiet_nan = 0x7fffffff;  // the only NaN the GPU produces

// Any NaN, signalling too, loses; -0 < +0.
inline float maximum(float a, float b) {
    if (a != a) return b != b ? __uint_as_float(quiet_nan) : b;
    if (b != b) return a;
    return a > b ? a : b > a ? b : __int_as_float(__float_as_int(a) & __float_as_int(b));
}
inline float minimum(float a, float b) {
    if (a != a) return b != b ? __uint_as_float(quiet_nan) : b;
    if (b != b) return a;
    return a < b ? a : b < a ? b : __int_as_float(__float_as_int(a) | __float_as_int(b));
}

inline uint16_t bf16_bits(float x) {  // nearest, ties to even
    const unsigned u = __float_as_uint(x);
    return (u & 0x7fffffff) > 0x7f800000 ? 0x7fff : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// a b + c rounded once to bf16. The float is made odd when it is inexact (24 bits >= 8 + 2), so rounding it again is
// harmless.
inline uint16_t bf16_fma(float a, float b, float c) {
    const double product = double(a) * b, sum = product + c, part = sum - product;
    const double lost = (product - (sum - part)) + (c - part);
    float f = float(sum);
    if (__builtin_isfinite(f) && !(__float_as_int(f) & 1)) {
        double rest = sum - f;
        if (rest == 0) rest = lost;
        const bool away_from_zero = (rest > 0) == (f > 0 || (f == 0 && rest > 0));
        if (rest != 0) f = __int_as_float(__float_as_int(f) + (away_from_zero ? 1 : -1));
    }
    return bf16_bits(f);
}

inline float ex2(float x) {  // ex2.approx.ftz: subnormals are zero
    const float y = exp2f(x);
    return y < 1.17549435e-38f ? 0.f : y;
}

inline unsigned lop3(unsigned a, unsigned b, unsigned c, int table) {
    unsigned result = 0;
    for (int row = 0; row < 8; ++row)
        if (table >> row & 1) result |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
    return result;
}

}  // namespace emu

#define fmaxf emu::maximum
#define fminf emu::minimum
inline float min(float a, float b) { return emu::minimum(a, b); }
inline float max(float a, float b) { return emu::maximum(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
#define EMU_MIN_MAX(type)                                     \
    inline type min(type a, type b) { return b < a ? b : a; } \
    inline type max(type a, type b) { return a < b ? b : a; }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
#undef EMU_MIN_MAX
inline unsigned min(unsigned a, int b) { return min(a, unsigned(b)); }
inline unsigned min(int a, unsigned b) { return min(unsigned(a), b); }
inline unsigned max(unsigned a, int b) { return max(a, unsigned(b)); }
inline unsigned max(int a, unsigned b) { return max(unsigned(a), b); }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __frsqrt_rn(float x) { return float(1.0 / sqrt(double(x))); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
inline bool isnan(float x) { return x != x; }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    unsigned result = 0;
    for (int i = 0; i < 32; ++i) result |= (x >> i & 1) << (31 - i);
    return result;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t bytes = uint64_t(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= unsigned(bytes >> ((selector >> 4 * i & 7) * 8) & 255) << 8 * i;
    return result;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
    return unsigned((uint64_t(hi) << 32 | lo) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
    return unsigned((uint64_t(hi) << 32 | lo) >> (shift & 31));
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned __int128)a * b >> 64;
}
