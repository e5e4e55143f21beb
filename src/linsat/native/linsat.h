/* linsat's native core: a statement in; answers, verdicts and gradients out.
 *
 *     x(y) = argmax <y, x> - Omega(x)    subject to    rows  a x <= b,  a x >= b  or  a x = b,    lower <= x <= upper
 *
 * A `Layout` is made once per sparsity pattern (linsat_layout). Then, for any numbers, `linsat_solve` gives x, the
 * multipliers of the rows as written and how each instance ended, and `linsat_pull_back` the gradient of a loss to every
 * number of the statement. Nothing is kept between calls, nothing aborts; both return 0, -1 without memory, or -2 for an
 * objective that is not solved here.
 */
#ifndef LINSAT_H
#define LINSAT_H

#include <stdint.h>

enum { LINSAT_ABI = 10 };
enum { CONVERGED, STEP_LIMIT, STALLED, INFEASIBLE, NOT_FINITE, TIME_LIMIT, UNBOUNDED }; /* how an instance ended */
enum { NEWTON, INTERIOR_POINT };                                 /* who solved it */
enum { RAN_OFF = INTERIOR_POINT + 1 };                           /* nobody, see `solver` */
enum { ENTROPY, EUCLIDEAN, KL, TSALLIS, QUADRATIC, METRIC };     /* Omega; METRIC: (x - y)'P(x - y) / 2 in place of all */
enum { LESS = -1, EQUAL = 0, GREATER = 1 };                      /* the sense of a row */
enum { PLAIN, AVX2, AVX512 };                                    /* instructions */

typedef struct Layout Layout;

/* Number j of instance n is at n * step + j * stride; step is 0 where all instances share them. */
typedef struct {
    const void *at;
    int64_t step, stride, single; /* single: float, else double */
} Numbers;

typedef struct {
    int64_t objective, entropic_slack; /* entropic_slack: inequalities have the paper's slack */
    Numbers values, side, lower, upper; /* coefficients in the order of the pattern; b; the box */
    Numbers price;                      /* of breaking a row by one unit, infinite where it must hold; NULL: all must */
    Numbers parameters[2]; /* of Omega: tau; weights; tau, prior; tau, alpha; P (l, l). 1 or one per variable; NULL: all one */
    double gamma_shift;                 /* added to d in the paper's multiplier of covering rows */
} Statement;

typedef struct {
    int64_t count, single, max_steps, threads; /* single: scores and x (their gradients) are float, else double */
    double tol;
    const void *scores;     /* (count, variables); -inf holds a variable at its lower bound */
    const double *start;    /* (count, rows) duals of an earlier solve, or NULL */
    const uint8_t *known;   /* what is decided for all instances, as in `decided`; NULL: presolve decides for each */
    void *x;                /* (count, variables) */
    double *duals;          /* (count, rows); of rows that seem to contradict each other, weights that may refute them */
    uint8_t *decided;       /* (count, 2 variables + 2 rows) free, at the upper bound; active, tight; or NULL */
    int64_t *status, *steps, *solver; /* (count) each; a solver of RAN_OFF: STALLED, because rows hold only relative to an x so
                                       * large that rounding hides whether they can; if they can, x is the optimum */
    int64_t *unsolved;      /* one number: how many have not converged */
} Solve;

/* Where a gradient goes: (count, .) with a step, their sum over all instances where step is 0; NULL: not wanted. */
typedef struct {
    double *at;
    int64_t step;
} Gradient;

typedef struct {
    int64_t count, single, threads;
    const void *scores, *grad_x;           /* grad_x may be NULL */
    const double *duals, *grad_duals;      /* grad_duals may be NULL */
    const int64_t *status;                 /* an instance that has not converged has no gradient */
    const uint8_t *decided;                /* as `linsat_solve` wrote it, or what was known */
    int64_t decided_step;                  /* 0: shared */
    void *grad_scores;                     /* (count, variables), or NULL */
    Gradient values, side, lower, upper, price, parameters[2];
} Pull;

/* The layout of the pattern of a matrix whose coefficient e is in row[e] and column col[e]; rows have their senses. Returns 0,
 * -1 without memory, or why there is none (arrange.h), with what there is too much of and its limit in refused[0, 1]. */
int linsat_layout(int64_t rows, int64_t variables, int64_t entries, const int64_t *row, const int64_t *col,
                  const int8_t *senses, Layout **made, int64_t *refused);
void linsat_layout_free(Layout *layout);

int linsat_solve(const Layout *layout, const Statement *statement, const Solve *call);
int linsat_pull_back(const Layout *layout, const Statement *statement, const Pull *call);

/* L D L' of a sparse symmetric matrix, for interior-point steps on large programs. An `Analysis` is what follows from the
 * pattern of the upper triangle by columns (their diagonals included): a fill-reducing order, and where everything goes. Any
 * values in that pattern have a factor of sizes[0] numbers, with sizes[1] of `room` for solves; sizes[2] more are at work
 * while it is made. `pivots` counts the positive, the negative and those dropped because they were zero. Both return 0,
 * -1 without memory, -2 out of time.
 * Solves are for the same values with another diagonal, which the factor need not have: x, a right-hand side, becomes the
 * solution, refined until its weighted residual is the share `target` of what it was, by at most so many further solves; the
 * share that is left is returned. */
typedef struct Analysis Analysis;
int linsat_analyse(int64_t size, const int64_t *start, const int32_t *index, double seconds, Analysis **made, int64_t *sizes);
void linsat_analysis_free(Analysis *analysis);
int linsat_factor(const Analysis *analysis, const double *values, const double *diagonal, const double *weight,
                  double seconds, double *factor, double *room, int64_t *pivots);
double linsat_refine(const Analysis *analysis, const double *factor, double target, int64_t most, double *room, double *x);

void linsat_limit_instructions(int64_t level); /* from now on, of what the processor has; PLAIN is what all have */
const char *linsat_instructions(void);  /* of the variant in use */
void linsat_abi(int64_t *sizes);        /* LINSAT_ABI and the size of each structure above, in order */

#endif
