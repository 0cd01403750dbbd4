#line 1 "top_k.cu.jinja"
#include "ddtree/top_k.cuh"

struct Config {
    static constexpr int vocab = 4096;
    static constexpr int k = 15;
    static constexpr int threads = 256;
    static constexpr int per_thread = 16;
    static constexpr int chunks = 1;
    static constexpr int smem = 4112;
    static constexpr ddtree::Domain domain = ddtree::Domain::wanted;
};

KERNEL(Config::threads, 1)
top_k_4096_15_wanted(const float* logits, const ddtree::Rows* rows, float* log_prob, int* token, u64* keys, float2* sums, u32* arrivals) {
    ddtree::top_k<Config>(logits, rows, log_prob, token, keys, sums, arrivals);
}
