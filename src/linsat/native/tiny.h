/* The instances of a call over a tiny set, LANES at a time (lanes.h).
 *
 * Compiled once per instruction set (kernel.h).
 */

/* LANES instances as stated; where all share their numbers, the first of them serves all. */
typedef struct {
    Instance room[LANES];
    const Instance *of[LANES];
    double *scores; /* (variables) zeros: scores of -inf, which change the box, are not for lanes */
    int own;        /* instances have numbers of their own */
    int count, begun;
} V(Stated);

/* Arrays for them, one after another from `at` on; returns where they end. */
static double *V(arrange_stated)(V(Stated) *to, const Layout *a, double *at) {
    for (int n = 0; n < (to->own ? LANES : 1); n++) at = arrange_instance(&to->room[n], a, at);
    to->scores = take(&at, a->variables);
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
                          int64_t end) {
    const int different = to->own ? LANES : 1, first = !to->begun;
    int changed = w->folded ? 0 : NEW_NUMBERS, usable = 0, any = -1;
    to->count = end - n < LANES ? (int)(end - n) : LANES;
    to->begun = 1;
    for (int i = 0; i < LANES; i++) {
        const int from = i < different && i < to->count ? i : 0;
        if (i == from && (to->own || first)) {
            const uint8_t *own = known ? known + (n + i) * known_step : NULL;
            const Changes of = state_instance(&to->room[i], w->layout, s, to->scores, own, known_step != 0, n + i, first);
            if (of.box || of.decided) changed = NEW_NUMBERS;
            if (of.sides) changed |= NEW_ROWS | (OBJECTIVES[w->objective].unit == OF_ROWS ? NEW_VARIABLES : 0);
            if (of.parameter) changed |= NEW_HEAT | (parameters_fold(s) ? NEW_VARIABLES : 0);
        }
        to->of[i] = to->room + from;
        usable |= (i < to->count && !to->room[from].broken) << i;
        if (any < 0 && usable) any = from;
    }
    if (any < 0) return 0;
    for (int i = 0; i < LANES; i++) /* lanes without an instance, or with one that cannot be, have the numbers of another */
        if (i >= to->count || to->of[i]->broken) to->of[i] = to->room + any;
    if (changed) V(fold_lanes)(w, to->of, changed);
    w->folded = 1;
    return usable;
}

/* ---- solving ---- */

/* The instances in the lanes; a lane without one has the pointers of another, and is not written to. */
typedef struct {
    int64_t at[LANES]; /* the instance of each lane */
    const Instance *of[LANES];
    const void *scores[LANES]; /* (variables), float where single, else double */
    const double *start[LANES];/* (rows) duals to begin with, in all lanes or (NULL) in none */
    void *x[LANES];
    double *duals[LANES];      /* (rows) of the rows as written */
    int single, busy;          /* busy: bits of the lanes with an instance */
} V(LaneSolve);

/* The lanes in which x passes `judge` of verdict.h whatever the sizes of rows and objective are, as most do: its formulas without
 * sizes, in vectors. What does not pass here goes to `judge` itself. */
static mask V(lanes_hold)(const Group *w, const vec *restrict x, double tol) {
    const Layout *a = w->layout;
    const vec *restrict given = w->given;
    const int32_t *restrict column = w->row_column;
    vec gap = {0};
    mask holds = ~(mask){0};
    for (int64_t i = 0; i < a->rows; i++) {
        const int32_t *end = w->row_column + w->row_start[i + 1];
        const int sense = a->senses[a->order[i]];
        const vec low = w->stated_low[i], high = w->stated_high[i], dual = w->now.mu[i] / w->scale[i];
        const mask absent = (low == 0.0) & (high == 0.0), soft = (low > -INFINITY) & (high < INFINITY);
        vec value = {0};
        for (; column < end; column++, given++) value += *given * V(at)(x, *column);
        const vec excess = value - w->side[i], off = V(size_of)(excess);
        vec violation = off, term = V(size_of)(dual) * off;
        if (sense != EQUAL) violation = sense == LESS ? excess : -excess;
        holds &= soft | (violation <= tol); /* absent rows are soft ones without a price */
        if (w->entropic) term = V(size_of)(dual) * V(size_of)(value + w->s[i] * w->scale[i] * w->now.z[i] - w->right[i]);
        term = V(pick)(soft, V(size_of)(dual - V(pick)(excess > 0.0, low, high)) * off, term);
        gap += V(where)(w->active[i] & ~absent, term);
    }
    return holds & (gap <= CONSTANTS.gap * tol);
}

/* Whether the answer in lane n is one, by the verdict that all answers need. */
static int V(lane_holds)(const Group *w, const V(LaneSolve) *lanes, const vec *x, int n, double tol) {
    const Layout *a = w->layout;
    const Instance *it = lanes->of[n];
    double values[LANE_ROWS] = {0}, sizes[LANE_ROWS] = {0}, mu[LANE_ROWS], point[LANE_VARIABLES], objective = 0.0, largest = 0.0;
    for (int64_t i = 0; i < a->rows; i++) mu[i] = w->now.mu[i][n];
    for (int64_t e = 0; e < a->entries; e++) {
        const double term = it->values[e] * x[a->entry_col[e]][n];
        values[a->entry_row[e]] += term;
        sizes[a->entry_row[e]] += fabs(term);
    }
    for (int64_t j = 0; j < a->variables; j++) {
        const double y = score_at(lanes->scores[n], lanes->single, j);
        objective += fabs((w->weighted ? it->parameters[0][j] * y : y) * x[j][n]);
        largest = fabs(y) > largest ? fabs(y) : largest;
        point[j] = x[j][n];
    }
    return judge_by_size(a, it, w->entropic, w->tau[n], values, mu, sizes, objective, tol, point, largest) == 1;
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
        const Variable of = variable_of(it, w->objective, j);
        D[j] = it->free[j] ? steepness(w->objective, &of, x[j]) : 0.0;
    }
    memset(G, 0, sizeof(G));
    for (int64_t j = 0; j < a->variables; j++)
        for (int32_t e = w->column[j]; e < w->column[j + 1]; e++)
            for (int32_t f = w->column[j]; f <= e; f++) {
                const int g = place[w->row[e] / V(WIDE)], h = place[w->row[f] / V(WIDE)];
                if (g < 0 || h < 0) continue;
                const double term = it->values[w->place[e]] * it->values[w->place[f]] * D[j];
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
            if (place[a->entry_row[e]] >= 0) r[place[a->entry_row[e]]] += it->values[e] * x[a->entry_col[e]];
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
                x[a->entry_col[e]] -= D[a->entry_col[e]] * it->values[e] * r[place[a->entry_row[e]]];
        for (int64_t j = 0; j < a->variables; j++) x[j] = x[j] < it->lower[j] ? it->lower[j] : x[j] > it->upper[j] ? it->upper[j] : x[j];
    }
}

/* Whether that makes an answer of lane n; x is written then. */
static int V(lane_holds_tight)(const Group *w, const V(LaneSolve) *lanes, const vec *found, int n, double tol) {
    const Layout *a = w->layout;
    const Instance *it = lanes->of[n];
    double x[LANE_VARIABLES], scores[LANE_VARIABLES], lost[LANE_VARIABLES], values[LANE_ROWS], sizes[LANE_ROWS];
    long double u[LANE_VARIABLES];
    if (w->entropic) return 0; /* the paper's slack is not held tight */
    for (int64_t j = 0; j < a->variables; j++) {
        x[j] = found[j][n];
        scores[j] = score_at(lanes->scores[n], lanes->single, j);
    }
    V(hold_tight)(w, it, n, x);
    if (!proves_optimal(a, it, w->objective, scores, x, lanes->duals[n], tol, u, lost, values, sizes)) return 0;
    CORE(write)(lanes->x[n], x, lanes->single, 0, a->variables);
    return 1;
}

/* Answers of the lanes that have ended, by bits, written; returns those which are no answers. */
static int V(harvest)(Group *w, const V(LaneSolve) *lanes, const Solve *call, int ended) {
    const Layout *a = w->layout;
    vec *x = w->next.u, *duals = w->next.r, largest = {0};
    const int arrived = V(bits_of)(w->at.arrived) & ended;
    int failed = ended & ~arrived;
    if (!arrived) return failed;
    for (int64_t j = 0; j < a->variables; j++) {
        x[j] = V(point_at)(w->objective, w->now.p[j], w->base[j], w->unit[j], w->upper[j]);
        largest = V(larger)(V(size_of)(x[j]), largest);
    }
    for (int64_t i = 0; i < a->rows; i++) { /* at a bound, exactly at that of the multiplier */
        const vec mu = w->now.mu[i], dual = V(pick)(mu >= w->high[i], w->stated_high[i], mu / w->scale[i]);
        duals[a->order[i]] = V(pick)(mu <= w->low[i], w->stated_low[i], dual);
    }
    const int hold = V(bits_of)(V(lanes_hold)(w, x, call->tol));
    V(write_lanes)(lanes->x, x, lanes->single, a->variables, arrived);
    V(write_lanes)((void *const *)lanes->duals, duals, 0, a->rows, arrived);
    for (int i = 0; i < LANES; i++) {
        if (!(arrived >> i & 1)) continue;
        const int64_t n = lanes->at[i], size = decided_size(a);
        if (is_too_large(largest[i], lanes->single) || !(hold >> i & 1 || V(lane_holds)(w, lanes, x, i, call->tol) ||
                                 V(lane_holds_tight)(w, lanes, x, i, call->tol))) {
            failed |= 1 << i;
            continue;
        }
        call->status[n] = CONVERGED;
        call->steps[n] = (int64_t)w->at.steps[i];
        call->solver[n] = NEWTON;
        if (call->decided) memcpy(call->decided + n * size, lanes->of[i]->decided, size);
    }
    return failed;
}

/* Instances that a thread has claimed and not begun with. */
typedef struct {
    int64_t next, end;
} V(Claim);

/* Whether there is one. */
static int V(claims)(V(Claim) *claim, Team *team, int64_t count) {
    if (claim->next == claim->end) {
        claim->next = __atomic_fetch_add(&team->counter, CLAIMED, __ATOMIC_RELAXED);
        claim->next = claim->next < count ? claim->next : count;
        claim->end = claim->next + CLAIMED < count ? claim->next + CLAIMED : count;
    }
    return claim->next < claim->end;
}

/* The next instances for lanes that are idle; returns these lanes, by bits. */
static int V(assign)(V(LaneSolve) *lanes, const Solve *call, const Layout *a, V(Claim) *claim, Team *team) {
    const int64_t l = a->variables, k = a->rows, wide = call->single ? sizeof(float) : sizeof(double);
    int fresh = 0;
    for (int i = 0; i < LANES; i++)
        if (!(lanes->busy >> i & 1) && V(claims)(claim, team, call->count)) {
            lanes->at[i] = claim->next++;
            fresh |= 1 << i;
        }
    for (int i = 0; i < LANES; i++) {
        if (lanes->busy >> i & 1) continue;
        const int64_t n = lanes->at[fresh >> i & 1 ? i : __builtin_ctz((unsigned)(lanes->busy | fresh | 1 << LANES)) % LANES];
        lanes->scores[i] = (const char *)call->scores + n * l * wide;
        lanes->x[i] = (char *)call->x + n * l * wide;
        lanes->start[i] = call->start ? call->start + n * k : NULL;
        lanes->duals[i] = call->duals + n * k;
    }
    lanes->busy |= fresh;
    return fresh;
}

/* Begin with the instances of some lanes, all usable; returns those that no lane can take, by bits. */
static int V(begin_with)(Group *w, const V(LaneSolve) *lanes, int fresh, double tol) {
    mask running = V(read_lane_scores)(w, lanes->of, lanes->scores, lanes->single) & V(lanes_of)(fresh);
    for (int i = 0; i < LANES; i++)
        if (lanes->of[i]->infeasible) running[i] = 0;
    V(start_lanes)(w, lanes->start[0] ? lanes->start : NULL, tol, V(lanes_of)(fresh), running);
    return fresh & ~V(bits_of)(running);
}

/* Work arrays for instances that go the way of all others, made for the first of them; false without memory. */
static int V(work_alone)(void **block, Work *w, const Layout *a, const Statement *s, double ridge) {
    if (!*block) *block = begin_work(w, a, s, NULL);
    if (*block) w->dense.ridge = ridge;
    return *block != NULL;
}

/* V(forward) for tiny sets; what lanes do not solve goes the way of all others. */
static int V(forward_by_lanes)(const Layout *a, const Statement *s, const Solve *call, Team *team) {
    Group group;
    Work w;
    V(Stated) stated;
    V(Claim) claim = {0, 0};
    V(LaneSolve) lanes = {.single = (int)call->single};
    void *alone = NULL; /* work arrays of V(forward_one), once there is an instance for it */
    if (!V(claims)(&claim, team, call->count)) return 0;
    void *block = V(begin_lanes)(&group, a, s);
    void *rooms = V(begin_stated)(&stated, a, s, 0);
    int failed = !block || !rooms, usable = 0;
    while (!failed) {
        const int fresh = V(assign)(&lanes, call, a, &claim, team);
        if (!lanes.busy) break;
        int ended = 0, lost = 0, least = 0;
        if (fresh && (stated.own || !stated.begun)) {
            const int64_t n = lanes.at[0]; /* all lanes were idle */
            usable = V(state_lanes)(&group, &stated, s, call->known, 0, n, n + __builtin_popcount((unsigned)fresh));
            if (usable && !stated.own) usable = -1;
            for (int i = 0; i < LANES; i++) lanes.of[i] = stated.of[i];
        }
        const int able = fresh & usable;
        lost = fresh & ~usable;
        if (able) lost |= V(begin_with)(&group, &lanes, able, call->tol);
        if (!stated.own && !V(any)(group.affine) && V(claims)(&claim, team, call->count)) least = LANES / 2 - 1;
        if (usable) V(iterate_lanes)(&group, call->tol, least);
        ended = lanes.busy & ~lost & ~V(bits_of)(group.at.running);
        if (usable) lost |= V(harvest)(&group, &lanes, call, ended);
        lanes.busy &= ~(ended | lost);
        for (int i = 0; i < LANES && !failed; i++) {
            if (!(lost >> i & 1)) continue;
            failed = !V(work_alone)(&alone, &w, a, s, CONSTANTS.first_ridge);
            if (!failed) CORE(forward_one)(&w, s, call, lanes.at[i], 1, usable >> i & 1);
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
    w->it = *it;
    w->tau = from->tau[n];
    w->has_slack = from->has_slack;
    w->fixed = 1;
}

/* The instances of a block from n on, at most LANES of them. */
static int V(pull_lanes)(Group *group, Work *w, V(Stated) *stated, const Statement *s, const Pull *call, const Wanted *wanted,
                         const Team *team, int64_t t, int64_t n, int64_t end) {
    const Layout *a = group->layout;
    const int64_t l = a->variables, k = a->rows, wide = call->single ? sizeof(float) : sizeof(double);
    const int usable = V(state_lanes)(group, stated, s, call->decided, call->decided_step, n, end);
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
        sums[i] = places(wanted, team, t, at);
        memcpy(lanes.parameters[i], sums[i].parameters, sizeof(lanes.parameters[i]));
        const int bounds = sums[i].lower || sums[i].upper;
        lanes.adjoint |= sums[i].values || sums[i].side || bounds || sums[i].price || sums[i].parameters[0];
        if (call->status[at] != CONVERGED) {
            if (call->grad_scores) memset(lanes.grad_scores[i], 0, l * wide);
            continue;
        }
        int held = 0;
        for (int64_t j = 0; j < l; j++) held |= score_at(lanes.scores[i], lanes.single, j) == -INFINITY;
        if (held || !(usable >> i & 1)) later |= 1 << i;
        else lanes.bits |= 1 << i;
    }
    if (lanes.bits) later |= V(backward_lanes)(group, &lanes);
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
    void *rooms = V(begin_stated)(&stated, a, s, call->decided_step != 0), *work = begin_work(&w, a, s, NULL), *alone = NULL;
    const Wanted wanted = list_gradients(a, s, call);
    int failed = !block || !rooms || !work;
    for (; !failed && t < team->blocks; t = claim(&team->counter)) {
        const int64_t end = (t + 1) * team->block < call->count ? (t + 1) * team->block : call->count;
        for (int64_t n = t * team->block; n < end && !failed; n += LANES) {
            const int later = V(pull_lanes)(&group, &w, &stated, s, call, &wanted, team, t, n, end);
            for (int i = 0; i < LANES && !failed; i++) {
                if (!(later >> i & 1)) continue;
                failed = !V(work_alone)(&alone, &other, a, s, CONSTANTS.refined_ridge);
                if (!failed) CORE(backward_one)(&other, s, call, n + i, places(&wanted, team, t, n + i), 1);
            }
        }
    }
    free_block(alone);
    free_block(work);
    free_block(rooms);
    free_block(block);
    return failed ? -1 : 0;
}
