/* The instances of a call, each solved by Newton's method or, where that does not arrive, by the interior-point method.
 *
 * Included by core.c once per instruction set.
 */

/* After how many steps without progress the interior-point method is to take over, if it can. */
static int64_t V(patience)(const Work *w) {
    if (!interior_takes(w->layout)) return INT64_MAX;
    for (int64_t i = 0; w->bounded && i < w->layout->rows; i++)
        if (isfinite(w->low[i]) && isfinite(w->high[i]) && w->low[i] < w->high[i]) return PATIENCE_SOFT;
    return PATIENCE_HARD;
}

/* Solve one instance and write its answer. `tried`: Newton's method in lanes has not arrived, which with soft rows it will not
 * here either. */
static void V(forward_one)(Work *w, const Statement *s, const Solve *call, int64_t n, int first, int tried) {
    const Layout *a = w->layout;
    int64_t steps = 0;
    V(read)(w->linear, call->scores, (int)call->single, n * a->variables, a->variables);
    int status = V(state)(w, s, call->known, 0, n, first), interior = 0;
    const int usable = !status && V(read_scores)(w);
    memset(w->now.mu, 0, w->k * sizeof(double));
    if (usable && w->it.infeasible) { /* presolve has seen it */
        V(evaluate)(w, &w->now, w->tau);
        status = INFEASIBLE;
    } else if (usable) {
        const int64_t before = CONSTANTS.steps_before_interior, limit = call->max_steps < before ? call->max_steps : before;
        const int64_t patience = V(patience)(w);
        status = STALLED;
        if (!(tried && patience == PATIENCE_SOFT))
            status = V(newton)(w, call->tol, call->start ? call->start + n * a->rows : NULL, limit, patience, &steps);
        interior = V(hands_over)(w, call, status);
        if (interior) status = V(hand_over)(w, call, n, &steps, status);
    } else if (!status) status = NOT_FINITE;
    if (usable && !interior) V(answers)(w);
    for (int64_t j = 0; !usable && j < a->variables; j++) w->d[j] = NAN;
    if (call->single && V(largest)(w->d, w->l) > FLT_MAX) status = NOT_FINITE;
    V(write)(call->x, w->d, (int)call->single, n * a->variables, a->variables);
    for (int64_t i = 0; i < a->rows; i++) {
        const int32_t to = a->order[i];
        const double mu = w->now.mu[i]; /* at a bound, exactly at that of the multiplier */
        double *dual = call->duals + n * a->rows + to;
        if (!usable) *dual = 0.0;
        else *dual = mu <= w->low[i] ? w->it.dual_lower[to] : mu >= w->high[i] ? w->it.dual_upper[to] : mu / w->it.scale[to];
    }
    if (call->decided) memcpy(call->decided + n * V(decided_size)(a), w->it.decided, V(decided_size)(a));
    call->status[n] = status;
    if (status != CONVERGED) __atomic_fetch_add(call->unsolved, 1, __ATOMIC_RELAXED);
    call->steps[n] = steps;
    call->solver[n] = interior ? INTERIOR_POINT : NEWTON;
}

static int V(forward)(const Layout *a, const Statement *s, const Solve *call, Team *team) {
    Work w;
    int64_t n = enter(team, call->count);
    if (n >= call->count) return 0;
    void *block = V(begin)(&w, a, s, team);
    w.dense.ridge = CONSTANTS.first_ridge;
    for (int first = 1; block && n < call->count; n = after(team, n), first = 0)
        V(forward_one)(&w, s, call, n, first, 0);
    leave(team);
    if (block) free_block(w.interior);
    free_block(block);
    return block ? 0 : -1;
}
