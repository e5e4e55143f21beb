/* One instance with its numbers folded, and room to work in. */

/* Of matrices, see matrix.h. */
#define TILE 64  /* rows and columns of a tile */
#define DEPTH 128 /* terms of a sum in one go: two panels of so many rows fit the first cache */
#define PACKED 128 /* from this width on a factor is copied into panels before it is multiplied */

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
    double tau, reach;                             /* tau: T at the end of continuation */
    double alpha;                                  /* 2 where the objective has none */
    double *coefficients, *pair_values;            /* c, and products of two c of one variable */
    double *linear, *b, *s, *low, *high, *whole;   /* b: right-hand side; whole: what a row can reach, 0: not to be swept */
    double *totals, *taken, *negative;             /* sums of c; what fixed variables take of b; negative coefficients */
    double *base, *unit, *upper;                   /* x = base + unit p, and the bound that it must not exceed by rounding */
    double *gain, *offset;                         /* linear = gain y + offset, which may be NULL: 0 */
    double *least, *most, *first, *second, *weights; /* as in Own; weights: q where there is one for each variable, else NULL */
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
    const uint8_t *wanted; /* rows of C p that matter, NULL: all */
} Pass;

/* Whether evaluate_pairs can take every tile: each run of the first half has its like in the second. */
static int are_paired(const Layout *a) {
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

static int64_t chunk_of(int64_t leading) { return leading <= 64 * 64 ? 64 : rounded_up((leading + 63) / 64); }
static int64_t chunks_of(int64_t leading) { return (leading + chunk_of(leading) - 1) / chunk_of(leading); }

/* Coefficients, and what follows from them: the numbers that right-hand sides do not change. */
static void fold_coefficients(Work *w) {
    const Layout *a = w->layout;
    const double *values = w->it.values, *scale = w->it.scale;
    const uint8_t *active = w->it.active;
    memset(w->taken, 0, w->k * sizeof(double));
    memset(w->negative, 0, w->k * sizeof(double));
    memset(w->totals, 0, w->k * sizeof(double));
    for (int64_t e = 0; e < a->entries; e++) {
        const int32_t i = a->entry_row[e], j = a->entry_col[e];
        const double value = values[e], rho = scale[a->order[i]];
        const double c = value * w->unit[j] / rho;
        w->taken[i] += value * w->base[j];
        if (value < 0) w->negative[i] = 1.0;
        w->totals[i] += c;
        w->coefficients[e] = active[a->order[i]] ? c : 0.0;
    }
    for (int64_t e = 0; e < a->pairs && !a->pair_runs; e++)
        w->pair_values[e] = w->coefficients[a->pair_first[e]] * w->coefficients[a->pair_second[e]];
    for (int64_t r = 0; r < a->pair_runs; r++) {
        const Run run = a->runs_of_pairs[r];
        for (int32_t e = 0; e < run.count; e++)
            w->pair_values[run.at + e] = w->coefficients[run.first + e] * w->coefficients[run.second + e];
    }
    for (int64_t e = 0; e < a->entries && a->dense; e++)
        w->dense.C[a->entry_col[e] * a->width + a->entry_row[e]] = w->coefficients[e];
    w->dense.ready = 0;
}

/* Right-hand sides, slacks and bounds of duals. */
static void fold_rows(Work *w) {
    const Layout *a = w->layout;
    const double *rhs = w->it.rhs, *slack = w->it.slack, *scale = w->it.scale, *share_of = w->it.tight_share;
    const double *dual_lower = w->it.dual_lower, *dual_upper = w->it.dual_upper;
    const uint8_t *active = w->it.active, *tight = w->it.tight;
    w->bounded = w->has_slack = 0;
    for (int64_t i = 0; i < a->rows; i++) {
        const int32_t from = a->order[i];
        const double rho = scale[from];
        double taken = w->taken[i];
        w->active[i] = active[from];
        w->s[i] = 0.0;
        if (w->entropic && active[from]) {
            if (tight[from]) taken += slack[from] * share_of[from];
            else w->s[i] = slack[from] / rho;
        }
        w->has_slack |= w->s[i] != 0.0;
        w->b[i] = active[from] ? (rhs[from] - taken) / rho : 0.0;
        w->low[i] = tight[from] ? -INFINITY : dual_lower[from] * rho;
        w->high[i] = tight[from] ? INFINITY : dual_upper[from] * rho;
        w->bounded |= w->low[i] > -INFINITY || w->high[i] < INFINITY;
        w->whole[i] = w->negative[i] > 0 || !active[from] ? 0.0 : w->totals[i] + w->s[i];
    }
}

/* Base, unit and bounds of p, but for what V(fold_edges) adds. A fixed variable has a unit of nothing, and adds nothing to theta. */
static void fold_variables(Work *w) {
    const Instance *it = &w->it;
    int unbounded = 1, fixed = 0;
    for (int64_t j = 0; j < w->layout->variables; j++) {
        const double low = it->lower[j], high = it->upper[j];
        const int moves = it->free[j] && high > low;
        fixed |= !moves;
        unbounded &= moves && low == -INFINITY && high == INFINITY;
        if (w->weights) w->weights[j] = it->parameters[0][j];
        Frame frame = {it->at_upper[j] ? high : low, 0.0, 0.0, 0.0};
        if (moves) frame = frame_of(w->objective, low, high, it->unit, it->room[j]);
        w->base[j] = frame.base;
        w->unit[j] = frame.unit;
        w->least[j] = frame.least;
        w->most[j] = frame.most;
        w->upper[j] = moves ? high : frame.base;
    }
    w->fixed = fixed;
    w->dense.constant = w->layout->dense && unbounded;
}

/* Point to the work arrays, one after another from `at` on; returns where they end. */
static double *arrange(Work *w, const Layout *a, const Statement *s, double *at) {
    const int64_t ld = a->width, first = a->leading, lead = rounded_up(first), rows_of_panels = a->dense ? a->variables : first;
    TAKE(&at, w->l, &w->linear, &w->base, &w->unit, &w->upper, &w->least, &w->most, &w->first, &w->second, &w->now.u, &w->now.p,
         &w->next.u, &w->next.p, &w->d, &w->given);
    if (is_weighted(s)) w->weights = w->first;
    if (is_shifted(s)) w->offset = take(&at, w->l);
    w->gain = w->weights ? w->weights : w->unit;
    TAKE(&at, w->k, &w->b, &w->s, &w->low, &w->high, &w->totals, &w->taken, &w->negative, &w->whole, &w->now.mu, &w->now.z,
         &w->now.r, &w->next.mu, &w->next.z, &w->next.r, &w->direction, &w->rhs, &w->scratch, &w->q, &w->again);
    at = arrange_instance(&w->it, a, at);
    w->moving = (uint8_t *)take(&at, w->k / 8);
    w->active = (uint8_t *)take(&at, w->k / 8);
    w->coefficients = take(&at, a->entries);
    w->pair_values = take(&at, a->pairs);
    w->part = w->k > lead + ld ? w->k : lead + ld;
    const int64_t parts = a->tiles > chunks_of(first) ? a->tiles : chunks_of(first);
    w->parts = take(&at, parts * w->part);
    w->sums = take(&at, 2 * a->tiles);
    w->H = take(&at, lead + ld + first * ld + (ld + 8) * (ld + 8));
    w->S = w->H + lead + ld + first * ld;
    TAKE(&at, ld + 16, &w->inverse, &w->rest, &w->keep);
    w->root = take(&at, (first > ld ? first : ld) + 16);
    w->packed = ld > TILE || a->dense ? take(&at, TILE * (ld + 8)) : NULL;
    w->panels = ld >= PACKED && !a->dense ? take(&at, rows_of_panels * ld) : NULL;
    if (!a->dense) return at;
    Dense *m = &w->dense;
    m->C = take(&at, a->variables * ld);
    m->scaled = take(&at, a->variables * (ld + 8));
    m->list = (int32_t *)take(&at, ld / 2 + 8);
    m->order = (int32_t *)take(&at, ld / 2 + 8);
    if (!OBJECTIVES[w->objective].affine) return at;
    m->base = take(&at, (ld + 8) * (ld + 8));
    m->base_inverse = take(&at, ld + 8);
    m->base_size = take(&at, ld + 8);
    return at;
}

/* Work arrays for a problem in one block, for free_block; NULL without memory. */
static void *begin_work(Work *w, const Layout *a, const Statement *s, Team *team) {
    memset(w, 0, sizeof(*w));
    w->team = team && team->together ? team : NULL;
    w->layout = a;
    w->objective = (int)s->objective;
    w->entropic = (int)s->entropic_slack;
    w->l = rounded_up(a->variables);
    w->k = rounded_up(a->rows);
    w->paired = OBJECTIVES[w->objective].unit != ITSELF && are_paired(a);
    double *origin = (double *)64;
    void *block = zeroed_block((size_t)((char *)arrange(w, a, s, origin) - (char *)origin) + 64);
    if (!block) return NULL;
    arrange(w, a, s, block);
    /* What lies behind the last variable and row takes part in no sum. */
    for (int64_t j = a->variables; j < w->l; j++) {
        if (w->weights) w->weights[j] = 1.0;
    }
    for (int64_t i = a->rows; i < w->k; i++) {
        w->low[i] = -INFINITY;
        w->high[i] = INFINITY;
    }
    return block;
}
