#line 1 "linear_group.cu.jinja"
#include "ddtree/linear.cuh"

struct Shape {
    // the product
    static constexpr int out = 1536;
    static constexpr int inner = 256;
    static constexpr int x_stride = 256;
    static constexpr int y_stride = 768;
    static constexpr int x_batch = 0;
    static constexpr int y_batch = 0;
    // its launch
    static constexpr int steps = 8;
    static constexpr int slices = 2;
    static constexpr int m_tiles = 1;
    static constexpr int n_tiles = 1;
    static constexpr int warps = 2;
    static constexpr int sequential = 1;
    static constexpr int split = 1;
    static constexpr int stages = 4;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
    using Out = bf16;
};

template <int OUT>
struct Config : Shape {
    static constexpr int out = OUT, y_stride = OUT;
};

KERNEL(32 * Shape::warps)
linear_group_768_768_256_bf16_m1n1_2s1x2x1_r4(const bf16* weight0, const bf16* weight1, const bf16* x, const ddtree::Rows* rows, Shape::Out* y0, Shape::Out* y1) {
    if (blockIdx.y >= 48u) {
        ddtree::linear<Config<768>>(weight1, x, rows, y1, nullptr, nullptr, 48);
        return;
    }
    if (blockIdx.y >= 0u) {
        ddtree::linear<Config<768>>(weight0, x, rows, y0, nullptr, nullptr, 0);
        return;
    }
}
