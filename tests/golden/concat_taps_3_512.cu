#line 1 "concat_taps.cu.jinja"
#include "ddtree/copy.cuh"

struct Config {
    static constexpr int row_bytes = 512;
    static constexpr int taps = 3;
    static constexpr int threads = 32;
    static constexpr ddtree::Domain domain = ddtree::Domain::rows;
};

KERNEL(Config::threads)
concat_taps_3_512(const unsigned char* tap0, const unsigned char* tap1, const unsigned char* tap2, const ddtree::Rows* rows, unsigned char* y) {
    const unsigned char* const taps[] = {tap0, tap1, tap2};
    ddtree::concat_taps<Config>(taps, rows, y);
}
