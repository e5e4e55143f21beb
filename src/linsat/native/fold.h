/* The numbers of one instance, and room to work in.
 *
 * Included by core.c once per instruction set.
 */

/* Coefficients, and what follows from them: the numbers that right-hand sides do not change. */
static void V(fold_coefficients)(Work *w) {
    const Layout *a = w->layout;
    const double *values = w->it.values, *scale = w->it.scale;
    const uint8_t *active = w->it.active;
    memset(w->taken, 0, w->k * sizeof(double));
    memset(w->negative, 0, w->k * sizeof(double));
    memset(w->totals, 0, w->k * sizeof(double));
    for (int64_t e = 0; e < a->entries; e++) {
        const int32_t i = a->entry_row[e], j = a->entry_col[e];
        const double value = values[a->entry[e]], rho = scale[a->order[i]];
        const double c = value * w->unit[j] / rho;
        w->taken[i] += value * w->base[j];
        if (value < 0) w->negative[i] = 1.0;
        w->totals[i] += c;
        w->values[e] = value;
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
static void V(fold_rows)(Work *w) {
    const Layout *a = w->layout;
    const double *rhs = w->it.rhs, *slack = w->it.slack, *scale = w->it.scale, *share_of = w->it.tight_share;
    const double *dual_lower = w->it.dual_lower, *dual_upper = w->it.dual_upper;
    const uint8_t *active = w->it.active, *tight = w->it.tight;
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

/* Base, unit and bounds of p. A fixed variable has a unit of nothing, and adds nothing to theta. */
static void V(fold_variables)(Work *w) {
    const Instance *it = &w->it;
    const int o = w->objective, unit = has_unit(o);
    int unbounded = 1, fixed = 0;
    for (int64_t j = 0; j < w->layout->variables; j++) {
        const double low = it->lower[j], high = it->upper[j];
        const int moves = it->free[j] && high > low;
        fixed |= !moves;
        unbounded &= moves && low == -INFINITY && high == INFINITY;
        if (w->weights) w->weights[j] = it->parameters[0][j];
        w->unit[j] = !moves ? 0.0 : unit ? it->unit : o == ENTROPY ? high - low : 1.0;
        w->base[j] = !moves ? (it->at_upper[j] ? high : low) : o == EUCLIDEAN ? 0.0 : low;
        w->upper[j] = moves ? high : w->base[j];
        w->least[j] = moves && o == EUCLIDEAN ? low : 0.0;
        w->most[j] = !moves ? 0.0 : unit ? most_of(high - low, it->room[j]) / it->unit : o == EUCLIDEAN ? high : 1.0;
    }
    for (int64_t j = 0; unit && j < w->l; j += LANES) {
        const vec edge = V(log_of)(V(larger)(V(load)(w->most + j), V(all)(1e-200)) * it->unit);
        V(store)(w->first + j, edge);
        if (o == TSALLIS) V(store)(w->second + j, V(exp_of)(V(smaller)(edge * (w->alpha - 1.0), V(all)(700.0))));
        if (w->offset) V(store)(w->offset + j, w->tau * V(log_of)(V(larger)(V(load)(it->parameters[1] + j), V(all)(1e-300))));
    }
    w->fixed = fixed;
    w->dense.constant = w->layout->dense && unbounded;
}

/* The numbers of instance n that do not depend on scores and temperature, those that the last one had left alone; 0, or the
 * status of an instance with numbers that cannot be. The scores are in w->linear. */
static int V(state)(Work *w, const Statement *s, const uint8_t *known, int known_own, int64_t n, int first) {
    const Changes changed = V(state_instance)(&w->it, w->layout, s, w->linear, known, known_own, n, first);
    if (changed.status) return changed.status;
    const int o = w->objective, of_variables = w->weights || w->offset || o == TSALLIS;
    if (OBJECTIVES[o].temperature) w->tau = w->it.parameters[0][0] * w->it.unit;
    if (o == TSALLIS) w->alpha = w->it.parameters[1][0];
    const int stale = changed.box || changed.decided || (changed.sides && has_unit(o)) || (changed.parameter && of_variables);
    if (stale) V(fold_variables)(w);
    if (changed.box || changed.decided) V(fold_coefficients)(w);
    if (changed.sides || changed.decided) V(fold_rows)(w);
    w->dense.ready &= !(changed.sides && s->price.step) && !changed.decided && !(changed.parameter && w->weights);
    for (int64_t j = 0; w->it.forbids && j < w->layout->variables; j++)
        if (w->linear[j] == -INFINITY) w->linear[j] = 0.0;
    return 0;
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

/* The linear term and the reach of the scores, which are in w->linear; returns whether everything is finite. */
static int V(read_scores)(Work *w) {
    const int64_t l = w->layout->variables;
    const int wide = w->objective == ENTROPY, scaled = w->objective != EUCLIDEAN || w->weights;
    const int heats = OBJECTIVES[w->objective].temperature;
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

INLINE double *V(take)(double **from, int64_t count) {
    double *found = *from;
    *from += rounded_up(count);
    return found;
}

/* The arrays of an instance, likewise. */
static double *V(arrange_instance)(Instance *it, const Layout *a, double *at) {
    const int64_t k = a->rows, l = a->variables;
    double **variables[] = {&it->lower, &it->upper, &it->room, &it->parameters[0], &it->parameters[1]};
    for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++) *variables[i] = V(take)(&at, l + 1);
    it->values = V(take)(&at, a->entries);
    it->least = V(take)(&at, 4 * k); /* together, see state_box */
    it->most = it->least + k;
    it->wide = it->most + k;
    it->scale = it->wide + k;
    double **rows[] = {&it->side, &it->price, &it->rhs, &it->slack, &it->dual_lower, &it->dual_upper, &it->tight_share, &it->multiple};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) *rows[i] = V(take)(&at, k);
    it->range = V(take)(&at, V(presolve_room)(a));
    it->negative = (uint8_t *)V(take)(&at, k / 8 + 1);
    it->before = (uint8_t *)V(take)(&at, V(decided_size)(a) / 8 + 1);
    it->decided = (uint8_t *)V(take)(&at, V(decided_size)(a) / 8 + 1);
    it->free = it->decided;
    it->at_upper = it->free + l;
    it->active = it->at_upper + l;
    it->tight = it->active + k;
    it->senses = a->senses;
    return at;
}

/* Point to the work arrays, one after another from `at` on; returns where they end. */
static double *V(arrange)(Work *w, const Layout *a, const Statement *s, double *at) {
    const int64_t ld = a->width, first = a->leading, lead = rounded_up(first), rows_of_panels = a->dense ? a->variables : first;
    double **variables[] = {&w->linear, &w->base,  &w->unit,   &w->upper,  &w->least, &w->most, &w->first, &w->second,
                            &w->now.u,  &w->now.p, &w->next.u, &w->next.p, &w->d,     &w->given};
    for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++) *variables[i] = V(take)(&at, w->l);
    if (w->objective == EUCLIDEAN && s->parameters[0].at) w->weights = w->first;
    if (w->objective == KL && s->parameters[1].at) w->offset = V(take)(&at, w->l);
    w->gain = w->weights ? w->weights : w->unit;
    double **rows[] = {&w->b,       &w->s,      &w->low,    &w->high,   &w->totals,    &w->taken, &w->negative,
                       &w->whole,   &w->now.mu, &w->now.z,  &w->now.r,  &w->next.mu,   &w->next.z, &w->next.r,
                       &w->direction, &w->rhs,  &w->scratch, &w->q,     &w->again};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) *rows[i] = V(take)(&at, w->k);
    at = V(arrange_instance)(&w->it, a, at);
    w->moving = (uint8_t *)V(take)(&at, w->k / 8);
    w->active = (uint8_t *)V(take)(&at, w->k / 8);
    w->values = V(take)(&at, a->entries);
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
    if (w->objective != EUCLIDEAN) return at;
    m->base = V(take)(&at, (ld + 8) * (ld + 8));
    m->base_inverse = V(take)(&at, ld + 8);
    m->base_size = V(take)(&at, ld + 8);
    return at;
}

/* Work arrays for a problem in one block, for free_block; NULL without memory. */
static void *V(begin)(Work *w, const Layout *a, const Statement *s, Team *team) {
    memset(w, 0, sizeof(*w));
    w->team = team && team->together ? team : NULL;
    w->layout = a;
    w->objective = (int)s->objective;
    w->entropic = (int)s->entropic_slack;
    w->l = rounded_up(a->variables);
    w->k = rounded_up(a->rows);
    w->tau = 1.0;
    w->alpha = 2.0;
    w->paired = w->objective != EUCLIDEAN && V(are_paired)(a);
    double *origin = (double *)64;
    void *block = zeroed_block((size_t)((char *)V(arrange)(w, a, s, origin) - (char *)origin) + 64);
    if (!block) return NULL;
    V(arrange)(w, a, s, block);
    /* What lies behind the last variable and row takes part in no sum. */
    for (int64_t j = a->variables; j < w->l; j++) {
        if (w->weights) w->weights[j] = 1.0;
    }
    for (int64_t i = a->rows; i < w->k; i++) {
        w->low[i] = -INFINITY;
        w->high[i] = INFINITY;
    }
    return block;
}
