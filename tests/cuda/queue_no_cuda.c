/* SPDX-License-Identifier: Apache-2.0 */
#include "queue.h"

const queue_kind *const queue_cuda = NULL;
