/* Presolve by bounds: linsat/arrays/presolve.py, instance by instance.
 */

/* The least and the largest activity of each row, and the size of the terms that add up to each. */
typedef struct {
    double *least, *most, *size_low, *size_high;
} Range;

static void activity(const Layout *a, const double *values, const double *lower, const double *upper,
                        const uint8_t *free_, const uint8_t *at_upper, Range at) {
    memset(at.least, 0, 4 * a->rows * sizeof(double)); /* the four follow each other */
    for (int64_t e = 0; e < a->entries; e++) {
        const int32_t i = a->order[a->entry_row[e]], j = a->entry_col[e];
        const double value = values[e];
        if (value == 0.0) continue; /* times an infinite bound, too */
        const double at_low = value * (free_[j] || !at_upper[j] ? lower[j] : upper[j]);
        const double at_high = value * (free_[j] || at_upper[j] ? upper[j] : lower[j]);
        const double low = at_low < at_high ? at_low : at_high, high = at_low < at_high ? at_high : at_low;
        at.least[i] += low;
        at.most[i] += high;
        at.size_low[i] += fabs(low);
        at.size_high[i] += fabs(high);
    }
}

/* Rounding of the distance of a side from an end of its row's range. */
INLINE double rounding(const Constants *c, double size, double side) {
    return isfinite(size) ? c->row_rounding * (size + fabs(side)) : 0.0; /* else out of reach */
}

/* A share of a row at an end of its range, or of its reach, beyond rounding. */
INLINE double slight(const Constants *c, double share, double reach, double size, double side) {
    const double unit = size > 1.0 ? size : 1.0;
    return isfinite(size) ? share * (reach < unit ? reach : unit) + rounding(c, size, side) : 0.0;
}

/* What single rows force until nothing changes: free, at_upper, active and infeasible of an instance. */
static void presolve(Instance *it, const Layout *a) {
    const Constants *c = &CONSTANTS;
    const int64_t k = a->rows, l = a->variables;
    const double *values = it->values, *lower = it->lower, *upper = it->upper, *side = it->side;
    uint8_t *free_ = it->free, *at_upper = it->at_upper, *active = it->active;
    double *work = it->range;
    const Range at = {work, work + k, work + 2 * k, work + 3 * k};
    const Range box = {work + 4 * k, work + 5 * k, work + 6 * k, work + 7 * k};
    double *room_above = work + 8 * k, *room_below = work + 9 * k;
    double *slightest = work + 10 * k; /* move of a variable that counts as none */
    uint8_t *down = (uint8_t *)(slightest + l), *up = down + l;
    for (int64_t j = 0; j < l; j++) {
        free_[j] = upper[j] - lower[j] > 0;
        at_upper[j] = 0;
        slightest[j] = 0.0;
    }
    for (int64_t e = 0; e < a->entries; e++) slightest[a->entry_col[e]] += fabs(values[e]);
    for (int64_t j = 0; j < l; j++) {
        const double share = c->forced * (upper[j] - lower[j] < 1.0 ? upper[j] - lower[j] : 1.0);
        const double unnoticed = c->unnoticed / (slightest[j] > 1e-30 ? slightest[j] : 1e-30);
        slightest[j] = share < unnoticed ? share : unnoticed;
    }
    activity(a, values, lower, upper, free_, at_upper, box);
    memcpy(at.least, box.least, 4 * k * sizeof(double));
    int changed = 1;
    while (changed) {
        for (int64_t i = 0; i < k; i++) {
            const double above = side[i] - at.least[i], below = at.most[i] - side[i], reach = box.most[i] - box.least[i];
            const int hard = !is_soft(it, i) && !is_absent(it, i); /* others force nothing */
            const int caps = hard && it->senses[i] != GREATER, floors = hard && it->senses[i] != LESS;
            it->infeasible |= caps && above < -slight(c, c->contradiction, reach, at.size_low[i], side[i]);
            it->infeasible |= floors && below < -slight(c, c->contradiction, reach, at.size_high[i], side[i]);
            room_above[i] = caps ? above - rounding(c, at.size_low[i], side[i]) : INFINITY;
            room_below[i] = floors ? below - rounding(c, at.size_high[i], side[i]) : INFINITY;
        }
        memset(down, 0, 2 * l);
        for (int64_t e = 0; e < a->entries; e++) {
            const int32_t i = a->order[a->entry_row[e]], j = a->entry_col[e];
            const double value = values[e], needed = fabs(value) * slightest[j];
            const int no_above = room_above[i] <= needed, no_below = room_below[i] <= needed;
            if (value > 0) {
                down[j] |= no_above;
                up[j] |= no_below;
            } else if (value < 0) {
                down[j] |= no_below;
                up[j] |= no_above;
            }
        }
        changed = 0;
        for (int64_t j = 0; j < l; j++) {
            if (!free_[j] || !(down[j] || up[j])) continue;
            free_[j] = 0;
            at_upper[j] = !down[j];
            changed = 1;
        }
        if (changed) activity(a, values, lower, upper, free_, at_upper, at);
    }
    memset(active, 0, k);
    for (int64_t e = 0; e < a->entries; e++)
        if (values[e] != 0 && free_[a->entry_col[e]]) active[a->order[a->entry_row[e]]] = 1;
    for (int64_t i = 0; i < k; i++) {
        const double reach = box.most[i] - box.least[i];
        const double at_least = slight(c, c->vacuous, reach, box.size_low[i], side[i]);
        const double at_most = slight(c, c->vacuous, reach, box.size_high[i], side[i]);
        if ((it->senses[i] == LESS && side[i] - box.most[i] >= -at_most) ||
            (it->senses[i] == GREATER && box.least[i] - side[i] >= -at_least))
            active[i] = 0;
    }
}

INLINE int64_t presolve_room(const Layout *a) { return 10 * a->rows + a->variables + a->variables / 4 + 8; }

/* What is decided about an instance before it is solved; returns whether that differs from the last one's. */
static int decide(Instance *it, const Layout *a, const Statement *s, const uint8_t *known) {
    memcpy(it->before, it->decided, decided_size(a));
    it->infeasible = 0;
    if (known && !it->forbids) memcpy(it->decided, known, decided_size(a));
    else {
        memset(it->tight, 0, a->rows);
        if (OBJECTIVES[s->objective].interior) presolve(it, a);
        else decide_nothing(it, a);
    }
    for (int64_t i = 0; i < a->rows; i++) it->tight_share[i] = it->tight[i] && it->senses[i] == GREATER;
    return memcmp(it->before, it->decided, decided_size(a)) != 0;
}

/* What an instance differs in from the one before it, and the status of one with numbers that cannot be. */
typedef struct {
    int status, box, sides, parameter, decided;
} Changes;

/* The numbers of instance n, those that the last one had left alone. */
static Changes state_instance(Instance *it, const Layout *a, const Statement *s, const double *scores, const uint8_t *known,
                                 int known_own, int64_t n, int first) {
    const int forbade = it->forbids;
    it->forbids = 0;
    Changes of = {.parameter = first || it->broken || s->parameters[0].step || s->parameters[1].step};
    if (of.parameter) of.status = state_parameters(it, a, s, n);
    for (int64_t j = 0; j < a->variables; j++) it->forbids |= scores[j] == -INFINITY;
    it->forbids |= it->zeros;
    of.box = first || it->forbids || forbade || it->broken || s->values.step || s->lower.step || s->upper.step;
    of.sides = of.box || s->side.step || s->price.step;
    if (of.box && !of.status) of.status = state_box(it, a, s, scores, n);
    if (of.sides && !of.status) of.status = state_rows(it, a, s, n);
    it->broken = of.status != 0; /* then nothing of it serves the next */
    if (!of.status) of.decided = (of.sides || known_own) && decide(it, a, s, known);
    return of;
}

/* Point to the arrays of an instance, one after another from `at` on; returns where they end. */
static double *arrange_instance(Instance *it, const Layout *a, double *at) {
    const int64_t k = a->rows, l = a->variables;
    TAKE(&at, l + 1, &it->lower, &it->upper, &it->room, &it->parameters[0], &it->parameters[1]);
    it->values = take(&at, a->entries);
    it->least = take(&at, 4 * k); /* together, see state_box */
    it->most = it->least + k;
    it->wide = it->most + k;
    it->scale = it->wide + k;
    TAKE(&at, k, &it->side, &it->price, &it->rhs, &it->slack, &it->dual_lower, &it->dual_upper, &it->tight_share, &it->multiple);
    it->range = take(&at, presolve_room(a));
    it->negative = (uint8_t *)take(&at, k / 8 + 1);
    it->before = (uint8_t *)take(&at, decided_size(a) / 8 + 1);
    it->decided = (uint8_t *)take(&at, decided_size(a) / 8 + 1);
    it->free = it->decided;
    it->at_upper = it->free + l;
    it->active = it->at_upper + l;
    it->tight = it->active + k;
    it->senses = a->senses;
    return at;
}
