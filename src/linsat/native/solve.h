/* The instances of a call, each solved by Newton's method or, where that does not arrive, by the interior-point method.
 *
 * Compiled once per instruction set (kernel.h).
 */

/* What Own has of variables in units of s, and the offsets. */
static void V(fold_edges)(Work *w) {
    const vec unit = V(all)(w->it.unit), alpha = V(all)(w->alpha), tau = V(all)(w->tau);
    for (int64_t j = 0; OBJECTIVES[w->objective].unit == OF_ROWS && j < w->l; j += LANES) {
        vec first, second = {0};
        V(edge_of)(w->objective, V(load)(w->most + j), unit, alpha, &first, &second);
        V(store)(w->first + j, first);
        V(store)(w->second + j, second);
        if (w->offset) V(store)(w->offset + j, V(offset_of)(tau, V(load)(w->it.parameters[1] + j)));
    }
}

/* The numbers of instance n that do not depend on scores and temperature, those that the last one had left alone; 0, or the
 * status of an instance with numbers that cannot be. The scores are in w->linear. */
static int V(state)(Work *w, const Statement *s, const uint8_t *known, int known_own, int64_t n, int first) {
    const Changes changed = state_instance(&w->it, w->layout, s, w->linear, known, known_own, n, first);
    if (changed.status) return changed.status;
    w->tau = tau_of(w->objective, w->it.parameters, w->it.unit);
    w->alpha = alpha_of(w->objective, w->it.parameters);
    const int stale = changed.box || changed.decided || (changed.sides && OBJECTIVES[w->objective].unit == OF_ROWS) ||
                      (changed.parameter && parameters_fold(s));
    if (stale) {
        fold_variables(w);
        V(fold_edges)(w);
    }
    if (changed.box || changed.decided) fold_coefficients(w);
    if (changed.sides || changed.decided) fold_rows(w);
    w->dense.ready &= !(changed.sides && s->price.step) && !changed.decided && !(changed.parameter && w->weights);
    for (int64_t j = 0; w->it.forbids && j < w->layout->variables; j++)
        if (w->linear[j] == -INFINITY) w->linear[j] = 0.0;
    return 0;
}

/* The linear term and the reach of the scores, which are in w->linear; returns whether everything is finite. */
static int V(read_scores)(Work *w) {
    const int64_t l = w->layout->variables;
    const Objective *objective = OBJECTIVES + w->objective;
    const int wide = objective->unit == OF_BOX, scaled = objective->unit != ITSELF || w->weights, heats = objective->temperature;
    const double *lower = w->it.lower, *upper = w->it.upper;
    int overflows = 0; /* the scores of fixed variables, too, must fit their box as it was given */
    for (int64_t j = 0; wide && w->fixed && j < l; j++) overflows |= !isfinite((upper[j] - lower[j]) * w->linear[j]);
    vec reach = {0};
    mask finite = ~(mask){0};
    for (int64_t j = 0; j < w->l; j += LANES) {
        const vec y = V(load)(w->linear + j);
        vec term = y;
        if (scaled) term = V(load)(w->gain + j) * y;
        finite &= (V(size_of)(y) < INFINITY) & (V(size_of)(term) < INFINITY);
        if (w->offset) term += V(load)(w->offset + j);
        if (w->fixed) term = V(pick)(V(load)(w->unit + j) > 0.0, term, V(all)(-1e200)); /* it has a share of nothing */
        if (heats) reach = V(larger)(V(where)(term > -1e200, V(size_of)(term)), reach);
        V(store)(w->linear + j, term);
    }
    for (int64_t j = l; j < w->l; j++) w->linear[j] = -1e200; /* what lies behind the last variable has none either */
    w->reach = V(largest_of)(reach);
    finite[0] &= overflows ? 0 : ~(int64_t)0;
    for (int i = 1; i < LANES; i++) finite[0] &= finite[i];
    return finite[0] != 0;
}

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
    if (is_too_large(V(largest)(w->d, w->l), call->single)) status = NOT_FINITE;
    V(write)(call->x, w->d, (int)call->single, n * a->variables, a->variables);
    for (int64_t i = 0; i < a->rows; i++) {
        const int32_t to = a->order[i];
        const double mu = w->now.mu[i]; /* at a bound, exactly at that of the multiplier */
        double *dual = call->duals + n * a->rows + to;
        if (!usable) *dual = 0.0;
        else *dual = mu <= w->low[i] ? w->it.dual_lower[to] : mu >= w->high[i] ? w->it.dual_upper[to] : mu / w->it.scale[to];
    }
    if (call->decided) memcpy(call->decided + n * decided_size(a), w->it.decided, decided_size(a));
    call->status[n] = status == FAR_AWAY ? STALLED : status;
    if (status != CONVERGED) __atomic_fetch_add(call->unsolved, 1, __ATOMIC_RELAXED);
    call->steps[n] = steps;
    call->solver[n] = status == FAR_AWAY ? RAN_OFF : interior ? INTERIOR_POINT : NEWTON;
}

static int V(forward)(const Layout *a, const Statement *s, const Solve *call, Team *team) {
    Work w;
    int64_t n = enter(team, call->count);
    if (n >= call->count) return 0;
    void *block = begin_work(&w, a, s, team);
    w.dense.ridge = CONSTANTS.first_ridge;
    for (int first = 1; block && n < call->count; n = after(team, n), first = 0)
        V(forward_one)(&w, s, call, n, first, 0);
    leave(team);
    if (block) free_block(w.interior);
    free_block(block);
    return block ? 0 : -1;
}
