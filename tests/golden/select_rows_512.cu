#line 1 "select_rows.cu.jinja"
#include "ddtree/copy.cuh"

struct Config {
    static constexpr int row_bytes = 512;
    static constexpr int threads = 32;
};

KERNEL(Config::threads)
select_rows_512(const unsigned char* x, const ddtree::Rows* rows, unsigned char* y) {
    ddtree::select_rows<Config>(x, rows, y);
}
