/* SPDX-License-Identifier: Apache-2.0 */
/* Marks at the begin and end of the calls of a step, for tracers: USDT probes hisparse:swap_in_begin(cache, layer) and
 * hisparse:swap_in_end(cache, status) in builds with HISPARSE_USDT, NVTX ranges "hsp_swap_in" in builds with
 * HISPARSE_NVTX, otherwise nothing. A range is the call on the host, not the kernels it queued. */
#ifndef HSP_PROBE_H
#define HSP_PROBE_H

#ifdef HISPARSE_USDT
#include <sys/sdt.h>
#define HSP__USDT(probe, cache, number) DTRACE_PROBE2(hisparse, probe, cache, number)
#else
#define HSP__USDT(probe, cache, number) ((void)0)
#endif

#ifdef HISPARSE_NVTX
#include <nvtx3/nvToolsExt.h>
#define HSP__NVTX_PUSH(name) nvtxRangePushA(name)
#define HSP__NVTX_POP()      nvtxRangePop()
#else
#define HSP__NVTX_PUSH(name) ((void)0)
#define HSP__NVTX_POP()      ((void)0)
#endif

/* Around the one statement that does the work: no return between the two. step_begin has its batch for the layer. */
#define HSP__BEGIN(call, cache, layer)                                                                                 \
    do {                                                                                                               \
        HSP__NVTX_PUSH("hsp_" #call);                                                                                  \
        HSP__USDT(call##_begin, cache, layer);                                                                         \
    } while (0)
#define HSP__END(call, cache, status)                                                                                  \
    do {                                                                                                               \
        HSP__USDT(call##_end, cache, status);                                                                          \
        HSP__NVTX_POP();                                                                                               \
    } while (0)

#endif
