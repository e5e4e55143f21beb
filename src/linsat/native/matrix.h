/* Dense symmetric matrices: products, Cholesky factors and triangular solves, in tiles that a team can share.
 *
 * Compiled once per instruction set (kernel.h). A matrix has rows of `ld` numbers, a multiple of eight, at aligned
 * addresses; of a symmetric one the blocks of eight on and above the diagonal are used.
 */

#ifndef LINSAT_MATRIX
#define LINSAT_MATRIX
/* A matrix whose column g begins at `at + g / 8 * panel + g % 8` and goes on every `stride` numbers: as it is (stride
 * ld, panel 8), or copied into panels of eight columns (stride 8), which a long sum reads in order. */
typedef struct {
    const double *at;
    int64_t stride, panel;
} Panels;

/* S += sign * P' P from row and column `from` on, over `count` rows of P. */
typedef struct {
    double *S;
    int64_t ld, from, count;
    Panels P;
    double sign;
} Product;

/* One step of the elimination: the rows of a block have been factored up to its diagonal tile. */
typedef struct {
    double *S, *packed;
    const double *inverse;
    int64_t ld, from, end; /* rows of the block */
} Elimination;
#endif

/* S[g .. g + 4, h .. h + 8] += sign * left' right */
INLINE void V(small_product)(double *S, int64_t ld, const double *left, const double *right, int64_t stride, int64_t count,
                             double sign) {
    vec total[4][BLOCK] = {{{0}}};
    for (int64_t i = 0; i < count; i++) {
        const double *l = left + i * stride, *r = right + i * stride;
        UNROLL
        for (int b = 0; b < BLOCK; b++) {
            const vec value = V(load)(r + b * LANES);
            UNROLL
            for (int a = 0; a < 4; a++) total[a][b] += l[a] * value;
        }
    }
    UNROLL
    for (int a = 0; a < 4; a++)
        UNROLL
        for (int b = 0; b < BLOCK; b++) {
            double *to = S + a * ld + b * LANES;
            V(store)(to, V(load)(to) + sign * total[a][b]);
        }
}

INLINE const double *V(column)(const Panels *P, int64_t g) { return P->at + (g >> 3) * P->panel + (g & 7); }

static void V(multiply_tile)(const Product *a, int64_t g_from, int64_t h_from) {
    const int64_t g_end = g_from + TILE < a->ld ? g_from + TILE : a->ld, h_end = h_from + TILE < a->ld ? h_from + TILE : a->ld;
    for (int64_t i = 0; i < a->count; i += DEPTH) {
        const int64_t deep = a->count - i < DEPTH ? a->count - i : DEPTH, skip = i * a->P.stride;
        for (int64_t h = h_from; h < h_end; h += 8) {
            const double *right = V(column)(&a->P, h) + skip;
            for (int64_t g = g_from; g < g_end && g < h + 8; g += 4)
                V(small_product)(a->S + g * a->ld + h, a->ld, V(column)(&a->P, g) + skip, right, a->P.stride, deep, a->sign);
        }
    }
}

/* Tile number `index` of the upper triangle, counted column by column. */
static void V(multiply_part)(void *argument, int64_t index) {
    const Product *a = argument;
    int64_t column = 0;
    while (index > column) index -= ++column;
    V(multiply_tile)(a, a->from + index * TILE, a->from + column * TILE);
}

static void V(multiply)(Team *team, const Product *a) {
    const int64_t tiles = (a->ld - a->from + TILE - 1) / TILE;
    share(team, tiles * (tiles + 1) / 2, V(multiply_part), (void *)a);
}

/* The upper Cholesky factor of rows `from` to `end` within columns `from` to `stop`, in place; a pivot that is nothing
 * beside size[g] is dropped: its row depends on earlier ones and its dual stays where it is. Returns whether one was. */
static int V(factor_block)(double *restrict S, int64_t ld, int64_t from, int64_t end, int64_t stop, const double *size,
                           double *inverse) {
    int dropped = 0;
    for (int64_t panel = from; panel < end; panel += 8) {
        const int64_t last = panel + 8 < end ? panel + 8 : end;
        for (int64_t g = panel; g < last; g++) {
            double *row = S + g * ld;
            const double pivot = row[g];
            const int usable = pivot > 1e-14 * size[g] && size[g] > 1e-290;
            const double over = usable ? 1.0 / pivot : 0.0; /* the next pivot does not wait for the root of this one */
            dropped |= !usable;
            for (int64_t e = g + 1; e < last; e++) {
                double *other = S + e * ld;
                const double factor = row[e] * over;
                for (int64_t h = panel; h < stop; h += LANES)
                    V(store)(other + h, V(load)(other + h) - factor * V(load)(row + h));
            }
            inverse[g] = sqrt(over);
            for (int64_t h = panel; h < stop; h += LANES) V(store)(row + h, V(load)(row + h) * inverse[g]);
        }
        for (int64_t h = panel + 8; h < stop; h += 8)
            for (int64_t g = panel + 8; g < h + 8 && g < stop; g += 4)
                V(small_product)(S + g * ld + h, ld, S + panel * ld + g, S + panel * ld + h, ld, 8, -1.0);
    }
    return dropped;
}

/* The rows of the block in one tile of columns to the right of it, and a copy of them in panels. */
static void V(eliminate_part)(void *argument, int64_t index) {
    const Elimination *a = argument;
    const int64_t ld = a->ld, from = a->from, count = a->end - from, start = rounded_up(a->end) + index * TILE;
    const int64_t stop = start + TILE < ld ? start + TILE : ld;
    double *S = a->S;
    for (int64_t panel = from; panel < a->end; panel += 8) {
        const int64_t last = panel + 8 < a->end ? panel + 8 : a->end;
        for (int64_t h = start; h < stop && panel > from; h += 8)
            for (int64_t g = panel; g < panel + 8; g += 4)
                V(small_product)(S + g * ld + h, ld, S + from * ld + g, S + from * ld + h, ld, panel - from, -1.0);
        for (int64_t h = start; h < stop && last - panel == 8; h += LANES) { /* eight rows stay in registers */
            vec rows[8];
            UNROLL
            for (int g = 0; g < 8; g++) rows[g] = V(load)(S + (panel + g) * ld + h);
            UNROLL
            for (int g = 0; g < 8; g++) {
                rows[g] *= a->inverse[panel + g];
                UNROLL
                for (int e = g + 1; e < 8; e++) rows[e] -= S[(panel + g) * ld + panel + e] * rows[g];
                V(store)(S + (panel + g) * ld + h, rows[g]);
            }
        }
        for (int64_t g = panel; g < last && last - panel < 8; g++) {
            double *row = S + g * ld;
            for (int64_t e = panel; e < g; e++) {
                const double factor = S[e * ld + g], *other = S + e * ld;
                for (int64_t h = start; h < stop; h += LANES) V(store)(row + h, V(load)(row + h) - factor * V(load)(other + h));
            }
            for (int64_t h = start; h < stop; h += LANES) V(store)(row + h, V(load)(row + h) * a->inverse[g]);
        }
    }
    for (int64_t h = start; h < stop; h += 8)
        for (int64_t g = 0; g < count; g++)
            memcpy(a->packed + ((h >> 3) * count + g) * 8, S + (from + g) * ld + h, 8 * sizeof(double));
}

/* The upper Cholesky factor of the first `count` rows of S, in place; what is left of the others is their Schur
 * complement. `packed` has room for TILE rows. Returns whether a pivot was dropped. */
static int V(cholesky)(Team *team, double *S, int64_t ld, int64_t count, const double *size, double *inverse, double *packed) {
    int dropped = 0;
    for (int64_t from = 0; from < count; from += TILE) {
        const int64_t end = from + TILE < count ? from + TILE : count, stop = rounded_up(end);
        dropped |= V(factor_block)(S, ld, from, end, stop, size, inverse);
        if (stop >= ld) break;
        Elimination rows = {S, packed, inverse, ld, from, end};
        share(team, (ld - stop + TILE - 1) / TILE, V(eliminate_part), &rows);
        Product rest = {S, ld, stop, end - from, {packed, 8, 8 * (end - from)}, -1.0};
        V(multiply)(team, &rest);
    }
    return dropped;
}

/* y = U'^-1 y for the first `count` rows of a factor; what comes behind them is reduced too. */
static void V(solve_forward)(const double *U, int64_t ld, int64_t count, const double *inverse, double *restrict y) {
    for (int64_t g = 0; g < count; g++) {
        const double value = y[g] * inverse[g], *row = U + g * ld;
        const int64_t next = (g & ~(int64_t)7) + 8;
        y[g] = value;
        for (int64_t h = g + 1; h < next; h++) y[h] -= row[h] * value;
        for (int64_t h = next; h < ld; h += LANES) V(store)(y + h, V(load)(y + h) - V(load)(row + h) * value);
    }
}

/* y = U^-1 y for the first `count` rows, given what comes behind them: eight rows at a time. */
static void V(solve_back)(const double *U, int64_t ld, int64_t count, const double *inverse, double *restrict y) {
    for (int64_t from = (count - 1) & ~(int64_t)7; from >= 0; from -= 8) {
        const int64_t next = from + 8, end = next < count ? next : count;
        for (int64_t g = from; g < end; g++) {
            for (int64_t h = end; h < next; h++) y[g] -= U[g * ld + h] * y[h];
            if (next < ld) y[g] -= V(dot)(U + g * ld + next, y + next, ld - next);
        }
        for (int64_t g = end - 1; g >= from; g--) {
            y[g] *= inverse[g];
            for (int64_t e = from; e < g; e++) y[e] -= U[e * ld + g] * y[g];
        }
    }
}
