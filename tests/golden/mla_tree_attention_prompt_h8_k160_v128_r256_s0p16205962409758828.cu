#line 1 "mla_tree_attention_prompt.cu.jinja"
#include "ddtree/mla_tree_attention.cuh"

struct Config {
    static constexpr int heads = 8;
    static constexpr int latent = 128;
    static constexpr int rope = 32;
    static constexpr int rows = 256;
    static constexpr int head_tiles = 1;
    static constexpr int most = 8;
    static constexpr float scale_log2 = 0.23380261601392016f;
};
static_assert(sizeof(ddtree::MlaShared<Config>) == 46448, "the shared memory of tiles/mla_tree_attention.py");

KERNEL(ddtree::kMlaThreads)
mla_tree_attention_prompt_h8_k160_v128_r256_s0p16205962409758828(const bf16* q, const bf16* pages, const ddtree::Rows* rows, bf16* y) {
    ddtree::mla_prompt_attention<Config>(q, pages, rows, y);
}
