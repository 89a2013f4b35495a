/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion between float32 and the number formats of rows.
 */
#include "kernels.h"

int hsp_pack(int32_t dtype, const float *values, size_t n, void *packed_out) {
    if (dtype < HSP_F32 || dtype > HSP_E4M3 || (n && (!values || !packed_out)))
        return HSP_EINVAL;
    if (n)
        hsp__ops()->pack[dtype](values, n, packed_out);
    return HSP_OK;
}

int hsp_unpack(int32_t dtype, const void *packed, size_t n, float *values_out) {
    if (dtype < HSP_F32 || dtype > HSP_E4M3 || (n && (!packed || !values_out)))
        return HSP_EINVAL;
    if (n)
        hsp__ops()->unpack[dtype](packed, n, values_out);
    return HSP_OK;
}
