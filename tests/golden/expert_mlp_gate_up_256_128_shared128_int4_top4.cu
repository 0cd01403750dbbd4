#line 1 "expert_mlp_gate_up.cu.jinja"
#include "ddtree/expert_mlp.cuh"

struct Config {
    static constexpr int hidden = 256;
    static constexpr int width = 128;
    static constexpr int shared_width = 128;
    static constexpr int top_k = 4;
    static constexpr bool int4 = true;
    static constexpr int warps = 4;
    static constexpr int slots = 2;
    static constexpr int slot_bytes = 4608;
    static constexpr int smem = 45376;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
};

KERNEL(32 * Config::warps, 2)
expert_mlp_gate_up_256_128_shared128_int4_top4(const bf16* x, const u8* gate, const u8* up, const ddtree::RowTile* tiles, const int* pairs,
             const ddtree::Rows* rows, bf16* act, const u8* shared_gate, const u8* shared_up, bf16* shared_act) {
    ddtree::GateUp<Config>::run(x, {gate, up, shared_gate, shared_up}, tiles, pairs, rows, act, shared_act);
}
