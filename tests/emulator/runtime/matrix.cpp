// mma.sync m16n8k16 and ldmatrix.
#include "machine.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace emu {

struct MmaArgument {
    float* d;
    const unsigned* a;
    const unsigned* b;
};

constexpr unsigned quiet_nan = 0x7fffffff;  // the only NaN a GPU produces

template <class To, class From>
static To bits_as(From from) {
    return __builtin_bit_cast(To, from);
}

static float bf16_half(unsigned pair, int half) { return bits_as<float>(half ? pair & 0xffff0000u : pair << 16); }

static int exponent_of(double x) { return int(bits_as<uint64_t>(x) >> 52 & 0x7ff) - 1023; }
static double power_of_two(int e) { return bits_as<double>(uint64_t(e + 1023) << 52); }

// One element as an H200 computes it, bit for bit: products and addend are cut to 25 bits below the largest exponent,
// summed exactly, and the sum is cut (not rounded) to a float. Found by experiment, see docs/emulation.md.
static float dot16(const float* a, const float (*b)[8], int column, float c) {
    constexpr int kept_bits = 25, smallest_exponent = -126;
    int largest = c != 0 ? std::max(smallest_exponent, exponent_of(c)) : smallest_exponent;
    float plain = c;
    bool finite = std::isfinite(c);
    for (int k = 0; k < 16; ++k) {
        const float x = a[k], y = b[k][column];
        plain += x * y;
        finite = finite && std::isfinite(x) && std::isfinite(y);
        if (x != 0 && y != 0) largest = std::max(largest, exponent_of(x) + exponent_of(y));
    }
    if (!finite) return plain != plain ? bits_as<float>(quiet_nan) : plain;
    const double scale = power_of_two(kept_bits - largest);
    int64_t sum = int64_t(c * scale);
    for (int k = 0; k < 16; ++k) sum += int64_t(double(a[k]) * b[k][column] * scale);
    const double exact = double(sum) * power_of_two(largest - kept_bits);
    float result = float(exact);
    if (std::fabs(double(result)) > std::fabs(exact)) result = bits_as<float>(bits_as<int>(result) - 1);
    return result;
}

static void multiply_exact(const float (*A)[16], const float (*B)[8], float (*D)[8]) {
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 8; ++j) D[i][j] = dot16(A[i], B, j, D[i][j]);
}

// Fused multiply-adds in order of k: ten times faster, differs from a GPU in the last bits of inexact sums.
static void multiply_fast(const float (*A)[16], const float (*B)[8], float (*D)[8]) {
    typedef float Row __attribute__((vector_size(32)));
    typedef int Bits __attribute__((vector_size(32)));
    Row b[16];
    memcpy(b, B, sizeof b);
    for (int i = 0; i < 16; i += 4) {
        Row d[4];
        memcpy(d, D[i], sizeof d);
        for (int k = 0; k < 16; ++k)
            for (int r = 0; r < 4; ++r) d[r] += b[k] * A[i + r][k];
        for (Row& r : d) {
            const Bits number = r == r;
            r = Row((Bits(r) & number) | (~number & int(quiet_nan)));
        }
        memcpy(D[i], d, sizeof d);
    }
}

static void resolve_mma(Warp& w, unsigned) {
    alignas(32) float A[16][16], B[16][8], D[16][8];
    for (int lane = 0; lane < 32; ++lane) {
        const auto& m = *static_cast<MmaArgument*>(w.lane[lane]->argument);
        const int g = lane >> 2, t = (lane & 3) * 2;
        for (int h = 0; h < 2; ++h) {
            A[g][t + h] = bf16_half(m.a[0], h);
            A[g + 8][t + h] = bf16_half(m.a[1], h);
            A[g][t + 8 + h] = bf16_half(m.a[2], h);
            A[g + 8][t + 8 + h] = bf16_half(m.a[3], h);
            B[t + h][g] = bf16_half(m.b[0], h);
            B[t + 8 + h][g] = bf16_half(m.b[1], h);
        }
        memcpy(&D[g][t], m.d, 8);
        memcpy(&D[g + 8][t], m.d + 2, 8);
    }
    (machine.options.exact_mma ? multiply_exact : multiply_fast)(A, B, D);
    for (int lane = 0; lane < 32; ++lane) {
        auto& m = *static_cast<MmaArgument*>(w.lane[lane]->argument);
        const int g = lane >> 2, t = (lane & 3) * 2;
        memcpy(m.d, &D[g][t], 8);
        memcpy(m.d + 2, &D[g + 8][t], 8);
    }
    ++machine.result->mmas;
}

void mma_16816(float* d, const unsigned* a, const unsigned* b, Site site) {
    MmaArgument m{d, a, b};
    collect(~0u, Collective::mma, &m, resolve_mma, site);
}

struct LdmatrixArgument {
    uint16_t row[8];
    unsigned* r;
    int count;
    bool transposed;
};

static void resolve_ldmatrix(Warp& w, unsigned) {
    const auto argument = [&](int lane) -> LdmatrixArgument& {
        return *static_cast<LdmatrixArgument*>(w.lane[lane]->argument);
    };
    for (int lane = 0; lane < 32; ++lane) {
        LdmatrixArgument& mine = argument(lane);
        const int major = lane >> 2, minor = (lane & 3) * 2;
        for (int i = 0; i < mine.count; ++i) {
            const auto element = [&](int row, int column) { return unsigned(argument(i * 8 + row).row[column]); };
            mine.r[i] = mine.transposed ? element(minor, major) | element(minor + 1, major) << 16
                                        : element(major, minor) | element(major, minor + 1) << 16;
        }
    }
}

void ldmatrix(unsigned* r, int count, bool transposed, unsigned shared, Site site) {
    LdmatrixArgument a{{}, r, count, transposed};
    if (int(current->lane) < 8 * count) {
        const unsigned char* row = from_shared(shared, 16, 16, "ldmatrix", site);
        running()->site = site;
        check_access(row, 16, Access::read);
        memcpy(a.row, row, 16);
    }
    collect(~0u, Collective::ldmatrix, &a, resolve_ldmatrix, site);
}

}  // namespace emu
