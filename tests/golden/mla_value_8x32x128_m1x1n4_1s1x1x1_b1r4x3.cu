#line 1 "mla_value.cu.jinja"
#include "ddtree/mla_value.cuh"

struct Config {
    // the product
    static constexpr int out = 32;
    static constexpr int inner = 128;
    static constexpr int x_stride = 1024;
    static constexpr int y_stride = 256;
    static constexpr int x_batch = 128;
    static constexpr int y_batch = 32;
    // its launch
    static constexpr int steps = 4;
    static constexpr int slices = 1;
    static constexpr int m_tiles = 1;
    static constexpr int team = 1;
    static constexpr int n_tiles = 4;
    static constexpr int warps = 1;
    static constexpr int sequential = 1;
    static constexpr int split = 1;
    static constexpr int bite = 1;
    static constexpr int stages = 4;
    static constexpr int x_stages = 3;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
    using Out = bf16;
};

KERNEL(ddtree::Plan<Config>::kThreads)
mla_value_8x32x128_m1x1n4_1s1x1x1_b1r4x3(const bf16* weight, const bf16* z, const ddtree::Rows* rows, bf16* y) {
    ddtree::mla_value<Config>(weight, z, rows, y);
}
