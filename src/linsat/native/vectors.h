/* Vectors of LANES numbers, the exponential function, and loops over arrays.
 *
 * Compiled once per instruction set (kernel.h).
 */

/* ---- vectors; every array is aligned and padded to a multiple of eight ---- */

INLINE vec V(load)(const double *from) { return *(const vec *)from; }
INLINE void V(store)(double *to, vec value) { *(vec *)to = value; }
INLINE vec V(all)(double value) { return value - (vec){0}; }
INLINE vec V(size_of)(vec value) { return (vec)((mask)value & (INT64_MAX - (mask){0})); }
INLINE vec V(minus_size_of)(vec value) { return (vec)((mask)value | (INT64_MIN - (mask){0})); }
#if LANES == 4 /* one instruction each; compilers do not find it */
INLINE vec V(pick)(mask which, vec first, vec second) { return (vec)_mm256_blendv_pd((__m256d)second, (__m256d)first, (__m256d)which); }
INLINE vec V(larger)(vec first, vec second) { return (vec)_mm256_max_pd((__m256d)first, (__m256d)second); }
INLINE vec V(smaller)(vec first, vec second) { return (vec)_mm256_min_pd((__m256d)first, (__m256d)second); }
#elif LANES == 8
INLINE vec V(pick)(mask which, vec first, vec second) {
    return (vec)_mm512_mask_blend_pd(_mm512_movepi64_mask((__m512i)which), (__m512d)second, (__m512d)first);
}
INLINE vec V(larger)(vec first, vec second) { return (vec)_mm512_max_pd((__m512d)first, (__m512d)second); }
INLINE vec V(smaller)(vec first, vec second) { return (vec)_mm512_min_pd((__m512d)first, (__m512d)second); }
#else
INLINE vec V(pick)(mask which, vec first, vec second) { return (vec)((which & (mask)first) | (~which & (mask)second)); }
INLINE vec V(larger)(vec first, vec second) { return V(pick)(first > second, first, second); }
INLINE vec V(smaller)(vec first, vec second) { return V(pick)(first < second, first, second); }
#endif

INLINE vec V(where)(mask which, vec value) { return (vec)(which & (mask)value); }

INLINE double V(sum_of)(vec v) {
#if LANES == 2
    return v[0] + v[1];
#elif LANES == 4
    return (v[0] + v[2]) + (v[1] + v[3]);
#else
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
#endif
}

INLINE double V(product_of)(vec value) {
    double found = value[0];
    for (int i = 1; i < LANES; i++) found *= value[i];
    return found;
}

INLINE double V(largest_of)(vec value) {
    double found = value[0];
    for (int i = 1; i < LANES; i++) found = value[i] > found ? value[i] : found;
    return found;
}

#ifndef LINSAT_VECTORS
#define LINSAT_VECTORS
/* Constants of exp_of, as vectors in memory: a compiler that knows them makes them anew before every short loop. */
#define EIGHT(value) {value, value, value, value, value, value, value, value}
HIDDEN __attribute__((aligned(64))) double exp_terms[16][8] = {
    EIGHT(1.0 / 2), EIGHT(1.0 / 6), EIGHT(1.0 / 24), EIGHT(1.0 / 120),
    EIGHT(1.0 / 720), EIGHT(1.0 / 5040), EIGHT(1.0 / 40320), EIGHT(1.0 / 362880),
    EIGHT(1.0 / 3628800), EIGHT(1.0 / 39916800), EIGHT(1.0 / 479001600), EIGHT(-700.0),
    EIGHT(1.4426950408889634), EIGHT(6755399441055744.0), EIGHT(0.6931471803691238), EIGHT(1.9082149292705877e-10),
};
#undef EIGHT
#endif

/* exp(x) for x <= 700: full precision down to exp(-700), constant below. */
INLINE vec V(exp_of)(vec x) {
#define TERM(n) V(load)(exp_terms[n])
    const vec magic = TERM(13); /* 1.5 * 2^52: adding it rounds to a whole number, kept in the low bits */
    x = V(larger)(x, TERM(11));
    const vec shifted = x * TERM(12) + magic, whole = shifted - magic;
    const vec r = (x - whole * TERM(14)) - whole * TERM(15);
    /* Taylor's polynomial, in short chains of products that the processor works on at once. */
    const vec r2 = r * r, r4 = r2 * r2;
    const vec first = (TERM(0) + r * TERM(1)) + r2 * (TERM(2) + r * TERM(3));
    const vec second = (TERM(4) + r * TERM(5)) + r2 * (TERM(6) + r * TERM(7));
    const vec third = (TERM(8) + r * TERM(9)) + r2 * TERM(10);
    const vec e = 1.0 + (r + r2 * (first + r4 * (second + r4 * third)));
    return e * (vec)(((mask)shifted + 1023) << 52);
#undef TERM
}

/* log(1 + e) for 0 <= e <= 1, as 2 artanh(e / (2 + e)). */
INLINE vec V(log_of_one_and)(vec e) {
    vec s = e / (2.0 + e), q = s * s, total = V(all)(1.0 / 35);
    for (int odd = 33; odd >= 1; odd -= 2) total = total * q + 1.0 / odd;
    return 2.0 * s * total;
}

/* log(x) of a positive, normal x: 2^k m with m between 2^-1/2 and 2^1/2, and 2 artanh((m - 1) / (m + 1)). */
INLINE vec V(log_of)(vec x) {
    typedef uint64_t bits __attribute__((vector_size(8 * LANES)));
    const uint64_t root = 0x3fe6a09e667f3bcd, one = 0x3ff0000000000000; /* 2^-1/2 and 1 */
    const bits shifted = (bits)x + (one - root);
    const vec m = (vec)((shifted & 0xfffffffffffff) + root), s = (m - 1.0) / (m + 1.0), q = s * s;
    const double magic = 4503599627370496.0; /* 2^52: a whole number in the low bits */
    const vec k = (vec)((shifted >> 52) + 0x4330000000000000) - (magic + 1023.0);
    vec total = V(all)(1.0 / 21);
    for (int odd = 19; odd >= 3; odd -= 2) total = total * q + 1.0 / odd;
    return k * 0.6931471803691238 + (2.0 * s + (2.0 * s * q * total + k * 1.9082149292705877e-10));
}

/* ---- loops over arrays at any address; what is left of a vector is done number by number ---- */

typedef double loose __attribute__((vector_size(8 * LANES), aligned(8), may_alias));

INLINE vec V(load_at)(const double *from) { return (vec)(*(const loose *)from); }
INLINE void V(store_at)(double *to, vec value) { *(loose *)to = (loose)value; }

/* Sum of a_i b_i; the order depends on the count alone. */
INLINE double V(dot)(const double *a, const double *b, int64_t count) {
    vec total[BLOCK] = {{0}};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        UNROLL
        for (int h = 0; h < BLOCK; h++) total[h] += V(load_at)(a + i + h * LANES) * V(load_at)(b + i + h * LANES);
    for (; i + LANES <= count; i += LANES) total[0] += V(load_at)(a + i) * V(load_at)(b + i);
    double rest = 0.0;
    for (; i < count; i++) rest += a[i] * b[i];
    UNROLL
    for (int h = 1; h < BLOCK; h++) total[0] += total[h];
    return rest + V(sum_of)(total[0]);
}

/* to = from + values * factor, where `to` and `from` may be the same array */
INLINE void V(add_product)(double *to, const double *from, const double *values, double factor, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) V(store_at)(to + i, V(load_at)(from + i) + V(load_at)(values + i) * factor);
    for (; i < count; i++) to[i] = from[i] + values[i] * factor;
}

/* to = from + values * factors, likewise */
INLINE void V(add_products)(double *to, const double *from, const double *values, const double *factors, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        V(store_at)(to + i, V(load_at)(from + i) + V(load_at)(values + i) * V(load_at)(factors + i));
    for (; i < count; i++) to[i] = from[i] + values[i] * factors[i];
}

/* ---- numbers from and to the arrays of a call, which are float or double ---- */

typedef float V(narrow) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE void V(read)(double *restrict to, const void *restrict from, int single, int64_t at, int64_t count) {
    const float *numbers = (const float *)from + at;
    int64_t j = 0;
    if (!single) {
        memcpy(to, (const double *)from + at, count * sizeof(double));
        return;
    }
    for (; j + LANES <= count; j += LANES) V(store_at)(to + j, __builtin_convertvector(*(const V(narrow) *)(numbers + j), vec));
    for (; j < count; j++) to[j] = numbers[j];
}

INLINE void V(write)(void *restrict to, const double *restrict from, int single, int64_t at, int64_t count) {
    float *numbers = (float *)to + at;
    int64_t j = 0;
    if (!single) {
        memcpy((double *)to + at, from, count * sizeof(double));
        return;
    }
    for (; j + LANES <= count; j += LANES) *(V(narrow) *)(numbers + j) = __builtin_convertvector(V(load_at)(from + j), V(narrow));
    for (; j < count; j++) numbers[j] = (float)from[j];
}
