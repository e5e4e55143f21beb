/* The layout of a sparsity pattern, made in time and memory that grow with the coefficients and their pairs alone. */

/* A run of coefficients (or of pairs): at, at + 1, ... belong to variables col, col + 1, ... and to one target (step 0)
 * or to neighbouring ones (step 1). The coefficients of pairs are first, first + 1, ... and second, second + 1, ... */
typedef struct {
    int32_t at, count, col, target, step, first, second;
} Run;

/* Everything that follows from the sparsity pattern; row positions are those of the kernel's order. */
struct Layout {
    int64_t rows, variables, entries, pairs, leading, width; /* width: the other rows, rounded up to a multiple of 8 */
    int64_t groups, entry_runs, pair_runs;                   /* no runs: too short to pay, one entry at a time */
    int64_t tiles, separate; /* tiles: ranges of variables; separate: no leading row has variables in two of them */
    int64_t dense;           /* most coefficients are not zero: no pairs, H is a product of matrices */
    const int32_t *order;    /* (rows) the user's row at each position */
    const int32_t *entry, *entry_row, *entry_col; /* (entries) place in the user's order, position, variable; by tile */
    const int32_t *pair_first, *pair_second, *pair_col, *pair_target; /* (pairs) entries of one variable, place in H */
    const Run *runs_of_entries, *runs_of_pairs;
    const int32_t *group_start, *group_rows; /* groups of disjoint rows; none where there are too many */
    const int32_t *tile_start, *tile_entries, *tile_pairs, *tile_entry_runs, *tile_pair_runs; /* (tiles + 1) where each begins */
    const int8_t *senses; /* (rows) in the user's order */
    double seconds;       /* rough time of one evaluation and one factorisation, to decide about threads */
};

/* Why there is no layout. */
enum {
    LAYOUT_NO_MEMORY = -1,
    LAYOUT_MADE,
    LAYOUT_INVALID,    /* a coefficient lies outside of the matrix, or one of its places is taken twice */
    LAYOUT_ROWS,       /* too many rows */
    LAYOUT_VARIABLES,  /* too many variables */
    LAYOUT_PAIRS,      /* too many pairs of coefficients of one variable */
    LAYOUT_OTHER_ROWS, /* too many rows outside of the leading group */
};

/* Beyond these, methods with sparse factors are the better choice. */
enum {
    MOST_ROWS = 1 << 16,
    MOST_VARIABLES = INT32_MAX - 8,
    MOST_OTHER_ROWS = 256,       /* outside of the leading group, whose factor is dense */
    MOST_OTHER_ROWS_FULL = 4096, /* the same where most of that factor is not zero anyway */
    FEW_OTHER_ROWS = 1000,
    MOST_TABLES = 16000000,      /* pairs kept one by one */
    MOST_PAIRS = 64000000,       /* pairs in runs */
    SHORTEST_RUN = 3,            /* mean length from which runs are faster than single entries */
    DENSE_ROWS = 16,             /* from which H is a product of matrices, if most coefficients are not zero */
    TILE_VARIABLES = 8192,
    USUAL_TILES = 64,            /* a tile of many variables is larger; there may be twice as many, of uneven sizes */
};
enum { NOBODY = INT32_MIN }; /* leads: no row is in this group */
/* Of pairs of rows with a variable in common: their matrix counts as full; and where there are more than FEW_OTHER_ROWS,
 * whose dense factor takes longer than a sparse one of half the entries. */
static const double full_share = 0.2, full_share_of_many = 0.5;

/* A pattern, and what is known of it while its layout is made; the arrays are in one block. */
typedef struct {
    int64_t rows, variables, entries;
    const int64_t *row, *col;      /* (entries) as the user has them */
    const int8_t *senses;          /* (rows) */
    uint64_t *taken;               /* (variables) bit g: group g has a row with the variable */
    int32_t *counts;               /* (variables) rows that contain each */
    int32_t *end;                  /* (variables + 2) where the coefficients of each end in by_col */
    int32_t *by_row, *by_col;      /* (entries) coefficients row by row, and variable by variable, rows by position */
    int32_t *begin;                /* (rows + 2) where those of each row begin in by_row */
    int32_t *group, *first, *last; /* (rows) group, -1: none; first and last variable */
    int32_t *position;             /* (rows) in the kernel's order */
} Pattern;

/* Count the coefficients of rows and variables, and sort them by row; returns whether all are inside the matrix. */
static int count_coefficients(Pattern *a, int64_t *pairs) {
    for (int64_t e = 0; e < a->entries; e++) {
        if (a->row[e] < 0 || a->row[e] >= a->rows || a->col[e] < 0 || a->col[e] >= a->variables) return 0;
        a->begin[a->row[e] + 2]++;
        a->counts[a->col[e]]++;
    }
    for (int64_t i = 0; i < a->rows; i++) a->begin[i + 2] += a->begin[i + 1];
    for (int64_t e = 0; e < a->entries; e++) a->by_row[a->begin[a->row[e] + 1]++] = (int32_t)e;
    *pairs = 0;
    for (int64_t j = 0; j < a->variables; j++) *pairs += (int64_t)a->counts[j] * (a->counts[j] + 1) / 2;
    return 1;
}

/* Rows in order, each put into the first of 64 groups none of whose rows shares a variable with it (-1: into none), and
 * the first and last variable of each. Returns the number of groups, and how many rows each has. */
static int64_t group_rows(Pattern *a, int64_t *sizes) {
    int64_t groups = 0;
    memset(sizes, 0, 64 * sizeof(*sizes));
    for (int64_t i = 0; i < a->rows; i++) {
        uint64_t used = 0;
        a->first[i] = (int32_t)a->variables;
        a->last[i] = -1;
        for (int32_t n = a->begin[i]; n < a->begin[i + 1]; n++) {
            const int32_t j = (int32_t)a->col[a->by_row[n]];
            used |= a->taken[j];
            a->first[i] = j < a->first[i] ? j : a->first[i];
            a->last[i] = j > a->last[i] ? j : a->last[i];
        }
        a->group[i] = ~used ? __builtin_ctzll(~used) : -1;
        if (!~used) continue;
        for (int32_t n = a->begin[i]; n < a->begin[i + 1]; n++)
            a->taken[a->col[a->by_row[n]]] |= UINT64_C(1) << a->group[i];
        sizes[a->group[i]]++;
        groups = a->group[i] >= groups ? a->group[i] + 1 : groups;
    }
    return groups;
}

/* Where tiles of variables begin and the last one ends; returns how many there are. A tile begins at a multiple of
 * eight that no leading row spans, where there is one nearby; `separate` says whether there always was. */
static int64_t cut_tiles(const Pattern *a, int32_t leader, int32_t *start, int64_t *separate) {
    const int64_t l = a->variables, even = (l + USUAL_TILES - 1) / USUAL_TILES;
    const int64_t size = even > TILE_VARIABLES ? even : TILE_VARIABLES;
    int32_t *crossing = a->end; /* leading rows with variables on both sides of the place before each variable */
    int64_t tiles = 0;
    start[0] = 0;
    *separate = 1;
    if (l > size) {
        memset(crossing, 0, (l + 2) * sizeof(*crossing));
        for (int64_t i = 0; i < a->rows; i++) {
            if (a->group[i] != leader || a->last[i] < 0) continue;
            crossing[a->first[i] + 1]++;
            crossing[a->last[i] + 1]--;
        }
        for (int64_t j = 0; j < l; j++) crossing[j + 1] += crossing[j];
    }
    while (l - start[tiles] > size) {
        const int64_t wanted = start[tiles] + size, least = start[tiles] + size / 2, most = wanted + size;
        int64_t best = -1;
        for (int64_t j = rounded_up(least + 1); j <= most && j < l; j += 8)
            if (!crossing[j] && (best < 0 || llabs(j - wanted) < llabs(best - wanted))) best = j;
        *separate &= best >= 0;
        start[++tiles] = (int32_t)(best >= 0 ? best : wanted & ~(int64_t)7);
    }
    start[++tiles] = (int32_t)rounded_up(l);
    return tiles;
}

INLINE int32_t *take_table(int32_t **from, int64_t count) {
    int32_t *table = *from;
    *from += count;
    return table;
}

/* Bytes of a layout with its tables; `singles`: pairs one by one. */
static size_t size_of_layout(const Layout *a, int singles) {
    int64_t numbers = a->rows + a->rows / 4 + 1 + a->groups + 1 + (a->groups ? a->rows : 0) + 5 * (a->tiles + 1) + 3 * a->entries;
    numbers += (a->entry_runs + a->pair_runs) * (int64_t)(sizeof(Run) / sizeof(int32_t)) + (singles ? 4 * a->pairs : 0);
    return sizeof(Layout) + (size_t)numbers * sizeof(int32_t);
}

/* Point to the tables, one after another behind the structure; those whose size is known last are last. */
static void place_tables(Layout *a, int singles) {
    int32_t *at = (int32_t *)(a + 1);
    const int32_t **of_tiles[] = {&a->tile_start, &a->tile_entries, &a->tile_pairs, &a->tile_entry_runs,
                                  &a->tile_pair_runs};
    const int32_t **of_entries[] = {&a->entry, &a->entry_row, &a->entry_col};
    const int32_t **of_pairs[] = {&a->pair_first, &a->pair_second, &a->pair_col, &a->pair_target};
    a->order = take_table(&at, a->rows);
    a->senses = (const int8_t *)take_table(&at, a->rows / 4 + 1);
    a->group_start = take_table(&at, a->groups + 1);
    a->group_rows = take_table(&at, a->groups ? a->rows : 0);
    for (int i = 0; i < 5; i++) *of_tiles[i] = take_table(&at, a->tiles + 1);
    for (int i = 0; i < 3; i++) *of_entries[i] = take_table(&at, a->entries);
    a->runs_of_entries = (const Run *)take_table(&at, a->entry_runs * (int64_t)(sizeof(Run) / sizeof(int32_t)));
    a->runs_of_pairs = (const Run *)take_table(&at, a->pair_runs * (int64_t)(sizeof(Run) / sizeof(int32_t)));
    for (int i = 0; i < 4; i++) *of_pairs[i] = singles ? take_table(&at, a->pairs) : NULL;
}

/* The order of rows: the leading group, then the others; and the groups to sweep. */
static void order_rows(Pattern *p, Layout *a, int32_t leader) {
    int32_t *order = (int32_t *)a->order, *start = (int32_t *)a->group_start, *rows = (int32_t *)a->group_rows;
    int32_t ahead = 0, behind = (int32_t)a->leading, grouped = 0;
    for (int32_t i = 0; i < p->rows; i++) {
        p->position[i] = p->group[i] == leader ? ahead++ : behind++;
        order[p->position[i]] = i;
    }
    for (int32_t g = 0; g < a->groups; g++) {
        start[g] = grouped;
        for (int64_t i = 0; i < p->rows; i++)
            if (p->group[i] == g) rows[grouped++] = p->position[i];
    }
    start[a->groups] = grouped;
}

/* Coefficients in order: within each tile the first of every variable, then the second of those that have one, and so
 * on. Returns whether no place of the matrix is taken twice. */
static int order_entries(Pattern *p, Layout *a) {
    int32_t *entry = (int32_t *)a->entry, *entry_row = (int32_t *)a->entry_row, *entry_col = (int32_t *)a->entry_col;
    int32_t *tile_entries = (int32_t *)a->tile_entries;
    p->end[0] = 0;
    for (int64_t j = 0; j < a->variables; j++) p->end[j + 1] = p->end[j] + p->counts[j];
    for (int64_t i = 0; i < a->rows; i++)
        for (int32_t n = p->begin[a->order[i]]; n < p->begin[a->order[i] + 1]; n++)
            p->by_col[p->end[p->col[p->by_row[n]]]++] = p->by_row[n];
    int32_t at = 0; /* end[j] was where variable j begins, and is now where it ends */
    int twice = 0;
    for (int64_t t = 0; t < a->tiles; t++) {
        const int64_t stop = a->tile_start[t + 1] < a->variables ? a->tile_start[t + 1] : a->variables;
        tile_entries[t] = at;
        for (int32_t slot = 0, left = 1; left; slot++) {
            left = 0;
            for (int64_t j = a->tile_start[t]; j < stop; j++) {
                if (p->counts[j] <= slot) continue;
                const int32_t *here = p->by_col + p->end[j] - p->counts[j] + slot, e = *here;
                twice |= slot && p->row[e] == p->row[here[-1]];
                entry[at] = e;
                entry_row[at] = p->position[p->row[e]];
                entry_col[at++] = (int32_t)j;
                left |= p->counts[j] > slot + 1;
            }
        }
    }
    tile_entries[a->tiles] = at;
    return !twice;
}

/* A list of runs in the making; those beyond `most` are counted only. */
typedef struct {
    Run *runs, open;
    int64_t room, most, count;
    int failed; /* for lack of memory */
} Runs;

static int make_room(Runs *to) {
    const int64_t room = to->room ? 2 * to->room : 64;
    Run *runs = realloc(to->runs, room * sizeof(Run));
    if (!runs) return 0;
    to->runs = runs;
    to->room = room;
    return 1;
}

INLINE void close_run(Runs *to) {
    if (!to->open.count) return;
    if (to->count < to->most && !to->failed) {
        to->failed = to->count == to->room && !make_room(to);
        if (!to->failed) to->runs[to->count] = to->open;
    }
    to->count++;
    to->open.count = 0;
}

/* The next entry: the open run goes on, or a new one begins. */
INLINE void add_entry(Runs *to, Run next) {
    Run *open = &to->open;
    const int32_t n = open->count, ahead = next.target - open->target;
    if (n && next.col == open->col + n && next.first == open->first + n && next.second == open->second + n) {
        if (n == 1 && (ahead == 0 || ahead == 1)) open->step = ahead;
        if ((n == 1 && (ahead == 0 || ahead == 1)) || (n > 1 && ahead == open->step * n)) {
            open->count++;
            return;
        }
    }
    close_run(to);
    *open = next;
    open->count = 1;
    open->step = 0;
}

/* Cut entries into runs that end with their tile. */
static void find_entry_runs(const Layout *a, Runs *to) {
    int32_t *tile_runs = (int32_t *)a->tile_entry_runs;
    for (int64_t t = 0; t < a->tiles; t++) {
        tile_runs[t] = (int32_t)to->count;
        for (int32_t e = a->tile_entries[t]; e < a->tile_entries[t + 1]; e++)
            add_entry(to, (Run){.at = e, .col = a->entry_col[e], .target = a->entry_row[e], .first = e, .second = e});
        close_run(to);
    }
    tile_runs[a->tiles] = (int32_t)to->count;
}

/* Where in H (see factor) the product of coefficients in rows i <= g goes. */
INLINE int32_t place_of(const Layout *a, int64_t i, int64_t g) {
    const int64_t lead = rounded_up(a->leading), coupling = lead + a->width, corner = coupling + a->leading * a->width;
    if (i == g) return (int32_t)(i < a->leading ? i : lead + i - a->leading);
    const int64_t row = i < a->leading ? coupling + i * a->width : corner + (i - a->leading) * a->width;
    return (int32_t)(row + g - a->leading);
}

/* The pairs of coefficients number `first` and `second` of the variables of one tile, cut into runs, and one by one
 * where there are tables for them. The coefficients begin at `one` and `other`, and the pairs at `at`. */
typedef struct {
    const int32_t *counts;
    int64_t start, stop;
    int32_t first, second, one, other, at;
    int tables;
} Slots;

INLINE Slots add_pairs(const Layout *a, Slots s, Runs *to) {
    for (int64_t j = s.start; j < s.stop; j++) {
        if (s.counts[j] > s.second) {
            const int32_t place = place_of(a, a->entry_row[s.one], a->entry_row[s.other]);
            add_entry(to, (Run){.at = s.at, .col = (int32_t)j, .target = place, .first = s.one, .second = s.other});
            if (s.tables) {
                ((int32_t *)a->pair_first)[s.at] = s.one;
                ((int32_t *)a->pair_second)[s.at] = s.other;
                ((int32_t *)a->pair_col)[s.at] = (int32_t)j;
                ((int32_t *)a->pair_target)[s.at] = place;
            }
            s.at++;
            s.other++;
        }
        s.one += s.counts[j] > s.first;
    }
    return s; /* one: where the coefficients number first + 1 begin */
}

/* Pairs of coefficients of one variable, tile by tile. */
static void find_pairs(const Pattern *p, const Layout *a, Runs *to, int tables) {
    int32_t *tile_runs = (int32_t *)a->tile_pair_runs, *tile_pairs = (int32_t *)a->tile_pairs;
    Slots s = {.counts = p->counts, .tables = tables};
    memset(tile_runs, 0, (a->tiles + 1) * sizeof(*tile_runs)); /* a dense matrix has no pairs */
    memset(tile_pairs, 0, (a->tiles + 1) * sizeof(*tile_pairs));
    for (int64_t t = 0; t < a->tiles && a->pairs; t++) {
        s.start = a->tile_start[t];
        s.stop = a->tile_start[t + 1] < a->variables ? a->tile_start[t + 1] : a->variables;
        tile_runs[t] = (int32_t)to->count;
        tile_pairs[t] = s.at;
        int32_t most = 0, begin = a->tile_entries[t]; /* of the coefficients number `second` */
        for (int64_t j = s.start; j < s.stop; j++) most = s.counts[j] > most ? s.counts[j] : most;
        for (s.second = 0; s.second < most; s.second++) {
            s.one = a->tile_entries[t];
            for (s.first = 0; s.first <= s.second; s.first++) {
                s.other = begin;
                s = add_pairs(a, s, to);
            }
            begin = s.other;
        }
        close_run(to);
    }
    tile_runs[a->tiles] = (int32_t)to->count;
    tile_pairs[a->tiles] = s.at;
}

/* Memory for what is known of a pattern while its layout is made; returns the block to be freed. */
static void *arrange_pattern(Pattern *a) {
    const size_t l = (size_t)a->variables, k = (size_t)a->rows, n = (size_t)a->entries;
    uint64_t *block = calloc(l + (2 * l + 5 * k + 2 * n + 8) / 2, sizeof(uint64_t));
    if (!block) return NULL;
    a->taken = block;
    int32_t *at = (int32_t *)(block + l);
    int32_t **rows[] = {&a->group, &a->first, &a->last, &a->position};
    a->counts = take_table(&at, a->variables);
    a->end = take_table(&at, a->variables + 2);
    a->by_row = take_table(&at, a->entries);
    a->by_col = take_table(&at, a->entries);
    a->begin = take_table(&at, a->rows + 2);
    for (int i = 0; i < 4; i++) *rows[i] = take_table(&at, a->rows);
    return block;
}

/* Rough time of one evaluation and one factorisation, to decide about threads. */
static double seconds_of(const Layout *a) {
    const double rest = (double)(a->rows - a->leading), l = (double)a->variables;
    const double squares = a->dense ? l * rest * rest / 8 : (double)a->pairs + (double)a->leading * rest * rest / 8;
    return 1e-9 * (2 * l + (double)a->entries + squares + rest * rest * rest / 12);
}

/* What a pattern is refused for: so many of something, more than the limit. */
static int refuse(int64_t *refused, int code, int64_t count, int64_t limit) {
    refused[0] = count;
    refused[1] = limit;
    return code;
}

/* The numbers of a layout; returns 0, or why there is none. */
static int measure(Pattern *p, Layout *a, int32_t *leader, int32_t *tile_start, int64_t *refused) {
    int64_t sizes[64];
    if (!count_coefficients(p, &a->pairs)) return LAYOUT_INVALID;
    a->dense = a->rows >= DENSE_ROWS && a->pairs > 2 * a->rows * a->variables;
    if (a->pairs > MOST_PAIRS && !a->dense) return refuse(refused, LAYOUT_PAIRS, a->pairs, MOST_PAIRS);
    a->groups = group_rows(p, sizes);
    *leader = a->dense ? NOBODY : 0;
    for (int32_t g = 1; g < a->groups && !a->dense; g++) *leader = sizes[g] > sizes[*leader] ? g : *leader;
    a->leading = a->dense ? 0 : sizes[*leader];
    const int64_t others = a->rows - a->leading, larger = others > a->leading ? others : a->leading;
    const double share = others > FEW_OTHER_ROWS ? full_share_of_many : full_share;
    const int full = (double)a->pairs > share * (double)others * (double)larger;
    if (others > MOST_OTHER_ROWS && (others > MOST_OTHER_ROWS_FULL || !full))
        return refuse(refused, LAYOUT_OTHER_ROWS, others, MOST_OTHER_ROWS);
    if (a->groups > CONSTANTS.most_groups) a->groups = 0;
    a->width = rounded_up(others);
    a->tiles = cut_tiles(p, *leader, tile_start, &a->separate);
    a->seconds = seconds_of(a);
    if (a->dense) a->pairs = 0;
    return LAYOUT_MADE;
}

/* The tables but runs and pairs, with those still to be added to the block; returns 0, or why there is none. */
static int fill(Pattern *p, Layout *a, int32_t leader, const int32_t *tile_start, Runs *entries, Runs *pairs) {
    memcpy((int32_t *)a->tile_start, tile_start, (a->tiles + 1) * sizeof(*tile_start));
    memcpy((int8_t *)a->senses, p->senses, a->rows);
    order_rows(p, a, leader);
    if (!order_entries(p, a)) return LAYOUT_INVALID;
    find_entry_runs(a, entries);
    find_pairs(p, a, pairs, 0);
    return entries->failed || pairs->failed ? LAYOUT_NO_MEMORY : LAYOUT_MADE;
}

/* Add runs, or pairs one by one, to the block; returns it, or NULL, and frees it, without memory. */
static Layout *complete(Pattern *p, Layout *a, const Runs *entries, const Runs *pairs) {
    const int singles = pairs->count > pairs->most;
    a->entry_runs = entries->count <= entries->most ? entries->count : 0;
    a->pair_runs = singles ? 0 : pairs->count;
    Layout *whole = realloc(a, size_of_layout(a, singles));
    if (!whole) {
        free(a);
        return NULL;
    }
    place_tables(whole, singles);
    if (whole->entry_runs) memcpy((Run *)whole->runs_of_entries, entries->runs, whole->entry_runs * sizeof(Run));
    if (whole->pair_runs) memcpy((Run *)whole->runs_of_pairs, pairs->runs, whole->pair_runs * sizeof(Run));
    if (singles) find_pairs(p, whole, &(Runs){0}, 1);
    return whole;
}

static int make_layout(Pattern *p, Layout **made, int64_t *refused) {
    Layout numbers = {.rows = p->rows, .variables = p->variables, .entries = p->entries};
    int32_t leader, tile_start[2 * USUAL_TILES + 4];
    int code = measure(p, &numbers, &leader, tile_start, refused);
    if (code) return code;
    Runs entries = {.most = numbers.entries / SHORTEST_RUN}, pairs = {.most = numbers.pairs / SHORTEST_RUN};
    Layout *a = malloc(size_of_layout(&numbers, 0));
    if (!a) return LAYOUT_NO_MEMORY;
    *a = numbers;
    place_tables(a, 0);
    code = fill(p, a, leader, tile_start, &entries, &pairs);
    if (!code && pairs.count > pairs.most && a->pairs > MOST_TABLES)
        code = refuse(refused, LAYOUT_PAIRS, a->pairs, MOST_TABLES);
    if (code) free(a);
    else *made = complete(p, a, &entries, &pairs);
    free(entries.runs);
    free(pairs.runs);
    return code ? code : *made ? LAYOUT_MADE : LAYOUT_NO_MEMORY;
}

/* See linsat.h. */
EXPORT int linsat_layout(int64_t rows, int64_t variables, int64_t entries, const int64_t *row, const int64_t *col,
                         const int8_t *senses, Layout **made, int64_t *refused) {
    Pattern p = {.rows = rows, .variables = variables, .entries = entries, .row = row, .col = col, .senses = senses};
    *made = NULL;
    refused[0] = refused[1] = 0;
    if (rows < 0 || variables < 0 || entries < 0) return LAYOUT_INVALID;
    if (rows > MOST_ROWS) return refuse(refused, LAYOUT_ROWS, rows, MOST_ROWS);
    if (variables > MOST_VARIABLES) return refuse(refused, LAYOUT_VARIABLES, variables, MOST_VARIABLES);
    if (entries > INT32_MAX) return refuse(refused, LAYOUT_PAIRS, entries, INT32_MAX);
    void *block = arrange_pattern(&p);
    if (!block) return LAYOUT_NO_MEMORY;
    const int code = make_layout(&p, made, refused);
    free(block);
    return code;
}

EXPORT void linsat_layout_free(Layout *layout) { free(layout); }
