/* The iteration of linsat/arrays/newton.py.
 *
 * Compiled once per instruction set (kernel.h).
 */

#ifndef LINSAT_ITERATE
#define LINSAT_ITERATE
#define STAGNANT 0.5 /* an error above this share of the least one before is no progress */
/* Steps without progress before the interior-point method takes over. Duals of soft rows have as far to go as the price is
 * high, and they go there one change of the rows that bind after another. */
enum { PATIENCE_HARD = 12, PATIENCE_SOFT = 5, STEPS_AT_REST = 2, MOST_GUESSES = 20 }; /* guesses: of guess_duals */
#endif

static double V(largest)(const double *values, int64_t count) {
    vec found = {0};
    for (int64_t i = 0; i < count; i += LANES) found = V(larger)(V(size_of)(V(load)(values + i)), found);
    return V(largest_of)(found);
}

static void V(drift_part)(void *argument, int64_t t) {
    const Pass *pass = argument;
    const Work *w = pass->w;
    for (int64_t j = w->layout->tile_start[t]; j < w->layout->tile_start[t + 1]; j += LANES)
        V(store)(pass->to + j, V(load)(w->d + j) * V(load)(pass->at->u + j) * pass->factor);
    V(apply_tile)(w, t, w->coefficients, pass->to, NULL, V(part_of)(w, t, w->scratch));
}

/* The derivative of the residual with respect to the temperature, times the change of it, added to rhs. */
static void V(add_drift)(Work *w, double T, double change, double *restrict rhs) {
    State *at = &w->now;
    const double factor = -change / T;
    Pass pass = {.w = w, .at = at, .to = w->next.p, .factor = factor};
    share(w->team, w->layout->tiles, V(drift_part), &pass);
    if (w->layout->tiles > 1) V(add_up)(w, w->layout->tiles, w->scratch, w->k);
    for (int64_t i = 0; i < w->layout->rows; i++) {
        if (w->has_slack) w->scratch[i] += w->s[i] * at->z[i] * (1.0 - at->z[i]) * at->mu[i] / T * factor;
        rhs[i] += w->scratch[i];
    }
}

/* Newton's step from `now` at temperature T towards the solution at `cooler`; returns whether a pivot was dropped. */
static int V(find_direction)(Work *w, double T, double cooler, double damping, double ridge, double stride) {
    const Layout *a = w->layout;
    State *at = &w->now;
    V(slopes)(w, at, T);
    memcpy(w->rhs, at->r, w->k * sizeof(double));
    if (cooler != T) V(add_drift)(w, T, cooler - T, w->rhs);
    const double near = at->error < CONSTANTS.held ? at->error : CONSTANTS.held;
    int any_held = 0;
    for (int64_t i = 0; i < a->rows; i++) {
        const int held = w->bounded && ((at->mu[i] - w->low[i] <= near && at->r[i] > 0) ||
                                        (w->high[i] - at->mu[i] <= near && at->r[i] < 0));
        w->moving[i] = !held && w->active[i];
        if (!w->moving[i]) w->rhs[i] = 0.0;
        any_held |= held;
    }
    const int failed = V(factor)(w, at, T, damping, ridge);
    V(solve)(w, w->rhs, w->direction);
    double length = -1.0;
    if (OBJECTIVES[w->objective].temperature) {
        const double longest = V(largest)(w->direction, w->k), cap = stride * (10.0 * T + 0.5 * w->reach);
        if (longest > cap) length = -cap / longest;
    }
    for (int64_t i = 0; any_held && i < a->rows; i++) /* they stay, and a large residual of theirs shortens no step */
        if (!w->moving[i]) w->direction[i] = at->r[i];
    for (int64_t i = 0; i < w->k; i += LANES) V(store)(w->direction + i, V(load)(w->direction + i) * length);
    return failed;
}

/* Go along the direction where that lowers the potential; returns whether it does. `settles`: leading rows that move end where
 * they hold, which the step of the others is long enough to matter for. */
static int V(try)(Work *w, double T, double length, int settles) {
    const Constants *c = &CONSTANTS;
    State *at = &w->next;
    const State *now = &w->now;
    for (int64_t i = 0; i < w->k; i += LANES)
        V(store)(at->mu + i, V(load)(now->mu + i) + length * V(load)(w->direction + i));
    V(clip)(w, at->mu);
    V(evaluate)(w, at, T);
    if (settles) V(settle)(w, at, T, NULL, w->layout->leading);
    vec before = {0}, after = {0};
    for (int64_t i = 0; i < w->k; i += LANES) {
        const vec moved = V(load)(at->mu + i) - V(load)(now->mu + i);
        before += moved * V(load)(now->r + i);
        after += moved * V(load)(at->r + i);
    }
    const double slope = V(sum_of)(before) < 0.0 ? V(sum_of)(before) : 0.0;
    int good = at->theta <= now->theta + c->decrease * slope;
    if (!good && at->theta <= now->theta + c->rounding * (1.0 + at->size + now->size))
        good = V(sum_of)(after) <= 0.0 || at->error < now->error;
    if (good) V(swap)(w);
    return good;
}

/* Keep `next`, whose duals are set, where its error is no larger. */
static void V(keep_better)(Work *w, double T) {
    V(clip)(w, w->next.mu);
    V(evaluate)(w, &w->next, T);
    if (isfinite(w->next.theta) && w->next.error <= w->now.error) V(swap)(w);
}

/* One undamped step, then duals that a step along -r would put to a bound, put there. */
static void V(polish)(Work *w, double T, double ridge, double tol) {
    const double fine = CONSTANTS.fine * tol;
    if (w->now.error > fine && w->reusable) { /* close to where H was factored, that factor is as good as a new one */
        V(solve)(w, w->now.r, w->direction);
        for (int64_t i = 0; i < w->k; i += LANES)
            V(store)(w->next.mu + i, V(load)(w->now.mu + i) - V(load)(w->direction + i));
        V(evaluate)(w, &w->next, T);
        if (isfinite(w->next.theta) && w->next.error <= fine) V(swap)(w);
    }
    if (w->now.error > fine) {
        V(find_direction)(w, T, T, 0.0, ridge, 1e300);
        for (int64_t i = 0; i < w->k; i += LANES)
            V(store)(w->next.mu + i, V(load)(w->now.mu + i) + V(load)(w->direction + i));
        V(keep_better)(w, T);
    }
    w->reusable = 0;
    if (!w->bounded) return;
    int changed = 0;
    for (int64_t i = 0; i < w->k; i++) {
        const double there = w->now.mu[i] - w->now.r[i];
        const double snapped = there <= w->low[i] ? w->low[i] : there >= w->high[i] ? w->high[i] : w->now.mu[i];
        changed |= snapped != w->now.mu[i];
        w->next.mu[i] = snapped;
    }
    if (changed) V(keep_better)(w, T);
}

/* x into the work array d. */
static void V(answers)(Work *w) {
    for (int64_t j = 0; j < w->l; j += LANES) {
        const vec base = V(load)(w->base + j), unit = V(load)(w->unit + j), upper = V(load)(w->upper + j);
        V(store)(w->d + j, V(point_at)(w->objective, V(load)(w->now.p + j), base, unit, upper));
    }
}

/* Whether the duals, as weights of the rows, prove that nothing in the box satisfies them. */
COLD static int V(proves_infeasible)(Work *w) {
    const Layout *a = w->layout;
    double target = 0.0, best = 0.0, size = 0.0;
    memset(w->scratch, 0, w->k * sizeof(double));
    for (int64_t i = 0; i < a->rows; i++) {
        const double mu = w->now.mu[i];
        if (!w->active[i] || (mu > 0 && w->high[i] < INFINITY) || (mu < 0 && w->low[i] > -INFINITY)) continue;
        w->scratch[i] = mu;
        const double most = mu > 0 ? w->s[i] * mu : 0.0;
        target += w->b[i] * mu;
        best += most;
        size += fabs(w->b[i] * mu) + most;
    }
    V(pull)(w, w->scratch, w->next.u);
    for (int64_t j = 0; j < a->variables; j++) {
        const double gain = w->next.u[j];
        if (gain == 0.0) continue;
        const double most = gain * (gain > 0 ? w->most[j] : w->least[j]);
        best += most;
        size += fabs(most);
    }
    return target - best - 1e-9 * size > 0.0;
}

/* The sum of |a x|, row by row in the kernel's order. */
static void V(row_sizes)(const Work *w, const double *x, double *to) {
    const Layout *a = w->layout;
    memset(to, 0, w->k * sizeof(double));
    for (int64_t e = 0; e < a->entries; e++) to[a->entry_row[e]] += fabs(w->it.values[e] * x[a->entry_col[e]]);
}

/* Whether x, the point that the duals mu ask for, and these are an answer; or RAN_OFF. */
static int V(holds)(Work *w, const double *x, const double *mu, double tol) {
    const Layout *a = w->layout;
    double objective = 0.0, largest = 0.0;
    V(apply)(w, w->it.values, x, NULL, w->scratch);
    const int quick = judge(a, &w->it, w->entropic, w->tau, w->scratch, mu, NULL, 0.0, tol);
    if (quick >= 0) return quick;
    V(row_sizes)(w, x, w->again);
    for (int64_t j = 0; j < a->variables; j++) {
        const double score = w->unit[j] > 0 ? fabs(w->linear[j] / w->unit[j]) : 0.0;
        objective += fabs(score * x[j]);
        largest = score > largest ? score : largest;
    }
    return judge_by_size(a, &w->it, w->entropic, w->tau, w->scratch, mu, w->again, objective, tol, x, largest);
}

/* Whether the error has not fallen for more than `patience` steps, all at one temperature. */
INLINE int V(stagnates)(const Work *w, double T, int64_t patience, double *coolest, double *mark, int64_t *since) {
    if (T < *coolest || w->now.error <= STAGNANT * *mark) {
        *coolest = T;
        *mark = w->now.error;
        *since = 0;
    } else ++*since;
    return *since > patience;
}

/* The iteration from duals `start` of the rows as written, or from none; STALLED too after `patience` steps without progress.
 * CONVERGED and FAR_AWAY are the verdict of `holds`: x is in w->d then, and the duals are in w->now. */
static int V(newton)(Work *w, double tol, const double *start, int64_t max_steps, int64_t patience, int64_t *steps) {
    const Constants *c = &CONSTANTS;
    double coolest = INFINITY, mark = INFINITY;
    int64_t since = 0;
    double T = V(start)(w, start);
    if (w->dense.constant && w->bounded && !w->has_slack && isfinite(w->now.theta)) {
        const int64_t guesses = V(guess_duals)(w, T, max_steps < MOST_GUESSES ? max_steps : MOST_GUESSES);
        if (guesses) V(keep_better)(w, T);
        *steps += guesses;
    }
    int warm = start && c->start_temperature * w->reach > w->tau && T <= w->tau; /* where a cold start begins hotter */
    double damping = warm ? c->least_damping : c->first_damping, ridge = c->first_ridge, stride = 1.0, length = 1.0;
    int64_t tries = 0;
    int searching = 0, cooled = 0, stalled = !isfinite(w->now.theta);
    for (int64_t number = 0; number <= max_steps * c->backtracks; number++) {
        /* The error is absolute, the verdict is not: where nothing bounds x, rounding may keep the error from falling. */
        const int rests = OBJECTIVES[w->objective].unit == OF_ROWS && since == STEPS_AT_REST && !searching;
        if (((w->now.error <= tol && !stalled) || rests) && T <= w->tau) {
            V(polish)(w, T, ridge, tol);
            V(answers)(w);
            const int held = V(holds)(w, w->d, w->now.mu, tol);
            if (held) return held == RAN_OFF ? FAR_AWAY : CONVERGED;
        }
        if (stalled) return STALLED;
        if (number && number % c->certificate_every == 0 && V(proves_infeasible)(w)) return INFEASIBLE;
        if (*steps >= max_steps && !searching) return STEP_LIMIT;
        if (!searching) {
            if (V(stagnates)(w, T, patience, &coolest, &mark, &since)) return V(proves_infeasible)(w) ? INFEASIBLE : STALLED;
            const int cools = (w->now.error <= c->loose_residual || rests) && T > w->tau;
            double cooler = T;
            if (cools) cooler = c->cooling * T > w->tau ? c->cooling * T : w->tau;
            const double size = w->now.error < 1.0 ? w->now.error : 1.0;
            w->reusable = !cools && !w->bounded && w->now.error <= c->loose_residual;
            const int dropped = V(find_direction)(w, T, cooler, damping * size / T, ridge, stride);
            if (number == 0 && warm && V(goes_far)(w, T)) {
                T = V(start)(w, NULL);
                damping = c->first_damping;
                warm = 0;
                ++*steps;
                continue;
            }
            if (dropped)
                ridge = 100 * ridge < c->largest_ridge ? 100 * ridge : c->largest_ridge; /* from the next step on */
            T = cooler;
            if (cools) V(evaluate_at)(w, &w->now, T);
            cooled = cools;
            tries = 0;
            length = 1.0;
            ++*steps;
        }
        const int accepted = V(try)(w, T, length, warm && w->now.error > c->loose_residual);
        const int gives_up = !accepted && ++tries >= c->backtracks;
        if (accepted && length == 1.0) {
            damping /= 4;
            stride *= 2;
        } else if (accepted || gives_up) {
            damping *= 4;
            stride /= 2;
        }
        damping = damping < c->least_damping ? c->least_damping : damping > c->largest_damping ? c->largest_damping : damping;
        stride = stride < 1.0 ? 1.0 : stride > c->largest_stride ? c->largest_stride : stride;
        stalled = gives_up && !cooled;
        searching = !accepted && !gives_up;
        if (searching) length *= c->shorten;
    }
    return STEP_LIMIT;
}
