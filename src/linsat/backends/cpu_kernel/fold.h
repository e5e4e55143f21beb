/* The numbers of one instance, and room to work in.
 *
 * Included by kernel.c once per instruction set.
 */

/* Coefficients, and what follows from them: the numbers that right-hand sides do not change. */
static void V(fold_coefficients)(Work *w, const Problem *problem, int64_t n) {
    const Layout *a = w->layout;
    const double *values = doubles(problem->values, n), *lower = doubles(problem->lower, n);
    const double *upper = doubles(problem->upper, n), *scale = doubles(problem->scale, n);
    const uint8_t *free_ = bytes(problem->free, n), *at_upper = bytes(problem->at_upper, n);
    const uint8_t *active = bytes(problem->active, n);
    const int entropy = w->objective == ENTROPY;
    memset(w->taken, 0, w->k * sizeof(double));
    memset(w->negative, 0, w->k * sizeof(double));
    memset(w->totals, 0, w->k * sizeof(double));
    for (int64_t e = 0; e < a->entries; e++) {
        const int32_t i = a->entry_row[e], j = a->entry_col[e];
        const double value = values[a->entry[e]], rho = scale[a->order[i]];
        double c = 0.0;
        if (free_[j]) {
            c = entropy ? value * (upper[j] - lower[j]) / rho : value / rho;
            if (entropy) w->taken[i] += value * lower[j];
        } else {
            w->taken[i] += value * (at_upper[j] ? upper[j] : lower[j]);
        }
        if (value < 0) w->negative[i] = 1.0;
        w->totals[i] += c;
        w->coefficients[e] = active[a->order[i]] ? c : 0.0;
    }
    for (int64_t e = 0; e < a->pairs && !a->pair_runs; e++)
        w->pair_values[e] = w->coefficients[a->pair_first[e]] * w->coefficients[a->pair_second[e]];
    for (int64_t r = 0; r < a->pair_runs; r++) {
        const Run run = a->runs_of_pairs[r];
        for (int32_t e = 0; e < run.count; e++)
            w->pair_values[run.at + e] = w->coefficients[run.first + e] * w->coefficients[run.second + e];
    }
    for (int64_t e = 0; e < a->entries && a->dense; e++)
        w->dense.C[a->entry_col[e] * a->width + a->entry_row[e]] = w->coefficients[e];
    w->dense.ready = 0;
}

/* Right-hand sides, slacks and bounds of duals. */
static void V(fold_rows)(Work *w, const Problem *problem, int64_t n) {
    const Layout *a = w->layout;
    const double *rhs = doubles(problem->rhs, n), *slack = doubles(problem->slack, n);
    const double *scale = doubles(problem->scale, n), *share_of = doubles(problem->tight_share, n);
    const double *dual_lower = doubles(problem->dual_lower, n), *dual_upper = doubles(problem->dual_upper, n);
    const uint8_t *active = bytes(problem->active, n), *tight = bytes(problem->tight, n);
    w->bounded = w->has_slack = 0;
    for (int64_t i = 0; i < a->rows; i++) {
        const int32_t from = a->order[i];
        const double rho = scale[from];
        double taken = w->taken[i];
        w->active[i] = active[from];
        w->s[i] = 0.0;
        if (w->entropic && active[from]) {
            if (tight[from]) taken += slack[from] * share_of[from];
            else w->s[i] = slack[from] / rho;
        }
        w->has_slack |= w->s[i] != 0.0;
        w->b[i] = active[from] ? (rhs[from] - taken) / rho : 0.0;
        w->low[i] = tight[from] ? -INFINITY : dual_lower[from] * rho;
        w->high[i] = tight[from] ? INFINITY : dual_upper[from] * rho;
        w->bounded |= w->low[i] > -INFINITY || w->high[i] < INFINITY;
        w->whole[i] = w->negative[i] > 0 || !active[from] ? 0.0 : w->totals[i] + w->s[i];
    }
}

/* Bounds and weights. Both bounds of a fixed variable are its value (Entropy), or 0 (Euclidean: it adds nothing to theta). */
static void V(fold_variables)(Work *w, const Problem *problem, int64_t n) {
    const double *lower = doubles(problem->lower, n), *upper = doubles(problem->upper, n);
    const uint8_t *free_ = bytes(problem->free, n), *at_upper = bytes(problem->at_upper, n);
    const double *weights = w->weights ? doubles(problem->parameter, n) : NULL;
    int unbounded = 1, fixed = 0;
    for (int64_t j = 0; j < w->layout->variables; j++) {
        const double value = w->objective == EUCLIDEAN ? 0.0 : at_upper[j] ? upper[j] : lower[j];
        w->lower[j] = free_[j] ? lower[j] : value;
        w->upper[j] = free_[j] ? upper[j] : value;
        if (weights) w->weights[j] = weights[j];
        fixed |= !free_[j];
        unbounded &= w->lower[j] == -INFINITY && w->upper[j] == INFINITY;
    }
    w->fixed = fixed;
    w->dense.constant = w->layout->dense && unbounded;
    w->dense.ready &= !problem->parameter.step;
}

/* The numbers of instance n that do not depend on scores and temperature, those that the last one had left alone. */
static void V(fold)(Work *w, const Problem *p, int64_t n, int first) {
    if (first || p->values.step || p->lower.step || p->upper.step || p->scale.step || p->free.step || p->at_upper.step ||
        p->active.step)
        V(fold_coefficients)(w, p, n);
    if (first || p->rhs.step || p->slack.step || p->scale.step || p->dual_lower.step || p->dual_upper.step ||
        p->active.step || p->tight.step || p->tight_share.step || p->lower.step || p->upper.step || p->values.step ||
        p->free.step || p->at_upper.step)
        V(fold_rows)(w, p, n);
    w->dense.ready &= !(p->dual_lower.step || p->dual_upper.step || p->tight.step);
    if (first || p->lower.step || p->upper.step || p->free.step || p->at_upper.step || (w->weights && p->parameter.step))
        V(fold_variables)(w, p, n);
}

/* Numbers from and to the arrays of a call, which are float or double. */
INLINE void V(read)(double *restrict to, const void *restrict from, int single, int64_t at, int64_t count) {
    if (single)
        for (int64_t j = 0; j < count; j++) to[j] = ((const float *)from)[at + j];
    else memcpy(to, (const double *)from + at, count * sizeof(double));
}

INLINE void V(write)(void *restrict to, const double *restrict from, int single, int64_t at, int64_t count) {
    if (single)
        for (int64_t j = 0; j < count; j++) ((float *)to)[at + j] = (float)from[j];
    else memcpy((double *)to + at, from, count * sizeof(double));
}

/* The linear term, the temperature and the reach of the scores; returns whether everything is finite. */
static int V(read_scores)(Work *w, const Problem *problem, const void *scores, int single, int64_t n) {
    const int64_t l = w->layout->variables;
    const int entropy = w->objective == ENTROPY;
    w->tau = entropy ? *doubles(problem->parameter, n) : 1.0;
    V(read)(w->linear, scores, single, n * l, l);
    const double *lower = doubles(problem->lower, n), *upper = doubles(problem->upper, n);
    int overflows = 0; /* the scores of fixed variables, too, must fit their box as it was given */
    for (int64_t j = 0; entropy && w->fixed && j < l; j++) overflows |= !isfinite((upper[j] - lower[j]) * w->linear[j]);
    vec reach = {0};
    mask finite = ~(mask){0};
    for (int64_t j = 0; j < w->l; j += LANES) {
        const vec y = V(load)(w->linear + j), wide = V(load)(w->upper + j) - V(load)(w->lower + j);
        vec term = y;
        if (entropy) {
            term = wide * y;
            reach = V(larger)(V(size_of)(term), reach);
        } else if (w->weights) {
            const vec q = V(load)(w->weights + j);
            finite &= (q > 0.0) & (q < INFINITY);
            term = q * y;
        }
        finite &= (V(size_of)(y) < INFINITY) & (V(size_of)(term) < INFINITY);
        if (entropy) term = V(pick)(wide > 0.0, term, V(all)(-1e200)); /* fixed: it has a share of nothing */
        V(store)(w->linear + j, term);
    }
    w->reach = V(largest_of)(reach);
    finite[0] &= overflows ? 0 : ~(int64_t)0;
    for (int i = 1; i < LANES; i++) finite[0] &= finite[i];
    return finite[0] && isfinite(w->tau) && w->tau > 0.0;
}

INLINE double *V(take)(double **from, int64_t count) {
    double *found = *from;
    *from += rounded_up(count);
    return found;
}

/* Point to the work arrays, one after another from `at` on; returns where they end. */
static double *V(arrange)(Work *w, const Layout *a, const Problem *problem, double *at) {
    const int64_t ld = a->width, first = a->leading, lead = rounded_up(first), rows_of_panels = a->dense ? a->variables : first;
    double **variables[] = {&w->linear, &w->lower, &w->upper, &w->now.u, &w->now.p, &w->next.u, &w->next.p, &w->d};
    for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++) *variables[i] = V(take)(&at, w->l);
    if (w->objective == EUCLIDEAN && problem->parameter.at) w->weights = V(take)(&at, w->l);
    double **rows[] = {&w->b,       &w->s,      &w->low,    &w->high,   &w->totals,    &w->taken, &w->negative,
                       &w->whole,   &w->now.mu, &w->now.z,  &w->now.r,  &w->next.mu,   &w->next.z, &w->next.r,
                       &w->direction, &w->rhs,  &w->scratch, &w->q,     &w->again};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) *rows[i] = V(take)(&at, w->k);
    w->moving = (uint8_t *)V(take)(&at, w->k / 8);
    w->active = (uint8_t *)V(take)(&at, w->k / 8);
    w->coefficients = V(take)(&at, a->entries);
    w->pair_values = V(take)(&at, a->pairs);
    w->part = w->k > lead + ld ? w->k : lead + ld;
    const int64_t parts = a->tiles > V(chunks_of)(first) ? a->tiles : V(chunks_of)(first);
    w->parts = V(take)(&at, parts * w->part);
    w->sums = V(take)(&at, 2 * a->tiles);
    w->H = V(take)(&at, lead + ld + first * ld + (ld + 8) * (ld + 8));
    w->S = w->H + lead + ld + first * ld;
    double **others[] = {&w->inverse, &w->rest, &w->keep};
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) *others[i] = V(take)(&at, ld + 16);
    w->root = V(take)(&at, (first > ld ? first : ld) + 16);
    w->packed = ld > TILE || a->dense ? V(take)(&at, TILE * (ld + 8)) : NULL;
    w->panels = ld >= PACKED && !a->dense ? V(take)(&at, rows_of_panels * ld) : NULL;
    if (!a->dense) return at;
    Dense *m = &w->dense;
    m->C = V(take)(&at, a->variables * ld);
    m->scaled = V(take)(&at, a->variables * (ld + 8));
    m->list = (int32_t *)V(take)(&at, ld / 2 + 8);
    m->order = (int32_t *)V(take)(&at, ld / 2 + 8);
    if (w->objective == ENTROPY) return at;
    m->base = V(take)(&at, (ld + 8) * (ld + 8));
    m->base_inverse = V(take)(&at, ld + 8);
    m->base_size = V(take)(&at, ld + 8);
    return at;
}

/* Work arrays for a problem in one block, for free_block; NULL without memory. */
static void *V(begin)(Work *w, const Layout *a, const Problem *problem, const Constants *constants) {
    memset(w, 0, sizeof(*w));
    w->layout = a;
    w->constants = constants;
    w->objective = (int)problem->objective;
    w->entropic = (int)problem->entropic_slack;
    w->l = rounded_up(a->variables);
    w->k = rounded_up(a->rows);
    w->paired = w->objective == ENTROPY && V(are_paired)(a);
    double *origin = (double *)64;
    void *block = zeroed_block((size_t)((char *)V(arrange)(w, a, problem, origin) - (char *)origin) + 64);
    if (!block) return NULL;
    V(arrange)(w, a, problem, block);
    /* What lies behind the last variable and row takes part in no sum. */
    for (int64_t j = a->variables; j < w->l; j++) {
        if (w->objective == ENTROPY) w->linear[j] = -1e200;
        if (w->weights) w->weights[j] = 1.0;
    }
    for (int64_t i = a->rows; i < w->k; i++) {
        w->low[i] = -INFINITY;
        w->high[i] = INFINITY;
    }
    return block;
}

/* The instances of one thread: the next that nobody has claimed, or all of them for the one that leads. */
INLINE int64_t V(next_instance)(const Work *w, Team *team, int64_t last) { return w->team ? last + 1 : claim(&team->counter); }
