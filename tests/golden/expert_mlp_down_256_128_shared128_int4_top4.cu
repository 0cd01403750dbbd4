#line 1 "expert_mlp_down.cu.jinja"
#include "ddtree/expert_mlp.cuh"

struct Config {
    static constexpr int hidden = 256;
    static constexpr int width = 128;
    static constexpr int shared_width = 128;
    static constexpr int top_k = 4;
    static constexpr bool int4 = true;
    static constexpr int warps = 8;
    static constexpr int slots = 2;
    static constexpr int slot_bytes = 4608;
    static constexpr int smem = 74368;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
    static constexpr int group = 4;
};

KERNEL(32 * Config::warps, 2)
expert_mlp_down_256_128_shared128_int4_top4(const bf16* act, const u8* down, const ddtree::RowTile* tiles, const int* pairs, const ddtree::Rows* rows,
             float* part, const bf16* shared_act, const u8* shared_down) {
    ddtree::Down<Config>::run(act, shared_act, {down, shared_down}, tiles, pairs, rows, part);
}
