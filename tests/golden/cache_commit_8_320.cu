#line 1 "cache_commit.cu.jinja"
#include "ddtree/cache.cuh"

struct Config {
    static constexpr int row_bytes = 320;
    static constexpr int ring = 0;
    static constexpr int depth = 8;
    static constexpr int threads = 32;
};

KERNEL(Config::threads)
cache_commit_8_320(const int* path, const int* length, const ddtree::Rows* rows, const unsigned char* scratch, unsigned char* pages) {
    ddtree::cache_commit<Config>(path, length, rows, scratch, pages);
}
