/* The core behind call.h: questions become its structures. */
#include "core.c"

#include "call.h"

/* A question as the core is asked it. */
typedef struct {
    Layout *layout;
    Statement statement;
    int64_t *row, *col, *counts;
    int8_t *senses;
    double *values, *lower, *upper;
    uint8_t *decided;
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

static Kept *prepare(const Question *q) {
    const int64_t k = q->rows, l = q->variables, n = q->count;
    Kept *to = zeros_of(1, sizeof(Kept));
    int64_t entries = 0, refused[2];
    to->row = zeros_of(k * l, 8);
    to->col = zeros_of(k * l, 8);
    to->values = zeros_of(k * l, 8);
    to->senses = zeros_of(k, 1);
    to->lower = zeros_of(l, 8);
    to->upper = zeros_of(l, 8);
    to->decided = zeros_of(2 * n * (k + l), 1);
    to->counts = zeros_of(3 * n, 8);
    to->scores = zeros_of(n * l, 4);
    list_coefficients(q, to, &entries);
    for (int64_t i = 0; i < k; i++) to->senses[i] = (int8_t)q->sense[i];
    for (int64_t j = 0; j < l; j++) {
        to->lower[j] = q->lower ? q->lower[j] : 0.0;
        to->upper[j] = q->upper ? q->upper[j] : 1.0;
    }
    for (int64_t i = 0; i < n * l; i++) to->scores[i] = (float)q->scores[i];
    if (linsat_layout(k, l, entries, to->row, to->col, to->senses, &to->layout, refused)) return to;
    if (q->together) to->layout->seconds = 1.0; /* so much that threads share each instance */
    to->statement = (Statement){
        .objective = q->objective == NEAREST_POINT ? EUCLIDEAN : ENTROPY,
        .entropic_slack = q->objective == ENTROPY_WITH_SLACK,
        .values = {to->values, 0, 1, 0},
        .side = {q->side, q->own_sides ? k : 0, 1, 0},
        .lower = {to->lower, 0, 1, 0},
        .upper = {to->upper, 0, 1, 0},
        .price = {q->price, 0, 1, 0},
        .parameters = {{q->objective == NEAREST_POINT ? q->weights : &q->tau, 0, 1, 0}},
    };
    return to;
}

Answer answer_to(const Question *q) {
    const int64_t k = q->rows, l = q->variables, n = q->count;
    Answer answer = {zeros_of(n * l, 8), zeros_of(n * k, 8), zeros_of(n, sizeof(int)), 0, NULL};
    float *short_x = zeros_of(n * l, 4);
    Kept *to = answer.kept = prepare(q);
    int64_t unsolved = 0, missing = 0;
    const Solve call = {
        .count = n,
        .single = q->single,
        .max_steps = 200,
        .threads = q->threads,
        .tol = 1e-9,
        .scores = q->single ? (const void *)to->scores : (const void *)q->scores,
        .x = q->single ? (void *)short_x : (void *)answer.x,
        .duals = answer.duals,
        .decided = to->decided,
        .status = to->counts,
        .steps = to->counts + n,
        .solver = to->counts + 2 * n,
        .unsolved = &unsolved,
    };
    answer.failed = !to->layout || linsat_solve(to->layout, &to->statement, &call);
    for (int64_t i = 0; i < n; i++) {
        const int codes[] = {SOLVED, OUT_OF_STEPS, STUCK, CONTRADICTORY, NOT_A_NUMBER};
        answer.status[i] = codes[to->counts[i]];
        missing += to->counts[i] != CONVERGED;
    }
    answer.failed |= missing != unsolved;
    for (int64_t i = 0; q->single && i < n * l; i++) answer.x[i] = short_x[i];
    free(short_x);
    return answer;
}

Gradients gradient_of(const Question *q, const Answer *answer, const double *grad_x) {
    const int64_t k = q->rows, l = q->variables, n = q->count, parameters = q->objective == NEAREST_POINT ? l : 1;
    const Kept *of = answer->kept;
    Gradients to = {zeros_of(n * l, 8), zeros_of(n * k, 8), zeros_of(n * (l + 1), 8)};
    const Pull call = {
        .count = n,
        .threads = q->threads,
        .scores = q->scores,
        .grad_x = grad_x,
        .duals = answer->duals,
        .status = of->counts,
        .decided = of->decided,
        .decided_step = 2 * (k + l),
        .grad_scores = to.scores,
        .side = {to.sides, k},
        .parameters = {{q->objective == NEAREST_POINT && !q->weights ? NULL : to.parameter, parameters}},
    };
    linsat_pull_back(of->layout, &of->statement, &call);
    return to;
}

void free_answer(Answer *answer) {
    Kept *of = answer->kept;
    linsat_layout_free(of->layout);
    void *blocks[] = {of->row,     of->col,    of->counts, of->senses, of->values,    of->lower,     of->upper,
                      of->decided, of->scores, of,         answer->x,  answer->duals, answer->status};
    for (size_t i = 0; i < sizeof(blocks) / sizeof(*blocks); i++) free(blocks[i]);
}

void free_gradient(Gradients *gradient) {
    free(gradient->scores);
    free(gradient->sides);
    free(gradient->parameter);
}

int try_pattern(int64_t rows, int64_t variables, int64_t entries, const int64_t *row, const int64_t *col, int64_t *refused) {
    Layout *layout;
    int8_t *senses = zeros_of(rows > 0 ? rows : 0, 1);
    const int code = linsat_layout(rows, variables, entries, row, col, senses, &layout, refused);
    linsat_layout_free(layout);
    free(senses);
    return code == LAYOUT_MADE        ? PATTERN_TAKEN
           : code == LAYOUT_INVALID   ? PATTERN_INVALID
           : code == LAYOUT_NO_MEMORY ? PATTERN_NO_MEMORY
                                      : PATTERN_TOO_LARGE;
}

/* Whether the tables of a layout list every row and coefficient once, and no two leading rows share a variable. */
int tables_are_right(int64_t rows, int64_t variables, int64_t entries, const int64_t *row, const int64_t *col) {
    Layout *a;
    int64_t refused[2], pairs = 0;
    int8_t *senses = zeros_of(rows, 1);
    int *seen = zeros_of(rows + entries + 2 * variables, sizeof(int)), right = 1;
    int *of_entries = seen + rows, *led = of_entries + entries, *counts = led + variables;
    if (linsat_layout(rows, variables, entries, row, col, senses, &a, refused)) return 0;
    for (int64_t i = 0; i < rows; i++) right &= ++seen[a->order[i]] == 1;
    for (int64_t e = 0; e < entries; e++) {
        const int32_t at = a->entry[e], j = a->entry_col[e];
        right &= ++of_entries[at] == 1 && a->order[a->entry_row[e]] == row[at] && j == col[at];
        right &= a->entry_row[e] >= a->leading || ++led[j] == 1;
        pairs += ++counts[j];
    }
    right &= a->dense || a->pairs == pairs;
    linsat_layout_free(a);
    free(senses);
    free(seen);
    return right;
}

double tsallis_gap(double alpha, double tau, double upper, double u, double error, double x) {
    const Variable of = {0.0, upper, {tau, alpha}};
    double size;
    return gap_of(TSALLIS, &of, u, u, x, error, &size);
}

void limit_instructions(int level) { linsat_limit_instructions(level); }
const char *instructions(void) { return linsat_instructions(); }
