#line 1 "mla_tree_attention_merge.cu.jinja"
#include "ddtree/mla_tree_attention.cuh"

struct Config {
    static constexpr int heads = 8;
    static constexpr int latent = 128;
    static constexpr int rope = 32;
    static constexpr int rows = 64;
    static constexpr int slices = 1;
};
static_assert(4 * ddtree::Merge<Config::latent, Config::slices>::floats == 4608, "the shared memory of tiles/mla_tree_attention.py");

KERNEL(ddtree::kMergeThreads)
mla_tree_attention_merge_h8_k160_v128_r64_s1(const bf16* sums, const float2* stats, const ddtree::Rows* rows, bf16* y) {
    ddtree::mla_tree_attention_merge<Config>(sums, stats, rows, y);
}
