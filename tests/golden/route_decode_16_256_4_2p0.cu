#line 1 "route_decode.cu.jinja"
#include "ddtree/route_decode.cuh"

struct Config {
    static constexpr int hidden = 256;
    static constexpr int experts = 16;
    static constexpr int top_k = 4;
    static constexpr float scale = 2.0f;
    static constexpr int steps = 8;
    static constexpr int warps = 2;
    static constexpr int chain = 6;
    static constexpr int split = 1;
    static constexpr int smem = 14352;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
};

KERNEL(32 * Config::warps, 2)
route_decode_16_256_4_2p0(const bf16* weight, const float* bias, const bf16* x, const ddtree::Rows* rows, float* sums, int* ids,
             float* gates) {
    ddtree::RouteDecode<Config>::run({weight, bias, x, rows, sums, ids, gates});
}
