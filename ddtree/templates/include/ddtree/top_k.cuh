// The k largest logits of each row as log-probabilities, best first; equal logits take the lower id first.
//
//   logits    [rows, vocab] fp32          log_prob  [rows, k] fp32          token  [rows, k] int32
//   keys      [rows, chunks, k] workspace: each chunk's best, by falling rank
//   sums      [rows, chunks] workspace: {largest logit m, sum of exp(logit - m)} of a chunk
//   arrivals  [rows] workspace, zero: chunks that are done; the last one resets it
//   grid      (chunks, rows up to some limit: blocks stride over the rest), block Config::threads
//
// A block reads one chunk of `threads * per_thread` consecutive ids of one row; the last block of a row to finish merges
// the chunks. The split depends on the vocabulary alone, keys have a total order and sums are added in chunk order, so a
// row's bits depend neither on the other rows nor on which block comes last.
//
// Selection: the k-th largest of the threads' own maxima is a bound that at least k keys reach. No more than k threads
// hold such keys, so at most k * per_thread (typically less than 2 k) remain to be ranked by counting.
//
// A NaN logit ranks last and makes the row's log-probabilities NaN. Test: tests/ops/test_top_k.py
#pragma once
#include "ddtree/domain.cuh"
#include "ddtree/order.cuh"

namespace ddtree {

template <class Config>
struct TopKShared {
    static constexpr int merged = (Config::chunks * Config::k + Config::threads - 1) / Config::threads;   // keys a thread merges
    u64 maxima[Config::threads];
    u64 reaching[Config::k * (merged > Config::per_thread ? merged : Config::per_thread)];
    u64 best[Config::k];
    float2 sums[Config::chunks];
    u64 bound;
    int found;
    u32 before;
};

// The k largest of the block's keys, best first, to shared->best; every thread of the block calls it with a function that
// gives its keys 0 .. PER_THREAD - 1, distinct or 0 for none. 0 stands for keys that are missing. To be read after a
// __syncthreads.
template <class Config, int PER_THREAD, class Key>
DEVICE void select_largest(Key key_of, TopKShared<Config>* shared) {
    constexpr int threads = Config::threads, k = Config::k;
    static_assert(k <= threads, "each of the k largest maxima needs a thread");
    const int thread = threadIdx.x;
    u64 mine = 0;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) mine = max(mine, key_of(i));
    shared->maxima[thread] = mine;
    if (thread == 0) shared->found = 0;
    if (thread < k) shared->best[thread] = 0;
    __syncthreads();

    int rank = 0;
#pragma unroll 8
    for (int other = 0; other < threads; ++other) {
        const u64 theirs = shared->maxima[other];
        rank += theirs > mine || (theirs == mine && other < thread);   // equal only when both are 0
    }
    if (rank == k - 1) shared->bound = max(mine, u64(1));
    __syncthreads();

    const u64 bound = shared->bound;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i)
        if (const u64 key = key_of(i); key >= bound) shared->reaching[atomicAdd(&shared->found, 1)] = key;
    __syncthreads();

    const int count = shared->found;
    for (int i = thread; i < count; i += threads) {   // the order in which they came does not matter: ranks are unique
        const u64 key = shared->reaching[i];
        int place = 0;
        for (int other = 0; other < count; ++other) place += shared->reaching[other] > key;
        if (place < k) shared->best[place] = key;
    }
}

template <class Config>
DEVICE void scan_chunk(const float* row, int first, u64* keys, float2* sum, TopKShared<Config>* shared) {
    constexpr int threads = Config::threads, per_thread = Config::per_thread;
    const auto id = [&](int i) { return first + i * threads + int(threadIdx.x); };
    float x[per_thread], largest = -kInfinity;
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
        x[i] = id(i) < Config::vocab ? row[id(i)] : -kInfinity;
        largest = fmaxf(largest, x[i]);
    }
    largest = block_max<threads>(largest);

    const float origin = largest == -kInfinity ? 0.f : largest;   // a chunk without probability adds 0, not NaN
    float total = 0.f;
#pragma unroll
    for (int i = 0; i < per_thread; ++i) total += expf(x[i] - origin);
    total = block_sum<threads>(total);

    select_largest<Config, per_thread>([&](int i) { return id(i) < Config::vocab ? ranked(x[i], id(i)) : 0; }, shared);
    __syncthreads();
    if (threadIdx.x < Config::k) keys[threadIdx.x] = shared->best[threadIdx.x];
    if (threadIdx.x == 0) *sum = make_float2(largest, total);
}

template <class Config>
DEVICE void merge_chunks(const float* row, const u64* keys, const float2* sums, float* log_prob, int* token,
                         TopKShared<Config>* shared) {
    constexpr int threads = Config::threads, entries = Config::chunks * Config::k;
    constexpr int per_thread = TopKShared<Config>::merged;
    u64 key[per_thread];
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
        const int entry = i * threads + int(threadIdx.x);
        key[i] = entry < entries ? keys[entry] : 0;
    }
    for (int c = threadIdx.x; c < Config::chunks; c += threads) shared->sums[c] = sums[c];
    select_largest<Config, per_thread>([&](int i) { return key[i]; }, shared);
    __syncthreads();

    float largest = -kInfinity, total = 0.f;
    for (int c = 0; c < Config::chunks; ++c) largest = fmaxf(largest, shared->sums[c].x);
    const float origin = largest == -kInfinity ? 0.f : largest;
    for (int c = 0; c < Config::chunks; ++c) total += shared->sums[c].y * expf(shared->sums[c].x - origin);
    const float log_sum = largest + logf(total);
    if (threadIdx.x < Config::k) {
        const int id = id_of(shared->best[threadIdx.x]);
        token[threadIdx.x] = id;
        log_prob[threadIdx.x] = row[id] - log_sum;
    }
}

template <class Config>
DEVICE void top_k(const float* logits, const Rows* rows, float* log_prob, int* token, u64* keys, float2* sums, u32* arrivals) {
    DYN_SMEM(memory);
    auto* shared = reinterpret_cast<TopKShared<Config>*>(memory);
    static_assert(sizeof(*shared) == Config::smem, "the launch gives what the kernel uses");
    pdl_launch_dependents();
    pdl_wait();
    const int count = live<Config::domain>(rows);
    for (int r = blockIdx.y; r < count; r += gridDim.y) {
        const float* row = logits + size_t(r) * Config::vocab;
        u64* row_keys = keys + size_t(r) * Config::chunks * Config::k;
        float2* row_sums = sums + size_t(r) * Config::chunks;
        const int chunk = blockIdx.x;
        scan_chunk<Config>(row, chunk * Config::threads * Config::per_thread, row_keys + chunk * Config::k, row_sums + chunk,
                           shared);
        __syncthreads();
        if (threadIdx.x == 0) shared->before = atom_add_acq_rel(arrivals + r, 1);
        __syncthreads();
        if (shared->before == Config::chunks - 1) {
            merge_chunks<Config>(row, row_keys, row_sums, log_prob + size_t(r) * Config::k, token + size_t(r) * Config::k, shared);
            if (threadIdx.x == 0) arrivals[r] = 0;
        }
        __syncthreads();   // shared memory is free for the next row
    }
}

}  // namespace ddtree
