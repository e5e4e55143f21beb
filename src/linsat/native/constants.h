/* Written by scripts/constants.py from the files of Python named here, which explain them. */
#ifndef LINSAT_CONSTANTS
#define LINSAT_CONSTANTS

#include <stdint.h>

typedef struct {
    /* linsat/arrays/newton.py */
    double loose_residual, cooling, start_temperature, least_damping, first_damping, largest_damping, first_ridge,
        largest_ridge, refined_ridge, shorten, decrease, rounding, held, largest_stride, gap, fine, sum_rounding,
        settled, far;
    int64_t backtracks, certificate_every, sweeps, settling, most_groups, steps_before_interior;
    /* linsat/arrays/presolve.py */
    double contradiction, vacuous, forced, unnoticed, row_rounding;
    /* linsat/arrays/interior/instances.py */
    double interior_gap;
    int64_t polishing_steps;
    /* linsat/arrays/interior/duality_gap.py */
    double at_end;
    /* linsat/arrays/hard_rows.py */
    double row_lost, runs_off;
    /* linsat/verdict/feasibility.py */
    double holds;
    /* linsat/native/batch.py */
    int64_t most_dense, largest_dense;
} Constants;

static const Constants CONSTANTS = {
    .loose_residual = 0.3, .cooling = 0.5, .start_temperature = 0.05, .least_damping = 1e-09, .first_damping = 0.01,
    .largest_damping = 1.0, .first_ridge = 1e-12, .largest_ridge = 0.01, .refined_ridge = 1e-11, .shorten = 0.3,
    .decrease = 0.0001, .rounding = 1e-14, .held = 1e-06, .largest_stride = 1000000.0, .gap = 10.0, .fine = 0.0001,
    .sum_rounding = 2.0, .settled = 1e-10, .far = 12.0, .backtracks = 12, .certificate_every = 8, .sweeps = 3,
    .settling = 40, .most_groups = 4, .steps_before_interior = 60, .contradiction = 1e-09, .vacuous = 1e-12,
    .forced = 1e-10, .unnoticed = 1e-13, .row_rounding = 1e-15, .interior_gap = 5.0, .polishing_steps = 12,
    .at_end = 1e-09, .row_lost = 1.4210854715202004e-14, .runs_off = 1000000.0, .holds = 1e-09, .most_dense = 1000,
    .largest_dense = 250000,
};

#endif
