/* H of one instance, factored, and solves with it.
 *
 * Compiled once per instruction set (kernel.h).
 */

INLINE void V(slopes_tile)(const int o, const Pass *pass, int64_t t) {
    const Work *w = pass->w;
    const State *at = pass->at;
    const Heat heat = V(heat_at)(w, pass->T);
    for (int64_t j = w->layout->tile_start[t]; j < w->layout->tile_start[t + 1]; j += LANES) {
        const Own own = V(own_at)(o, w, j);
        V(store)(w->d + j, V(slope_of)(o, V(load)(at->u + j), V(load)(at->p + j), &own, &heat));
    }
}

FOR_OBJECTIVES(slopes_tile, (const Pass *pass, int64_t t), pass, t)

static void V(slopes_part)(void *argument, int64_t t) {
    const Pass *pass = argument;
    BY_OBJECTIVE(pass->w->objective, slopes_tile, pass, t)
}

/* d = dp/du at a state. */
static void V(slopes)(Work *w, State *at, double T) {
    Pass pass = {.w = w, .at = at, .T = T};
    share(w->team, w->layout->tiles, V(slopes_part), &pass);
}

/* The diagonal entry of H of a row that moves, regularised; one where there is nothing. */
INLINE double V(diagonal_entry)(const Work *w, const State *at, int64_t i, double value, double T, double damping,
                                double ridge) {
    if (w->has_slack) value += w->s[i] * at->z[i] * (1.0 - at->z[i]) / T;
    value = (value + damping) * (1.0 + ridge);
    return value > 1e-290 ? value : 1.0;
}

/* What the variables of one tile contribute to H. Diagonals, to which many tiles contribute, are added up later. */
static void V(assemble_part)(void *argument, int64_t t) {
    Work *w = ((Pass *)argument)->w;
    const Layout *a = w->layout;
    const int64_t diagonals = rounded_up(a->leading) + a->width;
    double *restrict H = w->H, *restrict first = V(part_of)(w, t, H);
    const double *restrict d = w->d, *restrict values = w->pair_values;
    memset(first, 0, diagonals * sizeof(double));
    if (a->pair_runs) {
        for (int64_t n = a->tile_pair_runs[t]; n < a->tile_pair_runs[t + 1]; n++) {
            const Run run = a->runs_of_pairs[n];
            double *to = (run.target < diagonals ? first : H) + run.target;
            if (run.step) V(add_products)(to, to, values + run.at, d + run.col, run.count);
            else *to += V(dot)(values + run.at, d + run.col, run.count);
        }
        return;
    }
    for (int64_t e = a->tile_pairs[t]; e < a->tile_pairs[t + 1]; e++) {
        const int64_t target = a->pair_target[e];
        (target < diagonals ? first : H)[target] += values[e] * d[a->pair_col[e]];
    }
}

/* The leading rows of a chunk, from `start` to `stop`. */
#define LEADING_ROWS(argument, chunk)                                                                   \
    const Pass *pass = argument;                                                                        \
    const Work *w = pass->w;                                                                            \
    const Layout *a = w->layout;                                                                        \
    const int64_t ld = a->width, size = chunk_of(a->leading), start = chunk * size;                  \
    const int64_t stop = start + size < a->leading ? start + size : a->leading

/* Leading rows of the coupling, each divided by the root of its diagonal entry, and copied into panels where H is wide. */
static void V(scale_part)(void *argument, int64_t chunk) {
    LEADING_ROWS(argument, chunk);
    double *coupling = w->H + rounded_up(a->leading) + ld;
    for (int64_t i = start; i < stop; i++)
        for (int64_t h = 0; h < ld; h += LANES) {
            double *at = coupling + i * ld + h;
            V(store)(at, V(load)(at) * w->root[i] * V(load)(w->keep + h));
        }
    if (!w->panels) return;
    for (int64_t h = 0; h < ld; h += 8)
        for (int64_t i = start; i < stop; i++)
            memcpy(w->panels + ((h >> 3) * a->leading + i) * 8, coupling + i * ld + h, 8 * sizeof(double));
}

static int V(factor_dense)(Work *w, const State *at, double T, double damping, double ridge);
static void V(solve_dense)(const Work *w, const double *rhs, double *to);

/* H over the rows that move, plus damping, times 1 + ridge on the diagonal, factored; d must be set.
 *
 * H holds [diagonal of the leading rows | diagonal of the others | W: leading x others | S: others x others], W divided
 * by the root of the leading diagonal; the Schur complement S - W'W is factored in place. Returns whether a pivot was
 * dropped. */
static int V(factor)(Work *w, const State *at, double T, double damping, double ridge) {
    const Layout *a = w->layout;
    if (a->dense) return V(factor_dense)(w, at, T, damping, ridge);
    const int64_t first = a->leading, ld = a->width, rest = a->rows - first, lead = rounded_up(first);
    double *H = w->H, *diagonal = H + lead, *coupling = diagonal + ld;
    Pass pass = {.w = w};
    memset(H, 0, (lead + ld + first * ld + ld * ld) * sizeof(double));
    share(a->separate ? w->team : NULL, a->tiles, V(assemble_part), &pass);
    if (a->tiles > 1) V(add_up)(w, a->tiles, H, lead + ld);
    int any_held = 0;
    for (int64_t i = 0; i < a->rows; i++) {
        double *at_diagonal = i < first ? H + i : diagonal + (i - first);
        const int moves = w->moving[i];
        *at_diagonal = moves ? V(diagonal_entry)(w, at, i, *at_diagonal, T, damping, ridge) : 1.0;
        if (i >= first) w->keep[i - first] = moves;
        any_held |= i >= first && !moves;
    }
    for (int64_t i = 0; i < first; i++) w->root[i] = w->moving[i] / sqrt(H[i]);
    if (rest == 0) return 0;
    for (int64_t g = 0; g < rest && any_held; g++)
        for (int64_t h = g & ~(int64_t)7; h < ld; h += LANES)
            V(store)(w->S + g * ld + h, V(load)(w->S + g * ld + h) * w->keep[g] * V(load)(w->keep + h));
    for (int64_t g = 0; g < rest; g++) w->S[g * ld + g] = diagonal[g];
    share(w->team, chunks_of(first), V(scale_part), &pass);
    Product schur = {w->S, ld, 0, first, {coupling, ld, 8}, -1.0};
    if (w->panels) schur.P = (Panels){w->panels, 8, 8 * first};
    V(multiply)(w->team, &schur);
    return V(cholesky)(w->team, w->S, ld, rest, diagonal, w->inverse, w->packed);
}

/* What a chunk of leading rows takes from the right-hand sides of the others. */
static void V(reduce_part)(void *argument, int64_t chunk) {
    LEADING_ROWS(argument, chunk);
    double *restrict y = w->parts + chunk * w->part;
    memset(y, 0, ld * sizeof(double));
    for (int64_t i = start; i < stop; i++)
        V(add_product)(y, y, w->H + rounded_up(a->leading) + ld + i * ld, pass->from[i] * w->root[i], ld);
}

/* The leading rows' part of a solution, from that of the others. */
static void V(extend_part)(void *argument, int64_t chunk) {
    LEADING_ROWS(argument, chunk);
    const double *W = w->H + rounded_up(a->leading) + ld;
    for (int64_t i = start; i < stop; i++)
        pass->to[i] = pass->to[i] / w->H[i] - w->root[i] * V(dot)(W + i * ld, w->rest, ld);
}

/* to = H^-1 rhs with the factor; both may be the same array. */
static void V(solve)(Work *w, const double *rhs, double *to) {
    const Layout *a = w->layout;
    if (a->dense) {
        V(solve_dense)(w, rhs, to);
        return;
    }
    const int64_t first = a->leading, ld = a->width, rest = a->rows - first;
    double *restrict y = w->rest;
    if (to != rhs) memcpy(to, rhs, w->k * sizeof(double));
    if (rest == 0) {
        for (int64_t i = 0; i < first; i++) to[i] /= w->H[i];
        return;
    }
    Pass pass = {.w = w, .from = to, .to = to};
    memset(y, 0, ld * sizeof(double));
    if (first) {
        share(w->team, chunks_of(first), V(reduce_part), &pass);
        V(add_up)(w, chunks_of(first), y, ld);
    }
    for (int64_t g = 0; g < rest; g++) y[g] = to[first + g] - y[g];
    V(solve_forward)(w->S, ld, rest, w->inverse, y);
    V(solve_back)(w->S, ld, rest, w->inverse, y);
    share(w->team, chunks_of(first), V(extend_part), &pass);
    memcpy(to + first, y, rest * sizeof(double));
}
