#line 1 "embed.cu.jinja"
#include "ddtree/copy.cuh"

struct Config {
    static constexpr int row_bytes = 512;
    static constexpr int threads = 32;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
};

KERNEL(Config::threads)
embed_512(const int* ids, const unsigned char* table, const ddtree::Rows* rows, unsigned char* y) {
    ddtree::embed<Config>(ids, table, rows, y);
}
