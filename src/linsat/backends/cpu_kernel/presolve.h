/* Presolve by bounds: linsat/compile/presolve.py, instance by instance.
 *
 * Included by kernel.c once per instruction set.
 */

static void V(activity)(const Layout *a, const double *values, const double *lower, const double *upper,
                        const uint8_t *free_, const uint8_t *at_upper, double *least, double *most) {
    memset(least, 0, a->rows * sizeof(double));
    memset(most, 0, a->rows * sizeof(double));
    for (int64_t e = 0; e < a->entries; e++) {
        const int32_t i = a->order[a->entry_row[e]], j = a->entry_col[e];
        const double value = values[a->entry[e]];
        const double at_low = value * (free_[j] || !at_upper[j] ? lower[j] : upper[j]);
        const double at_high = value * (free_[j] || at_upper[j] ? upper[j] : lower[j]);
        least[i] += at_low < at_high ? at_low : at_high;
        most[i] += at_low < at_high ? at_high : at_low;
    }
}

static void V(presolve_one)(const Layout *a, const Problem *problem, const Presolve *call, int64_t n, double *work) {
    const Constants *c = call->constants;
    const int64_t k = a->rows, l = a->variables;
    const double *values = doubles(problem->values, n), *lower = doubles(problem->lower, n);
    const double *upper = doubles(problem->upper, n), *rhs = doubles(problem->rhs, n), *slack = doubles(problem->slack, n);
    uint8_t *free_ = call->free + n * l, *at_upper = call->at_upper + n * l, *active = call->active + n * k;
    double *least = work, *most = work + k, *box_least = work + 2 * k, *box_most = work + 3 * k, *side = work + 4 * k;
    double *room_above = work + 5 * k, *room_below = work + 6 * k, *rounding = work + 7 * k;
    uint8_t *down = (uint8_t *)(work + 8 * k), *up = down + l;
    const double *dual_lower = doubles(problem->dual_lower, n), *dual_upper = doubles(problem->dual_upper, n);
    for (int64_t j = 0; j < l; j++) {
        free_[j] = upper[j] - lower[j] > 0;
        at_upper[j] = 0;
    }
    V(activity)(a, values, lower, upper, free_, at_upper, box_least, box_most);
    memcpy(least, box_least, k * sizeof(double));
    memcpy(most, box_most, k * sizeof(double));
    for (int64_t i = 0; i < k; i++) {
        side[i] = call->senses[i] == GREATER ? rhs[i] - slack[i] : rhs[i];
        rounding[i] = c->row_rounding * (fabs(box_least[i]) + fabs(box_most[i]) + fabs(side[i]));
    }
    int impossible = 0, changed = 1;
    while (changed) {
        for (int64_t i = 0; i < k; i++) {
            const double above = side[i] - least[i], below = most[i] - side[i];
            const double lacking = -(c->contradiction * (box_most[i] - box_least[i]) + rounding[i]);
            const int hard = !(isfinite(dual_lower[i]) && isfinite(dual_upper[i])); /* soft rows force nothing */
            const int caps = hard && call->senses[i] != GREATER, floors = hard && call->senses[i] != LESS;
            impossible |= (caps && above < lacking) || (floors && below < lacking);
            room_above[i] = caps ? above - rounding[i] : INFINITY;
            room_below[i] = floors ? below - rounding[i] : INFINITY;
        }
        memset(down, 0, 2 * l);
        for (int64_t e = 0; e < a->entries; e++) {
            const int32_t i = a->order[a->entry_row[e]], j = a->entry_col[e];
            const double value = values[a->entry[e]], wide = upper[j] - lower[j];
            const double needed = c->forced * fabs(value) * (wide < 1.0 ? wide : 1.0);
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
        if (changed) V(activity)(a, values, lower, upper, free_, at_upper, least, most);
    }
    call->infeasible[n] = (uint8_t)impossible;
    memset(active, 0, k);
    for (int64_t e = 0; e < a->entries; e++)
        if (values[a->entry[e]] != 0 && free_[a->entry_col[e]]) active[a->order[a->entry_row[e]]] = 1;
    for (int64_t i = 0; i < k; i++) {
        const double slight = c->vacuous * (box_most[i] - box_least[i]) + rounding[i];
        if ((call->senses[i] == LESS && side[i] - box_most[i] >= -slight) ||
            (call->senses[i] == GREATER && box_least[i] - side[i] >= -slight))
            active[i] = 0;
    }
}

static int V(presolve)(const Layout *a, const Problem *problem, const Presolve *call, Team *team) {
    double *work = malloc((8 * a->rows + a->variables / 4 + 8) * sizeof(double));
    if (!work) return -1;
    for (int64_t n = claim(&team->counter); n < call->count; n = claim(&team->counter))
        V(presolve_one)(a, problem, call, n, work);
    free(work);
    return 0;
}
