/* The native core: the instances of a call, one after another, in the letters of linsat/arrays/problem.py.
 *
 * Each is read as stated, checked and brought to standard form (instance.h), freed of what its rows force (presolve.h),
 * folded into the numbers of the iteration (fold.h), solved by the Newton method of linsat/arrays/newton.py (iterate.h) or,
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
 * What works on vectors is compiled once per instruction set (kernel.h); `linsat_solve` and `linsat_pull_back` pick one when
 * they are called. AVX-512 is for lanes that are instances only: the others gain little from it.
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline, unused))

INLINE int64_t rounded_up(int64_t n) { return (n + 7) & ~(int64_t)7; }

/* How things are compiled. TARGET: for some instructions; FOR_SIZE; BRIEFLY: with the usual optimisations only, where loops are
 * not what takes time; COLD: seldom called, for size and out of its callers; UNROLL: a loop of few turns whose sums are to stay
 * in registers. */
#define PRAGMA(text) _Pragma(#text)
#define COLD __attribute__((cold, noinline))
#define UNROLL PRAGMA(GCC unroll 8)
#if defined(__clang__)
#define TARGET(features) PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define END_TARGET PRAGMA(clang attribute pop)
#define FOR_SIZE PRAGMA(clang attribute push(__attribute__((minsize)), apply_to = function))
#define END_FOR_SIZE PRAGMA(clang attribute pop)
#define BRIEFLY
#define END_BRIEFLY
#else
#define TARGET(features) PRAGMA(GCC push_options) PRAGMA(GCC target(features))
#define END_TARGET PRAGMA(GCC pop_options)
#define FOR_SIZE PRAGMA(GCC push_options) PRAGMA(GCC optimize("Os"))
#define END_FOR_SIZE PRAGMA(GCC pop_options)
#define BRIEFLY PRAGMA(GCC push_options) PRAGMA(GCC optimize("O2"))
#define END_BRIEFLY PRAGMA(GCC pop_options)
/* What takes time is written in vectors already: loops in several versions would only make the library larger. */
#pragma GCC optimize("no-tree-vectorize", "no-split-loops", "no-split-paths", "no-ipa-cp-clone")
#pragma GCC optimize("no-version-loops-for-strides", "no-tree-loop-distribution", "no-gcse-after-reload", "no-inline-functions")
#endif

/* Compiled once, for any processor: what takes one number after another. */
BRIEFLY
#include "constants.h"
#include "linsat.h"
#include "platform.h"
#include "team.h"
#include "workers.h"
#include "ordering.h"
#include "analysis.h"
#include "arrange.h"
#include "objective.h"
#include "instance.h"
#include "presolve.h"
#include "verdict.h"
#include "fold.h"
#include "gradients.h"
#include "columns.h"
#include "quadratic.h"
END_BRIEFLY

/* What lanes.h takes, and the steps and passes before it leaves an instance to iterate.h. Larger sets gain little in large
 * batches, and lose in batches of one, which take the same code so as to give the same bits. */
enum { LANE_ROWS = 12, LANE_VARIABLES = 36, LANE_ENTRIES = 96, LANE_STEPS = 30, LANE_PASSES = 60, LANE_SWEEPS = 1, LANE_TURNS = 4, LANE_HALVINGS = 6 };
#define LANE_HOT 0.5 /* of the largest score: the temperature from which KL's sweeps halve it, LANE_HALVINGS times at most */
enum { MOST_LANES = 8, CLAIMED = 64 }; /* instances that a thread takes at a time */
enum { NEW_COEFFICIENTS = 1, NEW_ROWS = 2, NEW_VARIABLES = 4, NEW_HEAT = 8, NEW_NUMBERS = 15 }; /* what a group's numbers differ in */

/* Compiled once per instruction set: what works on vectors. A function there is named V(name), so that none that is meant for
 * newer processors can be called on others. */

#if defined(__x86_64__) && !defined(LINSAT_NARROW)
#define LINSAT_X86 1
#define V(name) name##_avx2
#define CORE(name) name##_avx2 /* of one instance: also what lanes of AVX-512 leave to it */
#define LANES 4
TARGET("avx2,fma")
#include "kernel.h"
END_TARGET

#if !defined(_WIN32) /* whose compilers do not align vectors of 64 bytes on the stack */
#define LINSAT_WIDE 1
#define V(name) name##_avx512
#define LANES 8
TARGET("avx2,fma,avx512f,avx512dq")
#include "kernel.h"
END_TARGET
#endif
#undef CORE
#endif

#define V(name) name##_plain
#define LANES 2
#ifdef LINSAT_X86 /* for processors of before 2013: small, since it is one of three, and one instance at a time */
#undef INLINE
#undef UNROLL
#undef BRIEFLY
#undef END_BRIEFLY
#define INLINE static __attribute__((unused))
#define UNROLL
#define BRIEFLY
#define END_BRIEFLY
FOR_SIZE
#include "kernel.h"
END_FOR_SIZE
#else
#define CORE(name) name##_plain
#include "kernel.h"
#endif

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

/* The function for one instance after another, and the one for as many as there are lanes. */
#ifdef LINSAT_X86
#define BY_ONES(name, level) ((level) == PLAIN ? (Variant)name##_plain : (Variant)name##_avx2)
#else
#define BY_ONES(name, level) ((void)(level), (Variant)name##_plain)
#endif
#if defined(LINSAT_WIDE)
#define BY_LANES(name, level) ((level) == AVX512 ? (Variant)name##_avx512 : (Variant)name##_avx2)
#elif defined(LINSAT_X86)
#define BY_LANES(name, level) ((Variant)name##_avx2)
#else
#define BY_LANES(name, level) ((Variant)name##_plain)
#endif

/* Whether sets of this pattern are small enough to be worked on in lanes, and there are any. */
static int fits_lanes(const Layout *a, int level) {
#ifdef LINSAT_X86
    if (level == PLAIN) return 0;
#endif
    (void)level;
    return !a->dense && a->rows <= LANE_ROWS && a->variables <= LANE_VARIABLES && a->entries <= LANE_ENTRIES;
}

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
    const int tiny = !full && fits_lanes(layout, level) && call->max_steps >= LANE_STEPS;
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
                           : fits_lanes(layout, level) ? BY_LANES(backward_by_lanes, level)
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

FOR_SIZE
#include "xla.h"
END_FOR_SIZE
