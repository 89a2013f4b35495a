/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSP_CONFIG_H
#define HSP_CONFIG_H

#include "status.h"

/* Check every knob against its bounds and the knobs against each other. */
int hsp__config_check(const hsp_config *config, hsp__error *error);

#endif
