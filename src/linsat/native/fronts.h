/* A sparse symmetric matrix as L D L', front by front: the numbers for an `Analysis`.
 *
 *     front = coefficients of its columns + what its children left;   the columns are eliminated;   the rest is left to
 *     the parent, on a stack
 *
 * Pivots are taken as they come, of either sign: of a quasi-definite matrix [P A'; A -E] every order has them. One that is
 * zero or no number is dropped, its unknown stays zero, and it is counted. The factor holds for each pivot 1 / d, then
 * its row of L'.
 *
 * Compiled once per instruction set (kernel.h).
 */

/* S[g, h] -= left' right over `count` pivots from `skip` on, for rows from..end of the upper triangle, by tiles. Both are
 * multiples of four, or the rows behind them are empty; tiles that begin before `from` write what nobody reads. */
static void V(reduce_rows)(const Fronts *w, int64_t ld, int64_t from, int64_t end, int64_t skip, int64_t count) {
    const int64_t start = from & ~(int64_t)7;
    for (int64_t h = start; h < ld; h += 8)
        for (int64_t g = start; g < end && g < h + 8; g += 4)
            V(small_product)(w->front + g * ld + h, ld, w->left + ((g >> 3) * PANEL + skip) * 8 + (g & 7),
                             w->right + ((h >> 3) * PANEL + skip) * 8, 8, count, -1.0);
}

/* The first p rows of a front are eliminated, their part of the factor goes to `to`; rows q .. m are left. Returns whether
 * time is up. */
static int V(eliminate)(const Fronts *w, int64_t p, int64_t q, int64_t m, double *to) {
    const int64_t ld = rounded_up(m);
    double *F = w->front;
    for (int64_t from = 0; from < p; from += PANEL) {
        const int64_t end = from + PANEL < p ? from + PANEL : p;
        if (m > 4 * PANEL && nanoseconds() > w->until) return 1;
        for (int64_t block = from; block < end; block += 8) {
            const int64_t last = block + 8 < end ? block + 8 : end;
            double over[8];
            for (int64_t g = block; g < last; g++) {
                const double *row = F + g * ld, pivot = row[g];
                const int kind = !isfinite(pivot) || fabs(pivot) < SMALLEST_PIVOT ? 2 : pivot < 0;
                w->pivots[kind]++;
                over[g - block] = kind < 2 ? 1.0 / pivot : 0.0;
                for (int64_t e = g + 1; e < last; e++) {
                    double *other = F + e * ld;
                    const double factor = row[e] * over[g - block];
                    for (int64_t h = block; h < ld; h += LANES) V(store)(other + h, V(load)(other + h) - factor * V(load)(row + h));
                }
                *to++ = over[g - block];
                for (int64_t h = g + 1; h < p; h++) *to++ = row[h] * over[g - block];
                for (int64_t h = q; h < m; h++) *to++ = row[h] * over[g - block];
            }
            for (int64_t h = block; h < ld; h += 8)
                for (int64_t g = block; g < last; g++)
                    for (int b = 0; b < 8; b += LANES) {
                        const int64_t at = ((h >> 3) * PANEL + g - from) * 8 + b;
                        const vec value = V(load)(F + g * ld + h + b);
                        V(store)(w->right + at, value);
                        V(store)(w->left + at, value * over[g - block]);
                    }
            if (last < end) V(reduce_rows)(w, ld, last, end, block - from, last - block);
        }
        V(reduce_rows)(w, ld, end < p ? end : q, m, 0, end - from);
    }
    return 0;
}

/* What a child left, added to a front of width ld. */
static void V(add_child)(const Analysis *a, const Fronts *w, int64_t child, const double *from, int64_t ld) {
    const int32_t *rows = a->rows + a->row_start[child];
    const int64_t r = a->row_start[child + 1] - a->row_start[child];
    for (int64_t i = 0; i < r; i++) {
        double *to = w->front + w->place[rows[i]] * ld;
        for (int64_t j = i; j < r; j++) to[w->place[rows[j]]] += *from++;
    }
}

/* The factor of coefficients in the order of elimination. Returns 0 or OUT_OF_TIME. */
static int V(factor_fronts)(const Analysis *a, const double *values, const Fronts *w, double *factor) {
    int64_t waiting = 0, used = 0; /* fronts and numbers on the stack */
    for (int64_t f = 0; f < a->fronts; f++) {
        const int64_t first = a->first[f], p = a->first[f + 1] - first, r = a->row_start[f + 1] - a->row_start[f];
        const int64_t q = (p + 3) & ~(int64_t)3, m = q + r, ld = rounded_up(m); /* empty rows and columns before q */
        const int32_t *rows = a->rows + a->row_start[f];
        double *F = w->front;
        if (f % 256 == 0 && nanoseconds() > w->until) return OUT_OF_TIME;
        memset(F, 0, m * ld * sizeof(double));
        for (int64_t i = 0; i < p; i++) w->place[first + i] = (int32_t)i;
        for (int64_t i = 0; i < r; i++) w->place[rows[i]] = (int32_t)(q + i);
        for (int64_t i = 0; i < p; i++)
            for (int64_t e = a->entry_start[first + i]; e < a->entry_start[first + i + 1]; e++)
                F[i * ld + w->place[a->entry_row[e]]] += values[e];
        for (int32_t c = 0; c < a->children[f]; c++) {
            const int64_t child = w->waiting[--waiting], left = a->row_start[child + 1] - a->row_start[child];
            used -= left * (left + 1) / 2;
            V(add_child)(a, w, child, w->stack + used, ld);
        }
        if (V(eliminate)(w, p, q, m, factor + a->begin[f])) return OUT_OF_TIME;
        for (int64_t i = q; i < m; i++, used += m - i + 1) memcpy(w->stack + used, F + i * ld + i, (m - i) * sizeof(double));
        w->waiting[waiting++] = (int32_t)f;
    }
    return 0;
}

/* x = (L D L')^-1 x, in the order of elimination; `work` has room for the rows of a front, where those are not few. */
static void V(substitute_fronts)(const Analysis *a, const double *factor, double *restrict x, double *restrict work) {
    for (int64_t f = 0; f < a->fronts; f++) {
        const int64_t first = a->first[f], p = a->first[f + 1] - first, r = a->row_start[f + 1] - a->row_start[f];
        const int32_t *rows = a->rows + a->row_start[f];
        const double *from = factor + a->begin[f];
        const int few = r <= FEW_ROWS;
        if (!few) memset(work, 0, r * sizeof(double));
        for (int64_t g = 0; g < p; from += p + r - g, g++) {
            double *own = x + first + g;
            const double value = -*own, *below = from + p - g;
            if (few) {
                for (int64_t h = 1; h < p - g; h++) own[h] += from[h] * value;
                for (int64_t i = 0; i < r; i++) x[rows[i]] += below[i] * value;
            } else {
                V(add_product)(own + 1, own + 1, from + 1, value, p - g - 1);
                V(add_product)(work, work, below, value, r);
            }
        }
        for (int64_t i = 0; i < r && !few; i++) x[rows[i]] += work[i];
    }
    for (int64_t f = a->fronts - 1; f >= 0; f--) {
        const int64_t first = a->first[f], p = a->first[f + 1] - first, r = a->row_start[f + 1] - a->row_start[f];
        const int32_t *rows = a->rows + a->row_start[f];
        const double *from = factor + a->begin[f + 1];
        const int few = r <= FEW_ROWS;
        for (int64_t i = 0; i < r; i++) work[i] = x[rows[i]];
        for (int64_t g = p - 1; g >= 0; g--) {
            double *own = x + first + g;
            from -= p + r - g;
            const double *below = from + p - g;
            double value = *own * *from;
            if (few) {
                for (int64_t h = 1; h < p - g; h++) value -= from[h] * own[h];
                for (int64_t i = 0; i < r; i++) value -= below[i] * work[i];
            } else value -= V(dot)(from + 1, own + 1, p - g - 1) + V(dot)(below, work, r);
            *own = value;
        }
    }
}

INLINE double V(weighted_size)(const Analysis *a, const Equations *w, const double *v) {
    double most = 0.0;
    for (int64_t i = 0; i < a->size; i++) {
        const double size = fabs(w->weight[i] * v[i]);
        if (!(size <= most)) most = size; /* not a number, once it is there, stays */
    }
    return most;
}

/* to = rhs - K v for the coefficients without regularisation: their diagonal is given apart. Returns its size. */
static double V(residual_of)(const Analysis *a, const Equations *w, const double *v, double *to) {
    for (int64_t c = 0; c < a->size; c++) to[c] = w->rhs[c] - w->diagonal[c] * v[c];
    for (int64_t c = 0; c < a->size; c++) {
        double sum = 0.0;
        for (int64_t e = a->entry_start[c]; e < a->entry_start[c + 1]; e++) {
            const int32_t row = a->entry_row[e];
            if (row == c) continue;
            const double value = w->values[e];
            sum += value * v[row];
            to[row] -= value * v[c];
        }
        to[c] -= sum;
    }
    return V(weighted_size)(a, w, to);
}

/* Solve K v = rhs by the factor of a regularised K, refined until the weighted residual is `target` of that of the right-hand
 * side, or falls no longer. Returns its share. */
static double V(refine)(const Analysis *a, const double *factor, const Equations *w, double target, int64_t most) {
    const size_t bytes = a->size * sizeof(double);
    const double whole = V(weighted_size)(a, w, w->rhs) + SMALLEST_PIVOT;
    memcpy(w->v, w->rhs, bytes);
    V(substitute_fronts)(a, factor, w->v, w->rows);
    double size = V(residual_of)(a, w, w->v, w->rest);
    for (int64_t n = 0; n < most && size >= target * whole; n++) {
        V(substitute_fronts)(a, factor, w->rest, w->rows);
        for (int64_t i = 0; i < a->size; i++) w->better[i] = w->v[i] + w->rest[i];
        const double next = V(residual_of)(a, w, w->better, w->rest);
        if (!(next < size)) break;
        const int slow = next > SLOW * size;
        memcpy(w->v, w->better, bytes);
        size = next;
        if (slow) break;
    }
    return size / whole;
}
