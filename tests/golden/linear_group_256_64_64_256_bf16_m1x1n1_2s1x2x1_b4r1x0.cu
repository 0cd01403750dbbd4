#line 1 "linear_group.cu.jinja"
#include "ddtree/linear.cuh"

struct Config {
    // the product
    static constexpr int out = 384;
    static constexpr int inner = 256;
    static constexpr int x_stride = 256;
    static constexpr int y_stride = 64;
    static constexpr int x_batch = 0;
    static constexpr int y_batch = 0;
    // its launch
    static constexpr int steps = 8;
    static constexpr int slices = 2;
    static constexpr int m_tiles = 1;
    static constexpr int team = 1;
    static constexpr int n_tiles = 1;
    static constexpr int warps = 2;
    static constexpr int sequential = 1;
    static constexpr int split = 1;
    static constexpr int bite = 4;
    static constexpr int stages = 1;
    static constexpr int x_stages = 0;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
    using Out = bf16;
};

KERNEL(ddtree::Plan<Config>::kThreads)
linear_group_256_64_64_256_bf16_m1x1n1_2s1x2x1_b4r1x0(const bf16* weight0, const bf16* weight1, const bf16* weight2, const bf16* x, const ddtree::Rows* rows, Config::Out* y0, Config::Out* y1, Config::Out* y2) {
    const bf16* weight = weight0;
    Config::Out* y = y0;
    int first = 0, out = 256;
    if (blockIdx.y >= 16u) weight = weight1, y = y1, first = 16, out = 64;
    if (blockIdx.y >= 20u) weight = weight2, y = y2, first = 20, out = 64;
    ddtree::linear<Config>(weight, x, rows, y, nullptr, first, out);
}
