// Kernels take bf16 from ddtree/prims.cuh; this header only lets `#include <cuda_bf16.h>` resolve.
#pragma once
