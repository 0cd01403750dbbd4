#line 1 "accept.cu.jinja"
#include "ddtree/accept.cuh"

struct Config {
    static constexpr int depths = 7;
    static constexpr int sequences = 1;
};

KERNEL(ddtree::kScratch)
accept_7_1(const int* ids, const int* chosen, const ddtree::Rows* rows, int* path, int* length, int* emitted) {
    ddtree::accept<Config>(ids, chosen, rows, path, length, emitted);
}
