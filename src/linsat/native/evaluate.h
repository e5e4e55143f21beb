/* One instance at some duals: u, p, the potential and the residuals.
 *
 * Included by core.c once per instruction set.
 */

#define State V(State)
#define Work V(Work)
#define Pass V(Pass)
#define Dense V(Dense)

/* Everything at some duals. */
typedef struct {
    double *mu, *u, *p, *z, *r;
    double theta, size, error;
} State;

/* H where most coefficients are not zero. */
typedef struct {
    double *C, *scaled;                /* (variables, width) coefficients; room for those of some rows, times d^1/2 */
    int32_t *list, *order;             /* rows (positions in base) of the factored matrix; rows of base, -1: none */
    int64_t count, ld;                 /* of the factored matrix */
    double *base, *base_inverse, *base_size; /* see prepare_constant */
    int64_t first, width;              /* rows of base eliminated, all rows of it */
    int constant, ready;
    double ridge;
} Dense;

/* One instance with its numbers folded, and room to work in. Rows are in the kernel's order. */
typedef struct {
    const Layout *layout;
    Instance it;
    Team *team;                                  /* who shares the work on an instance; NULL: nobody */
    int objective, entropic, has_slack, bounded; /* bounded: some dual has a finite bound */
    int fixed;                                   /* presolve has fixed a variable */
    int paired;                                  /* evaluate_pairs serves */
    int reusable;                                /* H was factored at this temperature, for all rows, nearby */
    int64_t l, k;                                /* rounded up to multiples of eight */
    double tau, reach;
    double *values, *coefficients, *pair_values;   /* a, c, and products of two c of one variable */
    double *linear, *b, *s, *low, *high, *whole;   /* b: right-hand side; whole: what a row can reach, 0: not to be swept */
    double *totals, *taken, *negative;             /* sums of c; what fixed variables take of b; negative coefficients */
    double *lower, *upper, *weights;               /* bounds of x; q, Euclidean only */
    uint8_t *moving, *active;
    State now, next;
    double *d, *given, *direction, *rhs, *scratch, *q, *again; /* given: dL/dx */
    double *parts, *sums;                    /* what tiles contribute to sums, one after the other */
    int64_t part;                            /* numbers in a part */
    double *H, *S, *inverse, *rest, *root, *keep, *packed, *panels; /* see factor */
    Dense dense;
    double *interior;                        /* room for the interior-point method, once an instance needs it */
} Work;

/* One loop over tiles, or over chunks of leading rows: what it reads and writes. */
typedef struct {
    Work *w;
    State *at;
    const double *coefficients, *from;
    double *to, T, factor;
    int whole; /* u too */
} Pass;

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
        else V(add_product)(to + run.col, to + run.col, c + run.at, mu[run.target], run.count);
    }
    if (a->entry_runs) return;
    for (int64_t e = a->tile_entries[t]; e < a->tile_entries[t + 1]; e++) to[a->entry_col[e]] += c[e] * mu[a->entry_row[e]];
}

/* What tile t contributes to C p, with coefficients c */
static void V(apply_tile)(const Work *w, int64_t t, const double *restrict c, const double *restrict p, double *restrict to) {
    const Layout *a = w->layout;
    memset(to, 0, w->k * sizeof(double));
    if (a->entry_runs) {
        for (int64_t n = a->tile_entry_runs[t]; n < a->tile_entry_runs[t + 1]; n++) {
            const Run run = a->runs_of_entries[n];
            if (run.step) V(add_products)(to + run.target, to + run.target, c + run.at, p + run.col, run.count);
            else to[run.target] += V(dot)(c + run.at, p + run.col, run.count);
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
    V(apply_tile)(pass->w, t, pass->coefficients, pass->from, V(part_of)(pass->w, t, pass->to));
}

/* to = C p */
static void V(apply)(Work *w, const double *coefficients, const double *p, double *to) {
    Pass pass = {.w = w, .coefficients = coefficients, .from = p, .to = to};
    share(w->team, w->layout->tiles, V(apply_part), &pass);
    if (w->layout->tiles > 1) V(add_up)(w, w->layout->tiles, to, w->k);
}

/* p = sigmoid(u / T) from start to stop; the sum of T softplus(u / T), over T and in two parts, into sums, with one
 * logarithm for many factors of 1 + exp(-|u| / T). */
static void V(sigmoids)(const State *at, double T, int64_t start, int64_t stop, double *sums) {
    const double inverse = 1.0 / T;
    double logs = 0.0;
    vec linear[BLOCK] = {{0}};
    for (; start < stop; start += 512) {
        const int64_t end = start + 512 < stop ? start + 512 : stop;
        vec product[BLOCK];
        for (int h = 0; h < BLOCK; h++) product[h] = V(all)(1.0);
        for (int64_t j = start; j < end; j += 8) {
            for (int h = 0; h < BLOCK; h++) {
                const vec t = V(load)(at->u + j + h * LANES) * inverse;
                const vec e = V(exp_of_negative)(V(minus_size_of)(t));
                const vec tail = 1.0 + e, share = 1.0 / tail;
                const mask up = t >= 0.0;
                V(store)(at->p + j + h * LANES, V(pick)(up, share, e * share));
                linear[h] += (vec)(up & (mask)t);
                product[h] *= tail;
            }
        }
        for (int h = 1; h < BLOCK; h++) product[0] *= product[h];
        logs += log(V(product_of)(product[0]));
    }
    for (int h = 1; h < BLOCK; h++) linear[0] += linear[h];
    sums[0] = V(sum_of)(linear[0]);
    sums[1] = logs;
}

/* What one pass over the variables of two runs needs; see evaluate_pairs. */
typedef struct {
    const double *linear, *one, *many, *mu; /* coefficients of the row they share and of a row each, and these rows' duals */
    double *u, *p, *r;
    double dual, inverse; /* of the row they share; 1 / T */
} V(Pair);

/* u (where asked for), p and what LANES variables contribute to sums. */
INLINE void V(evaluate_vector)(const V(Pair) *a, int64_t i, int whole, vec *total, vec *linear, vec *product) {
    const vec one = V(load_at)(a->one + i), many = V(load_at)(a->many + i);
    vec u = V(load_at)(a->u + i);
    if (whole) {
        u = V(load_at)(a->linear + i) + one * a->dual + many * V(load_at)(a->mu + i);
        V(store_at)(a->u + i, u);
    }
    const vec t = u * a->inverse, e = V(exp_of_negative)(V(minus_size_of)(t));
    const vec tail = 1.0 + e, share = 1.0 / tail;
    const mask up = t >= 0.0;
    const vec p = V(pick)(up, share, e * share);
    V(store_at)(a->p + i, p);
    V(store_at)(a->r + i, V(load_at)(a->r + i) + many * p);
    *total += one * p;
    *linear += (vec)(up & (mask)t);
    *product *= tail;
}

/* The same for the last, fewer than LANES, variables of a run: the others have no coefficients and a share of nothing. */
static void V(evaluate_rest)(const V(Pair) *a, int64_t from, int64_t count, int whole, vec *sums) {
    double room[7][LANES] = {{0}};
    const size_t size = count * sizeof(double);
    for (int i = 0; i < LANES; i++) room[0][i] = room[4][i] = -1e200;
    const double *given[] = {a->linear, a->one, a->many, a->mu, a->u, NULL, a->r};
    for (int n = 0; n < 7; n++)
        if (given[n]) memcpy(room[n], given[n] + from, size);
    const V(Pair) b = {room[0], room[1], room[2], room[3], room[4], room[5], room[6], a->dual, a->inverse};
    V(evaluate_vector)(&b, 0, whole, sums, sums + 1, sums + 2);
    memcpy(a->u + from, room[4], size);
    memcpy(a->p + from, room[5], size);
    memcpy(a->r + from, room[6], size);
}

/* adjust_tile (where asked for), sigmoids and apply_tile in one pass, where every variable is in two rows: one that the
 * run shares, and one of neighbouring rows. */
INLINE void V(evaluate_pairs)(const Work *w, int64_t t, State *at, double T, int whole, double *r, double *sums) {
    const Layout *a = w->layout;
    const int64_t start = a->tile_entry_runs[t], half = (a->tile_entry_runs[t + 1] - start) / 2;
    vec linear = {0}, product = V(all)(1.0);
    double logs = 0.0;
    int64_t factors = 0;
    memset(r, 0, w->k * sizeof(double));
    for (int64_t n = start; n < start + half; n++) {
        const Run *one = a->runs_of_entries + n, *many = one + half;
        if (one->step) many = one, one += half;
        const V(Pair) pair = {w->linear + one->col,   w->coefficients + one->at, w->coefficients + many->at,
                              at->mu + many->target,  at->u + one->col,          at->p + one->col,
                              r + many->target,       at->mu[one->target],       1.0 / T};
        vec total = {0};
        const int64_t count = one->count;
        int64_t i = 0;
        while (i + LANES <= count) {
            const int64_t stop = i + 256 < count ? i + 256 : count;
            if (factors > 256) { /* each is at most 2 */
                logs += log(V(product_of)(product));
                product = V(all)(1.0);
                factors = 0;
            }
            factors += stop - i;
            for (; i + LANES <= stop; i += LANES) V(evaluate_vector)(&pair, i, whole, &total, &linear, &product);
        }
        if (i < count) {
            vec added[] = {total, linear, product};
            const V(Pair) copy = pair; /* its address is taken: stores could change it */
            V(evaluate_rest)(&copy, i, count - i, whole, added);
            total = added[0], linear = added[1], product = added[2];
            factors += count - i;
        }
        r[one->target] += V(sum_of)(total);
    }
    sums[0] = V(sum_of)(linear);
    sums[1] = logs + log(V(product_of)(product));
}

/* Whether evaluate_pairs can take every tile: each run of the first half has its like in the second. */
static int V(are_paired)(const Layout *a) {
    int64_t covered = 0;
    for (int64_t t = 0; t < a->tiles && a->entry_runs; t++) {
        const int64_t start = a->tile_entry_runs[t], half = (a->tile_entry_runs[t + 1] - start) / 2;
        if ((a->tile_entry_runs[t + 1] - start) & 1) return 0;
        for (int64_t n = start; n < start + half; n++) {
            const Run first = a->runs_of_entries[n], second = a->runs_of_entries[n + half];
            if (first.col != second.col || first.count != second.count || first.step == second.step) return 0;
            if (first.col != covered) return 0;
            covered += first.count;
        }
    }
    return covered == a->variables && a->entries == 2 * a->variables;
}

/* p = x = clip(u / q) from start to stop; the sums of x (u - q x / 2) and of its size into sums. */
static void V(clips)(const Work *w, State *at, int64_t start, int64_t stop, double *sums) {
    vec theta = {0}, size = {0};
    for (int64_t j = start; j < stop; j += LANES) {
        const vec u = V(load)(at->u + j), low = V(load)(w->lower + j), high = V(load)(w->upper + j);
        const vec q = w->weights ? V(load)(w->weights + j) : V(all)(1.0);
        vec x = u;
        if (w->weights) x = u / q;
        x = V(pick)(x <= low, low, V(pick)(x >= high, high, x));
        const vec term = x * (u - 0.5 * (q * x));
        V(store)(at->p + j, x);
        theta += term;
        size += V(size_of)(term);
    }
    sums[0] = V(sum_of)(theta);
    sums[1] = V(sum_of)(size);
}

/* z and the slacks' part of theta and r. */
static void V(slacks)(const Work *w, State *at, double T) {
    const double inverse = 1.0 / T;
    vec total = {0};
    for (int64_t i = 0; i < w->k; i += LANES) {
        const vec t = V(load)(at->mu + i) * inverse, s = V(load)(w->s + i);
        const vec e = V(exp_of_negative)(V(minus_size_of)(t));
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
static void V(evaluate_part)(void *argument, int64_t t) {
    const Pass *pass = argument;
    Work *w = pass->w;
    State *at = pass->at;
    const int64_t start = w->layout->tile_start[t], stop = w->layout->tile_start[t + 1];
    if (w->paired) {
        double *r = V(part_of)(w, t, at->r);
        if (pass->whole) V(evaluate_pairs)(w, t, at, pass->T, 1, r, w->sums + 2 * t);
        else V(evaluate_pairs)(w, t, at, pass->T, 0, r, w->sums + 2 * t);
        return;
    }
    if (pass->whole) V(adjust_tile)(w, t, at->mu, w->linear, at->u);
    if (w->objective == ENTROPY) V(sigmoids)(at, pass->T, start, stop, w->sums + 2 * t);
    else V(clips)(w, at, start, stop, w->sums + 2 * t);
    V(apply_tile)(w, t, w->coefficients, at->p, V(part_of)(w, t, at->r));
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
    at->theta = w->objective == ENTROPY ? T * (first + second) : first;
    at->size = w->objective == ENTROPY ? at->theta : second;
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
