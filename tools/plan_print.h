/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HISPARSE_PLAN_PRINT_H
#define HISPARSE_PLAN_PRINT_H

#include "emit.h"
#include "plan.h"

/* A table with one row an answer; text leaves out what does not fit a line. -1 without memory. */
emit_table plan_table(enum emit_form form, const char *command, const char *verdict);
int plan_table_add(emit_table *table, const plan_answer *answer);

/* What the text form has beside the table: pools and break-even; with `explain` also the assumptions. */
void plan_print_pools(const plan_question *q, const plan_answer *resident, const plan_answer *sparse);
void plan_print_assumptions(const plan_question *q);

#endif
