#line 1 "cache_write.cu.jinja"
#include "ddtree/cache.cuh"

struct Config {
    static constexpr int row_bytes = 128;
    static constexpr int ring = 0;
    static constexpr int threads = 32;
};

KERNEL(Config::threads)
cache_write_pages_128(const unsigned char* x, const ddtree::Rows* rows, unsigned char* cache) {
    ddtree::cache_write_pages<Config>(x, rows, cache);
}
