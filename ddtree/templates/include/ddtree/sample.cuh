// The token that follows each row: the argmax, or a draw from the target's distribution by the Gumbel-max trick.
//
//   logits                            [rows, vocab] fp32
//   temperature, top_p, top_k, seed   [sequences] fp32, fp32, int32, int64; see graph/ops/sample.py
//   best                              [rows, chunks] workspace
//   token                             [rows] int32; -1 for a row without a distribution: a logit is NaN or +inf, or all are -inf
//   sample_scan  grid (chunks, rows up to some limit: blocks stride over the rest), block Config::threads
//   sample_pick  grid (rows up to some limit), block Config::threads
//
// The scan finds each chunk's best key, with noise where no filter is in the way. The pick joins the chunks, which ends
// every row without top-k and top-p. For the others one block narrows the range of keys in which the last kept token lies,
// by histograms of counts (top-k), then of probability masses (top-p), and takes the best of the kept tokens with noise.
// Masses are fixed-point integers, so their sums do not depend on the order in which threads add.
//
// Row-invariant: chunks depend on the vocabulary alone, keys are compared, integers added. Test: tests/ops/test_sample.py
#pragma once
#include "ddtree/domain.cuh"
#include "ddtree/order.cuh"
#include "ddtree/philox.cuh"

namespace ddtree {

constexpr u64 kNoDistribution = ~0ull;   // above every key of a number below +inf

// How one row's token is drawn.
struct Draw {
    float temperature, top_p;
    int top_k, position;
    u64 seed;
    bool filtered;

    DEVICE float scaled(float logit) const { return temperature == 0.f ? logit : logit / temperature; }
    DEVICE u64 noisy(float scaled, int id) const { return ranked(scaled + gumbel(seed, position, id), id); }
};

template <class Config>
DEVICE Draw draw_of(int i, const float* temperature, const int* top_k, const float* top_p, const long long* seed, const Rows* rows) {
    const int row = Config::domain == Domain::wanted ? rows->wanted[i] : i, s = rows->sequence[row];
    Draw d = {temperature[s], top_p[s], top_k[s], rows->position[row] + 1, u64(seed[s]), false};
    if (d.top_k <= 0 || d.top_k >= Config::vocab) d.top_k = 0;
    d.filtered = d.temperature != 0.f && (d.top_k > 0 || d.top_p < 1.f);
    return d;
}

template <class Config>
DEVICE void sample_scan(const float* logits, const float* temperature, const int* top_k, const float* top_p, const long long* seed,
                        const Rows* rows, u64* best) {
    constexpr int threads = Config::threads;
    pdl_launch_dependents();
    pdl_wait();
    const int count = live<Config::domain>(rows), first = blockIdx.x * threads * Config::per_thread + threadIdx.x;
    for (int i = blockIdx.y; i < count; i += gridDim.y) {
        const Draw draw = draw_of<Config>(i, temperature, top_k, top_p, seed, rows);
        const bool noisy = draw.temperature != 0.f && !draw.filtered;
        const float* row = logits + size_t(i) * Config::vocab;
        u64 mine = 0;
#pragma unroll 4
        for (int v = 0; v < Config::per_thread; ++v) {
            const int id = first + v * threads;
            if (id >= Config::vocab) break;
            const float x = row[id], scaled = draw.scaled(x);
            const u64 key = noisy ? draw.noisy(scaled, id) : ranked(scaled, id);
            mine = max(mine, x < kInfinity ? key : kNoDistribution);
        }
        mine = block_max<threads>(mine);
        if (threadIdx.x == 0) best[size_t(i) * Config::chunks + blockIdx.x] = mine;
    }
}

// f(key of every token's scaled logit), BATCH loads of a thread in flight.
template <class Config, int BATCH, class F>
DEVICE void each_key(const float* row, const Draw& draw, F f) {
#pragma unroll 1
    for (int first = threadIdx.x; first < Config::vocab; first += BATCH * Config::threads) {
        float x[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) x[i] = first + i * Config::threads < Config::vocab ? row[first + i * Config::threads] : 0.f;
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int id = first + i * Config::threads;
            if (id < Config::vocab) f(ranked(draw.scaled(x[i]), id));
        }
    }
}

// Probability relative to the best token's, in units of 2^-40: at most 2^23 of them fit a u64.
DEVICE u64 mass_of(u64 key, float largest) { return u64(expf(value_of(key) - largest) * 0x1p40f); }

// Sum of x over the threads before this one, and *total over all.
template <int THREADS>
DEVICE u64 block_sum_before(u64 x, u64* total) {
    SHARED_ARRAY(u64, warps, THREADS / 32);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 sum = x;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const u64 lower = __shfl_up_sync(0xffffffffu, sum, distance);
        if (lane >= distance) sum += lower;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    u64 before = sum - x;
    *total = 0;
    for (int w = 0; w < THREADS / 32; ++w) {
        if (w < warp) before += warps[w];
        *total += warps[w];
    }
    __syncthreads();   // the array is free for the next call
    return before;
}

constexpr int kBinBits = 11;

struct Histogram {
    u32 low[1 << kBinBits], high[1 << kBinBits];   // weight of a bin: shared memory adds 64 bits by a loop, 32 bits at once
    u32 tokens[1 << kBinBits];
    u64 before;   // of the bin that holds the last kept token: weight before it,
    bool alone;   // and whether it holds no other token

    DEVICE void clear(int bin) { low[bin] = high[bin] = tokens[bin] = 0; }
    DEVICE void add(int bin, u64 weight) {
        const u32 part = u32(weight), carry = atomicAdd(low + bin, part) + part < part;
        if (const u32 above = u32(weight >> 32) + carry) atomicAdd(high + bin, above);
        atomicAdd(tokens + bin, 1u);
    }
    DEVICE u64 weight(int bin) const { return u64(high[bin]) << 32 | low[bin]; }
};

// By falling key, a token is kept while the weight of those before it is below `target`: a key that the last kept token
// reaches and the first dropped one does not. `low` and `high` bound the last kept token; `high` is the best token's key.
// A token weighs 1, or with `by_mass` as much as its probability.
template <class Config>
DEVICE u64 last_kept(const float* row, const Draw& draw, bool by_mass, u64 low, u64 high, u64 target, Histogram* h) {
    constexpr int threads = Config::threads, bins = 1 << kBinBits, per_thread = bins / threads;
    const float largest = value_of(high);
    u64 before = 0;   // weight above `high`
    for (;;) {
        const int shift = max(0, 64 - __clzll(high - low) - kBinBits);
        for (int b = threadIdx.x; b < bins; b += threads) h->clear(b);
        __syncthreads();
        each_key<Config, 8>(row, draw, [&](u64 key) {
            if (key < low || key > high) return;
            h->add(int((high - key) >> shift), by_mass ? mass_of(key, largest) : 1);
        });
        __syncthreads();

        u64 mine = 0, all, last = 0, last_before = 0;
        for (int b = 0; b < per_thread; ++b) mine += h->weight(threadIdx.x * per_thread + b);
        u64 sum = before + block_sum_before<threads>(mine, &all);
        for (int b = 0; b < per_thread; ++b) {
            const int bin = threadIdx.x * per_thread + b;
            if (h->tokens[bin] && sum < target) last = bin + 1, last_before = sum;
            sum += h->weight(bin);
        }
        const u64 found = block_max<threads>(last);   // at least the bin of the best token
        if (last == found) h->before = last_before, h->alone = h->tokens[found - 1] == 1;
        __syncthreads();
        before = h->before;
        high -= (found - 1) << shift;
        const u64 span = (u64(1) << shift) - 1;
        if (high - low > span) low = high - span;
        if (shift == 0 || h->alone) return low;
    }
}

// A key that the tokens kept by top-k and top-p reach, and no others; `best` is the key of the largest logit.
template <class Config>
DEVICE u64 lowest_kept(const float* row, const Draw& draw, u64 best) {
    static_assert(sizeof(Histogram) == Config::smem, "what the launch gives");
    DYN_SMEM(memory);
    auto* histogram = reinterpret_cast<Histogram*>(memory);
    u64 lowest = 0;
    if (draw.top_k > 0) lowest = last_kept<Config>(row, draw, false, lowest, best, draw.top_k, histogram);
    if (draw.top_p >= 1.f) return lowest;

    const float largest = value_of(best);
    u64 mine = 0, total;
    each_key<Config, 8>(row, draw, [&](u64 key) { mine += key >= lowest ? mass_of(key, largest) : 0; });
    block_sum_before<Config::threads>(mine, &total);
    const double share = double(draw.top_p) * double(total);
    u64 target = share > 1. ? u64(share) : 1;   // at least the best token stays
    if (double(target) < share) ++target;
    // The tokens from a kept one on hold at least total - target, and none of them more than it: this bounds its probability
    // from below. The slack covers rounding; it costs nothing but time.
    const float least = largest + logf(float(total - target) / Config::vocab * 0x1p-40f) - (0.01f + fabsf(largest) * 1e-6f);
    const u64 bound = u64(order_bits(least)) << 32;
    return last_kept<Config>(row, draw, true, max(lowest, bound), best, target, histogram);
}

template <class Config>
DEVICE int filtered_token(const float* row, const Draw& draw, u64 best) {
    const u64 lowest = lowest_kept<Config>(row, draw, best);
    u64 mine = 0;
    each_key<Config, 4>(row, draw, [&](u64 key) {
        if (key >= lowest) mine = max(mine, draw.noisy(value_of(key), id_of(key)));
    });
    return id_of(block_max<Config::threads>(mine));
}

template <class Config>
DEVICE void sample_pick(const float* logits, const float* temperature, const int* top_k, const float* top_p, const long long* seed,
                        const Rows* rows, const u64* best, int* token) {
    pdl_launch_dependents();
    pdl_wait();
    const int count = live<Config::domain>(rows);
    for (int i = blockIdx.x; i < count; i += gridDim.x) {
        const Draw draw = draw_of<Config>(i, temperature, top_k, top_p, seed, rows);
        u64 mine = 0;
        for (int c = threadIdx.x; c < Config::chunks; c += Config::threads) mine = max(mine, best[size_t(i) * Config::chunks + c]);
        const u64 found = block_max<Config::threads>(mine);
        int chosen = id_of(found);
        if (found == kNoDistribution || value_of(found) == -kInfinity) chosen = -1;
        else if (draw.filtered) chosen = filtered_token<Config>(logits + size_t(i) * Config::vocab, draw, found);
        if (threadIdx.x == 0) token[i] = chosen;
    }
}

}  // namespace ddtree
