#line 1 "expert_mlp_combine.cu.jinja"
#include "ddtree/expert_mlp.cuh"

struct Config {
    static constexpr int hidden = 256;
    static constexpr int top_k = 4;
    static constexpr bool shared = true;
    static constexpr int threads = 128;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
};

KERNEL(Config::threads)
expert_mlp_combine_256_top4_shared(const float* gates, const float* part, const ddtree::Rows* rows, bf16* y) {
    ddtree::expert_combine<Config>(gates, part, rows, y);
}
