#line 1 "linear_group.cu.jinja"
#include "ddtree/linear.cuh"

struct Shape {
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
    static constexpr int n_tiles = 1;
    static constexpr int warps = 1;
    static constexpr int sequential = 1;
    static constexpr int split = 2;
    static constexpr int stages = 4;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
    using Out = bf16;
};

template <int OUT>
struct Config : Shape {
    static constexpr int out = OUT, y_stride = OUT;
};

KERNEL(32 * Shape::warps)
linear_group_256_64_64_256_bf16_m1n1_2s2x1x1_r4(const bf16* weight0, const bf16* weight1, const bf16* weight2, const bf16* x, const ddtree::Rows* rows, Shape::Out* y0, Shape::Out* y1, Shape::Out* y2, float* partial, u32* arrived) {
    if (blockIdx.y >= 40u) {
        ddtree::linear<Config<64>>(weight2, x, rows, y2, partial, arrived, 40);
        return;
    }
    if (blockIdx.y >= 32u) {
        ddtree::linear<Config<64>>(weight1, x, rows, y1, partial, arrived, 32);
        return;
    }
    if (blockIdx.y >= 0u) {
        ddtree::linear<Config<256>>(weight0, x, rows, y0, partial, arrived, 0);
        return;
    }
}
