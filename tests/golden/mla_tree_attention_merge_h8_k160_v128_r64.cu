#line 1 "mla_tree_attention_merge.cu.jinja"
#include "ddtree/mla_tree_attention.cuh"

struct Config {
    static constexpr int heads = 8;
    static constexpr int latent = 128;
    static constexpr int rope = 32;
    static constexpr int rows = 64;
    static constexpr int group = 1;
    static constexpr int head_tiles = 1;
};

KERNEL(ddtree::kMergeThreads)
mla_tree_attention_merge_h8_k160_v128_r64(const float* sums, const float2* stats, const ddtree::Rows* rows, bf16* y) {
    ddtree::mla_tree_attention_merge<Config>(sums, stats, rows, y);
}
