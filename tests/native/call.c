/* The core behind call.h: questions become its structures. */
#include "call.h"

#include "kernel.c"

#include <stdio.h>

/* As in linsat/solvers/newton.py and linsat/compile/presolve.py; tests/test_native.py compares. */
static const Constants constants = {
    .loose_residual = 0.3,
    .cooling = 0.5,
    .start_temperature = 0.05,
    .least_damping = 1e-9,
    .first_damping = 1e-2,
    .largest_damping = 1.0,
    .first_ridge = 1e-12,
    .largest_ridge = 1e-2,
    .refined_ridge = 1e-11,
    .shorten = 0.3,
    .decrease = 1e-4,
    .rounding = 1e-14,
    .held = 1e-6,
    .largest_stride = 1e6,
    .gap = 10.0,
    .fine = 1e-4,
    .sum_rounding = 2.0,
    .contradiction = 1e-9,
    .vacuous = 1e-12,
    .forced = 1e-10,
    .unnoticed = 1e-13,
    .row_rounding = 1e-15,
    .backtracks = 12,
    .certificate_every = 8,
    .sweeps = 3,
};

/* A question in standard form (linsat/compile/box.py), in one block of numbers and one of bytes. */
typedef struct {
    Layout *layout;
    Problem problem;
    int64_t *row, *col, *codes;
    int8_t *senses;
    double *values, *lower, *upper, *scale, *rhs, *slack, *dual_lower, *dual_upper, *zeros, *mu;
    uint8_t *free, *at_upper, *active, *infeasible, *none;
    float *scores;
} Kept;

static void *zeros_of(int64_t count, size_t size) { return calloc((size_t)count + 1, size); }

static void list_coefficients(const Question *q, Kept *to, int64_t *entries) {
    for (int i = 0; i < q->rows; i++)
        for (int j = 0; j < q->variables; j++) {
            if (q->A[i * q->variables + j] == 0.0) continue;
            to->row[*entries] = i;
            to->col[*entries] = j;
            to->values[(*entries)++] = q->A[i * q->variables + j];
        }
}

/* Run one of the core's functions in the threads of a question. */
#define RUN(function, q, of, call) \
    linsat_run((Task)(void (*)(void))(function), (of)->layout, &(of)->problem, call, (q)->threads)

/* Scale, slack and bounds of the dual of row i, for instance n. */
static void standard_row(const Question *q, Kept *to, int i, int n) {
    double reach = 0.0, squares = 0.0, least = 0.0, most = 0.0;
    int wide = 0, some = 0, negative = 0;
    for (int j = 0; j < q->variables; j++) {
        const double a = q->A[i * q->variables + j], low = a * to->lower[j], high = a * to->upper[j];
        if (a == 0.0) continue;
        some = 1;
        negative |= a < 0;
        squares += a * a;
        wide += to->upper[j] > to->lower[j];
        reach += fabs(a) * (to->upper[j] - to->lower[j]);
        least += low < high ? low : high;
        most += low < high ? high : low;
    }
    const int entropy = q->objective != NEAREST_POINT, sense = q->sense[i];
    const double side = q->side[q->own_sides ? n * q->rows + i : i], price = q->price ? q->price[i] : INFINITY;
    const int slack = q->objective == ENTROPY_WITH_SLACK && isinf(price), at = n * q->rows + i;
    to->senses[i] = (int8_t)sense;
    to->scale[i] = entropy ? (wide ? reach / wide : 1.0) : some ? sqrt(squares) : 1.0;
    to->rhs[at] = side;
    if (slack && sense == AT_MOST) to->slack[at] = side - least;
    if (slack && sense == AT_LEAST) {
        const double need = side - least, times = need > 0 ? floor((most - least) / need * (1 + 1e-12)) : 0.0;
        to->slack[at] = negative ? most - side : times * need;
        to->rhs[at] += to->slack[at];
    }
    to->dual_lower[at] = !slack && sense == AT_LEAST ? 0.0 : -price;
    to->dual_upper[at] = !slack && sense == AT_MOST ? 0.0 : price;
}

static void point_to_numbers(const Question *q, Kept *to) {
    const int64_t k = q->own_sides ? q->rows : 0, per_row = q->rows, per_variable = q->variables;
    to->problem = (Problem){
        .objective = q->objective == NEAREST_POINT ? EUCLIDEAN : ENTROPY,
        .entropic_slack = q->objective == ENTROPY_WITH_SLACK,
        .values = {to->values, 0},
        .lower = {to->lower, 0},
        .upper = {to->upper, 0},
        .rhs = {to->rhs, k},
        .slack = {to->slack, k},
        .scale = {to->scale, 0},
        .dual_lower = {to->dual_lower, k},
        .dual_upper = {to->dual_upper, k},
        .parameter = {q->objective == NEAREST_POINT ? q->weights : &q->tau, 0},
        .free = {to->free, per_variable},
        .at_upper = {to->at_upper, per_variable},
        .active = {to->active, per_row},
        .tight = {to->none, 0},
        .infeasible = {to->infeasible, 1},
        .tight_share = {to->zeros, 0},
    };
}

/* Everything free and active, or what presolve says; returns whether it failed. */
static int decide(const Question *q, Kept *to) {
    memset(to->free, 1, (size_t)q->count * q->variables);
    memset(to->active, 1, (size_t)q->count * q->rows);
    if (q->objective == NEAREST_POINT) return 0;
    const Presolve call = {q->count, &constants, to->senses, to->free, to->at_upper, to->active, to->infeasible};
    Team team = {0};
    return linsat_presolve(to->layout, &to->problem, &call, &team);
}

static Kept *prepare(const Question *q) {
    const int64_t k = q->rows, l = q->variables, all = k * l, n = q->count;
    Kept *to = zeros_of(1, sizeof(Kept));
    double **of_sides[] = {&to->rhs, &to->slack, &to->dual_lower, &to->dual_upper, &to->mu};
    uint8_t **of_variables[] = {&to->free, &to->at_upper};
    int64_t entries = 0, refused[2];
    to->row = zeros_of(all, 8);
    to->col = zeros_of(all, 8);
    to->values = zeros_of(all, 8);
    to->senses = zeros_of(k, 1);
    to->lower = zeros_of(l, 8);
    to->upper = zeros_of(l, 8);
    to->scale = zeros_of(k, 8);
    to->zeros = zeros_of(k, 8);
    to->none = zeros_of(k, 1);
    to->active = zeros_of(n * k, 1);
    to->infeasible = zeros_of(n, 1);
    to->codes = zeros_of(2 * n, 8);
    to->scores = zeros_of(n * l, 4);
    for (int i = 0; i < 5; i++) *of_sides[i] = zeros_of(n * k, 8);
    for (int i = 0; i < 2; i++) *of_variables[i] = zeros_of(n * l, 1);
    list_coefficients(q, to, &entries);
    for (int64_t j = 0; j < l; j++) {
        to->lower[j] = q->lower ? q->lower[j] : 0.0;
        to->upper[j] = q->upper ? q->upper[j] : 1.0;
    }
    for (int i = 0; i < k; i++)
        for (int instance = 0; instance < (q->own_sides ? n : 1); instance++) standard_row(q, to, i, instance);
    for (int64_t i = 0; i < n * l; i++) to->scores[i] = (float)q->scores[i];
    if (linsat_layout(k, l, entries, to->row, to->col, &to->layout, refused)) return to;
    point_to_numbers(q, to);
    return to;
}

Answer answer_to(const Question *q) {
    const int64_t k = q->rows, l = q->variables, n = q->count;
    Answer answer = {zeros_of(n * l, 8), zeros_of(n * k, 8), zeros_of(n, sizeof(int)), 0, NULL};
    float *short_x = zeros_of(n * l, 4);
    Kept *to = answer.kept = prepare(q);
    int64_t unsolved = 0;
    const void *scores = q->single ? (const void *)to->scores : (const void *)q->scores;
    const Solve call = {n, 200, q->single, q->together, 1e-9, &constants, scores, NULL,
                        q->single ? (void *)short_x : (void *)answer.x, to->mu, to->codes, to->codes + n, &unsolved};
    answer.failed = !to->layout || decide(q, to) || RUN(linsat_forward, q, to, &call);
    int64_t missing = 0;
    for (int64_t i = 0; i < n; i++) {
        const int codes[] = {SOLVED, OUT_OF_STEPS, STUCK, CONTRADICTORY, NOT_A_NUMBER};
        answer.status[i] = codes[to->codes[i]];
        missing += to->codes[i] != CONVERGED;
    }
    answer.failed |= missing != unsolved;
    for (int64_t i = 0; i < n * k; i++) answer.duals[i] = to->mu[i] / to->scale[i % k];
    for (int64_t i = 0; q->single && i < n * l; i++) answer.x[i] = short_x[i];
    free(short_x);
    return answer;
}

Gradient gradient_of(const Question *q, const Answer *answer, const double *grad_x) {
    const int64_t k = q->rows, l = q->variables, n = q->count;
    const Kept *of = answer->kept;
    Gradient to = {zeros_of(n * l, 8), zeros_of(n * k, 8), zeros_of(n * (l + 1), 8)};
    const Pull call = {.count = n,
                       .together = q->together,
                       .constants = &constants,
                       .scores = q->scores,
                       .grad_x = grad_x,
                       .mu = of->mu,
                       .codes = of->codes,
                       .grad_y = to.scores,
                       .q = to.sides,
                       .grad_parameter = q->objective == NEAREST_POINT && !q->weights ? NULL : to.parameter};
    RUN(linsat_backward, q, of, &call);
    for (int64_t i = 0; i < n * k; i++) to.sides[i] /= of->scale[i % k];
    return to;
}

void free_answer(Answer *answer) {
    Kept *of = answer->kept;
    linsat_layout_free(of->layout);
    void *blocks[] = {of->row,      of->col,        of->codes,      of->senses,     of->values, of->lower,
                      of->upper,    of->scale,      of->rhs,        of->slack,      of->zeros,  of->mu,
                      of->free,     of->at_upper,   of->active,     of->none,       of->scores, of->infeasible,
                      of->dual_lower, of->dual_upper, of,           answer->x,      answer->duals, answer->status};
    for (size_t i = 0; i < sizeof(blocks) / sizeof(*blocks); i++) free(blocks[i]);
}

void free_gradient(Gradient *gradient) {
    free(gradient->scores);
    free(gradient->sides);
    free(gradient->parameter);
}

int try_pattern(int64_t rows, int64_t variables, int64_t entries, const int64_t *row, const int64_t *col,
                int64_t *refused) {
    Layout *layout;
    const int code = linsat_layout(rows, variables, entries, row, col, &layout, refused);
    linsat_layout_free(layout);
    return code == LAYOUT_MADE        ? PATTERN_TAKEN
           : code == LAYOUT_INVALID   ? PATTERN_INVALID
           : code == LAYOUT_NO_MEMORY ? PATTERN_NO_MEMORY
                                      : PATTERN_TOO_LARGE;
}

void use_plain(void) { linsat_use_plain(); }
const char *instructions(void) { return linsat_instructions(); }

void print_constants(void) {
    const double *numbers = (const double *)&constants;
    const int64_t *whole = &constants.backtracks;
    for (; numbers < (const double *)whole; numbers++) printf("%.17g\n", *numbers);
    for (int i = 0; i < 3; i++) printf("%d\n", (int)whole[i]);
}
