#line 1 "draft_attention_merge.cu.jinja"
#include "ddtree/draft_attention.cuh"

struct Config {
    static constexpr int heads = 8;
    static constexpr int kv_heads = 2;
    static constexpr int dim = 32;
    static constexpr int rows = 8;
    static constexpr int window = 0;
    static constexpr int parts = 65;
};
static_assert(4 * ddtree::Merge<Config::dim, 1>::floats == 1024, "the shared memory of tiles/draft_attention.py");

KERNEL(ddtree::kMergeThreads)
draft_attention_merge_h8_kv2_d32_r8_w0_p65(const float* sums, const float2* stats, const ddtree::Rows* rows, bf16* y) {
    ddtree::draft_attention_merge<Config>(sums, stats, rows, y);
}
