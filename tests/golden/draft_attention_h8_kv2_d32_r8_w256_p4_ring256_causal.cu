#line 1 "draft_attention.cu.jinja"
#include "ddtree/draft_attention.cuh"

struct Config {
    static constexpr int heads = 8;
    static constexpr int kv_heads = 2;
    static constexpr int dim = 32;
    static constexpr int rows = 8;
    static constexpr int window = 256;
    static constexpr int ring = 256;
    static constexpr int parts = 4;
    static constexpr int stages = 3;
    static constexpr bool causal = true;
    static constexpr float scale_log2 = 0.25503486164919736f;
};
static_assert(sizeof(ddtree::DraftShared<Config>) == 15848, "the shared memory of tiles/draft_attention.py");

KERNEL(ddtree::kDraftThreads, 1)
draft_attention_h8_kv2_d32_r8_w256_p4_ring256_causal(const bf16* q, const bf16* k, const bf16* v, const bf16* keys, const bf16* values, const ddtree::Rows* rows,
    float* sums, float2* stats) {
    ddtree::draft_attention<Config>(q, k, v, keys, values, rows, sums, stats);
}
