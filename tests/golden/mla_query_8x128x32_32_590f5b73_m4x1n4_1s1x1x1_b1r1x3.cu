#line 1 "mla_query.cu.jinja"
#include "ddtree/mla_query.cuh"

struct Config {
    // the product
    static constexpr int out = 128;
    static constexpr int inner = 32;
    static constexpr int x_stride = 512;
    static constexpr int y_stride = 1280;
    static constexpr int x_batch = 64;
    static constexpr int y_batch = 160;
    // its launch
    static constexpr int steps = 1;
    static constexpr int slices = 1;
    static constexpr int m_tiles = 4;
    static constexpr int team = 1;
    static constexpr int n_tiles = 4;
    static constexpr int warps = 1;
    static constexpr int sequential = 1;
    static constexpr int split = 1;
    static constexpr int bite = 1;
    static constexpr int stages = 1;
    static constexpr int x_stages = 3;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
    using Out = bf16;
    // the rotation
    static constexpr int rope = 32;
    static constexpr ddtree::Layout layout = ddtree::Layout::interleaved;
    static constexpr float gain = 1.0f;
};

// Radians per position of each pair (Rope.inverse_frequencies), rounded to fp32.
__device__ const float frequency[] = {
    1.0f,
    0.508527398109436f,
    0.2586001455783844f,
    0.11506710201501846f,
    0.05015552416443825f,
    0.02125454880297184f,
    0.008646816946566105f,
    0.0032978574745357037f,
    0.0011180340079590678f,
    0.0005685509531758726f,
    0.00028912373818457127f,
    0.00014702735643368214f,
    7.47674421290867e-05f,
    3.80212914024014e-05f,
    1.933486964844633e-05f,
    9.832311661739368e-06f,
};

KERNEL(ddtree::Plan<Config>::kThreads)
mla_query_8x128x32_32_590f5b73_m4x1n4_1s1x1x1_b1r1x3(const bf16* weight, const bf16* q, const ddtree::Rows* rows, bf16* y) {
    ddtree::mla_query<Config>(weight, q, rows, y, frequency);
}
