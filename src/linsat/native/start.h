/* Duals to begin with: none and a few of Sinkhorn's sweeps, or those of an earlier solve.
 *
 * Of an earlier solve some duals are worth more than others: a router's experts stay while its tokens are fresh. Rows of
 * which none shares a variable with another are each an equation in one unknown once all other duals are given,
 *
 *     r_i(mu_i) = sum_j c_ij p_j(u_j) + s_i z(mu_i) - b_i = 0,    r_i increasing,
 *
 * solved here by Newton's method within the ends between which the root is known to lie, for far less than a step.
 *
 * Compiled once per instruction set (kernel.h).
 */


/* One row by itself: its coefficients, and u and the numbers of its variables, filled up with variables that take nothing. */
typedef struct {
    double *c, *u, *own[4];
    int64_t count;
    double mu, r, slope; /* slope: of r */
} RowView;

static void V(swap)(Work *w) {
    State other = w->now;
    w->now = w->next;
    w->next = other;
}

/* By what a row must multiply the odds or shares of its variables and slack to hold, were its coefficients equal; 0
 * where it cannot. */
INLINE double V(sweep_ratio)(int multiplies, double whole, double wanted, double have) {
    const double rest = whole - wanted, left = whole - have, least = 1e-12 * whole;
    if (!(whole > 0) || !(wanted > least && have > least)) return 0.0;
    if (multiplies == SHARES) return wanted / have;
    return rest > least && left > least ? wanted * left / (rest * have) : 0.0;
}

/* One Sinkhorn sweep over the groups of disjoint rows, kept if it lowers the potential; returns whether it does. */
static int V(sweep)(Work *w, double T) {
    const Layout *a = w->layout;
    if (a->groups == 0) return 0;
    const double cap = 10.0 * T + 0.5 * w->reach;
    const int multiplies = OBJECTIVES[w->objective].multiplies;
    State *at = &w->next;
    memcpy(at->mu, w->now.mu, w->k * sizeof(double));
    memcpy(at->r, w->now.r, w->k * sizeof(double));
    for (int64_t g = 0; g < a->groups; g++) {
        for (int32_t e = a->group_start[g]; e < a->group_start[g + 1]; e++) {
            const int32_t i = a->group_rows[e];
            const double wanted = w->b[i], ratio = V(sweep_ratio)(multiplies, w->whole[i], wanted, at->r[i] + wanted);
            if (!(ratio > 0)) continue;
            const double change = T * log(ratio);
            at->mu[i] += change < -cap ? -cap : change > cap ? cap : change;
        }
        V(clip)(w, at->mu);
        V(evaluate)(w, at, T);
    }
    if (!(at->theta <= w->now.theta)) return 0;
    V(swap)(w);
    return 1;
}

/* No duals, and so many sweeps from there on. */
static void V(start_cold)(Work *w, double T, int64_t sweeps) {
    memset(w->now.mu, 0, w->k * sizeof(double));
    V(clip)(w, w->now.mu);
    V(evaluate)(w, &w->now, T);
    for (int64_t i = 0; OBJECTIVES[w->objective].multiplies && i < sweeps; i++)
        if (!V(sweep)(w, T)) break;
}

/* r of a row, and its slope, were its dual `mu`. */
INLINE void V(evaluate_row)(const int o, const Work *w, RowView *row, int64_t i, double T, double mu) {
    const Heat heat = V(heat_at)(w, T);
    vec sum = {0}, slope = {0};
    for (int64_t j = 0; j < row->count; j += LANES) {
        const vec c = V(load)(row->c + j), u = V(load)(row->u + j) + (mu - row->mu) * c;
        Own own = {{0}, {0}, {0}, {0}};
        if (OBJECTIVES[o].unit != OF_BOX)
            own = (Own){V(load)(row->own[0] + j), V(load)(row->own[1] + j), V(load)(row->own[2] + j), V(load)(row->own[3] + j)};
        const vec p = V(share_of)(o, u, &own, &heat, NULL);
        sum += c * p;
        slope += c * c * V(slope_of)(o, u, p, &own, &heat);
    }
    row->r = V(sum_of)(sum) - w->b[i];
    row->slope = V(sum_of)(slope);
    if (!w->has_slack) return;
    const double z = 1.0 / (1.0 + exp(-mu / T));
    row->r += w->s[i] * z;
    row->slope += w->s[i] * z * (1.0 - z) / T;
}

FOR_OBJECTIVES(evaluate_row, (const Work *w, RowView *row, int64_t i, double T, double mu), w, row, i, T, mu)

/* Newton's step for r = 0, of the logarithm in which the row is closest to a line. */
INLINE double V(step_of_row)(const Work *w, const RowView *row, int64_t i) {
    const double wanted = w->b[i], have = row->r + wanted, left = w->whole[i] - have;
    const int multiplies = OBJECTIVES[w->objective].multiplies;
    const double ratio = multiplies ? V(sweep_ratio)(multiplies, w->whole[i], wanted, have) : 0.0;
    if (!(ratio > 0)) return -row->r / row->slope;
    return log(ratio) * (multiplies == SHARES ? have : have * left / w->whole[i]) / row->slope;
}

/* The dual at which row i holds, or the bound of it that comes first. */
static double V(settled)(const Work *w, RowView *row, int64_t i, double T) {
    const int heated = OBJECTIVES[w->objective].temperature;
    const double cap = 10.0 * T + 0.5 * w->reach;
    double below = w->low[i], above = w->high[i], mu = row->mu;
    int open_below = 1, open_above = 1; /* ends that are bounds of the dual may be the answer */
    for (int64_t n = 0; n < CONSTANTS.settling; n++) {
        BY_OBJECTIVE(w->objective, evaluate_row, w, row, i, T, mu)
        if (fabs(row->r) <= CONSTANTS.settled || !isfinite(row->r)) break;
        if (row->r > 0) above = mu, open_above = 0;
        else below = mu, open_below = 0;
        double change = V(step_of_row)(w, row, i);
        if (!isfinite(change)) change = row->r > 0 ? -1e300 : 1e300; /* nothing moves here */
        const double most = heated ? cap : 1.0 + fabs(mu) + fabs(row->r);
        change = change < -most ? -most : change > most ? most : change;
        double next = mu + change;
        if (next <= below) next = open_below ? below : 0.5 * (mu + below);
        if (next >= above) next = open_above ? above : 0.5 * (mu + above);
        if (next == mu) break;
        mu = next;
    }
    return mu;
}

/* Copy row i, with the entries at `entry`, and the numbers of its variables. */
static void V(view_row)(const Work *w, const State *at, RowView *row, int64_t i, const int32_t *entry, int64_t count) {
    const double *own[] = {w->least, w->most, w->first, w->second};
    row->mu = at->mu[i];
    row->count = rounded_up(count);
    for (int64_t n = 0; n < row->count; n++) {
        const int64_t j = n < count ? w->layout->entry_col[entry[n]] : 0;
        row->c[n] = n < count ? w->coefficients[entry[n]] : 0.0;
        row->u[n] = n < count ? at->u[j] : -1e200;
        for (int h = 0; h < 4 && OBJECTIVES[w->objective].unit != OF_BOX; h++) row->own[h][n] = n < count && own[h] ? own[h][j] : 0.0;
    }
}

/* Of some disjoint rows those that move, each settled by itself, the other duals as they are; evaluated before and after.
 * rows NULL: the first ones. */
static void V(settle)(Work *w, State *at, double T, const int32_t *rows, int64_t count) {
    const Layout *a = w->layout;
    int64_t longest = 0;
    int32_t *begin = calloc(a->rows + 2 + a->entries, sizeof(int32_t)), *entry = begin ? begin + a->rows + 2 : NULL;
    uint8_t *wanted = calloc(a->rows + 1, 1);
    double *block = NULL;
    if (begin && wanted) { /* the entries of each row, one row after the other */
        for (int64_t n = 0; n < count; n++) {
            const int64_t i = rows ? rows[n] : n;
            wanted[i] = w->moving[i] && fabs(at->r[i]) > CONSTANTS.settled;
        }
        for (int64_t e = 0; e < a->entries; e++) begin[a->entry_row[e] + 2] += wanted[a->entry_row[e]];
        for (int64_t i = 0; i < a->rows; i++) {
            longest = begin[i + 2] > longest ? begin[i + 2] : longest;
            begin[i + 2] += begin[i + 1];
        }
        for (int64_t e = 0; e < a->entries; e++)
            if (wanted[a->entry_row[e]]) entry[begin[a->entry_row[e] + 1]++] = (int32_t)e;
        block = longest ? aligned_block(64, 6 * rounded_up(longest) * sizeof(double)) : NULL;
    }
    for (int64_t i = 0; block && i < a->rows; i++) {
        if (!wanted[i]) continue;
        const int64_t room = rounded_up(longest);
        RowView row = {.c = block, .u = block + room};
        for (int h = 0; h < 4; h++) row.own[h] = block + (2 + h) * room;
        V(view_row)(w, at, &row, i, entry + begin[i], begin[i + 1] - begin[i]);
        at->mu[i] = V(settled)(w, &row, i, T);
    }
    free(begin);
    free(wanted);
    free_block(block);
    V(evaluate)(w, at, T);
}

/* The duals given; those that are not (NaN) or, where all are, those of the leading rows, settled. */
static void V(start_warm)(Work *w, const double *start) {
    const Layout *a = w->layout;
    int missing = 0;
    for (int64_t i = 0; i < a->rows; i++) {
        const double given = start[a->order[i]] * w->it.scale[a->order[i]];
        w->moving[i] = w->active[i] && !(given == given);
        w->now.mu[i] = w->active[i] && given == given ? given : 0.0;
        missing |= w->moving[i];
    }
    V(clip)(w, w->now.mu);
    V(evaluate)(w, &w->now, w->tau);
    for (int64_t i = 0; i < a->leading && !missing; i++) w->moving[i] = w->active[i];
    if (!missing || !a->groups) V(settle)(w, &w->now, w->tau, NULL, a->leading);
    for (int64_t g = 0; missing && g < a->groups; g++)
        V(settle)(w, &w->now, w->tau, a->group_rows + a->group_start[g], a->group_start[g + 1] - a->group_start[g]);
}

/* Duals and temperature to begin with: those given, at the final temperature, where theta is lower there than at those of a
 * cold start; of one that begins hotter than at none, and `goes_far` decides. */
static double V(start)(Work *w, const double *start) {
    const double hot = CONSTANTS.start_temperature * w->reach, T = hot > w->tau ? hot : w->tau;
    if (start) {
        V(start_cold)(w, w->tau, hot > w->tau ? 0 : CONSTANTS.sweeps);
        const double cold = w->now.theta;
        V(start_warm)(w, start);
        if (w->now.theta <= cold) return w->tau;
    }
    V(start_cold)(w, T, CONSTANTS.sweeps);
    return T;
}

/* Whether a step of rows that do not lead is longer than curvature is known from one point: a start so far from the solution
 * is no better than none. */
INLINE int V(goes_far)(const Work *w, double T) {
    for (int64_t i = w->layout->leading; i < w->layout->rows; i++)
        if (w->moving[i] && fabs(w->direction[i]) > CONSTANTS.far * T) return 1;
    return 0;
}
