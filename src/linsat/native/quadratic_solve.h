/* One instance of a full quadratic after another: its rounds, its verdict and its gradients. See quadratic.h.
 *
 * Compiled once per instruction set (kernel.h).
 */

/* ---- one instance ---- */

/* The worst of what is left: stationarity of the variables that do not bind, and constraints that bind. */
static double V(left_over)(const Quadratic *q) {
    double size = 1e-300, worst = 0.0, off = V(missed)(q, q->x);
    for (int64_t j = 0; j < q->layout->variables; j++) {
        const double own = fabs(q->c[j]) + fabs(q->Px[j]) + fabs(q->pulled[j]);
        size = own > size ? own : size;
        worst = fabs(q->r[j]) > worst ? fabs(q->r[j]) : worst;
    }
    for (int64_t g = 0; g < q->count; g++) {
        if (q->state[g] != AT_LOW && q->state[g] != AT_HIGH) continue;
        const double end = q->state[g] == AT_HIGH ? q->high[g] : q->low[g];
        const double here = fabs(q->value[g] - end) / (1.0 + fabs(end));
        off = here > off ? here : off;
    }
    return worst / size + off;
}

/* Rounds until x rests; returns whether they ended. `begun`: it is known already what may bind. */
static int V(run_rounds)(Quadratic *q, int begun, int64_t most, int64_t *steps) {
    double last = INFINITY;
    int tired = 0;
    memcpy(q->r, q->c, q->n * sizeof(double)); /* x and lambda are 0 */
    memset(q->value, 0, q->m * sizeof(double));
    for (int round = 0; round < ROUNDS; round++) {
        if (V(meet_equations)(q, q->x)) V(remainder)(q, q->c, q->x, q->lambda);
        V(begin_system)(q);
        if (!round && !begun) V(guess_binding)(q);
        const int64_t before = *steps;
        if (!V(exchange_binding)(q, most, steps)) return 0;
        V(end_system)(q, q->x);
        for (int64_t g = 0; g < q->count; g++) q->lambda[g] += q->d[g];
        for (int64_t g = 0; g < q->count; g++)
            if (q->state[g] == IDLE) q->lambda[g] = 0.0;
            else if (q->state[g] == AT_PRICE_UP) q->lambda[g] = q->most[g];
            else if (q->state[g] == AT_PRICE_DOWN) q->lambda[g] = q->least[g];
        set_to_bounds(q);
        V(remainder)(q, q->c, q->x, q->lambda);
        V(balance)(q);
        const double left = V(left_over)(q);
        if (!isfinite(left)) return 0;
        if (left <= SETTLED) return 1;
        const int rests = *steps - before <= 1;
        tired = rests && !(left < 0.3 * last) ? tired + 1 : 0;
        if (tired && left < 1e-12) return 1;
        if (tired > 3) return left < 1e-9;
        last = left;
    }
    return last < 1e-9;
}

/* The verdict on a full P, as verdict.h has it for others: every hard row holds at x, and multipliers and distances leave no
 * gap. There are no terms of single variables: instead each of them is stationary to tolerance beyond rounding, or pushed to its bound. `moved`:
 * P x is not that of the last round. */
static int V(is_optimal)(Quadratic *q, int moved, double tol) {
    const Layout *a = q->layout;
    const Instance *it = &q->it;
    double gap = 0.0, size = 1.0;
    for (int64_t i = 0; i < a->rows; i++) {
        const double *row = q->A + i * q->n;
        vec sum = {0}, size_of_terms = {0};
        for (int64_t j = 0; j < q->n; j += LANES) {
            const vec term = V(load)(row + j) * V(load)(q->x + j);
            sum += term;
            size_of_terms += V(size_of)(term);
        }
        q->values[i] = V(sum_of)(sum);
        q->sizes[i] = V(sum_of)(size_of_terms);
    }
    for (int64_t i = 0; i < a->rows; i++) {
        const Ends ends = ends_of(it, i);
        const double dual = q->duals[i], off = outside(&ends, q->values[i]);
        if (ends.over < INFINITY) {
            if (off > CONSTANTS.row_lost * (q->sizes[i] + fabs(it->rhs[i]))) gap += fabs(ends.lower > q->values[i] ? ends.under - dual : ends.over + dual) * off;
            else if (dual != 0.0) gap += fabs(dual) * fabs(q->values[i] - (dual > 0 ? ends.lower : ends.upper));
            continue;
        }
        if (!(off <= tol * (q->sizes[i] > 1.0 ? q->sizes[i] : 1.0))) return 0;
        if (dual != 0.0) gap += fabs(dual) * fabs(q->values[i] - (dual > 0 ? ends.lower : ends.upper));
    }
    if (moved) V(times_P)(q, q->x, q->Px);
    memset(q->pulled, 0, q->n * sizeof(double));
    for (int64_t i = 0; i < a->rows; i++)
        if (q->duals[i] != 0.0) V(add_product)(q->pulled, q->pulled, q->A + i * q->n, q->duals[i], q->n);
    for (int64_t j = 0; j < a->variables; j++) {
        const double r = q->c[j] - q->Px[j] + q->pulled[j], own = fabs(q->c[j]) + fabs(q->Px[j]) + fabs(q->pulled[j]);
        const int stays = !it->free[j] && (it->lower[j] == it->upper[j] || (it->at_upper[j] ? r >= 0 : r <= 0));
        size += fabs(q->c[j] * q->x[j]) + fabs(q->Px[j] * q->x[j]);
        if (stays) continue;
        if (!(fabs(r) <= tol * (1.0 + own)) && !(fabs(r) <= lost_in_pull(q, j))) return 0;
        gap += fabs(r * q->x[j]);
    }
    return gap <= CONSTANTS.interior_gap * tol * size;
}

/* The linear term of scores, which are in x: c. Returns whether all of it is finite. */
static int V(read_linear)(Quadratic *q, double *scores) {
    const int64_t l = q->layout->variables;
    int usable = 1;
    for (int64_t j = 0; j < l; j++) {
        if (scores[j] == -INFINITY && q->it.forbids) scores[j] = q->metric ? q->it.lower[j] : 0.0;
        usable &= isfinite(scores[j]) != 0;
    }
    memset(scores + l, 0, (q->n - l) * sizeof(double));
    if (q->metric) V(times_P)(q, scores, q->c);
    else memcpy(q->c, scores, l * sizeof(double));
    for (int64_t j = 0; j < l; j++) usable &= isfinite(q->c[j]) != 0;
    return usable;
}

static void V(forward_one_quadratic)(Quadratic *q, const Statement *s, const Solve *call, int64_t n, int first) {
    const Layout *a = q->layout;
    const int64_t l = a->variables;
    int64_t steps = 0;
    double *scores = q->x;
    V(read)(scores, call->scores, (int)call->single, n * l, l);
    int status = V(state_quadratic)(q, s, scores, NULL, n, first);
    if (!status && !V(read_linear)(q, scores)) status = NOT_FINITE;
    if (!status) {
        const int64_t most = call->max_steps < CONSTANTS.steps_before_interior ? call->max_steps : MOST_EXCHANGES;
        read_ends(q);
        begin_rounds(q, call->start ? call->start + n * a->rows : NULL);
        const int ended = V(run_rounds)(q, call->start != NULL, most, &steps);
        const int moved = settle_quadratic(q);
        status = ended && V(is_optimal)(q, moved, call->tol) ? CONVERGED : steps >= call->max_steps ? STEP_LIMIT : STALLED;
        if (is_too_large(V(largest)(q->x, q->n), call->single)) status = NOT_FINITE;
    } else {
        for (int64_t j = 0; j < l; j++) q->x[j] = NAN;
        memset(q->duals, 0, a->rows * sizeof(double));
    }
    V(write)(call->x, q->x, (int)call->single, n * l, l);
    memcpy(call->duals + n * a->rows, q->duals, a->rows * sizeof(double));
    if (call->decided) memcpy(call->decided + n * decided_size(a), q->it.decided, decided_size(a));
    call->status[n] = status;
    if (status != CONVERGED) __atomic_fetch_add(call->unsolved, 1, __ATOMIC_RELAXED);
    call->steps[n] = steps;
    call->solver[n] = NEWTON;
}

static int V(forward_quadratic)(const Layout *a, const Statement *s, const Solve *call, Team *team) {
    Quadratic q;
    int64_t n = enter(team, call->count);
    if (n >= call->count) return 0;
    void *block = begin_quadratic(&q, a, s, team);
    for (int first = 1; block && n < call->count; n = after(team, n), first = 0)
        V(forward_one_quadratic)(&q, s, call, n, first);
    leave(team);
    free_block(block);
    return block ? 0 : -1;
}

/* ---- gradients ---- */

/* Solve P v - M_W' lambda - E' mu = g, M_W v = target in units, E v = side, by the factors and a few refinements: v into
 * `to`. */
static void V(solve_saddle)(Quadratic *q, const double *g, const double *target, double *to) {
    const int64_t l = q->layout->variables, m = q->m;
    double last = INFINITY, size = 0.0;
    for (int64_t j = 0; j < l; j++) size = fabs(g[j]) > size ? fabs(g[j]) : size;
    memset(to, 0, q->n * sizeof(double));
    memset(q->lambda, 0, (m + 8) * sizeof(double));
    memset(q->mu, 0, q->equations * sizeof(double));
    memcpy(q->r, g, q->n * sizeof(double));
    memset(q->value, 0, m * sizeof(double));
    for (int round = 0; round < SADDLE_ROUNDS; round++) {
        if (V(meet_equations)(q, to)) V(remainder)(q, g, to, q->lambda);
        V(begin_system)(q);
        memset(q->d, 0, (m + 8) * sizeof(double));
        V(solve_binding)(q, q->base, target);
        V(end_system)(q, to);
        for (int64_t h = 0; h < q->count; h++) q->lambda[h] += q->d[h];
        for (int64_t h = 0; h < q->count; h++) /* exactly there */
            if (q->variable[h] >= 0 && q->state[h]) to[q->variable[h]] = target[h] / q->unit[h];
        V(remainder)(q, g, to, q->lambda);
        V(balance)(q);
        double left = V(missed)(q, to);
        for (int64_t j = 0; j < l; j++) left = fabs(q->r[j]) > left ? fabs(q->r[j]) : left;
        for (int64_t h = 0; h < q->count; h++) /* a constraint as well as a variable */
            if (q->state[h]) left = fabs(q->value[h] - target[h]) * q->unit[h] > left ? fabs(q->value[h] - target[h]) * q->unit[h] : left;
        if (left <= FINE * size || !(left < 0.5 * last)) break;
        last = left;
    }
}

/* Gradients of one instance; scores are those that were read. */
static void V(pull_back_quadratic)(Quadratic *q, const Pull *call, int64_t n, const uint8_t *decided, double *scores, Sums to) {
    const Layout *a = q->layout;
    const Instance *it = &q->it;
    const int64_t l = a->variables, k = a->rows;
    const uint8_t *free_ = decided, *at_upper = decided + l, *active = decided + 2 * l;
    const double *duals = call->duals + n * k, *of_duals = call->grad_duals ? call->grad_duals + n * k : NULL;
    double *v = q->S_size, *x = q->x, *g = q->c, *target = q->high, *w = q->low;
    const double *Pv = q->Px; /* as solve_saddle leaves it */
    memset(q->state, 0, q->m);
    for (int64_t h = 0; h < q->count; h++)
        if (q->row[h] >= 0 ? active[q->row[h]] : q->variable[h] >= 0 && !free_[q->variable[h]]) q->state[h] = AT_LOW;
    V(factor_binding)(q);
    if (to.values || to.parameters[0]) { /* x, from what binds */
        for (int64_t h = 0; h < q->count; h++) {
            const int32_t i = q->row[h], j = q->variable[h];
            target[h] = 0.0;
            if (j >= 0) target[h] = q->unit[h] * (at_upper[j] ? it->upper[j] : it->lower[j]);
            else if (i >= 0) target[h] = q->unit[h] * it->side[i];
            if (!isfinite(target[h])) target[h] = 0.0;
        }
        for (int64_t i = 0; i < k; i++) /* a soft row that is broken pulls with its price */
            if (!active[i] && duals[i] != 0.0) V(add_product)(q->c, q->c, q->A + i * q->n, duals[i], q->n);
        V(solve_saddle)(q, q->c, target, x);
    }
    memset(g, 0, q->n * sizeof(double));
    if (call->grad_x) V(read)(g, call->grad_x, (int)call->single, n * l, l);
    for (int64_t h = 0; h < q->m; h++) target[h] = of_duals && q->row[h] >= 0 && active[q->row[h]] ? -of_duals[q->row[h]] * q->unit[h] : 0.0;
    for (int64_t e = 0; e < q->equations; e++) q->side[e] = of_duals ? -of_duals[q->equation[e]] : 0.0;
    V(solve_saddle)(q, g, target, v);
    for (int64_t e = 0; e < q->equations && to.side; e++) to.side[q->equation[e]] -= q->mu[e];
    memset(w, 0, q->m * sizeof(double));
    for (int64_t h = 0; h < q->count; h++) {
        w[h] = q->state[h] ? -q->lambda[h] * q->unit[h] : 0.0;
        const int32_t i = q->row[h], j = q->variable[h];
        if (i >= 0 && to.side && !is_absent(it, i)) to.side[i] += w[h];
        if (j >= 0 && q->state[h]) {
            if (at_upper[j] ? to.upper != NULL : to.lower != NULL) (at_upper[j] ? to.upper : to.lower)[j] += w[h];
        }
    }
    for (int64_t i = 0; i < k && to.price; i++) {
        if (active[i] || duals[i] == 0.0 || !is_soft(it, i)) continue;
        const double way = duals[i] > 0 ? 1.0 : -1.0;
        to.price[i] += way * (V(dot)(q->A + i * q->n, v, q->n) + (of_duals ? of_duals[i] : 0.0));
    }
    if (to.values) {
        memset(q->sizes, 0, k * sizeof(double));
        for (int64_t h = 0; h < q->count; h++)
            if (q->row[h] >= 0) q->sizes[q->row[h]] = w[h];
        for (int64_t e = 0; e < q->equations; e++) q->sizes[q->equation[e]] = -q->mu[e];
        for (int64_t e = 0; e < a->entries; e++) {
            const int32_t i = a->order[a->entry_row[e]], j = a->entry_col[e];
            to.values[a->entry[e]] += duals[i] * v[j] - q->sizes[i] * x[j];
        }
    }
    if (to.parameters[0]) {
        double *u = q->pulled;
        for (int64_t j = 0; j < l; j++) u[j] = q->metric ? scores[j] - x[j] : -x[j];
        for (int64_t i = 0; i < l; i++) {
            double *row = to.parameters[0] + i * l;
            const double one = 0.5 * v[i], other = 0.5 * u[i];
            if (call->parameters[0].step)
                for (int64_t j = 0; j < l; j++) row[j] = one * u[j] + other * v[j];
            else
                for (int64_t j = 0; j < l; j++) row[j] += one * u[j] + other * v[j];
        }
    }
    if (!call->grad_scores) return;
    const double *from = v;
    if (q->metric) from = Pv;
    for (int64_t j = 0; j < l; j++) q->r[j] = score_at(call->scores, (int)call->single, n * l + j) == -INFINITY ? 0.0 : from[j];
    V(write)(call->grad_scores, q->r, (int)call->single, n * l, l);
}

static void V(backward_one_quadratic)(Quadratic *q, const Statement *s, const Pull *call, int64_t n, double *scores, Sums to, int first) {
    const int64_t l = q->layout->variables;
    V(read)(scores, call->scores, (int)call->single, n * l, l);
    const uint8_t *decided = call->decided + n * call->decided_step;
    if (call->status[n] == CONVERGED && !V(state_quadratic)(q, s, scores, decided, n, first)) {
        if (to.values || to.parameters[0]) V(read_linear)(q, scores); /* else x is not needed */
        V(pull_back_quadratic)(q, call, n, decided, scores, to);
        return;
    }
    const size_t wide = call->single ? sizeof(float) : sizeof(double);
    if (call->grad_scores) memset((char *)call->grad_scores + n * l * wide, 0, l * wide);
    if (to.parameters[0] && call->parameters[0].step) memset(to.parameters[0], 0, l * l * sizeof(double));
}

static int V(backward_quadratic)(const Layout *a, const Statement *s, const Pull *call, Team *team) {
    Quadratic q;
    int64_t t = enter(team, team->blocks);
    if (t >= team->blocks) return 0;
    void *memory = begin_quadratic(&q, a, s, team);
    double *scores = aligned_block(64, (q.n + 8) * sizeof(double));
    const Wanted wanted = list_gradients(a, s, call);
    for (int first = 1; memory && scores && t < team->blocks; t = after(team, t)) {
        const int64_t stop = (t + 1) * team->block < call->count ? (t + 1) * team->block : call->count;
        for (int64_t n = t * team->block; n < stop; n++) {
            V(backward_one_quadratic)(&q, s, call, n, scores, places(&wanted, team, t, n), first);
            first &= call->status[n] != CONVERGED;
        }
    }
    leave(team);
    const int failed = !memory || !scores;
    free_block(memory);
    free_block(scores);
    return failed ? -1 : 0;
}
