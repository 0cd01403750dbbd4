#line 1 "swiglu.cu.jinja"
#include "ddtree/elementwise.cuh"

struct Config {
    static constexpr int width = 768;
    static constexpr int threads = 256;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
};

KERNEL(Config::threads)
swiglu_768(const bf16* gate, const bf16* up, const ddtree::Rows* rows, bf16* y) {
    ddtree::swiglu<Config>(gate, up, rows, y);
}
