/* A full quadratic: x of any instance, and its gradients.
 *
 *     minimise  x'Px / 2 - c'x     subject to    low <= M x <= high,        M the rows and a unit vector for each bounded variable
 *
 * c are the scores (QUADRATIC), or P times the scores (METRIC). Hard equalities leave M: Gauss-Jordan elimination of E x = f
 * has x_B = B^-1 f - F x_N of as many variables as there are independent rows, the largest coefficient of each, so that with
 *
 *     x = x_f + Z z,     Z = [-F; 1],     H = Z'PZ,     the program is one in z, the variables N,
 *
 * and of equalities that depend on others no more is heard. What is known of P must hold for all of it all the same.
 * With lambda the multipliers, positive at `low`, negative at `high` and at most the price in size,
 * T = MZ (H + shift)^-1 (MZ)' and N = U'^-1 (MZ)' with U'U = H + shift: one Cholesky factorisation of
 * [H + shift, (MZ)'; MZ, 0] that stops after H has U, N and -T. Constraints are in units in which T has ones on its diagonal.
 *
 * The proximal method of multipliers: from x that satisfies the equalities, and lambda, a solution of
 *
 *     (H + shift) dz = Z'r + Z'M' d,     r = c - P x + M' lambda + E' mu,     low <= M (x + Z dz) + LIFT d <= high,
 *     lambda + d complementary,          mu such that r_B = 0
 *
 * which has exactly one. Of the constraints those that bind are guessed, one system T_WW d_W = ... is solved, and what is
 * wrong in the guess is exchanged, all at once while ever fewer are wrong; else they are added one by one (Goldfarb and
 * Idnani, Math. Program. 27 (1983)). Where H is definite the shift is 0, and a second round is but a refinement. Where it is
 * singular the shift is small, and rounds go on until x rests. A variable whose bound binds is set to it.
 *
 * If P and the coefficients are shared, the factors are those of all instances. Gradients: the adjoint of
 *
 *     P x - M_W' lambda - E' mu = c,     M_W x = h,     E x = f
 *
 * by the same factors, for instances of their own those of what binds alone: with v that of x, w those of multipliers,
 * dL/dc = v, dL/dh = w, dL/dP = -(v x' + x v') / 2, dL/dM = lambda v' - w x'. What binds is what `decided` says: of
 * variables, those not free; of rows, the active ones.
 */

enum { IDLE = 0, AT_LOW = 1, AT_HIGH = -1, AT_PRICE_UP = 2, AT_PRICE_DOWN = -2 }; /* what a constraint does; UP: lambda = price */
enum { ROUNDS = 60, PATIENT_EXCHANGES = 2, MOST_EXCHANGES = 4000, SADDLE_ROUNDS = 8, SWEEPS = 5 };
#define LIFT 1e-9          /* on the diagonal of T, whose entries are 1 */
#define SMALL_SHIFT 1e-4   /* of the largest diagonal entry of a singular P */
#define NEGATIVE 1e-6      /* of that: an eigenvalue may be so far below 0 by rounding */
#define NEARLY_SINGULAR 1e-11
#define EXCHANGED 1e-11    /* beyond its end, or of the wrong sign, by more */
#define FINE 1e-11          /* what may be left of the equations of a gradient: nobody judges it to more digits */
#define SETTLED 1e-13      /* what is left of the equations is rounding */
#define AT_BOUND 1e-12     /* a variable as close to its bound, beyond the rounding of the largest, is there */
#define DEPENDENT 1e-11    /* of its largest coefficient: what may be left by rounding of a row that depends on others */

typedef struct {
    const Layout *layout;
    Team *team;
    Instance it;
    int metric, ready, priced; /* priced: some rows are soft */
    int64_t n, z, w, m, ld;  /* variables, rounded up; variables N, the same rounded up; constraints, and w + m: rounded up */
    int64_t count;           /* of constraints but for padding */
    int64_t equations, rank; /* hard equalities, and how many of them are independent */
    double shift;
    double *stated, *P, *A, *columns; /* (l, l) as given; (l, n) symmetric; (k, n) rows; (z, k) those of A Z by columns */
    double *G, *F, *H, *wide;       /* (k, n + k) [B^-1 E, B^-1]; (rank, w); (w, w); (rank, rank + 2 w) P_BB, P_BN, F */
    double *S, *S_inverse, *S_size; /* (ld, ld) U, N and -T */
    double *R;                      /* (m, m) T */
    double *W, *W_inverse, *W_size; /* those that bind */
    double *packed;
    double *c, *x, *r, *Px, *pulled, *y, *part;         /* (n), y: (ld), part: (n + k) */
    double *unit, *low, *high, *least, *most;           /* (m) units; ends; ends of lambda */
    double *lambda, *value, *base, *d, *ends, *rhs;     /* (m) */
    double *floor, *ceiling;                            /* (m) where a constraint is beyond its end */
    double *duals, *values, *sizes, *side, *mu, *scale; /* (k); of hard equalities: sides, multipliers, 1 / largest coefficient */
    int32_t *row, *variable, *list;                     /* (m) what a constraint is, -1: not that; those that bind */
    int32_t *equation, *basic, *other, *place;          /* (k) their rows; (n) B, N; where in N, or -1 - where in B */
    int8_t *state, *before, *next;
    int64_t bind;
} Quadratic;

/* `bounded`: variables that may have a bound. */
static double *arrange_quadratic(Quadratic *q, const Layout *a, int64_t bounded, double *at) {
    const int64_t l = a->variables, k = a->rows, n = rounded_up(l), m = rounded_up(k + bounded + 8), ld = n + m, tail = rounded_up(k);
    int64_t equal = 0;
    for (int64_t i = 0; i < k; i++) equal += a->senses[i] == EQUAL;
    equal = rounded_up(equal < l ? equal : l);
    q->layout = a;
    q->n = n;
    at = arrange_instance(&q->it, a, at);
    q->stated = q->it.parameters[0] = take(&at, l * l);
    q->P = take(&at, l * n);
    q->A = take(&at, k * n);
    q->columns = take(&at, l * k);
    q->G = take(&at, (equal + 1) * (n + tail));
    q->F = take(&at, equal * n);
    q->H = take(&at, n * n);
    q->wide = take(&at, equal * (equal + 2 * n));
    q->S = take(&at, ld * ld);
    q->R = take(&at, m * m);
    q->W = take(&at, m * m);
    q->packed = take(&at, TILE * (ld + 8));
    TAKE(&at, ld + 16, &q->S_inverse, &q->S_size, &q->y, &q->W_inverse, &q->W_size);
    q->part = take(&at, n + tail);
    TAKE(&at, n, &q->c, &q->x, &q->r, &q->Px, &q->pulled);
    TAKE(&at, m + 8, &q->unit, &q->low, &q->high, &q->least, &q->most, &q->lambda, &q->value, &q->base, &q->d, &q->ends, &q->rhs,
         &q->floor, &q->ceiling);
    TAKE(&at, tail, &q->duals, &q->values, &q->sizes, &q->side, &q->mu, &q->scale);
    int32_t **both[] = {&q->equation, &q->basic, &q->other, &q->place};
    for (size_t i = 0; i < sizeof(both) / sizeof(*both); i++) *both[i] = (int32_t *)take(&at, (n > tail ? n : tail) / 2 + 8);
    int32_t **whole[] = {&q->row, &q->variable, &q->list};
    for (size_t i = 0; i < sizeof(whole) / sizeof(*whole); i++) *whole[i] = (int32_t *)take(&at, m / 2 + 8);
    q->state = (int8_t *)take(&at, m / 8 + 8);
    q->before = (int8_t *)take(&at, m / 8 + 8);
    q->next = (int8_t *)take(&at, m / 8 + 8);
    return at;
}

static void *begin_quadratic(Quadratic *q, const Layout *a, const Statement *s, Team *team) {
    memset(q, 0, sizeof(*q));
    q->team = team->together ? team : NULL;
    double *origin = (double *)64;
    int64_t bounded = 0;
    for (int64_t j = 0; j < a->variables; j++)
        bounded += s->lower.step || s->upper.step || isfinite(number_at(s->lower, 0, j)) || isfinite(number_at(s->upper, 0, j));
    void *block = zeroed_block((size_t)((char *)arrange_quadratic(q, a, bounded, origin) - (char *)origin) + 64);
    if (!block) return NULL;
    arrange_quadratic(q, a, bounded, block);
    q->metric = s->objective == METRIC;
    return block;
}

/* ---- its constraints ---- */

/* Which hard equalities there are; returns whether that is as before. */
static int list_equations(Quadratic *q) {
    int64_t e = 0;
    int same = 1;
    for (int64_t i = 0; i < q->layout->rows; i++)
        if (q->it.senses[i] == EQUAL && !is_soft(&q->it, i)) same &= q->equation[e] == (int32_t)i, q->equation[e++] = (int32_t)i;
    same &= q->equations == e;
    q->equations = e;
    return same;
}

/* The same of the other constraints. Where it is known what binds, for one
 * instance alone, it is these. */
static int list_constraints(Quadratic *q, const uint8_t *binding) {
    const Layout *a = q->layout;
    const Instance *it = &q->it;
    const uint8_t *free_ = binding, *active = binding ? binding + 2 * a->variables : NULL;
    int64_t g = 0;
    int same = 1;
#define PUT(i, j) same &= q->row[g] == (int32_t)(i) && q->variable[g] == (int32_t)(j), q->row[g] = (int32_t)(i), q->variable[g++] = (int32_t)(j)
    for (int64_t i = 0; i < a->rows; i++)
        if ((it->senses[i] != EQUAL || is_soft(it, i)) && (!binding || active[i])) PUT(i, -1);
    for (int64_t j = 0; j < a->variables; j++)
        if (binding ? !free_[j] : isfinite(it->lower[j]) || isfinite(it->upper[j])) PUT(-1, j);
    q->count = g;
    while (g % 8) PUT(-1, -1);
#undef PUT
    same &= q->m == g;
    q->m = g;
    return same;
}

/* The symmetric part of P, in blocks of eight. */
static void symmetrise(Quadratic *q) {
    const int64_t l = q->layout->variables, n = q->n;
    for (int64_t from = 0; from < l; from += 8)
        for (int64_t at = from; at < l; at += 8)
            for (int64_t i = from; i < from + 8 && i < l; i++)
                for (int64_t j = at > i ? at : i; j < at + 8 && j < l; j++)
                    q->P[i * n + j] = q->P[j * n + i] = 0.5 * (q->stated[i * l + j] + q->stated[j * l + i]);
}

static void read_coefficients(Quadratic *q) {
    const Layout *a = q->layout;
    memset(q->A, 0, a->rows * q->n * sizeof(double));
    for (int64_t e = 0; e < a->entries; e++)
        q->A[a->order[a->entry_row[e]] * q->n + a->entry_col[e]] += q->it.values[e];
}

/* The largest entry on a diagonal. */
static double largest_diagonal(const double *matrix, int64_t ld, int64_t count) {
    double largest = 0.0;
    for (int64_t j = 0; j < count; j++) largest = fabs(matrix[j * ld + j]) > largest ? fabs(matrix[j * ld + j]) : largest;
    return largest;
}

/* Ends of the constraints and of their multipliers, in units. */
static void read_ends(Quadratic *q) {
    const Instance *it = &q->it;
    q->priced = 0;
    for (int64_t g = 0; g < q->m; g++) {
        const double unit = q->unit[g];
        q->low[g] = -INFINITY, q->high[g] = INFINITY, q->least[g] = -INFINITY, q->most[g] = INFINITY;
        if (q->variable[g] >= 0) {
            q->low[g] = it->lower[q->variable[g]] * unit;
            q->high[g] = it->upper[q->variable[g]] * unit;
        } else if (q->row[g] >= 0) {
            const Ends ends = ends_of(it, q->row[g]);
            q->low[g] = ends.lower * unit;
            q->high[g] = ends.upper * unit;
            if (is_soft(it, q->row[g])) q->priced = 1, q->least[g] = -ends.over / unit, q->most[g] = ends.under / unit;
        }
        q->floor[g] = q->low[g] - EXCHANGED * (1.0 + fabs(q->low[g]));
        q->ceiling[g] = q->high[g] + EXCHANGED * (1.0 + fabs(q->high[g]));
    }
}

/* Where the iteration begins: nothing binds but what has one place only, and rows with a dual from before. */
static void begin_rounds(Quadratic *q, const double *start) {
    memset(q->lambda, 0, (q->m + 8) * sizeof(double));
    memset(q->mu, 0, q->equations * sizeof(double));
    memset(q->d, 0, (q->m + 8) * sizeof(double));
    memset(q->x, 0, q->n * sizeof(double));
    memset(q->state, 0, q->m);
    q->bind = -1;
    for (int64_t g = 0; g < q->count; g++) {
        const double dual = start && q->row[g] >= 0 ? start[q->row[g]] : 0.0;
        if (q->low[g] == q->high[g] || (dual > 0 && q->low[g] > -INFINITY)) q->state[g] = AT_LOW;
        else if (dual < 0 && q->high[g] < INFINITY) q->state[g] = AT_HIGH;
    }
}

/* Variables whose bound binds are there; the others are moved into their box. */
static void set_to_bounds(Quadratic *q) {
    const Instance *it = &q->it;
    for (int64_t g = 0; g < q->count; g++) {
        const int32_t j = q->variable[g];
        if (j < 0) continue;
        if (q->state[g] == AT_LOW) q->x[j] = it->lower[j];
        if (q->state[g] == AT_HIGH) q->x[j] = it->upper[j];
    }
}

/* ---- what they should do ---- */

/* What a constraint with this lambda and this value should do. */
INLINE int8_t corrected(const Quadratic *q, int64_t g, double lambda, double value, double reach) {
    const double low = q->low[g], high = q->high[g], slight = EXCHANGED * reach;
    const int equal = low == high;
    switch (q->state[g]) {
    case IDLE:
        if (value < low - EXCHANGED * (1.0 + fabs(low))) return AT_LOW;
        return value > high + EXCHANGED * (1.0 + fabs(high)) ? AT_HIGH : IDLE;
    case AT_LOW:
        if (lambda > q->most[g] + slight) return AT_PRICE_UP;
        if (equal) return lambda < q->least[g] - slight ? AT_PRICE_DOWN : AT_LOW;
        return lambda < -slight ? IDLE : AT_LOW;
    case AT_HIGH:
        if (lambda < q->least[g] - slight) return AT_PRICE_DOWN;
        return lambda > slight ? IDLE : AT_HIGH;
    case AT_PRICE_UP: return value > low + EXCHANGED * (1.0 + fabs(low)) ? AT_LOW : AT_PRICE_UP;
    default: return value < high - EXCHANGED * (1.0 + fabs(high)) ? (equal ? AT_LOW : AT_HIGH) : AT_PRICE_DOWN;
    }
}

/* By how much a constraint that is not in the list lies beyond its end; the sign is the way its multiplier is to go. */
INLINE double beyond(const Quadratic *q, int64_t g, double value) {
    const double low = q->low[g], high = q->high[g];
    switch (q->state[g]) {
    case IDLE: return value < low ? low - value : value > high ? high - value : 0.0;
    case AT_PRICE_UP: return value > low ? low - value : 0.0;
    case AT_PRICE_DOWN: return value < high ? high - value : 0.0;
    default: return 0.0;
    }
}

/* How far the multiplier of g, going this way, is from where it has to stop: at its price, at 0, or nowhere. */
INLINE double way_to_go(const Quadratic *q, int64_t g, double lambda, double way) {
    const int8_t state = q->state[g];
    const int either = q->low[g] == q->high[g], up = state == AT_LOW, down = state == AT_HIGH;
    const double most = either || up || state == IDLE ? q->most[g] : 0.0, least = either || down || state == IDLE ? q->least[g] : 0.0;
    const double room = way > 0 ? most - lambda : lambda - least;
    return room > 0 ? room / fabs(way) : 0.0;
}

/* ---- what comes of it ---- */

/* x in its box; duals of the rows and what binds, as `decided` has it. Returns whether x has moved. */
static int settle_quadratic(Quadratic *q) {
    int moved = 0;
    Instance *it = &q->it;
    const Layout *a = q->layout;
    memset(it->free, 1, a->variables);
    memset(it->at_upper, 0, a->variables);
    memset(it->active, 0, 2 * a->rows);
    memset(q->duals, 0, a->rows * sizeof(double));
    double rounding = 0.0;
    for (int64_t j = 0; j < q->n; j++) rounding = fabs(q->x[j]) > rounding ? fabs(q->x[j]) : rounding;
    rounding *= 8 * DBL_EPSILON;
    for (int64_t e = 0; e < q->equations; e++) it->active[q->equation[e]] = 1, q->duals[q->equation[e]] = q->mu[e];
    for (int64_t g = 0; g < q->count; g++) {
        const int32_t i = q->row[g], j = q->variable[g];
        if (i >= 0) {
            double dual = q->lambda[g] * q->unit[g];
            const double least = it->dual_lower[i], most = it->dual_upper[i];
            if (q->state[g] == AT_PRICE_UP) dual = most;
            if (q->state[g] == AT_PRICE_DOWN) dual = least;
            q->duals[i] = dual = dual < least ? least : dual > most ? most : dual;
            it->active[i] = q->state[g] != IDLE && dual > least && dual < most;
        }
        if (j < 0) continue;
        const double lower = it->lower[j], upper = it->upper[j];
        double x = q->x[j];
        x = x < lower + AT_BOUND * (1.0 + fabs(lower)) + rounding ? lower : x;
        x = x > upper - AT_BOUND * (1.0 + fabs(upper)) - rounding ? upper : x;
        moved |= q->x[j] != x;
        q->x[j] = x;
        it->free[j] = x > lower && x < upper;
        it->at_upper[j] = x >= upper && upper > lower;
    }
    return moved;
}

/* What rounding may hide of the pull of all rows on a variable: large multipliers of rows that are nearly parallel cancel. */
static double lost_in_pull(const Quadratic *q, int64_t j) {
    double size = 0.0;
    for (int64_t i = 0; i < q->layout->rows; i++) size += fabs(q->duals[i] * q->A[i * q->n + j]);
    return CONSTANTS.row_lost * size;
}
