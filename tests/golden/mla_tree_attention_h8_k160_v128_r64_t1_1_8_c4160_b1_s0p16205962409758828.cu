#line 1 "mla_tree_attention.cu.jinja"
#include "ddtree/mla_tree_attention.cuh"

struct Config {
    static constexpr int heads = 8;
    static constexpr int latent = 128;
    static constexpr int rope = 32;
    static constexpr int rows = 64;
    static constexpr int head_tiles = 1;
    static constexpr int own = 1;
    static constexpr int small = 1;
    static constexpr int most = 8;
    static constexpr float scale_log2 = 0.23380261601392016f;
};
static_assert(ddtree::segment_of(4160 - 1) + 1 == 33, "the cuts of tiles/mla_tree_attention.py");
static_assert(sizeof(ddtree::MlaTreeShared<Config>) == 48000, "the shared memory of tiles/mla_tree_attention.py");

KERNEL(ddtree::kMlaThreads, 1)
mla_tree_attention_h8_k160_v128_r64_t1_1_8_c4160_b1_s0p16205962409758828(const bf16* q, const bf16* pages, const bf16* scratch, const ddtree::Rows* rows, bf16* sums, float2* stats) {
    ddtree::mla_tree_attention<Config>(q, pages, scratch, rows, sums, stats);
}
