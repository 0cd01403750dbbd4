#line 1 "linear.cu.jinja"
#include "ddtree/linear.cuh"

struct Config {
    // the product
    static constexpr int out = 768;
    static constexpr int inner = 256;
    static constexpr int x_stride = 256;
    static constexpr int y_stride = 768;
    static constexpr int x_batch = 0;
    static constexpr int y_batch = 0;
    // its launch
    static constexpr int steps = 8;
    static constexpr int slices = 2;
    static constexpr int m_tiles = 4;
    static constexpr int team = 1;
    static constexpr int n_tiles = 4;
    static constexpr int warps = 2;
    static constexpr int sequential = 1;
    static constexpr int split = 1;
    static constexpr int bite = 1;
    static constexpr int stages = 4;
    static constexpr int x_stages = 3;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
    using Out = bf16;
};

KERNEL(ddtree::Plan<Config>::kThreads)
linear_768x256_bf16_m4x1n4_2s1x2x1_b1r4x3(const bf16* weight, const bf16* x, const ddtree::Rows* rows, Config::Out* y) {
    ddtree::linear<Config>(weight, x, rows, y);
}
