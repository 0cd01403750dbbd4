// Tensor cores (PTX: warp-level matrix instructions). All 32 lanes of a warp take part in every call.
// Fragments, with g = lane / 4 and t = lane % 4, a register holding columns {2t, 2t + 1} (low half first):
//   A 16x16  a[0] row g      a[1] row g + 8      a[2] row g, columns + 8     a[3] row g + 8, columns + 8
//   B 16x8   b[0] k = 2t, 2t + 1 of column g     b[1] the same with k + 8
//   D 16x8   d[0], d[1] row g, columns 2t, 2t + 1     d[2], d[3] row g + 8
#pragma once
#include "ddtree/prims/types.cuh"

namespace ddtree {

// d += a b, bf16 products in fp32. PTX: mma.sync.aligned.m16n8k16
PRIM void mma_bf16_16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2] AND_SITE) {
#ifdef DDTREE_EMULATED
    emu::mma_16816(d, a, b, site);
#else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// Eight-by-eight matrices of 16-bit elements: lanes 8i .. 8i + 7 give the 16-byte rows of matrix i (x1 and x2 ignore
// the addresses of the other lanes). Lane 4r + c receives elements 2c and 2c + 1 of row r; _trans: of column r.
// PTX: ldmatrix
#ifdef DDTREE_EMULATED
#define LDMATRIX(name, count, transposed, shape, outputs, ...)                                                         \
    PRIM void name(u32 (&r)[count], u32 smem AND_SITE) { emu::ldmatrix(r, count, transposed, smem, site); }
#else
#define LDMATRIX(name, count, transposed, shape, outputs, ...)                                                         \
    PRIM void name(u32 (&r)[count], u32 smem) {                                                                        \
        asm volatile("ldmatrix.sync.aligned.m8n8." shape ".shared.b16 " outputs ";"                                    \
                     : __VA_ARGS__ : "r"(smem) : "memory");                                                            \
    }
#endif
LDMATRIX(ldmatrix_x1, 1, false, "x1", "{%0}, [%1]", "=r"(r[0]))
LDMATRIX(ldmatrix_x2, 2, false, "x2", "{%0, %1}, [%2]", "=r"(r[0]), "=r"(r[1]))
LDMATRIX(ldmatrix_x4, 4, false, "x4", "{%0, %1, %2, %3}, [%4]", "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]))
LDMATRIX(ldmatrix_x1_trans, 1, true, "x1.trans", "{%0}, [%1]", "=r"(r[0]))
LDMATRIX(ldmatrix_x2_trans, 2, true, "x2.trans", "{%0, %1}, [%2]", "=r"(r[0]), "=r"(r[1]))
LDMATRIX(ldmatrix_x4_trans, 4, true, "x4.trans", "{%0, %1, %2, %3}, [%4]", "=r"(r[0]), "=r"(r[1]), "=r"(r[2]),
         "=r"(r[3]))
#undef LDMATRIX

}  // namespace ddtree
