#line 1 "rotate.cu.jinja"
#include "ddtree/rotate.cuh"

struct Config {
    static constexpr int heads = 8;
    static constexpr int dim = 32;
    static constexpr ddtree::Layout layout = ddtree::Layout::half;
    static constexpr float gain = 1.0f;
    static constexpr int columns = 8;
    static constexpr int threads = 128;
};

// Radians per position of each pair (Rope.inverse_frequencies), rounded to fp32.
__device__ const float frequency[] = {
    1.0f,
    0.508527398109436f,
    0.2586001455783844f,
    0.13150526583194733f,
    0.06687402725219727f,
    0.034007277339696884f,
    0.01729363389313221f,
    0.008794287219643593f,
    0.004472136031836271f,
    0.0022742038127034903f,
    0.001156494952738285f,
    0.0005881094257347286f,
    0.0002990697685163468f,
    0.0001520851656096056f,
    7.733947859378532e-05f,
    3.932924664695747e-05f,
};

KERNEL(Config::threads)
rotate_8_32_9b4b27fc(const bf16* x, const ddtree::Rows* rows, bf16* y) {
    ddtree::rotate<Config>(x, rows, y, frequency);
}
