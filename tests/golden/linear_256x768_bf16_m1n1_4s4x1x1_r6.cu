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
    static constexpr int n_tiles = 1;
    static constexpr int warps = 1;
    static constexpr int sequential = 1;
    static constexpr int split = 4;
    static constexpr int stages = 6;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
    using Out = bf16;
};

KERNEL(32 * Config::warps)
linear_256x768_bf16_m1n1_4s4x1x1_r6(const bf16* weight, const bf16* x, const ddtree::Rows* rows, Config::Out* y, float* partial, u32* arrived) {
    ddtree::linear<Config>(weight, x, rows, y, partial, arrived);
}
