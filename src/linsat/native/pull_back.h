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
 * gradients.h has what these are to the numbers as stated.
 *
 * Compiled once per instruction set (kernel.h).
 */

#ifndef RIDGE_HIDES
#define RIDGE_HIDES 1e-3 /* the last refinement's share of an adjoint above which refinement does not arrive */
#endif

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

/* to += factor H_FF q, for rows that move; else 0. `pulled` is room. */
static void V(add_image)(Work *w, const double *q, double factor, double *pulled, double *to) {
    const Layout *a = w->layout;
    double *image = w->next.r;
    V(pull)(w, q, pulled);
    for (int64_t j = 0; j < w->l; j += LANES) V(store)(pulled + j, V(load)(pulled + j) * V(load)(w->d + j));
    V(apply)(w, w->coefficients, pulled, w->moving, image);
    for (int64_t i = 0; i < a->rows; i++) {
        const double z = w->now.z[i], slack = w->has_slack ? w->s[i] * z * (1.0 - z) / w->tau * q[i] : 0.0;
        to[i] = w->moving[i] ? to[i] + factor * (image[i] + slack) : 0.0;
    }
}

/* q where rows are nearly parallel, by angles down to 2e-8: the ridge hides their difference, and refinement gets there by a
 * small share a round only. To conjugate gradients these are few eigenvalues away from 1, a step or two each; below
 * `nothing` an eigenvalue is made of rounding, as of rows that depend on each other. */
static void V(conjugate_gradients)(Work *w, double *pulled) {
    double *r = w->rhs, *z = w->again, *p = w->direction, *image = w->scratch;
    const double nothing = 3e-16 / CONSTANTS.refined_ridge;
    V(add_image)(w, w->q, -1.0, pulled, r);
    V(solve)(w, r, z);
    memcpy(p, z, w->k * sizeof(double));
    double slope = V(dot)(r, z, w->k);
    for (int64_t round = 0; round < 3 * w->layout->rows && slope > 0.0; round++) {
        memset(image, 0, w->k * sizeof(double));
        V(add_image)(w, p, 1.0, pulled, image);
        const double curved = V(dot)(p, image, w->k), step = slope / curved;
        if (!(curved > nothing * slope)) break;
        for (int64_t i = 0; i < w->k; i++) {
            w->q[i] += step * p[i];
            r[i] -= step * image[i];
        }
        if (step * V(largest)(p, w->k) <= 1e-12 * V(largest)(w->q, w->k)) break;
        V(solve)(w, r, z);
        const double next = V(dot)(r, z, w->k);
        for (int64_t i = 0; i < w->k; i++) p[i] = z[i] + next / slope * p[i];
        slope = next;
    }
}

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
    double change = 0.0, size = 1.0;
    for (int round = 0; round < 3; round++) { /* undo the ridge */
        V(add_image)(w, w->q, -1.0, pulled, memcpy(w->scratch, w->rhs, w->k * sizeof(double)));
        V(solve)(w, w->scratch, w->again);
        for (int64_t i = 0; i < w->k; i += LANES) V(store)(w->q + i, V(load)(w->q + i) + V(load)(w->again + i));
        change = V(largest)(w->again, w->k), size = V(largest)(w->q, w->k);
        if (change <= 1e-14 * size) break;
    }
    if (change > RIDGE_HIDES * size) V(conjugate_gradients)(w, pulled);
    V(pull)(w, w->q, pulled);
}

/* Gradients to the numbers of the statement. `given` is dL/dx. */
static void V(to_statement)(Work *w, const Pull *call, int64_t n, const double *given, Sums to) {
    gradients_of_rows(w, call, n, given, to);
    V(answers)(w); /* x, in place of the slopes */
    gradients_of_entries(w, call, n, to);
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
        if (is_forbidden(w, call, n, j)) g[j] = 0.0;
    if (call->grad_scores) V(write)(call->grad_scores, g, (int)call->single, n * a->variables, a->variables);
    if (statement) V(to_statement)(w, call, n, w->given, to);
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
    void *memory = begin_work(&w, a, s, team);
    w.dense.ridge = CONSTANTS.refined_ridge;
    const Wanted wanted = list_gradients(a, s, call);
    for (int first = 1; memory && t < team->blocks; t = after(team, t)) {
        const int64_t stop = (t + 1) * team->block < call->count ? (t + 1) * team->block : call->count;
        for (int64_t n = t * team->block; n < stop; n++) {
            V(backward_one)(&w, s, call, n, places(&wanted, team, t, n), first);
            first &= call->status[n] != CONVERGED;
        }
    }
    leave(team);
    free_block(memory);
    return memory ? 0 : -1;
}
