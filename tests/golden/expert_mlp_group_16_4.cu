#line 1 "expert_mlp_group.cu.jinja"
#include "ddtree/expert_mlp.cuh"

struct Config {
    static constexpr int experts = 16;
    static constexpr int top_k = 4;
    static constexpr int threads = 512;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
};

KERNEL(Config::threads)
expert_mlp_group_16_4(const int* ids, const ddtree::Rows* rows, ddtree::RowTile* tiles, int* pairs) {
    ddtree::expert_group<Config>(ids, rows, tiles, pairs);
}
