"""Small kernels for the compile tests."""

from ddtree.runtime.compiler import KernelSource


def scale(factor: int, *, name: str = "", dynamic_smem: int = 0) -> KernelSource:
    """y[i] *= factor: compiles in some 50 ms; each factor is another kernel."""
    text = f'extern "C" __global__ void scale_{factor}(float* y) {{ y[threadIdx.x] *= {factor}.0f; }}\n'
    return KernelSource(name or f"scale_{factor}", "scale", text, dynamic_smem)


BF16 = KernelSource(
    "bf16_scale",
    "scale",
    """#include <cuda_bf16.h>
extern "C" __global__ void bf16_scale(__nv_bfloat16* y) {
  y[threadIdx.x] = __float2bfloat16(__bfloat162float(y[threadIdx.x]) * 3.0f);
}
""",
    0,
)

# 96 values that live across a loop in 1,024 threads, which have 64 registers each.
SPILLING = KernelSource(
    "spilling",
    "scale",
    """extern "C" __global__ void __launch_bounds__(1024, 1) spilling(float* y, int n) {
  float a[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) a[i] = y[threadIdx.x + 1024 * i];
  for (int j = 0; j < n; ++j)
#pragma unroll
    for (int i = 0; i < 96; ++i) a[i] = a[i] * a[(i + 7) % 96] + y[j];
#pragma unroll
  for (int i = 0; i < 96; ++i) y[threadIdx.x + 1024 * i] = a[i];
}
""",
    0,
)


def bulk_copy(space: str) -> KernelSource:
    """A bulk copy to shared::cta or shared::cluster; the second is a driver call on SM120."""
    text = """extern "C" __global__ void bulk_SPACE(const void* global) {
  extern __shared__ __align__(128) unsigned char tile[];
  __shared__ unsigned long long barrier;
  unsigned to = (unsigned)__cvta_generic_to_shared(tile), bar = (unsigned)__cvta_generic_to_shared(&barrier);
  asm volatile("cp.async.bulk.shared::SPACE.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];"
               :: "r"(to), "l"(global), "r"(bar) : "memory");
}
""".replace("SPACE", space)
    return KernelSource(f"bulk_{space}", "copy", text, 1024)


MMA = KernelSource(
    "mma",
    "linear",
    """extern "C" __global__ void mma(float* d, const unsigned* a, const unsigned* b) {
  float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  d[threadIdx.x] = c[0] + c[1] + c[2] + c[3];
}
""",
    0,
)
