/* In which order to eliminate the variables of a sparse symmetric matrix: approximate minimum degree.
 *
 * The matrix that is left after some eliminations is kept as a quotient graph. A variable is next to other variables (by
 * coefficients that are still there) and to elements: each elimination makes one, the set of variables that it joined to
 * each other. Next comes a variable with the least degree, bounded from above by
 *
 *     d(i) <= min(those left,  d(i) before + |new element|,  |variables next to i| + |new element| + sum |e \ new element|)
 *
 * Variables with equal neighbours are one from then on, elements inside a new one are absorbed by it, and a variable next to
 * nothing but the new element is eliminated with it. Variables next to more than DENSE roots of the size, columns in
 * nearly every row among them, are left to the end, where they fill a block of their own and nothing else.
 *
 * Reference: Amestoy, Davis, Duff, An approximate minimum degree ordering algorithm, SIAM J. Matrix Anal. Appl. 17 (1996).
 */

enum { DENSE = 10, FEWEST_DENSE = 16 };

typedef struct {
    int64_t size, room, used;
    int32_t *list;           /* neighbours: of a variable elements, then variables; of an element variables */
    int64_t *at;             /* (size) where each begins in `list` */
    int32_t *count, *elements; /* (size) how many there are, and how many of them are elements */
    int32_t *weight;         /* (size) variables that are one; 0: eliminated or part of another; below 0: in the new element */
    int32_t *degree;         /* (size) of variables the bound, of elements the weight of their variables */
    int32_t *first, *next, *previous; /* variables by degree */
    int32_t *joined, *last;  /* (size) what became one with a variable, as a list that begins with it, and its end */
    int32_t *bucket, *hash;  /* (size) variables of the new element by a hash of their neighbours */
    int64_t *mark;           /* (size) of elements, above `stamp`: the weight of what is outside of the new element */
    int64_t stamp;
    uint8_t *gone;           /* (size) absorbed elements */
} Graph;

static void graph_free(Graph *g) {
    void *all[] = {g->list, g->at, g->count, g->elements, g->weight, g->degree, g->first, g->next, g->previous,
                   g->joined, g->last, g->bucket, g->hash, g->mark, g->gone};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) free(all[i]);
}

static void take_out(Graph *g, int32_t i) {
    const int32_t before = g->previous[i], after = g->next[i];
    if (after >= 0) g->previous[after] = before;
    if (before >= 0) g->next[before] = after;
    else g->first[g->degree[i]] = after;
}

static void put_in(Graph *g, int32_t i) {
    const int32_t d = g->degree[i], after = g->first[d];
    g->next[i] = after;
    g->previous[i] = -1;
    if (after >= 0) g->previous[after] = i;
    g->first[d] = i;
}

/* j becomes one with i. */
static void join(Graph *g, int32_t i, int32_t j) {
    g->joined[g->last[i]] = j;
    g->last[i] = g->last[j];
    g->weight[j] = 0;
}

/* The graph of a pattern: column c has rows index[start[c]] .. of the upper triangle. Returns -1 without memory. */
static int graph_of(Graph *g, int64_t size, const int64_t *start, const int32_t *index) {
    const int64_t n = size, entries = start[n];
    *g = (Graph){.size = n, .room = 4 * entries + 4 * n + 16, .stamp = 1};
    int32_t **fields[] = {&g->count, &g->elements, &g->weight, &g->degree, &g->next, &g->previous, &g->joined, &g->last,
                          &g->bucket, &g->hash};
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) *fields[i] = calloc(n + 1, sizeof(int32_t));
    g->first = malloc((n + 1) * sizeof(int32_t));
    g->list = malloc(g->room * sizeof(int32_t));
    g->at = calloc(n + 1, sizeof(int64_t));
    g->mark = calloc(n + 1, sizeof(int64_t));
    g->gone = calloc(n + 1, 1);
    if (!g->list || !g->at || !g->mark || !g->gone || !g->first) return -1;
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
        if (!*fields[i]) return -1;
    for (int64_t c = 0; c < n; c++)
        for (int64_t e = start[c]; e < start[c + 1]; e++)
            if (index[e] != c) g->count[index[e]]++, g->count[c]++;
    for (int64_t i = 0; i < n; i++) {
        g->at[i] = g->used;
        g->used += g->count[i];
        g->degree[i] = g->count[i];
        g->count[i] = 0;
        g->weight[i] = 1;
        g->joined[i] = g->bucket[i] = -1;
        g->last[i] = (int32_t)i;
    }
    for (int64_t c = 0; c < n; c++)
        for (int64_t e = start[c]; e < start[c + 1]; e++)
            if (index[e] != c) {
                g->list[g->at[index[e]] + g->count[index[e]]++] = (int32_t)c;
                g->list[g->at[c] + g->count[c]++] = index[e];
            }
    for (int64_t d = 0; d <= n; d++) g->first[d] = -1;
    return 0;
}

/* The variables of the element that the elimination of `pivot` makes, in a new list; they leave the lists by degree. */
static int make_element(Graph *g, int32_t pivot) {
    int64_t most = g->count[pivot];
    for (int32_t e = 0; e < g->elements[pivot]; e++) most += g->count[g->list[g->at[pivot] + e]];
    if (g->used + most > g->room) {
        const int64_t room = g->room + g->room / 2 + most;
        int32_t *list = realloc(g->list, room * sizeof(int32_t));
        if (!list) return -1;
        g->list = list;
        g->room = room;
    }
    const int64_t begin = g->used;
    int32_t weight = 0;
    g->weight[pivot] = -g->weight[pivot];
    for (int32_t part = 0; part <= g->elements[pivot]; part++) {
        const int own = part == g->elements[pivot]; /* last, the variables next to the pivot itself */
        const int32_t from = own ? pivot : g->list[g->at[pivot] + part];
        for (int32_t e = own ? g->elements[pivot] : 0; e < g->count[from]; e++) {
            const int32_t i = g->list[g->at[from] + e];
            if (g->weight[i] <= 0) continue;
            weight += g->weight[i];
            g->weight[i] = -g->weight[i];
            take_out(g, i);
            g->list[g->used++] = i;
        }
        if (!own) g->gone[from] = 1;
    }
    g->at[pivot] = begin;
    g->count[pivot] = (int32_t)(g->used - begin);
    g->degree[pivot] = weight;
    g->elements[pivot] = -1; /* an element itself */
    return 0;
}

/* For elements next to variables of the new one: the weight of what is outside of it, plus `stamp`. */
static void measure_outside(Graph *g, int32_t pivot) {
    for (int32_t e = 0; e < g->count[pivot]; e++) {
        const int32_t i = g->list[g->at[pivot] + e], weight = -g->weight[i];
        for (int32_t n = 0; n < g->elements[i]; n++) {
            const int32_t element = g->list[g->at[i] + n];
            if (g->gone[element]) continue;
            if (g->mark[element] < g->stamp) g->mark[element] = g->stamp + g->degree[element];
            g->mark[element] -= weight;
        }
    }
}

/* The neighbours of a variable of the new element without those that are gone, the new element first; its bound of the
 * degree outside of it, and the hash. Returns whether it is next to nothing else and so eliminated too. */
static int renew(Graph *g, int32_t i, int32_t pivot) {
    int32_t *list = g->list + g->at[i], kept = 0;
    int64_t degree = 0;
    uint32_t hash = 0;
    const int32_t variables_from = g->elements[i], count = g->count[i];
    for (int32_t n = 0; n < variables_from; n++) {
        const int32_t element = list[n];
        if (g->gone[element]) continue;
        const int64_t outside = g->mark[element] - g->stamp;
        if (!outside) {
            g->gone[element] = 1; /* it has nothing that the new one has not */
            continue;
        }
        degree += outside;
        hash += (uint32_t)element;
        list[kept++] = element;
    }
    const int32_t elements = kept;
    for (int32_t n = variables_from; n < count; n++) {
        const int32_t j = list[n];
        if (g->weight[j] <= 0) continue; /* eliminated, part of another, or in the new element */
        degree += g->weight[j];
        hash += (uint32_t)j;
        list[kept++] = j;
    }
    if (!kept) return 1;
    /* There is room: the pivot, or an element that the new one absorbed, was next to it. */
    list[kept] = list[elements];
    list[elements] = list[0];
    list[0] = pivot;
    g->elements[i] = elements + 1;
    g->count[i] = kept + 1;
    g->degree[i] = (int32_t)(degree < g->degree[i] ? degree : g->degree[i]);
    g->hash[i] = (int32_t)((hash + (uint32_t)pivot) % (uint32_t)g->size);
    return 0;
}

/* Whether two variables of the new element have the same neighbours; those of i are marked. */
static int alike(const Graph *g, int32_t i, int32_t j) {
    if (g->count[i] != g->count[j] || g->elements[i] != g->elements[j]) return 0;
    for (int32_t n = 0; n < g->count[j]; n++)
        if (g->mark[g->list[g->at[j] + n]] != g->stamp) return 0;
    return 1;
}

/* Variables of the new element with equal neighbours become one. */
static void join_alike(Graph *g, int32_t pivot) {
    for (int32_t e = 0; e < g->count[pivot]; e++) {
        const int32_t i = g->list[g->at[pivot] + e];
        if (g->weight[i] >= 0) continue;
        const int32_t slot = g->hash[i];
        g->next[i] = g->bucket[slot];
        g->bucket[slot] = i;
    }
    for (int32_t e = 0; e < g->count[pivot]; e++) {
        const int32_t start = g->list[g->at[pivot] + e];
        if (g->weight[start] >= 0) continue;
        int32_t i = g->bucket[g->hash[start]];
        g->bucket[g->hash[start]] = -1;
        for (; i >= 0 && g->next[i] >= 0; i = g->next[i]) {
            g->stamp += g->size;
            for (int32_t n = 0; n < g->count[i]; n++) g->mark[g->list[g->at[i] + n]] = g->stamp;
            for (int32_t before = i, j = g->next[i]; j >= 0; j = g->next[j]) {
                if (alike(g, i, j)) {
                    g->weight[i] += g->weight[j];
                    join(g, i, j);
                    g->next[before] = g->next[j];
                } else before = j;
            }
        }
    }
    g->stamp += g->size;
}

/* What is left of the new element goes back into the lists by degree; returns the least of them. */
static int32_t close_element(Graph *g, int32_t pivot, int32_t left) {
    int32_t kept = 0, least = (int32_t)g->size;
    for (int32_t e = 0; e < g->count[pivot]; e++) {
        const int32_t i = g->list[g->at[pivot] + e], weight = -g->weight[i];
        if (weight <= 0) continue;
        g->weight[i] = weight;
        const int64_t degree = (int64_t)g->degree[i] + g->degree[pivot] - weight, others = left - weight;
        g->degree[i] = (int32_t)(degree < others ? degree : others);
        put_in(g, i);
        if (g->degree[i] < least) least = g->degree[i];
        g->list[g->at[pivot] + kept++] = i;
    }
    g->count[pivot] = kept;
    g->used = g->at[pivot] + kept;
    if (!kept) g->gone[pivot] = 1;
    return least;
}

/* order: which variable comes at each place. Returns 0, -1 without memory, -2 out of time. */
static int order_variables(int64_t size, const int64_t *start, const int32_t *index, int64_t until, int32_t *order) {
    Graph g;
    int failed = graph_of(&g, size, start, index);
    const double limit = DENSE * sqrt((double)size);
    int32_t done = 0, end = (int32_t)size, least = 0, left = (int32_t)size;
    for (int32_t i = 0; i < size && !failed; i++)
        if (g.count[i] > limit && g.count[i] > FEWEST_DENSE) {
            order[--end] = i;
            g.weight[i] = 0;
            left--;
            for (int32_t e = 0; e < g.count[i]; e++) g.degree[g.list[g.at[i] + e]]--;
        }
    for (int32_t i = 0; i < size && !failed; i++)
        if (g.weight[i]) put_in(&g, i);
    for (int64_t turn = 1; done < end && !failed; turn++) {
        if (turn % 256 == 0 && nanoseconds() > until) failed = -2;
        while (g.first[least] < 0) least++;
        const int32_t pivot = g.first[least];
        take_out(&g, pivot);
        failed = failed ? failed : make_element(&g, pivot);
        if (failed) break;
        left += g.weight[pivot];
        measure_outside(&g, pivot);
        for (int32_t e = 0; e < g.count[pivot]; e++) {
            const int32_t i = g.list[g.at[pivot] + e];
            if (!renew(&g, i, pivot)) continue;
            left += g.weight[i];
            g.degree[pivot] += g.weight[i];
            join(&g, pivot, i);
        }
        g.stamp += g.size;
        join_alike(&g, pivot);
        const int32_t new_least = close_element(&g, pivot, left);
        least = new_least < least ? new_least : least;
        g.weight[pivot] = 0;
        for (int32_t i = pivot; i >= 0; i = g.joined[i]) order[done++] = i;
    }
    graph_free(&g);
    return failed;
}
