/* The gradients to the numbers of the statement, from the adjoint that pull_back.h finds, in its letters. */

/* The gradients that are asked for, but for that of the scores, and their sizes. */
typedef struct {
    int64_t sizes[GRADIENTS], any;
    Gradient of[GRADIENTS];
    int written; /* one that is written, not added to, where each instance has its own: that of a full P */
} Wanted;

static Wanted list_gradients(const Layout *a, const Statement *s, const Pull *call) {
    const Gradient of[] = {call->values, call->side, call->lower, call->upper, call->price, call->parameters[0], call->parameters[1]};
    const int64_t first = size_of_parameter(a, s, 0), second = size_of_parameter(a, s, 1);
    Wanted wanted = {{a->entries, a->rows, a->variables, a->variables, a->rows, first, second}, 0, {{NULL, 0}}, is_full(s) ? 5 : -1};
    for (int g = 0; g < GRADIENTS; g++) {
        if (wanted.sizes[g]) wanted.of[g] = of[g];
        wanted.any |= wanted.of[g].at != NULL;
    }
    return wanted;
}

/* Where the gradients of one instance go; NULL: not wanted. Each is added to. */
typedef struct {
    double *values, *side, *lower, *upper, *price, *parameters[PARAMETERS];
} Sums;

/* e, from the gradient of x as given: fixed variables have one too. */
static void worth(const Work *w, const double *given, double *e) {
    const Layout *a = w->layout;
    memcpy(e, given, a->variables * sizeof(double));
    for (int64_t n = 0; n < a->entries; n++) {
        const int32_t i = a->entry_row[n];
        if (w->q[i] != 0.0) e[a->entry_col[n]] -= w->it.values[n] * w->q[i] / w->it.scale[a->order[i]];
    }
}

/* dL/dB, dL/dS and dL/drho of every row into `to`, `masses` and `units`, in the user's order. */
static void row_gradients(const Work *w, double *to, double *masses, double *units) {
    const Layout *a = w->layout;
    for (int64_t n = 0; n < a->rows; n++) {
        const int64_t i = a->order[n];
        const double own = w->q[n] / w->it.scale[i], z = w->now.z[n];
        const int slack = w->has_slack && w->s[n] != 0.0;
        to[i] = own;
        masses[i] = w->it.tight[i] ? -own * w->it.tight_share[i] : slack ? -own * z : 0.0;
        units[i] = slack ? -own * w->it.slack[i] * z * (1.0 - z) * w->now.mu[n] / (w->it.scale[i] * w->tau) : 0.0;
    }
}

/* Whether variable j is held at its lower bound, which then is its upper bound, too. */
INLINE int is_forbidden(const Work *w, const Pull *call, int64_t n, int64_t j) {
    return w->it.forbids && score_at(call->scores, (int)call->single, n * w->layout->variables + j) == -INFINITY;
}

/* Where the gradients of instance n, in block t of instances, are added to. Those that instances share have a part for each
 * block, so that their sum does not depend on threads. */
static Sums places(const Wanted *wanted, const Team *team, int64_t t, int64_t n) {
    Sums to = {0};
    if (!wanted->any) return to;
    double **places[GRADIENTS] = {&to.values, &to.side, &to.lower, &to.upper, &to.price, &to.parameters[0], &to.parameters[1]};
    double *shared = team->partial + t * team->partial_size;
    for (int g = 0; g < GRADIENTS; g++) {
        const Gradient of = wanted->of[g];
        if (!of.at) continue;
        *places[g] = of.step ? of.at + n * of.step : shared;
        if (!of.step) shared += wanted->sizes[g];
        else if (g != wanted->written) memset(*places[g], 0, wanted->sizes[g] * sizeof(double));
    }
    return to;
}

/* Gradients to sides and prices, and to the bounds of what has its own term; `given` is dL/dx. Left for gradients_of_entries:
 * dL/dB in rhs, what the ends of the box add to B in direction and next.r, dL/drho in again, dx/du in next.p. */
static void gradients_of_rows(Work *w, const Pull *call, int64_t n, const double *given, Sums to) {
    const Layout *a = w->layout;
    const Instance *it = &w->it;
    const double *duals = call->duals + n * a->rows;
    double *e = w->next.u, *to_u = w->next.p, *of_rhs = w->rhs, *of_slack = w->scratch, *of_scale = w->again;
    double *of_least = w->direction, *of_most = w->next.r, *at_price = w->next.z;
    worth(w, given, e);
    row_gradients(w, of_rhs, of_slack, of_scale);
    for (int64_t j = 0; j < a->variables; j++) {
        double follows[2] = {!it->at_upper[j], it->at_upper[j]};
        if (w->unit[j] > 0) follow_bounds(w->objective, w->now.p[j], w->d[j], w->now.u[j], w->most[j], follows);
        to_u[j] = w->unit[j] * w->unit[j] * w->d[j] * e[j]; /* dx/du in the units of the user */
        if (to.lower) to.lower[j] += follows[0] * e[j];
        if (to.upper) to.upper[j] += follows[1] * e[j];
    }
    for (int64_t i = 0; i < a->rows; i++) { /* B and S in terms of the side and of what a x can reach */
        const int sense = it->senses[i], entropic = w->entropic && !is_soft(it, i) && sense != EQUAL;
        double of_side = of_rhs[i], mass = of_slack[i];
        of_least[i] = of_most[i] = at_price[i] = 0.0;
        if (entropic) {
            if (sense == GREATER) mass += of_rhs[i]; /* B = d + S */
            const double times = sense == LESS ? 1.0 : it->negative[i] ? -1.0 : it->multiple[i];
            of_side += mass * times;
            if (sense == GREATER && it->negative[i]) of_most[i] = mass;
            else of_least[i] = -mass * times;
        }
        if (to.side) to.side[i] += is_absent(it, i) ? 0.0 : of_side;
        if (to.price && is_soft(it, i)) {
            const double way = duals[i] <= it->dual_lower[i] ? -1.0 : duals[i] >= it->dual_upper[i] ? 1.0 : 0.0;
            at_price[i] = way * duals[i] == it->price[i] ? way : 0.0;
            if (call->grad_duals) to.price[i] += at_price[i] * call->grad_duals[n * a->rows + i];
        }
    }
}

/* Gradients through the coefficients, with x in d: to these, and to what bounds and prices add to their rows. */
static void gradients_of_entries(const Work *w, const Pull *call, int64_t n, Sums to) {
    const Layout *a = w->layout;
    const Instance *it = &w->it;
    const double *duals = call->duals + n * a->rows, *to_u = w->next.p, *of_rhs = w->rhs, *of_scale = w->again;
    const double *of_least = w->direction, *of_most = w->next.r, *at_price = w->next.z;
    for (int64_t at = 0; at < a->entries; at++) {
        const int32_t i = a->order[a->entry_row[at]], j = a->entry_col[at];
        const double value = it->values[at];
        double *const of_upper = is_forbidden(w, call, n, j) ? to.lower : to.upper;
        double of_value = duals[i] * to_u[j] - of_rhs[i] * w->d[j];
        if (to.price) to.price[i] += at_price[i] * value * to_u[j];
        if (of_least[i] != 0.0 || of_most[i] != 0.0) { /* at the ends of the box, half each where they tie */
            const double low = value * it->lower[j], high = value * it->upper[j];
            const double first = low < high ? 1.0 : low > high ? 0.0 : 0.5; /* share of the lower bound in the least */
            const double down = of_least[i] * first + of_most[i] * (1.0 - first);
            const double up = of_least[i] * (1.0 - first) + of_most[i] * first;
            of_value += down * it->lower[j] + up * it->upper[j];
            if (to.lower) to.lower[j] += down * value;
            if (of_upper) of_upper[j] += up * value;
        }
        if (of_scale[i] != 0.0) {
            const double share = of_scale[i] / (it->wide[i] > 1.0 ? it->wide[i] : 1.0);
            of_value += share * (value > 0 ? 1.0 : value < 0 ? -1.0 : 0.0) * (it->upper[j] - it->lower[j]);
            if (to.lower) to.lower[j] -= share * fabs(value);
            if (of_upper) of_upper[j] += share * fabs(value);
        }
        if (to.values) to.values[a->entry[at]] += of_value;
    }
}
