#line 1 "sample_pick.cu.jinja"
#include "ddtree/sample.cuh"

struct Config {
    static constexpr int vocab = 4096;
    static constexpr int threads = 512;
    static constexpr int chunks = 1;
    static constexpr int smem = 24592;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
};

KERNEL(Config::threads)
sample_pick_4096(const float* logits, const float* temperature, const int* top_k, const float* top_p, const long long* seed,
    const ddtree::Rows* rows, const u64* best, int* token) {
    ddtree::sample_pick<Config>(logits, temperature, top_k, top_p, seed, rows, best, token);
}
