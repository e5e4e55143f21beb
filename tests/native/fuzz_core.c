/* Random and hostile calls of the core, through its header alone; every array is as long as it must be and no longer.
 *
 *     test_core --fuzz CALLS SEED FIRST     exit code 1 where a promise of linsat.h was broken
 *
 * Promised: the codes listed there and no others; `unsolved` counts; an answer that converged is finite, in its box and on
 * its rows; gradients of such an answer to finite numbers are no NaN; what a call has not been given is not written. Built
 * with sanitizers it also shows that nothing else is read or written, and that nothing overflows.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "linsat.h"

static uint64_t state;

static uint32_t below(uint32_t limit) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % limit);
}

static int one_in(uint32_t n) { return below(n) == 0; }
static double uniform(void) { return (below(1u << 30) + 0.5) / (double)(1u << 30); }

/* Arrays of one round, freed together. */
static void *blocks[64];
static int used;

static void *room(size_t count, size_t size) {
    const size_t bytes = count * size;
    void *block = malloc(bytes > 0 ? bytes : 1);
    if (!block) exit(2);
    memset(block, 0xA5, bytes);
    return blocks[used++] = block;
}

static double hostile(void) {
    static const double values[] = {NAN,    INFINITY, -INFINITY, 0.0,  -0.0,  1e308, -1e308, 5e-324,
                                    1e-300, 1e200,    -1e160,    1e17, -1e17, 1e40,  -1e-40, 2.0};
    return values[below(sizeof(values) / sizeof(*values))];
}

/* `size` numbers for one instance or for each of `count`, at any stride, in either precision: between low and high, and
 * where `evil` is not 0, one in so many anything at all. */
static Numbers numbers(int64_t count, int64_t size, double low, double high, uint32_t evil) {
    const int own = one_in(2), single = one_in(3);
    const int64_t stride = one_in(4) ? 2 : 1, step = own ? size * stride + below(2) : 0;
    const int64_t length = size ? (own ? (count - 1) * step : 0) + (size - 1) * stride + 1 : 0;
    void *at = room((size_t)length, single ? 4 : 8);
    for (int64_t i = 0; i < length; i++) {
        const double value = evil && one_in(evil) ? hostile() : low + (high - low) * uniform();
        if (single) ((float *)at)[i] = (float)value;
        else ((double *)at)[i] = value;
    }
    return (Numbers){at, step, stride, single};
}

static double number(const Numbers *from, int64_t n, int64_t j, double otherwise) {
    if (!from->at) return otherwise;
    const int64_t at = n * from->step + j * from->stride;
    return from->single ? (double)((const float *)from->at)[at] : ((const double *)from->at)[at];
}

static int wrong;
static void expect(int holds, const char *what, uint64_t seed) {
    if (holds) return;
    if (wrong++ < 20) printf("seed %llu: %s\n", (unsigned long long)seed, what);
}

typedef struct {
    int64_t rows, variables, entries, *row, *col;
    int8_t *senses;
} Pattern;

static Pattern draw_pattern(int invalid) {
    Pattern p = {.rows = below(7), .variables = 1 + below(8)};
    if (one_in(50)) p.rows = 20 + below(30), p.variables = 20 + below(30);
    const double density = one_in(3) ? 1.0 : 0.2 + 0.6 * uniform();
    p.row = room((size_t)(p.rows * p.variables), 8);
    p.col = room((size_t)(p.rows * p.variables), 8);
    p.senses = room((size_t)p.rows, 1);
    for (int64_t i = 0; i < p.rows; i++) {
        p.senses[i] = (int8_t)((int)below(3) - 1);
        for (int64_t j = 0; j < p.variables; j++)
            if (uniform() < density) p.row[p.entries] = i, p.col[p.entries++] = j;
    }
    if (invalid && p.entries) {
        static const int64_t places[] = {-1, INT64_MAX, INT64_MIN, 1 << 20, -(INT64_C(1) << 40), INT64_C(1) << 32};
        int64_t *at = one_in(2) ? p.row : p.col;
        at[below((uint32_t)p.entries)] = places[below(6)];
    }
    return p;
}

static Statement draw_statement(const Pattern *p, int64_t count, uint32_t evil) {
    Statement s = {.objective = below(6), .entropic_slack = one_in(2), .gamma_shift = one_in(8) ? 1e-3 : 0.0};
    const int64_t l = p->variables;
    s.values = numbers(count, p->entries, one_in(2) ? 0.0 : -2.0, 2.0, evil);
    s.side = numbers(count, p->rows, -0.5, one_in(2) ? 1.0 : 0.4 * (double)l, evil);
    s.lower = numbers(count, l, one_in(2) ? 0.0 : -1.0, 0.0, evil);
    s.upper = numbers(count, l, one_in(9) ? -0.5 : 0.2, 2.0, evil);
    if (one_in(3)) s.price = numbers(count, p->rows, one_in(6) ? -1.0 : 0.01, one_in(2) ? 1e6 : 5.0, evil);
    if (s.objective == QUADRATIC || s.objective == METRIC) {
        s.parameters[0] = numbers(count, l * l, -0.3, 0.3, evil);
        for (int64_t i = 0; i < (s.parameters[0].step ? count : 1) && one_in(8) == 0; i++) /* symmetric, often definite */
            for (int64_t j = 0; j < l; j++)
                for (int64_t m = 0; m <= j; m++) {
                    const int64_t at = i * s.parameters[0].step + (j * l + m) * s.parameters[0].stride;
                    const int64_t to = i * s.parameters[0].step + (m * l + j) * s.parameters[0].stride;
                    const double more = j == m ? 0.3 * (double)l : 0.0;
                    if (s.parameters[0].single) {
                        float *of = (float *)s.parameters[0].at;
                        of[to] = of[at] += (float)more;
                    } else {
                        double *of = (double *)s.parameters[0].at;
                        of[to] = of[at] += more;
                    }
                }
    } else {
        const int sizes[4][2] = {{1, 0}, {2, 0}, {1, 2}, {1, 1}}; /* none; one for all variables; one for each */
        for (int i = 0; i < 2; i++) {
            if (!sizes[s.objective][i] || one_in(4)) continue;
            const double low = s.objective == TSALLIS && i == 1 ? 1.2 : one_in(9) ? -0.1 : 0.05;
            s.parameters[i] = numbers(count, sizes[s.objective][i] == 1 ? 1 : l, low, 2.0, evil);
        }
    }
    return s;
}

/* Whether an answer that is called solved is one: finite, in its box, and on its rows up to their rounding. */
static int holds(const Pattern *p, const Statement *s, int64_t n, const double *x) {
    for (int64_t j = 0; j < p->variables; j++) {
        const double low = number(&s->lower, n, j, 0.0), high = number(&s->upper, n, j, 1.0);
        const double slack = 1e-6 * (1.0 + fabs(x[j]));
        if (!isfinite(x[j]) || x[j] < low - slack || x[j] > high + slack) return 0;
    }
    for (int64_t i = 0; i < p->rows; i++) {
        double total = -number(&s->side, n, i, 0.0), size = 1.0 + fabs(total), largest = 0.0;
        for (int64_t e = 0; e < p->entries; e++) {
            if (p->row[e] != i) continue;
            const double a = number(&s->values, n, e, 0.0);
            total += a * x[p->col[e]];
            size += fabs(a * x[p->col[e]]);
            largest = fmax(largest, fabs(a));
        }
        const double over = p->senses[i] == LESS ? total : p->senses[i] == GREATER ? -total : fabs(total);
        if (isfinite(number(&s->price, n, i, INFINITY))) continue; /* may be broken */
        if (!(over <= 1e-5 * (size + largest))) return 0;
    }
    return 1;
}

static int64_t every_status[16];

static void one_call(uint64_t seed) {
    state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    below(2);
    used = 0;
    const uint32_t evil = one_in(2) ? 0 : 2 + below(40);
    const int invalid = one_in(20);
    Pattern p = draw_pattern(invalid);
    Layout *layout = NULL;
    int64_t refused[2];
    const int code = linsat_layout(p.rows, p.variables, p.entries, p.row, p.col, p.senses, &layout, refused);
    if (invalid && p.entries) expect(code != 0, "an impossible pattern was taken", seed);
    else expect(code == 0, "a small pattern was refused", seed);
    if (code) goto end;
    const int64_t k = p.rows, l = p.variables, count = one_in(3) ? 1 : 1 + below(11);
    const int single = one_in(2);
    const Statement s = draw_statement(&p, count, evil);
    void *scores = room((size_t)(count * l), single ? 4 : 8), *x = room((size_t)(count * l), single ? 4 : 8);
    double *start = one_in(4) ? room((size_t)(count * k), 8) : NULL;
    for (int64_t i = 0; i < count * l; i++) {
        const double value = evil && one_in(evil) ? hostile() : 4.0 * uniform() - 2.0;
        if (single) ((float *)scores)[i] = (float)value;
        else ((double *)scores)[i] = value;
    }
    for (int64_t i = 0; start && i < count * k; i++) start[i] = evil && one_in(evil) ? hostile() : 2.0 * uniform() - 1.0;
    double *duals = room((size_t)(count * k), 8);
    uint8_t *decided = room((size_t)(count * 2 * (l + k)), 1);
    int64_t *status = room((size_t)count, 8), *steps = room((size_t)count, 8), *solver = room((size_t)count, 8);
    int64_t *unsolved = room(1, 8);
    *unsolved = 0;
    const Solve call = {count, single, one_in(5) ? below(3) : 200, 1 + below(2) * one_in(50), one_in(9) ? 1e-4 : 1e-9,
                        scores, start,  NULL,                      x,      duals,  decided, status, steps, solver, unsolved};
    const int done = linsat_solve(layout, &s, &call);
    expect(done == 0 || done == -1 || done == -2, "linsat_solve returned a code it does not have", seed);
    if (done) goto end;
    int64_t missing = 0;
    for (int64_t n = 0; n < count; n++) {
        expect(status[n] >= CONVERGED && status[n] <= UNBOUNDED, "a status that is none", seed);
        if (status[n] >= 0 && status[n] < 16) every_status[status[n]]++;
        expect(solver[n] >= NEWTON && solver[n] <= RAN_OFF, "a solver that is none", seed);
        expect(solver[n] != RAN_OFF || status[n] == STALLED, "a doubtful answer is no other status", seed);
        expect(steps[n] >= 0 && steps[n] < 100000, "steps that nobody took", seed);
        missing += status[n] != CONVERGED;
        if (status[n] != CONVERGED) continue;
        double point[64];
        for (int64_t j = 0; j < l; j++) point[j] = single ? (double)((float *)x)[n * l + j] : ((double *)x)[n * l + j];
        const int exact = !single && call.tol < 1e-5;
        expect(!exact || holds(&p, &s, n, point), "an answer called solved is none", seed);
    }
    expect(missing == *unsolved, "unsolved miscounts", seed);
    void *grad_x = one_in(8) ? NULL : room((size_t)(count * l), single ? 4 : 8), *grad_scores = room((size_t)(count * l), single ? 4 : 8);
    double *grad_duals = one_in(3) ? room((size_t)(count * k), 8) : NULL;
    for (int64_t i = 0; grad_x && i < count * l; i++) {
        if (single) ((float *)grad_x)[i] = (float)(uniform() - 0.5);
        else ((double *)grad_x)[i] = uniform() - 0.5;
    }
    for (int64_t i = 0; grad_duals && i < count * k; i++) grad_duals[i] = uniform() - 0.5;
    const int64_t first = s.objective >= QUADRATIC ? l * l : s.objective == EUCLIDEAN ? l : 1;
    const int64_t width[7] = {p.entries, k, l, l, k, first, s.objective == KL ? l : 1};
    const Numbers *of[7] = {&s.values, &s.side, &s.lower, &s.upper, &s.price, &s.parameters[0], &s.parameters[1]};
    Gradient to[7];
    for (int i = 0; i < 7; i++) {
        const int own = one_in(2);
        to[i] = (Gradient){NULL, 0};
        if (!of[i]->at || one_in(3)) continue;
        to[i] = (Gradient){room((size_t)((own ? count : 1) * width[i]), 8), own ? width[i] : 0};
        memset(to[i].at, 0, (size_t)((own ? count : 1) * width[i]) * 8);
    }
    const Pull pull = {count,  single,  1,         scores,      grad_x, duals, grad_duals, status, decided, 2 * (l + k), one_in(9) ? NULL : grad_scores,
                       to[0],  to[1],   to[2],     to[3],       to[4],  {to[5], to[6]}};
    const int back = linsat_pull_back(layout, &s, &pull);
    expect(back == 0 || back == -1 || back == -2, "linsat_pull_back returned a code it does not have", seed);
    for (int64_t i = 0; !back && !evil && pull.grad_scores && i < count * l; i++) {
        const double value = single ? (double)((float *)grad_scores)[i] : ((double *)grad_scores)[i];
        expect(status[i / l] != CONVERGED || !isnan(value), "the gradient to a score is no number", seed);
    }
    for (int i = 0; i < 7 && !back && !evil && !missing; i++)
        for (int64_t j = 0; to[i].at && j < (to[i].step ? count : 1) * width[i]; j++)
            expect(!isnan(to[i].at[j]), "a gradient is no number", seed);
end:
    if (layout) linsat_layout_free(layout);
    while (used) free(blocks[--used]);
}

/* Calls that once broke a promise.
 * 35000070454: an infinite violation before Newton's steps, which did not converge, passed for one that is no worse after. */
static const uint64_t once_failed[] = {UINT64_C(35000070454)};

int fuzz(uint64_t calls, uint64_t seed, uint64_t first) {
    for (size_t i = 0; !first && i < sizeof(once_failed) / sizeof(*once_failed); i++) one_call(once_failed[i]);
    for (uint64_t i = first; i < first + calls; i++) one_call(seed * UINT64_C(1000000007) + i);
    static const char *names[] = {"converged", "step limit", "stalled", "infeasible", "not finite", "time limit", "unbounded"};
    for (int i = 0; i < 7; i++) printf("%s%s %lld", i ? ", " : "", names[i], (long long)every_status[i]);
    printf("\n%llu calls, %d promises broken\n", (unsigned long long)calls, wrong);
    return wrong > 0;
}
