/* The gradient.
 *
 * Included by kernel.c once per instruction set.
 */

/* dL/dtau, or dL/dq: what the explicit dependence of x and r on them passes on. */
static void V(to_parameter)(const Work *w, const Pull *call, const double *g, const double *pulled, int64_t n) {
    const Layout *a = w->layout;
    const State *at = &w->now;
    if (w->objective == EUCLIDEAN) {
        double *to = call->grad_parameter + n * a->variables;
        for (int64_t j = 0; j < a->variables; j++)
            to[j] = w->d[j] * (g[j] - pulled[j]) * (w->linear[j] - at->u[j]) / w->weights[j];
        return;
    }
    double total = 0.0;
    for (int64_t j = 0; j < a->variables; j++)
        if (w->d[j] > 0) total -= at->u[j] * w->d[j] * (g[j] - pulled[j]);
    for (int64_t i = 0; i < a->rows && w->has_slack; i++)
        total += w->q[i] * w->s[i] * at->z[i] * (1.0 - at->z[i]) * at->mu[i] / w->tau;
    call->grad_parameter[n] = total / w->tau;
}

/* q and dL/dy of one instance: H q = C (d g) + dL/dmu on the rows whose dual lies strictly inside its bounds. */
static void V(pull_back)(Work *w, const Pull *call, int64_t n) {
    const Layout *a = w->layout;
    State *at = &w->now;
    for (int64_t i = 0; i < a->rows; i++) at->mu[i] = call->mu[n * a->rows + a->order[i]];
    V(evaluate)(w, at, w->tau);
    V(slopes)(w, at, w->tau);
    double *g = w->next.u, *pulled = w->next.p;
    V(read)(g, call->grad_x, (int)call->single, n * a->variables, a->variables);
    for (int64_t j = 0; j < w->l; j += LANES) {
        const vec wide = V(load)(w->upper + j) - V(load)(w->lower + j);
        const mask free_ = wide > 0.0; /* the slope of a Euclidean variable without room is zero, too */
        const vec given = V(load)(g + j) * (w->objective == ENTROPY ? wide : V(all)(1.0));
        V(store)(g + j, (vec)(free_ & (mask)given));
        V(store)(w->d + j, (vec)(free_ & (mask)V(load)(w->d + j)));
        V(store)(pulled + j, V(load)(w->d + j) * V(load)(g + j));
    }
    V(apply)(w, pulled, w->rhs);
    for (int64_t i = 0; i < a->rows; i++) {
        w->moving[i] = w->active[i] && at->mu[i] > w->low[i] && at->mu[i] < w->high[i];
        if (call->grad_mu) w->rhs[i] += call->grad_mu[n * a->rows + a->order[i]];
        if (!w->moving[i]) w->rhs[i] = 0.0;
    }
    V(factor)(w, at, w->tau, 0.0, w->constants->refined_ridge);
    V(solve)(w, w->rhs, w->q);
    for (int round = 0; round < 3; round++) { /* undo the ridge */
        V(pull)(w, w->q, pulled);
        for (int64_t j = 0; j < w->l; j += LANES) V(store)(pulled + j, V(load)(pulled + j) * V(load)(w->d + j));
        V(apply)(w, pulled, w->scratch);
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
    for (int64_t i = 0; i < a->rows; i++) call->q[n * a->rows + a->order[i]] = w->q[i];
    if (call->grad_parameter) V(to_parameter)(w, call, g, pulled, n);
    for (int64_t j = 0; j < w->l; j += LANES) {
        vec found = V(load)(w->d + j) * (V(load)(g + j) - V(load)(pulled + j));
        if (w->objective == ENTROPY) found *= V(load)(w->upper + j) - V(load)(w->lower + j);
        else if (w->weights) found *= V(load)(w->weights + j);
        V(store)(g + j, found);
    }
    V(write)(call->grad_y, g, (int)call->single, n * a->variables, a->variables);
}

/* An instance that was not solved has no gradient. */
static void V(no_gradient)(const Work *w, const Pull *call, int64_t n) {
    const Layout *a = w->layout;
    const size_t numbers = w->objective == ENTROPY ? 1 : (size_t)a->variables;
    const size_t wide = call->single ? sizeof(float) : sizeof(double);
    memset((char *)call->grad_y + n * a->variables * wide, 0, a->variables * wide);
    memset(call->q + n * a->rows, 0, a->rows * sizeof(double));
    if (call->grad_parameter) memset(call->grad_parameter + n * numbers, 0, numbers * sizeof(double));
}

static int V(backward)(const Layout *a, const Problem *problem, const Pull *call, Team *team) {
    Work w;
    int64_t n = claim(&team->counter);
    if (call->together && n > 0) help(team);
    if (n >= call->count || (call->together && n > 0)) return 0;
    void *block = V(begin)(&w, a, problem, call->constants);
    w.team = call->together ? team : NULL;
    w.dense.ridge = call->constants->refined_ridge;
    for (int first = 1; block && n < call->count; n = V(next_instance)(&w, team, n), first = 0) {
        V(fold)(&w, problem, n, first);
        if (call->codes[n] != CONVERGED) {
            V(no_gradient)(&w, call, n);
            continue;
        }
        V(read_scores)(&w, problem, call->scores, (int)call->single, n);
        V(pull_back)(&w, call, n);
    }
    if (call->together) __atomic_store_n(&team->over, 1, __ATOMIC_RELEASE);
    free_block(block);
    return block ? 0 : -1;
}
