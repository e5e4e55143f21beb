/* H where most coefficients are not zero: a product of matrices.
 *
 * Compiled once per instruction set (kernel.h).
 */

/* Columns of C times the root of d, for the rows of a list (-1: zeros), plain or in panels. */
static void V(gather_part)(void *argument, int64_t chunk) {
    const Pass *pass = argument;
    const Work *w = pass->w;
    const Dense *m = &w->dense;
    const int64_t l = w->layout->variables, stop = 64 * chunk + 64 < l ? 64 * chunk + 64 : l;
    for (int64_t j = 64 * chunk; j < stop; j++) {
        const double root = sqrt(w->d[j]), *from = m->C + j * w->layout->width;
        for (int64_t g = 0; g < m->ld; g += 8) {
            double *to = m->scaled + (m->ld >= PACKED ? ((g >> 3) * l + j) * 8 : j * m->ld + g);
            for (int b = 0; b < 8; b++) to[b] = m->list[g + b] < 0 ? 0.0 : root * from[m->list[g + b]];
        }
    }
}

/* S = C D C' over the rows of the list. */
static void V(gram)(Work *w, double *S) {
    Dense *m = &w->dense;
    const int64_t l = w->layout->variables;
    Pass pass = {.w = w};
    share(w->team, (l + 63) / 64, V(gather_part), &pass);
    memset(S, 0, m->ld * m->ld * sizeof(double));
    Product product = {S, m->ld, 0, l, {m->scaled, m->ld, 8}, 1.0};
    if (m->ld >= PACKED) product.P = (Panels){m->scaled, 8, 8 * l};
    V(multiply)(w->team, &product);
}

/* Close the list: nothing up to a multiple of eight. */
INLINE void V(close_list)(Dense *m, int64_t count) {
    m->count = count;
    m->ld = rounded_up(count);
    for (int64_t g = count; g < m->ld; g++) m->list[g] = -1;
}

/* Without a box D is constant, and so is H: rows whose duals have no bound always move and are eliminated once. */
static void V(prepare_constant)(Work *w) {
    const Layout *a = w->layout;
    Dense *m = &w->dense;
    int64_t count = 0;
    for (int64_t i = 0; i < a->rows; i++)
        if (w->active[i] && w->low[i] == -INFINITY && w->high[i] == INFINITY) m->list[count++] = (int32_t)i;
    while (count % 8) m->list[count++] = -1;
    m->first = count;
    for (int64_t i = 0; i < a->rows; i++)
        if (w->active[i] && (w->low[i] > -INFINITY || w->high[i] < INFINITY)) m->list[count++] = (int32_t)i;
    V(close_list)(m, count);
    V(gram)(w, m->base);
    m->width = m->ld;
    for (int64_t g = 0; g < m->width; g++) {
        const double value = m->base[g * m->width + g] * (1.0 + m->ridge);
        m->base_size[g] = m->list[g] >= 0 && value > 1e-290 ? value : 1.0;
        m->base[g * m->width + g] = m->base_size[g];
        m->order[g] = m->list[g];
    }
    V(cholesky)(w->team, m->base, m->width, m->first, m->base_size, m->base_inverse, w->packed);
    for (int64_t g = m->first; g < m->width; g++) /* the Schur complement, all of it */
        for (int64_t h = m->first; h < (g & ~(int64_t)7); h++) m->base[g * m->width + h] = m->base[h * m->width + g];
    m->ready = 1;
}

/* S of the rows with bounded duals that move: part of a matrix that never changes. */
static void V(pick_constant)(Work *w, double damping, double ridge) {
    Dense *m = &w->dense;
    int64_t count = 0;
    for (int64_t g = m->first; g < m->width; g++)
        if (m->order[g] >= 0 && w->moving[m->order[g]]) m->list[count++] = (int32_t)g;
    V(close_list)(m, count);
    for (int64_t g = 0; g < m->ld; g++) {
        const double *from = m->base + m->list[g] * m->width;
        double *to = w->S + g * m->ld;
        for (int64_t h = g & ~(int64_t)7; h < m->ld; h++) to[h] = m->list[g] < 0 || m->list[h] < 0 ? 0.0 : from[m->list[h]];
        const double size = m->list[g] < 0 ? 1.0 : m->base_size[m->list[g]];
        w->keep[g] = size + damping;
        to[g] = m->list[g] < 0 ? 1.0 : to[g] + damping + ridge * size;
    }
}

static int V(factor_dense)(Work *w, const State *at, double T, double damping, double ridge) {
    const Layout *a = w->layout;
    Dense *m = &w->dense;
    if (m->constant) {
        if (!m->ready) V(prepare_constant)(w);
        V(pick_constant)(w, damping, ridge);
    } else {
        int64_t count = 0;
        for (int64_t i = 0; i < a->rows; i++)
            if (w->moving[i]) m->list[count++] = (int32_t)i;
        V(close_list)(m, count);
        V(gram)(w, w->S);
        for (int64_t g = 0; g < m->count; g++) {
            double *entry = w->S + g * m->ld + g;
            *entry = w->keep[g] = V(diagonal_entry)(w, at, m->list[g], *entry, T, damping, ridge);
        }
    }
    return V(cholesky)(w->team, w->S, m->ld, m->count, w->keep, w->inverse, w->packed);
}

static void V(solve_dense)(const Work *w, const double *rhs, double *to) {
    const Dense *m = &w->dense;
    double *y = w->rest, *z = w->root;
    memset(y, 0, (m->ld + 8) * sizeof(double));
    if (m->constant) {
        memset(z, 0, (m->width + 8) * sizeof(double));
        for (int64_t g = 0; g < m->width; g++) z[g] = m->order[g] < 0 ? 0.0 : rhs[m->order[g]];
        V(solve_forward)(m->base, m->width, m->first, m->base_inverse, z);
    }
    for (int64_t g = 0; g < m->count; g++) y[g] = m->constant ? z[m->list[g]] : rhs[m->list[g]];
    V(solve_forward)(w->S, m->ld, m->count, w->inverse, y);
    V(solve_back)(w->S, m->ld, m->count, w->inverse, y);
    memset(to, 0, w->k * sizeof(double));
    if (!m->constant) {
        for (int64_t g = 0; g < m->count; g++) to[m->list[g]] = y[g];
        return;
    }
    memset(z + m->first, 0, (m->width - m->first) * sizeof(double));
    for (int64_t g = 0; g < m->count; g++) z[m->list[g]] = y[g];
    V(solve_back)(m->base, m->width, m->first, m->base_inverse, z);
    for (int64_t g = 0; g < m->width; g++)
        if (m->order[g] >= 0) to[m->order[g]] = z[g];
}

/* ---- duals to begin with, where H is constant ----
 *
 * With the other rows eliminated, what is left is a quadratic program in the bounded duals v alone,
 *
 *     minimise  v'Sv / 2 + g'v     subject to  low <= v <= high,        S the Schur complement: far fewer numbers than C.
 *
 * Those at a bound are guessed from v - (Sv + g), the others solved for, until the guess is its own consequence. That it ends
 * is not certain, so there is a limit, and whatever it ends in is but a start of the iteration. */

/* rest = S v + g for the bounded duals, of which few are not zero. */
static void V(reduced_residual)(const Dense *m, const double *v, const double *g, double *rest) {
    memcpy(rest, g, (m->width - m->first) * sizeof(double));
    for (int64_t h = m->first; h < m->width; h++)
        if (v[h - m->first] != 0.0)
            V(add_product)(rest, rest, m->base + h * m->width + m->first, v[h - m->first], m->width - m->first);
}

/* Bounded duals that are solved for, in `moving`, from v - rest, the others put to their bound; returns whether that is as
 * before. */
static int V(guess_moving)(Work *w, double *v, const double *rest) {
    const Dense *m = &w->dense;
    int same = 1;
    for (int64_t g = m->first; g < m->width; g++) {
        const int32_t i = m->order[g];
        if (i < 0) continue;
        const double there = v[g - m->first] - rest[g - m->first];
        const double end = there <= w->low[i] ? w->low[i] : w->high[i];
        const int moves = there > w->low[i] && there < w->high[i];
        same &= w->moving[i] == moves && (moves || v[g - m->first] == end);
        w->moving[i] = (uint8_t)moves;
        if (!moves) v[g - m->first] = end;
    }
    return same;
}

/* next.mu from `now`, by at most so many guesses; returns how many it took, 0: more. */
static int64_t V(guess_duals)(Work *w, double T, int64_t limit) {
    Dense *m = &w->dense;
    if (!m->ready) {
        V(slopes)(w, &w->now, T);
        V(prepare_constant)(w);
    }
    const int64_t count = m->width - m->first;
    double *z = w->root, *v = w->direction, *g = w->rhs, *rest = w->scratch, *y = w->rest;
    memset(z, 0, (m->width + 8) * sizeof(double));
    for (int64_t h = 0; h < m->width; h++) z[h] = m->order[h] < 0 ? 0.0 : w->now.r[m->order[h]];
    V(solve_forward)(m->base, m->width, m->first, m->base_inverse, z);
    for (int64_t h = 0; h < count; h++) v[h] = m->order[m->first + h] < 0 ? 0.0 : -w->now.mu[m->order[m->first + h]];
    V(reduced_residual)(m, v, z + m->first, g); /* there the residual is z = S v + g */
    for (int64_t h = 0; h < count; h++) v[h] = -v[h];
    memcpy(rest, z + m->first, count * sizeof(double));
    memset(w->moving, 0, w->layout->rows);
    for (int64_t guesses = 0; guesses < limit; guesses++) {
        if (V(guess_moving)(w, v, rest) && guesses) { /* the other duals follow */
            for (int64_t h = 0; h < m->first; h++) z[h] = -z[h];
            for (int64_t h = m->first; h < m->width; h++)
                z[h] = m->order[h] < 0 ? 0.0 : v[h - m->first] - w->now.mu[m->order[h]];
            V(solve_back)(m->base, m->width, m->first, m->base_inverse, z);
            memcpy(w->next.mu, w->now.mu, w->k * sizeof(double));
            for (int64_t h = 0; h < m->width; h++)
                if (m->order[h] >= 0) w->next.mu[m->order[h]] += z[h];
            return guesses;
        }
        V(pick_constant)(w, 0.0, m->ridge);
        V(cholesky)(w->team, w->S, m->ld, m->count, w->keep, w->inverse, w->packed);
        for (int64_t h = 0; h < m->count; h++) v[m->list[h] - m->first] = 0.0;
        V(reduced_residual)(m, v, g, rest);
        memset(y, 0, (m->ld + 8) * sizeof(double));
        for (int64_t h = 0; h < m->count; h++) y[h] = -rest[m->list[h] - m->first];
        V(solve_forward)(w->S, m->ld, m->count, w->inverse, y);
        V(solve_back)(w->S, m->ld, m->count, w->inverse, y);
        for (int64_t h = 0; h < m->count; h++) v[m->list[h] - m->first] = y[h];
        V(reduced_residual)(m, v, g, rest);
    }
    return 0;
}
