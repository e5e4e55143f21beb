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
 *
 * Included by core.c once per instruction set.
 */

#define Quadratic V(Quadratic)

#ifndef LINSAT_QUADRATIC
#define LINSAT_QUADRATIC
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
#endif

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
static double *V(arrange_quadratic)(Quadratic *q, const Layout *a, int64_t bounded, double *at) {
    const int64_t l = a->variables, k = a->rows, n = rounded_up(l), m = rounded_up(k + bounded + 8), ld = n + m, tail = rounded_up(k);
    int64_t equal = 0;
    for (int64_t i = 0; i < k; i++) equal += a->senses[i] == EQUAL;
    equal = rounded_up(equal < l ? equal : l);
    q->layout = a;
    q->n = n;
    at = V(arrange_instance)(&q->it, a, at);
    q->stated = q->it.parameters[0] = V(take)(&at, l * l);
    q->P = V(take)(&at, l * n);
    q->A = V(take)(&at, k * n);
    q->columns = V(take)(&at, l * k);
    q->G = V(take)(&at, (equal + 1) * (n + tail));
    q->F = V(take)(&at, equal * n);
    q->H = V(take)(&at, n * n);
    q->wide = V(take)(&at, equal * (equal + 2 * n));
    q->S = V(take)(&at, ld * ld);
    q->R = V(take)(&at, m * m);
    q->W = V(take)(&at, m * m);
    q->packed = V(take)(&at, TILE * (ld + 8));
    double **all[] = {&q->S_inverse, &q->S_size, &q->y, &q->W_inverse, &q->W_size};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) *all[i] = V(take)(&at, ld + 16);
    q->part = V(take)(&at, n + tail);
    double **variables[] = {&q->c, &q->x, &q->r, &q->Px, &q->pulled};
    for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++) *variables[i] = V(take)(&at, n);
    double **constraints[] = {&q->unit, &q->low, &q->high, &q->least, &q->most, &q->lambda, &q->value, &q->base, &q->d, &q->ends, &q->rhs, &q->floor, &q->ceiling};
    for (size_t i = 0; i < sizeof(constraints) / sizeof(*constraints); i++) *constraints[i] = V(take)(&at, m + 8);
    double **rows[] = {&q->duals, &q->values, &q->sizes, &q->side, &q->mu, &q->scale};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) *rows[i] = V(take)(&at, tail);
    int32_t **both[] = {&q->equation, &q->basic, &q->other, &q->place};
    for (size_t i = 0; i < sizeof(both) / sizeof(*both); i++) *both[i] = (int32_t *)V(take)(&at, (n > tail ? n : tail) / 2 + 8);
    int32_t **whole[] = {&q->row, &q->variable, &q->list};
    for (size_t i = 0; i < sizeof(whole) / sizeof(*whole); i++) *whole[i] = (int32_t *)V(take)(&at, m / 2 + 8);
    q->state = (int8_t *)V(take)(&at, m / 8 + 8);
    q->before = (int8_t *)V(take)(&at, m / 8 + 8);
    q->next = (int8_t *)V(take)(&at, m / 8 + 8);
    return at;
}

INLINE double V(number_at)(Numbers from, int64_t j) {
    return from.single ? ((const float *)from.at)[j * from.stride] : ((const double *)from.at)[j * from.stride];
}

static void *V(begin_quadratic)(Quadratic *q, const Layout *a, const Statement *s, Team *team) {
    memset(q, 0, sizeof(*q));
    q->team = team->together ? team : NULL;
    double *origin = (double *)64;
    int64_t bounded = 0;
    for (int64_t j = 0; j < a->variables; j++)
        bounded += s->lower.step || s->upper.step || isfinite(V(number_at)(s->lower, j)) || isfinite(V(number_at)(s->upper, j));
    void *block = zeroed_block((size_t)((char *)V(arrange_quadratic)(q, a, bounded, origin) - (char *)origin) + 64);
    if (!block) return NULL;
    V(arrange_quadratic)(q, a, bounded, block);
    q->metric = s->objective == METRIC;
    return block;
}

/* ---- factors ---- */

/* Which hard equalities there are; returns whether that is as before. */
static int V(list_equations)(Quadratic *q) {
    int64_t e = 0;
    int same = 1;
    for (int64_t i = 0; i < q->layout->rows; i++)
        if (q->it.senses[i] == EQUAL && !V(is_soft)(&q->it, i)) same &= q->equation[e] == (int32_t)i, q->equation[e++] = (int32_t)i;
    same &= q->equations == e;
    q->equations = e;
    return same;
}

/* The same of the other constraints. Where it is known what binds, for one
 * instance alone, it is these. */
static int V(list_constraints)(Quadratic *q, const uint8_t *binding) {
    const Layout *a = q->layout;
    const Instance *it = &q->it;
    const uint8_t *free_ = binding, *active = binding ? binding + 2 * a->variables : NULL;
    int64_t g = 0;
    int same = 1;
#define PUT(i, j) same &= q->row[g] == (int32_t)(i) && q->variable[g] == (int32_t)(j), q->row[g] = (int32_t)(i), q->variable[g++] = (int32_t)(j)
    for (int64_t i = 0; i < a->rows; i++)
        if ((it->senses[i] != EQUAL || V(is_soft)(it, i)) && (!binding || active[i])) PUT(i, -1);
    for (int64_t j = 0; j < a->variables; j++)
        if (binding ? !free_[j] : isfinite(it->lower[j]) || isfinite(it->upper[j])) PUT(-1, j);
    q->count = g;
    while (g % 8) PUT(-1, -1);
#undef PUT
    same &= q->m == g;
    q->m = g;
    return same;
}

/* to = Z'from: (w) of (n) */
static void V(reduce)(const Quadratic *q, const double *from, double *restrict to) {
    for (int64_t e = 0; e < q->z; e++) to[e] = from[q->other[e]];
    memset(to + q->z, 0, (q->w - q->z) * sizeof(double));
    for (int64_t p = 0; p < q->rank; p++)
        if (from[q->basic[p]] != 0.0) V(add_product)(to, to, q->F + p * q->w, -from[q->basic[p]], q->w);
}

/* B, N, [B^-1 E, B^-1], F, and the other rows of A Z. */
static void V(eliminate_equations)(Quadratic *q) {
    const int64_t l = q->layout->variables, n = q->n, ld = n + rounded_up(q->layout->rows);
    q->rank = q->z = 0;
    memset(q->place, 0, l * sizeof(int32_t));
    for (int64_t e = 0; e < q->equations; e++) {
        double *row = q->G + q->rank * ld, largest = 0.0, size = 0.0;
        int64_t pivot = 0;
        memcpy(row, q->A + q->equation[e] * n, n * sizeof(double));
        memset(row + n, 0, (ld - n) * sizeof(double));
        row[n + e] = 1.0;
        for (int64_t j = 0; j < l; j++) size = fabs(row[j]) > size ? fabs(row[j]) : size;
        q->scale[e] = size > 0 ? 1.0 / size : 1.0;
        for (int64_t p = 0; p < q->rank; p++)
            if (row[q->basic[p]] != 0.0) V(add_product)(row, row, q->G + p * ld, -row[q->basic[p]], ld), row[q->basic[p]] = 0.0;
        for (int64_t j = 0; j < l; j++)
            if (fabs(row[j]) > largest) largest = fabs(row[j]), pivot = j;
        if (!(largest > DEPENDENT * size)) continue;
        const double over = 1.0 / row[pivot];
        for (int64_t h = 0; h < ld; h += LANES) V(store)(row + h, over * V(load)(row + h));
        row[pivot] = 1.0;
        for (int64_t p = 0; p < q->rank; p++) {
            double *above = q->G + p * ld;
            if (above[pivot] != 0.0) V(add_product)(above, above, row, -above[pivot], ld), above[pivot] = 0.0;
        }
        q->basic[q->rank++] = (int32_t)pivot;
        q->place[pivot] = (int32_t)-q->rank;
    }
    for (int64_t j = 0; j < l; j++)
        if (q->place[j] >= 0) q->place[j] = (int32_t)q->z, q->other[q->z++] = (int32_t)j;
    q->w = rounded_up(q->z);
    for (int64_t p = 0; p < q->rank; p++)
        for (int64_t e = 0; e < q->w; e++) q->F[p * q->w + e] = e < q->z ? q->G[p * ld + q->other[e]] : 0.0;
    for (int64_t i = 0, e = 0; i < q->layout->rows; i++) {
        if (e < q->equations && q->equation[e] == i) {
            e++;
            continue;
        }
        V(reduce)(q, q->A + i * n, q->part);
        for (int64_t f = 0; f < q->z; f++) q->columns[f * q->layout->rows + i] = q->part[f];
    }
}

/* to += Z from */
static void V(expand)(const Quadratic *q, const double *from, double *restrict to) {
    for (int64_t e = 0; e < q->z; e++) to[q->other[e]] += from[e];
    for (int64_t p = 0; p < q->rank; p++) to[q->basic[p]] -= V(dot)(q->F + p * q->w, from, q->w);
}

/* H = P_NN - F'K - K'F with K = P_BN - P_BB F / 2 */
static void V(reduce_P)(Quadratic *q) {
    const int64_t n = q->n, w = q->w, rank = q->rank, left = rounded_up(rank), ld = left + 2 * w;
    double *K = q->wide + left, *F = K + w;
    for (int64_t e = 0; e < w; e++) {
        double *to = q->H + e * w;
        const int64_t from = e & ~(int64_t)7;
        const double *row = e < q->z ? q->P + q->other[e] * n : NULL;
        for (int64_t f = from; f < w; f++) to[f] = row && f < q->z ? row[q->other[f]] : 0.0;
    }
    for (int64_t p = 0; p < rank; p++) {
        const double *row = q->P + q->basic[p] * n;
        for (int64_t o = 0; o < left; o++) q->wide[p * ld + o] = o < rank ? row[q->basic[o]] : 0.0;
        for (int64_t e = 0; e < w; e++) K[p * ld + e] = e < q->z ? row[q->other[e]] : 0.0;
        memcpy(F + p * ld, q->F + p * w, w * sizeof(double));
    }
    for (int64_t h = 0; h < w && rank; h += 8)
        for (int64_t g = 0; g < rank; g += 4) V(small_product)(K + g * ld + h, ld, q->wide + g, F + h, ld, rank, -0.5);
    for (int64_t h = 0; h < w && rank; h += 8)
        for (int64_t g = 0; g < h + 8; g += 4) {
            V(small_product)(q->H + g * w + h, w, F + g, K + h, ld, rank, -1.0);
            V(small_product)(q->H + g * w + h, w, K + g, F + h, ld, rank, -1.0);
        }
}

/* Whether P + shift is definite; S is lost. */
static int V(is_definite)(Quadratic *q, double shift) {
    const int64_t l = q->layout->variables, n = q->n;
    for (int64_t j = 0; j < n; j++) {
        const int64_t from = j & ~(int64_t)7;
        double *row = q->S + j * n;
        if (j < l) memcpy(row + from, q->P + j * n + from, (n - from) * sizeof(double));
        else memset(row + from, 0, (n - from) * sizeof(double));
        row[j] = q->S_size[j] = j < l ? row[j] + shift : 1.0;
    }
    return !V(cholesky)(q->team, q->S, n, n, q->S_size, q->S_inverse, q->packed);
}

/* U, N and -T in S; returns whether H + shift is definite. */
static int V(factor_H)(Quadratic *q, double shift) {
    const int64_t z = q->z, w = q->w, ld = q->ld, k = q->layout->rows;
    double *S = q->S;
    for (int64_t e = 0; e < w; e++) {
        const int64_t from = e & ~(int64_t)7;
        double *row = S + e * ld, *of_M = row + w;
        memcpy(row + from, q->H + e * w + from, (w - from) * sizeof(double));
        row[e] = q->S_size[e] = e < z ? row[e] + shift : 1.0;
        for (int64_t g = 0; g < ld - w; g++) of_M[g] = e < z && q->row[g] >= 0 ? q->columns[e * k + q->row[g]] : 0.0;
    }
    for (int64_t g = w; g < ld; g++) {
        const int64_t from = g & ~(int64_t)7, j = q->variable[g - w];
        memset(S + g * ld + from, 0, (ld - from) * sizeof(double));
        if (j >= 0 && q->place[j] >= 0) S[q->place[j] * ld + g] = 1.0;
        for (int64_t e = 0; e < z && j >= 0 && q->place[j] < 0; e++) S[e * ld + g] = -q->F[(-1 - q->place[j]) * w + e];
    }
    int definite = !V(cholesky)(q->team, S, ld, w, q->S_size, q->S_inverse, q->packed);
    for (int64_t e = 0; e < z && definite; e++)
        definite = shift > 0 || 1.0 >= NEARLY_SINGULAR * q->S_size[e] * q->S_inverse[e] * q->S_inverse[e];
    return definite;
}

/* The symmetric part of P, in blocks of eight. */
static void V(symmetrise)(Quadratic *q) {
    const int64_t l = q->layout->variables, n = q->n;
    for (int64_t from = 0; from < l; from += 8)
        for (int64_t at = from; at < l; at += 8)
            for (int64_t i = from; i < from + 8 && i < l; i++)
                for (int64_t j = at > i ? at : i; j < at + 8 && j < l; j++)
                    q->P[i * n + j] = q->P[j * n + i] = 0.5 * (q->stated[i * l + j] + q->stated[j * l + i]);
}

static void V(read_coefficients)(Quadratic *q) {
    const Layout *a = q->layout;
    memset(q->A, 0, a->rows * q->n * sizeof(double));
    for (int64_t e = 0; e < a->entries; e++)
        q->A[a->order[a->entry_row[e]] * q->n + a->entry_col[e]] += q->it.values[a->entry[e]];
}

/* The largest entry on a diagonal. */
static double V(largest_diagonal)(const double *matrix, int64_t ld, int64_t count) {
    double largest = 0.0;
    for (int64_t j = 0; j < count; j++) largest = fabs(matrix[j * ld + j]) > largest ? fabs(matrix[j * ld + j]) : largest;
    return largest;
}

/* Factors of H; 0, or the status that P asks for. `solved`: it is known to be what it should. */
static int V(prepare_quadratic)(Quadratic *q, int solved) {
    const int64_t l = q->layout->variables, w = q->w, m = q->m, ld = q->ld = w + m;
    V(symmetrise)(q);
    const double largest = V(largest_diagonal)(q->P, q->n, l), rounding = q->metric ? 0.0 : NEGATIVE * largest;
    q->shift = 0.0;
    if (q->rank && !solved && largest > 0 && !V(is_definite)(q, rounding)) return NOT_FINITE;
    V(reduce_P)(q);
    if (!V(factor_H)(q, 0.0)) {
        if (q->metric || (!q->rank && largest > 0 && !V(is_definite)(q, rounding))) return NOT_FINITE;
        const double own = V(largest_diagonal)(q->H, w, q->z);
        q->shift = SMALL_SHIFT * (own > 0 ? own : 1.0);
        if (!V(factor_H)(q, q->shift)) return NOT_FINITE;
    }
    for (int64_t g = 0; g < m; g++) {
        const double size = -q->S[(w + g) * ld + w + g];
        q->unit[g] = size > 1e-290 ? 1.0 / sqrt(size) : 1.0;
    }
    for (int64_t e = 0; e < q->z; e++)
        for (int64_t g = 0; g < m; g++) q->S[e * ld + w + g] *= q->unit[g];
    for (int64_t g = 0; g < m; g++) {
        double *to = q->R + g * m;
        const double *from = q->S + (w + g) * ld + w, own = q->unit[g];
        for (int64_t h = g & ~(int64_t)7; h < m; h++) to[h] = -own * q->unit[h] * from[h];
        for (int64_t h = 0; h < g; h++) to[h] = q->R[h * m + g]; /* all of it, so that its rows can be added */
        to[g] += LIFT;
        if (q->row[g] < 0 && q->variable[g] < 0) to[g] = 1.0;
    }
    return 0;
}

/* The numbers of instance n, with the factors that follow from them; 0, or the status that they ask for. */
static int V(state_quadratic)(Quadratic *q, const Statement *s, const double *scores, const uint8_t *binding, int64_t n, int first) {
    const Changes changed = V(state_instance)(&q->it, q->layout, s, scores, NULL, 0, n, first);
    if (changed.status) {
        q->ready = 0;
        return changed.status;
    }
    const int own = s->values.step || s->parameters[0].step;
    const int fresh = first || !q->ready, alike = V(list_equations)(q) && !fresh, same = V(list_constraints)(q, own ? binding : NULL) && alike;
    if (fresh || s->values.step) V(read_coefficients)(q);
    if (!alike || s->values.step) V(eliminate_equations)(q);
    if (!same || own) {
        const int status = V(prepare_quadratic)(q, binding != NULL);
        q->ready = !status;
        if (status) return status;
    }
    for (int64_t e = 0; e < q->equations; e++) q->side[e] = q->it.side[q->equation[e]];
    return 0;
}

/* ---- sums ---- */

/* to = from + the sum of factors times rows of a matrix, those of a list or all: sums stay in registers. */
static void V(add_multiples)(double *to, const double *from, const double *matrix, int64_t width, const int32_t *list, const double *factors,
                        int64_t count) {
    int64_t h = 0;
    for (; h + 32 <= width; h += 32) {
        vec sums[4 * BLOCK];
        for (int b = 0; b < 4 * BLOCK; b++) sums[b] = V(load)(from + h + b * LANES);
        for (int64_t e = 0; e < count; e++) {
            const double *row = matrix + (list ? list[e] : e) * width + h, factor = factors[e];
            for (int b = 0; b < 4 * BLOCK; b++) sums[b] += factor * V(load)(row + b * LANES);
        }
        for (int b = 0; b < 4 * BLOCK; b++) V(store)(to + h + b * LANES, sums[b]);
    }
    for (; h < width; h += 8) {
        vec sums[BLOCK];
        for (int b = 0; b < BLOCK; b++) sums[b] = V(load)(from + h + b * LANES);
        for (int64_t e = 0; e < count; e++) {
            const double *row = matrix + (list ? list[e] : e) * width + h, factor = factors[e];
            for (int b = 0; b < BLOCK; b++) sums[b] += factor * V(load)(row + b * LANES);
        }
        for (int b = 0; b < BLOCK; b++) V(store)(to + h + b * LANES, sums[b]);
    }
}

static void V(times_P)(const Quadratic *q, const double *x, double *to) {
    memset(to, 0, q->n * sizeof(double));
    V(add_multiples)(to, to, q->P, q->n, NULL, x, q->layout->variables);
}

/* M' lambda + E' mu into `pulled` */
static void V(pull_quadratic)(Quadratic *q, const double *lambda) {
    memset(q->pulled, 0, q->n * sizeof(double));
    for (int64_t g = 0; g < q->count; g++) {
        if (lambda[g] == 0.0) continue;
        if (q->variable[g] >= 0) q->pulled[q->variable[g]] += lambda[g] * q->unit[g];
        else if (q->row[g] >= 0) V(add_product)(q->pulled, q->pulled, q->A + q->row[g] * q->n, lambda[g] * q->unit[g], q->n);
    }
    for (int64_t e = 0; e < q->equations; e++)
        if (q->mu[e] != 0.0) V(add_product)(q->pulled, q->pulled, q->A + q->equation[e] * q->n, q->mu[e], q->n);
}

/* M x in units */
static void V(values_of)(const Quadratic *q, const double *x, double *to) {
    for (int64_t g = 0; g < q->m; g++) {
        if (q->variable[g] >= 0) to[g] = q->unit[g] * x[q->variable[g]];
        else to[g] = q->row[g] < 0 ? 0.0 : q->unit[g] * V(dot)(q->A + q->row[g] * q->n, x, q->n);
    }
}

/* r = c - P x + M' lambda + E' mu, and M x */
static void V(remainder)(Quadratic *q, const double *c, const double *x, const double *lambda) {
    V(times_P)(q, x, q->Px);
    V(pull_quadratic)(q, lambda);
    for (int64_t j = 0; j < q->n; j++) q->r[j] = c[j] - q->Px[j] + q->pulled[j];
    V(values_of)(q, x, q->value);
}

/* E x = side by variables of B alone; returns whether they move. */
static int V(meet_equations)(Quadratic *q, double *x) {
    const int64_t tail = rounded_up(q->layout->rows), ld = q->n + tail;
    int moved = 0;
    memset(q->part, 0, tail * sizeof(double));
    for (int64_t e = 0; e < q->equations; e++) {
        q->part[e] = q->side[e] - V(dot)(q->A + q->equation[e] * q->n, x, q->n);
        moved |= q->part[e] != 0.0;
    }
    for (int64_t p = 0; p < q->rank && moved; p++) x[q->basic[p]] += V(dot)(q->G + p * ld + q->n, q->part, tail);
    return moved;
}

/* mu such that r is 0 in B; what that changes, and then `remainder`. */
static void V(balance)(Quadratic *q) {
    const int64_t tail = rounded_up(q->layout->rows), ld = q->n + tail;
    memset(q->part, 0, tail * sizeof(double));
    for (int64_t p = 0; p < q->rank; p++) V(add_product)(q->part, q->part, q->G + p * ld + q->n, -q->r[q->basic[p]], tail);
    for (int64_t e = 0; e < q->equations; e++) {
        const double *row = q->A + q->equation[e] * q->n, own = q->part[e];
        q->mu[e] += own;
        for (int64_t j = 0; j < q->n; j += LANES) {
            const vec pull = own * V(load)(row + j);
            V(store)(q->pulled + j, V(load)(q->pulled + j) + pull);
            V(store)(q->r + j, V(load)(q->r + j) + pull);
        }
    }
}

/* By how much E x misses its sides. */
static double V(missed)(const Quadratic *q, const double *x) {
    double off = 0.0;
    for (int64_t e = 0; e < q->equations; e++) {
        const double here = fabs(V(dot)(q->A + q->equation[e] * q->n, x, q->n) - q->side[e]) * q->scale[e];
        const double size = here / (1.0 + fabs(q->side[e]) * q->scale[e]);
        off = size > off ? size : off;
    }
    return off;
}

/* ---- systems ---- */

/* The factor of those that bind. */
static void V(factor_binding)(Quadratic *q) {
    const int64_t m = q->m;
    int64_t count = 0;
    for (int64_t g = 0; g < q->count; g++)
        if (q->state[g] == AT_LOW || q->state[g] == AT_HIGH) q->list[count++] = (int32_t)g;
    q->bind = count;
    const int64_t wide = rounded_up(count);
    for (int64_t g = 0; g < count; g++) {
        double *to = q->W + g * wide;
        const double *from = q->R + q->list[g] * m;
        for (int64_t h = g; h < count; h++) to[h] = from[q->list[h]];
        for (int64_t h = count; h < wide; h++) to[h] = 0.0;
        q->W_size[g] = to[g];
    }
    for (int64_t g = count; g < wide; g++) { /* padding */
        memset(q->W + g * wide, 0, wide * sizeof(double));
        q->W[g * wide + g] = q->W_size[g] = 1.0;
    }
    if (count) V(cholesky)(q->team, q->W, wide, count, q->W_size, q->W_inverse, q->packed);
    memcpy(q->before, q->state, q->m);
}

/* y = [U'^-1 Z'r; what M dx lacks but for d]: first half of a system. */
static void V(begin_system)(Quadratic *q) {
    const int64_t w = q->w, m = q->m;
    V(reduce)(q, q->r, q->y);
    for (int64_t g = 0; g < m; g++) q->y[w + g] = -q->value[g];
    V(solve_forward)(q->S, q->ld, q->z, q->S_inverse, q->y);
    for (int64_t g = 0; g < m; g++) q->base[g] = -q->y[w + g];
}

/* base += R d of one constraint */
INLINE void V(add_constraint)(const Quadratic *q, double *to, int64_t g, double d) {
    V(add_product)(to, to, q->R + g * q->m, d, q->m);
}

/* d of those that bind, such that `value` + R d is `target` there. */
static void V(solve_binding)(Quadratic *q, const double *value, const double *target) {
    const int64_t wide = rounded_up(q->bind);
    memset(q->rhs, 0, (wide + 8) * sizeof(double));
    for (int64_t g = 0; g < q->bind; g++) q->rhs[g] = target[q->list[g]] - value[q->list[g]];
    if (q->bind) {
        V(solve_forward)(q->W, wide, q->bind, q->W_inverse, q->rhs);
        V(solve_back)(q->W, wide, q->bind, q->W_inverse, q->rhs);
    }
    for (int64_t g = 0; g < q->bind; g++) q->d[q->list[g]] = q->rhs[g];
}

/* d as if LIFT were not there, but for LIFT^2: one more solve for LIFT d, which costs less than another round. */
static void V(undo_lift)(Quadratic *q) {
    const int64_t wide = rounded_up(q->bind);
    if (q->bind <= 0) return; /* there is no factor */
    memset(q->rhs, 0, (wide + 8) * sizeof(double));
    for (int64_t e = 0; e < q->bind; e++) q->rhs[e] = LIFT * q->d[q->list[e]];
    V(solve_forward)(q->W, wide, q->bind, q->W_inverse, q->rhs);
    V(solve_back)(q->W, wide, q->bind, q->W_inverse, q->rhs);
    for (int64_t e = 0; e < q->bind; e++) q->d[q->list[e]] += q->rhs[e];
}

/* x += dx */
static void V(end_system)(Quadratic *q, double *x) {
    V(undo_lift)(q);
    for (int64_t g = 0; g < q->m; g++) q->y[q->w + g] = -q->d[g];
    V(solve_back)(q->S, q->ld, q->z, q->S_inverse, q->y);
    V(expand)(q, q->y, x);
}

/* ---- what binds ---- */

/* What a constraint with this lambda and this value should do. */
INLINE int8_t V(corrected)(const Quadratic *q, int64_t g, double lambda, double value, double reach) {
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

/* ---- the dual method: one constraint after another ---- */

/* The factor of the list with one more constraint, at its end. */
static void V(append)(Quadratic *q, int32_t g) {
    const int64_t count = q->bind++, m = q->m;
    const double *row = q->R + g * m;
    double pivot = row[g], *W = q->W;
    for (int64_t e = 0; e < count; e++) q->rhs[e] = row[q->list[e]];
    for (int64_t e = 0; e < count; e++) {
        const double value = q->rhs[e] * q->W_inverse[e];
        V(add_product)(q->rhs + e + 1, q->rhs + e + 1, W + e * m + e + 1, -value, count - e - 1);
        W[e * m + count] = value;
        pivot -= value * value;
    }
    pivot = pivot > 0.1 * LIFT ? pivot : 0.1 * LIFT;
    W[count * m + count] = sqrt(pivot);
    q->W_inverse[count] = 1.0 / sqrt(pivot);
    q->list[count] = g;
}

/* The factor without its constraint number p: rotations make it triangular again. */
static void V(remove_one)(Quadratic *q, int64_t p) {
    const int64_t count = --q->bind, m = q->m;
    double *W = q->W;
    for (int64_t e = p; e < count; e++) q->list[e] = q->list[e + 1];
    for (int64_t e = 0; e <= count; e++) memmove(W + e * m + (e > p ? e - 1 : p), W + e * m + (e > p ? e : p + 1), (count - (e > p ? e - 1 : p)) * sizeof(double));
    for (int64_t e = p; e < count; e++) {
        double *upper = W + e * m, *below = upper + m;
        const double length = hypot(upper[e], below[e]), c = upper[e] / length, d = below[e] / length;
        for (int64_t h = e; h < count; h++) {
            const double first = upper[h], second = below[h];
            upper[h] = c * first + d * second;
            below[h] = c * second - d * first;
        }
        q->W_inverse[e] = 1.0 / upper[e];
    }
}

/* rhs becomes R_WW^-1 rhs */
static void V(solve_listed)(const Quadratic *q) {
    const int64_t count = q->bind, m = q->m;
    double *y = q->rhs;
    for (int64_t e = 0; e < count; e++) {
        y[e] *= q->W_inverse[e];
        V(add_product)(y + e + 1, y + e + 1, q->W + e * m + e + 1, -y[e], count - e - 1);
    }
    for (int64_t e = count - 1; e >= 0; e--) y[e] = (y[e] - V(dot)(q->W + e * m + e + 1, y + e + 1, count - e - 1)) * q->W_inverse[e];
}

/* By how much a constraint that is not in the list lies beyond its end; the sign is the way its multiplier is to go. */
INLINE double V(beyond)(const Quadratic *q, int64_t g, double value) {
    const double low = q->low[g], high = q->high[g];
    switch (q->state[g]) {
    case IDLE: return value < low ? low - value : value > high ? high - value : 0.0;
    case AT_PRICE_UP: return value > low ? low - value : 0.0;
    case AT_PRICE_DOWN: return value < high ? high - value : 0.0;
    default: return 0.0;
    }
}

/* How far the multiplier of g, going this way, is from where it has to stop: at its price, at 0, or nowhere. */
INLINE double V(way_to_go)(const Quadratic *q, int64_t g, double lambda, double way) {
    const int8_t state = q->state[g];
    const int either = q->low[g] == q->high[g], up = state == AT_LOW, down = state == AT_HIGH;
    const double most = either || up || state == IDLE ? q->most[g] : 0.0, least = either || down || state == IDLE ? q->least[g] : 0.0;
    const double room = way > 0 ? most - lambda : lambda - least;
    return room > 0 ? room / fabs(way) : 0.0;
}

/* Goldfarb and Idnani's: the constraint that is farthest beyond its end gets a multiplier, and others lose theirs on the way
 * when they reach 0 or their price. Every step increases the dual, so it ends. */
static int V(add_one_by_one)(Quadratic *q, int64_t most, int64_t *steps) {
    const int64_t count = q->count;
    double *value = q->value, *change = q->ends;
    q->bind = 0;
    memcpy(value, q->base, q->m * sizeof(double));
    for (int64_t g = 0; g < count; g++) {
        const int always = q->low[g] == q->high[g];
        q->state[g] = always ? AT_LOW : IDLE;
        q->d[g] = always ? 0.0 : -q->lambda[g];
        if (always) V(append)(q, (int32_t)g);
        else if (q->d[g] != 0.0) V(add_constraint)(q, value, g, q->d[g]);
    }
    for (int64_t e = 0; e < q->bind; e++) q->rhs[e] = q->low[q->list[e]] - value[q->list[e]];
    V(solve_listed)(q);
    for (int64_t e = 0; e < q->bind; e++) {
        q->d[q->list[e]] = q->rhs[e];
        V(add_constraint)(q, value, q->list[e], q->rhs[e]);
    }
    for (int64_t e = q->bind - 1; e >= 0; e--) { /* a soft row that holds only beyond its price does not */
        const int64_t g = q->list[e];
        const double lambda = q->lambda[g] + q->d[g], kept = lambda > q->most[g] ? q->most[g] : lambda < q->least[g] ? q->least[g] : lambda;
        if (kept == lambda) continue;
        V(add_constraint)(q, value, g, kept - lambda);
        q->d[g] = kept - q->lambda[g];
        q->state[g] = kept > 0 ? AT_PRICE_UP : AT_PRICE_DOWN;
        V(remove_one)(q, e);
    }
    for (int64_t turn = 0; turn < most; turn++) {
        int64_t worst = -1;
        double far = 0.0;
        for (int64_t e = 0; e < q->bind; e++) { /* what prices have moved */
            const int64_t g = q->list[e];
            const double end = q->state[g] == AT_HIGH ? q->high[g] : q->low[g];
            if (turn == 0 && fabs(end - value[g]) > EXCHANGED * (1.0 + fabs(end))) return 0;
        }
        for (int64_t g = 0; g < count; g++) {
            const double off = V(beyond)(q, g, value[g]), end = off > 0 ? q->low[g] : q->high[g];
            if (off != 0.0 && fabs(off) > EXCHANGED * (1.0 + fabs(end)) && fabs(off) > far) far = fabs(off), worst = g;
        }
        if (worst < 0) break;
        const double end = V(beyond)(q, worst, value[worst]) > 0 ? q->low[worst] : q->high[worst];
        const double way = end > value[worst] ? 1.0 : -1.0;
        for (int blocked = 1; blocked; ++*steps) {
            if (*steps > most) return 0;
            const double *row = q->R + worst * q->m;
            for (int64_t e = 0; e < q->bind; e++) q->rhs[e] = -way * row[q->list[e]];
            V(solve_listed)(q);
            memset(change, 0, q->m * sizeof(double));
            V(add_constraint)(q, change, worst, way);
            for (int64_t e = 0; e < q->bind; e++) V(add_constraint)(q, change, q->list[e], q->rhs[e]);
            double step = (end - value[worst]) / change[worst];
            if (!(way * change[worst] > 0) || !isfinite(step)) return 0;
            int64_t stops = -1; /* number in the list, or `bind`: its own price */
            const double own = V(way_to_go)(q, worst, q->lambda[worst] + q->d[worst], way);
            if (q->state[worst] == IDLE ? own < step : 0) step = own, stops = q->bind;
            if (q->state[worst] == AT_PRICE_UP || q->state[worst] == AT_PRICE_DOWN) { /* back from its price, at most to 0 */
                const double back = fabs(q->lambda[worst] + q->d[worst]);
                if (q->low[worst] != q->high[worst] && back < step) step = back, stops = q->bind;
            }
            for (int64_t e = 0; e < q->bind; e++) {
                const int64_t g = q->list[e];
                const double room = V(way_to_go)(q, g, q->lambda[g] + q->d[g], q->rhs[e]);
                if (q->rhs[e] != 0.0 && room < step) step = room, stops = e;
            }
            V(add_product)(value, value, change, step, q->m);
            q->d[worst] += way * step;
            for (int64_t e = 0; e < q->bind; e++) q->d[q->list[e]] += step * q->rhs[e];
            blocked = stops >= 0 && stops < q->bind;
            if (blocked) {
                const int64_t g = q->list[stops];
                const double lambda = q->lambda[g] + q->d[g];
                const int priced = q->rhs[stops] > 0 ? q->most[g] < INFINITY && lambda > 0 : q->least[g] > -INFINITY && lambda < 0;
                const double kept = !priced ? 0.0 : lambda > 0 ? q->most[g] : q->least[g];
                q->d[g] = kept - q->lambda[g];
                q->state[g] = !priced ? IDLE : lambda > 0 ? AT_PRICE_UP : AT_PRICE_DOWN;
                V(remove_one)(q, stops);
            } else if (stops >= 0) {
                const int8_t was = q->state[worst];
                q->state[worst] = was != IDLE ? IDLE : way > 0 ? AT_PRICE_UP : AT_PRICE_DOWN;
                q->d[worst] = (was != IDLE ? 0.0 : way > 0 ? q->most[worst] : q->least[worst]) - q->lambda[worst];
            } else {
                const double lambda = q->lambda[worst] + q->d[worst];
                q->state[worst] = q->low[worst] == q->high[worst] || end == q->low[worst] ? AT_LOW : AT_HIGH;
                if (q->low[worst] != q->high[worst] && lambda * (q->state[worst] == AT_LOW ? 1 : -1) < 0) q->state[worst] = IDLE;
                V(append)(q, (int32_t)worst);
            }
        }
    }
    q->bind = -1; /* its factor has another shape */
    return 1;
}

/* What every constraint should do, into `next`; returns how many do not. */
static int64_t V(correct)(Quadratic *q, double reach) {
    int64_t wrong = 0;
    if (q->priced) {
        for (int64_t g = 0; g < q->count; g++) {
            q->next[g] = V(corrected)(q, g, q->lambda[g] + q->d[g], q->value[g], reach);
            wrong += q->next[g] != q->state[g];
        }
        return wrong;
    }
    memcpy(q->next, q->state, q->m);
    for (int64_t e = 0; e < q->bind; e++) { /* the same, for two kinds of constraints only: those that bind, and all */
        const int64_t g = q->list[e];
        if (V(corrected)(q, g, q->lambda[g] + q->d[g], q->value[g], reach) == IDLE) q->next[g] = IDLE, wrong++;
    }
    for (int64_t from = 0; from < q->m; from += 8) {
        mask beyond = {0};
        for (int64_t g = from; g < from + 8; g += LANES) {
            const vec value = V(load)(q->value + g);
            beyond |= (mask)(value < V(load)(q->floor + g)) | (mask)(value > V(load)(q->ceiling + g));
        }
        int any = 0;
        for (int b = 0; b < LANES; b++) any |= beyond[b] != 0;
        for (int64_t g = from; g < from + 8 && any; g++) {
            if (q->state[g] != IDLE) continue;
            q->next[g] = V(corrected)(q, g, 0.0, q->value[g], reach);
            wrong += q->next[g] != IDLE;
        }
    }
    return wrong;
}

/* What is likely to bind: the multipliers that a few sweeps of one after another leave (Gauss, Seidel; Hildreth). */
static void V(guess_binding)(Quadratic *q) {
    double *value = q->value, *own = q->d;
    memcpy(value, q->base, q->m * sizeof(double));
    memset(own, 0, q->m * sizeof(double));
    for (int sweep = 0, changes = 1; sweep < SWEEPS && changes; sweep++) {
        changes = 0; /* of what binds */
        for (int64_t g = 0; g < q->count; g++) {
            const double rest = value[g] - own[g]; /* T has ones on its diagonal */
            if (rest >= q->low[g] && rest <= q->high[g] && own[g] == 0.0) continue;
            double wanted = rest < q->low[g] ? q->low[g] - rest : rest > q->high[g] ? q->high[g] - rest : 0.0;
            wanted = wanted > q->most[g] ? q->most[g] : wanted < q->least[g] ? q->least[g] : wanted;
            const double step = wanted - own[g], *row = q->R + g * q->m;
            changes |= (wanted != 0.0) != (own[g] != 0.0);
            for (int64_t h = 0; h < q->m; h += LANES) V(store)(value + h, V(load)(value + h) + step * V(load)(row + h));
            own[g] = wanted;
        }
    }
    for (int64_t g = 0; g < q->count; g++) {
        if (own[g] > 0) q->state[g] = own[g] < q->most[g] ? AT_LOW : AT_PRICE_UP;
        else if (own[g] < 0) q->state[g] = own[g] <= q->least[g] ? AT_PRICE_DOWN : q->low[g] == q->high[g] ? AT_LOW : AT_HIGH;
    }
}

/* d such that every constraint does what it should; returns whether that was found. */
static int V(exchange_binding)(Quadratic *q, int64_t most, int64_t *steps) {
    int64_t fewest = q->count + 1;
    int patience = PATIENT_EXCHANGES, factored = q->bind >= 0 && !memcmp(q->state, q->before, q->m);
    const int begun = q->priced || V(largest)(q->lambda, q->m) > 0;
    for (;;) {
        if (!factored) V(factor_binding)(q), ++*steps;
        factored = 0;
        double *value = q->value; /* M x is in base already */
        const double *from = q->base;
        double reach = 1.0;
        memset(q->d, 0, q->m * sizeof(double));
        for (int64_t g = 0; g < q->count && begun; g++) {
            const int8_t state = q->state[g];
            if (state == AT_LOW || state == AT_HIGH) continue;
            q->d[g] = (state == AT_PRICE_UP ? q->most[g] : state == AT_PRICE_DOWN ? q->least[g] : 0.0) - q->lambda[g];
            if (q->d[g] == 0.0) continue;
            V(add_product)(value, from, q->R + g * q->m, q->d[g], q->m);
            from = value;
        }
        for (int64_t e = 0; e < q->bind; e++) q->ends[q->list[e]] = q->state[q->list[e]] == AT_LOW ? q->low[q->list[e]] : q->high[q->list[e]];
        V(solve_binding)(q, from, q->ends);
        V(add_multiples)(value, from, q->R, q->m, q->list, q->rhs, q->bind);
        for (int64_t e = 0; e < q->bind; e++) {
            const double size = fabs(q->lambda[q->list[e]] + q->rhs[e]);
            reach = size > reach ? size : reach;
        }
        const int64_t wrong = V(correct)(q, reach);
        if (!wrong && isfinite(reach)) return 1;
        patience = wrong < fewest ? PATIENT_EXCHANGES : patience - 1;
        fewest = wrong < fewest ? wrong : fewest;
        if (patience < 0 || !isfinite(reach)) return V(add_one_by_one)(q, most, steps);
        memcpy(q->state, q->next, q->count);
    }
}

/* ---- one instance ---- */

/* Ends of the constraints and of their multipliers, in units. */
static void V(read_ends)(Quadratic *q) {
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
            if (V(is_soft)(it, q->row[g])) q->priced = 1, q->least[g] = -ends.over / unit, q->most[g] = ends.under / unit;
        }
        q->floor[g] = q->low[g] - EXCHANGED * (1.0 + fabs(q->low[g]));
        q->ceiling[g] = q->high[g] + EXCHANGED * (1.0 + fabs(q->high[g]));
    }
}

/* Where the iteration begins: nothing binds but what has one place only, and rows with a dual from before. */
static void V(begin_rounds)(Quadratic *q, const double *start) {
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
static void V(set_to_bounds)(Quadratic *q) {
    const Instance *it = &q->it;
    for (int64_t g = 0; g < q->count; g++) {
        const int32_t j = q->variable[g];
        if (j < 0) continue;
        if (q->state[g] == AT_LOW) q->x[j] = it->lower[j];
        if (q->state[g] == AT_HIGH) q->x[j] = it->upper[j];
    }
}

/* The worst of what is left: stationarity of the variables that do not bind, and constraints that bind. */
static double V(left_over)(const Quadratic *q) {
    double size = 1e-300, worst = 0.0, off = V(missed)(q, q->x);
    for (int64_t j = 0; j < q->layout->variables; j++) {
        const double own = fabs(q->c[j]) + fabs(q->Px[j]) + fabs(q->pulled[j]);
        size = own > size ? own : size;
        worst = fabs(q->r[j]) > worst ? fabs(q->r[j]) : worst;
    }
    for (int64_t g = 0; g < q->count; g++) {
        if (q->state[g] != AT_LOW && q->state[g] != AT_HIGH) continue;
        const double end = q->state[g] == AT_HIGH ? q->high[g] : q->low[g];
        const double here = fabs(q->value[g] - end) / (1.0 + fabs(end));
        off = here > off ? here : off;
    }
    return worst / size + off;
}

/* Rounds until x rests; returns whether they ended. `begun`: it is known already what may bind. */
static int V(run_rounds)(Quadratic *q, int begun, int64_t most, int64_t *steps) {
    double last = INFINITY;
    int tired = 0;
    memcpy(q->r, q->c, q->n * sizeof(double)); /* x and lambda are 0 */
    memset(q->value, 0, q->m * sizeof(double));
    for (int round = 0; round < ROUNDS; round++) {
        if (V(meet_equations)(q, q->x)) V(remainder)(q, q->c, q->x, q->lambda);
        V(begin_system)(q);
        if (!round && !begun) V(guess_binding)(q);
        const int64_t before = *steps;
        if (!V(exchange_binding)(q, most, steps)) return 0;
        V(end_system)(q, q->x);
        for (int64_t g = 0; g < q->count; g++) q->lambda[g] += q->d[g];
        for (int64_t g = 0; g < q->count; g++)
            if (q->state[g] == IDLE) q->lambda[g] = 0.0;
            else if (q->state[g] == AT_PRICE_UP) q->lambda[g] = q->most[g];
            else if (q->state[g] == AT_PRICE_DOWN) q->lambda[g] = q->least[g];
        V(set_to_bounds)(q);
        V(remainder)(q, q->c, q->x, q->lambda);
        V(balance)(q);
        const double left = V(left_over)(q);
        if (!isfinite(left)) return 0;
        if (left <= SETTLED) return 1;
        const int rests = *steps - before <= 1;
        tired = rests && !(left < 0.3 * last) ? tired + 1 : 0;
        if (tired && left < 1e-12) return 1;
        if (tired > 3) return left < 1e-9;
        last = left;
    }
    return last < 1e-9;
}

/* x in its box; duals of the rows and what binds, as `decided` has it. Returns whether x has moved. */
static int V(settle_quadratic)(Quadratic *q) {
    int moved = 0;
    Instance *it = &q->it;
    const Layout *a = q->layout;
    memset(it->free, 1, a->variables);
    memset(it->at_upper, 0, a->variables);
    memset(it->active, 0, 2 * a->rows);
    memset(q->duals, 0, a->rows * sizeof(double));
    const double rounding = 8 * DBL_EPSILON * V(largest)(q->x, q->n);
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
static double V(lost_in_pull)(const Quadratic *q, int64_t j) {
    double size = 0.0;
    for (int64_t i = 0; i < q->layout->rows; i++) size += fabs(q->duals[i] * q->A[i * q->n + j]);
    return ROW_ROUNDING * size;
}

/* The verdict of verdict.h: every hard row holds at x, and multipliers and distances leave no gap. A full P has no
 * terms of single variables: instead each of them is stationary to tolerance beyond rounding, or pushed to its bound. `moved`:
 * P x is not that of the last round. */
static int V(is_optimal)(Quadratic *q, int moved, double tol) {
    const Layout *a = q->layout;
    const Instance *it = &q->it;
    double gap = 0.0, size = 1.0;
    for (int64_t i = 0; i < a->rows; i++) {
        const double *row = q->A + i * q->n;
        vec sum = {0}, size_of_terms = {0};
        for (int64_t j = 0; j < q->n; j += LANES) {
            const vec term = V(load)(row + j) * V(load)(q->x + j);
            sum += term;
            size_of_terms += V(size_of)(term);
        }
        q->values[i] = V(sum_of)(sum);
        q->sizes[i] = V(sum_of)(size_of_terms);
    }
    for (int64_t i = 0; i < a->rows; i++) {
        const Ends ends = ends_of(it, i);
        const double dual = q->duals[i], off = V(outside)(&ends, q->values[i]);
        if (ends.over < INFINITY) {
            if (off > ROW_ROUNDING * (q->sizes[i] + fabs(it->rhs[i]))) gap += fabs(ends.lower > q->values[i] ? ends.under - dual : ends.over + dual) * off;
            else if (dual != 0.0) gap += fabs(dual) * fabs(q->values[i] - (dual > 0 ? ends.lower : ends.upper));
            continue;
        }
        if (!(off <= tol * (q->sizes[i] > 1.0 ? q->sizes[i] : 1.0))) return 0;
        if (dual != 0.0) gap += fabs(dual) * fabs(q->values[i] - (dual > 0 ? ends.lower : ends.upper));
    }
    if (moved) V(times_P)(q, q->x, q->Px);
    memset(q->pulled, 0, q->n * sizeof(double));
    for (int64_t i = 0; i < a->rows; i++)
        if (q->duals[i] != 0.0) V(add_product)(q->pulled, q->pulled, q->A + i * q->n, q->duals[i], q->n);
    for (int64_t j = 0; j < a->variables; j++) {
        const double r = q->c[j] - q->Px[j] + q->pulled[j], own = fabs(q->c[j]) + fabs(q->Px[j]) + fabs(q->pulled[j]);
        const int stays = !it->free[j] && (it->lower[j] == it->upper[j] || (it->at_upper[j] ? r >= 0 : r <= 0));
        size += fabs(q->c[j] * q->x[j]) + fabs(q->Px[j] * q->x[j]);
        if (stays) continue;
        if (!(fabs(r) <= tol * (1.0 + own)) && !(fabs(r) <= V(lost_in_pull)(q, j))) return 0;
        gap += fabs(r * q->x[j]);
    }
    return gap <= INTERIOR_GAP * tol * size;
}

/* The linear term of scores, which are in x: c. Returns whether all of it is finite. */
static int V(read_linear)(Quadratic *q, double *scores) {
    const int64_t l = q->layout->variables;
    int usable = 1;
    for (int64_t j = 0; j < l; j++) {
        if (scores[j] == -INFINITY && q->it.forbids) scores[j] = q->metric ? q->it.lower[j] : 0.0;
        usable &= isfinite(scores[j]) != 0;
    }
    memset(scores + l, 0, (q->n - l) * sizeof(double));
    if (q->metric) V(times_P)(q, scores, q->c);
    else memcpy(q->c, scores, l * sizeof(double));
    for (int64_t j = 0; j < l; j++) usable &= isfinite(q->c[j]) != 0;
    return usable;
}

static void V(forward_one_quadratic)(Quadratic *q, const Statement *s, const Solve *call, int64_t n, int first) {
    const Layout *a = q->layout;
    const int64_t l = a->variables;
    int64_t steps = 0;
    double *scores = q->x;
    V(read)(scores, call->scores, (int)call->single, n * l, l);
    int status = V(state_quadratic)(q, s, scores, NULL, n, first);
    if (!status && !V(read_linear)(q, scores)) status = NOT_FINITE;
    if (!status) {
        const int64_t most = call->max_steps < CONSTANTS.steps_before_interior ? call->max_steps : MOST_EXCHANGES;
        V(read_ends)(q);
        V(begin_rounds)(q, call->start ? call->start + n * a->rows : NULL);
        const int ended = V(run_rounds)(q, call->start != NULL, most, &steps);
        const int moved = V(settle_quadratic)(q);
        status = ended && V(is_optimal)(q, moved, call->tol) ? CONVERGED : steps >= call->max_steps ? STEP_LIMIT : STALLED;
        if (call->single && V(largest)(q->x, q->n) > FLT_MAX) status = NOT_FINITE;
    } else {
        for (int64_t j = 0; j < l; j++) q->x[j] = NAN;
        memset(q->duals, 0, a->rows * sizeof(double));
    }
    V(write)(call->x, q->x, (int)call->single, n * l, l);
    memcpy(call->duals + n * a->rows, q->duals, a->rows * sizeof(double));
    if (call->decided) memcpy(call->decided + n * V(decided_size)(a), q->it.decided, V(decided_size)(a));
    call->status[n] = status;
    if (status != CONVERGED) __atomic_fetch_add(call->unsolved, 1, __ATOMIC_RELAXED);
    call->steps[n] = steps;
    call->solver[n] = NEWTON;
}

static int V(forward_quadratic)(const Layout *a, const Statement *s, const Solve *call, Team *team) {
    Quadratic q;
    int64_t n = enter(team, call->count);
    if (n >= call->count) return 0;
    void *block = V(begin_quadratic)(&q, a, s, team);
    for (int first = 1; block && n < call->count; n = after(team, n), first = 0)
        V(forward_one_quadratic)(&q, s, call, n, first);
    leave(team);
    free_block(block);
    return block ? 0 : -1;
}

/* ---- gradients ---- */

/* Solve P v - M_W' lambda - E' mu = g, M_W v = target in units, E v = side, by the factors and a few refinements: v into
 * `to`. */
static void V(solve_saddle)(Quadratic *q, const double *g, const double *target, double *to) {
    const int64_t l = q->layout->variables, m = q->m;
    double last = INFINITY, size = 0.0;
    for (int64_t j = 0; j < l; j++) size = fabs(g[j]) > size ? fabs(g[j]) : size;
    memset(to, 0, q->n * sizeof(double));
    memset(q->lambda, 0, (m + 8) * sizeof(double));
    memset(q->mu, 0, q->equations * sizeof(double));
    memcpy(q->r, g, q->n * sizeof(double));
    memset(q->value, 0, m * sizeof(double));
    for (int round = 0; round < SADDLE_ROUNDS; round++) {
        if (V(meet_equations)(q, to)) V(remainder)(q, g, to, q->lambda);
        V(begin_system)(q);
        memset(q->d, 0, (m + 8) * sizeof(double));
        V(solve_binding)(q, q->base, target);
        V(end_system)(q, to);
        for (int64_t h = 0; h < q->count; h++) q->lambda[h] += q->d[h];
        for (int64_t h = 0; h < q->count; h++) /* exactly there */
            if (q->variable[h] >= 0 && q->state[h]) to[q->variable[h]] = target[h] / q->unit[h];
        V(remainder)(q, g, to, q->lambda);
        V(balance)(q);
        double left = V(missed)(q, to);
        for (int64_t j = 0; j < l; j++) left = fabs(q->r[j]) > left ? fabs(q->r[j]) : left;
        for (int64_t h = 0; h < q->count; h++) /* a constraint as well as a variable */
            if (q->state[h]) left = fabs(q->value[h] - target[h]) * q->unit[h] > left ? fabs(q->value[h] - target[h]) * q->unit[h] : left;
        if (left <= FINE * size || !(left < 0.5 * last)) break;
        last = left;
    }
}

/* Gradients of one instance; scores are those that were read. */
static void V(pull_back_quadratic)(Quadratic *q, const Pull *call, int64_t n, const uint8_t *decided, double *scores, Sums to) {
    const Layout *a = q->layout;
    const Instance *it = &q->it;
    const int64_t l = a->variables, k = a->rows;
    const uint8_t *free_ = decided, *at_upper = decided + l, *active = decided + 2 * l;
    const double *duals = call->duals + n * k, *of_duals = call->grad_duals ? call->grad_duals + n * k : NULL;
    double *v = q->S_size, *x = q->x, *g = q->c, *target = q->high, *w = q->low;
    const double *Pv = q->Px; /* as solve_saddle leaves it */
    memset(q->state, 0, q->m);
    for (int64_t h = 0; h < q->count; h++)
        if (q->row[h] >= 0 ? active[q->row[h]] : q->variable[h] >= 0 && !free_[q->variable[h]]) q->state[h] = AT_LOW;
    V(factor_binding)(q);
    if (to.values || to.parameters[0]) { /* x, from what binds */
        for (int64_t h = 0; h < q->count; h++) {
            const int32_t i = q->row[h], j = q->variable[h];
            target[h] = 0.0;
            if (j >= 0) target[h] = q->unit[h] * (at_upper[j] ? it->upper[j] : it->lower[j]);
            else if (i >= 0) target[h] = q->unit[h] * it->side[i];
            if (!isfinite(target[h])) target[h] = 0.0;
        }
        for (int64_t i = 0; i < k; i++) /* a soft row that is broken pulls with its price */
            if (!active[i] && duals[i] != 0.0) V(add_product)(q->c, q->c, q->A + i * q->n, duals[i], q->n);
        V(solve_saddle)(q, q->c, target, x);
    }
    memset(g, 0, q->n * sizeof(double));
    if (call->grad_x) V(read)(g, call->grad_x, (int)call->single, n * l, l);
    for (int64_t h = 0; h < q->m; h++) target[h] = of_duals && q->row[h] >= 0 && active[q->row[h]] ? -of_duals[q->row[h]] * q->unit[h] : 0.0;
    for (int64_t e = 0; e < q->equations; e++) q->side[e] = of_duals ? -of_duals[q->equation[e]] : 0.0;
    V(solve_saddle)(q, g, target, v);
    for (int64_t e = 0; e < q->equations && to.side; e++) to.side[q->equation[e]] -= q->mu[e];
    memset(w, 0, q->m * sizeof(double));
    for (int64_t h = 0; h < q->count; h++) {
        w[h] = q->state[h] ? -q->lambda[h] * q->unit[h] : 0.0;
        const int32_t i = q->row[h], j = q->variable[h];
        if (i >= 0 && to.side && !V(is_absent)(it, i)) to.side[i] += w[h];
        if (j >= 0 && q->state[h]) {
            if (at_upper[j] ? to.upper != NULL : to.lower != NULL) (at_upper[j] ? to.upper : to.lower)[j] += w[h];
        }
    }
    for (int64_t i = 0; i < k && to.price; i++) {
        if (active[i] || duals[i] == 0.0 || !V(is_soft)(it, i)) continue;
        const double way = duals[i] > 0 ? 1.0 : -1.0;
        to.price[i] += way * (V(dot)(q->A + i * q->n, v, q->n) + (of_duals ? of_duals[i] : 0.0));
    }
    if (to.values) {
        memset(q->sizes, 0, k * sizeof(double));
        for (int64_t h = 0; h < q->count; h++)
            if (q->row[h] >= 0) q->sizes[q->row[h]] = w[h];
        for (int64_t e = 0; e < q->equations; e++) q->sizes[q->equation[e]] = -q->mu[e];
        for (int64_t e = 0; e < a->entries; e++) {
            const int32_t i = a->order[a->entry_row[e]], j = a->entry_col[e];
            to.values[a->entry[e]] += duals[i] * v[j] - q->sizes[i] * x[j];
        }
    }
    if (to.parameters[0]) {
        double *u = q->pulled;
        for (int64_t j = 0; j < l; j++) u[j] = q->metric ? scores[j] - x[j] : -x[j];
        for (int64_t i = 0; i < l; i++) {
            double *row = to.parameters[0] + i * l;
            const double one = 0.5 * v[i], other = 0.5 * u[i];
            if (call->parameters[0].step)
                for (int64_t j = 0; j < l; j++) row[j] = one * u[j] + other * v[j];
            else
                for (int64_t j = 0; j < l; j++) row[j] += one * u[j] + other * v[j];
        }
    }
    if (!call->grad_scores) return;
    const double *from = v;
    if (q->metric) from = Pv;
    for (int64_t j = 0; j < l; j++) q->r[j] = V(score)(call->scores, (int)call->single, n * l + j) == -INFINITY ? 0.0 : from[j];
    V(write)(call->grad_scores, q->r, (int)call->single, n * l, l);
}

static void V(backward_one_quadratic)(Quadratic *q, const Statement *s, const Pull *call, int64_t n, double *scores, Sums to, int first) {
    const int64_t l = q->layout->variables;
    V(read)(scores, call->scores, (int)call->single, n * l, l);
    const uint8_t *decided = call->decided + n * call->decided_step;
    if (call->status[n] == CONVERGED && !V(state_quadratic)(q, s, scores, decided, n, first)) {
        if (to.values || to.parameters[0]) V(read_linear)(q, scores); /* else x is not needed */
        V(pull_back_quadratic)(q, call, n, decided, scores, to);
        return;
    }
    const size_t wide = call->single ? sizeof(float) : sizeof(double);
    if (call->grad_scores) memset((char *)call->grad_scores + n * l * wide, 0, l * wide);
    if (to.parameters[0] && call->parameters[0].step) memset(to.parameters[0], 0, l * l * sizeof(double));
}

static int V(backward_quadratic)(const Layout *a, const Statement *s, const Pull *call, Team *team) {
    Quadratic q;
    int64_t t = enter(team, team->blocks);
    if (t >= team->blocks) return 0;
    void *memory = V(begin_quadratic)(&q, a, s, team);
    double *scores = aligned_block(64, (q.n + 8) * sizeof(double));
    const Wanted wanted = list_gradients(a, s, call);
    for (int first = 1; memory && scores && t < team->blocks; t = after(team, t)) {
        const int64_t stop = (t + 1) * team->block < call->count ? (t + 1) * team->block : call->count;
        for (int64_t n = t * team->block; n < stop; n++) {
            V(backward_one_quadratic)(&q, s, call, n, scores, V(places)(&wanted, team, t, n), first);
            first &= call->status[n] != CONVERGED;
        }
    }
    leave(team);
    const int failed = !memory || !scores;
    free_block(memory);
    free_block(scores);
    return failed ? -1 : 0;
}
