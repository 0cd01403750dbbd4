// Kernels use no fp16 beyond ddtree/prims.cuh; this header only lets `#include <cuda_fp16.h>` resolve.
#pragma once
