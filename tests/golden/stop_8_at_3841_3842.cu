#line 1 "stop.cu.jinja"
#include "ddtree/stop.cuh"

struct Config {
    static constexpr int width = 8;
    static constexpr int threads = 32;
    using stops = ddtree::Tokens<3841, 3842>;
};

KERNEL(Config::threads)
stop_8_at_3841_3842(const int* emitted, const int* length, const int* remaining, const ddtree::Rows* rows, int* kept, int* done) {
    ddtree::stop<Config>(emitted, length, remaining, rows, kept, done);
}
