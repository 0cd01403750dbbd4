// Asks for weights of later kernels to be in L2 soon, while kernels that wait for one another leave the memory idle.
//
//   a thread asks for one piece of kPiece bytes of one range; nobody waits for the answer
//
// It computes nothing and changes no memory, so bits do not depend on it. Test: tests/runtime/test_prefetch.py
#pragma once
#include "ddtree/prims.cuh"

namespace ddtree {

template <u32... BYTES>
struct Ranges {
    static constexpr u32 kPiece = 16384;

    // `at`: the starts of the ranges
    static DEVICE void ask(u32 piece, const u8* const (&at)[sizeof...(BYTES)]) {
        constexpr u32 bytes[] = {BYTES...};
#pragma unroll
        for (u32 i = 0; i < sizeof...(BYTES); ++i) {
            const u32 pieces = (bytes[i] + kPiece - 1) / kPiece;
            if (piece < pieces) {
                const u32 from = piece * kPiece;
                prefetch_l2(at[i] + from, min(kPiece, bytes[i] - from));
                return;
            }
            piece -= pieces;
        }
    }
};

}  // namespace ddtree
