/* One instance: its numbers as stated, checked, and its standard form A x + S z = B (see linsat/arrays/problem.py).
 */

/* Rows and variables in the order of the pattern, coefficients in that of the layout; everything in double. */
typedef struct {
    double *values, *lower, *upper, *side, *price, *parameters[PARAMETERS];    /* as stated */
    double *least, *most, *wide;                   /* of a x over the box; variables with room and a coefficient in a row */
    double *rhs, *slack, *scale, *dual_lower, *dual_upper, *tight_share;         /* B, S, rho; bounds of the multipliers */
    double *multiple;                              /* g of covering rows: S = g (d - least) */
    double *room, unit;                            /* (variables) what rows leave above the lower bound, and s: see state_unit */
    uint8_t *negative;                             /* whether a row has negative coefficients */
    uint8_t *decided, *free, *at_upper, *active, *tight, *before;                /* what presolve decided; before: the last time */
    double *range;                                 /* room for presolve */
    const int8_t *senses;
    int infeasible, forbids, zeros, broken; /* zeros: some numbers of the objective are 0; forbids: some variables are held at their lower bound; broken: the last instance had numbers that cannot be */
} Instance;

/* Blocks of memory are cut into arrays, each at a multiple of eight numbers. */
INLINE double *take(double **from, int64_t count) {
    double *taken = *from;
    *from += rounded_up(count);
    return taken;
}

static void take_each(double **from, int64_t count, double **const *arrays) {
    for (; *arrays; arrays++) **arrays = take(from, count);
}

/* Arrays of `count` numbers each, at the addresses given. */
#define TAKE(from, count, ...) take_each(from, count, (double **const[]){__VA_ARGS__, NULL})

INLINE int64_t decided_size(const Layout *a) { return 2 * (a->variables + a->rows); }

/* Numbers of instance n. */
INLINE void read_numbers(double *restrict to, Numbers from, int64_t n, int64_t count) {
    if (!count) return; /* a set without rows has no numbers to point to */
    const int64_t at = n * from.step;
    if (from.single)
        for (int64_t j = 0; j < count; j++) to[j] = ((const float *)from.at)[at + j * from.stride];
    else if (from.stride == 1) memcpy(to, (const double *)from.at + at, count * sizeof(double));
    else
        for (int64_t j = 0; j < count; j++) to[j] = ((const double *)from.at)[at + j * from.stride];
}

/* A number of an array of a call, which is float or double. */
INLINE double score_at(const void *scores, int single, int64_t at) {
    return single ? ((const float *)scores)[at] : ((const double *)scores)[at];
}

INLINE double number_at(Numbers from, int64_t n, int64_t j) {
    const int64_t at = n * from.step + j * from.stride;
    return score_at(from.at, (int)from.single, at);
}

INLINE int is_soft(const Instance *it, int64_t i) { return isfinite(it->price[i]); }
INLINE int is_absent(const Instance *it, int64_t i) { return it->dual_lower[i] == 0.0 && it->dual_upper[i] == 0.0; }

/* Whether a score of -inf, or a number of zero, holds variable j at its lower bound. */
INLINE int is_held(const Instance *it, const Objective *objective, const double *scores, int64_t j) {
    return scores[j] == -INFINITY || (objective->zero[1] && it->parameters[1][j] == 0.0);
}

/* Coefficients and the box, and what follows from them alone; 0, or the status that they ask for. */
static int state_box(Instance *it, const Layout *a, const Statement *s, const double *scores, int64_t n) {
    const Objective *objective = OBJECTIVES + s->objective;
    const int wide = objective->unit == OF_BOX, plain = objective->unit == ITSELF; /* what a coefficient's size is */
    read_numbers(it->lower, s->lower, n, a->variables);
    read_numbers(it->upper, s->upper, n, a->variables);
    int usable = 1, empty = 0;
    for (int64_t j = 0; j < a->variables; j++) {
        const double low = it->lower[j], high = it->upper[j];
        const int held = it->forbids && is_held(it, objective, scores, j);
        if (held) it->upper[j] = low;
        empty |= low > high;
        usable &= low < INFINITY && high > -INFINITY;
        usable &= low > -INFINITY || !(held || objective->finite_lower);
        usable &= high < INFINITY || held || !objective->finite_upper;
    }
    memset(it->least, 0, 4 * a->rows * sizeof(double)); /* least, most, wide and scale follow each other */
    memset(it->negative, 0, a->rows);
    for (int64_t e = 0; e < a->entries; e++) {
        const int32_t i = a->order[a->entry_row[e]], j = a->entry_col[e];
        const double value = it->values[e] = number_at(s->values, n, a->entry[e]);
        usable &= fabs(value) < INFINITY;
        it->negative[i] |= value < 0;
        if (!wide) {
            it->wide[i] += value != 0;
            it->scale[i] += plain ? value * value : fabs(value);
            continue;
        }
        const double low = value * it->lower[j], high = value * it->upper[j], width = it->upper[j] - it->lower[j];
        it->least[i] += low < high ? low : high;
        it->most[i] += low < high ? high : low;
        it->wide[i] += value != 0 && width > 0;
        it->scale[i] += fabs(value) * width;
    }
    for (int64_t i = 0; i < a->rows; i++) {
        const double mean = plain ? sqrt(it->scale[i]) : it->scale[i] / (it->wide[i] > 1.0 ? it->wide[i] : 1.0);
        it->scale[i] = it->wide[i] > 0 ? mean : 1.0;
        usable &= it->scale[i] < INFINITY;
    }
    it->unit = 1.0;
    return !usable ? NOT_FINITE : empty ? INFEASIBLE : 0;
}

/* Where x has no unit of its own: what rows of non-negative coefficients leave of each variable, and s, the mean size of what
 * rows ask for, to a power of two, so that scales change without rounding. */
static void state_unit(Instance *it, const Layout *a) {
    double *asked = it->range;
    int64_t sum = 0, count = 0;
    for (int64_t i = 0; i < a->rows; i++) asked[i] = it->side[i];
    for (int64_t e = 0; e < a->entries; e++) {
        const double low = it->lower[a->entry_col[e]];
        if (low != 0.0) asked[a->order[a->entry_row[e]]] -= it->values[e] * low;
    }
    for (int64_t j = 0; j < a->variables; j++) it->room[j] = INFINITY;
    for (int64_t i = 0; i < a->rows; i++) {
        it->scale[i] /= it->unit;
        const double size = is_absent(it, i) ? 0.0 : fabs(asked[i]) / it->scale[i];
        int power;
        frexp(size, &power);
        if (size > 0 && size < INFINITY) sum += power - 1, count++;
        if (is_soft(it, i) || is_absent(it, i) || it->senses[i] == GREATER || it->negative[i]) asked[i] = INFINITY;
    }
    for (int64_t e = 0; e < a->entries; e++) {
        const double value = it->values[e], room = asked[a->order[a->entry_row[e]]] / value;
        double *least = it->room + a->entry_col[e];
        /* No room at all holds x by the dual of the row, as anywhere; a cut at 0 would leave that dual unknown. */
        if (value > 0 && room > 0 && room < *least) *least = room;
    }
    if (count) sum /= count;
    it->unit = ldexp(1.0, sum > 100 ? 100 : sum < -100 ? -100 : (int)sum);
    for (int64_t i = 0; i < a->rows; i++) it->scale[i] *= it->unit;
}

/* Slack of c x >= d with c >= 0 in units of what d needs beyond the least: the multiplier of the paper. */
INLINE double multiple_of(double need, double total, double shift) {
    return floor(total / ((need > 0 ? need : 1.0) + shift) * (1 + 1e-12));
}

/* Right-hand sides and prices; 0, or the status that they ask for. */
static int state_rows(Instance *it, const Layout *a, const Statement *s, int64_t n) {
    int usable = 1, impossible = 0;
    read_numbers(it->side, s->side, n, a->rows);
    if (s->price.at) read_numbers(it->price, s->price, n, a->rows);
    else
        for (int64_t i = 0; i < a->rows; i++) it->price[i] = INFINITY;
    for (int64_t i = 0; i < a->rows; i++) {
        const int sense = it->senses[i];
        const double price = it->price[i];
        const int absent = (sense == LESS && it->side[i] == INFINITY) || (sense == GREATER && it->side[i] == -INFINITY);
        if (absent) it->side[i] = sense == LESS ? it->most[i] : it->least[i]; /* a side that says nothing */
        impossible |= (sense == LESS && it->side[i] == -INFINITY) || (sense == GREATER && it->side[i] == INFINITY);
        usable &= price > 0 && it->side[i] == it->side[i] && !(sense == EQUAL && isinf(it->side[i]));
        const double side = it->side[i], need = side - it->least[i];
        it->multiple[i] = 0.0;
        double slack = 0.0;
        if (s->entropic_slack && !isfinite(price) && sense != EQUAL) {
            if (sense == GREATER && !it->negative[i]) it->multiple[i] = multiple_of(need, it->most[i] - it->least[i], s->gamma_shift);
            slack = sense == LESS ? need : it->negative[i] ? it->most[i] - side : it->multiple[i] * need;
        }
        it->slack[i] = slack;
        it->rhs[i] = sense == GREATER ? side + slack : side;
        const int one_sided = !s->entropic_slack || isfinite(price);
        it->dual_lower[i] = absent || (one_sided && sense == GREATER) ? 0.0 : -price;
        it->dual_upper[i] = absent || (one_sided && sense == LESS) ? 0.0 : price;
    }
    if (usable && !impossible && OBJECTIVES[s->objective].unit == OF_ROWS) state_unit(it, a);
    return !usable ? NOT_FINITE : impossible ? INFEASIBLE : 0;
}

/* The numbers of the objective; 0, or the status that they ask for. */
static int state_parameters(Instance *it, const Layout *a, const Statement *s, int64_t n) {
    const Objective *objective = OBJECTIVES + s->objective;
    int usable = 1;
    it->zeros = 0;
    for (int p = 0; p < PARAMETERS; p++) {
        double *own = it->parameters[p];
        const double above = objective->above[p];
        const int64_t count = size_of_parameter(a, s, p);
        if (s->parameters[p].at) read_numbers(own, s->parameters[p], n, count);
        else
            for (int64_t j = 0; j < count; j++) own[j] = 1.0;
        if (above == -INFINITY) { /* any number, of which there may be many */
            double nothing[8] = {0.0}; /* sums that do not wait for each other */
            for (int64_t j = 0; j < count; j++) nothing[j & 7] += 0.0 * own[j];
            for (int n = 0; n < 8; n++) usable &= nothing[n] == 0.0;
            continue;
        }
        for (int64_t j = 0; j < count; j++) {
            usable &= (own[j] > above || (objective->zero[p] && own[j] == 0)) && own[j] < INFINITY;
            it->zeros |= objective->zero[p] && own[j] == 0;
        }
    }
    return usable ? 0 : NOT_FINITE;
}

/* Variable j, with its numbers or those of the instance. */
INLINE Variable variable_of(const Instance *it, int o, int64_t j) {
    Variable of = {it->lower[j], it->upper[j], {1.0, 1.0}};
    for (int p = 0; p < PARAMETERS; p++)
        if (OBJECTIVES[o].sizes[p]) of.numbers[p] = it->parameters[p][OBJECTIVES[o].sizes[p] == EACH ? j : 0];
    return of;
}

/* Nothing fixed, every row active that there is. */
static void decide_nothing(Instance *it, const Layout *a) {
    memset(it->free, 1, a->variables);
    memset(it->at_upper, 0, a->variables);
    for (int64_t i = 0; i < a->rows; i++) it->active[i] = !is_absent(it, i);
}

/* The two ends of a row as written, and its prices: what each unit beyond the upper or short of the lower end costs, or
 * infinity. An absent row has no ends; one that holds with equality anyway has two equal ones. */
typedef struct {
    double lower, upper, over, under;
} Ends;

INLINE Ends ends_of(const Instance *a, int64_t i) {
    const double low = a->dual_lower[i], high = a->dual_upper[i];
    Ends ends = {-INFINITY, INFINITY, INFINITY, INFINITY};
    if (a->tight[i]) {
        ends.lower = ends.upper = a->rhs[i] - a->slack[i] * a->tight_share[i];
        return ends;
    }
    if (low < 0) ends.upper = a->rhs[i];
    if (high > 0) ends.lower = a->senses[i] == LESS ? a->rhs[i] - a->slack[i] : a->side[i];
    if (low > -INFINITY && high < INFINITY) ends.over = -low, ends.under = high;
    return ends;
}
