/* The core called from C: closed forms, conditions of optimality, bits, statuses, gradients.
 *
 *     test_core               one line per test, then "N passed, M failed"; exit code 1 where one failed
 *     test_core --plain       the same without AVX2; --avx2: without AVX-512
 *     test_core --no-fork     the same without a child process, which emulators do not let start threads
 *     test_core --answers     answers and gradients of a fixed list of problems, to compare machines
 *     test_core --fuzz CALLS SEED FIRST   random and hostile calls from number FIRST on (fuzz_core.c)
 */
#include <stdlib.h>
#ifndef _WIN32
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "call.h"
#include "check.h"

int fuzz(uint64_t calls, uint64_t seed, uint64_t first); /* fuzz_core.c */

enum { MOST = 256 };

static double share(double t) { return 1.0 / (1.0 + exp(-t)); }

static double clip(double value, double low, double high) { return value < low ? low : value > high ? high : value; }

/* x of the entropic objective at the scores plus a multiple of one row. */
static double entropic_x(const Question *q, int j, double dual) {
    const double low = q->lower ? q->lower[j] : 0.0, width = (q->upper ? q->upper[j] : 1.0) - low;
    return low + width * share(width * (q->scores[j] + dual * q->A[j]) / q->tau);
}

/* The dual of the only row of an entropic question, by bisection: a x + S z grows with it. rho: the scale of the row, in
 * whose units the dual of the slack is. */
static double entropic_dual(const Question *q, double slack, double rho, double target) {
    double low = -1e4, high = 1e4;
    for (int step = 0; step < 200; step++) {
        const double dual = 0.5 * (low + high);
        double total = slack * share(rho * dual / q->tau);
        for (int j = 0; j < q->variables; j++) total += q->A[j] * entropic_x(q, j, dual);
        if (total < target) low = dual;
        else high = dual;
    }
    return 0.5 * (low + high);
}

static int descending(const void *first, const void *second) {
    const double a = *(const double *)first, b = *(const double *)second;
    return (a < b) - (a > b);
}

/* The largest violation of a row by an answer, relative to what it adds up. */
static double violation(const Question *q, const double *x, int n) {
    double worst = 0.0;
    for (int i = 0; i < q->rows; i++) {
        double total = -q->side[q->own_sides ? n * q->rows + i : i], size = 1.0;
        for (int j = 0; j < q->variables; j++) {
            total += q->A[i * q->variables + j] * x[j];
            size += fabs(q->A[i * q->variables + j] * x[j]);
        }
        const double over = q->sense[i] == AT_MOST ? total : q->sense[i] == AT_LEAST ? -total : fabs(total);
        worst = over / size > worst ? over / size : worst;
    }
    return worst;
}

static int same_bits(const double *first, const double *second, int count) {
    return !memcmp(first, second, (size_t)count * sizeof(double));
}

/* ---- closed forms ---- */

static void box_alone(void) {
    const double lower[] = {-1.0, 0.0, 2.0, 0.0, -3.0}, upper[] = {1.0, 0.5, 5.0, 1.0, -2.5};
    const double scores[] = {0.3, 2.0, -4.0, 0.0, -2.7};
    Question q = {.count = 1, .variables = 5, .lower = lower, .upper = upper, .scores = scores, .tau = 0.7};
    for (q.objective = ENTROPY_WITH_SLACK; q.objective <= NEAREST_POINT; q.objective++) {
        Answer a = answer_to(&q);
        CHECK(!a.failed && a.status[0] == SOLVED);
        for (int j = 0; j < 5; j++) {
            const double width = upper[j] - lower[j];
            const double entropic = lower[j] + width * share(width * scores[j] / q.tau);
            CHECK_NEAR(a.x[j], q.objective == NEAREST_POINT ? clip(scores[j], lower[j], upper[j]) : entropic, 1e-14);
        }
        free_answer(&a);
    }
}

/* Where sum x = 1 and x >= 0, the nearest point is y less a number, cut at 0; sorting finds the number. */
static void nearest_point_of_the_simplex(void) {
    const int sizes[] = {1, 2, 7, 64, 200};
    double scores[MOST], sorted[MOST], ones[MOST];
    const double side = 1.0;
    const int sense = EQUAL_TO;
    for (int i = 0; i < MOST; i++) ones[i] = 1.0;
    for (int t = 0; t < 5; t++) {
        const int l = sizes[t];
        fill_uniform(scores, l, 1.5, 10 + t);
        memcpy(sorted, scores, sizeof(scores));
        qsort(sorted, l, sizeof(double), descending);
        double sum = 0.0, number = 0.0;
        for (int j = 0; j < l; j++) {
            sum += sorted[j];
            if (sorted[j] > (sum - 1.0) / (j + 1)) number = (sum - 1.0) / (j + 1);
        }
        Question q = {.count = 1, .rows = 1, .variables = l, .A = ones, .sense = &sense, .side = &side, .scores = scores,
                      .objective = NEAREST_POINT};
        Answer a = answer_to(&q);
        CHECK(!a.failed && a.status[0] == SOLVED);
        for (int j = 0; j < l; j++) CHECK_NEAR(a.x[j], scores[j] > number ? scores[j] - number : 0.0, 1e-13);
        free_answer(&a);
    }
}

/* Without a box: x = y + a / q (b - a y) / (a a / q). */
static void nearest_point_of_one_equality(void) {
    double row[9], scores[9], weights[9], low[9], high[9];
    const double side = 0.8;
    const int sense = EQUAL_TO;
    fill_uniform(row, 9, 2.0, 1);
    fill_uniform(scores, 9, 3.0, 2);
    fill_uniform(weights, 9, 0.9, 3);
    for (int j = 0; j < 9; j++) {
        weights[j] += 1.0;
        low[j] = -INFINITY;
        high[j] = INFINITY;
    }
    for (int weighted = 0; weighted < 2; weighted++) {
        double have = 0.0, curve = 0.0;
        for (int j = 0; j < 9; j++) {
            have += row[j] * scores[j];
            curve += row[j] * row[j] / (weighted ? weights[j] : 1.0);
        }
        Question q = {.count = 1, .rows = 1, .variables = 9, .A = row, .sense = &sense, .side = &side, .scores = scores,
                      .lower = low, .upper = high, .weights = weighted ? weights : NULL, .objective = NEAREST_POINT};
        Answer a = answer_to(&q);
        CHECK(!a.failed && a.status[0] == SOLVED);
        CHECK_NEAR(a.duals[0], (side - have) / curve, 1e-12);
        for (int j = 0; j < 9; j++)
            CHECK_NEAR(a.x[j], scores[j] + row[j] / (weighted ? weights[j] : 1.0) * (side - have) / curve, 1e-12);
        free_answer(&a);
    }
}

static void entropy_on_the_simplex(void) {
    double ones[MOST], scores[MOST];
    const double side = 1.0, taus[] = {1.0, 0.1, 0.01};
    const int sense = EQUAL_TO, sizes[] = {2, 5, 33, 256};
    for (int i = 0; i < MOST; i++) ones[i] = 1.0;
    for (int t = 0; t < 12; t++) {
        fill_uniform(scores, sizes[t / 3], 1.0, 20 + t);
        Question q = {.count = 1, .rows = 1, .variables = sizes[t / 3], .A = ones, .sense = &sense, .side = &side,
                      .scores = scores, .tau = taus[t % 3], .objective = t % 2 ? ENTROPY_WITH_SLACK : ENTROPY_WITHOUT_SLACK};
        Answer a = answer_to(&q);
        const double dual = entropic_dual(&q, 0.0, 1.0, side);
        CHECK(!a.failed && a.status[0] == SOLVED);
        /* Cold variables hardly move with the dual: there, x is as exact as the row has to be. */
        for (int j = 0; j < q.variables; j++) CHECK_NEAR(a.x[j], entropic_x(&q, j, dual), q.tau < 0.1 ? 1e-9 : 1e-11);
        free_answer(&a);
    }
}

/* One row of every sense, coefficients of both signs, any box; the paper's slack included. */
static void entropy_with_one_row(void) {
    double row[12], scores[12], lower[12], upper[12];
    for (int t = 0; t < 12; t++) {
        const int sense = t % 3 - 1;
        double least = 0.0, most = 0.0, reach = 0.0;
        fill_uniform(row, 12, 1.0, 40 + t);
        fill_uniform(scores, 12, 1.0, 60 + t);
        fill_uniform(lower, 12, 1.0, 80 + t);
        for (int j = 0; j < 12; j++) {
            upper[j] = lower[j] + 0.5 + 0.1 * j;
            const double width = upper[j] - lower[j];
            least += row[j] * (row[j] > 0 ? lower[j] : upper[j]);
            most += row[j] * (row[j] > 0 ? upper[j] : lower[j]);
            reach += fabs(row[j]) * width / 12;
        }
        const double side = least + (most - least) * (0.3 + 0.03 * t);
        Question q = {.count = 1, .rows = 1, .variables = 12, .A = row, .sense = &sense, .side = &side, .scores = scores,
                      .lower = lower, .upper = upper, .tau = 0.2};
        for (q.objective = ENTROPY_WITH_SLACK; q.objective <= ENTROPY_WITHOUT_SLACK; q.objective++) {
            const int with = q.objective == ENTROPY_WITH_SLACK;
            const double slack = !with || sense == EQUAL_TO ? 0.0 : sense == AT_MOST ? side - least : most - side;
            double dual = entropic_dual(&q, slack, reach, sense == AT_LEAST ? side + slack : side);
            if (!with) dual = sense == AT_MOST ? fmin(dual, 0.0) : sense == AT_LEAST ? fmax(dual, 0.0) : dual;
            Answer a = answer_to(&q);
            CHECK(!a.failed && a.status[0] == SOLVED);
            CHECK_NEAR(a.duals[0], dual, 1e-9);
            for (int j = 0; j < 12; j++) CHECK_NEAR(a.x[j], entropic_x(&q, j, dual), 1e-11);
            free_answer(&a);
        }
    }
}

/* The dual of a soft row is cut at its price. */
static void soft_row(void) {
    const double row[] = {1.0, -2.0, 0.5}, scores[] = {1.0, 0.5, -1.0}, price = 0.25, low[] = {-9.0, -9.0, -9.0};
    const double high[] = {9.0, 9.0, 9.0}, curve = 5.25, have = -0.5;
    const int sense = EQUAL_TO;
    for (int t = -6; t <= 6; t++) {
        const double side = 0.5 * t, dual = clip((side - have) / curve, -price, price);
        Question q = {.count = 1, .rows = 1, .variables = 3, .A = row, .sense = &sense, .side = &side, .scores = scores,
                      .lower = low, .upper = high, .price = &price, .objective = NEAREST_POINT};
        Answer a = answer_to(&q);
        CHECK(!a.failed && a.status[0] == SOLVED);
        for (int j = 0; j < 3; j++) CHECK_NEAR(a.x[j], scores[j] + row[j] * dual, 1e-12);
        free_answer(&a);
    }
}

/* ---- problems of several rows ---- */

/* A problem with everything that belongs to it; kind: of rows. */
enum { ASSIGNMENT, MIXED, FULL, TWO_TILES, KINDS };

typedef struct {
    Question q;
    double *A, *side, *scores;
    int *sense;
} Instance;

/* Rows and columns of a square that add up to one. */
static void assignment(Instance *to, int size) {
    to->q.rows = 2 * size;
    to->q.variables = size * size;
    to->A = calloc((size_t)to->q.rows * to->q.variables, sizeof(double));
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++)
            to->A[i * size * size + i * size + j] = to->A[(size + j) * size * size + i * size + j] = 1.0;
}

/* Random rows, of which every third is an equality; `share_of` of the coefficients are not zero. */
static void random_rows(Instance *to, int rows, int variables, double share_of, uint64_t seed) {
    uint64_t state = seed;
    to->q.rows = rows;
    to->q.variables = variables;
    to->A = calloc((size_t)rows * variables, sizeof(double));
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < variables; j++) {
            const double value = 2.0 * uniform(&state) - 0.6;
            if (uniform(&state) < share_of || j == i) to->A[i * variables + j] = value;
        }
}

static Instance make(int kind, int objective, int count) {
    Instance to = {.q = {.count = count, .objective = objective, .tau = 0.1, .own_sides = 1}};
    if (kind == ASSIGNMENT) assignment(&to, 9);
    if (kind == TWO_TILES) assignment(&to, 100);
    if (kind == MIXED) random_rows(&to, 9, 40, 0.3, 5);
    if (kind == FULL) random_rows(&to, 24, 60, 1.0, 6);
    const int k = to.q.rows, l = to.q.variables;
    to.sense = calloc((size_t)k, sizeof(int));
    to.side = calloc((size_t)count * k, sizeof(double));
    to.scores = calloc((size_t)count * l, sizeof(double));
    fill_uniform(to.scores, count * l, 1.0, 100 + kind);
    for (int i = 0; i < k; i++) to.sense[i] = kind == ASSIGNMENT || kind == TWO_TILES ? EQUAL_TO : i % 3 - 1;
    uint64_t state = 7;
    for (int n = 0; n < count; n++)
        for (int i = 0; i < k; i++) { /* the point with half of every variable is inside, a little off the middle */
            double half = 0.0;
            for (int j = 0; j < l; j++) half += 0.5 * to.A[i * l + j];
            to.side[n * k + i] = kind == ASSIGNMENT || kind == TWO_TILES
                                     ? 1.0
                                     : half - to.sense[i] * 0.1 * uniform(&state) * (to.sense[i] != EQUAL_TO);
        }
    to.q.A = to.A;
    to.q.side = to.side;
    to.q.sense = to.sense;
    to.q.scores = to.scores;
    return to;
}

static void discard(Instance *of) {
    free(of->A);
    free(of->side);
    free(of->scores);
    free(of->sense);
}

/* x follows from the duals, duals have their signs, rows hold and those with a dual hold with equality: optimality. */
static void check_optimal(const Question *q, const Answer *a, int n) {
    const int k = q->rows, l = q->variables;
    const double *x = a->x + n * l, *duals = a->duals + n * k;
    CHECK(a->status[n] == SOLVED);
    CHECK(violation(q, x, n) <= 1e-9);
    for (int j = 0; j < l; j++) {
        double u = q->scores[n * l + j];
        for (int i = 0; i < k; i++) u += q->A[i * l + j] * duals[i];
        CHECK_NEAR(x[j], q->objective == NEAREST_POINT ? clip(u, 0.0, 1.0) : share(u / q->tau), 1e-10);
    }
    for (int i = 0; i < k && q->objective != ENTROPY_WITH_SLACK; i++) {
        double room = q->side[n * k + i];
        for (int j = 0; j < l; j++) room -= q->A[i * l + j] * x[j];
        CHECK(!(q->sense[i] == AT_MOST && duals[i] > 0.0) && !(q->sense[i] == AT_LEAST && duals[i] < 0.0));
        CHECK(fabs(duals[i] * room) <= 1e-8);
    }
}

static void several_rows_are_optimal(void) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int objective = ENTROPY_WITH_SLACK; objective <= NEAREST_POINT; objective++) {
            Instance of = make(kind, objective, kind == TWO_TILES ? 1 : 6);
            Answer a = answer_to(&of.q);
            CHECK(!a.failed);
            for (int n = 0; n < of.q.count; n++) check_optimal(&of.q, &a, n);
            free_answer(&a);
            discard(&of);
        }
}

static void single_precision(void) {
    for (int kind = 0; kind < TWO_TILES; kind++) {
        Instance of = make(kind, NEAREST_POINT, 3);
        Answer exact = answer_to(&of.q);
        of.q.single = 1;
        Answer a = answer_to(&of.q);
        for (int i = 0; i < 3 * of.q.variables; i++) CHECK_NEAR(a.x[i], exact.x[i], 1e-6);
        free_answer(&a);
        free_answer(&exact);
        discard(&of);
    }
}

/* ---- bits ---- */

/* The gradient of a loss that weighs every variable differently. */
static Gradients pulled(const Question *q, const Answer *a) {
    double *weight = calloc((size_t)q->count * q->variables + 1, sizeof(double));
    for (int i = 0; i < q->count * q->variables; i++) weight[i] = sin(1.0 + i % q->variables);
    Gradients gradient = gradient_of(q, a, weight);
    free(weight);
    return gradient;
}

/* Answer and gradient have the same bits in any number of threads, whether these share instances or parts of one. */
static void bits_do_not_depend_on_threads(void) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int objective = ENTROPY_WITH_SLACK; objective <= NEAREST_POINT; objective++) {
            Instance of = make(kind, objective, kind == TWO_TILES ? 1 : 40);
            Answer alone = answer_to(&of.q);
            Gradients before = pulled(&of.q, &alone);
            for (int together = 0; together < 2; together++) {
                of.q.threads = 4;
                of.q.together = together;
                Answer a = answer_to(&of.q);
                Gradients after = pulled(&of.q, &a);
                CHECK(!a.failed && !memcmp(a.status, alone.status, of.q.count * sizeof(int)));
                CHECK(same_bits(a.x, alone.x, of.q.count * of.q.variables));
                CHECK(same_bits(a.duals, alone.duals, of.q.count * of.q.rows));
                CHECK(same_bits(after.scores, before.scores, of.q.count * of.q.variables));
                CHECK(same_bits(after.sides, before.sides, of.q.count * of.q.rows));
                free_gradient(&after);
                free_answer(&a);
            }
            free_gradient(&before);
            free_answer(&alone);
            discard(&of);
        }
}

#ifndef _WIN32
/* A child made by fork while the workers sleep hires its own, and finds the same bits. */
static void a_forked_child_has_workers_of_its_own(void) {
    Instance of = make(0, NEAREST_POINT, 40);
    of.q.threads = 4;
    Answer a = answer_to(&of.q);
    fflush(stdout);
    const pid_t child = fork();
    if (!child) {
        alarm(120); /* one that waits for the workers of its parent would wait for ever */
        Answer b = answer_to(&of.q);
        _exit(b.failed || !same_bits(b.x, a.x, of.q.count * of.q.variables));
    }
    int status = 1;
    CHECK(!a.failed && waitpid(child, &status, 0) == child && status == 0);
    free_answer(&a);
    discard(&of);
}
#endif

/* The same instances in another order, and each alone. */
static void bits_do_not_depend_on_the_batch(void) {
    enum { COUNT = 11 };
    for (int kind = 0; kind < TWO_TILES; kind++)
        for (int objective = ENTROPY_WITH_SLACK; objective <= NEAREST_POINT; objective++) {
            Instance of = make(kind, objective, COUNT), other = make(kind, objective, COUNT);
            const int k = of.q.rows, l = of.q.variables;
            for (int n = 0; n < COUNT; n++) {
                memcpy(other.scores + n * l, of.scores + (7 * n + 3) % COUNT * l, l * sizeof(double));
                memcpy(other.side + n * k, of.side + (7 * n + 3) % COUNT * k, k * sizeof(double));
            }
            Answer a = answer_to(&of.q), b = answer_to(&other.q);
            Gradients to_a = pulled(&of.q, &a), to_b = pulled(&other.q, &b);
            for (int n = 0; n < COUNT; n++) {
                const int m = (7 * n + 3) % COUNT;
                Question one = of.q;
                one.count = 1;
                one.scores = of.scores + m * l;
                one.side = of.side + m * k;
                Answer c = answer_to(&one);
                Gradients to_c = pulled(&one, &c);
                CHECK(same_bits(b.x + n * l, a.x + m * l, l) && same_bits(c.x, a.x + m * l, l));
                CHECK(same_bits(to_b.scores + n * l, to_a.scores + m * l, l) && same_bits(to_c.scores, to_a.scores + m * l, l));
                CHECK(same_bits(to_b.sides + n * k, to_a.sides + m * k, k) && same_bits(to_c.sides, to_a.sides + m * k, k));
                free_gradient(&to_c);
                free_answer(&c);
            }
            free_gradient(&to_a);
            free_gradient(&to_b);
            free_answer(&a);
            free_answer(&b);
            discard(&of);
            discard(&other);
        }
}

/* ---- statuses ---- */

/* Each row can hold, both together cannot; or one cannot hold in the box. The instance between has an answer. */
/* psi(u) + omega(x) - u x as it is defined, where nothing of it cancels: x, and what u asks for, at a bound or inside. An
 * error in u makes it less, but not by more than the gap moves with u. */
static void gap_of_tsallis(void) {
    const double alphas[] = {1.2, 1.5, 2.0, 3.0, 8.0}, points[] = {0.0, 1e-6, 0.01, 0.5, 2.0}, duals[] = {-30.0, -0.2, 0.1, 1.0, 9.0};
    for (int n = 0; n < 125; n++) {
        const double alpha = alphas[n % 5], x = points[n / 5 % 5], u = duals[n / 25], tau = 0.7, factor = tau / (alpha * (alpha - 1));
        const double v = (alpha - 1) * u / tau + 1 / alpha, s = clip(v > 0 ? pow(v, 1 / (alpha - 1)) : 0.0, 0.0, 2.0);
        const double psi = u * s - factor * (pow(s, alpha) - s), omega = factor * (pow(x, alpha) - x);
        const double size = 1.0 + fabs(psi) + fabs(omega) + fabs(u * x);
        CHECK_NEAR(tsallis_gap(alpha, tau, 2.0, u, 0.0, x), psi + omega - u * x, 1e-14 * size);
        for (double error = 1e-12; error < 1e-5; error *= 1e3) {
            const double less = tsallis_gap(alpha, tau, 2.0, u, 0.0, x) - tsallis_gap(alpha, tau, 2.0, u, error, x);
            CHECK(less >= -1e-14 * size && less <= error * fabs(s - x) + 1e-14 * size);
        }
    }
}

static void contradictory_rows(void) {
    const double A[] = {1.0, 1.0, 1.0, 1.0, 2.0, 1.0}, scores[9] = {0.1, 0.2, 0.3, 0.1, 0.2, 0.3, 0.1, 0.2, 0.3};
    const double together[] = {0.5, 3.0, 2.0, 1.0, 0.5, 2.5}, alone[] = {1.0, 5.0, 2.0, 1.0, -1.0, 1.0};
    const int sense[] = {AT_MOST, AT_LEAST};
    Question q = {.count = 3, .rows = 2, .variables = 3, .A = A, .sense = sense, .scores = scores, .tau = 0.1, .own_sides = 1};
    for (q.objective = ENTROPY_WITH_SLACK; q.objective <= NEAREST_POINT; q.objective++) {
        for (int t = 0; t < 2; t++) {
            q.side = t ? alone : together;
            Answer a = answer_to(&q);
            CHECK(!a.failed && a.status[0] == CONTRADICTORY && a.status[1] == SOLVED && a.status[2] == CONTRADICTORY);
            CHECK(violation(&q, a.x + 3, 1) <= 1e-9);
            for (int j = 0; j < 9; j++) CHECK(isfinite(a.x[j]));
            Gradients gradient = pulled(&q, &a);
            for (int j = 0; j < 3; j++) CHECK(gradient.scores[j] == 0.0 && gradient.scores[6 + j] == 0.0);
            CHECK(gradient.scores[3] != 0.0);
            free_gradient(&gradient);
            free_answer(&a);
        }
    }
}

static void scores_that_are_not_finite(void) {
    for (int objective = ENTROPY_WITH_SLACK; objective <= NEAREST_POINT; objective++) {
        Instance of = make(MIXED, objective, 5);
        const int l = of.q.variables;
        Answer clean = answer_to(&of.q);
        of.scores[l + 3] = NAN;
        of.scores[3 * l] = INFINITY;
        Answer a = answer_to(&of.q);
        Gradients gradient = pulled(&of.q, &a);
        CHECK(!a.failed);
        for (int n = 0; n < 5; n++) {
            CHECK(a.status[n] == (n % 2 ? NOT_A_NUMBER : SOLVED));
            if (n % 2 == 0) CHECK(same_bits(a.x + n * l, clean.x + n * l, l));
            for (int j = 0; j < l; j++) CHECK(n % 2 ? isnan(a.x[n * l + j]) && gradient.scores[n * l + j] == 0.0
                                                    : isfinite(gradient.scores[n * l + j]));
        }
        free_gradient(&gradient);
        free_answer(&clean);
        free_answer(&a);
        discard(&of);
    }
}

static void scores_of_minus_infinity(void) {
    const double A[] = {1, 1, 1}, side[] = {1}, scores[] = {0.3, -INFINITY, 0.1, 0.3, 0.2, 0.1};
    const int sense[] = {EQUAL_TO};
    for (int objective = ENTROPY_WITH_SLACK; objective <= NEAREST_POINT; objective++) {
        const Question q = {.count = 2, .rows = 1, .variables = 3, .A = A, .sense = sense, .side = side, .scores = scores, .objective = objective, .tau = 0.5};
        Answer a = answer_to(&q);
        Gradients gradient = pulled(&q, &a);
        CHECK(!a.failed && a.status[0] == SOLVED && a.status[1] == SOLVED);
        CHECK(a.x[1] == 0.0 && a.x[4] > 0.0 && fabs(a.x[0] + a.x[2] - 1) <= 1e-9);
        CHECK(gradient.scores[1] == 0.0 && gradient.scores[0] != 0.0);
        free_gradient(&gradient);
        free_answer(&a);
    }
}

static void patterns_that_are_refused(void) {
    const int64_t row[] = {0, 1, 1, 2}, col[] = {0, 0, 1, 1}, twice[] = {0, 1, 0, 2}, outside[] = {0, 0, 1, 2};
    int64_t refused[2], zeros[1] = {0};
    CHECK(try_pattern(3, 2, 4, row, col, refused) == PATTERN_TAKEN);
    CHECK(try_pattern(0, 0, 0, zeros, zeros, refused) == PATTERN_TAKEN);
    CHECK(try_pattern(3, 2, 4, twice, (const int64_t[]){0, 0, 0, 1}, refused) == PATTERN_INVALID);
    CHECK(try_pattern(3, 2, 4, row, outside, refused) == PATTERN_INVALID);
    CHECK(try_pattern(2, 2, 4, row, col, refused) == PATTERN_INVALID);
    CHECK(try_pattern(-1, 2, 0, zeros, zeros, refused) == PATTERN_INVALID);
    CHECK(try_pattern(1 << 17, 1, 1, zeros, zeros, refused) == PATTERN_TOO_LARGE);
    CHECK(refused[0] == 1 << 17 && refused[1] == 1 << 16);
    /* Each row has a variable in common with the next: half of them lead, and 300 others are too many. */
    int64_t *chain_row = calloc(1200, sizeof(int64_t)), *chain_col = calloc(1200, sizeof(int64_t));
    for (int i = 0; i < 600; i++) {
        chain_row[2 * i] = chain_row[2 * i + 1] = i;
        chain_col[2 * i] = i;
        chain_col[2 * i + 1] = i + 1;
    }
    CHECK(try_pattern(600, 601, 1200, chain_row, chain_col, refused) == PATTERN_TOO_LARGE);
    CHECK(refused[0] == 300 && refused[1] == 256);
    free(chain_row);
    free(chain_col);
}

/* ---- gradients, against finite differences ---- */

/* The loss whose gradient `pulled` asks for. */
static double loss(const Question *q) {
    Answer a = answer_to(q);
    double total = 0.0;
    for (int i = 0; i < q->count * q->variables; i++) total += sin(1.0 + i % q->variables) * a.x[i];
    free_answer(&a);
    return total;
}

/* The central difference with respect to one number of a question. */
static double difference(const Question *q, double *number, double step) {
    const double before = *number;
    *number = before + step;
    const double above = loss(q);
    *number = before - step;
    const double below = loss(q);
    *number = before;
    return (above - below) / (2 * step);
}

static void gradients_are_differences(void) {
    for (int kind = 0; kind < TWO_TILES; kind++)
        for (int objective = ENTROPY_WITH_SLACK; objective <= NEAREST_POINT; objective++) {
            Instance of = make(kind, objective, 1);
            double weights[MOST];
            for (int j = 0; j < of.q.variables; j++) weights[j] = 1.0 + 0.3 * sin(j);
            of.q.weights = objective == NEAREST_POINT ? weights : NULL;
            Answer a = answer_to(&of.q);
            Gradients gradient = pulled(&of.q, &a);
            CHECK(a.status[0] == SOLVED);
            for (int j = 0; j < of.q.variables; j += 5) {
                CHECK_NEAR(gradient.scores[j], difference(&of.q, of.scores + j, 1e-5), 1e-5);
                if (of.q.weights) CHECK_NEAR(gradient.parameter[j], difference(&of.q, weights + j, 1e-5), 1e-5);
            }
            /* The sides of an assignment cannot change one by one. */
            for (int i = 0; i < of.q.rows && kind != ASSIGNMENT && objective != ENTROPY_WITH_SLACK; i++)
                CHECK_NEAR(gradient.sides[i], difference(&of.q, of.side + i, 1e-6), 1e-4);
            if (objective != NEAREST_POINT) CHECK_NEAR(gradient.parameter[0], difference(&of.q, &of.q.tau, 1e-6), 1e-5);
            free_gradient(&gradient);
            free_answer(&a);
            discard(&of);
        }
}

/* ---- answers, for other machines to compare ---- */

static void print_numbers(const char *what, const char *name, const Question *q, int n, int status, const double *values) {
    printf("%s, %s, objective %d, instance %d: %d", what, name, q->objective, n, status);
    for (int j = 0; j < q->variables; j++) printf(" %.17g", values[n * q->variables + j]);
    printf("\n");
}

static void print_question(const char *name, const Question *q) {
    Answer a = answer_to(q);
    Gradients gradient = pulled(q, &a);
    for (int n = 0; n < q->count; n++) {
        print_numbers("x", name, q, n, a.status[n], a.x);
        print_numbers("gradient", name, q, n, a.status[n], gradient.scores);
    }
    free_gradient(&gradient);
    free_answer(&a);
}

static void print_answers(void) {
    const char *names[] = {"assignment", "mixed", "full"}, *colder[] = {"cold assignment", "cold mixed", "cold full"};
    const double A[] = {1.0, 1.0, 1.0, 1.0, 2.0, 1.0}, side[] = {0.5, 3.0, 2.0, 1.0, 2.0, 1.0}, price[] = {0.3, INFINITY};
    const double scores[] = {0.1, 0.2, 0.3, 0.1, 0.2, 0.3, 0.1, NAN, 0.3};
    const int sense[] = {AT_MOST, AT_LEAST};
    for (int objective = ENTROPY_WITH_SLACK; objective <= NEAREST_POINT; objective++) {
        for (int kind = 0; kind < TWO_TILES; kind++) {
            Instance of = make(kind, objective, 8);
            print_question(names[kind], &of.q);
            of.q.tau = 0.05;
            of.q.threads = 3;
            if (objective != NEAREST_POINT) print_question(colder[kind], &of.q);
            discard(&of);
        }
        Question q = {.count = 3, .rows = 2, .variables = 3, .A = A, .sense = sense, .side = side, .scores = scores,
                      .tau = 0.1, .own_sides = 1, .objective = objective};
        print_question("contradictory", &q);
        q.price = price;
        print_question("soft", &q);
    }
}

static void tables_list_every_coefficient_once(void) {
    uint64_t seed = 1;
    for (int share = 2; share < 12; share += 3) {
        int64_t row[14 * 50], col[14 * 50], entries = 0;
        for (int i = 0; i < 14; i++)
            for (int j = 0; j < 50; j++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                if ((seed >> 33) % 20 >= (uint64_t)share) continue;
                row[entries] = i;
                col[entries++] = j;
            }
        CHECK(tables_are_right(14, 50, entries, row, col));
    }
}

int main(int count, char **arguments) {
    const char *wanted = count > 1 ? arguments[1] : "";
    for (int i = 1; i < count; i++) {
        if (!strcmp(arguments[i], "--plain")) limit_instructions(0);
        if (!strcmp(arguments[i], "--avx2")) limit_instructions(1);
    }
    if (!strcmp(wanted, "--fuzz") && count > 4)
        return fuzz(strtoull(arguments[2], NULL, 10), strtoull(arguments[3], NULL, 10), strtoull(arguments[4], NULL, 10));
    if (!strcmp(wanted, "--answers")) {
        print_answers();
        return 0;
    }
    printf("instructions: %s\n", instructions());
    TEST(box_alone);
    TEST(nearest_point_of_the_simplex);
    TEST(nearest_point_of_one_equality);
    TEST(entropy_on_the_simplex);
    TEST(entropy_with_one_row);
    TEST(soft_row);
    TEST(several_rows_are_optimal);
    TEST(single_precision);
    TEST(bits_do_not_depend_on_threads);
#ifndef _WIN32
    if (strcmp(wanted, "--no-fork")) TEST(a_forked_child_has_workers_of_its_own);
#endif
    TEST(bits_do_not_depend_on_the_batch);
    TEST(gap_of_tsallis);
    TEST(contradictory_rows);
    TEST(scores_that_are_not_finite);
    TEST(scores_of_minus_infinity);
    TEST(patterns_that_are_refused);
    TEST(tables_list_every_coefficient_once);
    TEST(gradients_are_differences);
    printf("%d passed, %d failed\n", tally.passed, tally.failed);
    return tally.failed > 0;
}
