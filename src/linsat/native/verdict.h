/* The verdict: whether an instance has converged. Nothing else may say so, but for what judges the same in other words: of
 * lanes that pass `judge` without sizes V(lanes_hold) in tiny.h, in vectors; of a full P V(is_optimal) in quadratic_solve.h.
 *
 *     every hard row as stated   violation at x <= tol max(1, sum_j |a_ij x_j|)
 *     x                          a number of the dtype that it is wanted in
 *     the duality gap            sum of what rows and columns add  <=  GAP tol (1 + sum_j |c_j x_j|)
 *
 * A row adds its multiplier times its distance from the side that the multiplier pushes to; a soft row that is broken adds
 * what its multiplier lacks to the price, times how far; a row with the paper's slack adds its multiplier times what is
 * missing in A x + S z = B. Columns add nothing where x is the point that the duals ask for; what they add elsewhere is
 * psi(u) + omega(x) - u x, written so that nothing cancels. Formulas as in arrays/judgement.py, for arrays.
 */

enum { FAR_AWAY = UNBOUNDED + 1 }; /* beside the statuses of linsat.h, which has it as STALLED by RAN_OFF */
#define SUM_LOST ((LDBL_EPSILON < DBL_EPSILON ? 4 : 64) * DBL_EPSILON) /* of u, relative to its terms */

/* Whether x, the largest of which is `largest`, overflows where it is written. */
INLINE int is_too_large(double largest, int64_t single) { return single && largest > FLT_MAX; }

/* ---- a point that the duals ask for: Newton's method ---- */

/* By how much row i, whose a x is `value`, is broken. */
INLINE double violation(const Instance *it, int64_t i, double value) {
    const double excess = value - it->side[i];
    return it->senses[i] == LESS ? excess : it->senses[i] == GREATER ? -excess : fabs(excess);
}

/* What row i adds to the gap; `lost` is what rounding may hide of its value. */
INLINE double row_gap(const Instance *it, int entropic, double tau, int64_t i, double value, double dual, double lost) {
    if (!it->active[i] || is_absent(it, i)) return 0.0;
    if (entropic && !is_soft(it, i)) {
        double slack = it->slack[i] * it->tight_share[i];
        if (!it->tight[i] && it->slack[i] != 0.0) slack = it->slack[i] / (1.0 + exp(-dual * it->scale[i] / tau));
        return fabs(dual) * fabs(value + slack - it->rhs[i]);
    }
    const double excess = value - it->side[i];
    double off = fabs(excess);
    if (!is_soft(it, i)) return fabs(dual) * off;
    off = off > lost ? off - lost : 0.0;
    const double bound = excess > 0 ? it->dual_lower[i] : it->dual_upper[i];
    return fabs(dual - bound) * off;
}

/* Whether the values of the rows and the duals mu, scaled, in the kernel's order, are those of an answer: 1, 0, or -1 where
 * that takes the `sizes` of the rows and of the objective. */
static int judge(const Layout *a, const Instance *it, int entropic, double tau, const double *values, const double *mu,
                    const double *sizes, double objective, double tol) {
    double gap = 0.0;
    int holds = 1;
    for (int64_t n = 0; n < a->rows; n++) {
        const int64_t i = a->order[n];
        const double size = sizes && sizes[n] > 1.0 ? sizes[n] : 1.0;
        const double lost = sizes ? CONSTANTS.sum_rounding * DBL_EPSILON * (size + fabs(it->rhs[i])) : 0.0;
        if (!is_soft(it, i) && !is_absent(it, i)) holds &= violation(it, i, values[n]) <= tol * size;
        gap += row_gap(it, entropic, tau, i, values[n], mu[n] / it->scale[i], lost);
    }
    if (holds && gap <= CONSTANTS.gap * tol * (1.0 + objective)) return 1; /* whatever the sizes are */
    return sizes ? 0 : -1;
}

/* ---- any point: the interior-point method ---- */

/* Values of the rows at x and the sums of the sizes of their terms, of no x beyond `most`, in the user's order. */
static void values_at(const Layout *a, const Instance *p, const double *x, double most, double *values, double *sizes) {
    memset(values, 0, a->rows * sizeof(double));
    memset(sizes, 0, a->rows * sizeof(double));
    for (int64_t e = 0; e < a->entries; e++) {
        const double value = p->values[e], at = x[a->entry_col[e]];
        values[a->order[a->entry_row[e]]] += value * at;
        sizes[a->order[a->entry_row[e]]] += fabs(value) * (fabs(at) < most ? fabs(at) : most);
    }
}

static double largest_size(const double *of, int64_t count) {
    double largest = 0.0;
    for (int64_t j = 0; j < count; j++) largest = fabs(of[j]) > largest ? fabs(of[j]) : largest;
    return largest;
}

/* How far scores and right-hand sides ask x to go: rounding of an x that has run off much further excuses no row. */
static double asked_for(const Layout *a, const Instance *p, double largest_score) {
    double asked = largest_score > 1.0 ? largest_score : 1.0;
    for (int64_t i = 0; i < a->rows; i++) {
        const double side = fabs(p->rhs[i]) / p->scale[i];
        asked = side > asked ? side : asked;
    }
    return asked;
}

/* `judge` with the sizes of the rows at x, but that rows which hold only because they are larger than any x that was asked for
 * may be rows that cannot hold: RAN_OFF. */
static int judge_by_size(const Layout *a, const Instance *it, int entropic, double tau, const double *values, const double *mu,
                         double *sizes, double objective, double tol, const double *x, double largest_score) {
    if (!judge(a, it, entropic, tau, values, mu, sizes, objective, tol)) return 0;
    const double most = asked_for(a, it, largest_score);
    if (largest_size(x, a->variables) <= most) return 1;
    memset(sizes, 0, a->rows * sizeof(double));
    for (int64_t e = 0; e < a->entries; e++) {
        const double at = fabs(x[a->entry_col[e]]);
        sizes[a->entry_row[e]] += fabs(it->values[e]) * (at < most ? at : most);
    }
    for (int64_t n = 0; n < a->rows; n++) {
        const int64_t i = a->order[n];
        if (is_soft(it, i) || is_absent(it, i)) continue;
        if (!(violation(it, i, values[n]) <= tol * (sizes[n] > 1.0 ? sizes[n] : 1.0))) return RAN_OFF;
    }
    return 1;
}

/* By how much a row is violated, in its units. */
INLINE double outside(const Ends *ends, double value) {
    const double below = ends->lower - value, above = value - ends->upper, worst = below > above ? below : above;
    return worst > 0.0 ? worst : 0.0;
}

/* The worst violation of a hard row, relative to max(1, the size of its terms). */
static double hard_violation(const Layout *a, const Instance *p, const double *x, double *values, double *sizes) {
    double worst = 0.0;
    values_at(a, p, x, INFINITY, values, sizes);
    for (int64_t i = 0; i < a->rows; i++) {
        const Ends ends = ends_of(p, i);
        if (ends.over < INFINITY) continue;
        const double off = outside(&ends, values[i]) / (sizes[i] > 1.0 ? sizes[i] : 1.0);
        worst = off > worst ? off : worst;
    }
    return worst;
}

/* u = linear(y) + A' duals, and the sums of the sizes of its terms. */
static void adjusted(const Layout *a, const Instance *p, int objective, const double *scores, const double *duals,
                        long double *restrict u, double *restrict sizes) {
    for (int64_t j = 0; j < a->variables; j++) {
        const Variable of = variable_of(p, objective, j);
        u[j] = linear_term(objective, &of, scores[j]);
        sizes[j] = fabs((double)u[j]);
    }
    for (int64_t e = 0; e < a->entries; e++) {
        const long double term = (long double)p->values[e] * duals[a->order[a->entry_row[e]]];
        u[a->entry_col[e]] += term;
        sizes[a->entry_col[e]] += fabs((double)term);
    }
}

/* Whether x and the duals are optimal, to tolerance, and every hard row holds: linsat/arrays/interior/duality_gap.py. */
static int proves_optimal(const Layout *a, const Instance *p, int objective, const double *scores, const double *x,
                             const double *duals, double tol, long double *u, double *lost, double *values,
                             double *sizes) {
    const double tau = p->parameters[0][0];
    double gap = 0.0, value = 1.0, rows = 0.0, entropy, size;
    adjusted(a, p, objective, scores, duals, u, lost);
    for (int64_t j = 0; j < a->variables; j++) {
        const double error = SUM_LOST * lost[j];
        if (!p->free[j] || !(p->upper[j] > p->lower[j])) continue;
        const Variable of = variable_of(p, objective, j);
        const double part = gap_of(objective, &of, scores[j], u[j], x[j], error, &size);
        value += size;
        gap += part - fabs(x[j]) * error;
    }
    values_at(a, p, x, CONSTANTS.runs_off * asked_for(a, p, largest_size(scores, a->variables)), values, sizes);
    for (int64_t i = 0; i < a->rows; i++) {
        const Ends ends = ends_of(p, i);
        const int soft = ends.over < INFINITY, inert = !p->active[i] && !soft;
        const double weight = sizes[i] > 1.0 ? sizes[i] : 1.0, off = outside(&ends, values[i]);
        const double rounding = CONSTANTS.row_lost * (sizes[i] + (p->slack[i] > 0 ? fabs(p->rhs[i]) + p->slack[i] : 0.0));
        if (!soft && !(off - rounding <= tol * (p->scale[i] < 1.0 ? p->scale[i] : 1.0))) return 0;
        if (soft) { /* what the price is paid for, and what the dual says it is, must be the same amount */
            const double away = ends.lower - values[i] > 0 ? ends.under - duals[i] : ends.over + duals[i];
            if (off > CONSTANTS.row_lost * (sizes[i] + fabs(p->rhs[i]))) gap += fabs(away) * off;
        } else rows += fabs(duals[i]) * off;
        if (inert || duals[i] == 0.0 || off > 0.0) continue;
        if (p->slack[i] > 0 && !p->tight[i] && !soft) {
            const double a_i = tau / p->scale[i], width = ends.upper - ends.lower;
            const double share = (values[i] - ends.lower) / width;
            gap += a_i * width * relative_entropy(share, -duals[i] / a_i, ends.lower, ends.upper, &entropy);
            continue;
        }
        const double room = fabs(values[i] - (duals[i] > 0 ? ends.lower : ends.upper));
        if (room > (soft ? SUM_LOST : CONSTANTS.holds) * weight) gap += fabs(duals[i]) * room;
    }
    return gap <= CONSTANTS.interior_gap * tol * value && rows <= CONSTANTS.interior_gap * tol * value;
}
