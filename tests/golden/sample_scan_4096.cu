#line 1 "sample_scan.cu.jinja"
#include "ddtree/sample.cuh"

struct Config {
    static constexpr int vocab = 4096;
    static constexpr int threads = 256;
    static constexpr int per_thread = 16;
    static constexpr int chunks = 1;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
};

KERNEL(Config::threads)
sample_scan_4096(const float* logits, const float* temperature, const int* top_k, const float* top_p, const long long* seed,
    const ddtree::Rows* rows, u64* best) {
    ddtree::sample_scan<Config>(logits, temperature, top_k, top_p, seed, rows, best);
}
