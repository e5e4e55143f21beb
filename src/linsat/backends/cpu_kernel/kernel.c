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
 * and its bits do not depend on who computed what. Dense matrices are in matrix.h, index tables in arrange.h.
 *
 * The file includes itself once per instruction set; `linsat_forward` and the others pick one when they are called.
 */
#ifndef LINSAT_VARIANT

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "team.h"

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline, unused))
#define ABI_VERSION 3

enum { CONVERGED, STEP_LIMIT, STALLED, INFEASIBLE, NOT_FINITE };
enum { ENTROPY, EUCLIDEAN };
enum { LESS = -1, GREATER = 1 };

/* The constants of linsat/solvers/newton.py and linsat/compile/presolve.py, which explain them. */
typedef struct {
    double loose_residual, cooling, start_temperature, least_damping, first_damping, largest_damping;
    double first_ridge, largest_ridge, refined_ridge, shorten, decrease, rounding, held, largest_stride, gap, fine;
    double contradiction, vacuous, forced, row_rounding;
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

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
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
static int has_avx2(void) {
    static int known = -1; /* two threads that find out at once write the same answer */
    if (known < 0) known = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return known;
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

EXPORT int64_t linsat_claim(int64_t *counter) { return claim(counter); }

EXPORT const char *linsat_instructions(void) {
#ifdef LINSAT_X86
    return has_avx2() ? "AVX2" : "SSE2";
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

/* ---- vectors; every array is aligned and padded to a multiple of eight ---- */

INLINE vec V(load)(const double *from) { return *(const vec *)from; }
INLINE void V(store)(double *to, vec value) { *(vec *)to = value; }
INLINE vec V(all)(double value) { return value - (vec){0}; }
INLINE vec V(size_of)(vec value) { return (vec)((mask)value & (INT64_MAX - (mask){0})); }
INLINE vec V(minus_size_of)(vec value) { return (vec)((mask)value | (INT64_MIN - (mask){0})); }
#if LANES == 4 /* one instruction each; compilers do not find it */
INLINE vec V(pick)(mask which, vec first, vec second) { return (vec)_mm256_blendv_pd((__m256d)second, (__m256d)first, (__m256d)which); }
INLINE vec V(larger)(vec first, vec second) { return (vec)_mm256_max_pd((__m256d)first, (__m256d)second); }
INLINE vec V(smaller)(vec first, vec second) { return (vec)_mm256_min_pd((__m256d)first, (__m256d)second); }
#else
INLINE vec V(pick)(mask which, vec first, vec second) { return (vec)((which & (mask)first) | (~which & (mask)second)); }
INLINE vec V(larger)(vec first, vec second) { return V(pick)(first > second, first, second); }
INLINE vec V(smaller)(vec first, vec second) { return V(pick)(first < second, first, second); }
#endif

INLINE double V(sum_of)(vec value) {
#if LANES == 4
    return (value[0] + value[2]) + (value[1] + value[3]);
#else
    return value[0] + value[1];
#endif
}

INLINE double V(product_of)(vec value) {
    double found = value[0];
    for (int i = 1; i < LANES; i++) found *= value[i];
    return found;
}

INLINE double V(largest_of)(vec value) {
    double found = value[0];
    for (int i = 1; i < LANES; i++) found = value[i] > found ? value[i] : found;
    return found;
}

/* Constants of exp_of_negative, as vectors in memory: a compiler that knows them makes them anew before every short loop. */
#define FOUR(value) {value, value, value, value}
#define TERMS V(terms)
__attribute__((visibility("hidden"), aligned(32))) double TERMS[16][4] = {
    FOUR(1.0 / 2),     FOUR(1.0 / 6),       FOUR(1.0 / 24),       FOUR(1.0 / 120),       FOUR(1.0 / 720),
    FOUR(1.0 / 5040),  FOUR(1.0 / 40320),   FOUR(1.0 / 362880),   FOUR(1.0 / 3628800),   FOUR(1.0 / 39916800),
    FOUR(1.0 / 479001600), FOUR(-700.0),    FOUR(1.4426950408889634), FOUR(6755399441055744.0),
    FOUR(0.6931471803691238), FOUR(1.9082149292705877e-10),
};

/* exp(x) for x <= 0: full precision down to exp(-700), constant below. */
INLINE vec V(exp_of_negative)(vec x) {
#define TERM(n) V(load)(TERMS[n])
    const vec magic = TERM(13); /* 1.5 * 2^52: adding it rounds to a whole number, kept in the low bits */
    x = V(larger)(x, TERM(11));
    const vec shifted = x * TERM(12) + magic, whole = shifted - magic;
    const vec r = (x - whole * TERM(14)) - whole * TERM(15);
    /* Taylor's polynomial, in short chains of products that the processor works on at once. */
    const vec r2 = r * r, r4 = r2 * r2;
    const vec first = (TERM(0) + r * TERM(1)) + r2 * (TERM(2) + r * TERM(3));
    const vec second = (TERM(4) + r * TERM(5)) + r2 * (TERM(6) + r * TERM(7));
    const vec third = (TERM(8) + r * TERM(9)) + r2 * TERM(10);
    const vec e = 1.0 + (r + r2 * (first + r4 * (second + r4 * third)));
    return e * (vec)(((mask)shifted + 1023) << 52);
#undef TERM
}

/* log(1 + e) for 0 <= e <= 1, as 2 artanh(e / (2 + e)). */
INLINE vec V(log_of_one_and)(vec e) {
    vec s = e / (2.0 + e), q = s * s, total = V(all)(1.0 / 35);
    for (int odd = 33; odd >= 1; odd -= 2) total = total * q + 1.0 / odd;
    return 2.0 * s * total;
}

/* ---- loops over arrays at any address; what is left of a vector is done number by number ---- */

#define loose V(loose)
typedef double loose __attribute__((vector_size(8 * LANES), aligned(8), may_alias));

INLINE vec V(load_at)(const double *from) { return (vec)(*(const loose *)from); }
INLINE void V(store_at)(double *to, vec value) { *(loose *)to = (loose)value; }

/* Sum of a_i b_i; the order depends on the count alone. */
INLINE double V(dot)(const double *a, const double *b, int64_t count) {
    vec total[BLOCK] = {{0}};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (int h = 0; h < BLOCK; h++) total[h] += V(load_at)(a + i + h * LANES) * V(load_at)(b + i + h * LANES);
    for (; i + LANES <= count; i += LANES) total[0] += V(load_at)(a + i) * V(load_at)(b + i);
    double rest = 0.0;
    for (; i < count; i++) rest += a[i] * b[i];
    for (int h = 1; h < BLOCK; h++) total[0] += total[h];
    return rest + V(sum_of)(total[0]);
}

/* to = from + values * factor, where `to` and `from` may be the same array */
INLINE void V(add_product)(double *to, const double *from, const double *values, double factor, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) V(store_at)(to + i, V(load_at)(from + i) + V(load_at)(values + i) * factor);
    for (; i < count; i++) to[i] = from[i] + values[i] * factor;
}

/* to = from + values * factors, likewise */
INLINE void V(add_products)(double *to, const double *from, const double *values, const double *factors, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        V(store_at)(to + i, V(load_at)(from + i) + V(load_at)(values + i) * V(load_at)(factors + i));
    for (; i < count; i++) to[i] = from[i] + values[i] * factors[i];
}

#include "matrix.h"

/* ---- one instance ---- */

#define State V(State)
#define Work V(Work)
#define Pass V(Pass)
#define Dense V(Dense)

/* Everything at some duals. */
typedef struct {
    double *mu, *u, *p, *z, *r;
    double theta, size, error;
} State;

/* H where most coefficients are not zero. */
typedef struct {
    double *C, *scaled;                /* (variables, width) coefficients; room for those of some rows, times d^1/2 */
    int32_t *list, *order;             /* rows (positions in base) of the factored matrix; rows of base, -1: none */
    int64_t count, ld;                 /* of the factored matrix */
    double *base, *base_inverse, *base_size; /* see prepare_constant */
    int64_t first, width;              /* rows of base eliminated, all rows of it */
    int constant, ready;
    double ridge;
} Dense;

/* One instance with its numbers folded, and room to work in. Rows are in the kernel's order. */
typedef struct {
    const Layout *layout;
    const Constants *constants;
    Team *team;                                  /* who shares the work on an instance; NULL: nobody */
    int objective, entropic, has_slack, bounded; /* bounded: some dual has a finite bound */
    int fixed;                                   /* presolve has fixed a variable */
    int paired;                                  /* evaluate_pairs serves */
    int reusable;                                /* H was factored at this temperature, for all rows, nearby */
    int64_t l, k;                                /* rounded up to multiples of eight */
    double tau, reach;
    double *coefficients, *pair_values;            /* c, and products of two of one variable */
    double *linear, *b, *s, *low, *high, *whole;   /* b: right-hand side; whole: what a row can reach, 0: not to be swept */
    double *totals, *taken, *negative;             /* sums of c; what fixed variables take of b; negative coefficients */
    double *lower, *upper, *weights;               /* bounds of x; q, Euclidean only */
    uint8_t *moving, *active;
    State now, next;
    double *d, *direction, *rhs, *scratch, *q, *again;
    double *parts, *sums;                    /* what tiles contribute to sums, one after the other */
    int64_t part;                            /* numbers in a part */
    double *H, *S, *inverse, *rest, *root, *keep, *packed, *panels; /* see factor */
    Dense dense;
} Work;

/* One loop over tiles, or over chunks of leading rows: what it reads and writes. */
typedef struct {
    Work *w;
    State *at;
    const double *from;
    double *to, T, factor;
    int whole; /* u too */
} Pass;

/* The sum of the parts of `count` tiles or chunks, in order. */
static void V(add_up)(const Work *w, int64_t count, double *restrict to, int64_t length) {
    memcpy(to, w->parts, length * sizeof(double));
    for (int64_t t = 1; t < count; t++)
        for (int64_t i = 0; i < length; i += LANES)
            V(store)(to + i, V(load)(to + i) + V(load)(w->parts + t * w->part + i));
}

/* Where tile t adds up sums over variables that end in `to`. */
INLINE double *V(part_of)(const Work *w, int64_t t, double *to) {
    return w->layout->tiles == 1 ? to : w->parts + t * w->part;
}

/* to = from + C' mu within tile t */
static void V(adjust_tile)(const Work *w, int64_t t, const double *restrict mu, const double *from, double *restrict to) {
    const Layout *a = w->layout;
    const double *restrict c = w->coefficients;
    const int64_t start = a->tile_start[t], count = a->tile_start[t + 1] - start;
    if (a->entry_runs && from) {
        int64_t filled = start; /* runs of every variable's first row come first, in order: they need no copy */
        for (int64_t n = a->tile_entry_runs[t]; n < a->tile_entry_runs[t + 1]; n++) {
            const Run run = a->runs_of_entries[n];
            const double *base = run.col >= filled ? from : to;
            if (run.col > filled) memcpy(to + filled, from + filled, (run.col - filled) * sizeof(double));
            if (run.col >= filled) filled = run.col + run.count;
            if (run.step) V(add_products)(to + run.col, base + run.col, c + run.at, mu + run.target, run.count);
            else V(add_product)(to + run.col, base + run.col, c + run.at, mu[run.target], run.count);
        }
        if (filled < start + count) memcpy(to + filled, from + filled, (start + count - filled) * sizeof(double));
        return;
    }
    if (from) memcpy(to + start, from + start, count * sizeof(double));
    else memset(to + start, 0, count * sizeof(double));
    for (int64_t n = a->tile_entry_runs[t]; a->entry_runs && n < a->tile_entry_runs[t + 1]; n++) {
        const Run run = a->runs_of_entries[n];
        if (run.step) V(add_products)(to + run.col, to + run.col, c + run.at, mu + run.target, run.count);
        else V(add_product)(to + run.col, to + run.col, c + run.at, mu[run.target], run.count);
    }
    if (a->entry_runs) return;
    for (int64_t e = a->tile_entries[t]; e < a->tile_entries[t + 1]; e++) to[a->entry_col[e]] += c[e] * mu[a->entry_row[e]];
}

/* What tile t contributes to C p */
static void V(apply_tile)(const Work *w, int64_t t, const double *restrict p, double *restrict to) {
    const Layout *a = w->layout;
    const double *restrict c = w->coefficients;
    memset(to, 0, w->k * sizeof(double));
    if (a->entry_runs) {
        for (int64_t n = a->tile_entry_runs[t]; n < a->tile_entry_runs[t + 1]; n++) {
            const Run run = a->runs_of_entries[n];
            if (run.step) V(add_products)(to + run.target, to + run.target, c + run.at, p + run.col, run.count);
            else to[run.target] += V(dot)(c + run.at, p + run.col, run.count);
        }
        return;
    }
    for (int64_t e = a->tile_entries[t]; e < a->tile_entries[t + 1]; e++) to[a->entry_row[e]] += c[e] * p[a->entry_col[e]];
}

static void V(adjust_part)(void *argument, int64_t t) {
    const Pass *pass = argument;
    V(adjust_tile)(pass->w, t, pass->from, NULL, pass->to);
}

/* to = C' mu */
static void V(pull)(Work *w, const double *mu, double *to) {
    Pass pass = {.w = w, .from = mu, .to = to};
    share(w->team, w->layout->tiles, V(adjust_part), &pass);
}

static void V(apply_part)(void *argument, int64_t t) {
    const Pass *pass = argument;
    V(apply_tile)(pass->w, t, pass->from, V(part_of)(pass->w, t, pass->to));
}

/* to = C p */
static void V(apply)(Work *w, const double *p, double *to) {
    Pass pass = {.w = w, .from = p, .to = to};
    share(w->team, w->layout->tiles, V(apply_part), &pass);
    if (w->layout->tiles > 1) V(add_up)(w, w->layout->tiles, to, w->k);
}

/* p = sigmoid(u / T) from start to stop; the sum of T softplus(u / T), over T and in two parts, into sums, with one
 * logarithm for many factors of 1 + exp(-|u| / T). */
static void V(sigmoids)(const State *at, double T, int64_t start, int64_t stop, double *sums) {
    const double inverse = 1.0 / T;
    double logs = 0.0;
    vec linear[BLOCK] = {{0}};
    for (; start < stop; start += 512) {
        const int64_t end = start + 512 < stop ? start + 512 : stop;
        vec product[BLOCK];
        for (int h = 0; h < BLOCK; h++) product[h] = V(all)(1.0);
        for (int64_t j = start; j < end; j += 8) {
            for (int h = 0; h < BLOCK; h++) {
                const vec t = V(load)(at->u + j + h * LANES) * inverse;
                const vec e = V(exp_of_negative)(V(minus_size_of)(t));
                const vec tail = 1.0 + e, share = 1.0 / tail;
                const mask up = t >= 0.0;
                V(store)(at->p + j + h * LANES, V(pick)(up, share, e * share));
                linear[h] += (vec)(up & (mask)t);
                product[h] *= tail;
            }
        }
        for (int h = 1; h < BLOCK; h++) product[0] *= product[h];
        logs += log(V(product_of)(product[0]));
    }
    for (int h = 1; h < BLOCK; h++) linear[0] += linear[h];
    sums[0] = V(sum_of)(linear[0]);
    sums[1] = logs;
}

/* What one pass over the variables of two runs needs; see evaluate_pairs. */
typedef struct {
    const double *linear, *one, *many, *mu; /* coefficients of the row they share and of a row each, and these rows' duals */
    double *u, *p, *r;
    double dual, inverse; /* of the row they share; 1 / T */
} V(Pair);

/* u (where asked for), p and what LANES variables contribute to sums. */
INLINE void V(evaluate_vector)(const V(Pair) *a, int64_t i, int whole, vec *total, vec *linear, vec *product) {
    const vec one = V(load_at)(a->one + i), many = V(load_at)(a->many + i);
    vec u = V(load_at)(a->u + i);
    if (whole) {
        u = V(load_at)(a->linear + i) + one * a->dual + many * V(load_at)(a->mu + i);
        V(store_at)(a->u + i, u);
    }
    const vec t = u * a->inverse, e = V(exp_of_negative)(V(minus_size_of)(t));
    const vec tail = 1.0 + e, share = 1.0 / tail;
    const mask up = t >= 0.0;
    const vec p = V(pick)(up, share, e * share);
    V(store_at)(a->p + i, p);
    V(store_at)(a->r + i, V(load_at)(a->r + i) + many * p);
    *total += one * p;
    *linear += (vec)(up & (mask)t);
    *product *= tail;
}

/* The same for the last, fewer than LANES, variables of a run: the others have no coefficients and a share of nothing. */
static void V(evaluate_rest)(const V(Pair) *a, int64_t from, int64_t count, int whole, vec *sums) {
    double room[7][LANES] = {{0}};
    const size_t size = count * sizeof(double);
    for (int i = 0; i < LANES; i++) room[0][i] = room[4][i] = -1e200;
    const double *given[] = {a->linear, a->one, a->many, a->mu, a->u, NULL, a->r};
    for (int n = 0; n < 7; n++)
        if (given[n]) memcpy(room[n], given[n] + from, size);
    const V(Pair) b = {room[0], room[1], room[2], room[3], room[4], room[5], room[6], a->dual, a->inverse};
    V(evaluate_vector)(&b, 0, whole, sums, sums + 1, sums + 2);
    memcpy(a->u + from, room[4], size);
    memcpy(a->p + from, room[5], size);
    memcpy(a->r + from, room[6], size);
}

/* adjust_tile (where asked for), sigmoids and apply_tile in one pass, where every variable is in two rows: one that the
 * run shares, and one of neighbouring rows. */
INLINE void V(evaluate_pairs)(const Work *w, int64_t t, State *at, double T, int whole, double *r, double *sums) {
    const Layout *a = w->layout;
    const int64_t start = a->tile_entry_runs[t], half = (a->tile_entry_runs[t + 1] - start) / 2;
    vec linear = {0}, product = V(all)(1.0);
    double logs = 0.0;
    int64_t factors = 0;
    memset(r, 0, w->k * sizeof(double));
    for (int64_t n = start; n < start + half; n++) {
        const Run *one = a->runs_of_entries + n, *many = one + half;
        if (one->step) many = one, one += half;
        const V(Pair) pair = {w->linear + one->col,   w->coefficients + one->at, w->coefficients + many->at,
                              at->mu + many->target,  at->u + one->col,          at->p + one->col,
                              r + many->target,       at->mu[one->target],       1.0 / T};
        vec total = {0};
        const int64_t count = one->count;
        int64_t i = 0;
        while (i + LANES <= count) {
            const int64_t stop = i + 256 < count ? i + 256 : count;
            if (factors > 256) { /* each is at most 2 */
                logs += log(V(product_of)(product));
                product = V(all)(1.0);
                factors = 0;
            }
            factors += stop - i;
            for (; i + LANES <= stop; i += LANES) V(evaluate_vector)(&pair, i, whole, &total, &linear, &product);
        }
        if (i < count) {
            vec added[] = {total, linear, product};
            const V(Pair) copy = pair; /* its address is taken: stores could change it */
            V(evaluate_rest)(&copy, i, count - i, whole, added);
            total = added[0], linear = added[1], product = added[2];
            factors += count - i;
        }
        r[one->target] += V(sum_of)(total);
    }
    sums[0] = V(sum_of)(linear);
    sums[1] = logs + log(V(product_of)(product));
}

/* Whether evaluate_pairs can take every tile: each run of the first half has its like in the second. */
static int V(are_paired)(const Layout *a) {
    int64_t covered = 0;
    for (int64_t t = 0; t < a->tiles && a->entry_runs; t++) {
        const int64_t start = a->tile_entry_runs[t], half = (a->tile_entry_runs[t + 1] - start) / 2;
        if ((a->tile_entry_runs[t + 1] - start) & 1) return 0;
        for (int64_t n = start; n < start + half; n++) {
            const Run first = a->runs_of_entries[n], second = a->runs_of_entries[n + half];
            if (first.col != second.col || first.count != second.count || first.step == second.step) return 0;
            if (first.col != covered) return 0;
            covered += first.count;
        }
    }
    return covered == a->variables && a->entries == 2 * a->variables;
}

/* p = x = clip(u / q) from start to stop; the sums of x (u - q x / 2) and of its size into sums. */
static void V(clips)(const Work *w, State *at, int64_t start, int64_t stop, double *sums) {
    vec theta = {0}, size = {0};
    for (int64_t j = start; j < stop; j += LANES) {
        const vec u = V(load)(at->u + j), low = V(load)(w->lower + j), high = V(load)(w->upper + j);
        const vec q = w->weights ? V(load)(w->weights + j) : V(all)(1.0);
        vec x = u;
        if (w->weights) x = u / q;
        x = V(pick)(x <= low, low, V(pick)(x >= high, high, x));
        const vec term = x * (u - 0.5 * (q * x));
        V(store)(at->p + j, x);
        theta += term;
        size += V(size_of)(term);
    }
    sums[0] = V(sum_of)(theta);
    sums[1] = V(sum_of)(size);
}

/* z and the slacks' part of theta and r. */
static void V(slacks)(const Work *w, State *at, double T) {
    const double inverse = 1.0 / T;
    vec total = {0};
    for (int64_t i = 0; i < w->k; i += LANES) {
        const vec t = V(load)(at->mu + i) * inverse, s = V(load)(w->s + i);
        const vec e = V(exp_of_negative)(V(minus_size_of)(t));
        const vec share = 1.0 / (1.0 + e);
        const mask up = t >= 0.0;
        const vec z = V(pick)(up, share, e * share);
        V(store)(at->z + i, z);
        total += s * ((vec)(up & (mask)t) + V(log_of_one_and)(e));
        V(store)(at->r + i, V(load)(at->r + i) + s * z);
    }
    const double value = T * V(sum_of)(total);
    at->theta += value;
    at->size += value;
}

/* How far a dual is from where a step along -r, clipped, would leave it. */
INLINE vec V(distance)(const Work *w, const double *mu, const double *r, int64_t i) {
    const vec here = V(load)(mu + i), residual = V(load)(r + i);
    if (!w->bounded) return residual;
    const vec low = V(load)(w->low + i), high = V(load)(w->high + i), there = here - residual;
    return V(pick)(there < low, here - low, V(pick)(there > high, here - high, residual));
}

/* u (where asked for), p and what they contribute to theta and r, within one tile. */
static void V(evaluate_part)(void *argument, int64_t t) {
    const Pass *pass = argument;
    Work *w = pass->w;
    State *at = pass->at;
    const int64_t start = w->layout->tile_start[t], stop = w->layout->tile_start[t + 1];
    if (w->paired) {
        double *r = V(part_of)(w, t, at->r);
        if (pass->whole) V(evaluate_pairs)(w, t, at, pass->T, 1, r, w->sums + 2 * t);
        else V(evaluate_pairs)(w, t, at, pass->T, 0, r, w->sums + 2 * t);
        return;
    }
    if (pass->whole) V(adjust_tile)(w, t, at->mu, w->linear, at->u);
    if (w->objective == ENTROPY) V(sigmoids)(at, pass->T, start, stop, w->sums + 2 * t);
    else V(clips)(w, at, start, stop, w->sums + 2 * t);
    V(apply_tile)(w, t, at->p, V(part_of)(w, t, at->r));
}

static void V(evaluate_from)(Work *w, State *at, double T, int whole) {
    const int64_t tiles = w->layout->tiles;
    Pass pass = {.w = w, .at = at, .T = T, .whole = whole};
    share(w->team, tiles, V(evaluate_part), &pass);
    if (tiles > 1) V(add_up)(w, tiles, at->r, w->k);
    double first = 0.0, second = 0.0;
    for (int64_t t = 0; t < tiles; t++) {
        first += w->sums[2 * t];
        second += w->sums[2 * t + 1];
    }
    at->theta = w->objective == ENTROPY ? T * (first + second) : first;
    at->size = w->objective == ENTROPY ? at->theta : second;
    if (w->has_slack) V(slacks)(w, at, T);
    vec dual = {0}, size = {0}, error = {0};
    for (int64_t i = 0; i < w->k; i += LANES) {
        const vec b = V(load)(w->b + i), term = b * V(load)(at->mu + i);
        V(store)(at->r + i, V(load)(at->r + i) - b);
        dual += term;
        size += V(size_of)(term);
        error = V(larger)(V(size_of)(V(distance)(w, at->mu, at->r, i)), error);
    }
    at->theta -= V(sum_of)(dual);
    at->size += V(sum_of)(size);
    at->error = V(largest_of)(error);
}

/* Everything but u, which has not changed. */
static void V(evaluate_at)(Work *w, State *at, double T) { V(evaluate_from)(w, at, T, 0); }

/* Everything at the duals of a state. */
static void V(evaluate)(Work *w, State *at, double T) { V(evaluate_from)(w, at, T, 1); }

INLINE void V(clip)(const Work *w, double *mu) {
    if (!w->bounded) return;
    for (int64_t i = 0; i < w->k; i += LANES) {
        const vec value = V(larger)(V(load)(mu + i), V(load)(w->low + i));
        V(store)(mu + i, V(smaller)(value, V(load)(w->high + i)));
    }
}

/* ---- the Hessian ---- */

static void V(slopes_part)(void *argument, int64_t t) {
    const Pass *pass = argument;
    const Work *w = pass->w;
    const State *at = pass->at;
    const double inverse = 1.0 / pass->T;
    for (int64_t j = w->layout->tile_start[t]; j < w->layout->tile_start[t + 1]; j += LANES) {
        const vec p = V(load)(at->p + j);
        if (w->objective == ENTROPY) {
            V(store)(w->d + j, p * (1.0 - p) * inverse);
            continue;
        }
        vec x = V(load)(at->u + j), slope = V(all)(1.0);
        if (w->weights) {
            const vec q = V(load)(w->weights + j);
            x = x / q;
            slope = 1.0 / q;
        }
        const mask inside = (x > V(load)(w->lower + j)) & (x < V(load)(w->upper + j));
        V(store)(w->d + j, (vec)(inside & (mask)slope));
    }
}

/* d = dp/du at a state. */
static void V(slopes)(Work *w, State *at, double T) {
    Pass pass = {.w = w, .at = at, .T = T};
    share(w->team, w->layout->tiles, V(slopes_part), &pass);
}

/* The diagonal entry of H of a row that moves, regularised; one where there is nothing. */
INLINE double V(diagonal_entry)(const Work *w, const State *at, int64_t i, double value, double T, double damping,
                                double ridge) {
    if (w->has_slack) value += w->s[i] * at->z[i] * (1.0 - at->z[i]) / T;
    value = (value + damping) * (1.0 + ridge);
    return value > 1e-290 ? value : 1.0;
}

/* What the variables of one tile contribute to H. Diagonals, to which many tiles contribute, are added up later. */
static void V(assemble_part)(void *argument, int64_t t) {
    Work *w = ((Pass *)argument)->w;
    const Layout *a = w->layout;
    const int64_t diagonals = rounded_up(a->leading) + a->width;
    double *restrict H = w->H, *restrict first = V(part_of)(w, t, H);
    const double *restrict d = w->d, *restrict values = w->pair_values;
    memset(first, 0, diagonals * sizeof(double));
    if (a->pair_runs) {
        for (int64_t n = a->tile_pair_runs[t]; n < a->tile_pair_runs[t + 1]; n++) {
            const Run run = a->runs_of_pairs[n];
            double *to = (run.target < diagonals ? first : H) + run.target;
            if (run.step) V(add_products)(to, to, values + run.at, d + run.col, run.count);
            else *to += V(dot)(values + run.at, d + run.col, run.count);
        }
        return;
    }
    for (int64_t e = a->tile_pairs[t]; e < a->tile_pairs[t + 1]; e++) {
        const int64_t target = a->pair_target[e];
        (target < diagonals ? first : H)[target] += values[e] * d[a->pair_col[e]];
    }
}

static int64_t V(chunk_of)(int64_t leading) { return leading <= 64 * 64 ? 64 : rounded_up((leading + 63) / 64); }
static int64_t V(chunks_of)(int64_t leading) { return (leading + V(chunk_of)(leading) - 1) / V(chunk_of)(leading); }

/* Leading rows of the coupling, each divided by the root of its diagonal entry, and copied into panels where H is wide. */
static void V(scale_part)(void *argument, int64_t chunk) {
    const Work *w = ((Pass *)argument)->w;
    const Layout *a = w->layout;
    const int64_t ld = a->width, size = V(chunk_of)(a->leading), start = chunk * size;
    const int64_t stop = start + size < a->leading ? start + size : a->leading;
    double *coupling = w->H + rounded_up(a->leading) + ld;
    for (int64_t i = start; i < stop; i++)
        for (int64_t h = 0; h < ld; h += LANES) {
            double *at = coupling + i * ld + h;
            V(store)(at, V(load)(at) * w->root[i] * V(load)(w->keep + h));
        }
    if (!w->panels) return;
    for (int64_t h = 0; h < ld; h += 8)
        for (int64_t i = start; i < stop; i++)
            memcpy(w->panels + ((h >> 3) * a->leading + i) * 8, coupling + i * ld + h, 8 * sizeof(double));
}

static int V(factor_dense)(Work *w, const State *at, double T, double damping, double ridge);
static void V(solve_dense)(const Work *w, const double *rhs, double *to);

/* H over the rows that move, plus damping, times 1 + ridge on the diagonal, factored; d must be set.
 *
 * H holds [diagonal of the leading rows | diagonal of the others | W: leading x others | S: others x others], W divided
 * by the root of the leading diagonal; the Schur complement S - W'W is factored in place. Returns whether a pivot was
 * dropped. */
static int V(factor)(Work *w, const State *at, double T, double damping, double ridge) {
    const Layout *a = w->layout;
    if (a->dense) return V(factor_dense)(w, at, T, damping, ridge);
    const int64_t first = a->leading, ld = a->width, rest = a->rows - first, lead = rounded_up(first);
    double *H = w->H, *diagonal = H + lead, *coupling = diagonal + ld;
    Pass pass = {.w = w};
    memset(H, 0, (lead + ld + first * ld + ld * ld) * sizeof(double));
    share(a->separate ? w->team : NULL, a->tiles, V(assemble_part), &pass);
    if (a->tiles > 1) V(add_up)(w, a->tiles, H, lead + ld);
    int any_held = 0;
    for (int64_t i = 0; i < a->rows; i++) {
        double *at_diagonal = i < first ? H + i : diagonal + (i - first);
        const int moves = w->moving[i];
        *at_diagonal = moves ? V(diagonal_entry)(w, at, i, *at_diagonal, T, damping, ridge) : 1.0;
        if (i >= first) w->keep[i - first] = moves;
        any_held |= i >= first && !moves;
    }
    for (int64_t i = 0; i < first; i++) w->root[i] = w->moving[i] / sqrt(H[i]);
    if (rest == 0) return 0;
    for (int64_t g = 0; g < rest && any_held; g++)
        for (int64_t h = g & ~(int64_t)7; h < ld; h += LANES)
            V(store)(w->S + g * ld + h, V(load)(w->S + g * ld + h) * w->keep[g] * V(load)(w->keep + h));
    for (int64_t g = 0; g < rest; g++) w->S[g * ld + g] = diagonal[g];
    share(w->team, V(chunks_of)(first), V(scale_part), &pass);
    Product schur = {w->S, ld, 0, first, {coupling, ld, 8}, -1.0};
    if (w->panels) schur.P = (Panels){w->panels, 8, 8 * first};
    V(multiply)(w->team, &schur);
    return V(cholesky)(w->team, w->S, ld, rest, diagonal, w->inverse, w->packed);
}

/* What a chunk of leading rows takes from the right-hand sides of the others. */
static void V(reduce_part)(void *argument, int64_t chunk) {
    const Pass *pass = argument;
    const Work *w = pass->w;
    const Layout *a = w->layout;
    const int64_t ld = a->width, size = V(chunk_of)(a->leading), start = chunk * size;
    const int64_t stop = start + size < a->leading ? start + size : a->leading;
    double *restrict y = w->parts + chunk * w->part;
    memset(y, 0, ld * sizeof(double));
    for (int64_t i = start; i < stop; i++)
        V(add_product)(y, y, w->H + rounded_up(a->leading) + ld + i * ld, pass->from[i] * w->root[i], ld);
}

/* The leading rows' part of a solution, from that of the others. */
static void V(extend_part)(void *argument, int64_t chunk) {
    const Pass *pass = argument;
    const Work *w = pass->w;
    const Layout *a = w->layout;
    const int64_t ld = a->width, size = V(chunk_of)(a->leading), start = chunk * size;
    const int64_t stop = start + size < a->leading ? start + size : a->leading;
    const double *W = w->H + rounded_up(a->leading) + ld;
    for (int64_t i = start; i < stop; i++)
        pass->to[i] = pass->to[i] / w->H[i] - w->root[i] * V(dot)(W + i * ld, w->rest, ld);
}

/* to = H^-1 rhs with the factor; both may be the same array. */
static void V(solve)(Work *w, const double *rhs, double *to) {
    const Layout *a = w->layout;
    if (a->dense) {
        V(solve_dense)(w, rhs, to);
        return;
    }
    const int64_t first = a->leading, ld = a->width, rest = a->rows - first;
    double *restrict y = w->rest;
    if (to != rhs) memcpy(to, rhs, w->k * sizeof(double));
    if (rest == 0) {
        for (int64_t i = 0; i < first; i++) to[i] /= w->H[i];
        return;
    }
    Pass pass = {.w = w, .from = to, .to = to};
    memset(y, 0, ld * sizeof(double));
    if (first) {
        share(w->team, V(chunks_of)(first), V(reduce_part), &pass);
        V(add_up)(w, V(chunks_of)(first), y, ld);
    }
    for (int64_t g = 0; g < rest; g++) y[g] = to[first + g] - y[g];
    V(solve_forward)(w->S, ld, rest, w->inverse, y);
    V(solve_back)(w->S, ld, rest, w->inverse, y);
    share(w->team, V(chunks_of)(first), V(extend_part), &pass);
    memcpy(to + first, y, rest * sizeof(double));
}

/* ---- where most coefficients are not zero ---- */

/* Columns of C times the root of d, for the rows of a list (-1: zeros), plain or in panels. */
static void V(gather_part)(void *argument, int64_t chunk) {
    const Pass *pass = argument;
    const Work *w = pass->w;
    const Dense *m = &w->dense;
    const int64_t l = w->layout->variables, stop = 64 * chunk + 64 < l ? 64 * chunk + 64 : l;
    for (int64_t j = 64 * chunk; j < stop; j++) {
        const double root = sqrt(w->d[j]), *from = m->C + j * w->layout->width;
        for (int64_t g = 0; g < m->ld; g += 8) {
            double *to = m->scaled + (m->ld >= PACKED ? ((g >> 3) * l + j) * 8 : j * m->ld + g);
            for (int b = 0; b < 8; b++) to[b] = m->list[g + b] < 0 ? 0.0 : root * from[m->list[g + b]];
        }
    }
}

/* S = C D C' over the rows of the list. */
static void V(gram)(Work *w, double *S) {
    Dense *m = &w->dense;
    const int64_t l = w->layout->variables;
    Pass pass = {.w = w};
    share(w->team, (l + 63) / 64, V(gather_part), &pass);
    memset(S, 0, m->ld * m->ld * sizeof(double));
    Product product = {S, m->ld, 0, l, {m->scaled, m->ld, 8}, 1.0};
    if (m->ld >= PACKED) product.P = (Panels){m->scaled, 8, 8 * l};
    V(multiply)(w->team, &product);
}

/* Close the list: nothing up to a multiple of eight. */
INLINE void V(close_list)(Dense *m, int64_t count) {
    m->count = count;
    m->ld = rounded_up(count);
    for (int64_t g = count; g < m->ld; g++) m->list[g] = -1;
}

/* Without a box D is constant, and so is H: rows whose duals have no bound always move and are eliminated once. */
static void V(prepare_constant)(Work *w) {
    const Layout *a = w->layout;
    Dense *m = &w->dense;
    int64_t count = 0;
    for (int64_t i = 0; i < a->rows; i++)
        if (w->active[i] && w->low[i] == -INFINITY && w->high[i] == INFINITY) m->list[count++] = (int32_t)i;
    while (count % 8) m->list[count++] = -1;
    m->first = count;
    for (int64_t i = 0; i < a->rows; i++)
        if (w->active[i] && (w->low[i] > -INFINITY || w->high[i] < INFINITY)) m->list[count++] = (int32_t)i;
    V(close_list)(m, count);
    V(gram)(w, m->base);
    m->width = m->ld;
    for (int64_t g = 0; g < m->width; g++) {
        const double value = m->base[g * m->width + g] * (1.0 + m->ridge);
        m->base_size[g] = m->list[g] >= 0 && value > 1e-290 ? value : 1.0;
        m->base[g * m->width + g] = m->base_size[g];
        m->order[g] = m->list[g];
    }
    V(cholesky)(w->team, m->base, m->width, m->first, m->base_size, m->base_inverse, w->packed);
    m->ready = 1;
}

/* S of the rows with bounded duals that move: part of a matrix that never changes. */
static void V(pick_constant)(Work *w, double damping, double ridge) {
    Dense *m = &w->dense;
    int64_t count = 0;
    for (int64_t g = m->first; g < m->width; g++)
        if (m->order[g] >= 0 && w->moving[m->order[g]]) m->list[count++] = (int32_t)g;
    V(close_list)(m, count);
    for (int64_t g = 0; g < m->ld; g++) {
        const double *from = m->base + m->list[g] * m->width;
        double *to = w->S + g * m->ld;
        for (int64_t h = g & ~(int64_t)7; h < m->ld; h++) to[h] = m->list[g] < 0 || m->list[h] < 0 ? 0.0 : from[m->list[h]];
        const double size = m->list[g] < 0 ? 1.0 : m->base_size[m->list[g]];
        w->keep[g] = size + damping;
        to[g] = m->list[g] < 0 ? 1.0 : to[g] + damping + ridge * size;
    }
}

static int V(factor_dense)(Work *w, const State *at, double T, double damping, double ridge) {
    const Layout *a = w->layout;
    Dense *m = &w->dense;
    if (m->constant) {
        if (!m->ready) V(prepare_constant)(w);
        V(pick_constant)(w, damping, ridge);
    } else {
        int64_t count = 0;
        for (int64_t i = 0; i < a->rows; i++)
            if (w->moving[i]) m->list[count++] = (int32_t)i;
        V(close_list)(m, count);
        V(gram)(w, w->S);
        for (int64_t g = 0; g < m->count; g++) {
            double *entry = w->S + g * m->ld + g;
            *entry = w->keep[g] = V(diagonal_entry)(w, at, m->list[g], *entry, T, damping, ridge);
        }
    }
    return V(cholesky)(w->team, w->S, m->ld, m->count, w->keep, w->inverse, w->packed);
}

static void V(solve_dense)(const Work *w, const double *rhs, double *to) {
    const Dense *m = &w->dense;
    double *y = w->rest, *z = w->root;
    memset(y, 0, (m->ld + 8) * sizeof(double));
    if (m->constant) {
        memset(z, 0, (m->width + 8) * sizeof(double));
        for (int64_t g = 0; g < m->width; g++) z[g] = m->order[g] < 0 ? 0.0 : rhs[m->order[g]];
        V(solve_forward)(m->base, m->width, m->first, m->base_inverse, z);
    }
    for (int64_t g = 0; g < m->count; g++) y[g] = m->constant ? z[m->list[g]] : rhs[m->list[g]];
    V(solve_forward)(w->S, m->ld, m->count, w->inverse, y);
    V(solve_back)(w->S, m->ld, m->count, w->inverse, y);
    memset(to, 0, w->k * sizeof(double));
    if (!m->constant) {
        for (int64_t g = 0; g < m->count; g++) to[m->list[g]] = y[g];
        return;
    }
    memset(z + m->first, 0, (m->width - m->first) * sizeof(double));
    for (int64_t g = 0; g < m->count; g++) z[m->list[g]] = y[g];
    V(solve_back)(m->base, m->width, m->first, m->base_inverse, z);
    for (int64_t g = 0; g < m->width; g++)
        if (m->order[g] >= 0) to[m->order[g]] = z[g];
}

/* ---- numbers of one instance ---- */

/* Coefficients, and what follows from them: the numbers that right-hand sides do not change. */
static void V(fold_coefficients)(Work *w, const Problem *problem, int64_t n) {
    const Layout *a = w->layout;
    const double *values = doubles(problem->values, n), *lower = doubles(problem->lower, n);
    const double *upper = doubles(problem->upper, n), *scale = doubles(problem->scale, n);
    const uint8_t *free_ = bytes(problem->free, n), *at_upper = bytes(problem->at_upper, n);
    const uint8_t *active = bytes(problem->active, n);
    const int entropy = w->objective == ENTROPY;
    memset(w->taken, 0, w->k * sizeof(double));
    memset(w->negative, 0, w->k * sizeof(double));
    memset(w->totals, 0, w->k * sizeof(double));
    for (int64_t e = 0; e < a->entries; e++) {
        const int32_t i = a->entry_row[e], j = a->entry_col[e];
        const double value = values[a->entry[e]], rho = scale[a->order[i]];
        double c = 0.0;
        if (free_[j]) {
            c = entropy ? value * (upper[j] - lower[j]) / rho : value / rho;
            if (entropy) w->taken[i] += value * lower[j];
        } else {
            w->taken[i] += value * (at_upper[j] ? upper[j] : lower[j]);
        }
        if (value < 0) w->negative[i] = 1.0;
        w->totals[i] += c;
        w->coefficients[e] = active[a->order[i]] ? c : 0.0;
    }
    for (int64_t e = 0; e < a->pairs && !a->pair_runs; e++)
        w->pair_values[e] = w->coefficients[a->pair_first[e]] * w->coefficients[a->pair_second[e]];
    for (int64_t r = 0; r < a->pair_runs; r++) {
        const Run run = a->runs_of_pairs[r];
        for (int32_t e = 0; e < run.count; e++)
            w->pair_values[run.at + e] = w->coefficients[run.first + e] * w->coefficients[run.second + e];
    }
    for (int64_t e = 0; e < a->entries && a->dense; e++)
        w->dense.C[a->entry_col[e] * a->width + a->entry_row[e]] = w->coefficients[e];
    w->dense.ready = 0;
}

/* Right-hand sides, slacks and bounds of duals. */
static void V(fold_rows)(Work *w, const Problem *problem, int64_t n) {
    const Layout *a = w->layout;
    const double *rhs = doubles(problem->rhs, n), *slack = doubles(problem->slack, n);
    const double *scale = doubles(problem->scale, n), *share_of = doubles(problem->tight_share, n);
    const double *dual_lower = doubles(problem->dual_lower, n), *dual_upper = doubles(problem->dual_upper, n);
    const uint8_t *active = bytes(problem->active, n), *tight = bytes(problem->tight, n);
    w->bounded = w->has_slack = 0;
    for (int64_t i = 0; i < a->rows; i++) {
        const int32_t from = a->order[i];
        const double rho = scale[from];
        double taken = w->taken[i];
        w->active[i] = active[from];
        w->s[i] = 0.0;
        if (w->entropic && active[from]) {
            if (tight[from]) taken += slack[from] * share_of[from];
            else w->s[i] = slack[from] / rho;
        }
        w->has_slack |= w->s[i] != 0.0;
        w->b[i] = active[from] ? (rhs[from] - taken) / rho : 0.0;
        w->low[i] = tight[from] ? -INFINITY : dual_lower[from] * rho;
        w->high[i] = tight[from] ? INFINITY : dual_upper[from] * rho;
        w->bounded |= w->low[i] > -INFINITY || w->high[i] < INFINITY;
        w->whole[i] = w->negative[i] > 0 || !active[from] ? 0.0 : w->totals[i] + w->s[i];
    }
}

/* Bounds and weights. Both bounds of a fixed variable are its value (Entropy), or 0 (Euclidean: it adds nothing to theta). */
static void V(fold_variables)(Work *w, const Problem *problem, int64_t n) {
    const double *lower = doubles(problem->lower, n), *upper = doubles(problem->upper, n);
    const uint8_t *free_ = bytes(problem->free, n), *at_upper = bytes(problem->at_upper, n);
    const double *weights = w->weights ? doubles(problem->parameter, n) : NULL;
    int unbounded = 1, fixed = 0;
    for (int64_t j = 0; j < w->layout->variables; j++) {
        const double value = w->objective == EUCLIDEAN ? 0.0 : at_upper[j] ? upper[j] : lower[j];
        w->lower[j] = free_[j] ? lower[j] : value;
        w->upper[j] = free_[j] ? upper[j] : value;
        if (weights) w->weights[j] = weights[j];
        fixed |= !free_[j];
        unbounded &= w->lower[j] == -INFINITY && w->upper[j] == INFINITY;
    }
    w->fixed = fixed;
    w->dense.constant = w->layout->dense && unbounded;
    w->dense.ready &= !problem->parameter.step;
}

/* The numbers of instance n that do not depend on scores and temperature, those that the last one had left alone. */
static void V(fold)(Work *w, const Problem *p, int64_t n, int first) {
    if (first || p->values.step || p->lower.step || p->upper.step || p->scale.step || p->free.step || p->at_upper.step ||
        p->active.step)
        V(fold_coefficients)(w, p, n);
    if (first || p->rhs.step || p->slack.step || p->scale.step || p->dual_lower.step || p->dual_upper.step ||
        p->active.step || p->tight.step || p->tight_share.step || p->lower.step || p->upper.step || p->values.step ||
        p->free.step || p->at_upper.step)
        V(fold_rows)(w, p, n);
    w->dense.ready &= !(p->dual_lower.step || p->dual_upper.step || p->tight.step);
    if (first || p->lower.step || p->upper.step || p->free.step || p->at_upper.step || (w->weights && p->parameter.step))
        V(fold_variables)(w, p, n);
}

/* Numbers from and to the arrays of a call, which are float or double. */
INLINE void V(read)(double *restrict to, const void *restrict from, int single, int64_t at, int64_t count) {
    if (single)
        for (int64_t j = 0; j < count; j++) to[j] = ((const float *)from)[at + j];
    else memcpy(to, (const double *)from + at, count * sizeof(double));
}

INLINE void V(write)(void *restrict to, const double *restrict from, int single, int64_t at, int64_t count) {
    if (single)
        for (int64_t j = 0; j < count; j++) ((float *)to)[at + j] = (float)from[j];
    else memcpy((double *)to + at, from, count * sizeof(double));
}

/* The linear term, the temperature and the reach of the scores; returns whether everything is finite. */
static int V(read_scores)(Work *w, const Problem *problem, const void *scores, int single, int64_t n) {
    const int64_t l = w->layout->variables;
    const int entropy = w->objective == ENTROPY;
    w->tau = entropy ? *doubles(problem->parameter, n) : 1.0;
    V(read)(w->linear, scores, single, n * l, l);
    vec reach = {0};
    mask finite = ~(mask){0};
    for (int64_t j = 0; j < w->l; j += LANES) {
        const vec y = V(load)(w->linear + j), wide = V(load)(w->upper + j) - V(load)(w->lower + j);
        vec term = y;
        if (entropy) {
            term = wide * y;
            reach = V(larger)(V(size_of)(term), reach);
        } else if (w->weights) {
            const vec q = V(load)(w->weights + j);
            finite &= (q > 0.0) & (q < INFINITY);
            term = q * y;
        }
        finite &= (V(size_of)(y) < INFINITY) & (V(size_of)(term) < INFINITY);
        if (entropy) term = V(pick)(wide > 0.0, term, V(all)(-1e200)); /* fixed: it has a share of nothing */
        V(store)(w->linear + j, term);
    }
    w->reach = V(largest_of)(reach);
    for (int i = 1; i < LANES; i++) finite[0] &= finite[i];
    return finite[0] && isfinite(w->tau) && w->tau > 0.0;
}

INLINE double *V(take)(double **from, int64_t count) {
    double *found = *from;
    *from += rounded_up(count);
    return found;
}

/* Point to the work arrays, one after another from `at` on; returns where they end. */
static double *V(arrange)(Work *w, const Layout *a, const Problem *problem, double *at) {
    const int64_t ld = a->width, first = a->leading, lead = rounded_up(first), rows_of_panels = a->dense ? a->variables : first;
    double **variables[] = {&w->linear, &w->lower, &w->upper, &w->now.u, &w->now.p, &w->next.u, &w->next.p, &w->d};
    for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++) *variables[i] = V(take)(&at, w->l);
    if (w->objective == EUCLIDEAN && problem->parameter.at) w->weights = V(take)(&at, w->l);
    double **rows[] = {&w->b,       &w->s,      &w->low,    &w->high,   &w->totals,    &w->taken, &w->negative,
                       &w->whole,   &w->now.mu, &w->now.z,  &w->now.r,  &w->next.mu,   &w->next.z, &w->next.r,
                       &w->direction, &w->rhs,  &w->scratch, &w->q,     &w->again};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) *rows[i] = V(take)(&at, w->k);
    w->moving = (uint8_t *)V(take)(&at, w->k / 8);
    w->active = (uint8_t *)V(take)(&at, w->k / 8);
    w->coefficients = V(take)(&at, a->entries);
    w->pair_values = V(take)(&at, a->pairs);
    w->part = w->k > lead + ld ? w->k : lead + ld;
    const int64_t parts = a->tiles > V(chunks_of)(first) ? a->tiles : V(chunks_of)(first);
    w->parts = V(take)(&at, parts * w->part);
    w->sums = V(take)(&at, 2 * a->tiles);
    w->H = V(take)(&at, lead + ld + first * ld + (ld + 8) * (ld + 8));
    w->S = w->H + lead + ld + first * ld;
    double **others[] = {&w->inverse, &w->rest, &w->keep};
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) *others[i] = V(take)(&at, ld + 16);
    w->root = V(take)(&at, (first > ld ? first : ld) + 16);
    w->packed = ld > TILE || a->dense ? V(take)(&at, TILE * (ld + 8)) : NULL;
    w->panels = ld >= PACKED && !a->dense ? V(take)(&at, rows_of_panels * ld) : NULL;
    if (!a->dense) return at;
    Dense *m = &w->dense;
    m->C = V(take)(&at, a->variables * ld);
    m->scaled = V(take)(&at, a->variables * (ld + 8));
    m->list = (int32_t *)V(take)(&at, ld / 2 + 8);
    m->order = (int32_t *)V(take)(&at, ld / 2 + 8);
    if (w->objective == ENTROPY) return at;
    m->base = V(take)(&at, (ld + 8) * (ld + 8));
    m->base_inverse = V(take)(&at, ld + 8);
    m->base_size = V(take)(&at, ld + 8);
    return at;
}

/* Zeroed memory; large blocks in large pages, which are made faster and found faster. */
static void *V(zeroed)(size_t size) {
    const size_t large = (size_t)1 << 21;
    void *block = NULL;
    if (posix_memalign(&block, size >= 4 * large ? large : 64, size)) return NULL;
#ifdef MADV_HUGEPAGE
    if (size >= 4 * large) madvise(block, size & ~(large - 1), MADV_HUGEPAGE);
#endif
    memset(block, 0, size);
    return block;
}

/* Work arrays for a problem in one block, which the caller frees; NULL without memory. */
static void *V(begin)(Work *w, const Layout *a, const Problem *problem, const Constants *constants) {
    memset(w, 0, sizeof(*w));
    w->layout = a;
    w->constants = constants;
    w->objective = (int)problem->objective;
    w->entropic = (int)problem->entropic_slack;
    w->l = rounded_up(a->variables);
    w->k = rounded_up(a->rows);
    w->paired = w->objective == ENTROPY && V(are_paired)(a);
    double *origin = (double *)64;
    void *block = V(zeroed)((size_t)((char *)V(arrange)(w, a, problem, origin) - (char *)origin) + 64);
    if (!block) return NULL;
    V(arrange)(w, a, problem, block);
    /* What lies behind the last variable and row takes part in no sum. */
    for (int64_t j = a->variables; j < w->l; j++) {
        if (w->objective == ENTROPY) w->linear[j] = -1e200;
        if (w->weights) w->weights[j] = 1.0;
    }
    for (int64_t i = a->rows; i < w->k; i++) {
        w->low[i] = -INFINITY;
        w->high[i] = INFINITY;
    }
    return block;
}

/* The instances of one thread: the next that nobody has claimed, or all of them for the one that leads. */
INLINE int64_t V(next_instance)(const Work *w, Team *team, int64_t last) { return w->team ? last + 1 : claim(&team->counter); }

/* ---- the iteration ---- */

static void V(swap)(Work *w) {
    State other = w->now;
    w->now = w->next;
    w->next = other;
}

static double V(largest)(const double *values, int64_t count) {
    vec found = {0};
    for (int64_t i = 0; i < count; i += LANES) found = V(larger)(V(size_of)(V(load)(values + i)), found);
    return V(largest_of)(found);
}

/* One Sinkhorn sweep over the groups of disjoint rows, kept if it lowers the potential; returns whether it does. */
static int V(sweep)(Work *w, double T) {
    const Layout *a = w->layout;
    if (a->groups == 0) return 0;
    const double cap = 10.0 * T + 0.5 * w->reach;
    State *at = &w->next;
    memcpy(at->mu, w->now.mu, w->k * sizeof(double));
    memcpy(at->r, w->now.r, w->k * sizeof(double));
    for (int64_t g = 0; g < a->groups; g++) {
        for (int32_t e = a->group_start[g]; e < a->group_start[g + 1]; e++) {
            const int32_t i = a->group_rows[e];
            const double whole = w->whole[i], wanted = w->b[i], rest = whole - wanted, have = at->r[i] + wanted;
            const double left = whole - have, least = 1e-12 * whole;
            if (!(whole > 0) || !(wanted > least && rest > least && have > least && left > least)) continue;
            const double change = T * log(wanted * left / (rest * have));
            at->mu[i] += change < -cap ? -cap : change > cap ? cap : change;
        }
        V(clip)(w, at->mu);
        V(evaluate)(w, at, T);
    }
    if (!(at->theta <= w->now.theta)) return 0;
    V(swap)(w);
    return 1;
}

static void V(drift_part)(void *argument, int64_t t) {
    const Pass *pass = argument;
    const Work *w = pass->w;
    for (int64_t j = w->layout->tile_start[t]; j < w->layout->tile_start[t + 1]; j += LANES)
        V(store)(pass->to + j, V(load)(w->d + j) * V(load)(pass->at->u + j) * pass->factor);
    V(apply_tile)(w, t, pass->to, V(part_of)(w, t, w->scratch));
}

/* The derivative of the residual with respect to the temperature, times the change of it, added to rhs. */
static void V(add_drift)(Work *w, double T, double change, double *restrict rhs) {
    State *at = &w->now;
    const double factor = -change / T;
    Pass pass = {.w = w, .at = at, .to = w->next.p, .factor = factor};
    share(w->team, w->layout->tiles, V(drift_part), &pass);
    if (w->layout->tiles > 1) V(add_up)(w, w->layout->tiles, w->scratch, w->k);
    for (int64_t i = 0; i < w->layout->rows; i++) {
        if (w->has_slack) w->scratch[i] += w->s[i] * at->z[i] * (1.0 - at->z[i]) * at->mu[i] / T * factor;
        rhs[i] += w->scratch[i];
    }
}

/* Newton's step from `now` at temperature T towards the solution at `cooler`; returns whether a pivot was dropped. */
static int V(find_direction)(Work *w, double T, double cooler, double damping, double ridge, double stride) {
    const Layout *a = w->layout;
    State *at = &w->now;
    V(slopes)(w, at, T);
    memcpy(w->rhs, at->r, w->k * sizeof(double));
    if (cooler != T) V(add_drift)(w, T, cooler - T, w->rhs);
    const double near = at->error < w->constants->held ? at->error : w->constants->held;
    int any_held = 0;
    for (int64_t i = 0; i < a->rows; i++) {
        const int held = w->bounded && ((at->mu[i] - w->low[i] <= near && at->r[i] > 0) ||
                                        (w->high[i] - at->mu[i] <= near && at->r[i] < 0));
        w->moving[i] = !held && w->active[i];
        if (!w->moving[i]) w->rhs[i] = 0.0;
        any_held |= held;
    }
    const int failed = V(factor)(w, at, T, damping, ridge);
    V(solve)(w, w->rhs, w->direction);
    for (int64_t i = 0; any_held && i < a->rows; i++)
        if (!w->moving[i]) w->direction[i] = at->r[i];
    double length = -1.0;
    if (w->objective == ENTROPY) {
        const double longest = V(largest)(w->direction, w->k), cap = stride * (10.0 * T + 0.5 * w->reach);
        if (longest > cap) length = -cap / longest;
    }
    for (int64_t i = 0; i < w->k; i += LANES) V(store)(w->direction + i, V(load)(w->direction + i) * length);
    return failed;
}

/* Go along the direction where that lowers the potential; returns whether it does. */
static int V(try)(Work *w, double T, double length) {
    const Constants *c = w->constants;
    State *at = &w->next;
    const State *now = &w->now;
    for (int64_t i = 0; i < w->k; i += LANES)
        V(store)(at->mu + i, V(load)(now->mu + i) + length * V(load)(w->direction + i));
    V(clip)(w, at->mu);
    V(evaluate)(w, at, T);
    vec before = {0}, after = {0};
    for (int64_t i = 0; i < w->k; i += LANES) {
        const vec moved = V(load)(at->mu + i) - V(load)(now->mu + i);
        before += moved * V(load)(now->r + i);
        after += moved * V(load)(at->r + i);
    }
    const double slope = V(sum_of)(before) < 0.0 ? V(sum_of)(before) : 0.0;
    int good = at->theta <= now->theta + c->decrease * slope;
    if (!good && at->theta <= now->theta + c->rounding * (1.0 + at->size + now->size))
        good = V(sum_of)(after) <= 0.0 || at->error < now->error;
    if (good) V(swap)(w);
    return good;
}

/* Keep `next`, whose duals are set, where its error is no larger. */
static void V(keep_better)(Work *w, double T) {
    V(clip)(w, w->next.mu);
    V(evaluate)(w, &w->next, T);
    if (isfinite(w->next.theta) && w->next.error <= w->now.error) V(swap)(w);
}

/* One undamped step, then duals that a step along -r would put to a bound, put there. */
static void V(polish)(Work *w, double T, double ridge, double tol) {
    const double fine = w->constants->fine * tol;
    if (w->now.error > fine && w->reusable) { /* close to where H was factored, that factor is as good as a new one */
        V(solve)(w, w->now.r, w->direction);
        for (int64_t i = 0; i < w->k; i += LANES)
            V(store)(w->next.mu + i, V(load)(w->now.mu + i) - V(load)(w->direction + i));
        V(keep_better)(w, T);
    }
    if (w->now.error > fine) {
        V(find_direction)(w, T, T, 0.0, ridge, 1e300);
        for (int64_t i = 0; i < w->k; i += LANES)
            V(store)(w->next.mu + i, V(load)(w->now.mu + i) + V(load)(w->direction + i));
        V(keep_better)(w, T);
    }
    w->reusable = 0;
    if (!w->bounded) return;
    int changed = 0;
    for (int64_t i = 0; i < w->k; i++) {
        const double there = w->now.mu[i] - w->now.r[i];
        const double snapped = there <= w->low[i] ? w->low[i] : there >= w->high[i] ? w->high[i] : w->now.mu[i];
        changed |= snapped != w->now.mu[i];
        w->next.mu[i] = snapped;
    }
    if (changed) V(keep_better)(w, T);
}

/* x into the work array d. */
static void V(answers)(Work *w, const Problem *problem, int64_t n) {
    if (w->objective == EUCLIDEAN) {
        const double *lower = doubles(problem->lower, n), *upper = doubles(problem->upper, n);
        const uint8_t *free_ = bytes(problem->free, n), *at_upper = bytes(problem->at_upper, n);
        memcpy(w->d, w->now.p, w->l * sizeof(double));
        for (int64_t j = 0; w->fixed && j < w->layout->variables; j++)
            if (!free_[j]) w->d[j] = at_upper[j] ? upper[j] : lower[j];
        return;
    }
    for (int64_t j = 0; j < w->l; j += LANES) {
        const vec lower = V(load)(w->lower + j), upper = V(load)(w->upper + j);
        V(store)(w->d + j, V(smaller)(lower + (upper - lower) * V(load)(w->now.p + j), upper));
    }
}

/* How far row i is from holding, and what it adds to the duality gap. */
INLINE double V(row_error)(const Work *w, int64_t i, double *gap) {
    const double mu = w->now.mu[i], r = w->now.r[i], there = mu - r;
    const double way = fabs(mu - (r > 0 ? w->low[i] : w->high[i])); /* of a soft row: to its price */
    *gap += (way < fabs(mu) ? way : fabs(mu)) * fabs(r);
    return fabs(there < w->low[i] ? mu - w->low[i] : there > w->high[i] ? mu - w->high[i] : r);
}

/* Whether rows hold relative to their size at x, and the duality gap is small. */
static int V(optimal)(Work *w, const Problem *problem, const Solve *call, int64_t n) {
    const Layout *a = w->layout;
    const double *values = doubles(problem->values, n), *scale = doubles(problem->scale, n);
    const double most = w->constants->gap * call->tol;
    double gap = 0.0, value = 0.0;
    int holds = 1;
    for (int64_t i = 0; i < a->rows; i++) {
        const double rho = scale[a->order[i]];
        holds &= V(row_error)(w, i, &gap) * (rho > 1.0 ? rho : 1.0) <= call->tol;
    }
    if (holds && gap <= most) return 1; /* whatever the size of rows and objective */
    V(answers)(w, problem, n);
    memset(w->scratch, 0, w->k * sizeof(double));
    for (int64_t e = 0; e < a->entries; e++)
        w->scratch[a->entry_row[e]] += fabs(values[a->entry[e]] * w->d[a->entry_col[e]]);
    gap = 0.0;
    for (int64_t i = 0; i < a->rows; i++) {
        const double factor = scale[a->order[i]] / (w->scratch[i] > 1.0 ? w->scratch[i] : 1.0);
        if (!(V(row_error)(w, i, &gap) * (factor > 1.0 ? factor : 1.0) <= call->tol)) return 0;
    }
    for (int64_t j = 0; j < a->variables; j++) {
        const int64_t at = n * a->variables + j;
        const double y = call->single ? ((const float *)call->scores)[at] : ((const double *)call->scores)[at];
        value += fabs((w->weights ? w->weights[j] * y : y) * w->d[j]);
    }
    return gap <= most * (1.0 + value);
}

/* Whether the duals, as weights of the rows, prove that nothing in the box satisfies them. */
static int V(proves_infeasible)(Work *w) {
    const Layout *a = w->layout;
    double target = 0.0, best = 0.0, size = 0.0;
    memset(w->scratch, 0, w->k * sizeof(double));
    for (int64_t i = 0; i < a->rows; i++) {
        const double mu = w->now.mu[i];
        if (!w->active[i] || (mu > 0 && w->high[i] < INFINITY) || (mu < 0 && w->low[i] > -INFINITY)) continue;
        w->scratch[i] = mu;
        const double most = mu > 0 ? w->s[i] * mu : 0.0;
        target += w->b[i] * mu;
        best += most;
        size += fabs(w->b[i] * mu) + most;
    }
    V(pull)(w, w->scratch, w->next.u);
    for (int64_t j = 0; j < a->variables; j++) {
        const double gain = w->next.u[j];
        if (gain == 0.0) continue;
        const double low = w->objective == ENTROPY ? 0.0 : w->lower[j], high = w->objective == ENTROPY ? 1.0 : w->upper[j];
        const double most = gain * (gain > 0 ? high : low);
        best += most;
        size += fabs(most);
    }
    return target - best - 1e-9 * size > 0.0;
}

/* Duals and temperature to begin with. */
static double V(start)(Work *w, const double *start) {
    const Layout *a = w->layout;
    double T = w->constants->start_temperature * w->reach;
    T = w->tau > T ? w->tau : T;
    memset(w->now.mu, 0, w->k * sizeof(double));
    V(clip)(w, w->now.mu);
    if (start) {
        V(evaluate)(w, &w->now, w->tau);
        for (int64_t i = 0; i < a->rows; i++) w->next.mu[i] = w->active[i] ? start[a->order[i]] : 0.0;
        V(clip)(w, w->next.mu);
        V(evaluate)(w, &w->next, w->tau);
        if (w->next.theta <= w->now.theta) {
            V(swap)(w);
            return w->tau;
        }
    }
    V(evaluate)(w, &w->now, T);
    for (int64_t i = 0; !start && w->objective == ENTROPY && i < w->constants->sweeps; i++)
        if (!V(sweep)(w, T)) break;
    return T;
}

static int V(newton)(Work *w, const Problem *problem, const Solve *call, int64_t n, int64_t *steps) {
    const Constants *c = w->constants;
    *steps = 0;
    if (*bytes(problem->infeasible, n)) { /* presolve has seen it */
        memset(w->now.mu, 0, w->k * sizeof(double));
        V(evaluate)(w, &w->now, w->tau);
        return INFEASIBLE;
    }
    double T = V(start)(w, call->start ? call->start + n * w->layout->rows : NULL);
    double damping = c->first_damping, ridge = c->first_ridge, stride = 1.0, length = 1.0;
    int64_t tries = 0;
    int searching = 0, cooled = 0, stalled = !isfinite(w->now.theta);
    for (int64_t number = 0; number <= call->max_steps * c->backtracks; number++) {
        if (w->now.error <= call->tol && T <= w->tau && !stalled) {
            V(polish)(w, T, ridge, call->tol);
            if (V(optimal)(w, problem, call, n)) return CONVERGED;
        }
        if (stalled) return STALLED;
        if (number && number % c->certificate_every == 0 && V(proves_infeasible)(w)) return INFEASIBLE;
        if (*steps >= call->max_steps && !searching) return STEP_LIMIT;
        if (!searching) {
            const int cools = w->now.error <= c->loose_residual && T > w->tau;
            double cooler = T;
            if (cools) cooler = c->cooling * T > w->tau ? c->cooling * T : w->tau;
            const double size = w->now.error < 1.0 ? w->now.error : 1.0;
            w->reusable = !cools && !w->bounded && w->now.error <= c->loose_residual;
            if (V(find_direction)(w, T, cooler, damping * size / T, ridge, stride))
                ridge = 100 * ridge < c->largest_ridge ? 100 * ridge : c->largest_ridge; /* from the next step on */
            T = cooler;
            if (cools) V(evaluate_at)(w, &w->now, T);
            cooled = cools;
            tries = 0;
            length = 1.0;
            ++*steps;
        }
        const int accepted = V(try)(w, T, length);
        const int gives_up = !accepted && ++tries >= c->backtracks;
        if (accepted && length == 1.0) {
            damping /= 4;
            stride *= 2;
        } else if (accepted || gives_up) {
            damping *= 4;
            stride /= 2;
        }
        damping = damping < c->least_damping ? c->least_damping : damping > c->largest_damping ? c->largest_damping : damping;
        stride = stride < 1.0 ? 1.0 : stride > c->largest_stride ? c->largest_stride : stride;
        stalled = gives_up && !cooled;
        searching = !accepted && !gives_up;
        if (searching) length *= c->shorten;
    }
    return STEP_LIMIT;
}

/* Solve one instance and write its answer. */
static void V(forward_one)(Work *w, const Problem *problem, const Solve *call, int64_t n) {
    const Layout *a = w->layout;
    int64_t steps = 0;
    int code = NOT_FINITE;
    if (V(read_scores)(w, problem, call->scores, (int)call->single, n))
        code = V(newton)(w, problem, call, n, &steps);
    else {
        memset(w->now.mu, 0, w->k * sizeof(double));
        memset(w->now.p, 0, w->l * sizeof(double));
    }
    V(answers)(w, problem, n);
    V(write)(call->x, w->d, (int)call->single, n * a->variables, a->variables);
    for (int64_t i = 0; i < a->rows; i++) call->mu[n * a->rows + a->order[i]] = w->now.mu[i];
    call->codes[n] = code;
    if (code != CONVERGED) __atomic_fetch_add(call->unsolved, 1, __ATOMIC_RELAXED);
    call->steps[n] = steps;
}

static int V(forward)(const Layout *a, const Problem *problem, const Solve *call, Team *team) {
    Work w;
    int64_t n = claim(&team->counter);
    if (call->together && n > 0) help(team);
    if (n >= call->count || (call->together && n > 0)) return 0;
    void *block = V(begin)(&w, a, problem, call->constants);
    w.team = call->together ? team : NULL;
    w.dense.ridge = call->constants->first_ridge;
    for (int first = 1; block && n < call->count; n = V(next_instance)(&w, team, n), first = 0) {
        V(fold)(&w, problem, n, first);
        V(forward_one)(&w, problem, call, n);
    }
    if (call->together) __atomic_store_n(&team->over, 1, __ATOMIC_RELEASE);
    free(block);
    return block ? 0 : -1;
}

/* dL/dtau, or dL/dq: what the explicit dependence of x and r on them passes on. */
static void V(to_parameter)(const Work *w, const Pull *call, const double *g, const double *pulled, int64_t n) {
    const Layout *a = w->layout;
    const State *at = &w->now;
    if (w->objective == EUCLIDEAN) {
        double *to = call->grad_parameter + n * a->variables;
        for (int64_t j = 0; j < a->variables; j++)
            to[j] = w->d[j] * (g[j] - pulled[j]) * (w->linear[j] - at->u[j]) / w->weights[j];
        return;
    }
    double total = 0.0;
    for (int64_t j = 0; j < a->variables; j++)
        if (w->d[j] > 0) total -= at->u[j] * w->d[j] * (g[j] - pulled[j]);
    for (int64_t i = 0; i < a->rows && w->has_slack; i++)
        total += w->q[i] * w->s[i] * at->z[i] * (1.0 - at->z[i]) * at->mu[i] / w->tau;
    call->grad_parameter[n] = total / w->tau;
}

/* q and dL/dy of one instance: H q = C (d g) + dL/dmu on the rows whose dual lies strictly inside its bounds. */
static void V(pull_back)(Work *w, const Pull *call, int64_t n) {
    const Layout *a = w->layout;
    State *at = &w->now;
    for (int64_t i = 0; i < a->rows; i++) at->mu[i] = call->mu[n * a->rows + a->order[i]];
    V(evaluate)(w, at, w->tau);
    V(slopes)(w, at, w->tau);
    double *g = w->next.u, *pulled = w->next.p;
    V(read)(g, call->grad_x, (int)call->single, n * a->variables, a->variables);
    for (int64_t j = 0; j < w->l; j += LANES) {
        const vec wide = V(load)(w->upper + j) - V(load)(w->lower + j);
        const mask free_ = wide > 0.0; /* the slope of a Euclidean variable without room is zero, too */
        const vec given = V(load)(g + j) * (w->objective == ENTROPY ? wide : V(all)(1.0));
        V(store)(g + j, (vec)(free_ & (mask)given));
        V(store)(w->d + j, (vec)(free_ & (mask)V(load)(w->d + j)));
        V(store)(pulled + j, V(load)(w->d + j) * V(load)(g + j));
    }
    V(apply)(w, pulled, w->rhs);
    for (int64_t i = 0; i < a->rows; i++) {
        w->moving[i] = w->active[i] && at->mu[i] > w->low[i] && at->mu[i] < w->high[i];
        if (call->grad_mu) w->rhs[i] += call->grad_mu[n * a->rows + a->order[i]];
        if (!w->moving[i]) w->rhs[i] = 0.0;
    }
    V(factor)(w, at, w->tau, 0.0, w->constants->refined_ridge);
    V(solve)(w, w->rhs, w->q);
    for (int round = 0; round < 3; round++) { /* undo the ridge */
        V(pull)(w, w->q, pulled);
        for (int64_t j = 0; j < w->l; j += LANES) V(store)(pulled + j, V(load)(pulled + j) * V(load)(w->d + j));
        V(apply)(w, pulled, w->scratch);
        for (int64_t i = 0; i < a->rows; i++) {
            double image = w->scratch[i];
            if (w->has_slack) image += w->s[i] * at->z[i] * (1.0 - at->z[i]) / w->tau * w->q[i];
            w->scratch[i] = w->moving[i] ? w->rhs[i] - image : 0.0;
        }
        V(solve)(w, w->scratch, w->again);
        for (int64_t i = 0; i < w->k; i += LANES) V(store)(w->q + i, V(load)(w->q + i) + V(load)(w->again + i));
        if (V(largest)(w->again, w->k) <= 1e-14 * V(largest)(w->q, w->k)) break;
    }
    V(pull)(w, w->q, pulled);
    for (int64_t i = 0; i < a->rows; i++) call->q[n * a->rows + a->order[i]] = w->q[i];
    if (call->grad_parameter) V(to_parameter)(w, call, g, pulled, n);
    for (int64_t j = 0; j < w->l; j += LANES) {
        vec found = V(load)(w->d + j) * (V(load)(g + j) - V(load)(pulled + j));
        if (w->objective == ENTROPY) found *= V(load)(w->upper + j) - V(load)(w->lower + j);
        else if (w->weights) found *= V(load)(w->weights + j);
        V(store)(g + j, found);
    }
    V(write)(call->grad_y, g, (int)call->single, n * a->variables, a->variables);
}

/* An instance that was not solved has no gradient. */
static void V(no_gradient)(const Work *w, const Pull *call, int64_t n) {
    const Layout *a = w->layout;
    const size_t numbers = w->objective == ENTROPY ? 1 : (size_t)a->variables;
    const size_t wide = call->single ? sizeof(float) : sizeof(double);
    memset((char *)call->grad_y + n * a->variables * wide, 0, a->variables * wide);
    memset(call->q + n * a->rows, 0, a->rows * sizeof(double));
    if (call->grad_parameter) memset(call->grad_parameter + n * numbers, 0, numbers * sizeof(double));
}

static int V(backward)(const Layout *a, const Problem *problem, const Pull *call, Team *team) {
    Work w;
    int64_t n = claim(&team->counter);
    if (call->together && n > 0) help(team);
    if (n >= call->count || (call->together && n > 0)) return 0;
    void *block = V(begin)(&w, a, problem, call->constants);
    w.team = call->together ? team : NULL;
    w.dense.ridge = call->constants->refined_ridge;
    for (int first = 1; block && n < call->count; n = V(next_instance)(&w, team, n), first = 0) {
        V(fold)(&w, problem, n, first);
        if (call->codes[n] != CONVERGED) {
            V(no_gradient)(&w, call, n);
            continue;
        }
        V(read_scores)(&w, problem, call->scores, (int)call->single, n);
        V(pull_back)(&w, call, n);
    }
    if (call->together) __atomic_store_n(&team->over, 1, __ATOMIC_RELEASE);
    free(block);
    return block ? 0 : -1;
}

/* ---- presolve by bounds: linsat/compile/presolve.py, instance by instance ---- */

static void V(activity)(const Layout *a, const double *values, const double *lower, const double *upper,
                        const uint8_t *free_, const uint8_t *at_upper, double *least, double *most) {
    memset(least, 0, a->rows * sizeof(double));
    memset(most, 0, a->rows * sizeof(double));
    for (int64_t e = 0; e < a->entries; e++) {
        const int32_t i = a->order[a->entry_row[e]], j = a->entry_col[e];
        const double value = values[a->entry[e]];
        const double at_low = value * (free_[j] || !at_upper[j] ? lower[j] : upper[j]);
        const double at_high = value * (free_[j] || at_upper[j] ? upper[j] : lower[j]);
        least[i] += at_low < at_high ? at_low : at_high;
        most[i] += at_low < at_high ? at_high : at_low;
    }
}

static void V(presolve_one)(const Layout *a, const Problem *problem, const Presolve *call, int64_t n, double *work) {
    const Constants *c = call->constants;
    const int64_t k = a->rows, l = a->variables;
    const double *values = doubles(problem->values, n), *lower = doubles(problem->lower, n);
    const double *upper = doubles(problem->upper, n), *rhs = doubles(problem->rhs, n), *slack = doubles(problem->slack, n);
    uint8_t *free_ = call->free + n * l, *at_upper = call->at_upper + n * l, *active = call->active + n * k;
    double *least = work, *most = work + k, *box_least = work + 2 * k, *box_most = work + 3 * k, *side = work + 4 * k;
    double *room_above = work + 5 * k, *room_below = work + 6 * k, *rounding = work + 7 * k;
    uint8_t *down = (uint8_t *)(work + 8 * k), *up = down + l;
    const double *dual_lower = doubles(problem->dual_lower, n), *dual_upper = doubles(problem->dual_upper, n);
    for (int64_t j = 0; j < l; j++) {
        free_[j] = upper[j] - lower[j] > 0;
        at_upper[j] = 0;
    }
    V(activity)(a, values, lower, upper, free_, at_upper, box_least, box_most);
    memcpy(least, box_least, k * sizeof(double));
    memcpy(most, box_most, k * sizeof(double));
    for (int64_t i = 0; i < k; i++) {
        side[i] = call->senses[i] == GREATER ? rhs[i] - slack[i] : rhs[i];
        rounding[i] = c->row_rounding * (fabs(box_least[i]) + fabs(box_most[i]) + fabs(side[i]));
    }
    int impossible = 0, changed = 1;
    while (changed) {
        for (int64_t i = 0; i < k; i++) {
            const double above = side[i] - least[i], below = most[i] - side[i];
            const double lacking = -(c->contradiction * (box_most[i] - box_least[i]) + rounding[i]);
            const int hard = !(isfinite(dual_lower[i]) && isfinite(dual_upper[i])); /* soft rows force nothing */
            const int caps = hard && call->senses[i] != GREATER, floors = hard && call->senses[i] != LESS;
            impossible |= (caps && above < lacking) || (floors && below < lacking);
            room_above[i] = caps ? above - rounding[i] : INFINITY;
            room_below[i] = floors ? below - rounding[i] : INFINITY;
        }
        memset(down, 0, 2 * l);
        for (int64_t e = 0; e < a->entries; e++) {
            const int32_t i = a->order[a->entry_row[e]], j = a->entry_col[e];
            const double value = values[a->entry[e]], wide = upper[j] - lower[j];
            const double needed = c->forced * fabs(value) * (wide < 1.0 ? wide : 1.0);
            const int no_above = room_above[i] <= needed, no_below = room_below[i] <= needed;
            if (value > 0) {
                down[j] |= no_above;
                up[j] |= no_below;
            } else if (value < 0) {
                down[j] |= no_below;
                up[j] |= no_above;
            }
        }
        changed = 0;
        for (int64_t j = 0; j < l; j++) {
            if (!free_[j] || !(down[j] || up[j])) continue;
            free_[j] = 0;
            at_upper[j] = !down[j];
            changed = 1;
        }
        if (changed) V(activity)(a, values, lower, upper, free_, at_upper, least, most);
    }
    call->infeasible[n] = (uint8_t)impossible;
    memset(active, 0, k);
    for (int64_t e = 0; e < a->entries; e++)
        if (values[a->entry[e]] != 0 && free_[a->entry_col[e]]) active[a->order[a->entry_row[e]]] = 1;
    for (int64_t i = 0; i < k; i++) {
        const double slight = c->vacuous * (box_most[i] - box_least[i]) + rounding[i];
        if ((call->senses[i] == LESS && side[i] - box_most[i] >= -slight) ||
            (call->senses[i] == GREATER && box_least[i] - side[i] >= -slight))
            active[i] = 0;
    }
}

static int V(presolve)(const Layout *a, const Problem *problem, const Presolve *call, Team *team) {
    double *work = malloc((8 * a->rows + a->variables / 4 + 8) * sizeof(double));
    if (!work) return -1;
    for (int64_t n = claim(&team->counter); n < call->count; n = claim(&team->counter))
        V(presolve_one)(a, problem, call, n, work);
    free(work);
    return 0;
}

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

#endif
