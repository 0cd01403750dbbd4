#line 1 "route.cu.jinja"
#include "ddtree/route.cuh"

struct Config {
    static constexpr int experts = 16;
    static constexpr int top_k = 4;
    static constexpr float scale = 2.0f;
    static constexpr int warps = 1;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
};

KERNEL(32 * Config::warps)
route_16_4_2p0(const float* logits, const float* bias, const ddtree::Rows* rows, int* ids, float* gates) {
    ddtree::route<Config>(logits, bias, rows, ids, gates);
}
