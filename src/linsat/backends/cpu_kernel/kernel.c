/* The fused CPU kernel: Newton's method of linsat/solvers/newton.py, its gradient, and presolve by bounds, one instance
 * after another, in the letters of linsat/compile/problem.py.
 *
 * What linsat/backends/arrays.py does with a batch of tensors this file does with one instance at a time, without
 * allocating anything per instance. Scales, widths of the box and what presolve decided are folded into the
 * coefficients first:
 *
 *     Entropy     c = a w / rho,   u = w y + C' mu,   p = sigmoid(u / T),      x = lower + w p,   d = p (1 - p) / T
 *     Euclidean   c = a / rho,     u = q y + C' mu,   p = x = clip(u / q),                        d = 1 / q inside
 *
 *     r = C p + s z - b,     H = C diag(d) C' + diag(s z (1 - z) / T)
 *
 * One group of rows with disjoint supports comes first. Its block of H is diagonal, so a Schur complement leaves a
 * Cholesky factorisation of the other rows only. Coefficients are kept in runs of neighbouring variables whose rows are
 * the same or neighbours too, so that most loops read memory in order.
 *
 * An instance's answer never depends on its batch, to the last bit: everything is copied into aligned work arrays first,
 * sums run in a fixed order, and no loop is vectorised differently for different addresses.
 *
 * Variables are cut into tiles, whose contributions to a sum are added in order: threads may share an instance (team.h),
 * and its bits do not depend on who computed what.
 *
 * What it is called with is in this file; the parts, in order: vectors.h, matrix.h (dense matrices), evaluate.h, hessian.h,
 * dense.h, fold.h, iterate.h, pull_back.h, presolve.h, and arrange.h (layouts).
 *
 * The file includes itself once per instruction set; `linsat_forward` and the others pick one when they are called.
 */
#ifndef LINSAT_VARIANT

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "platform.h"
#include "team.h"
#include "workers.h"

#define INLINE static inline __attribute__((always_inline, unused))
#define ABI_VERSION 6

enum { CONVERGED, STEP_LIMIT, STALLED, INFEASIBLE, NOT_FINITE };
enum { ENTROPY, EUCLIDEAN };
enum { LESS = -1, GREATER = 1 };

/* The constants of linsat/solvers/newton.py and linsat/compile/presolve.py, which explain them. */
typedef struct {
    double loose_residual, cooling, start_temperature, least_damping, first_damping, largest_damping;
    double first_ridge, largest_ridge, refined_ridge, shorten, decrease, rounding, held, largest_stride, gap, fine, sum_rounding;
    double contradiction, vacuous, forced, unnoticed, row_rounding;
    int64_t backtracks, certificate_every, sweeps;
} Constants;

/* A run of coefficients (or of pairs): at, at + 1, ... belong to variables col, col + 1, ... and to one target (step 0)
 * or to neighbouring ones (step 1). The coefficients of pairs are first, first + 1, ... and second, second + 1, ... */
typedef struct {
    int32_t at, count, col, target, step, first, second;
} Run;

/* Everything that follows from the sparsity pattern; row positions are those of the kernel's order. */
typedef struct {
    int64_t rows, variables, entries, pairs, leading, width; /* width: the other rows, rounded up to a multiple of 8 */
    int64_t groups, entry_runs, pair_runs;                   /* no runs: too short to pay, one entry at a time */
    int64_t tiles, separate; /* tiles: ranges of variables; separate: no leading row has variables in two of them */
    int64_t dense;           /* most coefficients are not zero: no pairs, H is a product of matrices */
    const int32_t *order;    /* (rows) the user's row at each position */
    const int32_t *entry, *entry_row, *entry_col; /* (entries) place in the user's order, position, variable; by tile */
    const int32_t *pair_first, *pair_second, *pair_col, *pair_target; /* (pairs) entries of one variable, place in H */
    const Run *runs_of_entries, *runs_of_pairs;
    const int32_t *group_start, *group_rows; /* groups of disjoint rows; none where there are too many */
    const int32_t *tile_start, *tile_entries, *tile_pairs, *tile_entry_runs, *tile_pair_runs; /* (tiles + 1) where each begins */
    double seconds; /* rough time of one evaluation and one factorisation, to decide about threads */
} Layout;

/* One array of numbers: step is the distance between two instances, 0 where they share it. */
typedef struct {
    const void *at;
    int64_t step;
} Numbers;

typedef struct {
    int64_t objective, entropic_slack;
    Numbers values, lower, upper, rhs, slack, scale, dual_lower, dual_upper; /* doubles */
    Numbers parameter;                                                       /* tau, or weights; at is NULL without */
    Numbers free, at_upper, active, tight, infeasible;                       /* bytes */
    Numbers tight_share;
} Problem;

typedef struct {
    int64_t count, max_steps, single; /* single: scores and x (grad_x and grad_y) are float, else double */
    int64_t together;                 /* all threads work on one instance at a time */
    double tol;
    const Constants *constants;
    const void *scores;
    const double *start; /* (count, rows) or NULL */
    void *x;
    double *mu;
    int64_t *codes, *steps, *unsolved; /* unsolved: how many have not converged, counted up */
} Solve;

typedef struct {
    int64_t count, single, together;
    const Constants *constants;
    const void *scores, *grad_x;
    const double *mu, *grad_mu; /* grad_mu may be NULL */
    const int64_t *codes;
    void *grad_y;
    double *q, *grad_parameter; /* (count, 1) of tau or (count, variables) of the weights; may be NULL */
} Pull;

typedef struct {
    int64_t count;
    const Constants *constants;
    const int8_t *senses;
    uint8_t *free, *at_upper, *active, *infeasible;
} Presolve;

INLINE const double *doubles(Numbers numbers, int64_t n) { return (const double *)numbers.at + n * numbers.step; }
INLINE const uint8_t *bytes(Numbers numbers, int64_t n) { return (const uint8_t *)numbers.at + n * numbers.step; }
INLINE int64_t rounded_up(int64_t n) { return (n + 7) & ~(int64_t)7; }
INLINE int64_t claim(int64_t *counter) { return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

#if defined(__x86_64__) && !defined(LINSAT_NARROW)
#define LINSAT_X86 1
#define LINSAT_VARIANT(name) name##_avx2
#define LANES 4
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#include "kernel.c"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef LINSAT_VARIANT
#undef LANES
#endif

#define LINSAT_VARIANT(name) name##_plain
#define LANES 2
#include "kernel.c"
#undef LINSAT_VARIANT
#undef LANES

#ifdef LINSAT_X86
static int known = -1; /* whether there is AVX2; two threads that find out at once write the same answer */

static int has_avx2(void) {
    int found = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (found < 0) {
        found = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
        __atomic_store_n(&known, found, __ATOMIC_RELAXED);
    }
    return found;
}
#define DISPATCH(name, ...) return has_avx2() ? name##_avx2(__VA_ARGS__) : name##_plain(__VA_ARGS__)
#else
#define DISPATCH(name, ...) return name##_plain(__VA_ARGS__)
#endif

/* Each works through the instances nobody has claimed yet, or helps with those of the thread that leads; 0, or -1
 * without memory. */
EXPORT int linsat_forward(const Layout *layout, const Problem *problem, const Solve *call, Team *team) {
    DISPATCH(forward, layout, problem, call, team);
}

EXPORT int linsat_backward(const Layout *layout, const Problem *problem, const Pull *call, Team *team) {
    DISPATCH(backward, layout, problem, call, team);
}

EXPORT int linsat_presolve(const Layout *layout, const Problem *problem, const Presolve *call, Team *team) {
    DISPATCH(presolve, layout, problem, call, team);
}

/* Run one of these here and in up to `threads` - 1 workers at once; returns whether one of them failed. */
EXPORT int linsat_run(Task task, const void *layout, const void *problem, const void *call, int64_t threads) {
    return run_shared(task, layout, problem, call, threads);
}

EXPORT int64_t linsat_claim(Team *team) { return claim(&team->counter); }

/* From now on, the variant that every processor can run. */
EXPORT void linsat_use_plain(void) {
#ifdef LINSAT_X86
    __atomic_store_n(&known, 0, __ATOMIC_RELAXED);
#endif
}

/* The instruction set of the variant in use. */
EXPORT const char *linsat_instructions(void) {
#ifdef LINSAT_X86
    return has_avx2() ? "AVX2" : "SSE2";
#elif defined(__x86_64__)
    return "SSE2";
#else
    return "generic vectors";
#endif
}

/* What Python checks before it uses the library: the version and the size of every structure. */
EXPORT void linsat_abi(int64_t *found) {
    const int64_t sizes[] = {ABI_VERSION,   sizeof(Constants), sizeof(Layout),   sizeof(Problem),
                             sizeof(Solve), sizeof(Pull),      sizeof(Presolve), sizeof(Team)};
    memcpy(found, sizes, sizeof(sizes));
}

#include "arrange.h"

#else /* LINSAT_VARIANT: what follows is compiled once per instruction set */

#define V(name) LINSAT_VARIANT(name)
#define vec V(vec)
#define mask V(mask)
#define BLOCK (8 / LANES) /* vectors in a block of eight numbers */

typedef double vec __attribute__((vector_size(8 * LANES), may_alias));
typedef int64_t mask __attribute__((vector_size(8 * LANES), may_alias));

#include "vectors.h"
#include "matrix.h"
#include "evaluate.h"
#include "hessian.h"
#include "dense.h"
#include "fold.h"
#include "iterate.h"
#include "pull_back.h"
#include "presolve.h"

#undef V
#undef vec
#undef mask
#undef BLOCK
#undef TERMS
#undef FOUR
#undef loose
#undef State
#undef Work
#undef Pass
#undef Dense
#undef Panels
#undef Product
#undef Elimination
#undef Range

#endif
