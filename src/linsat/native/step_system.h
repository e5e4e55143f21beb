/* The linear system of an interior-point step,
 *
 *     D dx - A' dmu = pull,    A dx = primal          D the curvature of each column, positive,
 *
 * for few enough rows and columns that dense factors pay. A column with one coefficient, +1 or -1 (the slack of a
 * row, or what takes up how much a soft row is broken by), is eliminated by hand: it adds 1 / D to the diagonal E of
 *
 *     [ D   A' ] [  dx  ]
 *     [ A  -E  ] [ -dmu ]
 *
 * whose Schur complement is factored, on the side of the rows, A D^-1 A' + E, regularised as little as an accurate
 * answer allows, or on that of the variables, D + A' E^-1 A, where these are fewer and E is positive. Answers are
 * refined against the system itself. Rows that are parallel but for an angle of 1e-8 make both singular in doubles;
 * then an orthogonal factorisation of [D^-1/2 A'; E^1/2] takes over, which resolves angles down to 1e-15. This is
 * what linsat/arrays/interior/sparse_system.py does with sparse factors.
 *
 * Compiled once per instruction set (kernel.h).
 */

/* to = A x, or |A| |x| */
INLINE void V(rows_of)(const System *s, const double *x, int sizes, double *restrict to) {
    memset(to, 0, s->row_room * sizeof(double));
    for (int64_t j = 0; j < s->variables; j++) {
        const double factor = sizes ? fabs(x[j]) : x[j];
        if (s->filled && !sizes) V(add_product)(to, to, s->matrix + j * s->row_room, factor, s->row_room);
        else
            for (int32_t e = s->start[j]; e < s->start[j + 1]; e++)
                to[s->index[e]] += (sizes ? fabs(s->value[e]) : s->value[e]) * factor;
    }
}

/* to = A' v, or |A|' |v| */
INLINE void V(variables_of)(const System *s, const double *v, int sizes, double *restrict to) {
    for (int64_t j = 0; j < s->variables; j++) {
        double sum = 0.0;
        if (s->filled && !sizes) sum = V(dot)(s->matrix + j * s->row_room, v, s->row_room);
        else
            for (int32_t e = s->start[j]; e < s->start[j + 1]; e++)
                sum += sizes ? fabs(s->value[e] * v[s->index[e]]) : s->value[e] * v[s->index[e]];
        to[j] = sum;
    }
}

/* E, and the weights in which residuals are measured. */
static void V(weigh)(System *s) {
    memset(s->slack, 0, s->row_room * sizeof(double));
    for (int64_t c = s->variables; c < s->columns; c++)
        s->slack[s->single_row[c - s->variables]] += 1.0 / s->curvature[c];
    memcpy(s->gram, s->slack, s->row_room * sizeof(double));
    for (int64_t j = 0; j < s->variables; j++) {
        const double inverse = 1.0 / s->curvature[j];
        s->column_weight[j] = sqrt(inverse);
        for (int32_t e = s->start[j]; e < s->start[j + 1]; e++)
            s->gram[s->index[e]] += s->value[e] * s->value[e] * inverse;
    }
    for (int64_t i = 0; i < s->rows; i++) s->row_weight[i] = 1.0 / sqrt(s->gram[i] > SMALLEST ? s->gram[i] : SMALLEST);
}

/* A D^-1 A' + E, regularised, and its Cholesky factor. */
static void V(factor_by_rows)(System *s) {
    const int64_t ld = s->row_room, l = s->variables;
    double *S = s->factor;
    memset(S, 0, ld * ld * sizeof(double));
    if (s->filled) {
        const int packed = ld >= PACKED;
        for (int64_t j = 0; j < l; j++)
            for (int64_t i = 0; i < ld; i += 8) {
                double *to = s->panels + (packed ? ((i >> 3) * l + j) * 8 : j * ld + i);
                for (int64_t b = 0; b < 8; b += LANES)
                    V(store)(to + b, V(load)(s->matrix + j * ld + i + b) * s->column_weight[j]);
            }
        Product product = {S, ld, 0, l, {s->panels, packed ? 8 : ld, packed ? 8 * l : 8}, 1.0};
        V(multiply)(s->team, &product);
    } else
        for (int64_t j = 0; j < l; j++)
            for (int32_t e = s->start[j]; e < s->start[j + 1]; e++) {
                const double scaled = s->value[e] / s->curvature[j];
                for (int32_t f = s->start[j]; f <= e; f++) S[s->index[f] * ld + s->index[e]] += scaled * s->value[f];
            }
    for (int64_t i = 0; i < s->rows; i++) {
        S[i * ld + i] += s->slack[i] + regularisation[s->level] * s->gram[i];
        s->second[i] = S[i * ld + i];
    }
    V(cholesky)(s->team, S, ld, s->rows, s->second, s->inverse, s->packed);
}

/* D + A' E^-1 A, and its Cholesky factor. */
static void V(factor_by_variables)(System *s) {
    const int64_t ld = s->variable_room, k = s->rows;
    const int packed = ld >= PACKED;
    double *S = s->factor;
    memset(S, 0, ld * ld * sizeof(double));
    memset(s->panels, 0, k * ld * sizeof(double));
    for (int64_t i = 0; i < k; i++) s->second[i] = sqrt(1.0 / s->slack[i]);
    for (int64_t j = 0; j < s->variables; j++)
        for (int32_t e = s->start[j]; e < s->start[j + 1]; e++) {
            const int64_t i = s->index[e];
            s->panels[packed ? ((j >> 3) * k + i) * 8 + (j & 7) : i * ld + j] = s->value[e] * s->second[i];
        }
    Product product = {S, ld, 0, k, {s->panels, packed ? 8 : ld, packed ? 8 * k : 8}, 1.0};
    V(multiply)(s->team, &product);
    for (int64_t j = 0; j < s->variables; j++) {
        S[j * ld + j] += s->curvature[j];
        s->first[j] = S[j * ld + j];
    }
    V(cholesky)(s->team, S, ld, s->variables, s->first, s->inverse, s->packed);
}

/* [D^-1/2 A'; E^1/2] in columns of norm one, its largest rows first: their sizes differ by decades. */
static void V(fill_orthogonal)(System *s) {
    const int64_t l = s->variables, ld = s->height_room;
    double *sizes = s->turned;
    memset(sizes, 0, ld * sizeof(double));
    for (int64_t j = 0; j < l; j++)
        for (int32_t e = s->start[j]; e < s->start[j + 1]; e++) {
            const double size = fabs(s->value[e]) * s->column_weight[j] * s->row_weight[s->index[e]];
            sizes[j] = size > sizes[j] ? size : sizes[j];
        }
    for (int64_t i = 0; i < s->rows; i++) sizes[l + i] = sqrt(s->slack[i]) * s->row_weight[i];
    sort_places(s, sizes);
    memset(s->reflectors, 0, s->rows * ld * sizeof(double));
    for (int64_t j = 0; j < l; j++)
        for (int32_t e = s->start[j]; e < s->start[j + 1]; e++) {
            const int64_t i = s->index[e];
            s->reflectors[i * ld + s->place[j]] = s->value[e] * s->column_weight[j] * s->row_weight[i];
        }
    for (int64_t i = 0; i < s->rows; i++)
        s->reflectors[i * ld + s->place[l + i]] = sqrt(s->slack[i]) * s->row_weight[i];
}

/* to -= v <v, to> beta from number `from` on */
INLINE void V(reflect)(const double *v, double beta, int64_t from, int64_t count, double *to) {
    const double factor = -beta * V(dot)(v + from, to + from, count - from);
    V(add_product)(to + from, to + from, v + from, factor, count - from);
}

/* Householder's factorisation with column pivoting: column h of R above its diagonal, then the reflector that made
 * it. */
static void V(factor_orthogonal)(System *s) {
    const int64_t k = s->rows, ld = s->height_room, most = s->height < k ? s->height : k;
    double *size = s->second;
    V(fill_orthogonal)(s);
    for (int64_t i = 0; i < k; i++) {
        s->pivots[i] = (int32_t)i;
        size[i] = V(dot)(s->reflectors + i * ld, s->reflectors + i * ld, s->height);
    }
    double largest = 0.0;
    for (s->rank = 0; s->rank < most; s->rank++) {
        const int64_t c = s->rank;
        int64_t best = c;
        for (int64_t h = c + 1; h < k; h++)
            if (size[s->pivots[h]] > size[s->pivots[best]]) best = h;
        const int32_t pivot = s->pivots[best];
        s->pivots[best] = s->pivots[c];
        s->pivots[c] = pivot;
        double *v = s->reflectors + pivot * ld;
        const double norm = sqrt(size[pivot]), end = v[c] > 0 ? -norm : norm;
        if (c == 0) largest = norm;
        if (!(norm > LEAST_RANK * largest)) break;
        const double beta = 1.0 / (norm * (norm + fabs(v[c])));
        v[c] -= end;
        s->diagonal[c] = end;
        s->inverse[c] = beta;
        for (int64_t h = c + 1; h < k; h++) {
            double *other = s->reflectors + s->pivots[h] * ld;
            V(reflect)(v, beta, c, s->height, other);
            size[s->pivots[h]] = V(dot)(other + c + 1, other + c + 1, s->height - c - 1);
        }
    }
}

/* dx = D^-1/2 [(I - Q Q') D^-1/2 e + Q R^-T g],  -v = R^-1 [R^-T g - Q' D^-1/2 e] */
static void V(solve_orthogonal)(System *s, const double *e, const double *g, double *dx, double *v) {
    const int64_t ld = s->height_room, rank = s->rank;
    double *pulled = s->turned, *gained = s->turned + ld;
    memset(pulled, 0, ld * sizeof(double));
    memset(gained, 0, ld * sizeof(double));
    memset(v, 0, s->row_room * sizeof(double));
    for (int64_t j = 0; j < s->variables; j++) pulled[s->place[j]] = s->column_weight[j] * e[j];
    for (int64_t c = 0; c < rank; c++)
        V(reflect)(s->reflectors + s->pivots[c] * ld, s->inverse[c], c, s->height, pulled);
    for (int64_t c = 0; c < rank; c++) {
        const int32_t i = s->pivots[c];
        gained[c] = (g[i] * s->row_weight[i] - V(dot)(s->reflectors + i * ld, gained, c)) / s->diagonal[c];
    }
    for (int64_t c = 0; c < rank; c++) gained[c] -= pulled[c];
    for (int64_t c = rank - 1; c >= 0; c--) {
        const int32_t i = s->pivots[c];
        double sum = gained[c];
        for (int64_t h = c + 1; h < rank; h++) sum += s->reflectors[s->pivots[h] * ld + c] * v[s->pivots[h]];
        v[i] = -sum / s->diagonal[c];
    }
    for (int64_t i = 0; i < s->rows; i++) v[i] *= s->row_weight[i];
    for (int64_t c = rank - 1; c >= 0; c--)
        V(reflect)(s->reflectors + s->pivots[c] * ld, s->inverse[c], c, s->height, gained);
    for (int64_t j = 0; j < s->variables; j++)
        dx[j] = s->column_weight[j] * (s->column_weight[j] * e[j] + gained[s->place[j]]);
}

/* D dx + A' v = e,  A dx - E v = g, once, with the factor as it is. */
static void V(solve_once)(System *s, const double *e, const double *g, double *restrict dx, double *restrict v) {
    if (s->method == ORTHOGONAL) {
        V(solve_orthogonal)(s, e, g, dx, v);
        return;
    }
    if (s->method == BY_VARIABLES) {
        for (int64_t i = 0; i < s->row_room; i++) v[i] = i < s->rows ? g[i] / s->slack[i] : 0.0;
        V(variables_of)(s, v, 0, dx);
        for (int64_t j = 0; j < s->variables; j++) dx[j] += e[j];
        memset(dx + s->variables, 0, (s->variable_room - s->variables) * sizeof(double));
        V(solve_forward)(s->factor, s->variable_room, s->variables, s->inverse, dx);
        V(solve_back)(s->factor, s->variable_room, s->variables, s->inverse, dx);
        V(rows_of)(s, dx, 0, v);
        for (int64_t i = 0; i < s->rows; i++) v[i] = (v[i] - g[i]) / s->slack[i];
        return;
    }
    for (int64_t j = 0; j < s->variables; j++) dx[j] = e[j] / s->curvature[j];
    V(rows_of)(s, dx, 0, v);
    for (int64_t i = 0; i < s->rows; i++) v[i] -= g[i];
    V(solve_forward)(s->factor, s->row_room, s->rows, s->inverse, v);
    V(solve_back)(s->factor, s->row_room, s->rows, s->inverse, v);
    memset(v + s->rows, 0, (s->row_room - s->rows) * sizeof(double));
    V(variables_of)(s, v, 0, dx);
    for (int64_t j = 0; j < s->variables; j++) dx[j] = (e[j] - dx[j]) / s->curvature[j];
}

/* What the system leaves of its right-hand sides at a solution; returns its size. */
static double V(leaves)(System *s, const double *dx, const double *v, double *restrict e, double *restrict g) {
    V(variables_of)(s, v, 0, e);
    for (int64_t j = 0; j < s->variables; j++) e[j] = s->first[j] - s->curvature[j] * dx[j] - e[j];
    V(rows_of)(s, dx, 0, g);
    for (int64_t i = 0; i < s->rows; i++) g[i] = s->second[i] - g[i] + s->slack[i] * v[i];
    return weighted(s, e, g);
}

/* dx (columns) and dmu (rows), refined while that helps. */
static void V(solve_system)(System *s, const double *pull, const double *primal, double *dx, double *dmu) {
    const int64_t l = s->variables;
    memcpy(s->first, pull, l * sizeof(double));
    memcpy(s->second, primal, s->rows * sizeof(double));
    for (int64_t c = l; c < s->columns; c++)
        s->second[s->single_row[c - l]] -= s->sign[c - l] * pull[c] / s->curvature[c];
    double whole = weighted(s, s->first, s->second);
    whole = whole > SMALLEST ? whole : SMALLEST;
    V(solve_once)(s, s->first, s->second, s->found_x, s->found_v);
    double size = V(leaves)(s, s->found_x, s->found_v, s->rest_x, s->rest_v);
    for (int n = 0; n < REFINEMENTS && !(size < REFINED * whole); n++) {
        V(solve_once)(s, s->rest_x, s->rest_v, s->next_x, s->next_v);
        for (int64_t j = 0; j < l; j++) s->next_x[j] += s->found_x[j];
        for (int64_t i = 0; i < s->rows; i++) s->next_v[i] += s->found_v[i];
        const double next = V(leaves)(s, s->next_x, s->next_v, s->rest_x, s->rest_v);
        if (!(next < size)) break;
        exchange(&s->found_x, &s->next_x);
        exchange(&s->found_v, &s->next_v);
        const int slow = next > 0.7 * size;
        size = next;
        if (slow) break;
    }
    s->quality = isfinite(size) ? size / whole : INFINITY;
    memcpy(dx, s->found_x, l * sizeof(double));
    for (int64_t i = 0; i < s->rows; i++) dmu[i] = -s->found_v[i];
    for (int64_t c = l; c < s->columns; c++)
        dx[c] = (pull[c] + s->sign[c - l] * dmu[s->single_row[c - l]]) / s->curvature[c];
}

static void V(factor_system)(System *s) {
    if (s->method == BY_VARIABLES) V(factor_by_variables)(s);
    else if (s->method == BY_ROWS) V(factor_by_rows)(s);
    else V(factor_orthogonal)(s);
}

/* Factor with as little regularisation as leaves the solution of this first system accurate, and solve it. Too little
 * loses digits to rounding, too much keeps refinement from converging: then the other levels are tried. */
static void V(solve_accurately)(System *s, const double *pull, const double *primal, double *dx, double *dmu) {
    V(weigh)(s);
    if (s->method == BY_VARIABLES && !all_slack(s)) s->method = BY_ROWS;
    if (s->method == BY_ROWS && s->quality < ACCURATE && s->level > 0) s->level--;
    V(factor_system)(s);
    V(solve_system)(s, pull, primal, dx, dmu);
    if (s->quality <= INACCURATE || s->method == ORTHOGONAL) return;
    int best = s->level, tried = s->method == BY_ROWS ? 1 << s->level : 0;
    double least = s->method == BY_ROWS ? s->quality : INFINITY;
    const int from = s->level;
    s->method = BY_ROWS;
    for (int n = 0; n < 2 * LEVELS; n++) { /* more of it first, then less */
        const int level = n < LEVELS ? from + n : from - (n - LEVELS);
        if (level < 0 || level >= LEVELS || tried >> level & 1) continue;
        s->level = level;
        tried |= 1 << level;
        V(factor_system)(s);
        V(solve_system)(s, pull, primal, dx, dmu);
        if (s->quality <= INACCURATE) return;
        if (s->quality < least) least = s->quality, best = level;
    }
    s->level = best;
    if (s->may_be_orthogonal) s->method = ORTHOGONAL;
    V(factor_system)(s);
    V(solve_system)(s, pull, primal, dx, dmu);
}
