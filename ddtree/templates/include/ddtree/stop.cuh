// Where a round's tokens end: at the first stop id, itself kept, at the limit, or before a token that could not be chosen
// (-1: the target's logits held no distribution).
//
//   emitted  [sequences, width] int32     length, remaining  [sequences] int32
//   kept     [sequences] int32            done               [sequences] int32: 0, 1 stop id, 2 limit, 3 no token
//   grid over sequences, one thread each; sequences are independent
//
// Test: tests/ops/test_stop.py
#pragma once
#include "ddtree/rows.cuh"

namespace ddtree {

template <int... Ids>
struct Tokens {
    static DEVICE bool hold(int token) { return (false || ... || (token == Ids)); }
};

template <class Config>
DEVICE void stop(const int* emitted, const int* length, const int* remaining, const Rows* rows, int* kept, int* done) {
    pdl_launch_dependents();
    pdl_wait();
    const int sequence = blockIdx.x * Config::threads + threadIdx.x;
    if (sequence >= rows->sequences) return;
    const int* tokens = emitted + size_t(sequence) * Config::width;
    const int limit = min(length[sequence], remaining[sequence]);
    int end = 0;
    while (end < limit && tokens[end] != -1 && !Config::stops::hold(tokens[end])) ++end;
    const bool stopped = end < limit && tokens[end] != -1, failed = end < limit && !stopped;
    kept[sequence] = stopped ? end + 1 : end;
    done[sequence] = stopped ? 1 : failed ? 3 : length[sequence] > 0 && limit == remaining[sequence] ? 2 : 0;
}

}  // namespace ddtree
