/* Presolve by bounds: linsat/compile/presolve.py, instance by instance.
 *
 * Included by kernel.c once per instruction set.
 */

/* The least and the largest activity of each row, and the size of the terms that add up to each. */
typedef struct {
    double *least, *most, *size_low, *size_high;
} V(Range);
#define Range V(Range)

static void V(activity)(const Layout *a, const double *values, const double *lower, const double *upper,
                        const uint8_t *free_, const uint8_t *at_upper, Range at) {
    memset(at.least, 0, 4 * a->rows * sizeof(double)); /* the four follow each other */
    for (int64_t e = 0; e < a->entries; e++) {
        const int32_t i = a->order[a->entry_row[e]], j = a->entry_col[e];
        const double value = values[a->entry[e]];
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
INLINE double V(rounding)(const Constants *c, double size, double side) { return c->row_rounding * (size + fabs(side)); }

/* A share of a row at an end of its range, or of its reach, beyond rounding. */
INLINE double V(slight)(const Constants *c, double share, double reach, double size, double side) {
    const double unit = size > 1.0 ? size : 1.0;
    return isfinite(size) ? share * (reach < unit ? reach : unit) + V(rounding)(c, size, side) : 0.0; /* else out of reach */
}

static void V(presolve_one)(const Layout *a, const Problem *problem, const Presolve *call, int64_t n, double *work) {
    const Constants *c = call->constants;
    const int64_t k = a->rows, l = a->variables;
    const double *values = doubles(problem->values, n), *lower = doubles(problem->lower, n);
    const double *upper = doubles(problem->upper, n), *rhs = doubles(problem->rhs, n), *slack = doubles(problem->slack, n);
    uint8_t *free_ = call->free + n * l, *at_upper = call->at_upper + n * l, *active = call->active + n * k;
    const Range at = {work, work + k, work + 2 * k, work + 3 * k};
    const Range box = {work + 4 * k, work + 5 * k, work + 6 * k, work + 7 * k};
    double *side = work + 8 * k, *room_above = work + 9 * k, *room_below = work + 10 * k;
    double *slightest = work + 11 * k; /* move of a variable that counts as none */
    uint8_t *down = (uint8_t *)(slightest + l), *up = down + l;
    const double *dual_lower = doubles(problem->dual_lower, n), *dual_upper = doubles(problem->dual_upper, n);
    for (int64_t j = 0; j < l; j++) {
        free_[j] = upper[j] - lower[j] > 0;
        at_upper[j] = 0;
        slightest[j] = 0.0;
    }
    for (int64_t e = 0; e < a->entries; e++) slightest[a->entry_col[e]] += fabs(values[a->entry[e]]);
    for (int64_t j = 0; j < l; j++) {
        const double share = c->forced * (upper[j] - lower[j] < 1.0 ? upper[j] - lower[j] : 1.0);
        const double unnoticed = c->unnoticed / (slightest[j] > 1e-30 ? slightest[j] : 1e-30);
        slightest[j] = share < unnoticed ? share : unnoticed;
    }
    V(activity)(a, values, lower, upper, free_, at_upper, box);
    memcpy(at.least, box.least, 4 * k * sizeof(double));
    for (int64_t i = 0; i < k; i++) side[i] = call->senses[i] == GREATER ? rhs[i] - slack[i] : rhs[i];
    int impossible = 0, changed = 1;
    while (changed) {
        for (int64_t i = 0; i < k; i++) {
            const double above = side[i] - at.least[i], below = at.most[i] - side[i], reach = box.most[i] - box.least[i];
            const int hard = !(isfinite(dual_lower[i]) && isfinite(dual_upper[i])); /* soft rows force nothing */
            const int caps = hard && call->senses[i] != GREATER, floors = hard && call->senses[i] != LESS;
            impossible |= caps && above < -V(slight)(c, c->contradiction, reach, at.size_low[i], side[i]);
            impossible |= floors && below < -V(slight)(c, c->contradiction, reach, at.size_high[i], side[i]);
            room_above[i] = caps ? above - V(rounding)(c, at.size_low[i], side[i]) : INFINITY;
            room_below[i] = floors ? below - V(rounding)(c, at.size_high[i], side[i]) : INFINITY;
        }
        memset(down, 0, 2 * l);
        for (int64_t e = 0; e < a->entries; e++) {
            const int32_t i = a->order[a->entry_row[e]], j = a->entry_col[e];
            const double value = values[a->entry[e]], needed = fabs(value) * slightest[j];
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
        if (changed) V(activity)(a, values, lower, upper, free_, at_upper, at);
    }
    call->infeasible[n] = (uint8_t)impossible;
    memset(active, 0, k);
    for (int64_t e = 0; e < a->entries; e++)
        if (values[a->entry[e]] != 0 && free_[a->entry_col[e]]) active[a->order[a->entry_row[e]]] = 1;
    for (int64_t i = 0; i < k; i++) {
        const double reach = box.most[i] - box.least[i];
        const double at_least = V(slight)(c, c->vacuous, reach, box.size_low[i], side[i]);
        const double at_most = V(slight)(c, c->vacuous, reach, box.size_high[i], side[i]);
        if ((call->senses[i] == LESS && side[i] - box.most[i] >= -at_most) ||
            (call->senses[i] == GREATER && box.least[i] - side[i] >= -at_least))
            active[i] = 0;
    }
}

static int V(presolve)(const Layout *a, const Problem *problem, const Presolve *call, Team *team) {
    double *work = malloc((11 * a->rows + a->variables + a->variables / 4 + 8) * sizeof(double));
    if (!work) return -1;
    for (int64_t n = claim(&team->counter); n < call->count; n = claim(&team->counter))
        V(presolve_one)(a, problem, call, n, work);
    free(work);
    return 0;
}
