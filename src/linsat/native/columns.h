/* What the interior-point method works on (interior.h has the method): rows and columns of one instance, scaled; its room,
 * and how its answer is read.
 */

enum { BY_VARIABLES, BY_ROWS, ORTHOGONAL };
enum { LEVELS = 5, FIRST_LEVEL = 2, REFINEMENTS = 8 };
/* Regularisation of the rows, relative to the diagonal of A D^-1 A' + E. */
static const double regularisation[LEVELS] = {1e-13, 1e-11, 1e-9, 1e-7, 1e-5};
#define SMALLEST 1e-300
#define REFINED 1e-12                /* relative residual that is not refined */
#define LEAST_RANK 1e-14             /* beside the largest column of a triangular factor: rows that depend on others */
#define ACCURATE 1e-9                /* relative residual with which less regularisation is tried */
#define INACCURATE 1e-6              /* relative residual with which another factor is */
#define MOSTLY_FILLED 0.25           /* share of coefficients from which on the matrix is kept with its zeros */
#define LARGEST_ORTHOGONAL 500000    /* numbers of the matrix that is factored so */

enum { INTERIOR_STEPS = 200, PATIENCE = 20, PATIENCE_BEYOND = 1, CORRECTORS = 2, EQUILIBRATIONS = 8 };
#define PROGRESS 0.9       /* the worst residual, that of the rows, or in the end the gap falls to this share */
#define BEYOND 1e-4        /* how far below the tolerance can be aimed: the error in x is the root of the gap */
#define JAMMED 1e-2        /* a step this short is stopped by a bound that was approached too fast */
#define CAUTIOUS 0.6       /* share of the mean product that a cautious step aims at, at least */
#define TO_BOUNDARY 0.995  /* share of the way to the nearest bound that a step may go */
#define NO_ROOM 1e-13      /* width of a box, relative to where it is, in which a variable is fixed */
#define LEAST_CURVATURE 1e-14
#define CANCELLED 1e-6     /* weights that cancel to this share are taken to cancel */
#define CONTRADICTION 1e-3 /* by which share of their size weighted sides must exceed what can be reached */

/* How far from optimal a point is, in the scaled units: rows and bounds, stationarity, sum of the products, and what
 * that sum leaves out, see `lacks`. */
typedef struct {
    double infeasibility, stationarity, gap, lacks;
} Measured;

static inline double worst_of(const Measured *m) {
    const double worst = m->infeasibility > m->stationarity ? m->infeasibility : m->stationarity;
    return worst > m->gap ? worst : m->gap;
}

/* By the worst residual; below the tolerance, where rounding has ended the fall of the rows, by the gap. */
static inline int is_better(const Measured *one, const Measured *other, double tol) {
    const double here = worst_of(one), there = worst_of(other);
    if (!(here < tol && there < tol)) return here < there;
    if (one->gap + one->lacks < other->gap + other->lacks) return 1;
    return here < there && one->lacks <= other->lacks + tol;
}

/* The linear system of a step: step_system.h. */
typedef struct {
    Team *team;
    int64_t rows, variables, columns; /* columns: the variables, then those with one coefficient */
    int64_t row_room, variable_room;  /* rounded up to multiples of eight */
    int filled;                       /* the matrix is kept with its zeros */
    int32_t *start, *index;           /* (variables + 1) where the coefficients of each begin, and their rows */
    double *value, *matrix;           /* the coefficients; (variables, row_room) all of them, zeros too */
    int32_t *single_row;              /* (columns - variables) */
    double *sign;                     /* of the only coefficient of each of these */
    double *curvature;                /* (columns) D */
    double *slack;                    /* (rows) E */
    double *gram, *row_weight;        /* (rows) the diagonal of A D^-1 A' + E, and one over its root */
    double *column_weight;            /* (variables) D^-1/2 */
    double *factor, *inverse, *panels, *packed; /* Cholesky factor, its inverse diagonal, and what is multiplied */
    double *reflectors, *diagonal, *turned;     /* of the orthogonal factor, in columns; of R; two vectors */
    int32_t *pivots, *place;          /* the row of each column of the orthogonal factor; where each row of it is */
    int64_t rank, height, height_room;
    double *first, *second, *found_x, *found_v, *rest_x, *rest_v, *next_x, *next_v;
    int method, level, may_be_orthogonal;
    double quality;                   /* relative residual of the last solution */
} System;

/* An iterate or a direction: columns x, distances t and multipliers z of both bounds, duals mu, in one block. */
typedef struct {
    double *x, *t[2], *z[2], *mu;
} Point;

typedef struct {
    System system;
    const Layout *layout;
    const Instance *instance;
    int64_t rows, variables, columns, row_room, room; /* kept ones; room: columns, to a multiple of eight */
    int32_t *row, *variable;                          /* in the user's order */
    double *row_scale, *column_scale;  /* powers of two */
    double *unit;                                     /* (rows) what the 1 of max(1, sum_j |a_ij x_j|) is, at most 1 */
    double *rhs;
    double *linear, *quadratic, *least;               /* (columns) c, q, and the least curvature */
    double *bound[2], *present[2], *entropy[2], *width[2]; /* (columns) of both sides; present: 1 or 0 */
    double *counts;                                   /* (columns) 1 where its cost counts as the objective's */
    int has_entropy, stage, contradictory;            /* contradictory: the duals say that nothing satisfies the rows */
    int64_t bounds, steps, since;
    Point now, direction, other, ahead;
    double *dual, *primal, *off[2], *bend[2], *product[2], *slope[2], *over_t[2], *target[2], *aimed[2], *pull;
    double *sizes, *weights;
    double *best_x, *best_duals;
    Measured best;
    double mark[3], least_centring, length;
} Interior;

/* Whether a column with one coefficient takes up what a soft row is broken by, at a price: a slack costs nothing. */
INLINE int takes_up(const Interior *a, int64_t c) { return a->linear[c] < 0; }

/* ---- the linear system ---- */

/* Whether the side of the variables is that of fewer operations, were every row to have a slack. */
static int fewer_variables(const System *s) {
    const double k = (double)s->rows, l = (double)s->variables;
    if (l >= k) return 0;
    double pairs = 0.0;
    for (int64_t j = 0; j < s->variables; j++) {
        const double count = (double)(s->start[j + 1] - s->start[j]);
        pairs += 4.0 * count * count; /* one by one, not in vectors */
    }
    return k * l * l + l * l * l / 3.0 < (s->filled ? l * k * k : pairs) + k * k * k / 3.0;
}

/* Whether every row has a slack. */
static int all_slack(const System *s) {
    for (int64_t i = 0; i < s->rows; i++)
        if (!(s->slack[i] > 0.0)) return 0;
    return 1;
}

/* Places 0, 1, ... of the rows of the orthogonal factor, the largest of `sizes` first. */
static void sort_places(System *s, const double *sizes) {
    int32_t *order = s->pivots; /* free as yet, and as long */
    for (int64_t r = 0; r < s->height; r++) order[r] = (int32_t)r;
    for (int64_t gap = s->height / 2; gap > 0; gap /= 2)
        for (int64_t r = gap; r < s->height; r++) {
            const int32_t moved = order[r];
            int64_t to = r;
            for (; to >= gap; to -= gap) {
                const int32_t other = order[to - gap];
                if (sizes[other] > sizes[moved] || (sizes[other] == sizes[moved] && other < moved)) break;
                order[to] = other;
            }
            order[to] = moved;
        }
    for (int64_t r = 0; r < s->height; r++) s->place[order[r]] = (int32_t)r;
}

/* The larger of the weighted residuals; NaN where one is. */
static double weighted(const System *s, const double *e, const double *g) {
    double largest = 0.0, sum = 0.0;
    for (int64_t j = 0; j < s->variables; j++) {
        const double size = fabs(e[j]) * s->column_weight[j];
        largest = size > largest ? size : largest;
        sum += size;
    }
    for (int64_t i = 0; i < s->rows; i++) {
        const double size = fabs(g[i]) * s->row_weight[i];
        largest = size > largest ? size : largest;
        sum += size;
    }
    return isfinite(sum) ? largest : NAN;
}

/* ---- reading an instance ---- */

/* Powers of two that bring the largest coefficients of rows and variables close to one. */
static void equilibrate(Interior *a) {
    const System *s = &a->system;
    double *rows = a->row_scale, *columns = a->column_scale, *largest = a->sizes;
    for (int64_t i = 0; i < a->rows; i++) rows[i] = 1.0;
    for (int64_t j = 0; j < a->variables; j++) columns[j] = 1.0;
    for (int n = 0; n < EQUILIBRATIONS; n++) {
        double spread = 1.0;
        memset(largest, 0, a->row_room * sizeof(double));
        for (int64_t j = 0; j < a->variables; j++)
            for (int32_t e = s->start[j]; e < s->start[j + 1]; e++) {
                const double size = fabs(s->value[e]) * columns[j] * rows[s->index[e]];
                if (size > largest[s->index[e]]) largest[s->index[e]] = size;
            }
        for (int64_t i = 0; i < a->rows; i++) {
            if (!(largest[i] > 0)) continue;
            spread = largest[i] > spread ? largest[i] : 1.0 / largest[i] > spread ? 1.0 / largest[i] : spread;
            rows[i] /= sqrt(largest[i]);
        }
        for (int64_t j = 0; j < a->variables; j++) {
            double most = 0.0;
            for (int32_t e = s->start[j]; e < s->start[j + 1]; e++) {
                const double size = fabs(s->value[e]) * columns[j] * rows[s->index[e]];
                most = size > most ? size : most;
            }
            if (!(most > 0)) continue;
            spread = most > spread ? most : 1.0 / most > spread ? 1.0 / most : spread;
            columns[j] /= sqrt(most);
        }
        if (spread < 1.1) break;
    }
    for (int64_t i = 0; i < a->rows; i++) rows[i] = exp2(nearbyint(log2(rows[i])));
    for (int64_t j = 0; j < a->variables; j++) columns[j] = exp2(nearbyint(log2(columns[j])));
}

/* Where a variable is that has no room; NaN where it has. */
INLINE double fixed_at(const Instance *p, int64_t j) {
    if (!p->free[j]) return p->at_upper[j] ? p->upper[j] : p->lower[j];
    const double away = isfinite(p->lower[j]) ? fabs(p->lower[j]) : 0.0;
    return p->upper[j] - p->lower[j] <= NO_ROOM * (away > 1.0 ? away : 1.0) ? p->lower[j] : NAN;
}

/* The rows with a free variable and the free variables, and the coefficients between them, variable by variable with
 * rows in order; what fixed variables take up of each row is left in `best_duals`, by the user's order. */
static void read_matrix(Interior *a) {
    const Layout *layout = a->layout;
    const Instance *p = a->instance;
    System *s = &a->system;
    double *taken = a->best_duals;
    int32_t *kept_row = s->place, *kept_variable = s->place + layout->rows; /* free as yet */
    memset(taken, 0, layout->rows * sizeof(double));
    a->rows = a->variables = 0;
    for (int64_t i = 0; i < layout->rows; i++) kept_row[i] = -1;
    for (int64_t j = 0; j < layout->variables; j++) {
        kept_variable[j] = -1;
        if (isfinite(fixed_at(p, j))) continue;
        kept_variable[j] = (int32_t)a->variables;
        a->variable[a->variables++] = (int32_t)j;
    }
    for (int64_t e = 0; e < layout->entries; e++) {
        const int32_t i = layout->order[layout->entry_row[e]], j = layout->entry_col[e];
        const double value = p->values[e];
        if (kept_variable[j] < 0) taken[i] += value * fixed_at(p, j);
        else if (value != 0.0) kept_row[i] = 0;
    }
    for (int64_t i = 0; i < layout->rows; i++) {
        const Ends ends = ends_of(p, i);
        if (kept_row[i] < 0 || !p->active[i] || !(isfinite(ends.lower) || isfinite(ends.upper))) kept_row[i] = -1;
        else {
            kept_row[i] = (int32_t)a->rows;
            a->row[a->rows++] = (int32_t)i;
        }
    }
    /* Count, begin, and put: rows in order because a sort by rows comes first. */
    int32_t *begin = s->pivots, *sorted = (int32_t *)s->panels;
    memset(begin, 0, (a->rows + 1) * sizeof(int32_t));
    memset(s->start, 0, (a->variables + 1) * sizeof(int32_t));
    for (int64_t e = 0; e < layout->entries; e++) {
        const int32_t i = kept_row[layout->order[layout->entry_row[e]]], j = kept_variable[layout->entry_col[e]];
        if (i < 0 || j < 0 || p->values[e] == 0.0) continue;
        begin[i + 1]++;
        s->start[j + 1]++;
    }
    for (int64_t i = 0; i < a->rows; i++) begin[i + 1] += begin[i];
    for (int64_t j = 0; j < a->variables; j++) s->start[j + 1] += s->start[j];
    for (int64_t e = 0; e < layout->entries; e++) {
        const int32_t i = kept_row[layout->order[layout->entry_row[e]]], j = kept_variable[layout->entry_col[e]];
        if (i >= 0 && j >= 0 && p->values[e] != 0.0) sorted[begin[i]++] = (int32_t)e;
    }
    const int32_t kept = s->start[a->variables];
    for (int32_t n = 0; n < kept; n++) {
        const int32_t e = sorted[n], at = s->start[kept_variable[layout->entry_col[e]]]++;
        s->index[at] = kept_row[layout->order[layout->entry_row[e]]];
        s->value[at] = p->values[e];
    }
    memmove(s->start + 1, s->start, a->variables * sizeof(int32_t));
    s->start[0] = 0;
}

/* One more column, with its bounds (infinite: none). */
INLINE void put_column(Interior *a, int64_t c, Column column, double lower, double upper) {
    const double ends[2] = {lower, upper};
    const int curved = column.quadratic > 0 || column.entropy[0] > 0;
    a->linear[c] = column.linear;
    a->quadratic[c] = column.quadratic;
    for (int side = 0; side < 2; side++) {
        a->present[side][c] = isfinite(ends[side]) ? 1.0 : 0.0;
        a->bound[side][c] = isfinite(ends[side]) ? ends[side] : 0.0;
        a->entropy[side][c] = column.entropy[side];
        a->width[side][c] = column.width;
    }
    a->has_entropy |= column.entropy[0] > 0;
    a->least[c] = curved ? SMALLEST : LEAST_CURVATURE;
    a->counts[c] = curved;
}

/* The columns with one coefficient of a kept row: its slack, and what it may be broken by. */
static void read_row(Interior *a, int64_t i, double taken, double tau) {
    const Instance *p = a->instance;
    System *s = &a->system;
    const int64_t user = a->row[i];
    const Ends ends = ends_of(p, user);
    const double r = a->row_scale[i], prices[2] = {ends.over, ends.under};
    const double lower = (ends.lower - taken) * r, upper = (ends.upper - taken) * r;
    a->rhs[i] = 0.0;
    if (ends.lower == ends.upper) a->rhs[i] = lower;
    else {
        const double entropy = p->slack[user] > 0 && !p->tight[user] ? tau / p->scale[user] / r : 0.0;
        const Column slack = {0.0, 0.0, {entropy, entropy}, entropy > 0 ? upper - lower : 1.0};
        s->single_row[a->columns - a->variables] = (int32_t)i;
        s->sign[a->columns - a->variables] = -1.0;
        put_column(a, a->columns, slack, lower, upper);
        a->least[a->columns++] = LEAST_CURVATURE;
    }
    for (int way = 0; way < 2; way++) {
        if (!isfinite(way ? ends.lower : ends.upper) || prices[way] == INFINITY) continue;
        s->single_row[a->columns - a->variables] = (int32_t)i;
        s->sign[a->columns - a->variables] = way ? 1.0 : -1.0;
        put_column(a, a->columns++, (Column){-prices[way] / r, 0.0, {0.0, 0.0}, 1.0}, 0.0, INFINITY);
    }
}

/* Scaled columns and rows: every objective of the core. */
static void read_columns(Interior *a, int objective, const double *scores) {
    const Instance *p = a->instance;
    const double tau = p->parameters[0][0];
    a->has_entropy = 0;
    for (int64_t n = 0; n < a->variables; n++) {
        const int64_t j = a->variable[n];
        const double g = a->column_scale[n];
        const Variable of = variable_of(p, objective, j);
        Column column = column_of(objective, &of, scores[j], OBJECTIVES[objective].unit == OF_ROWS ? most_of(of.upper - of.lower, p->room[j]) : 1.0);
        column.linear *= g;
        column.quadratic *= g * g;
        column.width /= g;
        for (int side = 0; side < 2; side++) column.entropy[side] *= g;
        put_column(a, n, column, of.lower / g, of.upper / g);
    }
    a->columns = a->variables;
    for (int64_t i = 0; i < a->rows; i++) read_row(a, i, a->best_duals[a->row[i]], tau);
    a->room = rounded_up(a->columns);
    int any = 0;
    for (int64_t c = 0; c < a->variables; c++) any |= a->counts[c] > 0;
    for (int64_t c = 0; c < a->columns && !any; c++) a->counts[c] = !a->counts[c];
    for (int64_t c = a->columns; c < a->room; c++) {
        put_column(a, c, (Column){0.0, 1.0, {0.0, 0.0}, 1.0}, -INFINITY, INFINITY);
        a->counts[c] = 0.0;
    }
    a->bounds = 0;
    for (int64_t c = 0; c < a->columns; c++) a->bounds += (a->present[0][c] > 0) + (a->present[1][c] > 0);
}

/* Scaled coefficients, and what the linear system is to know. */
static void prepare_system(Interior *a) {
    System *s = &a->system;
    s->rows = a->rows;
    s->variables = a->variables;
    s->columns = a->columns;
    s->row_room = a->row_room;
    s->variable_room = rounded_up(a->variables);
    s->height = a->rows + a->variables;
    s->height_room = rounded_up(s->height);
    s->may_be_orthogonal = s->rows * s->height_room <= LARGEST_ORTHOGONAL;
    s->filled = s->start[a->variables] >= MOSTLY_FILLED * (double)a->rows * (double)a->variables;
    s->method = fewer_variables(s) ? BY_VARIABLES : BY_ROWS;
    s->level = FIRST_LEVEL;
    s->quality = 0.0;
    if (s->filled) memset(s->matrix, 0, a->variables * a->row_room * sizeof(double));
    for (int64_t j = 0; j < a->variables; j++)
        for (int32_t e = s->start[j]; e < s->start[j + 1]; e++) {
            s->value[e] *= a->column_scale[j] * a->row_scale[s->index[e]];
            if (s->filled) s->matrix[j * a->row_room + s->index[e]] = s->value[e];
        }
    for (int64_t i = 0; i < a->rows; i++) a->unit[i] = a->row_scale[i] < 1.0 ? a->row_scale[i] : 1.0;
}

INLINE double greater(double one, double other) { return one > other ? one : other; }

INLINE void exchange(double **one, double **other) {
    double *kept = *one;
    *one = *other;
    *other = kept;
}

/* ---- a point ---- */

/* Keep the point: duals 0 for inequalities without entropy whose distance to the bound exceeds their dual. */
static void keep_best(Interior *a, const Measured *measured) {
    const System *s = &a->system;
    a->best = *measured;
    memcpy(a->best_x, a->now.x, a->columns * sizeof(double));
    memcpy(a->best_duals, a->now.mu, a->rows * sizeof(double));
    for (int64_t c = a->variables; c < a->columns; c++) {
        const int64_t i = s->single_row[c - a->variables];
        double nearest = INFINITY;
        if (takes_up(a, c) || a->entropy[0][c] > 0 || a->entropy[1][c] > 0) continue; /* not a plain slack */
        for (int side = 0; side < 2; side++)
            if (a->present[side][c] > 0 && a->now.t[side][c] < nearest) nearest = a->now.t[side][c];
        if (nearest > fabs(a->now.mu[i])) a->best_duals[i] = 0.0;
    }
}

/* to = targets that also bring products far from nu back to within a factor of ten. */
static void recentre(const Interior *a, double nu, double *const *from, double *const *product, double *const *to) {
    for (int side = 0; side < 2; side++)
        for (int64_t c = 0; c < a->columns; c++) {
            const double p = product[side][c];
            double off = p < 0.1 * nu ? 0.1 * nu - p : p > 10 * nu ? 10 * nu - p : 0.0;
            off = off > 10 * nu ? 10 * nu : off < -10 * nu ? -10 * nu : off;
            to[side][c] = from[side][c] + a->present[side][c] * off;
        }
}

/* All of `values` moved up by as much as makes the least of them positive, and one more. */
static void move_inside(const Interior *a, double *const *values, double reach) {
    double least = INFINITY;
    for (int side = 0; side < 2; side++)
        for (int64_t c = 0; c < a->columns; c++)
            if (a->present[side][c] > 0 && values[side][c] < least) least = values[side][c];
    if (!(least <= 1e-8 * reach)) return;
    const double shift = 1.0 + (least < 0 ? -least : 0.0);
    for (int side = 0; side < 2; side++)
        for (int64_t c = 0; c < a->columns; c++) values[side][c] += shift * a->present[side][c];
}

/* Whether one of the three numbers that are to fall has fallen enough. */
static int progresses(Interior *a, const Measured *measured, double tol) {
    const double worst = worst_of(&a->best);
    const double now[3] = {worst, measured->infeasibility, worst < tol ? measured->gap : INFINITY};
    int any = 0;
    for (int n = 0; n < 3; n++) any |= now[n] < PROGRESS * a->mark[n];
    for (int n = 0; n < 3 && any; n++) a->mark[n] = now[n] < a->mark[n] ? now[n] : a->mark[n];
    return any;
}

/* ---- room, and the answer ---- */

/* Point to the work arrays, one after another from `at` on; returns where they end. */
static double *arrange_interior(Interior *a, const Layout *layout, double *at) {
    System *s = &a->system;
    const int64_t k = rounded_up(layout->rows), l = rounded_up(layout->variables), n = l + 3 * k + 8;
    const int64_t height = rounded_up(layout->rows + layout->variables);
    Point *points[] = {&a->now, &a->direction, &a->other, &a->ahead};
    for (int p = 0; p < 4; p++) points[p]->x = take(&at, 5 * n + k);
    TAKE(&at, n, &a->linear, &a->quadratic, &a->least, &a->bound[0], &a->bound[1], &a->present[0], &a->present[1], &a->entropy[0],
         &a->entropy[1], &a->width[0], &a->width[1], &a->counts, &a->dual, &a->off[0], &a->off[1], &a->bend[0], &a->bend[1],
         &a->product[0], &a->product[1], &a->slope[0], &a->slope[1], &a->over_t[0], &a->over_t[1], &a->target[0], &a->target[1],
         &a->aimed[0], &a->aimed[1], &a->pull, &a->weights, &a->best_x, &s->curvature, &s->sign);
    TAKE(&at, k, &a->row_scale, &a->unit, &a->rhs, &a->primal, &a->sizes, &a->best_duals, &s->slack, &s->gram, &s->row_weight,
         &s->second, &s->found_v, &s->rest_v, &s->next_v);
    TAKE(&at, l, &a->column_scale, &s->column_weight, &s->first, &s->found_x, &s->rest_x, &s->next_x);
    TAKE(&at, height + 16, &s->inverse, &s->diagonal);
    s->turned = take(&at, 2 * height);
    int32_t **whole[] = {&a->row, &a->variable, &s->place, &s->pivots};
    for (size_t c = 0; c < sizeof(whole) / sizeof(*whole); c++) *whole[c] = (int32_t *)take(&at, height / 2 + 8);
    s->start = (int32_t *)take(&at, l / 2 + 8);
    s->single_row = (int32_t *)take(&at, n / 2 + 8);
    s->index = (int32_t *)take(&at, layout->entries / 2 + 8);
    s->value = take(&at, layout->entries);
    s->matrix = take(&at, layout->variables * k);
    const int64_t by_rows = layout->variables * k, by_variables = layout->rows * l; /* only where these are fewer */
    double *shared = at; /* of the three factors only one is there at a time */
    s->factor = take(&at, (k + 8) * (k + 8));
    s->packed = take(&at, TILE * (k + 8));
    s->panels = take(&at, (by_rows > by_variables ? by_rows : by_variables) + layout->entries / 2 + 16);
    s->reflectors = shared;
    const int64_t orthogonal = layout->rows * height;
    const int64_t used = at - shared;
    if (orthogonal <= LARGEST_ORTHOGONAL && orthogonal > used) at += rounded_up(orthogonal - used);
    return at;
}

/* How many doubles of memory, aligned to 64 bytes, the method needs for these rows. */
static int64_t interior_room(const Layout *layout) {
    Interior a;
    double *origin = (double *)64;
    return arrange_interior(&a, layout, origin) - origin;
}

/* Read one instance; the scores are finite. */
static void interior_begin(Interior *a, Team *team, const Layout *layout, const Instance *instance, int objective,
                              const double *scores, double *memory) {
    memset(a, 0, sizeof(*a));
    arrange_interior(a, layout, memory);
    a->layout = layout;
    a->instance = instance;
    a->system.team = team;
    read_matrix(a);
    a->row_room = rounded_up(a->rows);
    equilibrate(a);
    read_columns(a, objective, scores);
    Point *points[] = {&a->now, &a->direction, &a->other, &a->ahead};
    for (int p = 0; p < 4; p++) {
        double *at = points[p]->x + a->room;
        for (int side = 0; side < 2; side++, at += a->room) points[p]->t[side] = at;
        for (int side = 0; side < 2; side++, at += a->room) points[p]->z[side] = at;
        points[p]->mu = at;
        memset(points[p]->x, 0, (5 * a->room + a->row_room) * sizeof(double));
    }
    double *zeroed[] = {a->dual, a->off[0], a->off[1], a->bend[0], a->bend[1], a->product[0], a->product[1],
                        a->target[0], a->target[1], a->aimed[0], a->aimed[1], a->pull};
    for (size_t c = 0; c < sizeof(zeroed) / sizeof(*zeroed); c++) memset(zeroed[c], 0, a->room * sizeof(double));
    prepare_system(a);
    a->best = (Measured){INFINITY, INFINITY, INFINITY, INFINITY};
    memset(a->best_x, 0, a->room * sizeof(double));
    memset(a->best_duals, 0, a->layout->rows * sizeof(double));
}

/* x in its box, and the duals of the rows as written: 0 for rows that do not bind, at their price for soft rows that
 * are broken by more than their dual lacks to it; both in the user's order. */
static void interior_answer(const Interior *a, double *x, double *duals) {
    const Instance *p = a->instance;
    const System *s = &a->system;
    for (int64_t j = 0; j < a->layout->variables; j++) x[j] = fixed_at(p, j);
    for (int64_t n = 0; n < a->variables; n++) {
        const int64_t j = a->variable[n];
        const double value = a->best_x[n] * a->column_scale[n];
        x[j] = value < p->lower[j] ? p->lower[j] : value > p->upper[j] ? p->upper[j] : value;
    }
    memset(duals, 0, a->layout->rows * sizeof(double));
    for (int64_t i = 0; i < a->rows; i++) duals[a->row[i]] = a->best_duals[i] * a->row_scale[i];
    for (int64_t c = a->variables; c < a->columns; c++) {
        if (!takes_up(a, c)) continue;
        const int64_t i = s->single_row[c - a->variables], user = a->row[i];
        const double r = a->row_scale[i], price = -a->linear[c] * r, sign = s->sign[c - a->variables];
        if (a->best_x[c] / r > price - sign * duals[user]) duals[user] = sign * price;
    }
    for (int64_t i = 0; i < a->layout->rows; i++) {
        if (p->tight[i]) continue;
        const double low = p->dual_lower[i], high = p->dual_upper[i];
        duals[i] = duals[i] < low ? low : duals[i] > high ? high : duals[i];
    }
}

/* Of rows that the method takes for contradictory, the duals that say so: a hint for who can prove it. */
static void interior_hint(const Interior *a, double *duals) {
    memset(duals, 0, a->layout->rows * sizeof(double));
    for (int64_t i = 0; i < a->rows; i++) duals[a->row[i]] = a->now.mu[i] * a->row_scale[i];
}
