// Copies of rows, bit for bit: embed, select_rows, gather_rows, concat_taps, cache_write and cache_commit differ only in
// where a row comes from and where it goes.
//
//   rows   Config::row_bytes each, a multiple of 16, 16-byte aligned
//   tile   one row per block of Config::threads threads, 16 bytes a thread and turn
//
// Row-invariant, because nothing is computed. Tests: tests/ops/test_<op>.py of the six ops.
#pragma once
#include "ddtree/domain.cuh"

namespace ddtree {

template <class Config>
DEVICE void copy_row(unsigned char* to, const unsigned char* from) {
    static_assert(Config::row_bytes % 16 == 0, "whole 16-byte vectors");
    for (int at = threadIdx.x * 16; at < Config::row_bytes; at += Config::threads * 16) store16(to + at, load16_coherent(from + at));
}

// y[r] = table[ids[r]]. grid (rows)
template <class Config>
DEVICE void embed(const int* ids, const unsigned char* table, const Rows* rows, unsigned char* y) {
    pdl_launch_dependents();
    pdl_wait();
    const size_t row = blockIdx.x;
    if (row >= live<Config::domain>(rows)) return;
    copy_row<Config>(y + row * Config::row_bytes, table + size_t(ids[row]) * Config::row_bytes);
}

// y[i] = x[wanted[i]]. grid (wanted rows)
template <class Config>
DEVICE void select_rows(const unsigned char* x, const Rows* rows, unsigned char* y) {
    pdl_launch_dependents();
    pdl_wait();
    const size_t row = blockIdx.x;
    if (row >= rows->wanted_count) return;
    copy_row<Config>(y + row * Config::row_bytes, x + size_t(rows->wanted[row]) * Config::row_bytes);
}

// y[r] = x[source[r]]. grid (rows)
template <class Config>
DEVICE void gather_rows(const unsigned char* x, const Rows* rows, unsigned char* y) {
    pdl_launch_dependents();
    pdl_wait();
    const size_t row = blockIdx.x;
    if (row >= rows->count) return;
    copy_row<Config>(y + row * Config::row_bytes, x + size_t(rows->source[row]) * Config::row_bytes);
}

// y[r] = [taps[0][r] | taps[1][r] | ...], taps of equal width. grid (rows, taps)
template <class Config>
DEVICE void concat_taps(const unsigned char* const (&taps)[Config::taps], const Rows* rows, unsigned char* y) {
    pdl_launch_dependents();
    pdl_wait();
    const size_t row = blockIdx.x, tap = blockIdx.y;
    if (row >= live<Config::domain>(rows)) return;
    const unsigned char* from = taps[0];
#pragma unroll
    for (int t = 1; t < Config::taps; ++t)   // constant indexes keep the pointers in registers
        if (t == tap) from = taps[t];
    copy_row<Config>(y + (row * Config::taps + tap) * Config::row_bytes, from + row * Config::row_bytes);
}

}  // namespace ddtree
