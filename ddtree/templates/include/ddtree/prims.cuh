// The machine, seen from a kernel. Inline PTX stands in this file's parts and nowhere else; every wrapper has a device
// body and an emulation body (tests run the same kernel text on the CPU, see docs/emulation.md). No CUDA header needed.
//
//   part                 vocabulary
//   prims/types.cuh      DEVICE  PRIM  KERNEL(threads, min_blocks)  u8 u16 u32 u64  bf16 bf16x2  bitcast<T>(x)
//                        to_float(bf16)  to_bf16(float)  round_bf16(float)            conversions, nearest even
//                        make_bf16x2(lo, hi)  to_float2(bf16x2)  pack_bf16(lo, hi)  bf16_lo(u32)  bf16_hi(u32)
//                        add2 sub2 mul2 fma2 (bf16x2, one rounding)  dup_lo(u32)  dup_hi(u32)
//                        ex2(x)  lop3<LUT>(a, b, c)  max_u16x2(a, b)  int4x8_to_bf16(q, out[4])
//   prims/memory.cuh     DYN_SMEM(name)  SHARED_ARRAY(type, name, count)  smem_u32(pointer)
//                        load16 load16_stream load16_coherent load16_relaxed  store16 store16_relaxed   (uint4)
//                        load16_relaxed_sys store16_relaxed_sys (uint4)  store_relaxed (bf16)  store8_relaxed (uint2)
//                        ld_acquire st_release atom_add_acq_rel red_add  ld_acquire_sys st_release_sys  (u32)
//                        fence_gpu()  fence_system()  spin_pause()
//                        policy_evict_first() policy_evict_last()  prefetch_l2(p, bytes)
//   prims/copies.cuh     cp_async16(smem, p, valid)  cp_async_commit()  cp_async_wait<N>()
//                        mbar_init(bar, count)  mbar_fence_init()  mbar_arrive(bar)  mbar_arrive_expect_tx(bar, bytes)
//                        mbar_wait(bar, parity)  bulk_load(smem, p, bytes, bar[, policy])  fence_async_proxy()
//   prims/matrix.cuh     mma_bf16_16816(d, a, b)  ldmatrix_{x1,x2,x4}[_trans](r, smem)
//   prims/barriers.cuh   bar_sync(id, threads)  bar_arrive(id, threads)  grid_sync(words)
//                        pdl_launch_dependents()  pdl_wait()  elect_one()  warp_index()
//                        warp_sum(x)  warp_max(x)  block_sum<THREADS>(x)  block_max<THREADS>(x)
//   prims/loop.cuh       graph_set_conditional(handle, value)  nanoseconds()
//
// Plain CUDA may be used beside it: __syncthreads[_count/_or/_and], __syncwarp, __shfl_*_sync, __ballot_sync,
// __any_sync, __all_sync, __match_any_sync, __reduce_*_sync, integer atomics, float4 and its kin, expf, rsqrtf, __popc
// and its kin.
// Rules for kernels (the emulator relies on them) are in docs/emulation.md.
#pragma once
#include "ddtree/prims/types.cuh"
#include "ddtree/prims/memory.cuh"
#include "ddtree/prims/copies.cuh"
#include "ddtree/prims/matrix.cuh"
#include "ddtree/prims/barriers.cuh"
#include "ddtree/prims/loop.cuh"
