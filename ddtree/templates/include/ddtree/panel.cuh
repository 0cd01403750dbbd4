// Weight panels: weights in the order in which tensor cores take them (templates/panels.py makes them).
//
// A panel is 8 weight rows x 64 k. Two panels, `top` for rows 0..7 and `bottom` for rows 8..15, are the A operands of four
// mma.m16n8k16; the activations of up to eight rows are the columns of B (weights on M, rows on N: columns never mix, so that
// a row's bits do not depend on its company). Lane 4 g + t takes k = 32 j + 8 t .. + 7 of weight row g, j = 0, 1, and the same
// k of column g: sixteen contiguous bytes of a plain row of activations, straight from global memory. The two operands permute
// k alike, which changes nothing but the order inside one mma.
//
//   Int4Panel  288 bytes: [lane] 8 bytes = the nibbles of j = 0, 1; [g] 4 bytes = the scales of j = 0, 1 (bf16, a group is 32 k)
//              nibble p of a word is k = 2 p, nibble p + 4 is k = 2 p + 1; weight = bf16((nibble - 8) * scale), one rounding
//   Bf16Panel  1024 bytes: [j][lane] 16 bytes
//
// PTX: mma.sync.aligned.m16n8k16. Tests: tests/ops/test_expert_mlp.py, test_route.py, test_panels.py
#pragma once
#include "ddtree/prims.cuh"

namespace ddtree {

constexpr int kPanelK = 64;      // k of a panel
constexpr int kTileRows = 64;    // rows of activations that one pass over the weights serves
constexpr int kColumnTiles = 8;  // mma column tiles of them

struct Int4Panel {
    static constexpr int kBytes = 288;

    // a[2 j + h]: operand A of k = 32 j + 8 t + 4 h .. + 3 in lane t.
    static DEVICE void operands(const u8* top, const u8* bottom, int lane, u32 (&a)[4][4]) {
        const uint2 upper = *reinterpret_cast<const uint2*>(top + lane * 8);
        const uint2 lower = *reinterpret_cast<const uint2*>(bottom + lane * 8);
        const u32 upper_scales = *reinterpret_cast<const u32*>(top + 256 + lane / 4 * 4);
        const u32 lower_scales = *reinterpret_cast<const u32*>(bottom + 256 + lane / 4 * 4);
        place(upper.x, dup_lo(upper_scales), 0, a[0], a[1]);
        place(lower.x, dup_lo(lower_scales), 1, a[0], a[1]);
        place(upper.y, dup_hi(upper_scales), 0, a[2], a[3]);
        place(lower.y, dup_hi(lower_scales), 1, a[2], a[3]);
    }

private:
    // half: 0 for weight row g, 1 for weight row g + 8
    static DEVICE void place(u32 nibbles, bf16x2 scale, int half, u32 (&first)[4], u32 (&second)[4]) {
        bf16x2 q[4];
        int4x8_to_bf16(nibbles, q);
        first[half] = bitcast<u32>(mul2(q[0], scale));
        first[half + 2] = bitcast<u32>(mul2(q[1], scale));
        second[half] = bitcast<u32>(mul2(q[2], scale));
        second[half + 2] = bitcast<u32>(mul2(q[3], scale));
    }
};

struct Bf16Panel {
    static constexpr int kBytes = 1024;

    static DEVICE void operands(const u8* top, const u8* bottom, int lane, u32 (&a)[4][4]) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const uint4 upper = load16(top + j * 512 + lane * 16), lower = load16(bottom + j * 512 + lane * 16);
            arrange(upper, lower, a[2 * j], a[2 * j + 1]);
        }
    }

    static DEVICE void arrange(uint4 upper, uint4 lower, u32 (&first)[4], u32 (&second)[4]) {
        first[0] = upper.x, first[1] = lower.x, first[2] = upper.y, first[3] = lower.y;
        second[0] = upper.z, second[1] = lower.z, second[2] = upper.w, second[3] = lower.w;
    }
};

template <bool INT4>
struct PanelOf {
    using type = Bf16Panel;
};
template <>
struct PanelOf<true> {
    using type = Int4Panel;
};

// The rows of activations that a warp multiplies, as columns of B: at[n] is where this lane's elements of column g of tile n
// start in x. Columns without a row repeat the last row; their results are dropped.
struct Columns {
    int tiles;   // live column tiles, 1..8, the same in every lane
    u32 at[kColumnTiles];
};

// A lane's operands B of a panel's k of one column tile.
struct Activations {
    uint4 j0, j1;
};

DEVICE void multiply_tile(float (&sum)[4], const u32 (&a)[4][4], const Activations& b) {
    const u32 operands[4][2] = {{b.j0.x, b.j0.y}, {b.j0.z, b.j0.w}, {b.j1.x, b.j1.y}, {b.j1.z, b.j1.w}};
#pragma unroll
    for (int i = 0; i < 4; ++i) mma_bf16_16816(sum, a[i], operands[i]);
}

// A warp's products with successive panels, `begin` .. `end` - 1 of a row over and over. The activations are asked for ahead of
// their use, since the answer takes as long as the work on a panel or two: with one column tile two panels ahead, with
// more of them one tile ahead.
//
// HALF: rows may end in the middle of a panel, and zeros follow.
template <bool HALF>
struct Multiplier {
    const bf16* x;
    int k;            // elements of a row, a multiple of 32
    int begin, end;
    Columns columns;
    Activations b, b_next;   // of tile 0

    // Other rows from now on; the next panel is `first`.
    DEVICE void start(const bf16* rows, int length, int first, int past, const Columns& those) {
        x = rows, k = length, begin = first, end = past, columns = those;
        b = load(columns.at[0], begin);
        if (columns.tiles == 1) b_next = load(columns.at[0], after(begin));
    }

    // sum[n] += (two panels of weights, whose operands are a) x (column tile n), n < columns.tiles.
    template <bool ONE_TILE>
    DEVICE void multiply(float (&sum)[kColumnTiles][4], const u32 (&a)[4][4], int panel) {
        if constexpr (ONE_TILE) {
            const Activations third = load(columns.at[0], after(after(panel)));
            multiply_tile(sum[0], a, b);
            b = b_next, b_next = third;
        } else {
#pragma unroll
            for (int n = 0; n < kColumnTiles; ++n) {
                if (n >= columns.tiles) break;
                const bool last = n + 1 >= columns.tiles;
                const u32 at = last ? columns.at[0] : columns.at[(n + 1) % kColumnTiles];
                const Activations next = load(at, last ? after(panel) : panel);
                multiply_tile(sum[n], a, b);
                b = next;
            }
        }
    }

private:
    DEVICE int after(int panel) const { return panel + 1 < end ? panel + 1 : begin; }

    DEVICE Activations load(u32 at, int panel) const {
        const bf16* const from = x + at + panel * kPanelK;
        const bool whole = !HALF || panel * kPanelK + 32 < k;
        return {load16(from), whole ? load16(from + 32) : make_uint4(0, 0, 0, 0)};
    }
};

// What a thread holds of a 16 x 8 product: float4 {row g: columns 2t, 2t + 1; row g + 8: the same columns}.
DEVICE float4 as_float4(const float (&d)[4]) { return make_float4(d[0], d[1], d[2], d[3]); }
DEVICE float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

}  // namespace ddtree
