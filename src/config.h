/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSP_CONFIG_H
#define HSP_CONFIG_H

#include "status.h"

/* Check every knob against its bounds and the knobs against each other. */
int hsp__config_check(const hsp_config *config, hsp__error *error);

/* Of that, what concerns single knobs which depend on the machine and are set by a profile; their bounds hold. */
int hsp__config_check_machine(const hsp_config *config, hsp__error *error);

/* HSP_OK when hsp_config_init has been called for this config. */
int hsp__config_is_set_up(const hsp_config *config, hsp__error *error);

#endif
