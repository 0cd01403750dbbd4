#line 1 "add_rms_norm.cu.jinja"
#include "ddtree/rms_norm.cuh"

struct Config {
    static constexpr int width = 256;
    static constexpr int heads = 1;
    static constexpr float eps = 1e-06f;
    static constexpr int lanes = 32;
    static constexpr int threads = 32;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
};

KERNEL(Config::threads)
add_rms_norm_1_256_1em06(const bf16* a, const bf16* b, const bf16* weight, const ddtree::Rows* rows, bf16* sum, bf16* y) {
    ddtree::add_rms_norm<Config>(a, b, weight, rows, sum, y);
}
