#line 1 "build_tree.cu.jinja"
#include "ddtree/build_tree.cuh"

struct Config {
    static constexpr int depths = 7;
    static constexpr int k = 15;
    static constexpr int nodes = 16;
    static constexpr int smem = 1700;
    static constexpr ddtree::Domain domain = ddtree::Domain::wanted;
};

KERNEL(32)
build_tree_7_15_16_wanted(const int* anchor, const int* budget, const float* log_prob, const int* token, const ddtree::Rows* rows,
    int* node_token, int* node_parent, int* node_depth, double* node_score, int* count) {
    ddtree::build_tree<Config>(anchor, budget, log_prob, token, rows, node_token, node_parent, node_depth, node_score, count);
}
