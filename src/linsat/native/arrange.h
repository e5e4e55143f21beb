/* Index tables of a sparsity pattern (layout.py), in time and memory that grow with the coefficients alone. */

/* Rows in order, each put into the first of 64 groups none of whose rows shares a variable with it (-1: into none), and
 * the first and last variable of each. Returns 0, or -1 without memory. */
EXPORT int linsat_groups(int64_t rows, int64_t variables, int64_t entries, const int64_t *row, const int64_t *col,
                         int32_t *group, int32_t *first, int32_t *last) {
    uint64_t *taken = calloc(variables + 1, sizeof(uint64_t)); /* bit g: group g has a row with the variable */
    int32_t *begin = calloc(rows + 2 + entries, sizeof(int32_t)), *by_row = begin + rows + 2;
    const int found = taken && begin ? 0 : -1;
    for (int64_t e = 0; !found && e < entries; e++) begin[row[e] + 2]++;
    for (int64_t i = 0; !found && i < rows; i++) begin[i + 2] += begin[i + 1];
    for (int64_t e = 0; !found && e < entries; e++) by_row[begin[row[e] + 1]++] = (int32_t)col[e];
    for (int64_t i = 0; !found && i < rows; i++) {
        uint64_t used = 0;
        first[i] = (int32_t)variables;
        last[i] = -1;
        for (int32_t n = begin[i]; n < begin[i + 1]; n++) {
            const int32_t j = by_row[n];
            used |= taken[j];
            first[i] = j < first[i] ? j : first[i];
            last[i] = j > last[i] ? j : last[i];
        }
        group[i] = ~used ? __builtin_ctzll(~used) : -1;
        for (int32_t n = begin[i]; ~used && n < begin[i + 1]; n++) taken[by_row[n]] |= UINT64_C(1) << group[i];
    }
    free(taken);
    free(begin);
    return found;
}

/* What follows from the order of rows and the tiles; positions are those of the kernel's order. */
typedef struct {
    int64_t variables, entries, leading, width, tiles;
    const int64_t *row, *col;       /* (entries) as the user has them */
    const int32_t *position;        /* (rows) of each row of the user */
    const int32_t *start_of;        /* (rows + 1) where the entries of each position begin, were they sorted by it */
    const int32_t *tile_start;      /* (tiles + 1) */
    int32_t *counts;                /* (variables) rows that contain each */
    int32_t *entry, *entry_row, *entry_col, *tile_entries;
} Pattern;

/* Coefficients in order: within each tile the first of every variable, then the second of those that have one, and so
 * on. Returns 0, or -1 without memory. */
EXPORT int linsat_entries(const Pattern *a, int64_t rows) {
    int32_t *by_row = malloc((2 * a->entries + rows + a->variables + 2) * sizeof(int32_t));
    if (!by_row) return -1;
    int32_t *by_col = by_row + a->entries, *next = by_col + a->entries, *begin = next + rows;
    memcpy(next, a->start_of, rows * sizeof(int32_t));
    for (int64_t e = 0; e < a->entries; e++) by_row[next[a->position[a->row[e]]]++] = (int32_t)e;
    begin[0] = 0;
    for (int64_t j = 0; j < a->variables; j++) begin[j + 1] = begin[j] + a->counts[j];
    for (int64_t n = 0; n < a->entries; n++) by_col[begin[a->col[by_row[n]]]++] = by_row[n];
    int64_t at = 0; /* begin[j] is now where variable j ends */
    for (int64_t t = 0; t < a->tiles; t++) {
        const int64_t stop = a->tile_start[t + 1] < a->variables ? a->tile_start[t + 1] : a->variables;
        a->tile_entries[t] = (int32_t)at;
        for (int32_t slot = 0, left = 1; left; slot++) {
            left = 0;
            for (int64_t j = a->tile_start[t]; j < stop; j++) {
                if (a->counts[j] <= slot) continue;
                const int32_t e = by_col[begin[j] - a->counts[j] + slot];
                a->entry[at] = e;
                a->entry_row[at] = a->position[a->row[e]];
                a->entry_col[at++] = (int32_t)j;
                left |= a->counts[j] > slot + 1;
            }
        }
    }
    a->tile_entries[a->tiles] = (int32_t)at;
    free(by_row);
    return 0;
}

/* A list of runs in the making; those beyond `room` are counted only. */
typedef struct {
    Run *runs, open;
    int64_t room, found;
} Runs;

INLINE void close_run(Runs *to) {
    if (to->open.count && to->found < to->room) to->runs[to->found] = to->open;
    to->found += to->open.count > 0;
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

/* Cut entries into runs that end with their tile; returns how many there are, writing no more than `room`. */
EXPORT int64_t linsat_runs(const Pattern *a, int64_t room, Run *runs, int32_t *tile_runs) {
    Runs to = {.runs = runs, .room = room};
    for (int64_t t = 0; t < a->tiles; t++) {
        tile_runs[t] = (int32_t)to.found;
        for (int32_t e = a->tile_entries[t]; e < a->tile_entries[t + 1]; e++)
            add_entry(&to, (Run){.at = e, .col = a->entry_col[e], .target = a->entry_row[e], .first = e, .second = e});
        close_run(&to);
    }
    tile_runs[a->tiles] = (int32_t)to.found;
    return to.found;
}

/* Where in H (see factor) the product of coefficients in rows i <= g goes. */
INLINE int32_t place_of(const Pattern *a, int64_t i, int64_t g) {
    const int64_t lead = rounded_up(a->leading), coupling = lead + a->width, corner = coupling + a->leading * a->width;
    if (i == g) return (int32_t)(i < a->leading ? i : lead + i - a->leading);
    return (int32_t)((i < a->leading ? coupling + i * a->width : corner + (i - a->leading) * a->width) + g - a->leading);
}

/* Pairs of coefficients of one variable, tile by tile, cut into runs as above, and one by one where there are tables
 * for them (first, second, variable, place in H). */
EXPORT int64_t linsat_pairs(const Pattern *a, int64_t room, Run *runs, int32_t *tile_runs, int32_t *tile_pairs,
                            int32_t *tables, int64_t pairs) {
    Runs to = {.runs = runs, .room = room};
    int32_t at = 0;
    for (int64_t t = 0; t < a->tiles; t++) {
        const int64_t start = a->tile_start[t];
        const int64_t stop = a->tile_start[t + 1] < a->variables ? a->tile_start[t + 1] : a->variables;
        tile_runs[t] = (int32_t)to.found;
        tile_pairs[t] = at;
        int32_t most = 0, first_slot, second_slot = a->tile_entries[t];
        for (int64_t j = start; j < stop; j++) most = a->counts[j] > most ? a->counts[j] : most;
        for (int32_t second = 0; second < most; second++) {
            first_slot = a->tile_entries[t];
            int32_t in_second = 0;
            for (int32_t first = 0; first <= second; first++) {
                int32_t seen_first = 0, seen_second = 0;
                for (int64_t j = start; j < stop; j++) {
                    if (a->counts[j] > second) {
                        const int32_t one = first_slot + seen_first, other = second_slot + seen_second++;
                        const int32_t place = place_of(a, a->entry_row[one], a->entry_row[other]);
                        add_entry(&to, (Run){.at = at, .col = (int32_t)j, .target = place, .first = one, .second = other});
                        if (tables) {
                            tables[at] = one;
                            tables[pairs + at] = other;
                            tables[2 * pairs + at] = (int32_t)j;
                            tables[3 * pairs + at] = place;
                        }
                        at++;
                    }
                    seen_first += a->counts[j] > first;
                }
                first_slot += seen_first;
                in_second = seen_second;
            }
            second_slot += in_second;
        }
        close_run(&to);
    }
    tile_runs[a->tiles] = (int32_t)to.found;
    tile_pairs[a->tiles] = at;
    return to.found;
}
