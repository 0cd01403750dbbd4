#line 1 "mla_norms.cu.jinja"
#include "ddtree/mla_norms.cuh"

struct Config {
    struct Norm {
        static constexpr int width = 128;
        static constexpr int heads = 1;
        static constexpr float eps = 1e-06f;
        static constexpr int lanes = 16;
        static constexpr int threads = 64;
        static constexpr ddtree::Domain domain = ddtree::Domain::rows;
    };
    static constexpr int latent = 128;
    static constexpr int rope = 32;
    static constexpr ddtree::Layout layout = ddtree::Layout::interleaved;
    static constexpr float gain = 1.0f;
    static constexpr float eps = 1e-06f;
    static constexpr int lanes = 32;
    static constexpr int threads = 64;
    static constexpr int ring = 0;
};

// Radians per position of each pair (Rope.inverse_frequencies), rounded to fp32.
__device__ const float frequency[] = {
    1.0f,
    0.508527398109436f,
    0.2586001455783844f,
    0.11506710201501846f,
    0.05015552416443825f,
    0.02125454880297184f,
    0.008646816946566105f,
    0.0032978574745357037f,
    0.0011180340079590678f,
    0.0005685509531758726f,
    0.00028912373818457127f,
    0.00014702735643368214f,
    7.47674421290867e-05f,
    3.80212914024014e-05f,
    1.933486964844633e-05f,
    9.832311661739368e-06f,
};

KERNEL(Config::threads)
mla_norms_pages_128_32_1em06_590f5b73_128_1em06(const bf16* x, const bf16* weight, const bf16* latent, const bf16* latent_weight, const ddtree::Rows* rows, bf16* y,
             bf16* cache) {
    ddtree::mla_norms<Config, false>(x, weight, latent, latent_weight, rows, y, cache, frequency);
}
