/* The native core: the instances of a call, one after another, in the letters of linsat/compile/problem.py.
 *
 * Each is read as stated, checked and brought to standard form (instance.h), freed of what its rows force (presolve.h),
 * folded into the numbers of the iteration (fold.h), solved by the Newton method of linsat/solvers/newton.py (iterate.h) or,
 * where that does not arrive, by an interior-point method (interior.h, hand_over.h), and judged (verdict.h); solve.h puts it
 * together, pull_back.h has the gradient. Nothing is allocated per instance. Scales, units of the variables and what
 * presolve decided are folded into the coefficients: with u, p and d as objective.h has them,
 *
 *     x = base + unit p,     c = a unit / rho,     r = C p + s z - b,     H = C diag(d) C' + diag(s z (1 - z) / T)
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
 * The file includes itself once per instruction set; `linsat_solve` and `linsat_pull_back` pick one when they are called.
 * AVX-512 is for lanes that are instances only: the others gain little from it.
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

#include "constants.h"
#include "linsat.h"
#include "platform.h"
#include "team.h"
#include "workers.h"
#include "ordering.h"
#include "analysis.h"

#define INLINE static inline __attribute__((always_inline, unused))

/* A run of coefficients (or of pairs): at, at + 1, ... belong to variables col, col + 1, ... and to one target (step 0)
 * or to neighbouring ones (step 1). The coefficients of pairs are first, first + 1, ... and second, second + 1, ... */
typedef struct {
    int32_t at, count, col, target, step, first, second;
} Run;

/* Everything that follows from the sparsity pattern; row positions are those of the kernel's order. */
struct Layout {
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
    const int8_t *senses; /* (rows) in the user's order */
    double seconds;       /* rough time of one evaluation and one factorisation, to decide about threads */
};

/* What lanes.h takes, and the steps and passes before it leaves an instance to iterate.h. Larger sets gain little in large
 * batches, and lose in batches of one, which take the same code so as to give the same bits. */
enum { LANE_ROWS = 12, LANE_VARIABLES = 36, LANE_ENTRIES = 96, LANE_STEPS = 30, LANE_PASSES = 60, LANE_SWEEPS = 1, LANE_TURNS = 4, LANE_HALVINGS = 6 };
#define LANE_HOT 0.5 /* of the largest score: the temperature from which KL's sweeps halve it, LANE_HALVINGS times at most */
enum { MOST_LANES = 8, CLAIMED = 64 }; /* instances that a thread takes at a time */
enum { NEW_COEFFICIENTS = 1, NEW_ROWS = 2, NEW_VARIABLES = 4, NEW_HEAT = 8, NEW_NUMBERS = 15 }; /* what a group's numbers differ in */
enum { LARGEST_INTERIOR = 250000, MOST_INTERIOR = 1000 }; /* rows times variables, and their sum */

/* Whether a set is small enough for the dense factors of the interior-point method. */
static int interior_takes(const Layout *a) {
    return a->rows + a->variables <= MOST_INTERIOR && a->rows * a->variables <= LARGEST_INTERIOR;
}

enum { PARAMETERS = 2, GRADIENTS = 5 + PARAMETERS }; /* of an objective; that a call may ask for, but for that of the scores */
static int takes_objective(const Layout *a, const Statement *s);
static int is_full(const Statement *s);
static int64_t size_of_parameter(const Layout *a, const Statement *s, int p);

/* The gradients that are asked for, but for that of the scores, and their sizes. */
typedef struct {
    int64_t sizes[GRADIENTS], any;
    Gradient of[GRADIENTS];
    int written; /* one that is written, not added to, where each instance has its own: that of a full P */
} Wanted;

static Wanted list_gradients(const Layout *a, const Statement *s, const Pull *call) {
    const Gradient of[] = {call->values, call->side, call->lower, call->upper, call->price, call->parameters[0], call->parameters[1]};
    const int64_t first = size_of_parameter(a, s, 0), second = size_of_parameter(a, s, 1);
    Wanted wanted = {{a->entries, a->rows, a->variables, a->variables, a->rows, first, second}, 0, {{NULL, 0}}, is_full(s) ? 5 : -1};
    for (int g = 0; g < GRADIENTS; g++) {
        if (wanted.sizes[g]) wanted.of[g] = of[g];
        wanted.any |= wanted.of[g].at != NULL;
    }
    return wanted;
}

/* Whether sets of this pattern are small enough to be worked on in lanes. */
static int fits_lanes(const Layout *a) {
    return !a->dense && a->rows <= LANE_ROWS && a->variables <= LANE_VARIABLES && a->entries <= LANE_ENTRIES;
}

INLINE int64_t rounded_up(int64_t n) { return (n + 7) & ~(int64_t)7; }

#if defined(__x86_64__) && !defined(LINSAT_NARROW)
#define LINSAT_X86 1
#define LINSAT_VARIANT(name) name##_avx2
#define CORE(name) name##_avx2
#define LANES 4
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#include "core.c"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef LINSAT_VARIANT
#undef LANES

#if !defined(_WIN32) /* whose compilers do not align vectors of 64 bytes on the stack */
#define LINSAT_WIDE 1
#define LINSAT_VARIANT(name) name##_avx512
#define LANES 8
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512dq"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512dq")
#endif
#include "core.c"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef LINSAT_VARIANT
#undef LANES
#endif
#undef CORE
#endif

#if defined(LINSAT_X86) && !defined(__clang__) /* for processors of before 2013: small, where it is one of three */
#pragma GCC push_options
#pragma GCC optimize("Os")
#endif
#define LINSAT_VARIANT(name) name##_plain
#define CORE(name) name##_plain
#define LANES 2
#include "core.c"
#if defined(LINSAT_X86) && !defined(__clang__)
#pragma GCC pop_options
#endif
#undef LINSAT_VARIANT
#undef CORE
#undef LANES

typedef void (*Variant)(void); /* the functions of each have their own types */
static int known = -1; /* the instructions in use; two threads that find out at once write the same answer */

static int instructions_in_use(void) {
    int level = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (level >= 0) return level;
    level = PLAIN;
#ifdef LINSAT_X86
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) level = AVX2;
#endif
#ifdef LINSAT_WIDE
    if (level == AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) level = AVX512;
#endif
    __atomic_store_n(&known, level, __ATOMIC_RELAXED);
    return level;
}

/* The function for one instance after another, or the one for as many as there are lanes. */
#define BY_ONES(name, level) ((level) ? (Variant)name##_avx2 : (Variant)name##_plain)
#ifdef LINSAT_WIDE
#define BY_LANES(name, level) ((level) == AVX512 ? (Variant)name##_avx512 : BY_ONES(name, level))
#else
#define BY_LANES(name, level) BY_ONES(name, level)
#endif
#ifndef LINSAT_X86
#undef BY_ONES
#define BY_ONES(name, level) ((void)(level), (Variant)name##_plain)
#endif

static const double WORTH_WAKING = 6e-5;  /* seconds of work that are worth waking a thread for */
static const double WORTH_SHARING = 5e-4; /* of an evaluation and a factorisation that threads share, where there are few instances */
enum { ENOUGH_INSTANCES = 8, USUAL_STEPS = 10, MOST_BLOCKS = 64 }; /* a solve takes about so many steps */

/* How many threads pay off for that many passes over the instances. */
static int64_t threads_for(const Layout *layout, const Team *team, int64_t count, int64_t threads, int64_t passes) {
    if (passes * count * layout->seconds <= WORTH_WAKING) return 1;
    return team->together || threads < count ? threads : count;
}

static int works_together(const Layout *layout, int64_t count) {
    return layout->seconds > WORTH_SHARING && count < ENOUGH_INSTANCES;
}

EXPORT int linsat_solve(const Layout *layout, const Statement *statement, const Solve *call) {
    if (!takes_objective(layout, statement)) return -2;
    const Team team = {.together = works_together(layout, call->count)};
    const int64_t threads = threads_for(layout, &team, call->count, call->threads, USUAL_STEPS);
    const int level = instructions_in_use(), full = is_full(statement);
    const int tiny = !full && fits_lanes(layout) && call->max_steps >= LANE_STEPS;
    const Variant chosen = full   ? BY_ONES(forward_quadratic, level)
                           : tiny ? BY_LANES(forward_by_lanes, level)
                                  : BY_ONES(forward, level);
    return run_shared((Task)chosen, layout, statement, call, team, threads);
}

EXPORT int linsat_pull_back(const Layout *layout, const Statement *statement, const Pull *call) {
    if (!takes_objective(layout, statement)) return -2;
    const Wanted asked = list_gradients(layout, statement, call);
    const Gradient *wanted = asked.of;
    const int64_t *sizes = asked.sizes;
    Team team = {.together = works_together(layout, call->count), .block = 1, .blocks = call->count};
    for (int g = 0; g < GRADIENTS; g++) team.partial_size += wanted[g].at && !wanted[g].step ? sizes[g] : 0;
    if (team.partial_size) {
        team.block = (call->count + MOST_BLOCKS - 1) / MOST_BLOCKS;
    }
    if (!team.together) team.block = (team.block + MOST_LANES - 1) / MOST_LANES * MOST_LANES; /* whole groups of lanes */
    team.blocks = team.block ? (call->count + team.block - 1) / team.block : 0;
    if (team.partial_size) {
        team.partial = calloc(team.blocks * team.partial_size + 1, sizeof(double));
        if (!team.partial) return -1;
    }
    for (int g = 0; g < GRADIENTS; g++)
        if (wanted[g].at && !wanted[g].step) memset(wanted[g].at, 0, sizes[g] * sizeof(double));
    const int64_t threads = threads_for(layout, &team, team.blocks, call->threads, 2 * team.block);
    const int level = instructions_in_use();
    const Variant chosen = is_full(statement)    ? BY_ONES(backward_quadratic, level)
                           : fits_lanes(layout) ? BY_LANES(backward_by_lanes, level)
                                                : BY_ONES(backward, level);
    const int failed = run_shared((Task)chosen, layout, statement, call, team, threads);
    for (int64_t t = 0, at = 0; t < team.blocks && team.partial_size; t++)
        for (int g = 0; g < GRADIENTS; g++) {
            if (!wanted[g].at || wanted[g].step) continue;
            for (int64_t j = 0; j < sizes[g]; j++) wanted[g].at[j] += team.partial[at + j];
            at += sizes[g];
        }
    free(team.partial);
    return failed;
}

static int64_t moment_in(double seconds) { return seconds < 1e9 ? nanoseconds() + (int64_t)(1e9 * seconds) : INT64_MAX; }

/* Numbers at work while a matrix is factored. */
static int64_t factor_room(const Analysis *a) {
    const int64_t ld = rounded_up(a->front + 3);
    return ld * ld + 2 * ld * PANEL + a->stack + 8;
}

EXPORT int linsat_analyse(int64_t size, const int64_t *start, const int32_t *index, double seconds, Analysis **made,
                          int64_t *sizes) {
    const int code = analyse(size, start, index, moment_in(seconds), made);
    if (code) return code;
    sizes[0] = (*made)->factor;
    sizes[1] = equations_room(*made);
    sizes[2] = factor_room(*made);
    return 0;
}

EXPORT void linsat_analysis_free(Analysis *analysis) { analysis_free(analysis); }

typedef int (*FactorTask)(const Analysis *, const double *, const Fronts *, double *);
typedef double (*RefineTask)(const Analysis *, const double *, const Equations *, double, int64_t);

EXPORT int linsat_factor(const Analysis *a, const double *values, const double *diagonal, const double *weight,
                         double seconds, double *factor, double *room, int64_t *pivots) {
    const int64_t ld = rounded_up(a->front + 3), front = ld * ld, panel = ld * PANEL;
    const Equations to = equations_in(a, room);
    double *numbers = aligned_block(64, factor_room(a) * sizeof(double));
    int32_t *lists = filled(a->size + a->fronts, sizeof(int32_t));
    int code = -1;
    memset(pivots, 0, 3 * sizeof(int64_t));
    for (int64_t e = 0; e < a->entries; e++) to.values[e] = values[a->entry[e]];
    for (int64_t i = 0; i < a->size; i++) {
        to.diagonal[i] = diagonal[a->order[i]];
        to.weight[i] = weight[a->order[i]];
    }
    if (numbers && lists) {
        const Fronts work = {numbers, numbers + front, numbers + front + panel, numbers + front + 2 * panel,
                             lists, lists + a->size, moment_in(seconds), pivots};
        code = ((FactorTask)BY_ONES(factor_fronts, instructions_in_use()))(a, to.values, &work, factor);
    }
    free_block(numbers);
    free(lists);
    return code;
}

EXPORT double linsat_refine(const Analysis *a, const double *factor, double target, int64_t most, double *room, double *x) {
    const Equations w = equations_in(a, room);
    for (int64_t i = 0; i < a->size; i++) w.rhs[i] = x[a->order[i]];
    const double share = ((RefineTask)BY_ONES(refine, instructions_in_use()))(a, factor, &w, target, most);
    for (int64_t i = 0; i < a->size; i++) x[a->order[i]] = w.v[i];
    return share;
}

EXPORT void linsat_limit_instructions(int64_t level) {
    if (level < instructions_in_use()) __atomic_store_n(&known, level < PLAIN ? PLAIN : (int)level, __ATOMIC_RELAXED);
}

EXPORT const char *linsat_instructions(void) {
    const int level = instructions_in_use();
    if (level == AVX512) return "AVX-512";
    if (level == AVX2) return "AVX2";
#if defined(__x86_64__)
    return "SSE2";
#else
    return "generic vectors";
#endif
}

EXPORT void linsat_abi(int64_t *sizes) {
    const int64_t own[] = {LINSAT_ABI, sizeof(Numbers), sizeof(Statement), sizeof(Solve), sizeof(Gradient), sizeof(Pull)};
    memcpy(sizes, own, sizeof(own));
}

#include "arrange.h"
#include "xla.h"

#else /* LINSAT_VARIANT: what follows is compiled once per instruction set */

#define V(name) LINSAT_VARIANT(name)
#define vec V(vec)
#define mask V(mask)
#define BLOCK (8 / LANES) /* vectors in a block of eight numbers */

typedef double vec __attribute__((vector_size(8 * LANES), may_alias));
typedef int64_t mask __attribute__((vector_size(8 * LANES), may_alias));

#include "vectors.h"
#include "objective.h"
#if LANES == 8
#define Instance CORE(Instance)
#define Changes CORE(Changes)
#define Sums CORE(Sums)
#define Work CORE(Work)
#else
#include "matrix.h"
#include "instance.h"
#include "presolve.h"
#include "evaluate.h"
#include "hessian.h"
#include "dense.h"
#include "fold.h"
#include "verdict.h"
#include "start.h"
#include "iterate.h"
#include "fronts.h"
#include "step_system.h"
#include "interior.h"
#include "hand_over.h"
#include "solve.h"
#include "pull_back.h"
#include "quadratic.h"
#endif
#include "lanes.h"
#include "tiny.h"

#undef V
#undef vec
#undef mask
#undef BLOCK
#undef TERMS
#undef EIGHT
#undef loose
#undef State
#undef Work
#undef Pass
#undef Dense
#undef Panels
#undef Product
#undef Elimination
#undef Range
#undef Instance
#undef Own
#undef Heat
#undef Terms
#undef Sums
#undef Ends
#undef Changes
#undef ends_of
#undef System
#undef Point
#undef Interior
#undef Quadratic
#undef Group
#undef LanePoint
#undef WOLFE
#undef LEADING_ROWS

#endif
