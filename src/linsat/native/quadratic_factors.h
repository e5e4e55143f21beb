/* The factors of a full quadratic, the sums and the linear systems of its rounds: see quadratic.h.
 *
 * Compiled once per instruction set (kernel.h).
 */

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

/* Factors of H; 0, or the status that P asks for. `solved`: it is known to be what it should. */
static int V(prepare_quadratic)(Quadratic *q, int solved) {
    const int64_t l = q->layout->variables, w = q->w, m = q->m, ld = q->ld = w + m;
    symmetrise(q);
    const double largest = largest_diagonal(q->P, q->n, l), rounding = q->metric ? 0.0 : NEGATIVE * largest;
    q->shift = 0.0;
    if (q->rank && !solved && largest > 0 && !V(is_definite)(q, rounding)) return NOT_FINITE;
    V(reduce_P)(q);
    if (!V(factor_H)(q, 0.0)) {
        if (q->metric || (!q->rank && largest > 0 && !V(is_definite)(q, rounding))) return NOT_FINITE;
        const double own = largest_diagonal(q->H, w, q->z);
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
    const Changes changed = state_instance(&q->it, q->layout, s, scores, NULL, 0, n, first);
    if (changed.status) {
        q->ready = 0;
        return changed.status;
    }
    const int own = s->values.step || s->parameters[0].step;
    const int fresh = first || !q->ready, alike = list_equations(q) && !fresh, same = list_constraints(q, own ? binding : NULL) && alike;
    if (fresh || s->values.step) read_coefficients(q);
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
        UNROLL
        for (int b = 0; b < 4 * BLOCK; b++) sums[b] = V(load)(from + h + b * LANES);
        for (int64_t e = 0; e < count; e++) {
            const double *row = matrix + (list ? list[e] : e) * width + h, factor = factors[e];
            UNROLL
            for (int b = 0; b < 4 * BLOCK; b++) sums[b] += factor * V(load)(row + b * LANES);
        }
        UNROLL
        for (int b = 0; b < 4 * BLOCK; b++) V(store)(to + h + b * LANES, sums[b]);
    }
    for (; h < width; h += 8) {
        vec sums[BLOCK];
        UNROLL
        for (int b = 0; b < BLOCK; b++) sums[b] = V(load)(from + h + b * LANES);
        for (int64_t e = 0; e < count; e++) {
            const double *row = matrix + (list ? list[e] : e) * width + h, factor = factors[e];
            UNROLL
            for (int b = 0; b < BLOCK; b++) sums[b] += factor * V(load)(row + b * LANES);
        }
        UNROLL
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
