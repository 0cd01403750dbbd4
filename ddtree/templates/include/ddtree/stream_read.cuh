// Reads every byte of a buffer once and writes nothing: the fastest a kernel can take its weights in.
//
//   tile  `part` vectors of 16 bytes a block, neighbouring blocks side by side; Config::depth loads of each thread in flight
#pragma once
#include "ddtree/prims.cuh"

namespace ddtree {

struct StreamRead {
    u64 vectors;   // of 16 bytes
    u64 part;      // of a block
};

template <class Config>
DEVICE void stream_read(const StreamRead* read, const uint4* data, u32* never) {
    pdl_launch_dependents();
    const u64 part = read->part, begin = blockIdx.x * part, end = min(read->vectors, begin + part);
    u32 sum = 0;
#pragma unroll 1
    for (u64 first = begin + threadIdx.x; first < end; first += Config::threads * Config::depth) {
        uint4 v[Config::depth];
#pragma unroll
        for (int i = 0; i < Config::depth; ++i) {
            const u64 at = first + i * Config::threads;
            v[i] = at < end ? load16(data + at) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < Config::depth; ++i) sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    pdl_wait();
    if (sum == 0x9E3779B9u && read->vectors == 1) *never = sum;   // never, but the compiler cannot know
}

}  // namespace ddtree
