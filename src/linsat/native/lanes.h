/* Many tiny instances: Newton's method and its gradient for LANES instances at once, one in each lane of every vector.
 *
 * Compiled once per instruction set (kernel.h). The method is that of iterate.h and pull_back.h, with these differences:
 *
 *   - A step is taken without a look at theta where the slope at its end says enough: theta is convex, so a slope that
 *     still falls proves that theta has fallen; one that rises a little (WOLFE of the slope at the start) is near the
 *     minimum along the step. Theta decides elsewhere.
 *   - H = U' D^-1 U, without roots, row by row.
 *   - Euclidean instances without a box begin at duals found by letting rows in one by one.
 *   - Whatever needs more than LANE_STEPS steps, or more than these few rules, is left to iterate.h.
 *
 * Lanes never mix. Every decision is a mask, and a lane that waits is evaluated again at the same duals, which gives the
 * same bits; so an instance's answer does not depend on its neighbours. Where half of the lanes have ended they take the
 * next instances, while the others go on. Lanes without an instance hold a copy of another. Arrays are of vectors: number
 * i of all LANES instances, then number i + 1.
 */

#define WOLFE 0.1

/* Everything at some duals, as State. */
typedef struct {
    vec *mu, *u, *p, *z, *r, error;
} LanePoint;

/* Where the iteration of each lane is. */
typedef struct {
    vec T, damping, ridge, stride, length, tries, steps, passes;
    mask running, arrived, searching, cooled, reusable; /* arrived: which is no verdict */
    mask reuse, polish, snap, ready;                    /* the last steps of a lane, one after the other */
} V(Progress);

/* LANES instances with their numbers folded, as Work, and room to work in. */
typedef struct {
    const Layout *layout;
    int folded, objective, entropic, weighted, shifted, has_slack, constant; /* shifted: an offset; constant: H is the same at all duals */
    int32_t *column, *row, *place;                      /* entries by variable: where each begins, row, Layout's entry */
    int32_t *row_start, *row_entry, *row_column;        /* by row: where each begins, entry, variable */
    int two;                                            /* every variable is in two rows */
    int32_t *member;                                    /* (groups, variables) the row of each, or `rows` */
    int32_t *list, count, lead;                         /* rows that move in some lane, and how many of them lead */
    V(Progress) at;
    vec tau, reach, alpha;
    mask bounded, affine, topped;                       /* lanes with bounded duals; with r affine in mu; with upper bounds of x */
    vec *coefficients, *row_values;                     /* c by variable, and again by row */
    vec *linear, *base, *unit, *upper, *gain, *offset, *least, *most, *first, *second, *scale; /* as in Work */
    vec *b, *s, *low, *high, *whole, *taken, *totals;
    vec *given, *side, *right, *stated_low, *stated_high; /* as stated: coefficients by row, side, B, bounds of multipliers */
    mask *fixed, *active, *moving, *negative, *even;    /* moving: rows that take part in a step; even: all coefficients are 1 */
    LanePoint now, next;
    vec *d, *curvature, *direction, *rhs, *scratch, *q; /* curvature: the diagonal that slacks add to H */
    vec *ratios, *sums;                                 /* (rows + 1) of sweeps that multiply */
    vec *H, *diagonal, *U, *inverse;                    /* U of the list, in rows of `rows` numbers; 1 / D */
    vec damping, ridge;                                 /* what H was factored with */
} Group;

/* ---- vectors as lanes ---- */

#if LANES == 4
INLINE int V(bits_of)(mask which) { return _mm256_movemask_pd((__m256d)which); }
#elif LANES == 8
INLINE int V(bits_of)(mask which) { return _mm512_movepi64_mask((__m512i)which); }
#else
INLINE int V(bits_of)(mask which) {
    int bits = 0;
    for (int n = 0; n < LANES; n++) bits |= (which[n] != 0) << n;
    return bits;
}
#endif

INLINE int V(any)(mask which) { return V(bits_of)(which) != 0; }
INLINE vec V(limited)(vec value, vec low, vec high) { return V(smaller)(V(larger)(value, low), high); }

/* The lanes whose bits are set. */
INLINE mask V(lanes_of)(int bits) {
    mask which = {0};
    for (int n = 0; n < LANES; n++) which[n] = bits >> n & 1 ? -1 : 0;
    return which;
}

/* Number n of an array, where tables hold the place in bytes: one shift less for every number read. */
enum { V(WIDE) = sizeof(vec) };
INLINE vec V(at)(const vec *from, int32_t place) { return *(const vec *)((const char *)from + place); }

INLINE vec V(gather)(const double *const *from, int64_t at) {
    vec value = {0};
    for (int n = 0; n < LANES; n++) value[n] = from[n][at];
    return value;
}

INLINE mask V(gather_flags)(const uint8_t *const *from, int64_t at) {
    mask value = {0};
    for (int n = 0; n < LANES; n++) value[n] = from[n][at] ? -1 : 0;
    return value;
}


#if LANES >= 4
INLINE void V(transpose)(__m256d *a) {
    const __m256d b0 = _mm256_unpacklo_pd(a[0], a[1]), b1 = _mm256_unpackhi_pd(a[0], a[1]);
    const __m256d b2 = _mm256_unpacklo_pd(a[2], a[3]), b3 = _mm256_unpackhi_pd(a[2], a[3]);
    a[0] = _mm256_permute2f128_pd(b0, b2, 0x20);
    a[1] = _mm256_permute2f128_pd(b1, b3, 0x20);
    a[2] = _mm256_permute2f128_pd(b0, b2, 0x31);
    a[3] = _mm256_permute2f128_pd(b1, b3, 0x31);
}

/* Lanes 4 h to 4 h + 3. */
INLINE __m256d V(part_of_lanes)(vec value, int h) {
#if LANES == 8
    return h ? _mm512_extractf64x4_pd((__m512d)value, 1) : _mm512_castpd512_pd256((__m512d)value);
#else
    (void)h;
    return (__m256d)value;
#endif
}
#endif

INLINE void V(read_lanes)(vec *restrict to, const void *const *from, int single, int64_t count) {
    int64_t j = 0;
#if LANES >= 4
    for (; j + 4 <= count; j += 4)
        for (int h = 0; h < LANES; h += 4) {
            __m256d a[4];
            for (int n = 0; n < 4; n++) {
                if (single) a[n] = _mm256_cvtps_pd(_mm_loadu_ps((const float *)from[h + n] + j));
                else a[n] = _mm256_loadu_pd((const double *)from[h + n] + j);
            }
            V(transpose)(a);
            for (int n = 0; n < 4; n++) memcpy((double *)(to + j + n) + h, &a[n], sizeof(a[n]));
        }
#endif
    for (; j < count; j++)
        for (int n = 0; n < LANES; n++) to[j][n] = score_at(from[n], single, j);
}

/* Numbers to the lanes whose bits are set. */
INLINE void V(write_lanes)(void *const *to, const vec *restrict from, int single, int64_t count, int bits) {
    int64_t j = 0;
#if LANES >= 4
    for (; j + 4 <= count; j += 4)
        for (int h = 0; h < LANES; h += 4) {
            __m256d a[4];
            for (int n = 0; n < 4; n++) a[n] = V(part_of_lanes)(from[j + n], h);
            V(transpose)(a);
            for (int n = 0; n < 4; n++) {
                if (!(bits >> (h + n) & 1)) continue;
                if (single) _mm_storeu_ps((float *)to[h + n] + j, _mm256_cvtpd_ps(a[n]));
                else _mm256_storeu_pd((double *)to[h + n] + j, a[n]);
            }
        }
#endif
    for (int n = 0; n < LANES; n++) {
        if (!(bits >> n & 1)) continue;
        for (int64_t i = j; i < count; i++) {
            if (single) ((float *)to[n])[i] = (float)from[i][n];
            else ((double *)to[n])[i] = from[i][n];
        }
    }
}

/* ---- the potential and the residuals ---- */

INLINE vec V(sigmoid)(vec t) {
    const vec e = V(exp_of)(V(minus_size_of)(t)), share = 1.0 / (1.0 + e);
    return V(pick)(t >= 0.0, share, e * share);
}

/* The numbers of the objective at temperatures T, and those of variable j. */
INLINE Heat V(lane_heat)(const Group *w, vec T) {
    return (Heat){T, 1.0 / T, w->alpha, 1.0 / (w->alpha - 1.0), w->weighted};
}

INLINE Own V(lane_own)(const int o, const Group *w, int64_t j) {
    Own own = {{0}, {0}, {0}, {0}};
    const int unit = OBJECTIVES[o].unit;
    if (unit == OF_BOX) return own;
    own.most = w->most[j];
    if (unit == ITSELF) own.least = w->least[j];
    if (unit == OF_ROWS || w->weighted) own.first = w->first[j];
    if (has_alpha(o)) own.second = w->second[j];
    return own;
}

/* to_j = from_j + sum_i c_ij mu_i, where `from` may be NULL */
INLINE void V(add_columns)(const Group *w, const vec *restrict from, const vec *restrict mu, vec *restrict to) {
    const int32_t *restrict column = w->column, *restrict row = w->row;
    const vec *restrict c = w->coefficients;
    const int64_t l = w->layout->variables;
    for (int64_t j = 0; w->two && j < l; j++) {
        vec total = c[2 * j] * V(at)(mu, row[2 * j]) + c[2 * j + 1] * V(at)(mu, row[2 * j + 1]);
        if (from) total += from[j];
        to[j] = total;
    }
    for (int64_t j = 0; !w->two && j < l; j++) {
        const int32_t stop = column[j + 1];
        vec total = {0}, other = {0}; /* two sums: neither waits for the other */
        int32_t e = column[j];
        if (from) total = from[j];
        for (; e + 2 <= stop; e += 2) {
            total += c[e] * V(at)(mu, row[e]);
            other += c[e + 1] * V(at)(mu, row[e + 1]);
        }
        if (e < stop) total += c[e] * V(at)(mu, row[e]);
        to[j] = total + other;
    }
}

/* to_i = sum_j c_ij p_j - from_i, where `from` may be NULL */
INLINE void V(add_rows)(const Group *w, const vec *restrict p, const vec *restrict from, vec *restrict to) {
    const int32_t *restrict start = w->row_start, *restrict column = w->row_column;
    const vec *restrict c = w->row_values;
    const int64_t k = w->layout->rows;
    for (int64_t i = 0; i < k; i++) {
        const int32_t *end = w->row_column + start[i + 1];
        vec total = {0}, other = {0};
        if (from) other = -from[i];
        for (; end - column >= 4; column += 4, c += 4) {
            total += c[0] * V(at)(p, column[0]);
            other += c[1] * V(at)(p, column[1]);
            total += c[2] * V(at)(p, column[2]);
            other += c[3] * V(at)(p, column[3]);
        }
        for (; column < end; column++, c++) total += *c * V(at)(p, *column);
        to[i] = total + other;
    }
}

/* p from u */
INLINE void V(lane_shares)(const int o, const Group *w, const vec *restrict u, vec T, vec *restrict p) {
    const Heat heat = V(lane_heat)(w, T);
    for (int64_t j = 0; j < w->layout->variables; j++) {
        const Own own = V(lane_own)(o, w, j);
        p[j] = V(share_of)(o, u[j], &own, &heat, NULL);
    }
}

FOR_OBJECTIVES(lane_shares, (const Group *w, const vec *u, vec T, vec *p), w, u, T, p)

/* How far a dual is from where a step along -r, clipped, would leave it. */
INLINE vec V(lane_distance)(const Group *w, const LanePoint *at, int64_t i) {
    const vec here = at->mu[i], residual = at->r[i], there = here - residual;
    return V(pick)(there < w->low[i], here - w->low[i], V(pick)(there > w->high[i], here - w->high[i], residual));
}

/* The largest of these distances. */
static void V(measure_lanes)(const Group *w, LanePoint *at) {
    const int bounded = V(any)(w->bounded);
    vec error = {0};
    for (int64_t i = 0; i < w->layout->rows; i++)
        error = V(larger)(V(size_of)(bounded ? V(lane_distance)(w, at, i) : at->r[i]), error);
    at->error = error;
}

/* Everything at the duals of a point, but for u where they are the old ones. */
static void V(evaluate_lanes)(const Group *w, LanePoint *at, vec T, int whole) {
    const vec inverse = 1.0 / T;
    if (whole) V(add_columns)(w, w->linear, at->mu, at->u);
    BY_OBJECTIVE(w->objective, lane_shares, w, at->u, T, at->p)
    V(add_rows)(w, at->p, w->b, at->r);
    for (int64_t i = 0; w->has_slack && i < w->layout->rows; i++) {
        at->z[i] = V(sigmoid)(at->mu[i] * inverse);
        at->r[i] += w->s[i] * at->z[i];
    }
    V(measure_lanes)(w, at);
}

/* The variables' part of theta at a point that has been evaluated, and the sum of the sizes of its terms. */
INLINE void V(lane_terms)(const int o, const Group *w, const LanePoint *at, vec T, vec *theta, vec *size) {
    const Heat heat = V(lane_heat)(w, T);
    Terms terms = V(no_terms)();
    for (int64_t j = 0; j < w->layout->variables; j++) {
        const Own own = V(lane_own)(o, w, j);
        V(add_terms)(o, at->u[j], at->p[j], &own, &heat, &terms); /* factors of at least 1/2, of at most LANE_VARIABLES */
    }
    if (OBJECTIVES[o].product) terms.value = terms.size = T * (terms.value - V(log_of)(terms.product));
    *theta = terms.value;
    *size = terms.size;
}

FOR_OBJECTIVES(lane_terms, (const Group *w, const LanePoint *at, vec T, vec *theta, vec *size), w, at, T, theta, size)

static vec V(potential)(const Group *w, const LanePoint *at, vec T, vec *size_at) {
    vec theta, size;
    BY_OBJECTIVE(w->objective, lane_terms, w, at, T, &theta, &size)
    for (int64_t i = 0; i < w->layout->rows; i++) {
        const vec mu = at->mu[i], term = w->b[i] * mu;
        if (w->has_slack) {
            const vec z = at->z[i];
            const vec value = w->s[i] * (V(larger)(mu, (vec){0}) - T * V(log_of)(V(larger)(z, 1.0 - z)));
            theta += value;
            size += value;
        }
        theta -= term;
        size += V(size_of)(term);
    }
    *size_at = size;
    return theta;
}

/* ---- H, factored, and solves with it ---- */

INLINE void V(slopes_of_lanes)(const int o, const Group *w, const LanePoint *at, vec T, mask which) {
    const Heat heat = V(lane_heat)(w, T);
    for (int64_t j = 0; j < w->layout->variables; j++) {
        const Own own = V(lane_own)(o, w, j);
        w->d[j] = V(pick)(which, V(slope_of)(o, at->u[j], at->p[j], &own, &heat), w->d[j]);
    }
}

FOR_OBJECTIVES(slopes_of_lanes, (const Group *w, const LanePoint *at, vec T, mask which), w, at, T, which)

/* d = dp/du at a point and the slacks' part of H, of some lanes; the others keep theirs. */
static void V(lane_slopes)(Group *w, const LanePoint *at, vec T, mask which) {
    const vec inverse = 1.0 / T;
    BY_OBJECTIVE(w->objective, slopes_of_lanes, w, at, T, which)
    for (int64_t i = 0; w->has_slack && i < w->layout->rows; i++)
        w->curvature[i] = V(pick)(which, w->s[i] * at->z[i] * (1.0 - at->z[i]) * inverse, w->curvature[i]);
}

/* H = C diag(d) C': its diagonal, and what lies to the right of it. */
static void V(assemble_lanes)(Group *w) {
    const int64_t k = w->layout->rows, l = w->layout->variables;
    const int32_t *restrict start = w->row_start, *restrict column = w->column, *restrict row = w->row;
    const int32_t *restrict row_column = w->row_column;
    const vec *restrict c = w->coefficients, *restrict by_row = w->row_values, *restrict d = w->d;
    vec *restrict H = w->H, *restrict diagonal = w->diagonal;
    for (int64_t i = 0; i < k; i++) {
        const int32_t *end = w->row_column + start[i + 1];
        vec total = {0}, other = {0};
        for (; end - row_column >= 2; row_column += 2, by_row += 2) {
            total += by_row[0] * by_row[0] * V(at)(d, row_column[0]);
            other += by_row[1] * by_row[1] * V(at)(d, row_column[1]);
        }
        for (; row_column < end; row_column++, by_row++) total += *by_row * *by_row * V(at)(d, *row_column);
        diagonal[i] = total + other;
    }
    memset(H, 0, k * k * sizeof(vec));
    for (int64_t j = 0; w->two && j < l; j++) {
        vec *to = (vec *)((char *)H + row[2 * j] * k + row[2 * j + 1]);
        *to += c[2 * j] * c[2 * j + 1] * d[j];
    }
    for (int64_t j = 0; !w->two && j < l; j++) {
        const int32_t stop = column[j + 1];
        for (int32_t e = column[j]; e + 1 < stop; e++) {
            const vec value = c[e] * d[j];
            char *restrict to = (char *)H + row[e] * k;
            for (int32_t other = e + 1; other < stop; other++) *(vec *)(to + row[other]) += value * c[other];
        }
    }
}

/* U over the list: the rows of H that move, with unit rows in the lanes where they do not. */
static void V(select_lanes)(Group *w, mask asked) {
    const int64_t k = w->layout->rows;
    w->count = w->lead = 0;
    for (int32_t i = 0; i < k; i++) {
        if (!V(any)(asked & w->moving[i])) continue;
        w->list[w->count++] = i;
        w->lead += i < w->layout->leading;
    }
    for (int64_t g = 0; g < w->count; g++) {
        const mask moving = w->moving[w->list[g]];
        const vec *restrict from = w->H + w->list[g] * k;
        vec *restrict to = w->U + g * k;
        for (int64_t h = g < w->lead ? w->lead : g + 1; h < w->count; h++)
            to[h] = V(where)(moving & w->moving[w->list[h]], from[w->list[h]]);
    }
}

/* Numbers `at` to at + count of row g of U, less what the rows above take from them. */
INLINE void V(eliminate_lanes)(vec *restrict U, const vec *restrict factors, int64_t k, int64_t g, int64_t at,
                               int count) {
    vec total[4];
    for (int b = 0; b < count; b++) total[b] = U[g * k + at + b];
    for (int64_t n = 0; n < g; n++)
        for (int b = 0; b < count; b++) total[b] -= factors[n] * U[n * k + at + b];
    for (int b = 0; b < count; b++) U[g * k + at + b] = total[b];
}

/* The diagonal entry of H of row i, regularised; one where the row does not move, or has nothing. */
INLINE vec V(lane_diagonal)(const Group *w, int64_t i) {
    vec size = w->diagonal[i];
    if (w->has_slack) size += w->curvature[i];
    size = (size + w->damping) * (1.0 + w->ridge);
    return V(pick)(w->moving[i] & (size > 1e-290), size, V(all)(1.0));
}

/* 1 / D of row g of the list, given the rows above; returns the lanes in which the pivot is dropped: it is nothing beside
 * the diagonal of H, so that the row depends on earlier ones and its dual stays where it is. */
INLINE mask V(pivot_lanes)(Group *w, int64_t g, int64_t above) {
    const int64_t k = w->layout->rows, i = w->list[g];
    const vec *restrict U = w->U + g;
    vec *restrict factors = w->scratch, *restrict inverse = w->inverse;
    const vec size = V(lane_diagonal)(w, i);
    vec pivot = size;
    for (int64_t n = 0; n < above; n++) {
        factors[n] = U[n * k] * inverse[n];
        pivot -= factors[n] * U[n * k];
    }
    const mask usable = pivot > 1e-14 * size;
    inverse[g] = V(where)(usable, 1.0 / pivot);
    return ~usable;
}

/* factor_lanes where all but `rest` rows lead. With `rest` known when this is compiled, they stay in registers. */
INLINE mask V(factor_few)(Group *w, const int rest) {
    const int64_t k = w->layout->rows, lead = k - rest;
    const mask *restrict moving = w->moving + lead;
    const vec *restrict H = w->H + lead;
    vec *restrict U = w->U + lead, *restrict inverse = w->inverse, S[4][4], size[4], W[4];
    mask dropped = {0};
    for (int g = 0; g < rest; g++) {
        S[g][g] = size[g] = V(lane_diagonal)(w, lead + g);
        for (int h = g + 1; h < rest; h++) S[g][h] = V(where)(moving[g] & moving[h], H[(lead + g) * k + h]);
    }
    for (int64_t i = 0; i < lead; i++) {
        const vec over = inverse[i] = 1.0 / V(lane_diagonal)(w, i);
        for (int h = 0; h < rest; h++) U[i * k + h] = W[h] = V(where)(w->moving[i] & moving[h], H[i * k + h]);
        for (int g = 0; g < rest; g++) {
            const vec factor = W[g] * over;
            for (int h = g; h < rest; h++) S[g][h] -= factor * W[h];
        }
    }
    for (int g = 0; g < rest; g++) {
        const mask usable = S[g][g] > 1e-14 * size[g];
        const vec over = inverse[lead + g] = V(where)(usable, 1.0 / S[g][g]);
        dropped |= ~usable;
        for (int h = g + 1; h < rest; h++) {
            const vec factor = S[g][h] * over;
            U[(lead + g) * k + h] = S[g][h];
            for (int n = h; n < rest; n++) S[h][n] -= factor * S[g][n];
        }
    }
    return dropped;
}

INLINE void V(solve_few)(const Group *w, const vec *from, vec *to, const int rest) {
    const int64_t k = w->layout->rows, lead = k - rest;
    const vec *restrict U = w->U + lead, *restrict inverse = w->inverse;
    vec y[4];
    for (int g = 0; g < rest; g++) y[g] = V(where)(w->moving[lead + g], from[lead + g]);
    for (int64_t i = 0; i < lead; i++) {
        const vec value = V(where)(w->moving[i], from[i]) * inverse[i];
        to[i] = value;
        for (int h = 0; h < rest; h++) y[h] -= U[i * k + h] * value;
    }
    for (int g = 0; g < rest; g++) {
        y[g] *= inverse[lead + g];
        for (int h = g + 1; h < rest; h++) y[h] -= U[(lead + g) * k + h] * y[g];
    }
    for (int g = rest - 1; g >= 0; g--) {
        for (int h = g + 1; h < rest; h++) y[g] -= U[(lead + g) * k + h] * y[h] * inverse[lead + g];
        to[lead + g] = y[g];
    }
    for (int64_t i = 0; i < lead; i++) {
        vec total = {0};
        for (int h = 0; h < rest; h++) total += U[i * k + h] * y[h];
        to[i] -= total * inverse[i];
    }
}

/* H over the rows that move, regularised, as U' D^-1 U; returns the lanes in which a pivot was dropped. Rows that move in
 * other lanes only are those of a unit matrix: they change nothing. */
static mask V(factor_lanes)(Group *w, mask asked) {
    const int64_t k = w->layout->rows;
    switch (k - w->layout->leading) {
    case 0: return V(factor_few)(w, 0);
    case 1: return V(factor_few)(w, 1);
    case 2: return V(factor_few)(w, 2);
    case 3: return V(factor_few)(w, 3);
    case 4: return V(factor_few)(w, 4);
    }
    V(select_lanes)(w, asked);
    const int64_t count = w->count, lead = w->lead;
    vec *restrict U = w->U, *restrict factors = w->scratch;
    mask dropped = {0};
    for (int64_t g = 0; g < lead; g++) dropped |= V(pivot_lanes)(w, g, 0);
    for (int64_t g = lead; g < count; g++) {
        dropped |= V(pivot_lanes)(w, g, g);
        int64_t h = g + 1;
        for (; h + 4 <= count; h += 4) V(eliminate_lanes)(U, factors, k, g, h, 4);
        if (count - h == 3) V(eliminate_lanes)(U, factors, k, g, h, 3);
        if (count - h == 2) V(eliminate_lanes)(U, factors, k, g, h, 2);
        if (count - h == 1) V(eliminate_lanes)(U, factors, k, g, h, 1);
    }
    return dropped;
}

/* The sum of a_n b_n, of `count` numbers that lie `step` apart in a: one by one, since rows that move in other lanes only
 * add nothing to such a sum, but would change the places of the others in several sums. */
INLINE vec V(sum_lanes)(const vec *restrict a, int64_t step, const vec *restrict b, int64_t count) {
    vec total = {0};
    for (int64_t n = 0; n < count; n++) total += a[n * step] * b[n];
    return total;
}

/* to = H^-1 from over the rows that move, zero elsewhere; both may be the same array. */
static void V(solve_lanes)(const Group *w, const vec *from, vec *to) {
    const int64_t k = w->layout->rows, count = w->count, lead = w->lead;
    switch (k - w->layout->leading) {
    case 0: V(solve_few)(w, from, to, 0); return;
    case 1: V(solve_few)(w, from, to, 1); return;
    case 2: V(solve_few)(w, from, to, 2); return;
    case 3: V(solve_few)(w, from, to, 3); return;
    case 4: V(solve_few)(w, from, to, 4); return;
    }
    const int32_t *restrict list = w->list;
    const vec *restrict U = w->U, *restrict inverse = w->inverse;
    vec *restrict y = w->scratch;
    for (int64_t g = 0; g < lead; g++) y[g] = V(where)(w->moving[list[g]], from[list[g]]) * inverse[g];
    for (int64_t g = lead; g < count; g++) {
        const vec value = V(where)(w->moving[list[g]], from[list[g]]);
        y[g] = (value - V(sum_lanes)(U + g, k, y, g)) * inverse[g];
    }
    for (int64_t g = count - 2; g >= lead; g--)
        y[g] -= V(sum_lanes)(U + g * k + g + 1, 1, y + g + 1, count - g - 1) * inverse[g];
    for (int64_t g = 0; g < lead; g++) y[g] -= V(sum_lanes)(U + g * k + lead, 1, y + lead, count - lead) * inverse[g];
    if (count < k) memset(to, 0, k * sizeof(vec));
    for (int64_t g = 0; g < count; g++) to[list[g]] = y[g];
}

/* to = C diag(d) from; room is for as many numbers as there are variables. */
static void V(push_lanes)(const Group *w, const vec *from, vec *room, vec *restrict to) {
    for (int64_t j = 0; j < w->layout->variables; j++) room[j] = w->d[j] * from[j];
    V(add_rows)(w, room, NULL, to);
}

/* ---- a start for affine lanes ----
 *
 * Without a box theta is a quadratic, and bounds of duals are all that is left of the problem. Rows enter the set of
 * those whose residual is kept at zero one by one, the most violated first, and leave it where their dual meets a bound,
 * as in the dual method of Goldfarb and Idnani. S is H, swept over the rows in the set (B; N are the others):
 *
 *     S_BB = -H_BB^-1,   S_BN = H_BB^-1 H_BN,   S_NN = H_NN - H_NB H_BB^-1 H_BN
 *
 * so a change of mu_e by t changes mu_B by -S_Be t and r_N by S_Ne t. Where this ends, Newton's method begins: it has
 * nothing left to do but for rounding, unless rows depend on each other or contradict each other.
 */

/* Number `at` of an array, another one in each lane. */
INLINE vec V(pick_numbers)(const vec *from, mask at) {
    vec value = {0};
    for (int n = 0; n < LANES; n++) value[n] = from[at[n]][n];
    return value;
}

/* S, swept over row `at` of each of some lanes, or swept back where that is in the set. */
static void V(sweep_over)(vec *restrict S, int64_t k, mask which, mask at, mask *restrict set, vec *restrict column) {
    vec pivot = {0};
    for (int n = 0; n < LANES; n++) {
        for (int64_t i = 0; i < k; i++) column[i][n] = S[i * k + at[n]][n];
        pivot[n] = column[at[n]][n];
    }
    const vec inverse = V(where)(which, 1.0 / pivot);
    for (int64_t i = 0; i < k; i++) {
        const vec factor = column[i] * inverse;
        for (int64_t h = 0; h < k; h++) S[i * k + h] -= factor * column[h];
    }
    for (int n = 0; n < LANES; n++) {
        if (!which[n]) continue;
        const double sign = set[at[n]][n] ? -inverse[n] : inverse[n];
        for (int64_t i = 0; i < k; i++) S[i * k + at[n]][n] = S[at[n] * k + i][n] = column[i][n] * sign;
        S[at[n] * k + at[n]][n] = -inverse[n];
        set[at[n]][n] = ~set[at[n]][n];
    }
}

/* The row that is violated most among those whose dual may still follow, and where its residual exceeds `least`. */
INLINE mask V(most_violated)(const Group *w, const mask *set, vec least, mask *at) {
    const LanePoint *now = &w->now;
    mask index = {0};
    vec best = least;
    for (int64_t i = 0; i < w->layout->rows; i++) {
        const vec r = now->r[i], mu = now->mu[i];
        const mask free_ = ((r > 0.0) & (mu > w->low[i])) | ((r < 0.0) & (mu < w->high[i]));
        const mask better = free_ & ~set[i] & (V(size_of)(r) > best);
        best = V(pick)(better, V(size_of)(r), best);
        index = (better & i) | (~better & index);
    }
    *at = index;
    return best > least;
}

/* Move the dual of row e until its residual is zero (`length` away) or a dual meets a bound. Returns the row to sweep
 * over in each of the lanes that `moved` says, and how far it went, infinity where nothing stops it. */
static mask V(go_lanes)(Group *w, const mask *set, const vec *column, mask which, mask e, vec sign, vec *length,
                        mask *moved) {
    const int64_t k = w->layout->rows;
    LanePoint *now = &w->now;
    vec step = *length;
    mask pivot = e, own = {0};
    for (int64_t i = 0; i < k; i++) {
        const mask self = e == i;
        const vec rate = V(pick)(self, sign, -V(where)(set[i], column[i] * sign));
        const vec room = V(pick)(rate > 0.0, w->high[i], w->low[i]) - now->mu[i], time = V(larger)(room / rate, (vec){0});
        const mask hits = (V(size_of)(rate) > 1e-14) & (time < step);
        step = V(pick)(hits, time, step);
        pivot = (hits & i) | (~hits & pivot);
        own = (hits & self) | (~hits & own);
    }
    const mask goes = which & (step < INFINITY);
    for (int64_t i = 0; i < k; i++) {
        const mask self = e == i, stops = goes & (pivot == i) & (step < *length);
        const vec change = column[i] * sign * step, mu = now->mu[i];
        const vec to = mu + V(pick)(self, sign * step, -V(where)(set[i], change));
        const vec bound = V(pick)(V(size_of)(to - w->low[i]) < V(size_of)(to - w->high[i]), w->low[i], w->high[i]);
        now->mu[i] = V(pick)(stops, bound, V(pick)(goes, to, mu));
        now->r[i] += V(where)(goes & ~set[i], change);
    }
    *length = V(pick)(goes, step, *length);
    *moved = goes & ~own;
    return pivot;
}

/* Duals of affine lanes, by the method above; `now` has been evaluated, and is again. */
static vec V(enter_lanes)(Group *w, double tol, mask running) {
    const int64_t k = w->layout->rows;
    vec *restrict S = w->U, *restrict column = w->scratch, count = {0};
    mask *set = w->moving, e;
    for (int64_t i = 0; i < k; i++) {
        for (int64_t h = i; h < k; h++) {
            vec value = {0};
            if (h == i) value = w->diagonal[i];
            else if (h >= w->layout->leading) value = w->H[i * k + h];
            S[i * k + h] = S[h * k + i] = value;
        }
        set[i] = (mask){0};
    }
    for (int64_t turn = 0; turn < 3 * k; turn++) {
        running &= V(most_violated)(w, set, V(all)(0.01 * tol), &e);
        if (!V(any)(running)) break;
        for (int64_t i = 0; i < k; i++)
            for (int n = 0; n < LANES; n++) column[i][n] = S[i * k + e[n]][n];
        const vec r = V(pick_numbers)(w->now.r, e);
        const vec slope = V(pick_numbers)(column, e), size = V(pick_numbers)(w->diagonal, e);
        vec length = V(pick)(slope > 1e-10 * size, V(size_of)(r) / slope, V(all)(INFINITY)), whole = length;
        const vec sign = V(pick)(r > 0.0, V(all)(-1.0), V(all)(1.0));
        mask moved;
        const mask pivot = V(go_lanes)(w, set, column, running, e, sign, &length, &moved);
        running &= length < INFINITY;
        count += V(where)(running, V(all)(1.0));
        V(sweep_over)(S, k, running & moved, pivot, set, column);
        for (int n = 0; n < LANES; n++)
            if (running[n] && length[n] == whole[n]) w->now.r[e[n]][n] = 0.0;
    }
    mask finite = ~(mask){0};
    for (int64_t i = 0; i < k; i++) finite &= V(size_of)(w->now.mu[i]) < INFINITY;
    for (int64_t i = 0; i < k; i++) {
        w->now.mu[i] = V(limited)(V(where)(finite, w->now.mu[i]), w->low[i], w->high[i]);
        w->moving[i] = w->active[i];
    }
    V(evaluate_lanes)(w, &w->now, w->at.T, 1);
    return count;
}

/* ---- the iteration ---- */

/* Exchange the points in the lanes that took theirs; in lanes at rest both are the same. */
static void V(take_lanes)(Group *w, mask taken, mask running) {
    LanePoint other = w->next;
    if (!V(any)(running & ~taken)) {
        w->next = w->now;
        w->now = other;
        return;
    }
    LanePoint *now = &w->now;
    for (int64_t j = 0; j < w->layout->variables; j++) {
        now->u[j] = V(pick)(taken, other.u[j], now->u[j]);
        now->p[j] = V(pick)(taken, other.p[j], now->p[j]);
    }
    for (int64_t i = 0; i < w->layout->rows; i++) {
        now->mu[i] = V(pick)(taken, other.mu[i], now->mu[i]);
        now->z[i] = V(pick)(taken, other.z[i], now->z[i]);
        now->r[i] = V(pick)(taken, other.r[i], now->r[i]);
    }
    now->error = V(pick)(taken, other.error, now->error);
}

/* Lanes in which theta falls from `now` to `next`, given the slope at both ends; see the top of the file. */
static mask V(falls)(const Group *w, vec T, mask asked, vec before, vec after) {
    const Constants *c = &CONSTANTS;
    before = V(smaller)(before, (vec){0});
    mask good = after <= -WOLFE * before;
    if (!V(any)(asked & ~good)) return good;
    vec size_now, size_next;
    const vec was = V(potential)(w, &w->now, T, &size_now), is = V(potential)(w, &w->next, T, &size_next);
    good |= is <= was + c->decrease * before;
    return good | ((is <= was + c->rounding * (1.0 + size_now + size_next)) & (w->next.error < w->now.error));
}

/* Slopes along the way from `now` to `next`, at both ends. */
INLINE vec V(slope_after)(const Group *w, vec *before_at) {
    vec before = {0}, after = {0};
    for (int64_t i = 0; i < w->layout->rows; i++) {
        const vec moved = w->next.mu[i] - w->now.mu[i];
        before += moved * w->now.r[i];
        after += moved * w->next.r[i];
    }
    *before_at = before;
    return after;
}

/* A Sinkhorn sweep of odds over the groups of disjoint rows, each kept in the lanes where theta falls. */
static void V(sweep_lanes)(Group *w, vec T, mask running) {
    const Layout *a = w->layout;
    const vec cap = 10.0 * T + 0.5 * w->reach;
    for (int64_t g = 0; g < a->groups; g++) {
        memcpy(w->next.mu, w->now.mu, a->rows * sizeof(vec));
        for (int32_t e = a->group_start[g]; e < a->group_start[g + 1]; e++) {
            const int32_t i = a->group_rows[e];
            const vec whole = w->whole[i], wanted = w->b[i], rest = whole - wanted, have = w->now.r[i] + wanted;
            const vec left = whole - have, least = 1e-12 * whole;
            const mask possible = running & (whole > 0.0) & (wanted > least) & (have > least) & (rest > least) & (left > least);
            const vec ratio = wanted / have * (left / rest);
            const vec change = T * V(log_of)(ratio);
            const vec to = w->now.mu[i] + V(where)(possible, V(limited)(change, -cap, cap));
            w->next.mu[i] = V(limited)(to, w->low[i], w->high[i]);
        }
        V(evaluate_lanes)(w, &w->next, T, 1);
        vec before, after = V(slope_after)(w, &before);
        V(take_lanes)(w, V(falls)(w, T, running, before, after) & running, running);
    }
}

/* Where sweeps that multiply shares begin and end, in fresh lanes. A sweep goes far where shares are of one size; from there the temperature is
 * halved, to that of lanes of which such sweeps see everything (tau, unless that is too cold to follow), or to that at which
 * Newton's method begins. Returns how often. */
static vec V(heat_lanes)(Group *w, mask fresh, mask plain, vec *hottest) {
    const vec hot = LANE_HOT * w->reach, least = V(larger)(w->tau, hot * (1.0 / (1 << LANE_HALVINGS)));
    vec halvings = {0};
    *hottest = w->at.T = V(pick)(fresh & plain, least, w->at.T);
    for (int n = 0; n < LANE_HALVINGS; n++) {
        const mask hotter = fresh & (*hottest < hot);
        *hottest = V(pick)(hotter, 2.0 * *hottest, *hottest);
        halvings += V(where)(hotter, V(all)(1.0));
    }
    return halvings;
}

/* What multiplies the shares in each row of a group to make it hold, where `which` says so, from the sums of these shares;
 * and all that has multiplied them: factors[0], between [1] and [2]. Leaves zero sums. */
static void V(balance_lanes)(Group *w, int64_t group, mask which, vec *const *factors, int bounded) {
    const Layout *a = w->layout;
    for (int32_t e = a->group_start[group]; e < a->group_start[group + 1]; e++) {
        const int32_t i = a->group_rows[e];
        const vec total = w->sums[i], wanted = w->b[i], factor = factors[0][i];
        const mask possible = which & w->even[i] & (wanted > 0.0) & (total > 1e-100);
        vec ratio = V(pick)(possible, wanted / total, V(all)(1.0));
        if (bounded) ratio = V(pick)(possible, V(limited)(factor * ratio, factors[1][i], factors[2][i]) / factor, ratio);
        factors[0][i] = factor * ratio;
        w->ratios[i] = ratio;
        w->sums[i] = (vec){0};
    }
}

/* Duals of fresh lanes by a few sweeps of KL, whose shares a row with equal coefficients multiplies all by one number, and
 * which half the temperature squares: without exponentials but the first, and with one logarithm a row in the end. Each sweep
 * but the last ones halves the temperature, if a lane has to; lanes join in when it is their turn. Other rows and upper bounds
 * of x are not seen; where there are any, or bounds of duals, theta decides about the outcome. */
static void V(multiply_lanes)(Group *w, mask fresh, mask running) {
    const int64_t k = w->layout->rows, l = w->layout->variables, groups = w->layout->groups;
    vec *p = w->next.p, *factor = w->q, *low = w->rhs, *high = w->scratch, *const factors[] = {factor, low, high}, hottest;
    const int bounded = V(any)(w->bounded);
    mask plain = ~(w->topped | w->bounded);
    for (int64_t i = 0; i < k; i++) plain &= w->even[i] | ~w->active[i];
    const vec halvings = V(heat_lanes)(w, fresh, plain, &hottest), T = w->at.T, inverse = 1.0 / hottest;
    V(add_columns)(w, w->linear, w->now.mu, w->next.u);
    BY_OBJECTIVE(w->objective, lane_shares, w, w->next.u, hottest, p)
    for (int64_t i = 0; i < k; i++) {
        factor[i] = w->ratios[i] = V(all)(1.0);
        w->sums[i] = (vec){0};
        if (!bounded) continue;
        low[i] = V(where)(w->low[i] > -INFINITY, V(exp_of)((w->low[i] - w->now.mu[i]) * inverse));
        high[i] = V(exp_of)(V(smaller)((w->high[i] - w->now.mu[i]) * inverse, V(all)(700.0)));
    }
    w->ratios[k] = V(all)(1.0);
    const int32_t *before = w->member;
    for (int left = LANE_HALVINGS; left > -LANE_TURNS; left--) {
        const mask which = halvings >= (double)left, colder = halvings > (double)left;
        const int halves = left >= 0 && V(any)(colder);
        if (!V(any)(which)) continue;
        for (int n = 0; halves && n < (bounded ? 3 : 1); n++)
            for (int64_t i = 0; i < k; i++) factors[n][i] *= V(pick)(colder, factors[n][i], V(all)(1.0));
        for (int64_t g = 0; g < groups; g++) {
            const int32_t *restrict of = before, *restrict to = before = w->member + g * l;
            for (int64_t j = 0; j < l; j++) {
                vec share = p[j] * V(at)(w->ratios, of[j]);
                if (halves && g == 0) /* no less than what has a square */
                    share = V(pick)(colder, V(larger)(share * share * w->unit[j], V(all)(1e-140)), share);
                p[j] = share;
                *(vec *)((char *)w->sums + to[j]) += share;
            }
            V(balance_lanes)(w, g, which, factors, bounded);
        }
    }
    for (int64_t i = 0; i < k; i++) {
        const mask moved = running & (factor[i] > 0.0) & (factor[i] < INFINITY);
        const vec to = w->now.mu[i] + V(where)(moved, T * V(log_of)(factor[i]));
        w->next.mu[i] = V(limited)(to, w->low[i], w->high[i]);
    }
    V(evaluate_lanes)(w, &w->next, T, 1);
    if (V(any)(running & ~plain)) {
        V(evaluate_lanes)(w, &w->now, T, 1);
        vec start, end = V(slope_after)(w, &start);
        plain |= V(falls)(w, T, running, start, end);
    }
    V(take_lanes)(w, plain & running, running);
}

/* Duals and temperatures to begin with, in some lanes, of which some run; the others stay where they are. */
static void V(start_lanes)(Group *w, const double *const *start, double tol, mask fresh, mask running) {
    const int64_t k = w->layout->rows;
    const Constants *c = &CONSTANTS;
    V(Progress) *at = &w->at;
    const vec one = V(all)(1.0);
    for (int64_t i = 0; i < k; i++) {
        w->now.mu[i] = V(pick)(fresh, V(limited)((vec){0}, w->low[i], w->high[i]), w->now.mu[i]);
        w->moving[i] = (fresh & w->active[i]) | (~fresh & w->moving[i]);
    }
    at->T = V(pick)(fresh, V(larger)(c->start_temperature * w->reach, w->tau), at->T);
    at->damping = V(pick)(fresh, V(all)(c->first_damping), at->damping);
    at->ridge = V(pick)(fresh, V(all)(c->first_ridge), at->ridge);
    at->stride = V(pick)(fresh, one, at->stride);
    at->length = V(pick)(fresh, one, at->length);
    vec *zeros[] = {&at->tries, &at->steps, &at->passes};
    for (int n = 0; n < 3; n++) *zeros[n] = V(where)(~fresh, *zeros[n]);
    mask *none[] = {&at->arrived, &at->searching, &at->cooled, &at->reusable, &at->reuse, &at->polish, &at->snap, &at->ready};
    for (int n = 0; n < 8; n++) *none[n] &= ~fresh;
    at->running = (at->running & ~fresh) | running;
    if (start) {
        vec size;
        V(evaluate_lanes)(w, &w->now, w->tau, 1);
        for (int64_t i = 0; i < k; i++) {
            const vec given = V(where)(w->active[i], V(gather)(start, w->layout->order[i]) * w->scale[i]);
            w->next.mu[i] = V(limited)(given, w->low[i], w->high[i]);
        }
        V(evaluate_lanes)(w, &w->next, w->tau, 1);
        const mask better = fresh & (V(potential)(w, &w->next, w->tau, &size) <= V(potential)(w, &w->now, w->tau, &size));
        for (int64_t i = 0; i < k; i++) w->now.mu[i] = V(pick)(better, w->next.mu[i], w->now.mu[i]);
        at->T = V(pick)(better, w->tau, at->T);
    }
    const int multiplies = start ? NOTHING : OBJECTIVES[w->objective].multiplies;
    if (multiplies == SHARES) {
        V(multiply_lanes)(w, fresh, running);
        return;
    }
    V(evaluate_lanes)(w, &w->now, at->T, 1);
    for (int n = 0; multiplies == ODDS && n < LANE_SWEEPS; n++) V(sweep_lanes)(w, at->T, running);
    if (V(any)(running & w->affine & w->bounded)) {
        V(lane_slopes)(w, &w->now, at->T, ~(mask){0});
        if (!w->constant) V(assemble_lanes)(w);
        at->steps += V(enter_lanes)(w, tol, running & w->affine & w->bounded);
    }
}

/* rhs = the residual and its derivative with respect to the temperature, times the change of it. */
static void V(drift_lanes)(Group *w, vec T, vec change) {
    const LanePoint *at = &w->now;
    const vec factor = -change / T;
    V(push_lanes)(w, at->u, w->next.u, w->rhs);
    for (int64_t i = 0; i < w->layout->rows; i++) {
        if (w->has_slack) w->rhs[i] += w->curvature[i] * at->mu[i];
        w->rhs[i] = at->r[i] + w->rhs[i] * factor;
    }
}

/* Newton's direction from `now` at temperature T towards the solution at `cooler`: with a new factor in the `fresh`
 * lanes, with the last one in those that `reuse` it; the others keep their direction. Returns where a pivot was dropped. */
static mask V(aim_lanes)(Group *w, vec T, vec cooler, mask running, mask fresh, mask reuse, vec damping, vec ridge,
                         vec stride) {
    const int64_t k = w->layout->rows;
    const LanePoint *at = &w->now;
    const vec near = V(smaller)(at->error, V(all)(CONSTANTS.held)), *rhs = at->r;
    const int bounded = V(any)(w->bounded);
    mask dropped = {0};
    if (V(any)(fresh)) {
        V(lane_slopes)(w, at, T, fresh);
        if (V(any)(cooler != T)) {
            V(drift_lanes)(w, T, cooler - T);
            rhs = w->rhs;
        }
        for (int64_t i = 0; bounded && i < k; i++) {
            const mask held = ((at->mu[i] - w->low[i] <= near) & (at->r[i] > 0.0)) |
                              ((w->high[i] - at->mu[i] <= near) & (at->r[i] < 0.0));
            w->moving[i] = (fresh & w->active[i] & ~held) | (~fresh & w->moving[i]);
        }
        w->damping = V(pick)(fresh, damping, w->damping);
        w->ridge = V(pick)(fresh, ridge, w->ridge);
        if (!w->constant) V(assemble_lanes)(w);
        dropped = V(factor_lanes)(w, running);
    }
    V(solve_lanes)(w, rhs, w->rhs);
    vec longest = {0};
    for (int64_t i = 0; i < k; i++) {
        longest = V(larger)(V(size_of)(w->rhs[i]), longest);
        if (bounded) w->rhs[i] = V(pick)(w->moving[i], w->rhs[i], at->r[i]); /* nothing in rows that take no part */
    }
    vec length = V(all)(-1.0);
    if (OBJECTIVES[w->objective].temperature) {
        const vec cap = stride * (10.0 * T + 0.5 * w->reach);
        length = V(pick)(longest > cap, -cap / longest, length);
    }
    for (int64_t i = 0; i < k; i++) w->direction[i] = V(pick)(fresh | reuse, w->rhs[i] * length, w->direction[i]);
    return dropped & fresh;
}

/* The dual of row i, put to a bound where a step along -r would put it there. */
INLINE vec V(snapped)(const Group *w, int64_t i) {
    const vec mu = w->now.mu[i], there = mu - w->now.r[i], low = w->low[i], high = w->high[i];
    return V(pick)(there <= low, low, V(pick)(there >= high, high, mu));
}

/* The lanes in which that changes a dual. */
static mask V(snaps)(const Group *w) {
    mask changed = {0};
    for (int64_t i = 0; i < w->layout->rows; i++) changed |= V(snapped)(w, i) != w->now.mu[i];
    return changed;
}

/* Newton's method in the running lanes, from `now`, until no more than `least` of them run. */
static void V(iterate_lanes)(Group *w, double tol, int least) {
    const Constants *c = &CONSTANTS;
    const vec one = V(all)(1.0);
    const mask none = {0};
    const double fine = c->fine * tol;
    vec T = w->at.T, damping = w->at.damping, ridge = w->at.ridge, stride = w->at.stride, length = w->at.length;
    vec tries = w->at.tries, steps = w->at.steps, passes = w->at.passes;
    mask running = w->at.running, searching = w->at.searching, cooled = w->at.cooled, reusable = w->at.reusable;
    mask reuse = w->at.reuse, polish = w->at.polish, snap = w->at.snap, ready = w->at.ready;
    for (;;) {
        const vec error = w->now.error;
        const mask close = running & ~searching & ~(reuse | polish | snap | ready) & (error <= tol) & (T <= w->tau);
        reuse |= close & (error > fine) & reusable; /* close to where H was factored: as good as a new factor */
        polish |= close & (error > fine) & ~reusable;
        ready |= close & ~(error > fine);
        if (V(any)(ready)) {
            const mask ended = ready & ~snap;
            mask changed = none;
            if (V(any)(ended & w->bounded)) changed = V(snaps)(w) & w->bounded;
            const mask finished = ready & (snap | ~changed);
            snap = (snap & ~ready) | (ended & changed);
            w->at.arrived |= finished;
            running &= ~finished;
            ready = none;
        }
        running &= passes < LANE_PASSES;
        reuse &= running, polish &= running, snap &= running;
        const mask ordinary = running & ~(reuse | polish | snap);
        mask starts = ordinary & ~searching;
        running &= ~(starts & (steps >= LANE_STEPS));
        starts &= running;
        if (__builtin_popcount((unsigned)V(bits_of)(running)) <= least) break;
        passes += V(where)(running, one);
        const mask fresh = starts | polish;
        if (V(any)(fresh | reuse)) {
            const mask cools = starts & (error <= c->loose_residual) & (T > w->tau);
            const vec cooler = V(pick)(cools, V(larger)(c->cooling * T, w->tau), T);
            const vec added = V(where)(starts, damping * V(smaller)(error, one) / T);
            reusable = (starts & ~cools & ~w->bounded & (error <= c->loose_residual)) | (~fresh & reusable);
            const vec longest = V(pick)(starts, stride, V(all)(1e300));
            const mask dropped = V(aim_lanes)(w, T, cooler, running, fresh, reuse, added, ridge, longest);
            ridge = V(pick)(dropped, V(smaller)(100.0 * ridge, V(all)(c->largest_ridge)), ridge);
            T = cooler;
            if (V(any)(cools)) V(evaluate_lanes)(w, &w->now, T, 0);
            cooled = cools | (cooled & ~starts);
            tries = V(where)(~starts, tries);
            length = V(pick)(fresh | reuse, one, length);
            steps += V(where)(starts, one);
        }
        for (int64_t i = 0; i < w->layout->rows; i++) {
            const vec mu = w->now.mu[i], to = V(limited)(mu + length * w->direction[i], w->low[i], w->high[i]);
            w->next.mu[i] = V(pick)(running, to, mu);
        }
        for (int64_t i = 0; V(any)(snap) && i < w->layout->rows; i++)
            w->next.mu[i] = V(pick)(snap, V(snapped)(w, i), w->next.mu[i]);
        V(evaluate_lanes)(w, &w->next, T, 1);
        vec before, after = V(slope_after)(w, &before);
        const mask finite = V(size_of)(after) < INFINITY;
        mask good = (reuse & (w->next.error <= fine)) | ((polish | snap) & (w->next.error <= w->now.error));
        if (V(any)(ordinary)) good |= ordinary & V(falls)(w, T, ordinary & running, before, after);
        good &= finite & running;
        V(take_lanes)(w, good, running);
        ready = (reuse & good) | polish | snap;
        polish = reuse & ~good;
        reuse = none;
        const mask full = ordinary & good & (length >= 1.0), failed = ordinary & running & ~good;
        tries += V(where)(failed, one);
        const mask gives_up = failed & (tries >= (double)c->backtracks), shorter = (ordinary & good & ~full) | gives_up;
        damping = V(pick)(full, damping * 0.25, V(pick)(shorter, damping * 4.0, damping));
        stride = V(pick)(full, stride * 2.0, V(pick)(shorter, stride * 0.5, stride));
        damping = V(limited)(damping, V(all)(c->least_damping), V(all)(c->largest_damping));
        stride = V(limited)(stride, one, V(all)(c->largest_stride));
        running &= ~(gives_up & ~cooled);
        searching = failed & ~gives_up;
        length = V(pick)(searching, length * c->shorten, length);
    }
    w->at = (V(Progress)){T, damping, ridge, stride, length, tries, steps, passes, running, w->at.arrived,
                          searching, cooled, reusable, reuse, polish, snap, ready};
}

/* ---- the numbers of LANES instances ---- */

static void V(fold_lane_variables)(Group *w, const Instance *const *of) {
    const double *lower[LANES], *upper[LANES], *room[LANES], *numbers[LANES];
    const uint8_t *free_[LANES], *at_upper[LANES];
    const int o = w->objective, other = OBJECTIVES[o].temperature, unit = OBJECTIVES[o].unit;
    vec units = {0};
    for (int n = 0; n < LANES; n++) {
        lower[n] = of[n]->lower, upper[n] = of[n]->upper, room[n] = of[n]->room, numbers[n] = of[n]->parameters[other];
        free_[n] = of[n]->free, at_upper[n] = of[n]->at_upper, units[n] = of[n]->unit;
    }
    mask boxed = {0};
    w->topped = (mask){0};
    for (int64_t j = 0; j < w->layout->variables; j++) {
        const vec low = V(gather)(lower, j), high = V(gather)(upper, j), none = {0};
        vec base = low, width = high - low, most = V(all)(1.0);
        if (unit == ITSELF) base = none, width = most, most = high;
        const mask free = V(gather_flags)(free_, j), moves = free & (high > low);
        w->fixed[j] = ~free;
        boxed |= ~moves | (low > -INFINITY) | (high < INFINITY);
        const vec value = V(pick)(V(gather_flags)(at_upper, j), high, low);
        if (unit == OF_ROWS) {
            const vec left = V(gather)(room, j); /* as in most_of */
            w->topped |= moves & (width < left);
            most = V(smaller)(V(pick)(width < left, width, LOOSE * left), V(all)(FARTHEST)) / units;
            V(edge_of)(o, most, units, w->alpha, &w->first[j], &w->second[j]);
            width = units;
        }
        w->unit[j] = V(where)(moves, width);
        w->base[j] = V(pick)(moves, base, value);
        w->upper[j] = V(pick)(moves, high, value);
        w->least[j] = none;
        if (unit == ITSELF) w->least[j] = V(where)(moves, low);
        w->most[j] = V(where)(moves, most);
        if (w->weighted) w->first[j] = V(gather)(numbers, j);
        if (w->offset) w->offset[j] = V(offset_of)(w->tau, V(gather)(numbers, j));
    }
    w->affine = (mask){0};
    if (OBJECTIVES[o].affine) w->affine = ~boxed;
    w->constant = !V(any)(~w->affine);
}

static void V(fold_lane_scales)(Group *w, const Instance *const *of) {
    const double *scale[LANES];
    const uint8_t *active[LANES];
    for (int n = 0; n < LANES; n++) scale[n] = of[n]->scale, active[n] = of[n]->active;
    for (int64_t i = 0; i < w->layout->rows; i++) {
        w->scale[i] = V(gather)(scale, w->layout->order[i]);
        w->active[i] = V(gather_flags)(active, w->layout->order[i]);
    }
}

static void V(fold_lane_coefficients)(Group *w, const Instance *const *of) {
    const Layout *a = w->layout;
    const double *values[LANES];
    for (int n = 0; n < LANES; n++) values[n] = of[n]->values;
    for (int64_t i = 0; i < a->rows; i++) {
        w->taken[i] = w->totals[i] = (vec){0};
        w->negative[i] = (mask){0};
        w->even[i] = w->active[i];
    }
    for (int64_t j = 0; j < a->variables; j++) {
        for (int32_t e = w->column[j]; e < w->column[j + 1]; e++) {
            const int32_t i = w->row[e] / V(WIDE);
            const vec value = V(gather)(values, w->place[e]), c = value * w->unit[j] / w->scale[i];
            w->taken[i] += value * w->base[j];
            w->negative[i] |= value < 0.0;
            w->even[i] &= (c == 1.0) | (c == 0.0);
            w->totals[i] += c;
            w->coefficients[e] = V(where)(w->active[i], c);
        }
    }
    for (int64_t n = 0; n < a->entries; n++) {
        w->row_values[n] = w->coefficients[w->row_entry[n]];
        w->given[n] = V(gather)(values, w->place[w->row_entry[n]]);
    }
}

static void V(fold_lane_rows)(Group *w, const Instance *const *of) {
    const Layout *a = w->layout;
    const double *rhs[LANES], *slack[LANES], *share_of[LANES], *dual_lower[LANES], *dual_upper[LANES], *side[LANES];
    const uint8_t *tight_[LANES];
    for (int n = 0; n < LANES; n++) {
        rhs[n] = of[n]->rhs, slack[n] = of[n]->slack, share_of[n] = of[n]->tight_share, tight_[n] = of[n]->tight;
        dual_lower[n] = of[n]->dual_lower, dual_upper[n] = of[n]->dual_upper, side[n] = of[n]->side;
    }
    w->bounded = (mask){0};
    w->has_slack = 0;
    for (int64_t i = 0; i < a->rows; i++) {
        const int64_t from = a->order[i];
        const vec rho = w->scale[i];
        const mask tight = V(gather_flags)(tight_, from), active = w->active[i];
        vec right = V(gather)(rhs, from), s = {0};
        if (w->entropic) {
            const vec mass = V(gather)(slack, from);
            right -= V(where)(active & tight, mass * V(gather)(share_of, from));
            s = V(where)(active & ~tight, mass / rho);
        }
        w->right[i] = right;
        w->s[i] = s;
        w->has_slack |= V(any)(s != 0.0);
        w->b[i] = V(where)(active, (right - w->taken[i]) / rho);
        w->side[i] = V(gather)(side, from);
        w->stated_low[i] = V(gather)(dual_lower, from);
        w->stated_high[i] = V(gather)(dual_upper, from);
        w->low[i] = V(pick)(tight, V(all)(-INFINITY), w->stated_low[i] * rho);
        w->high[i] = V(pick)(tight, V(all)(INFINITY), w->stated_high[i] * rho);
        w->bounded |= (w->low[i] > -INFINITY) | (w->high[i] < INFINITY);
        w->whole[i] = V(where)(active & ~w->negative[i], w->totals[i] + s);
    }
}

/* The numbers of LANES instances that do not depend on scores and temperature; `changed` says which may differ from those
 * of the last call, so that numbers which all instances share are read once. */
static void V(fold_lanes)(Group *w, const Instance *const *of, int changed) {
    for (int n = 0; n < LANES; n++) {
        w->tau[n] = tau_of(w->objective, of[n]->parameters, of[n]->unit);
        w->alpha[n] = alpha_of(w->objective, of[n]->parameters);
    }
    if (changed & NEW_VARIABLES) V(fold_lane_variables)(w, of);
    if (changed & NEW_ROWS) V(fold_lane_scales)(w, of);
    if (changed & NEW_COEFFICIENTS) V(fold_lane_coefficients)(w, of);
    if (changed & NEW_ROWS) V(fold_lane_rows)(w, of);
    if (changed && w->constant) {
        for (int64_t j = 0; j < w->layout->variables; j++) {
            w->d[j] = V(all)(1.0);
            if (w->weighted) w->d[j] = 1.0 / w->first[j];
        }
        V(assemble_lanes)(w);
    }
}

/* The linear term and the reach of the scores; returns the lanes in which everything is finite. */
static mask V(read_lane_scores)(Group *w, const Instance *const *of, const void *const *scores, int single) {
    const int64_t l = w->layout->variables;
    const int wide = OBJECTIVES[w->objective].unit == OF_BOX;
    V(read_lanes)(w->linear, scores, single, l);
    vec reach = {0};
    mask finite = ~(mask){0};
    for (int64_t j = 0; j < l; j++) {
        const vec y = w->linear[j];
        const mask moves = w->unit[j] > 0.0;
        vec term = w->gain[j] * y;
        finite &= (V(size_of)(y) < INFINITY) & (V(size_of)(term) < INFINITY);
        if (w->offset) term += w->offset[j];
        reach = V(larger)(V(where)(moves, V(size_of)(term)), reach);
        w->linear[j] = V(pick)(moves, term, V(all)(-1e200)); /* fixed: it has a share of nothing */
        if (!wide || !V(any)(w->fixed[j])) continue;
        for (int n = 0; n < LANES; n++) /* the scores of fixed variables, too, must fit their box as it was given */
            if (!isfinite((of[n]->upper[j] - of[n]->lower[j]) * y[n])) finite[n] = 0;
    }
    w->reach = reach;
    return finite;
}

INLINE vec *V(take_vectors)(vec **from, int64_t count) {
    vec *taken = *from;
    *from += count;
    return taken;
}

/* LanePoint to the work arrays, one after another from `at` on; returns where they end. */
static vec *V(arrange_lanes)(Group *w, const Layout *a, vec *at) {
    const int64_t l = a->variables, k = a->rows;
    vec **variables[] = {&w->linear, &w->base,  &w->unit,  &w->upper,  &w->least, &w->most, &w->first, &w->second,
                         &w->now.u,  &w->now.p, &w->next.u, &w->next.p, &w->d,    (vec **)&w->fixed};
    vec **rows[] = {&w->scale, &w->b, &w->s, &w->low, &w->high, &w->whole, &w->taken, &w->totals,
                    &w->side, &w->right, &w->stated_low, &w->stated_high,
                    &w->now.mu, &w->now.z, &w->now.r, &w->next.mu, &w->next.z, &w->next.r, &w->curvature, &w->direction,
                    &w->rhs, &w->scratch, &w->q, &w->diagonal, &w->inverse,
                    (vec **)&w->active, (vec **)&w->moving, (vec **)&w->negative, (vec **)&w->even};
    for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++) *variables[i] = V(take_vectors)(&at, l);
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) *rows[i] = V(take_vectors)(&at, k);
    if (w->shifted) w->offset = V(take_vectors)(&at, l);
    w->gain = w->weighted ? w->first : w->unit;
    w->coefficients = V(take_vectors)(&at, a->entries);
    w->row_values = V(take_vectors)(&at, a->entries);
    w->given = V(take_vectors)(&at, a->entries);
    w->ratios = V(take_vectors)(&at, k + 1);
    w->sums = V(take_vectors)(&at, k + 1);
    w->H = V(take_vectors)(&at, k * k);
    w->U = V(take_vectors)(&at, k * k);
    const int64_t room = l + 1 + 4 * a->entries + 2 * k + 1 + a->groups * l;
    w->column = (int32_t *)V(take_vectors)(&at, (room * (int64_t)sizeof(int32_t)) / (int64_t)sizeof(vec) + 1);
    w->row = w->column + l + 1;
    w->place = w->row + a->entries;
    w->list = w->place + a->entries;
    w->row_start = w->list + k;
    w->row_entry = w->row_start + k + 1;
    w->row_column = w->row_entry + a->entries;
    w->member = w->row_column + a->entries;
    return at;
}

/* Work arrays for instances of a pattern in one block, for free_block; NULL without memory. */
static void *V(begin_lanes)(Group *w, const Layout *a, const Statement *s) {
    memset(w, 0, sizeof(*w));
    w->layout = a;
    w->objective = (int)s->objective;
    w->entropic = (int)s->entropic_slack;
    w->weighted = is_weighted(s);
    w->shifted = is_shifted(s);
    vec *origin = (vec *)64;
    void *block = zeroed_block((size_t)((char *)V(arrange_lanes)(w, a, origin) - (char *)origin));
    if (!block) return NULL;
    V(arrange_lanes)(w, a, block);
    for (int64_t e = 0; e < a->entries; e++) w->column[a->entry_col[e] + 1]++;
    for (int64_t j = 0; j < a->variables; j++) w->column[j + 1] += w->column[j];
    for (int64_t e = 0; e < a->entries; e++) { /* rows of a variable come in order */
        const int32_t at = w->column[a->entry_col[e]]++;
        w->row[at] = a->entry_row[e] * V(WIDE);
        w->place[at] = (int32_t)e;
        w->row_start[a->entry_row[e] + 1]++;
    }
    for (int64_t j = a->variables; j > 0; j--) w->column[j] = w->column[j - 1];
    w->column[0] = 0;
    for (int64_t i = 0; i < a->rows; i++) w->row_start[i + 1] += w->row_start[i];
    for (int32_t j = 0; j < a->variables; j++)
        for (int32_t e = w->column[j]; e < w->column[j + 1]; e++) {
            const int32_t at = w->row_start[w->row[e] / V(WIDE)]++;
            w->row_entry[at] = e;
            w->row_column[at] = j * V(WIDE);
        }
    for (int64_t i = a->rows; i > 0; i--) w->row_start[i] = w->row_start[i - 1];
    w->row_start[0] = 0;
    for (int64_t n = 0; n < a->groups * a->variables; n++) w->member[n] = (int32_t)a->rows * V(WIDE);
    for (int64_t g = 0; g < a->groups; g++)
        for (int32_t e = a->group_start[g]; e < a->group_start[g + 1]; e++)
            for (int32_t i = a->group_rows[e], n = w->row_start[i]; n < w->row_start[i + 1]; n++)
                w->member[g * a->variables + w->row_column[n] / V(WIDE)] = i * V(WIDE);
    w->two = 1;
    for (int64_t j = 0; j < a->variables; j++) w->two &= w->column[j + 1] - w->column[j] == 2;
    return block;
}

/* ---- gradients ---- */

/* What LANES gradients are made of; lanes without an instance have the pointers of lane 0, and are not written to; grad_duals and parameters in all lanes or (NULL) in none. */
typedef struct {
    const Instance *of[LANES];
    const void *scores[LANES], *grad_x[LANES];
    const double *duals[LANES], *grad_duals[LANES];
    void *grad_scores[LANES];
    double *parameters[LANES][PARAMETERS];
    int bits, single, adjoint; /* lanes to write to; whether q is asked for, not only dL/dy */
} V(LanePull);

/* V(to_parameters) in lanes */
INLINE void V(parameter_lanes)(const int o, const Group *w, const V(LanePull) *call, const vec *g, const vec *pulled) {
    const Layout *a = w->layout;
    const Objective *objective = OBJECTIVES + o;
    const LanePoint *at = &w->now;
    const int other = objective->temperature, wants_other = call->parameters[0][other] != NULL;
    const Heat heat = V(lane_heat)(w, w->tau);
    vec total[PARAMETERS] = {{0}};
    for (int64_t j = 0; j < a->variables; j++) {
        const vec u = at->u[j], d = w->d[j], passed = g[j] - pulled[j];
        vec hot = u;
        if (w->offset) hot -= w->offset[j];
        total[0] -= V(where)(d > 0.0, d * hot * passed);
        if (!wants_other) continue;
        const Own own = V(lane_own)(o, w, j);
        vec number = {0};
        if (objective->sizes[other] == EACH)
            for (int n = 0; n < LANES; n++) number[n] = call->of[n]->parameters[other][j];
        const vec value = passed * V(by_parameter)(o, u, at->p[j], d, w->linear[j], number, &own, &heat);
        if (objective->sizes[other] == ONE) total[other] += value;
        else
            for (int n = 0; n < LANES; n++)
                if (call->bits >> n & 1) call->parameters[n][other][j] += value[n];
    }
    for (int64_t i = 0; i < a->rows && w->has_slack; i++) total[0] += w->q[i] * w->curvature[i] * at->mu[i];
    for (int n = 0; n < LANES; n++) {
        if (!(call->bits >> n & 1)) continue;
        if (other && call->parameters[n][0]) call->parameters[n][0][0] += total[0][n] / call->of[n]->parameters[0][0];
        if (other && wants_other && objective->sizes[other] == ONE) call->parameters[n][other][0] += total[other][n];
    }
}

FOR_OBJECTIVES(parameter_lanes, (const Group *w, const V(LanePull) *call, const vec *g, const vec *pulled), w, call, g, pulled)

/* q += H^-1 (rhs - H q) in some lanes; returns those that need it again. What is left of an error is at most as small a
 * share of this change as this change is of q. Where the change is large, the ridge hides rows that are nearly parallel. */
static mask V(refine_lanes)(Group *w, vec *pulled, mask running, mask *hidden) {
    const int64_t k = w->layout->rows;
    vec *restrict again = w->direction, largest = {0}, change = {0};
    V(add_columns)(w, NULL, w->q, pulled);
    V(push_lanes)(w, pulled, pulled, again);
    for (int64_t i = 0; i < k; i++) {
        vec image = again[i];
        if (w->has_slack) image += w->curvature[i] * w->q[i];
        again[i] = w->rhs[i] - image;
    }
    V(solve_lanes)(w, again, again);
    for (int64_t i = 0; i < k; i++) {
        w->q[i] += V(where)(running, again[i]);
        change = V(larger)(V(size_of)(again[i]), change);
        largest = V(larger)(V(size_of)(w->q[i]), largest);
    }
    *hidden = running & ~(change <= RIDGE_HIDES * largest);
    return running & ~(change <= 1e-10 * largest);
}

/* q and dL/dy, as V(pull_back); numbers must have been folded. Lanes that need conjugate gradients are left, and returned. */
static int V(backward_lanes)(Group *w, V(LanePull) *call) {
    const Layout *a = w->layout;
    const int64_t k = a->rows;
    LanePoint *at = &w->now;
    vec *g = w->next.u, *pulled = w->next.p;
    V(read_lane_scores)(w, call->of, call->scores, call->single);
    for (int64_t i = 0; i < k; i++) at->mu[i] = V(gather)(call->duals, a->order[i]) * w->scale[i];
    V(evaluate_lanes)(w, at, w->tau, 1);
    V(lane_slopes)(w, at, w->tau, ~(mask){0});
    if (call->grad_x[0]) V(read_lanes)(g, call->grad_x, call->single, a->variables);
    else memset(g, 0, a->variables * sizeof(vec));
    for (int64_t j = 0; j < a->variables; j++) {
        const mask moves = w->unit[j] > 0.0;
        g[j] = V(where)(moves, g[j] * w->unit[j]);
        w->d[j] = V(where)(moves, w->d[j]);
    }
    V(push_lanes)(w, g, pulled, w->rhs);
    for (int64_t i = 0; i < k; i++) {
        w->moving[i] = w->active[i] & (at->mu[i] > w->low[i]) & (at->mu[i] < w->high[i]);
        if (call->grad_duals[0]) w->rhs[i] += V(gather)(call->grad_duals, a->order[i]) / w->scale[i];
    }
    w->damping = (vec){0};
    w->ridge = V(all)(CONSTANTS.refined_ridge);
    if (!w->constant) V(assemble_lanes)(w);
    V(factor_lanes)(w, V(lanes_of)(call->bits));
    V(solve_lanes)(w, w->rhs, w->q);
    mask running = ~(mask){0}, hidden = {0};
    for (int round = 0; round < 3 && V(any)(running); round++) /* undo the ridge */
        running = V(refine_lanes)(w, pulled, running, &hidden);
    if (!call->adjoint && V(any)(hidden)) { /* what is hidden may count for nothing: variables close to their bounds */
        vec moved = {0}, size = {0};
        V(add_columns)(w, NULL, w->direction, pulled);
        for (int64_t j = 0; j < a->variables; j++) {
            moved = V(larger)(V(size_of)(w->d[j] * pulled[j]), moved);
            size = V(larger)(V(size_of)(g[j]), size);
        }
        hidden &= ~(moved <= 1e-12 * size);
    }
    const int left = call->bits & V(bits_of)(hidden);
    call->bits &= ~left;
    V(add_columns)(w, NULL, w->q, pulled);
    if (call->parameters[0][0] || call->parameters[0][1]) {
        BY_OBJECTIVE(w->objective, parameter_lanes, w, call, g, pulled)
    }
    for (int64_t j = 0; j < a->variables; j++) g[j] = w->d[j] * (g[j] - pulled[j]) * w->gain[j];
    if (call->grad_scores[0]) V(write_lanes)(call->grad_scores, g, call->single, a->variables, call->bits);
    return left;
}
