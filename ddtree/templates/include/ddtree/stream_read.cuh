// Reads every byte of a buffer once and writes nothing: the fastest a kernel can take its weights in.
//
//   tile  a block reads `turns` pieces of Config::threads x Config::depth vectors of 16 bytes that follow each other, with one
//         piece in flight for each of the blocks that share an SM
#pragma once
#include "ddtree/prims.cuh"

namespace ddtree {

struct StreamRead {
    u64 bytes;   // a multiple of 16
    u64 turns;   // pieces of a block
};

template <class Config>
DEVICE void stream_read(const StreamRead* read, const uint4* data, u32* never) {
    pdl_launch_dependents();
    constexpr u64 kPiece = u64(Config::threads) * Config::depth;
    const u64 vectors = read->bytes / 16, turns = read->turns, begin = blockIdx.x * turns * kPiece + threadIdx.x;
    u32 sum = 0;
#pragma unroll 1
    for (u64 turn = 0; turn < turns; ++turn) {
        const u64 first = begin + turn * kPiece;
        uint4 v[Config::depth];
#pragma unroll
        for (int i = 0; i < Config::depth; ++i) {
            const u64 at = first + u64(i) * Config::threads;
            v[i] = at < vectors ? load16_stream(data + at) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < Config::depth; ++i) sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    pdl_wait();
    if (sum == 0x9E3779B9u && read->bytes == 1) *never = sum;   // never, but the compiler cannot know
}

}  // namespace ddtree
