/* The interior-point method of linsat/solvers/interior_point.py, dense, for one instance of up to a few hundred rows
 * and variables: what Newton's method does not solve comes here.
 *
 *     minimise  sum_j [q_j x_j^2 / 2 - c_j x_j]  +  entropy      subject to  A x = s,  box on x,  ends on s
 *
 * Columns are the variables, the slacks s of rows whose ends differ, and what soft rows are broken by, at their
 * price. Each has a linear and a quadratic cost and up to two bounds; a bound at distance t with multiplier z >= 0
 * has an entropy a of width w (0: none), and everything that is not linear in the optimality conditions is one curve
 * per bound,
 *
 *     t z + a t (log(t / w) - 1) = nu,     nu -> 0.
 *
 * (The 1 cancels between the two bounds of a column and keeps z above zero.) `read_columns` says which columns there
 * are; the iteration knows nothing but these numbers, so that another kind of column, an entropy at one bound only
 * among them, is written there alone. Mehrotra's predictor and corrector with Gondzio's further ones; rows and
 * columns equilibrated; the linear system is that of step_system.h. What the method claims is measured in its own,
 * scaled units and no verdict.
 *
 * Included by core.c once per instruction set.
 */

#define Point V(Point)
#define Interior V(Interior)

#ifndef LINSAT_INTERIOR
#define LINSAT_INTERIOR
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
#endif

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
INLINE int V(takes_up)(const Interior *a, int64_t c) { return a->linear[c] < 0; }

/* ---- reading an instance ---- */

/* Powers of two that bring the largest coefficients of rows and variables close to one. */
static void V(equilibrate)(Interior *a) {
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
INLINE double V(fixed_at)(const Instance *p, int64_t j) {
    if (!p->free[j]) return p->at_upper[j] ? p->upper[j] : p->lower[j];
    const double away = isfinite(p->lower[j]) ? fabs(p->lower[j]) : 0.0;
    return p->upper[j] - p->lower[j] <= NO_ROOM * (away > 1.0 ? away : 1.0) ? p->lower[j] : NAN;
}

/* The rows with a free variable and the free variables, and the coefficients between them, variable by variable with
 * rows in order; what fixed variables take up of each row is left in `best_duals`, by the user's order. */
static void V(read_matrix)(Interior *a) {
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
        if (isfinite(V(fixed_at)(p, j))) continue;
        kept_variable[j] = (int32_t)a->variables;
        a->variable[a->variables++] = (int32_t)j;
    }
    for (int64_t e = 0; e < layout->entries; e++) {
        const int32_t i = layout->order[layout->entry_row[e]], j = layout->entry_col[e];
        const double value = p->values[layout->entry[e]];
        if (kept_variable[j] < 0) taken[i] += value * V(fixed_at)(p, j);
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
        if (i < 0 || j < 0 || p->values[layout->entry[e]] == 0.0) continue;
        begin[i + 1]++;
        s->start[j + 1]++;
    }
    for (int64_t i = 0; i < a->rows; i++) begin[i + 1] += begin[i];
    for (int64_t j = 0; j < a->variables; j++) s->start[j + 1] += s->start[j];
    for (int64_t e = 0; e < layout->entries; e++) {
        const int32_t i = kept_row[layout->order[layout->entry_row[e]]], j = kept_variable[layout->entry_col[e]];
        if (i >= 0 && j >= 0 && p->values[layout->entry[e]] != 0.0) sorted[begin[i]++] = (int32_t)e;
    }
    const int32_t kept = s->start[a->variables];
    for (int32_t n = 0; n < kept; n++) {
        const int32_t e = sorted[n], at = s->start[kept_variable[layout->entry_col[e]]]++;
        s->index[at] = kept_row[layout->order[layout->entry_row[e]]];
        s->value[at] = p->values[layout->entry[e]];
    }
    memmove(s->start + 1, s->start, a->variables * sizeof(int32_t));
    s->start[0] = 0;
}

/* One more column, with its bounds (infinite: none). */
INLINE void V(put_column)(Interior *a, int64_t c, Column column, double lower, double upper) {
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
static void V(read_row)(Interior *a, int64_t i, double taken, double tau) {
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
        V(put_column)(a, a->columns, slack, lower, upper);
        a->least[a->columns++] = LEAST_CURVATURE;
    }
    for (int way = 0; way < 2; way++) {
        if (!isfinite(way ? ends.lower : ends.upper) || prices[way] == INFINITY) continue;
        s->single_row[a->columns - a->variables] = (int32_t)i;
        s->sign[a->columns - a->variables] = way ? 1.0 : -1.0;
        V(put_column)(a, a->columns++, (Column){-prices[way] / r, 0.0, {0.0, 0.0}, 1.0}, 0.0, INFINITY);
    }
}

/* Scaled columns and rows: every objective of the core. */
static void V(read_columns)(Interior *a, int objective, const double *scores) {
    const Instance *p = a->instance;
    const double tau = p->parameters[0][0];
    a->has_entropy = 0;
    for (int64_t n = 0; n < a->variables; n++) {
        const int64_t j = a->variable[n];
        const double g = a->column_scale[n];
        const Variable of = V(variable_of)(p, objective, j);
        Column column = column_of(objective, &of, scores[j], has_unit(objective) ? most_of(of.upper - of.lower, p->room[j]) : 1.0);
        column.linear *= g;
        column.quadratic *= g * g;
        column.width /= g;
        for (int side = 0; side < 2; side++) column.entropy[side] *= g;
        V(put_column)(a, n, column, of.lower / g, of.upper / g);
    }
    a->columns = a->variables;
    for (int64_t i = 0; i < a->rows; i++) V(read_row)(a, i, a->best_duals[a->row[i]], tau);
    a->room = rounded_up(a->columns);
    int any = 0;
    for (int64_t c = 0; c < a->variables; c++) any |= a->counts[c] > 0;
    for (int64_t c = 0; c < a->columns && !any; c++) a->counts[c] = !a->counts[c];
    for (int64_t c = a->columns; c < a->room; c++) {
        V(put_column)(a, c, (Column){0.0, 1.0, {0.0, 0.0}, 1.0}, -INFINITY, INFINITY);
        a->counts[c] = 0.0;
    }
    a->bounds = 0;
    for (int64_t c = 0; c < a->columns; c++) a->bounds += (a->present[0][c] > 0) + (a->present[1][c] > 0);
}

/* Scaled coefficients, and what the linear system is to know. */
static void V(prepare_system)(Interior *a) {
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
    s->method = V(fewer_variables)(s) ? BY_VARIABLES : BY_ROWS;
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

/* ---- the curve of each bound ---- */

/* a (log(t / w) - 1) of both sides */
static void V(bends)(const Interior *a, const Point *at, double *const *to) {
    for (int side = 0; side < 2; side++) {
        const double *t = at->t[side], *entropy = a->entropy[side], *width = a->width[side];
        for (int64_t c = 0; c < a->columns; c++) {
            const double distance = t[c] > SMALLEST ? t[c] : SMALLEST;
            to[side][c] = entropy[c] > 0 ? entropy[c] * (log(distance / width[c]) - 1.0) : 0.0;
        }
    }
}

/* t z + a t (log(t / w) - 1) of both sides, 0 where there is no bound, and the bends; returns the sum of sizes. */
static double V(products)(const Interior *a, const Point *at, double *const *bend, double *const *to) {
    if (a->has_entropy) V(bends)(a, at, bend);
    vec total = {0};
    for (int side = 0; side < 2; side++)
        for (int64_t c = 0; c < a->room; c += LANES) {
            vec slope = V(load)(at->z[side] + c);
            if (a->has_entropy) slope += V(load)(bend[side] + c);
            const vec product = V(load)(a->present[side] + c) * V(load)(at->t[side] + c) * slope;
            V(store)(to[side] + c, product);
            total += V(size_of)(product);
        }
    return V(sum_of)(total);
}

/* How much farther from each bound z asks columns with entropy to be than t, where that is far more, times the
 * entropy.
 *
 * The curve has a branch t = 0, where z is too small to hold x. Columns that rows force to a bound end there,
 * whatever z; the others must not. */
static double V(lacks)(const Interior *a) {
    double total = 0.0;
    for (int side = 0; side < 2 && a->has_entropy; side++)
        for (int64_t c = 0; c < a->columns; c++) {
            const double entropy = a->entropy[side][c];
            if (!(entropy > 0)) continue;
            const double power = 1.0 - a->now.z[side][c] / entropy, t = a->now.t[side][c];
            const double asked = a->width[side][c] * exp(power < 0.0 ? power : 0.0);
            if (t < 0.1 * asked) total += entropy * (asked - t);
        }
    return total;
}

/* ---- one point ---- */

/* What is left of stationarity, of the rows and of the definition of t. */
static void V(residuals)(Interior *a) {
    const System *s = &a->system;
    const Point *at = &a->now;
    V(variables_of)(s, at->mu, 0, a->dual);
    V(rows_of)(s, at->x, 0, a->primal);
    for (int64_t i = 0; i < a->rows; i++) a->primal[i] = a->rhs[i] - a->primal[i];
    for (int64_t c = a->variables; c < a->columns; c++) {
        const int64_t i = s->single_row[c - a->variables];
        const double sign = s->sign[c - a->variables];
        a->dual[c] = sign * at->mu[i];
        a->primal[i] -= sign * at->x[c];
    }
    for (int64_t c = 0; c < a->room; c += LANES) {
        const vec x = V(load)(at->x + c);
        V(store)(a->dual + c, V(load)(a->linear + c) - V(load)(a->quadratic + c) * x + V(load)(a->dual + c) +
                                  (V(load)(at->z[0] + c) - V(load)(at->z[1] + c)));
        for (int side = 0; side < 2; side++) {
            const vec away = x - V(load)(a->bound[side] + c), distance = side ? -away : away;
            V(store)(a->off[side] + c, V(load)(a->present[side] + c) * (distance - V(load)(at->t[side] + c)));
        }
    }
}

/* The size of the objective, without columns that have a price only: what soft rows lack may be any amount. */
static double V(objective_size)(const Interior *a) {
    vec total = {0};
    for (int64_t c = 0; c < a->room; c += LANES) {
        const vec x = V(load)(a->now.x + c);
        const vec cost = (0.5 * V(load)(a->quadratic + c) * x - V(load)(a->linear + c)) * x;
        total += V(size_of)(cost) * V(load)(a->counts + c);
    }
    return V(sum_of)(total);
}

INLINE double V(greater)(double one, double other) { return one > other ? one : other; }

/* Residuals and products must be set; NaN where a number is not finite. */
static Measured V(measure)(Interior *a, double gap) {
    const System *s = &a->system;
    const Point *at = &a->now;
    Measured found = {0};
    double sum = gap;
    V(rows_of)(s, at->x, 1, a->sizes);
    V(variables_of)(s, at->mu, 1, a->weights);
    for (int64_t c = a->variables; c < a->columns; c++) {
        const int64_t i = s->single_row[c - a->variables];
        a->weights[c] = fabs(at->mu[i]);
        if (V(takes_up)(a, c)) a->sizes[i] += fabs(at->x[c]); /* what takes up how much a soft row is broken by */
    }
    for (int64_t i = 0; i < a->rows; i++) {
        sum += fabs(a->primal[i]);
        found.infeasibility = V(greater)(fabs(a->primal[i]) / V(greater)(a->unit[i], a->sizes[i]), found.infeasibility);
    }
    for (int64_t c = 0; c < a->columns; c++) {
        const double x = fabs(at->x[c]), off = V(greater)(fabs(a->off[0][c]), fabs(a->off[1][c]));
        const double terms = fabs(a->linear[c]) + a->quadratic[c] * x + at->z[0][c] + at->z[1][c];
        const double weight = 1.0 + a->weights[c] + terms;
        sum += fabs(a->dual[c]);
        found.infeasibility = V(greater)(off / V(greater)(1.0, x), found.infeasibility);
        found.stationarity = V(greater)(fabs(a->dual[c]) / weight, found.stationarity);
    }
    const double value = 1.0 + V(objective_size)(a);
    found.gap = isfinite(sum) ? gap / value : NAN;
    found.lacks = V(lacks)(a) / value;
    return found;
}

/* Keep the point: duals 0 for inequalities without entropy whose distance to the bound exceeds their dual. */
static void V(keep_best)(Interior *a, const Measured *measured) {
    const System *s = &a->system;
    a->best = *measured;
    memcpy(a->best_x, a->now.x, a->columns * sizeof(double));
    memcpy(a->best_duals, a->now.mu, a->rows * sizeof(double));
    for (int64_t c = a->variables; c < a->columns; c++) {
        const int64_t i = s->single_row[c - a->variables];
        double nearest = INFINITY;
        if (V(takes_up)(a, c) || a->entropy[0][c] > 0 || a->entropy[1][c] > 0) continue; /* not a plain slack */
        for (int side = 0; side < 2; side++)
            if (a->present[side][c] > 0 && a->now.t[side][c] < nearest) nearest = a->now.t[side][c];
        if (nearest > fabs(a->now.mu[i])) a->best_duals[i] = 0.0;
    }
}

/* ---- one step ---- */

/* The solution of the linearised conditions with these changes of the products; the first of a step factors. */
static void V(towards)(Interior *a, double *const *target, int first, const Point *to) {
    for (int64_t c = 0; c < a->room; c += LANES) {
        vec pull = V(load)(a->dual + c);
        for (int side = 0; side < 2; side++) {
            const vec change = V(load)(target[side] + c) - V(load)(a->slope[side] + c) * V(load)(a->off[side] + c);
            const vec part = change * V(load)(a->over_t[side] + c);
            pull = side ? pull - part : pull + part;
        }
        V(store)(a->pull + c, pull);
    }
    if (first) V(solve_accurately)(&a->system, a->pull, a->primal, to->x, to->mu);
    else V(solve_system)(&a->system, a->pull, a->primal, to->x, to->mu);
    for (int64_t c = 0; c < a->room; c += LANES) {
        const vec dx = V(load)(to->x + c);
        for (int side = 0; side < 2; side++) {
            const vec present = V(load)(a->present[side] + c);
            const vec dt = present * ((side ? -dx : dx) + V(load)(a->off[side] + c));
            V(store)(to->t[side] + c, dt);
            V(store)(to->z[side] + c,
                     (V(load)(target[side] + c) - V(load)(a->slope[side] + c) * dt) * V(load)(a->over_t[side] + c));
        }
    }
}

/* How far t and z stay positive, at most 1. */
static double V(longest)(const Interior *a, const Point *direction) {
    vec most = V(all)(1.0);
    for (int64_t c = 0; c < 4 * a->room; c += LANES) { /* t and z of both sides follow one another */
        const vec value = V(load)(a->now.t[0] + c), change = V(load)(direction->t[0] + c);
        most = V(larger)((vec)((change < 0.0) & (mask)(-change / value)), most);
    }
    return 1.0 / V(largest_of)(most);
}

/* to = now + length * direction */
static void V(move)(const Interior *a, const Point *direction, double length, const Point *to) {
    const int64_t numbers = 5 * a->room + a->row_room;
    for (int64_t n = 0; n < numbers; n += LANES)
        V(store)(to->x + n, V(load)(a->now.x + n) + length * V(load)(direction->x + n));
}

/* to = targets that also bring products far from nu back to within a factor of ten. */
static void V(recentre)(const Interior *a, double nu, double *const *from, double *const *product, double *const *to) {
    for (int side = 0; side < 2; side++)
        for (int64_t c = 0; c < a->columns; c++) {
            const double p = product[side][c];
            double off = p < 0.1 * nu ? 0.1 * nu - p : p > 10 * nu ? 10 * nu - p : 0.0;
            off = off > 10 * nu ? 10 * nu : off < -10 * nu ? -10 * nu : off;
            to[side][c] = from[side][c] + a->present[side][c] * off;
        }
}

/* D, slopes and 1 / t at the point. */
static void V(curve)(Interior *a) {
    for (int64_t c = 0; c < a->room; c += LANES) {
        vec curvature = V(load)(a->quadratic + c);
        for (int side = 0; side < 2; side++) {
            const vec present = V(load)(a->present[side] + c), entropy = V(load)(a->entropy[side] + c);
            vec slope = V(load)(a->now.z[side] + c) + entropy;
            if (a->has_entropy) slope += V(load)(a->bend[side] + c);
            /* Where the curve bends up too early its slope would turn negative; the entropy's own is right then. */
            slope = V(larger)(slope, entropy);
            const vec over = present / V(load)(a->now.t[side] + c);
            V(store)(a->slope[side] + c, slope);
            V(store)(a->over_t[side] + c, over);
            curvature += slope * over;
        }
        V(store)(a->system.curvature + c, V(larger)(curvature, V(load)(a->least + c)));
    }
}

/* Predictor, corrector and further correctors into `direction`, and how far to go along it into `length`. */
static void V(find_step)(Interior *a, double gap, int closed, double aim) {
    const double average = gap / (double)(a->bounds > 1 ? a->bounds : 1);
    V(curve)(a);
    for (int side = 0; side < 2; side++)
        for (int64_t c = 0; c < a->room; c += LANES) V(store)(a->target[side] + c, -V(load)(a->product[side] + c));
    V(towards)(a, a->target, 1, &a->direction);
    V(move)(a, &a->direction, V(longest)(a, &a->direction), &a->ahead);
    const double share = V(products)(a, &a->ahead, a->aimed, a->aimed) / V(greater)(gap, SMALLEST);
    double centring = share * share * share;
    centring = centring > 1.0 ? 1.0 : V(greater)(centring, 1e-8);
    double nu = V(greater)(centring, a->least_centring) * average;
    if (closed) /* the gap is small enough: shrinking it further would only cost accuracy */
        nu = V(greater)(nu, 1e-3 * aim * (1.0 + V(objective_size)(a)) / (double)(a->bounds > 1 ? a->bounds : 1));
    for (int side = 0; side < 2; side++)
        for (int64_t c = 0; c < a->room; c += LANES) {
            const vec second = V(load)(a->direction.t[side] + c) * V(load)(a->direction.z[side] + c);
            const vec change = nu - V(load)(a->product[side] + c) - second;
            V(store)(a->target[side] + c, V(load)(a->present[side] + c) * change);
        }
    V(towards)(a, a->target, 0, &a->direction);
    double length = V(longest)(a, &a->direction);
    for (int n = 0; n < CORRECTORS && length <= 0.99; n++) {
        const double farther = 1.5 * length + 0.1;
        V(move)(a, &a->direction, farther < 1.0 ? farther : 1.0, &a->ahead);
        V(products)(a, &a->ahead, a->aimed, a->aimed);
        V(recentre)(a, nu, a->target, a->aimed, a->aimed);
        V(towards)(a, a->aimed, 0, &a->other);
        const double longer = V(longest)(a, &a->other);
        if (!(longer >= length + 0.01)) break;
        const Point kept = a->direction;
        a->direction = a->other;
        a->other = kept;
        length = longer;
        for (int side = 0; side < 2; side++) V(exchange)(&a->target[side], &a->aimed[side]);
    }
    if (!a->bounds) a->length = 1.0;
    else a->length = length < 1.0 ? TO_BOUNDARY * length : 0.9995;
    if (a->bounds && a->length > 0.9995) a->length = 0.9995;
}

/* Larger multipliers where a product far below the others has stopped the steps. */
static void V(set_free)(Interior *a) {
    const double gap = V(products)(a, &a->now, a->bend, a->product);
    const double least = 0.1 * gap / (double)(a->bounds > 1 ? a->bounds : 1);
    for (int side = 0; side < 2; side++)
        for (int64_t c = 0; c < a->columns; c++) {
            const double enough = least / a->now.t[side][c] - a->bend[side][c];
            if (a->present[side][c] > 0 && a->now.z[side][c] < enough) a->now.z[side][c] = enough;
        }
}

/* ---- the path ---- */

/* All of `values` moved up by as much as makes the least of them positive, and one more. */
static void V(move_inside)(const Interior *a, double *const *values, double reach) {
    double least = INFINITY;
    for (int side = 0; side < 2; side++)
        for (int64_t c = 0; c < a->columns; c++)
            if (a->present[side][c] > 0 && values[side][c] < least) least = values[side][c];
    if (!(least <= 1e-8 * reach)) return;
    const double shift = 1.0 + (least < 0 ? -least : 0.0);
    for (int side = 0; side < 2; side++)
        for (int64_t c = 0; c < a->columns; c++) values[side][c] += shift * a->present[side][c];
}

/* The least squares point, moved inside by as much as it lies outside. */
static void V(begin_path)(Interior *a) {
    System *s = &a->system;
    const Point *at = &a->now;
    for (int64_t c = 0; c < a->room; c++) {
        const double curvature = a->quadratic[c] + a->present[0][c] + a->present[1][c];
        const double least = c < a->variables ? a->least[c] : 1.0;
        s->curvature[c] = V(greater)(curvature, least);
        a->pull[c] = a->linear[c] + a->bound[0][c] + a->bound[1][c];
    }
    memset(at->x, 0, (5 * a->room + a->row_room) * sizeof(double));
    V(weigh)(s);
    if (s->method == BY_VARIABLES && !V(all_slack)(s)) s->method = BY_ROWS;
    V(factor_system)(s);
    V(solve_system)(s, a->pull, a->rhs, at->x, at->mu);
    double reach = 1.0;
    for (int64_t c = 0; c < a->columns; c++) reach = V(greater)(fabs(at->x[c]), reach);
    for (int side = 0; side < 2; side++)
        for (int64_t c = 0; c < a->room; c++) {
            const double away = at->x[c] - a->bound[side][c], distance = side ? -away : away;
            at->t[side][c] = a->present[side][c] > 0 ? distance : 1.0;
            at->z[side][c] = a->present[side][c] > 0 ? -distance : 0.0;
            a->bend[side][c] = 0.0;
        }
    V(move_inside)(a, at->t, reach);
    V(move_inside)(a, at->z, reach);
    a->since = 0;
    a->length = 1.0;
    a->mark[0] = a->mark[1] = a->mark[2] = INFINITY;
}

/* Whether one of the three numbers that are to fall has fallen enough. */
static int V(progresses)(Interior *a, const Measured *measured, double tol) {
    const double worst = worst_of(&a->best);
    const double now[3] = {worst, measured->infeasibility, worst < tol ? measured->gap : INFINITY};
    int any = 0;
    for (int n = 0; n < 3; n++) any |= now[n] < PROGRESS * a->mark[n];
    for (int n = 0; n < 3 && any; n++) a->mark[n] = now[n] < a->mark[n] ? now[n] : a->mark[n];
    return any;
}

/* Whether the duals, as weights of the rows, all but prove that nothing within the bounds satisfies them: the
 * weighted sides exceed all that the columns can reach. A hint, no proof: columns without a bound count as idle where
 * their weights cancel to some digits. */
static int V(contradicts)(Interior *a) {
    const System *s = &a->system;
    const double *mu = a->now.mu;
    double margin = 0.0, size = 0.0;
    V(variables_of)(s, mu, 0, a->pull);
    V(variables_of)(s, mu, 1, a->weights);
    double reach = 0.0; /* of the weights */
    for (int64_t i = 0; i < a->rows; i++) {
        reach = V(greater)(fabs(mu[i]), reach);
        margin += mu[i] * a->rhs[i];
        size += fabs(mu[i] * a->rhs[i]);
    }
    for (int64_t c = 0; c < a->columns; c++) {
        const int single = c >= a->variables;
        const double dual = single ? mu[s->single_row[c - a->variables]] : 0.0;
        const double gain = single ? s->sign[c - a->variables] * dual : a->pull[c];
        const int side = gain > 0;
        if (a->present[side][c] > 0) {
            margin -= gain * a->bound[side][c];
            size += fabs(gain * a->bound[side][c]);
        } else if (fabs(gain) > CANCELLED * (single ? reach : a->weights[c])) return 0;
    }
    return margin > CONTRADICTION * size;
}

/* Steps until the worst residual is below `aim` or, a few beyond the tolerance, no longer falls. */
static void V(follow)(Interior *a, double tol, double aim, int64_t limit) {
    for (int64_t n = 0; n < limit; n++) {
        V(residuals)(a);
        const double gap = V(products)(a, &a->now, a->bend, a->product);
        const Measured measured = V(measure)(a, gap);
        if (!isfinite(worst_of(&measured)) || isnan(measured.gap)) return;
        if (is_better(&measured, &a->best, tol)) V(keep_best)(a, &measured);
        a->since = V(progresses)(a, &measured, tol) ? 0 : a->since + 1;
        const int there = worst_of(&a->best) < tol;
        if (there) a->least_centring = 0.0;
        if (worst_of(&measured) < aim || a->since > (there ? PATIENCE_BEYOND : PATIENCE)) return;
        if (a->length < 1e-8 && a->since > 2) return;
        if (a->since && n % 4 == 3 && measured.infeasibility > tol && V(contradicts)(a)) {
            a->contradictory = 1;
            return;
        }
        V(find_step)(a, gap, measured.gap < BEYOND * tol, BEYOND * tol);
        V(move)(a, &a->direction, a->length, &a->now);
        a->steps++;
        if (a->length < JAMMED) V(set_free)(a);
    }
}

/* ---- what the caller sees ---- */

/* Point to the work arrays, one after another from `at` on; returns where they end. */
static double *V(arrange_interior)(Interior *a, const Layout *layout, double *at) {
    System *s = &a->system;
    const int64_t k = rounded_up(layout->rows), l = rounded_up(layout->variables), n = l + 3 * k + 8;
    const int64_t height = rounded_up(layout->rows + layout->variables);
    Point *points[] = {&a->now, &a->direction, &a->other, &a->ahead};
    for (int p = 0; p < 4; p++) points[p]->x = V(take)(&at, 5 * n + k);
    double **columns[] = {&a->linear,    &a->quadratic, &a->least,     &a->bound[0],   &a->bound[1],  &a->present[0],
                          &a->present[1], &a->entropy[0], &a->entropy[1], &a->width[0], &a->width[1], &a->counts,
                          &a->dual,      &a->off[0],    &a->off[1],    &a->bend[0],    &a->bend[1],   &a->product[0],
                          &a->product[1], &a->slope[0], &a->slope[1],  &a->over_t[0],  &a->over_t[1], &a->target[0],
                          &a->target[1], &a->aimed[0],  &a->aimed[1],  &a->pull,       &a->weights,   &a->best_x,
                          &s->curvature, &s->sign};
    for (size_t c = 0; c < sizeof(columns) / sizeof(*columns); c++) *columns[c] = V(take)(&at, n);
    double **rows[] = {&a->row_scale, &a->unit,      &a->rhs,     &a->primal,  &a->sizes,   &a->best_duals, &s->slack,
                       &s->gram,      &s->row_weight, &s->second, &s->found_v, &s->rest_v,  &s->next_v};
    for (size_t c = 0; c < sizeof(rows) / sizeof(*rows); c++) *rows[c] = V(take)(&at, k);
    double **variables[] = {&a->column_scale, &s->column_weight, &s->first, &s->found_x, &s->rest_x, &s->next_x};
    for (size_t c = 0; c < sizeof(variables) / sizeof(*variables); c++) *variables[c] = V(take)(&at, l);
    double **others[] = {&s->inverse, &s->diagonal};
    for (size_t c = 0; c < sizeof(others) / sizeof(*others); c++) *others[c] = V(take)(&at, height + 16);
    s->turned = V(take)(&at, 2 * height);
    int32_t **whole[] = {&a->row, &a->variable, &s->place, &s->pivots};
    for (size_t c = 0; c < sizeof(whole) / sizeof(*whole); c++) *whole[c] = (int32_t *)V(take)(&at, height / 2 + 8);
    s->start = (int32_t *)V(take)(&at, l / 2 + 8);
    s->single_row = (int32_t *)V(take)(&at, n / 2 + 8);
    s->index = (int32_t *)V(take)(&at, layout->entries / 2 + 8);
    s->value = V(take)(&at, layout->entries);
    s->matrix = V(take)(&at, layout->variables * k);
    const int64_t by_rows = layout->variables * k, by_variables = layout->rows * l; /* only where these are fewer */
    double *shared = at; /* of the three factors only one is there at a time */
    s->factor = V(take)(&at, (k + 8) * (k + 8));
    s->packed = V(take)(&at, TILE * (k + 8));
    s->panels = V(take)(&at, (by_rows > by_variables ? by_rows : by_variables) + layout->entries / 2 + 16);
    s->reflectors = shared;
    const int64_t orthogonal = layout->rows * height;
    const int64_t used = at - shared;
    if (orthogonal <= LARGEST_ORTHOGONAL && orthogonal > used) at += rounded_up(orthogonal - used);
    return at;
}

/* How many doubles of memory, aligned to 64 bytes, the method needs for these rows. */
static int64_t V(interior_room)(const Layout *layout) {
    Interior a;
    double *origin = (double *)64;
    return V(arrange_interior)(&a, layout, origin) - origin;
}

/* Read one instance; `objective` is ENTROPY or EUCLIDEAN, the scores are finite. */
static void V(interior_begin)(Interior *a, Team *team, const Layout *layout, const Instance *instance, int objective,
                              const double *scores, double *memory) {
    memset(a, 0, sizeof(*a));
    V(arrange_interior)(a, layout, memory);
    a->layout = layout;
    a->instance = instance;
    a->system.team = team;
    V(read_matrix)(a);
    a->row_room = rounded_up(a->rows);
    V(equilibrate)(a);
    V(read_columns)(a, objective, scores);
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
    V(prepare_system)(a);
    a->best = (Measured){INFINITY, INFINITY, INFINITY, INFINITY};
    memset(a->best_x, 0, a->room * sizeof(double));
    memset(a->best_duals, 0, a->layout->rows * sizeof(double));
}

/* To the end of the path: to the relative tolerance, and where that is not reached, with orthogonal factors all the
 * way; last close to the centre, because between rows that are parallel but for an angle of 1e-8 there is so little
 * room that a bold step ends at a bound from which no further one leads away. Returns the worst residual. */
static double V(interior_solve)(Interior *a, double tol) {
    V(begin_path)(a);
    V(follow)(a, tol, tol, INTERIOR_STEPS);
    for (a->stage = 0; a->stage < 2 && a->system.may_be_orthogonal; a->stage++) {
        if (worst_of(&a->best) <= tol || a->contradictory) break;
        a->system.method = ORTHOGONAL;
        a->least_centring = a->stage ? CAUTIOUS : 0.0;
        V(begin_path)(a);
        V(follow)(a, tol, tol, INTERIOR_STEPS);
    }
    return worst_of(&a->best);
}

/* Farther along the path while that helps: the error in x is the root of the gap. */
static double V(interior_refine)(Interior *a, double tol) {
    V(follow)(a, tol, BEYOND * tol, INTERIOR_STEPS);
    return worst_of(&a->best);
}

/* x in its box, and the duals of the rows as written: 0 for rows that do not bind, at their price for soft rows that
 * are broken by more than their dual lacks to it; both in the user's order. */
static void V(interior_answer)(const Interior *a, double *x, double *duals) {
    const Instance *p = a->instance;
    const System *s = &a->system;
    for (int64_t j = 0; j < a->layout->variables; j++) x[j] = V(fixed_at)(p, j);
    for (int64_t n = 0; n < a->variables; n++) {
        const int64_t j = a->variable[n];
        const double value = a->best_x[n] * a->column_scale[n];
        x[j] = value < p->lower[j] ? p->lower[j] : value > p->upper[j] ? p->upper[j] : value;
    }
    memset(duals, 0, a->layout->rows * sizeof(double));
    for (int64_t i = 0; i < a->rows; i++) duals[a->row[i]] = a->best_duals[i] * a->row_scale[i];
    for (int64_t c = a->variables; c < a->columns; c++) {
        if (!V(takes_up)(a, c)) continue;
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
static void V(interior_hint)(const Interior *a, double *duals) {
    memset(duals, 0, a->layout->rows * sizeof(double));
    for (int64_t i = 0; i < a->rows; i++) duals[a->row[i]] = a->now.mu[i] * a->row_scale[i];
}
