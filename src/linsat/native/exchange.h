/* Which constraints of a full quadratic bind: guessed and exchanged, or added one by one. See quadratic.h.
 *
 * Compiled once per instruction set (kernel.h).
 */

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
            const double off = beyond(q, g, value[g]), end = off > 0 ? q->low[g] : q->high[g];
            if (off != 0.0 && fabs(off) > EXCHANGED * (1.0 + fabs(end)) && fabs(off) > far) far = fabs(off), worst = g;
        }
        if (worst < 0) break;
        const double end = beyond(q, worst, value[worst]) > 0 ? q->low[worst] : q->high[worst];
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
            const double own = way_to_go(q, worst, q->lambda[worst] + q->d[worst], way);
            if (q->state[worst] == IDLE ? own < step : 0) step = own, stops = q->bind;
            if (q->state[worst] == AT_PRICE_UP || q->state[worst] == AT_PRICE_DOWN) { /* back from its price, at most to 0 */
                const double back = fabs(q->lambda[worst] + q->d[worst]);
                if (q->low[worst] != q->high[worst] && back < step) step = back, stops = q->bind;
            }
            for (int64_t e = 0; e < q->bind; e++) {
                const int64_t g = q->list[e];
                const double room = way_to_go(q, g, q->lambda[g] + q->d[g], q->rhs[e]);
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
            q->next[g] = corrected(q, g, q->lambda[g] + q->d[g], q->value[g], reach);
            wrong += q->next[g] != q->state[g];
        }
        return wrong;
    }
    memcpy(q->next, q->state, q->m);
    for (int64_t e = 0; e < q->bind; e++) { /* the same, for two kinds of constraints only: those that bind, and all */
        const int64_t g = q->list[e];
        if (corrected(q, g, q->lambda[g] + q->d[g], q->value[g], reach) == IDLE) q->next[g] = IDLE, wrong++;
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
            q->next[g] = corrected(q, g, 0.0, q->value[g], reach);
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
