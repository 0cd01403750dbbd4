#line 1 "expert_decode.cu.jinja"
#include "ddtree/expert_decode.cuh"

struct Config {
    static constexpr int hidden = 256;
    static constexpr int width = 128;
    static constexpr int shared_width = 128;
    static constexpr int experts = 16;
    static constexpr int top_k = 4;
    static constexpr int warps = 2;
    static constexpr int group = 4;
    static constexpr int slot_bytes = 4608;
    static constexpr int smem = 21456;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
};

KERNEL(32 * Config::warps, 1)
expert_decode_256_128_shared128_16_top4_x1(const bf16* x, const int* ids, const float* gates, const u8* gate, const u8* up, const u8* down,
             const ddtree::Rows* rows, bf16* act, float* part, void* sync, bf16* y, const u8* shared_gate, const u8* shared_up,
             const u8* shared_down, bf16* shared_act, float* shared_sums) {
    ddtree::pdl_launch_dependents();
    const ddtree::ExpertArgs args{x, ids, gates, gate, up, down, shared_gate, shared_up, shared_down, rows, act, part,
                                  shared_act, shared_sums, static_cast<ddtree::ExpertSync*>(sync), y};
    DYN_SMEM(smem);
    ddtree::ExpertDecode<Config>(args, smem).run();
}
