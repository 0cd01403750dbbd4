#line 1 "linear.cu.jinja"
#include "ddtree/linear.cuh"

struct Config {
    // the product
    static constexpr int out = 256;
    static constexpr int inner = 768;
    static constexpr int x_stride = 768;
    static constexpr int y_stride = 256;
    static constexpr int x_batch = 0;
    static constexpr int y_batch = 0;
    // its launch
    static constexpr int steps = 24;
    static constexpr int slices = 4;
    static constexpr int m_tiles = 1;
    static constexpr int team = 1;
    static constexpr int n_tiles = 4;
    static constexpr int warps = 4;
    static constexpr int sequential = 1;
    static constexpr int split = 1;
    static constexpr int bite = 1;
    static constexpr int stages = 6;
    static constexpr int x_stages = 3;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
    using Out = bf16;
};

KERNEL(ddtree::Plan<Config>::kThreads)
linear_256x768_bf16_m1x1n4_4s1x4x1_b1r6x3(const bf16* weight, const bf16* x, const ddtree::Rows* rows, Config::Out* y) {
    ddtree::linear<Config>(weight, x, rows, y);
}
