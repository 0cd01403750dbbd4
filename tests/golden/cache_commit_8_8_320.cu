#line 1 "cache_commit.cu.jinja"
#include "ddtree/cache.cuh"

struct Config {
    static constexpr int row_bytes = 320;
    static constexpr int ring = 0;
    static constexpr int depth = 8;
    static constexpr int threads = 32;
};

KERNEL(Config::threads)
cache_commit_8_8_320(const int* path, const int* length, const ddtree::Rows* rows,
             const ddtree::u8* scratch0, const ddtree::u8* scratch1, const ddtree::u8* scratch2, const ddtree::u8* scratch3, const ddtree::u8* scratch4, const ddtree::u8* scratch5, const ddtree::u8* scratch6, const ddtree::u8* scratch7,
             ddtree::u8* pages0, ddtree::u8* pages1, ddtree::u8* pages2, ddtree::u8* pages3, ddtree::u8* pages4, ddtree::u8* pages5, ddtree::u8* pages6, ddtree::u8* pages7) {
    const auto* from = ddtree::nth(blockIdx.z, scratch0, scratch1, scratch2, scratch3, scratch4, scratch5, scratch6, scratch7);
    auto* to = ddtree::nth(blockIdx.z, pages0, pages1, pages2, pages3, pages4, pages5, pages6, pages7);
    ddtree::cache_commit<Config>(path, length, rows, from, to);
}
