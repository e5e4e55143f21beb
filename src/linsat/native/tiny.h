/* The instances of a call over a tiny set, LANES at a time (lanes.h).
 *
 * Included by core.c once per instruction set.
 */

/* LANES instances as stated; where all share their numbers, the first of them serves all. */
typedef struct {
    Instance room[LANES];
    const Instance *of[LANES];
    double *scores; /* (variables) zeros: scores of -inf, which change the box, are not for lanes */
    int own;        /* instances have numbers of their own */
    int count;
} V(Stated);

/* Arrays for them, one after another from `at` on; returns where they end. */
static double *V(arrange_stated)(V(Stated) *to, const Layout *a, double *at) {
    for (int n = 0; n < (to->own ? LANES : 1); n++) at = CORE(arrange_instance)(&to->room[n], a, at);
    to->scores = CORE(take)(&at, a->variables);
    return at;
}

static void *V(begin_stated)(V(Stated) *to, const Layout *a, const Statement *s, int known_own) {
    const Numbers numbers[] = {s->values, s->side, s->lower, s->upper, s->price, s->parameters[0], s->parameters[1]};
    memset(to, 0, sizeof(*to));
    to->own = known_own;
    for (int i = 0; i < GRADIENTS; i++) to->own |= numbers[i].step != 0;
    double *origin = (double *)64;
    void *block = zeroed_block((size_t)((char *)V(arrange_stated)(to, a, origin) - (char *)origin));
    if (block) V(arrange_stated)(to, a, block);
    return block;
}

/* The instances from n on, folded; returns which of them have numbers that can be, by bits. */
static int V(state_lanes)(Group *w, V(Stated) *to, const Statement *s, const uint8_t *known, int64_t known_step, int64_t n,
                          int64_t end, int first) {
    const int different = to->own ? LANES : 1;
    int changed = first ? NEW_NUMBERS : 0, usable = 0;
    to->count = end - n < LANES ? (int)(end - n) : LANES;
    for (int i = 0; i < LANES; i++) {
        const int from = i < different && i < to->count ? i : 0;
        if (i == from && (to->own || first)) {
            const uint8_t *own = known ? known + (n + i) * known_step : NULL;
            const Changes of = CORE(state_instance)(&to->room[i], w->layout, s, to->scores, own, known_step != 0, n + i, first);
            if (of.box || of.decided) changed = NEW_NUMBERS;
            if (of.sides) changed |= NEW_ROWS | (has_unit(w->objective) ? NEW_VARIABLES : 0);
            if (of.parameter) changed |= NEW_HEAT | (w->weighted || w->offset || w->objective == TSALLIS ? NEW_VARIABLES : 0);
        }
        to->of[i] = to->room + from;
        usable |= (i < to->count && !to->room[from].broken) << i;
    }
    if (to->room[0].broken) return 0; /* the lanes without an instance would have its numbers */
    for (int i = 1; i < LANES; i++)
        if (to->of[i]->broken) to->of[i] = to->room;
    if (changed) V(fold_lanes)(w, to->of, changed);
    return usable;
}

/* Whether the answer in lane n is one, by the verdict that all answers need; x is in w->d. */
static int V(lane_holds)(Group *w, const V(LaneSolve) *call, int n, double tol) {
    const Layout *a = w->layout;
    const Instance *it = call->of[n];
    double values[LANE_ROWS] = {0}, sizes[LANE_ROWS] = {0}, mu[LANE_ROWS], objective = 0.0;
    for (int64_t e = 0; e < a->entries; e++) values[a->entry_row[e]] += it->values[a->entry[e]] * w->d[a->entry_col[e]][n];
    for (int64_t i = 0; i < a->rows; i++) mu[i] = w->now.mu[i][n];
    const int quick = CORE(judge)(a, it, w->entropic, w->tau[n], values, mu, NULL, 0.0, tol);
    if (quick >= 0) return quick;
    for (int64_t e = 0; e < a->entries; e++)
        sizes[a->entry_row[e]] += fabs(it->values[a->entry[e]] * w->d[a->entry_col[e]][n]);
    for (int64_t j = 0; j < a->variables; j++) {
        const double y = CORE(score)(call->scores[n], call->single, j);
        objective += fabs((w->objective == EUCLIDEAN ? it->parameters[0][j] * y : y) * w->d[j][n]);
    }
    return CORE(judge)(a, it, w->entropic, w->tau[n], values, mu, sizes, objective, tol);
}

/* x of lane n moved so that the rows which its duals hold tight hold to the last digit: where duals are 1e6, the rounding of
 * y + A' mu, of which x is made, breaks rows by more than their price forgives. Leaves x in `x`. */
static void V(hold_tight)(const Group *w, const Instance *it, int n, double *x) {
    const Layout *a = w->layout;
    double G[LANE_ROWS][LANE_ROWS], r[LANE_ROWS], D[LANE_VARIABLES];
    int place[LANE_ROWS], tight[LANE_ROWS], count = 0;
    for (int64_t i = 0; i < a->rows; i++) {
        const double mu = w->now.mu[i][n];
        place[i] = it->active[a->order[i]] && mu > w->low[i][n] && mu < w->high[i][n] ? count : -1;
        if (place[i] >= 0) tight[count++] = (int)i;
    }
    for (int64_t j = 0; j < a->variables; j++) {
        const Variable of = CORE(variable_of)(it, w->objective, j);
        D[j] = it->free[j] ? steepness(w->objective, &of, x[j]) : 0.0;
    }
    memset(G, 0, sizeof(G));
    for (int64_t j = 0; j < a->variables; j++)
        for (int32_t e = w->column[j]; e < w->column[j + 1]; e++)
            for (int32_t f = w->column[j]; f <= e; f++) {
                const int g = place[w->row[e] / V(WIDE)], h = place[w->row[f] / V(WIDE)];
                if (g < 0 || h < 0) continue;
                const double term = it->values[a->entry[w->place[e]]] * it->values[a->entry[w->place[f]]] * D[j];
                G[g > h ? g : h][g > h ? h : g] += term;
            }
    for (int g = 0; g < count; g++) { /* L L', a row that depends on others dropped */
        double size = G[g][g];
        for (int h = 0; h <= g; h++) {
            double sum = G[g][h];
            for (int m = 0; m < h; m++) sum -= G[g][m] * G[h][m];
            G[g][h] = h < g ? sum * G[h][h] : sum > 1e-12 * size ? 1.0 / sqrt(sum) : 0.0; /* the diagonal inverted */
        }
    }
    for (int round = 0; round < 2; round++) {
        for (int g = 0; g < count; g++) r[g] = -it->side[a->order[tight[g]]];
        for (int64_t e = 0; e < a->entries; e++)
            if (place[a->entry_row[e]] >= 0) r[place[a->entry_row[e]]] += it->values[a->entry[e]] * x[a->entry_col[e]];
        for (int g = 0; g < count; g++) {
            for (int m = 0; m < g; m++) r[g] -= G[g][m] * r[m];
            r[g] *= G[g][g];
        }
        for (int g = count - 1; g >= 0; g--) {
            for (int m = g + 1; m < count; m++) r[g] -= G[m][g] * r[m];
            r[g] *= G[g][g];
        }
        for (int64_t e = 0; e < a->entries; e++)
            if (place[a->entry_row[e]] >= 0)
                x[a->entry_col[e]] -= D[a->entry_col[e]] * it->values[a->entry[e]] * r[place[a->entry_row[e]]];
        for (int64_t j = 0; j < a->variables; j++) x[j] = x[j] < it->lower[j] ? it->lower[j] : x[j] > it->upper[j] ? it->upper[j] : x[j];
    }
}

/* Whether that makes an answer of lane n; x is written then. */
static int V(lane_holds_tight)(Group *w, const V(LaneSolve) *call, int n, double tol) {
    const Layout *a = w->layout;
    const Instance *it = call->of[n];
    double x[LANE_VARIABLES], scores[LANE_VARIABLES], lost[LANE_VARIABLES], values[LANE_ROWS], sizes[LANE_ROWS];
    long double u[LANE_VARIABLES];
    if (w->entropic) return 0; /* the paper's slack is not held tight */
    for (int64_t j = 0; j < a->variables; j++) {
        x[j] = w->d[j][n];
        scores[j] = CORE(score)(call->scores[n], call->single, j);
    }
    V(hold_tight)(w, it, n, x);
    if (!CORE(proves_optimal)(a, it, w->objective, scores, x, call->duals[n], tol, u, lost, values, sizes)) return 0;
    CORE(write)(call->x[n], x, call->single, 0, a->variables);
    return 1;
}

static int64_t V(claim_lanes)(Team *team) { return __atomic_fetch_add(&team->counter, LANES, __ATOMIC_RELAXED); }

/* Whether x of lane n can be written as it was asked for. */
static int V(lane_fits)(const Group *w, int n, int single) {
    double largest = 0.0;
    for (int64_t j = 0; single && j < w->layout->variables; j++) largest = fabs(w->d[j][n]) > largest ? fabs(w->d[j][n]) : largest;
    return largest <= FLT_MAX;
}

/* V(forward) for tiny sets; what lanes do not solve goes the way of all others. */
static int V(forward_by_lanes)(const Layout *a, const Statement *s, const Solve *call, Team *team) {
    Group group;
    Work w;
    V(Stated) stated;
    void *alone = NULL; /* work arrays of V(forward_one), once there is an instance for it */
    int64_t n = V(claim_lanes)(team);
    if (n >= call->count) return 0;
    void *block = V(begin_lanes)(&group, a, s);
    void *rooms = V(begin_stated)(&stated, a, s, 0);
    const int64_t l = a->variables, k = a->rows, wide = call->single ? sizeof(float) : sizeof(double);
    int failed = !block || !rooms;
    for (int first = 1; !failed && n < call->count; n = V(claim_lanes)(team)) {
        V(LaneSolve) lanes = {.single = (int)call->single};
        const int usable = V(state_lanes)(&group, &stated, s, call->known, 0, n, call->count, first);
        int solved = 0;
        lanes.count = stated.count;
        for (int i = 0; i < LANES; i++) {
            const int64_t at = n + (i < lanes.count ? i : 0);
            lanes.of[i] = stated.of[i];
            lanes.scores[i] = (const char *)call->scores + at * l * wide;
            lanes.x[i] = (char *)call->x + at * l * wide;
            lanes.start[i] = call->start ? call->start + at * k : NULL;
            lanes.duals[i] = call->duals + at * k;
        }
        if (usable) {
            solved = V(forward_lanes)(&group, &lanes, call->tol) & usable;
            first = 0;
        }
        for (int i = 0; i < lanes.count && !failed; i++) {
            const int fits = solved >> i & 1 && V(lane_fits)(&group, i, lanes.single);
            if (fits && (V(lane_holds)(&group, &lanes, i, call->tol) || V(lane_holds_tight)(&group, &lanes, i, call->tol))) {
                call->status[n + i] = CONVERGED;
                call->steps[n + i] = lanes.steps[i];
                call->solver[n + i] = NEWTON;
                if (call->decided) memcpy(call->decided + (n + i) * CORE(decided_size)(a), stated.of[i]->decided, CORE(decided_size)(a));
                continue;
            }
            if (!alone) alone = CORE(begin)(&w, a, s);
            failed = !alone;
            if (failed) break;
            w.dense.ridge = CONSTANTS.first_ridge;
            CORE(forward_one)(&w, s, call, n + i, 1, usable >> i & 1);
        }
    }
    if (alone) free_block(w.interior);
    free_block(alone);
    free_block(rooms);
    free_block(block);
    return failed ? -1 : 0;
}

/* What V(to_statement) reads, from lane n. */
static void V(take_lane)(Work *w, const Group *from, const Instance *it, int n) {
    const Layout *a = w->layout;
    const struct {
        double *to;
        const vec *of;
    } rows[] = {{w->q, from->q}, {w->now.mu, from->now.mu}, {w->now.z, from->now.z}, {w->s, from->s}},
      columns[] = {{w->d, from->d}, {w->now.u, from->now.u}, {w->now.p, from->now.p}, {w->base, from->base},
                   {w->unit, from->unit}, {w->upper, from->upper}, {w->most, from->most}};
    for (int c = 0; c < 4; c++)
        for (int64_t i = 0; i < a->rows; i++) rows[c].to[i] = rows[c].of[i][n];
    for (int c = 0; c < 7; c++)
        for (int64_t j = 0; j < a->variables; j++) columns[c].to[j] = columns[c].of[j][n];
    for (int64_t e = 0; e < a->entries; e++) w->values[e] = it->values[a->entry[e]];
    w->it = *it;
    w->tau = from->tau[n];
    w->has_slack = from->has_slack;
    w->fixed = 1;
}

/* The instances of a block from n on, at most LANES of them. */
static int V(pull_lanes)(Group *group, Work *w, V(Stated) *stated, const Statement *s, const Pull *call, const Wanted *wanted,
                         const Team *team, int64_t t, int64_t n, int64_t end, int first) {
    const Layout *a = group->layout;
    const int64_t l = a->variables, k = a->rows, wide = call->single ? sizeof(float) : sizeof(double);
    const int usable = V(state_lanes)(group, stated, s, call->decided, call->decided_step, n, end, first);
    V(LanePull) lanes = {.single = (int)call->single};
    Sums sums[LANES];
    int later = 0;
    for (int i = 0; i < LANES; i++) {
        const int64_t at = n + (i < stated->count ? i : 0);
        lanes.of[i] = stated->of[i];
        lanes.scores[i] = (const char *)call->scores + at * l * wide;
        lanes.grad_x[i] = call->grad_x ? (const char *)call->grad_x + at * l * wide : NULL;
        lanes.grad_scores[i] = call->grad_scores ? (char *)call->grad_scores + at * l * wide : NULL;
        lanes.duals[i] = call->duals + at * k;
        lanes.grad_duals[i] = call->grad_duals ? call->grad_duals + at * k : NULL;
        if (i >= stated->count) {
            memcpy(lanes.parameters[i], lanes.parameters[0], sizeof(lanes.parameters[0]));
            continue;
        }
        sums[i] = CORE(places)(wanted, team, t, at);
        memcpy(lanes.parameters[i], sums[i].parameters, sizeof(lanes.parameters[i]));
        if (call->status[at] != CONVERGED) {
            if (call->grad_scores) memset(lanes.grad_scores[i], 0, l * wide);
            continue;
        }
        int held = 0;
        for (int64_t j = 0; j < l; j++) held |= CORE(score)(lanes.scores[i], lanes.single, j) == -INFINITY;
        if (held || !(usable >> i & 1)) later |= 1 << i;
        else lanes.bits |= 1 << i;
    }
    if (lanes.bits) V(backward_lanes)(group, &lanes);
    for (int i = 0; i < stated->count; i++) {
        const Sums to = sums[i];
        if (lanes.bits >> i & 1 && (to.values || to.side || to.lower || to.upper || to.price)) {
            V(take_lane)(w, group, stated->of[i], i);
            if (call->grad_x) CORE(read)(w->given, call->grad_x, lanes.single, (n + i) * l, l);
            else memset(w->given, 0, l * sizeof(double));
            CORE(to_statement)(w, call, n + i, w->given, to);
        }
    }
    return later;
}

/* V(backward) for tiny sets; instances with scores of -inf go the way of all others. */
static int V(backward_by_lanes)(const Layout *a, const Statement *s, const Pull *call, Team *team) {
    Group group;
    Work w, other;
    V(Stated) stated;
    int64_t t = claim(&team->counter);
    if (t >= team->blocks) return 0;
    void *block = V(begin_lanes)(&group, a, s);
    void *rooms = V(begin_stated)(&stated, a, s, call->decided_step != 0), *work = CORE(begin)(&w, a, s), *alone = NULL;
    const Wanted wanted = list_gradients(a, s, call);
    int failed = !block || !rooms || !work;
    for (int first = 1; !failed && t < team->blocks; t = claim(&team->counter)) {
        const int64_t end = (t + 1) * team->block < call->count ? (t + 1) * team->block : call->count;
        for (int64_t n = t * team->block; n < end && !failed; n += LANES) {
            const int later = V(pull_lanes)(&group, &w, &stated, s, call, &wanted, team, t, n, end, first);
            first = stated.room[0].broken; /* then nothing was folded */
            for (int i = 0; i < LANES && !failed; i++) {
                if (!(later >> i & 1)) continue;
                if (!alone) alone = CORE(begin)(&other, a, s);
                failed = !alone;
                if (failed) break;
                other.dense.ridge = CONSTANTS.refined_ridge;
                CORE(backward_one)(&other, s, call, n + i, CORE(places)(&wanted, team, t, n + i), 1);
            }
        }
    }
    free_block(alone);
    free_block(work);
    free_block(rooms);
    free_block(block);
    return failed ? -1 : 0;
}
