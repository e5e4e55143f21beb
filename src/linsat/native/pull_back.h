/* The gradient: x and the duals as implicit functions of every number of the statement.
 *
 * With lambda the multipliers of the rows as written, F the rows whose multiplier lies strictly inside its bounds, g = dL/dx:
 *
 *     H_FF q = (C D g + dL/dmu)_F          in the scaled units of the iteration
 *     own = q / rho                        adjoint of the rows as written
 *     e = g - A' own                       what a change of x itself is worth
 *     dL/du = D e,  dL/dA_ij = lambda_i dL/du_j - own_i x_j,  dL/dB = own,  dL/dS = -own z,
 *     dL/drho = -own S z (1 - z) lambda / tau                     (the paper's slack only)
 *     dL/dprice = -+ [(A dL/du)_i + dL/dlambda_i]                 (a soft row whose multiplier is at its price)
 *     dL/dlower, dL/dupper = e dx/dlower, e dx/dupper             and what B, S and rho pass on
 *
 * Included by core.c once per instruction set.
 */

/* Gradients to the numbers of the objective: what the explicit dependence of p and of the slacks on them passes on. */
INLINE void V(to_parameters)(const int o, const Work *w, const double *g, const double *pulled, double *const *to) {
    const Layout *a = w->layout;
    const Objective *objective = OBJECTIVES + o;
    const State *at = &w->now;
    const int other = objective->temperature; /* the parameter that is no temperature */
    const double tau = w->it.parameters[0][0];
    const Heat heat = V(heat_at)(w, w->tau);
    double total[PARAMETERS] = {0.0};
    for (int64_t j = 0; j < w->l; j += LANES) {
        const vec u = V(load)(at->u + j), p = V(load)(at->p + j), d = V(load)(w->d + j);
        const vec passed = V(load)(g + j) - V(load)(pulled + j);
        if (other && to[0]) {
            vec hot = u;
            if (w->offset) hot -= V(load)(w->offset + j);
            total[0] -= V(sum_of)(V(where)(d > 0.0, d * hot * passed));
        }
        if (!to[other]) continue;
        const Own own = V(own_at)(o, w, j);
        const vec number = objective->sizes[other] == EACH ? V(load)(w->it.parameters[other] + j) : V(all)(0.0);
        const vec value = passed * V(by_parameter)(o, u, p, d, V(load)(w->linear + j), number, &own, &heat);
        if (objective->sizes[other] == ONE) total[other] += V(sum_of)(value);
        else
            for (int64_t i = 0; i < LANES && j + i < a->variables; i++) to[other][j + i] += value[i];
    }
    for (int64_t i = 0; i < a->rows && w->has_slack; i++)
        total[0] += w->q[i] * w->s[i] * at->z[i] * (1.0 - at->z[i]) * at->mu[i] / w->tau;
    if (other && to[0]) to[0][0] += total[0] / tau;
    if (to[other] && objective->sizes[other] == ONE && other) to[other][0] += total[other];
}

FOR_OBJECTIVES(to_parameters, (const Work *w, const double *g, const double *pulled, double *const *to), w, g, pulled, to)

/* The adjoint duals q of one instance, at its duals. g becomes the gradient in the units of the iteration. `alone`: nothing
 * but the gradient to the scores is wanted, which needs no state where the slopes are the same in all of them. */
static void V(find_adjoint)(Work *w, const Pull *call, int64_t n, double *g, double *pulled, int alone) {
    const Layout *a = w->layout;
    State *at = &w->now;
    for (int64_t i = 0; i < a->rows; i++)
        at->mu[i] = call->duals[n * a->rows + a->order[i]] * w->it.scale[a->order[i]];
    if (!alone || !w->dense.constant || w->has_slack) V(evaluate)(w, at, w->tau);
    V(slopes)(w, at, w->tau);
    for (int64_t j = 0; j < w->l; j += LANES) {
        const vec unit = V(load)(w->unit + j);
        V(store)(g + j, V(where)(unit > 0.0, V(load)(g + j) * unit));
        V(store)(w->d + j, V(where)(unit > 0.0, V(load)(w->d + j)));
        V(store)(pulled + j, V(load)(w->d + j) * V(load)(g + j));
    }
    for (int64_t i = 0; i < a->rows; i++) {
        const int32_t from = a->order[i];
        const double dual = call->duals[n * a->rows + from]; /* as it is: scaled, a bound may be missed by rounding */
        w->moving[i] = w->active[i] && (w->it.tight[from] || (dual > w->it.dual_lower[from] && dual < w->it.dual_upper[from]));
    }
    V(apply)(w, w->coefficients, pulled, w->moving, w->rhs);
    for (int64_t i = 0; i < a->rows; i++) {
        const int32_t from = a->order[i];
        if (call->grad_duals) w->rhs[i] += call->grad_duals[n * a->rows + from] / w->it.scale[from];
        if (!w->moving[i]) w->rhs[i] = 0.0;
    }
    V(factor)(w, at, w->tau, 0.0, CONSTANTS.refined_ridge);
    V(solve)(w, w->rhs, w->q);
    for (int round = 0; round < 3; round++) { /* undo the ridge */
        V(pull)(w, w->q, pulled);
        for (int64_t j = 0; j < w->l; j += LANES) V(store)(pulled + j, V(load)(pulled + j) * V(load)(w->d + j));
        V(apply)(w, w->coefficients, pulled, w->moving, w->scratch);
        for (int64_t i = 0; i < a->rows; i++) {
            double image = w->scratch[i];
            if (w->has_slack) image += w->s[i] * at->z[i] * (1.0 - at->z[i]) / w->tau * w->q[i];
            w->scratch[i] = w->moving[i] ? w->rhs[i] - image : 0.0;
        }
        V(solve)(w, w->scratch, w->again);
        for (int64_t i = 0; i < w->k; i += LANES) V(store)(w->q + i, V(load)(w->q + i) + V(load)(w->again + i));
        if (V(largest)(w->again, w->k) <= 1e-14 * V(largest)(w->q, w->k)) break;
    }
    V(pull)(w, w->q, pulled);
}

/* Where the gradients of one instance go; NULL: not wanted. Each is added to. */
typedef struct {
    double *values, *side, *lower, *upper, *price, *parameters[PARAMETERS];
} V(Sums);
#define Sums V(Sums)

/* e, from the gradient of x as given: fixed variables have one too. */
static void V(worth)(const Work *w, const double *given, double *e) {
    const Layout *a = w->layout;
    memcpy(e, given, a->variables * sizeof(double));
    for (int64_t n = 0; n < a->entries; n++) {
        const int32_t i = a->entry_row[n];
        if (w->q[i] != 0.0) e[a->entry_col[n]] -= w->values[n] * w->q[i] / w->it.scale[a->order[i]];
    }
}

/* dL/dB, dL/dS and dL/drho of every row into `to`, `masses` and `units`, in the user's order. */
static void V(row_gradients)(const Work *w, double *to, double *masses, double *units) {
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

INLINE double V(score)(const void *scores, int single, int64_t at) {
    return single ? ((const float *)scores)[at] : ((const double *)scores)[at];
}

/* Whether variable j is held at its lower bound, which then is its upper bound, too. */
INLINE int V(is_forbidden)(const Work *w, const Pull *call, int64_t n, int64_t j) {
    return w->it.forbids && V(score)(call->scores, (int)call->single, n * w->layout->variables + j) == -INFINITY;
}

/* Gradients to the numbers of the statement. `given` is dL/dx. */
static void V(to_statement)(Work *w, const Pull *call, int64_t n, const double *given, Sums to) {
    const Layout *a = w->layout;
    const Instance *it = &w->it;
    const double *duals = call->duals + n * a->rows;
    double *e = w->next.u, *to_u = w->next.p, *of_rhs = w->rhs, *of_slack = w->scratch, *of_scale = w->again;
    double *of_least = w->direction, *of_most = w->next.r, *at_price = w->next.z;
    V(worth)(w, given, e);
    V(row_gradients)(w, of_rhs, of_slack, of_scale);
    for (int64_t j = 0; j < a->variables; j++) {
        double follows[2] = {!it->at_upper[j], it->at_upper[j]};
        if (w->unit[j] > 0) follow_bounds(w->objective, w->now.p[j], w->d[j], w->now.u[j], w->most[j], follows);
        to_u[j] = w->unit[j] * w->unit[j] * w->d[j] * e[j]; /* dx/du in the units of the user */
        if (to.lower) to.lower[j] += follows[0] * e[j];
        if (to.upper) to.upper[j] += follows[1] * e[j];
    }
    for (int64_t i = 0; i < a->rows; i++) { /* B and S in terms of the side and of what a x can reach */
        const int sense = it->senses[i], entropic = w->entropic && !V(is_soft)(it, i) && sense != EQUAL;
        double of_side = of_rhs[i], mass = of_slack[i];
        of_least[i] = of_most[i] = at_price[i] = 0.0;
        if (entropic) {
            if (sense == GREATER) mass += of_rhs[i]; /* B = d + S */
            const double times = sense == LESS ? 1.0 : it->negative[i] ? -1.0 : it->multiple[i];
            of_side += mass * times;
            if (sense == GREATER && it->negative[i]) of_most[i] = mass;
            else of_least[i] = -mass * times;
        }
        if (to.side) to.side[i] += V(is_absent)(it, i) ? 0.0 : of_side;
        if (to.price && V(is_soft)(it, i)) {
            const double way = duals[i] <= it->dual_lower[i] ? -1.0 : duals[i] >= it->dual_upper[i] ? 1.0 : 0.0;
            at_price[i] = way * duals[i] == it->price[i] ? way : 0.0;
            if (call->grad_duals) to.price[i] += at_price[i] * call->grad_duals[n * a->rows + i];
        }
    }
    V(answers)(w); /* x, in place of the slopes */
    for (int64_t at = 0; at < a->entries; at++) {
        const int32_t i = a->order[a->entry_row[at]], j = a->entry_col[at];
        const double value = w->values[at];
        double *const of_upper = V(is_forbidden)(w, call, n, j) ? to.lower : to.upper;
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

/* All gradients of one instance. */
static void V(pull_back)(Work *w, const Pull *call, int64_t n, Sums to) {
    const Layout *a = w->layout;
    double *g = w->next.u, *pulled = w->next.p;
    if (call->grad_x) V(read)(g, call->grad_x, (int)call->single, n * a->variables, a->variables);
    else memset(g, 0, w->l * sizeof(double));
    const int statement = to.values || to.side || to.lower || to.upper || to.price;
    if (statement) memcpy(w->given, g, a->variables * sizeof(double));
    for (int64_t j = a->variables; j < w->l; j++) g[j] = 0.0;
    const int parameters = to.parameters[0] || to.parameters[1];
    V(find_adjoint)(w, call, n, g, pulled, !statement && !parameters);
    if (parameters) {
        BY_OBJECTIVE(w->objective, to_parameters, w, g, pulled, to.parameters)
    }
    for (int64_t j = 0; j < w->l; j += LANES) {
        const vec passed = V(load)(g + j) - V(load)(pulled + j);
        V(store)(g + j, V(load)(w->d + j) * passed * V(load)(w->gain + j));
    }
    for (int64_t j = 0; j < a->variables && w->it.forbids; j++)
        if (V(is_forbidden)(w, call, n, j)) g[j] = 0.0;
    if (call->grad_scores) V(write)(call->grad_scores, g, (int)call->single, n * a->variables, a->variables);
    if (statement) V(to_statement)(w, call, n, w->given, to);
}

/* Where the gradients of instance n, in block t of instances, are added to. Those that instances share have a part for each
 * block, so that their sum does not depend on threads. */
static Sums V(places)(const Wanted *wanted, const Team *team, int64_t t, int64_t n) {
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

/* The gradients of one instance; one that was not solved has none. */
static void V(backward_one)(Work *w, const Statement *s, const Pull *call, int64_t n, Sums to, int first) {
    const int64_t l = w->layout->variables;
    if (call->status[n] != CONVERGED) {
        const size_t wide = call->single ? sizeof(float) : sizeof(double);
        if (call->grad_scores) memset((char *)call->grad_scores + n * l * wide, 0, l * wide);
        return;
    }
    V(read)(w->linear, call->scores, (int)call->single, n * l, l);
    V(state)(w, s, call->decided + n * call->decided_step, call->decided_step != 0, n, first);
    V(read_scores)(w);
    V(pull_back)(w, call, n, to);
}

static int V(backward)(const Layout *a, const Statement *s, const Pull *call, Team *team) {
    Work w;
    int64_t t = enter(team, team->blocks);
    if (t >= team->blocks) return 0;
    void *memory = V(begin)(&w, a, s, team);
    w.dense.ridge = CONSTANTS.refined_ridge;
    const Wanted wanted = list_gradients(a, s, call);
    for (int first = 1; memory && t < team->blocks; t = after(team, t)) {
        const int64_t stop = (t + 1) * team->block < call->count ? (t + 1) * team->block : call->count;
        for (int64_t n = t * team->block; n < stop; n++) {
            V(backward_one)(&w, s, call, n, V(places)(&wanted, team, t, n), first);
            first &= call->status[n] != CONVERGED;
        }
    }
    leave(team);
    free_block(memory);
    return memory ? 0 : -1;
}
