/* What can be known of a sparse LDL' factorisation before the numbers: order, tree, supernodes and where everything goes.
 *
 * Neighbouring columns of L with equal rows are one supernode: with the rows below them a dense front. A child that comes
 * right before its parent joins it where that adds few zeros, because fronts of a few columns waste more than those cost.
 */

struct Analysis {
    int64_t size, fronts, entries, factor, stack, front; /* numbers of the factor, of the stack, of the largest front */
    int32_t *order;      /* (size) the variable at each place */
    int32_t *first;      /* (fronts + 1) its first column */
    int32_t *children;   /* (fronts) how many, the last ones on the stack when its turn comes */
    int64_t *row_start;  /* (fronts + 1) where its rows begin */
    int32_t *rows;       /* below its columns, in order */
    int64_t *begin;      /* (fronts + 1) where its part of the factor begins */
    int64_t *entry_start; /* (size + 1) coefficients of each column, on the diagonal and below */
    int32_t *entry_row;  /* (entries) */
    int64_t *entry;      /* (entries) its place among the user's */
};

/* Work arrays of an analysis, freed at its end. */
typedef struct {
    int32_t *place, *parent, *mark, *counts, *super, *above;
} Tree;

static void *filled(int64_t count, size_t size) { return calloc((size_t)count + 1, size); }

/* Coefficients by columns of the permuted lower triangle. */
static int arrange_entries(Analysis *a, const int64_t *start, const int32_t *index, int32_t *place) {
    for (int64_t p = 0; p < a->size; p++) place[a->order[p]] = (int32_t)p;
    memset(a->entry_start, 0, (a->size + 1) * sizeof(int64_t));
    for (int64_t c = 0; c < a->size; c++)
        for (int64_t e = start[c]; e < start[c + 1]; e++) {
            const int32_t i = place[index[e]], j = place[c];
            a->entry_start[(i < j ? i : j) + 1]++;
        }
    for (int64_t p = 0; p < a->size; p++) a->entry_start[p + 1] += a->entry_start[p];
    for (int64_t c = 0; c < a->size; c++)
        for (int64_t e = start[c]; e < start[c + 1]; e++) {
            const int32_t i = place[index[e]], j = place[c], column = i < j ? i : j;
            const int64_t to = a->entry_start[column]++;
            a->entry_row[to] = i < j ? j : i;
            a->entry[to] = e;
        }
    memmove(a->entry_start + 1, a->entry_start, a->size * sizeof(int64_t));
    a->entry_start[0] = 0;
    return 0;
}

/* The rows of the lower triangle: columns of each, for walks up the tree. Returns NULL without memory. */
static int32_t *columns_of_rows(const Analysis *a, int64_t *row_start) {
    int32_t *columns = filled(a->entries, sizeof(int32_t));
    if (!columns) return NULL;
    memset(row_start, 0, (a->size + 1) * sizeof(int64_t));
    for (int64_t e = 0; e < a->entries; e++) row_start[a->entry_row[e] + 1]++;
    for (int64_t p = 0; p < a->size; p++) row_start[p + 1] += row_start[p];
    for (int64_t c = 0; c < a->size; c++)
        for (int64_t e = a->entry_start[c]; e < a->entry_start[c + 1]; e++) columns[row_start[a->entry_row[e]]++] = (int32_t)c;
    memmove(row_start + 1, row_start, a->size * sizeof(int64_t));
    row_start[0] = 0;
    return columns;
}

/* The elimination tree: the parent of a column is the first row below its diagonal in L. */
static void find_parents(const Analysis *a, const int64_t *row_start, const int32_t *columns, int32_t *parent, int32_t *up) {
    for (int32_t i = 0; i < a->size; i++) {
        parent[i] = up[i] = -1;
        for (int64_t e = row_start[i]; e < row_start[i + 1]; e++)
            for (int32_t c = columns[e], next; c >= 0 && c < i; c = next) {
                next = up[c];
                up[c] = i; /* a short cut */
                if (next < 0) parent[c] = i;
            }
    }
}

/* The order in which children come before their parents and subtrees together: `order` changed, and the parents. */
static void order_by_tree(Analysis *a, int32_t *parent, int32_t *child, int32_t *sibling, int32_t *place, int32_t *stack) {
    const int32_t n = (int32_t)a->size;
    for (int32_t i = 0; i < n; i++) child[i] = -1;
    for (int32_t i = n - 1; i >= 0; i--) {
        if (parent[i] < 0) continue;
        sibling[i] = child[parent[i]];
        child[parent[i]] = i;
    }
    int32_t done = 0;
    for (int32_t root = 0; root < n; root++) {
        if (parent[root] >= 0) continue;
        int32_t top = 0;
        stack[0] = root;
        while (top >= 0) {
            const int32_t i = stack[top], next = child[i];
            if (next >= 0) {
                child[i] = sibling[next];
                stack[++top] = next;
            } else {
                place[i] = done++;
                top--;
            }
        }
    }
    for (int32_t i = 0; i < n; i++) child[place[i]] = a->order[i];
    memcpy(a->order, child, n * sizeof(int32_t));
    for (int32_t i = 0; i < n; i++) sibling[place[i]] = parent[i] < 0 ? -1 : place[parent[i]];
    memcpy(parent, sibling, n * sizeof(int32_t));
}

/* How many entries of L each column has, with its diagonal: one walk up the tree for each row. */
static void count_columns(const Analysis *a, const int64_t *row_start, const int32_t *columns, const Tree *t) {
    for (int32_t i = 0; i < a->size; i++) {
        t->mark[i] = i;
        t->counts[i] = 1;
        for (int64_t e = row_start[i]; e < row_start[i + 1]; e++)
            for (int32_t c = columns[e]; t->mark[c] != i; c = t->parent[c]) {
                t->mark[c] = i;
                t->counts[c]++;
            }
    }
}

/* Whether a front of `columns` columns and `zeros` of `total` entries that are none is worth its zeros. */
static int worth_joining(int64_t columns, double zeros, double total) {
    return columns <= 2 || (columns <= 16 && zeros < 0.3 * total) || (columns <= 48 && zeros < 0.1 * total) ||
           zeros < 0.05 * total;
}

/* Columns into supernodes. A front [from, to) is the child of the next one if its last column's parent is there. */
static void find_fronts(Analysis *a, const Tree *t, double *zeros) {
    const int32_t n = (int32_t)a->size;
    int32_t *sons = t->mark;
    memset(sons, 0, n * sizeof(int32_t));
    for (int32_t i = 0; i < n; i++)
        if (t->parent[i] >= 0) sons[t->parent[i]]++;
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        const int same = i && t->parent[i - 1] == i && t->counts[i - 1] == t->counts[i] + 1 && sons[i] == 1;
        if (!same) {
            a->first[count] = i;
            zeros[count++] = 0.0;
        }
        /* The front that ends before column i may be joined to the one that begins with it, once that is complete. */
        const int ends = i + 1 == n || t->parent[i] != i + 1 || t->counts[i] != t->counts[i + 1] + 1 || sons[i + 1] != 1;
        while (ends && count > 1) {
            const int32_t from = a->first[count - 2], middle = a->first[count - 1];
            if (t->parent[middle - 1] < middle || t->parent[middle - 1] > i) break;
            const double own = middle - from, other = i + 1 - middle, rows = t->counts[i] - 1;
            const double below = t->counts[middle - 1] - 1; /* of the child */
            const double added = own * (other + rows - below);
            const double columns = own + other, total = columns * (columns + 1) / 2 + columns * rows;
            const double empty = zeros[count - 2] + zeros[count - 1] + added;
            if (!worth_joining((int64_t)columns, empty, total)) break;
            count--;
            zeros[count - 1] = empty;
        }
    }
    a->fronts = count;
    a->first[count] = n;
    for (int32_t f = 0; f < count; f++)
        for (int32_t i = a->first[f]; i < a->first[f + 1]; i++) t->super[i] = f;
    for (int32_t f = 0; f < count; f++) {
        const int32_t parent = t->parent[a->first[f + 1] - 1];
        t->above[f] = parent < 0 ? -1 : t->super[parent];
        if (parent >= 0) a->children[t->above[f]]++;
    }
}

/* The rows below each front, in order, from row_start on, which moves to their end; rows NULL: only how many. */
static void walk_fronts(Analysis *a, const int64_t *row_start, const int32_t *columns, const Tree *t, int32_t *rows) {
    for (int32_t f = 0; f < a->fronts; f++) t->mark[f] = -1;
    for (int32_t i = 0; i < a->size; i++)
        for (int64_t e = row_start[i]; e < row_start[i + 1]; e++)
            for (int32_t f = t->super[columns[e]]; f >= 0 && a->first[f + 1] <= i && t->mark[f] != i; f = t->above[f]) {
                t->mark[f] = i;
                if (rows) rows[a->row_start[f]] = i;
                a->row_start[f]++;
            }
}

static int list_rows(Analysis *a, const int64_t *row_start, const int32_t *columns, const Tree *t) {
    walk_fronts(a, row_start, columns, t, NULL);
    int64_t total = 0;
    for (int64_t f = 0; f < a->fronts; f++) {
        const int64_t count = a->row_start[f];
        a->row_start[f] = total;
        total += count;
    }
    a->rows = filled(total, sizeof(int32_t));
    if (!a->rows) return -1;
    walk_fronts(a, row_start, columns, t, a->rows);
    memmove(a->row_start + 1, a->row_start, a->fronts * sizeof(int64_t));
    a->row_start[0] = 0;
    return 0;
}

/* Sizes of the factor, of the largest front and of the stack of what children leave to their parents. */
static int measure_fronts(Analysis *a) {
    int64_t *kept = filled(a->fronts, sizeof(int64_t)), top = 0, used = 0;
    if (!kept) return -1;
    for (int64_t f = 0; f < a->fronts; f++) {
        const int64_t p = a->first[f + 1] - a->first[f], r = a->row_start[f + 1] - a->row_start[f], m = p + r;
        a->begin[f + 1] = a->begin[f] + p * (p + 1) / 2 + p * r;
        a->front = m > a->front ? m : a->front;
        for (int32_t c = 0; c < a->children[f]; c++) used -= kept[--top];
        kept[top++] = r * (r + 1) / 2;
        used += r * (r + 1) / 2;
        a->stack = used > a->stack ? used : a->stack;
    }
    a->factor = a->begin[a->fronts];
    free(kept);
    return 0;
}

static void analysis_free(Analysis *a) {
    if (!a) return;
    void *all[] = {a->order, a->first, a->children, a->row_start, a->rows, a->begin, a->entry_start, a->entry_row, a->entry, a};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) free(all[i]);
}

static int analyse_into(Analysis *a, const int64_t *start, const int32_t *index, int64_t until, Tree *t, int64_t *row_start,
                        double *zeros) {
    const int code = order_variables(a->size, start, index, until, a->order);
    if (code) return code;
    arrange_entries(a, start, index, t->place);
    int32_t *columns = columns_of_rows(a, row_start);
    if (!columns) return -1;
    find_parents(a, row_start, columns, t->parent, t->mark);
    order_by_tree(a, t->parent, t->mark, t->counts, t->place, t->super);
    free(columns);
    arrange_entries(a, start, index, t->place);
    columns = columns_of_rows(a, row_start);
    if (!columns) return -1;
    count_columns(a, row_start, columns, t);
    find_fronts(a, t, zeros);
    const int failed = list_rows(a, row_start, columns, t);
    free(columns);
    return failed ? failed : measure_fronts(a);
}

/* The pattern of an upper triangle by columns: rows index[start[c]] .. index[start[c + 1] - 1] of column c, the diagonal
 * among them. Returns 0, -1 without memory, -2 out of time. */
static int analyse(int64_t size, const int64_t *start, const int32_t *index, int64_t until, Analysis **made) {
    Analysis *a = filled(1, sizeof(Analysis));
    if (!a) return -1;
    a->size = size;
    a->entries = start[size];
    a->order = filled(size, sizeof(int32_t));
    a->first = filled(size, sizeof(int32_t));
    a->children = filled(size, sizeof(int32_t));
    a->row_start = filled(size, sizeof(int64_t));
    a->begin = filled(size, sizeof(int64_t));
    a->entry_start = filled(size, sizeof(int64_t));
    a->entry_row = filled(a->entries, sizeof(int32_t));
    a->entry = filled(a->entries, sizeof(int64_t));
    int32_t *work = filled(6 * (size + 1), sizeof(int32_t));
    int64_t *row_start = filled(size, sizeof(int64_t));
    double *zeros = filled(size, sizeof(double));
    int code = -1;
    if (a->order && a->first && a->children && a->row_start && a->begin && a->entry_start && a->entry_row && a->entry && work &&
        row_start && zeros) {
        Tree tree = {work, work + (size + 1), work + 2 * (size + 1), work + 3 * (size + 1), work + 4 * (size + 1),
                     work + 5 * (size + 1)};
        code = analyse_into(a, start, index, until, &tree, row_start, zeros);
    }
    free(work);
    free(row_start);
    free(zeros);
    if (code) analysis_free(a);
    else *made = a;
    return code;
}

/* ---- the numbers: fronts.h ---- */

enum { PANEL = 64, FEW_ROWS = 8, OUT_OF_TIME = -2 }; /* PANEL: pivots whose rows are multiplied at once */
#define SMALLEST_PIVOT 1e-300
#define SLOW 0.7 /* share of the residual that a refinement must leave at most to be worth another */

typedef struct {
    double *front, *left, *right, *stack;
    int32_t *place; /* (size) of each row in the front */
    int32_t *waiting; /* (fronts) those on the stack */
    int64_t until;
    int64_t *pivots; /* positive, negative and dropped ones */
} Fronts;

/* A linear system in the order of elimination: what its factor is refined by, then the vectors of a solve. */
typedef struct {
    double *values;            /* (entries) */
    double *diagonal, *weight; /* (size) the diagonal without regularisation, and how much a residual counts */
    double *rhs, *v, *better, *rest, *rows;
} Equations;

static int64_t equations_room(const Analysis *a) { return a->entries + 6 * a->size + a->front; }

static Equations equations_in(const Analysis *a, double *room) {
    const int64_t n = a->size;
    double *at = room + a->entries;
    return (Equations){room, at, at + n, at + 2 * n, at + 3 * n, at + 4 * n, at + 5 * n, at + 6 * n};
}
