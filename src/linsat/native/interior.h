/* The interior-point method of linsat/arrays/interior/method.py, dense, for one instance of up to a few hundred rows
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
 * Compiled once per instruction set (kernel.h).
 */

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
        if (takes_up(a, c)) a->sizes[i] += fabs(at->x[c]); /* what takes up how much a soft row is broken by */
    }
    for (int64_t i = 0; i < a->rows; i++) {
        sum += fabs(a->primal[i]);
        found.infeasibility = greater(fabs(a->primal[i]) / greater(a->unit[i], a->sizes[i]), found.infeasibility);
    }
    for (int64_t c = 0; c < a->columns; c++) {
        const double x = fabs(at->x[c]), off = greater(fabs(a->off[0][c]), fabs(a->off[1][c]));
        const double terms = fabs(a->linear[c]) + a->quadratic[c] * x + at->z[0][c] + at->z[1][c];
        const double weight = 1.0 + a->weights[c] + terms;
        sum += fabs(a->dual[c]);
        found.infeasibility = greater(off / greater(1.0, x), found.infeasibility);
        found.stationarity = greater(fabs(a->dual[c]) / weight, found.stationarity);
    }
    const double value = 1.0 + V(objective_size)(a);
    found.gap = isfinite(sum) ? gap / value : NAN;
    found.lacks = V(lacks)(a) / value;
    return found;
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
    const double share = V(products)(a, &a->ahead, a->aimed, a->aimed) / greater(gap, SMALLEST);
    double centring = share * share * share;
    centring = centring > 1.0 ? 1.0 : greater(centring, 1e-8);
    double nu = greater(centring, a->least_centring) * average;
    if (closed) /* the gap is small enough: shrinking it further would only cost accuracy */
        nu = greater(nu, 1e-3 * aim * (1.0 + V(objective_size)(a)) / (double)(a->bounds > 1 ? a->bounds : 1));
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
        recentre(a, nu, a->target, a->aimed, a->aimed);
        V(towards)(a, a->aimed, 0, &a->other);
        const double longer = V(longest)(a, &a->other);
        if (!(longer >= length + 0.01)) break;
        const Point kept = a->direction;
        a->direction = a->other;
        a->other = kept;
        length = longer;
        for (int side = 0; side < 2; side++) exchange(&a->target[side], &a->aimed[side]);
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

/* The least squares point, moved inside by as much as it lies outside. */
static void V(begin_path)(Interior *a) {
    System *s = &a->system;
    const Point *at = &a->now;
    for (int64_t c = 0; c < a->room; c++) {
        const double curvature = a->quadratic[c] + a->present[0][c] + a->present[1][c];
        const double least = c < a->variables ? a->least[c] : 1.0;
        s->curvature[c] = greater(curvature, least);
        a->pull[c] = a->linear[c] + a->bound[0][c] + a->bound[1][c];
    }
    memset(at->x, 0, (5 * a->room + a->row_room) * sizeof(double));
    V(weigh)(s);
    if (s->method == BY_VARIABLES && !all_slack(s)) s->method = BY_ROWS;
    V(factor_system)(s);
    V(solve_system)(s, a->pull, a->rhs, at->x, at->mu);
    double reach = 1.0;
    for (int64_t c = 0; c < a->columns; c++) reach = greater(fabs(at->x[c]), reach);
    for (int side = 0; side < 2; side++)
        for (int64_t c = 0; c < a->room; c++) {
            const double away = at->x[c] - a->bound[side][c], distance = side ? -away : away;
            at->t[side][c] = a->present[side][c] > 0 ? distance : 1.0;
            at->z[side][c] = a->present[side][c] > 0 ? -distance : 0.0;
            a->bend[side][c] = 0.0;
        }
    move_inside(a, at->t, reach);
    move_inside(a, at->z, reach);
    a->since = 0;
    a->length = 1.0;
    a->mark[0] = a->mark[1] = a->mark[2] = INFINITY;
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
        reach = greater(fabs(mu[i]), reach);
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
        if (is_better(&measured, &a->best, tol)) keep_best(a, &measured);
        a->since = progresses(a, &measured, tol) ? 0 : a->since + 1;
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

