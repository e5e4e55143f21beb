/* The verdict: whether an instance has converged. Nothing else may say so.
 *
 *     every hard row as stated   violation at x <= tol max(1, sum_j |a_ij x_j|)
 *     the duality gap            sum of what rows and columns add  <=  GAP tol (1 + sum_j |c_j x_j|)
 *
 * A row adds its multiplier times its distance from the side that the multiplier pushes to; a soft row that is broken adds
 * what its multiplier lacks to the price, times how far; a row with the paper's slack adds its multiplier times what is
 * missing in A x + S z = B. Columns add nothing where x is the point that the duals ask for; what they add elsewhere is
 * psi(u) + omega(x) - u x, written so that nothing cancels. Formulas as in linsat/solvers/verdict.py, which serves arrays.
 *
 * Included by core.c once per instruction set.
 */

/* The sum of |a x|, row by row in the kernel's order. */
static void V(row_sizes)(const Work *w, const double *x, double *to) {
    const Layout *a = w->layout;
    memset(to, 0, w->k * sizeof(double));
    for (int64_t e = 0; e < a->entries; e++) to[a->entry_row[e]] += fabs(w->values[e] * x[a->entry_col[e]]);
}

/* By how much row i, whose a x is `value`, is broken. */
INLINE double V(violation)(const Instance *it, int64_t i, double value) {
    const double excess = value - it->side[i];
    return it->senses[i] == LESS ? excess : it->senses[i] == GREATER ? -excess : fabs(excess);
}

/* What row i adds to the gap; `lost` is what rounding may hide of its value. */
INLINE double V(row_gap)(const Work *w, int64_t i, double value, double dual, double lost) {
    const Instance *it = &w->it;
    if (!it->active[i] || V(is_absent)(it, i)) return 0.0;
    if (w->entropic && !V(is_soft)(it, i)) {
        double slack = it->slack[i] * it->tight_share[i];
        if (!it->tight[i] && it->slack[i] != 0.0) slack = it->slack[i] / (1.0 + exp(-dual * it->scale[i] / w->tau));
        return fabs(dual) * fabs(value + slack - it->rhs[i]);
    }
    const double excess = value - it->side[i];
    double off = fabs(excess);
    if (!V(is_soft)(it, i)) return fabs(dual) * off;
    off = off > lost ? off - lost : 0.0;
    const double bound = excess > 0 ? it->dual_lower[i] : it->dual_upper[i];
    return fabs(dual - bound) * off;
}

/* Whether x and the duals mu (of the scaled rows, in the kernel's order) are an answer; x is the point the duals ask for. */
static int V(holds)(Work *w, const double *x, const double *mu, double tol) {
    const Layout *a = w->layout;
    const Instance *it = &w->it;
    const double most = CONSTANTS.gap * tol;
    double gap = 0.0, value = 0.0, *sizes = w->again;
    int sized = 0;
    V(apply)(w, w->values, x, w->scratch);
    for (int64_t n = 0; n < a->rows; n++) {
        const int64_t i = a->order[n];
        const double broken = V(is_soft)(it, i) || V(is_absent)(it, i) ? 0.0 : V(violation)(it, i, w->scratch[n]);
        if (!(broken <= tol)) {
            if (!sized) V(row_sizes)(w, x, sizes);
            sized = 1;
            if (!(broken <= tol * (sizes[n] > 1.0 ? sizes[n] : 1.0))) return 0;
        }
        gap += V(row_gap)(w, i, w->scratch[n], mu[n] / it->scale[i], 0.0);
    }
    if (gap <= most) return 1; /* whatever the size of rows and objective */
    if (!sized) V(row_sizes)(w, x, sizes);
    gap = 0.0;
    for (int64_t n = 0; n < a->rows; n++) {
        const int64_t i = a->order[n];
        const double size = sizes[n] > 1.0 ? sizes[n] : 1.0;
        const double lost = CONSTANTS.sum_rounding * DBL_EPSILON * (size + fabs(it->rhs[i]));
        gap += V(row_gap)(w, i, w->scratch[n], mu[n] / it->scale[i], lost);
    }
    for (int64_t j = 0; j < a->variables; j++) {
        if (w->objective == EUCLIDEAN) value += fabs(w->linear[j] * x[j]);
        else if (w->upper[j] > w->lower[j]) value += fabs(w->linear[j] / (w->upper[j] - w->lower[j]) * x[j]);
    }
    return gap <= most * (1.0 + value);
}
