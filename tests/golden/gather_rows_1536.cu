#line 1 "gather_rows.cu.jinja"
#include "ddtree/copy.cuh"

struct Config {
    static constexpr int row_bytes = 1536;
    static constexpr int threads = 96;
};

KERNEL(Config::threads)
gather_rows_1536(const unsigned char* x, const ddtree::Rows* rows, unsigned char* y) {
    ddtree::gather_rows<Config>(x, rows, y);
}
