/* SPDX-License-Identifier: Apache-2.0 */
#include "toy.h"

const toy_device *const toy_cuda_device = NULL;
