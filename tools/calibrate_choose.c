/* SPDX-License-Identifier: Apache-2.0 */
#include "calibrate.h"

#include <math.h>

const int calibrate_blocks[CALIBRATE_BLOCKS] = {1, 2, 4, 8, 16, 32, 66};
const int calibrate_pieces[CALIBRATE_PIECES] = {1, 2, 4, 8};
const int calibrate_requests[CALIBRATE_REQUESTS] = {1, 2, 4, 8};
const int calibrate_aligns[CALIBRATE_STRIDES] = {16, 64, 128};

/* Less than this is noise, and not worth blocks that others could use. */
#define WORTH         0.03
#define MOST_FETCHING 64 /* bound of the knob fetch_blocks */

/* Of calibrate_pieces: those that the kernels of the library have, 2 and 4. */
enum { FIRST_KEPT = 1, N_KEPT = 2 };

static double largest(const double *number, int n) {
    double most = number[0];
    for (int i = 1; i < n; i++)
        most = fmax(most, number[i]);
    return most;
}

/* The first of `rate` that is near the largest. */
static int first_near_best(const double *rate, int n) {
    int i = 0;
    while (i + 1 < n && rate[i] < (1 - WORTH) * largest(rate, n))
        i++;
    return i;
}

static int choose_request(const double *us) {
    double rate[CALIBRATE_REQUESTS];
    for (int i = 0; i < CALIBRATE_REQUESTS; i++)
        rate[i] = 1 / us[i];
    return calibrate_requests[first_near_best(rate, CALIBRATE_REQUESTS)];
}

/* Padding costs memory for ever, so each step of it must pay by itself. */
static int choose_align(const double *rate) {
    int best = 0;
    for (int i = 1; i < CALIBRATE_STRIDES; i++)
        if (rate[i] >= (1 + WORTH) * rate[best])
            best = i;
    return calibrate_aligns[best];
}

void calibrate_choose(const calibrate_results *results, calibrate_choice *choice_out) {
    double rate[CALIBRATE_BLOCKS];
    for (int i = 0; i < CALIBRATE_BLOCKS; i++)
        rate[i] = largest(&results->grid_gb_s[i][FIRST_KEPT], N_KEPT);
    int blocks = first_near_best(rate, CALIBRATE_BLOCKS);
    int pieces = FIRST_KEPT + first_near_best(&results->grid_gb_s[blocks][FIRST_KEPT], N_KEPT);
    *choice_out = (calibrate_choice){.host_row_align = choose_align(results->align_gb_s),
                                     .request_blocks = choose_request(results->request_us),
                                     .fetch_blocks = calibrate_blocks[blocks] < MOST_FETCHING ? calibrate_blocks[blocks]
                                                                                              : MOST_FETCHING,
                                     .pieces_in_flight = calibrate_pieces[pieces]};
}

/* While a step is smaller than a granule, doubling it doubles the granules that are touched. Very small steps touch so
 * few that noise hides this. */
double calibrate_find_granule(const double *step, const double *extra_us, int n) {
    for (int i = 0; i + 1 < n; i++)
        if (extra_us[i] > 0.25 * largest(extra_us, n) && extra_us[i + 1] < 1.4 * extra_us[i])
            return step[i];
    return NAN;
}

double calibrate_find_reach(const double *span, const double *rate, int n) {
    double reach = NAN;
    for (int i = 0; i < n && rate[i] >= 0.8 * largest(rate, n); i++)
        reach = span[i];
    return reach;
}
