/* One instance at some duals: u, p, the potential and the residuals.
 *
 * Compiled once per instruction set (kernel.h).
 */

/* The sum of the parts of `count` tiles or chunks, in order. */
static void V(add_up)(const Work *w, int64_t count, double *restrict to, int64_t length) {
    memcpy(to, w->parts, length * sizeof(double));
    for (int64_t t = 1; t < count; t++)
        for (int64_t i = 0; i < length; i += LANES)
            V(store)(to + i, V(load)(to + i) + V(load)(w->parts + t * w->part + i));
}

/* Where tile t adds up sums over variables that end in `to`. */
INLINE double *V(part_of)(const Work *w, int64_t t, double *to) {
    return w->layout->tiles == 1 ? to : w->parts + t * w->part;
}

/* to = from + C' mu within tile t */
static void V(adjust_tile)(const Work *w, int64_t t, const double *restrict mu, const double *from, double *restrict to) {
    const Layout *a = w->layout;
    const double *restrict c = w->coefficients;
    const int64_t start = a->tile_start[t], count = a->tile_start[t + 1] - start;
    if (a->entry_runs && from) {
        int64_t filled = start; /* runs of every variable's first row come first, in order: they need no copy */
        for (int64_t n = a->tile_entry_runs[t]; n < a->tile_entry_runs[t + 1]; n++) {
            const Run run = a->runs_of_entries[n];
            const double *base = run.col >= filled ? from : to;
            if (run.col > filled) memcpy(to + filled, from + filled, (run.col - filled) * sizeof(double));
            if (run.col >= filled) filled = run.col + run.count;
            if (run.step) V(add_products)(to + run.col, base + run.col, c + run.at, mu + run.target, run.count);
            else if (base == to && mu[run.target] == 0.0) continue; /* of many rows few bind: the others need not be read */
            else V(add_product)(to + run.col, base + run.col, c + run.at, mu[run.target], run.count);
        }
        if (filled < start + count) memcpy(to + filled, from + filled, (start + count - filled) * sizeof(double));
        return;
    }
    if (from) memcpy(to + start, from + start, count * sizeof(double));
    else memset(to + start, 0, count * sizeof(double));
    for (int64_t n = a->tile_entry_runs[t]; a->entry_runs && n < a->tile_entry_runs[t + 1]; n++) {
        const Run run = a->runs_of_entries[n];
        if (run.step) V(add_products)(to + run.col, to + run.col, c + run.at, mu + run.target, run.count);
        else if (mu[run.target] != 0.0) V(add_product)(to + run.col, to + run.col, c + run.at, mu[run.target], run.count);
    }
    if (a->entry_runs) return;
    for (int64_t e = a->tile_entries[t]; e < a->tile_entries[t + 1]; e++) to[a->entry_col[e]] += c[e] * mu[a->entry_row[e]];
}

/* What tile t contributes to C p, with coefficients c; `wanted`: of rows that matter, NULL: all. */
static void V(apply_tile)(const Work *w, int64_t t, const double *restrict c, const double *restrict p, const uint8_t *wanted,
                          double *restrict to) {
    const Layout *a = w->layout;
    memset(to, 0, w->k * sizeof(double));
    if (a->entry_runs) {
        for (int64_t n = a->tile_entry_runs[t]; n < a->tile_entry_runs[t + 1]; n++) {
            const Run run = a->runs_of_entries[n];
            if (run.step) V(add_products)(to + run.target, to + run.target, c + run.at, p + run.col, run.count);
            else if (!wanted || wanted[run.target]) to[run.target] += V(dot)(c + run.at, p + run.col, run.count);
        }
        return;
    }
    for (int64_t e = a->tile_entries[t]; e < a->tile_entries[t + 1]; e++) to[a->entry_row[e]] += c[e] * p[a->entry_col[e]];
}

static void V(adjust_part)(void *argument, int64_t t) {
    const Pass *pass = argument;
    V(adjust_tile)(pass->w, t, pass->from, NULL, pass->to);
}

/* to = C' mu */
static void V(pull)(Work *w, const double *mu, double *to) {
    Pass pass = {.w = w, .from = mu, .to = to};
    share(w->team, w->layout->tiles, V(adjust_part), &pass);
}

static void V(apply_part)(void *argument, int64_t t) {
    const Pass *pass = argument;
    V(apply_tile)(pass->w, t, pass->coefficients, pass->from, pass->wanted, V(part_of)(pass->w, t, pass->to));
}

/* to = C p, in rows that are wanted (NULL: all) */
static void V(apply)(Work *w, const double *coefficients, const double *p, const uint8_t *wanted, double *to) {
    Pass pass = {.w = w, .coefficients = coefficients, .from = p, .to = to, .wanted = wanted};
    share(w->team, w->layout->tiles, V(apply_part), &pass);
    if (w->layout->tiles > 1) V(add_up)(w, w->layout->tiles, to, w->k);
}

/* The numbers of the objective at temperature T. */
INLINE Heat V(heat_at)(const Work *w, double T) {
    const double alpha = w->alpha;
    return (Heat){V(all)(T), V(all)(1.0 / T), V(all)(alpha), V(all)(1.0 / (alpha - 1.0)), w->weights != NULL};
}

/* Those of the variables from j on, as far as the objective has them. */
INLINE Own V(own_at)(const int o, const Work *w, int64_t j) {
    Own own = {{0}, {0}, {0}, {0}};
    const int unit = OBJECTIVES[o].unit;
    if (unit == OF_BOX) return own;
    own.most = V(load)(w->most + j);
    if (unit == ITSELF) own.least = V(load)(w->least + j);
    if (unit == OF_ROWS || w->weights) own.first = V(load)(w->first + j);
    if (has_alpha(o)) own.second = V(load)(w->second + j);
    return own;
}

/* Theta of so many terms, and its size. One logarithm serves many factors, of at least 1/2 each: `logs` has those of earlier
 * products. */
INLINE void V(add_up_terms)(const int o, Terms *terms, int count, double logs, double T, double *sums) {
    for (int h = 1; h < count; h++) {
        terms[0].value += terms[h].value;
        terms[0].size += terms[h].size;
    }
    sums[0] = V(sum_of)(terms[0].value);
    sums[1] = V(sum_of)(terms[0].size);
    if (OBJECTIVES[o].product) sums[0] = sums[1] = T * (sums[0] - logs);
}

/* The logarithm of the products, which begin anew. */
INLINE double V(take_logs)(const int o, Terms *terms, int count) {
    if (!OBJECTIVES[o].product) return 0.0;
    vec product = terms[0].product;
    for (int h = 1; h < count; h++) product *= terms[h].product;
    for (int h = 0; h < count; h++) terms[h].product = V(all)(1.0);
    return log(V(product_of)(product));
}

/* p from start to stop, and their part of theta and its size. */
INLINE void V(shares_from)(const int o, const Work *w, State *at, double T, int64_t start, int64_t stop, double *sums) {
    const Heat heat = V(heat_at)(w, T);
    Terms terms[BLOCK];
    double logs = 0.0;
    for (int h = 0; h < BLOCK; h++) terms[h] = V(no_terms)();
    for (; start < stop; start += 512) {
        const int64_t end = start + 512 < stop ? start + 512 : stop;
        for (int64_t j = start; j < end; j += 8)
            for (int h = 0; h < BLOCK; h++) {
                const int64_t n = j + h * LANES;
                const Own own = V(own_at)(o, w, n);
                V(store)(at->p + n, V(share_of)(o, V(load)(at->u + n), &own, &heat, terms + h));
            }
        logs += V(take_logs)(o, terms, BLOCK);
    }
    V(add_up_terms)(o, terms, BLOCK, logs, T, sums);
}

/* What one pass over the variables of two runs needs; see evaluate_pairs. */
typedef struct {
    const double *linear, *one, *many, *mu; /* coefficients of the row they share and of a row each, and these rows' duals */
    double *u, *p, *r;
    const double *most, *first, *second; /* as in Own */
    double dual;                         /* of the row they share */
} V(Pair);

/* u (where asked for), p and what LANES variables contribute to sums. */
INLINE void V(evaluate_vector)(const int o, const V(Pair) *a, const Heat *heat, int64_t i, int whole, vec *total, Terms *terms) {
    const vec one = V(load_at)(a->one + i), many = V(load_at)(a->many + i);
    Own own = {{0}, {0}, {0}, {0}};
    if (OBJECTIVES[o].unit != OF_BOX) own.most = V(load_at)(a->most + i), own.first = V(load_at)(a->first + i);
    if (has_alpha(o)) own.second = V(load_at)(a->second + i);
    vec u;
    if (whole) {
        u = V(load_at)(a->linear + i) + one * a->dual + many * V(load_at)(a->mu + i);
        V(store_at)(a->u + i, u);
    } else u = V(load_at)(a->u + i);
    const vec p = V(share_of)(o, u, &own, heat, terms);
    V(store_at)(a->p + i, p);
    V(store_at)(a->r + i, V(load_at)(a->r + i) + many * p);
    *total += one * p;
}

/* The same for the last, fewer than LANES, variables of a run: the others have no coefficients and a share of nothing. */
INLINE void V(evaluate_rest)(const int o, const V(Pair) *a, const Heat *heat, int64_t from, int64_t count, int whole, vec *total,
                             Terms *terms) {
    double room[10][LANES] = {{0}};
    const size_t size = count * sizeof(double);
    for (int i = 0; i < LANES; i++) room[0][i] = room[4][i] = -1e200;
    const double *given[] = {a->linear, a->one, a->many, a->mu, a->u, NULL, a->r, a->most, a->first, a->second};
    for (int n = 0; n < 10; n++)
        if (given[n]) memcpy(room[n], given[n] + from, size);
    const V(Pair) b = {room[0], room[1], room[2], room[3], room[4], room[5], room[6], room[7], room[8], room[9], a->dual};
    V(evaluate_vector)(o, &b, heat, 0, whole, total, terms);
    memcpy(a->u + from, room[4], size);
    memcpy(a->p + from, room[5], size);
    memcpy(a->r + from, room[6], size);
}

INLINE const double *V(from_column)(const double *array, int64_t col) { return array ? array + col : NULL; }

/* adjust_tile (where asked for), shares_from and apply_tile in one pass, where every variable is in two rows: one that the
 * run shares, and one of neighbouring rows. */
INLINE void V(evaluate_pairs)(const int o, const Work *w, int64_t t, State *at, double T, int whole, double *r, double *sums) {
    const Layout *a = w->layout;
    const int64_t start = a->tile_entry_runs[t], half = (a->tile_entry_runs[t + 1] - start) / 2;
    const Heat heat = V(heat_at)(w, T);
    Terms terms = V(no_terms)();
    double logs = 0.0;
    int64_t factors = 0;
    memset(r, 0, w->k * sizeof(double));
    for (int64_t n = start; n < start + half; n++) {
        const Run *one = a->runs_of_entries + n, *many = one + half;
        if (one->step) many = one, one += half;
        const int64_t col = one->col, count = one->count;
        const V(Pair) pair = {w->linear + col, w->coefficients + one->at, w->coefficients + many->at, at->mu + many->target,
                              at->u + col, at->p + col, r + many->target, V(from_column)(w->most, col),
                              V(from_column)(w->first, col), V(from_column)(w->second, col), at->mu[one->target]};
        vec total = {0};
        int64_t i = 0;
        while (i + LANES <= count) {
            const int64_t stop = i + 256 < count ? i + 256 : count;
            if (factors > 256) { /* each is at least 1/2 */
                logs += V(take_logs)(o, &terms, 1);
                factors = 0;
            }
            factors += stop - i;
            for (; i + LANES <= stop; i += LANES) V(evaluate_vector)(o, &pair, &heat, i, whole, &total, &terms);
        }
        if (i < count) {
            vec added = total;
            Terms copy_of_terms = terms;
            const V(Pair) copy = pair; /* its address is taken: stores could change it */
            V(evaluate_rest)(o, &copy, &heat, i, count - i, whole, &added, &copy_of_terms);
            total = added, terms = copy_of_terms;
            factors += count - i;
        }
        r[one->target] += V(sum_of)(total);
    }
    logs += V(take_logs)(o, &terms, 1);
    V(add_up_terms)(o, &terms, 1, logs, T, sums);
}

/* z and the slacks' part of theta and r. */
static void V(slacks)(const Work *w, State *at, double T) {
    const double inverse = 1.0 / T;
    vec total = {0};
    for (int64_t i = 0; i < w->k; i += LANES) {
        const vec t = V(load)(at->mu + i) * inverse, s = V(load)(w->s + i);
        const vec e = V(exp_of)(V(minus_size_of)(t));
        const vec share = 1.0 / (1.0 + e);
        const mask up = t >= 0.0;
        const vec z = V(pick)(up, share, e * share);
        V(store)(at->z + i, z);
        total += s * ((vec)(up & (mask)t) + V(log_of_one_and)(e));
        V(store)(at->r + i, V(load)(at->r + i) + s * z);
    }
    const double value = T * V(sum_of)(total);
    at->theta += value;
    at->size += value;
}

/* How far a dual is from where a step along -r, clipped, would leave it. */
INLINE vec V(distance)(const Work *w, const double *mu, const double *r, int64_t i) {
    const vec here = V(load)(mu + i), residual = V(load)(r + i);
    if (!w->bounded) return residual;
    const vec low = V(load)(w->low + i), high = V(load)(w->high + i), there = here - residual;
    return V(pick)(there < low, here - low, V(pick)(there > high, here - high, residual));
}

/* u (where asked for), p and what they contribute to theta and r, within one tile. */
INLINE void V(evaluate_tile)(const int o, const Pass *pass, int64_t t) {
    Work *w = pass->w;
    State *at = pass->at;
    double *r = V(part_of)(w, t, at->r), *sums = w->sums + 2 * t;
    if (OBJECTIVES[o].unit != ITSELF && w->paired) {
        V(evaluate_pairs)(o, w, t, at, pass->T, pass->whole, r, sums);
        return;
    }
    if (pass->whole) V(adjust_tile)(w, t, at->mu, w->linear, at->u);
    V(shares_from)(o, w, at, pass->T, w->layout->tile_start[t], w->layout->tile_start[t + 1], sums);
    V(apply_tile)(w, t, w->coefficients, at->p, NULL, r);
}

FOR_OBJECTIVES(evaluate_tile, (const Pass *pass, int64_t t), pass, t)

static void V(evaluate_part)(void *argument, int64_t t) {
    const Pass *pass = argument;
    BY_OBJECTIVE(pass->w->objective, evaluate_tile, pass, t)
}

static void V(evaluate_from)(Work *w, State *at, double T, int whole) {
    const int64_t tiles = w->layout->tiles;
    Pass pass = {.w = w, .at = at, .T = T, .whole = whole};
    share(w->team, tiles, V(evaluate_part), &pass);
    if (tiles > 1) V(add_up)(w, tiles, at->r, w->k);
    double first = 0.0, second = 0.0;
    for (int64_t t = 0; t < tiles; t++) {
        first += w->sums[2 * t];
        second += w->sums[2 * t + 1];
    }
    at->theta = first;
    at->size = second;
    if (w->has_slack) V(slacks)(w, at, T);
    vec dual = {0}, size = {0}, error = {0};
    for (int64_t i = 0; i < w->k; i += LANES) {
        const vec b = V(load)(w->b + i), term = b * V(load)(at->mu + i);
        V(store)(at->r + i, V(load)(at->r + i) - b);
        dual += term;
        size += V(size_of)(term);
        error = V(larger)(V(size_of)(V(distance)(w, at->mu, at->r, i)), error);
    }
    at->theta -= V(sum_of)(dual);
    at->size += V(sum_of)(size);
    at->error = V(largest_of)(error);
}

/* Everything but u, which has not changed. */
static void V(evaluate_at)(Work *w, State *at, double T) { V(evaluate_from)(w, at, T, 0); }

/* Everything at the duals of a state. */
static void V(evaluate)(Work *w, State *at, double T) { V(evaluate_from)(w, at, T, 1); }

INLINE void V(clip)(const Work *w, double *mu) {
    if (!w->bounded) return;
    for (int64_t i = 0; i < w->k; i += LANES) {
        const vec value = V(larger)(V(load)(mu + i), V(load)(w->low + i));
        V(store)(mu + i, V(smaller)(value, V(load)(w->high + i)));
    }
}
