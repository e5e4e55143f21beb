/* What Newton's method has not solved: the interior-point method, polished by Newton's method.
 *
 * Compiled once per instruction set (kernel.h).
 */

#ifndef LINSAT_HAND_OVER
#define LINSAT_HAND_OVER
enum { PATIENCE_POLISHING = 2 };
#define INTERIOR_TOL 1e-9
#define HOPELESS 1e3       /* times the gap that Newton's method may leave: rounding alone adds as much */
#endif

/* Whether Newton's method cannot end at these duals: x follows from y + A' mu, whose rounding, times duals of 1e6, is
 * a gap of its own. `u` and `lost` are left with y + A' mu and the sizes of its terms. */
static int V(beyond_newton)(const Layout *a, const Instance *p, int objective, const double *scores, const double *x,
                            const double *duals, double allowed, long double *u, double *lost) {
    double hidden = 0.0, value = 1.0;
    int soft = 0; /* elsewhere such duals are rare, and worth a try */
    for (int64_t i = 0; i < a->rows; i++) soft |= ends_of(p, i).over < INFINITY;
    if (!soft) return 0;
    adjusted(a, p, objective, scores, duals, u, lost);
    for (int64_t j = 0; j < a->variables; j++) {
        const Variable of = variable_of(p, objective, j);
        value += fabs(scores[j] * x[j]);
        if (p->free[j]) hidden += DBL_EPSILON * steepness(objective, &of, x[j]) * lost[j] * lost[j];
    }
    return hidden > HOPELESS * allowed * value;
}

/* Newton's method from these duals; returns how it ends: STALLED too where it leaves the hard rows worse. */
static int V(polish_interior)(Work *w, double tol, const double *x, const double *duals, double *values, double *sizes,
                              int64_t *steps) {
    const double off = hard_violation(w->layout, &w->it, x, values, sizes);
    int64_t more = 0;
    const int status = V(newton)(w, tol, duals, CONSTANTS.polishing_steps, PATIENCE_POLISHING, &more);
    *steps += more;
    if (status != CONVERGED) return status; /* however far off x was before: that may be infinite */
    return hard_violation(w->layout, &w->it, w->d, values, sizes) <= (off > 0.1 * tol ? off : 0.1 * tol) ? CONVERGED : STALLED;
}

/* How many doubles `hand_over` needs. */
static int64_t V(hand_over_room)(const Layout *a) {
    return interior_room(a) + rounded_up(2 * a->variables) + 3 * rounded_up(a->variables) + 3 * rounded_up(a->rows);
}

/* Whether the method is to take an instance that ended so; its room is made when it is first needed. A limit of steps that is
 * the user's own is final. */
static int V(hands_over)(Work *w, const Solve *call, int status) {
    if (!(status == STALLED || (status == STEP_LIMIT && call->max_steps > CONSTANTS.steps_before_interior))) return 0;
    if (!interior_takes(w->layout)) return 0;
    if (!w->interior) w->interior = zeroed_block((size_t)V(hand_over_room)(w->layout) * sizeof(double));
    return w->interior != NULL;
}

/* Leaves x in d and duals in `now`; returns how the instance ended. */
static int V(hand_over)(Work *w, const Solve *call, int64_t n, int64_t *steps, int status) {
    const Layout *a = w->layout;
    const Instance *p = &w->it;
    double *at = w->interior, *scores = take(&at, a->variables), *x = take(&at, a->variables);
    long double *u = (long double *)take(&at, 2 * a->variables);
    double *lost = take(&at, a->variables), *duals = take(&at, a->rows);
    double *values = take(&at, a->rows), *sizes = take(&at, a->rows);
    const double tol = call->tol < INTERIOR_TOL ? call->tol : INTERIOR_TOL;
    V(read)(scores, call->scores, (int)call->single, n * a->variables, a->variables);
    for (int64_t j = 0; j < a->variables; j++)
        if (scores[j] == -INFINITY) scores[j] = 0.0; /* held at its lower bound */
    Interior method;
    interior_begin(&method, w->team, a, p, w->objective, scores, at);
    double reached = V(interior_solve)(&method, 0.1 * tol);
    int ended = STALLED, hopeless = 0;
    for (int turn = 0; turn < 2 && ended != CONVERGED && ended != FAR_AWAY; turn++) {
        if (turn) reached = V(interior_refine)(&method, 0.1 * tol);
        interior_answer(&method, x, duals);
        if (!turn) hopeless = V(beyond_newton)(a, p, w->objective, scores, x, duals, CONSTANTS.gap * tol, u, lost);
        if (!hopeless) ended = V(polish_interior)(w, call->tol, x, duals, values, sizes, steps);
        if (!(reached <= 0.1 * tol)) break;
    }
    *steps += method.steps;
    if (ended == CONVERGED || ended == FAR_AWAY) return ended;
    if (method.contradictory && !(reached <= tol)) interior_hint(&method, duals);
    memcpy(w->d, x, a->variables * sizeof(double));
    for (int64_t i = 0; i < a->rows; i++) {
        const int32_t from = a->order[i];
        const double dual = duals[from];
        /* A row that always holds with equality is one: its multiplier may have any sign. */
        const double low = p->tight[from] ? -INFINITY : p->dual_lower[from];
        const double high = p->tight[from] ? INFINITY : p->dual_upper[from];
        w->now.mu[i] = (dual < low ? low : dual > high ? high : dual) * p->scale[from];
    }
    const int proved = reached <= tol && proves_optimal(a, p, w->objective, scores, x, duals, tol, u, lost, values, sizes);
    return proved ? CONVERGED : status;
}
