/* The core as two custom calls of XLA, through which JAX runs it on the CPU.
 *
 * XLA's foreign function interface is a stable binary interface; the few structures of it that are needed here are
 * declared here. Every one begins with its size, which is checked before anything else in it is read: an XLA whose
 * structures are smaller than these is answered with an error, and linsat.jax does without the core.
 *
 *     linsat_solve      (scores, pattern, numbers, start, known, rest)  ->  x, duals, bits, counts, decided
 *     linsat_pull_back  (scores, pattern, numbers, bits, counts, decided, grad_x, grad_duals)  ->  gradients
 *
 * Pattern and numbers travel as operands, so that a compiled program means the same in any process; layouts are found again
 * by the content of the pattern. Numbers are float or double. The duals travel to the gradient as the bytes of
 * doubles, which JAX without 64 bits could not hold; so do numbers that never change. An operand that is absent has no
 * elements. What single precision does not hold of the sides, `rest`, is added to them here.
 */

/* ---- XLA's structures ---- */

typedef struct XlaExtension {
    size_t size;
    int type;
    struct XlaExtension *next;
} XlaExtension;

typedef struct {
    size_t size;
    XlaExtension *extensions;
    int major, minor;
} XlaVersion;

typedef struct {
    XlaExtension base;
    struct {
        size_t size;
        XlaVersion version;
        uint32_t traits;
    } * metadata;
} XlaMetadata;

typedef struct {
    size_t size;
    XlaExtension *extensions;
    int kind;
    void *data;
    int64_t rank, *dims;
} XlaBuffer;

typedef struct {
    size_t size;
    XlaExtension *extensions;
    int64_t count;
    int *types;
    void **items;
} XlaList;

typedef struct {
    size_t size;
    XlaExtension *extensions;
    int64_t count;
    int *types;
    void **names, **items;
} XlaAttributes;

typedef struct {
    int kind;
    size_t count;
    void *data;
} XlaArray;

typedef struct {
    size_t size;
    XlaExtension *extensions;
    const char *message;
    int code;
} XlaErrorArguments;

typedef struct {
    size_t size;
    XlaExtension *extensions;
    void *context;
    int64_t *threads;
} XlaThreads;

typedef struct {
    size_t size;
    XlaExtension *extensions;
    XlaVersion version;
    const void *internal;
    void *(*make_error)(XlaErrorArguments *);
    void *others[11]; /* from the message of an error to the scheduling of tasks */
    void *(*count_threads)(XlaThreads *);
} XlaInterface;

typedef struct {
    size_t size;
    XlaExtension *extensions;
    const XlaInterface *interface;
    void *context;
    int stage;
    XlaList operands, results;
    XlaAttributes attributes;
} XlaFrame;

enum { XLA_METADATA = 1, XLA_U8 = 6, XLA_F32 = 11, XLA_F64 = 12, XLA_ARRAY = 1, XLA_INVALID = 3, XLA_NO_MEMORY = 8 };

static void *xla_error(const XlaFrame *frame, int code, const char *message) {
    XlaErrorArguments arguments = {sizeof(arguments), NULL, message, code};
    return frame->interface->make_error(&arguments);
}

/* Whether XLA only asks for the version of its interface that a handler was made for: any that has these structures. */
static int xla_asks(const XlaFrame *frame) {
    for (XlaExtension *e = frame->extensions; e; e = e->next)
        if (e->type == XLA_METADATA) {
            XlaMetadata *found = (XlaMetadata *)e;
            const int fits = frame->size >= sizeof(XlaFrame) && frame->interface->size >= sizeof(XlaInterface);
            found->metadata->version.major = fits ? frame->interface->version.major : -1;
            found->metadata->version.minor = fits ? frame->interface->version.minor : 0;
            found->metadata->traits = 0;
            return 1;
        }
    return 0;
}

static int64_t xla_threads(const XlaFrame *frame) {
    int64_t threads = 1;
    XlaThreads arguments = {sizeof(arguments), NULL, frame->context, &threads};
    if (frame->interface->count_threads(&arguments) || threads < 1) return 1;
    return threads;
}

/* ---- operands ---- */

enum { OP_SCORES, OP_ROW, OP_COL, OP_SENSES, OP_NUMBERS };
enum { STATED_NUMBERS = 5, STATED_PARAMETERS = 2, OP_OWN = OP_NUMBERS + STATED_NUMBERS + STATED_PARAMETERS };

static XlaBuffer *xla_buffer(const XlaList *of, int64_t n) { return of->items[n]; }

static int64_t xla_elements(const XlaBuffer *of) {
    int64_t count = 1;
    for (int64_t d = 0; d < of->rank; d++) count *= of->dims[d];
    return count;
}

/* Numbers (1 or count, .): floats, doubles, or the bytes of doubles. */
static Numbers xla_numbers(const XlaBuffer *from) {
    if (!xla_elements(from)) return (Numbers){0};
    const int64_t width = from->kind == XLA_U8 ? from->dims[1] / (int64_t)sizeof(double) : from->dims[1];
    return (Numbers){from->data, from->dims[0] == 1 ? 0 : width, 1, from->kind == XLA_F32};
}

static double xla_number(Numbers from, int64_t instance, int64_t n) {
    const int64_t at = instance * from.step + n * from.stride;
    return from.single ? ((const float *)from.at)[at] : ((const double *)from.at)[at];
}

/* ---- layouts, by the content of their patterns ---- */

typedef struct {
    uint64_t hash;
    int64_t rows, variables, entries;
    int64_t *row, *col;
    int8_t *senses;
    Layout *layout;
} KnownLayout;

enum { MOST_KNOWN = 256 };
static KnownLayout known_layouts[MOST_KNOWN];
static int known_count;
static Lock known_lock = LOCK_INITIAL;

static uint64_t hash_of(const void *data, size_t size, uint64_t hash) {
    const unsigned char *from = data;
    for (; size >= 8; from += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, from, 8);
        hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    for (; size; from++, size--) hash = (hash ^ *from) * UINT64_C(0x100000001b3);
    return hash;
}

/* The layout of a pattern of 32-bit places; `owned`: the caller frees it. NULL without memory, or where there is none. */
static Layout *layout_of(int64_t rows, int64_t variables, int64_t entries, const int32_t *row, const int32_t *col,
                         const int8_t *senses, int *owned) {
    uint64_t hash = hash_of(row, entries * sizeof(*row), (uint64_t)rows * 31 + (uint64_t)variables);
    hash = hash_of(senses, rows, hash_of(col, entries * sizeof(*col), hash));
    Layout *found = NULL;
    *owned = 0;
    lock(&known_lock);
    for (int n = 0; n < known_count && !found; n++) {
        const KnownLayout *k = &known_layouts[n];
        if (k->hash != hash || k->rows != rows || k->variables != variables || k->entries != entries) continue;
        int same = !memcmp(k->senses, senses, rows);
        for (int64_t e = 0; e < entries && same; e++) same = k->row[e] == row[e] && k->col[e] == col[e];
        if (same) found = k->layout;
    }
    unlock(&known_lock);
    if (found) return found;
    KnownLayout made = {hash, rows, variables, entries, malloc((entries + 1) * 8), malloc((entries + 1) * 8), malloc(rows + 1), NULL};
    int64_t refused[2];
    if (made.row && made.col && made.senses) {
        for (int64_t e = 0; e < entries; e++) made.row[e] = row[e], made.col[e] = col[e];
        memcpy(made.senses, senses, rows);
        linsat_layout(rows, variables, entries, made.row, made.col, made.senses, &made.layout, refused);
    }
    *owned = 1;
    lock(&known_lock);
    if (made.layout && known_count < MOST_KNOWN) {
        known_layouts[known_count++] = made;
        *owned = 0;
    }
    unlock(&known_lock);
    if (*owned) free(made.row), free(made.col), free(made.senses);
    return made.layout;
}

/* ---- both calls ---- */

/* What both calls begin with. */
typedef struct {
    Layout *layout;
    int owned;
    int64_t count, variables, rows, threads;
    int single;
    double tol, max_steps;
    Statement statement;
} XlaCall;

/* Read the operands of a call; NULL, or an error. Attributes: kind of objective, the paper's slack, gamma_shift, tol, max_steps. */
static void *xla_read(const XlaFrame *frame, XlaCall *to, int64_t operands, int64_t results) {
    memset(to, 0, sizeof(*to));
    const XlaList *of = &frame->operands;
    if (of->count != operands || frame->results.count != results || frame->attributes.count != 1)
        return xla_error(frame, XLA_INVALID, "linsat: a custom call of another version of linsat");
    const XlaArray *options = frame->attributes.items[0];
    if (frame->attributes.types[0] != XLA_ARRAY || options->kind != XLA_F64 || options->count != 5)
        return xla_error(frame, XLA_INVALID, "linsat: a custom call of another version of linsat");
    const double *given = options->data;
    const XlaBuffer *scores = xla_buffer(of, OP_SCORES);
    to->count = scores->dims[0];
    to->variables = scores->dims[1];
    to->rows = xla_elements(xla_buffer(of, OP_SENSES));
    to->single = scores->kind == XLA_F32;
    to->tol = given[3];
    to->max_steps = given[4];
    to->threads = xla_threads(frame);
    Statement *s = &to->statement;
    s->objective = (int64_t)given[0];
    s->entropic_slack = (int64_t)given[1];
    s->gamma_shift = given[2];
    Numbers *numbers[] = {&s->values, &s->side, &s->lower, &s->upper, &s->price, &s->parameters[0], &s->parameters[1]};
    for (int n = 0; n < STATED_NUMBERS + STATED_PARAMETERS; n++) *numbers[n] = xla_numbers(xla_buffer(of, OP_NUMBERS + n));
    const XlaBuffer *row = xla_buffer(of, OP_ROW);
    to->layout = layout_of(to->rows, to->variables, xla_elements(row), row->data, xla_buffer(of, OP_COL)->data,
                           xla_buffer(of, OP_SENSES)->data, &to->owned);
    if (!to->layout) return xla_error(frame, XLA_NO_MEMORY, "linsat: there is not enough memory for the tables of a pattern");
    return NULL;
}

/* Doubles to an array that is float or double. */
static void xla_write(const XlaBuffer *to, const double *from, int64_t count) {
    if (to->kind == XLA_F64) memcpy(to->data, from, count * sizeof(double));
    else
        for (int64_t n = 0; n < count; n++) ((float *)to->data)[n] = (float)from[n];
}

static void xla_read_doubles(double *to, const XlaBuffer *from, int64_t count) {
    if (from->kind == XLA_F64) memcpy(to, from->data, count * sizeof(double));
    else
        for (int64_t n = 0; n < count; n++) to[n] = ((const float *)from->data)[n];
}

EXPORT void *linsat_xla_solve(const XlaFrame *frame) {
    if (xla_asks(frame)) return NULL;
    enum { START = OP_OWN, KNOWN, REST, OPERANDS, X = 0, DUALS, BITS, COUNTS, DECIDED, RESULTS };
    XlaCall c;
    void *error = xla_read(frame, &c, OPERANDS, RESULTS);
    if (error) return error;
    const XlaList *in = &frame->operands, *out = &frame->results;
    const int64_t n = c.count, k = c.rows;
    const XlaBuffer *start = xla_buffer(in, START), *known = xla_buffer(in, KNOWN), *rest = xla_buffer(in, REST);
    double *begin = xla_elements(start) ? malloc((n * k + 1) * sizeof(double)) : NULL;
    int64_t *counts = malloc((3 * n + 1) * sizeof(int64_t)), unsolved = 0;
    double *sides = xla_elements(rest) ? malloc((n * k + 1) * sizeof(double)) : NULL;
    int failed = !counts || (xla_elements(start) && !begin) || (xla_elements(rest) && !sides);
    if (!failed) {
        if (sides) {
            Numbers *side = &c.statement.side;
            const Numbers change = xla_numbers(rest);
            for (int64_t i = 0; i < n; i++)
                for (int64_t r = 0; r < k; r++) sides[i * k + r] = xla_number(*side, i, r) + xla_number(change, i, r);
            *side = (Numbers){sides, k, 1, 0};
        }
        if (begin) xla_read_doubles(begin, start, n * k);
        uint8_t *own = xla_buffer(out, DECIDED)->data;
        const int shared = xla_elements(known) != 0;
        Solve call = {n, c.single, (int64_t)c.max_steps, c.threads, c.tol, xla_buffer(in, OP_SCORES)->data, begin,
                      shared ? known->data : NULL, xla_buffer(out, X)->data, xla_buffer(out, BITS)->data, own,
                      counts, counts + n, counts + 2 * n, &unsolved};
        failed = linsat_solve(c.layout, &c.statement, &call);
        if (!failed) xla_write(xla_buffer(out, DUALS), call.duals, n * k);
        int32_t *whole = xla_buffer(out, COUNTS)->data; /* (n, 3) */
        for (int64_t i = 0; !failed && i < 3 * n; i++) whole[i % n * 3 + i / n] = (int32_t)(i / n == 2 && counts[i] == RAN_OFF ? NEWTON : counts[i]);
    }
    free(begin);
    free(sides);
    free(counts);
    if (c.owned) linsat_layout_free(c.layout);
    return failed ? xla_error(frame, XLA_NO_MEMORY, "linsat: there is not enough memory for the work arrays of the core") : NULL;
}

EXPORT void *linsat_xla_pull_back(const XlaFrame *frame) {
    if (xla_asks(frame)) return NULL;
    enum { BITS = OP_OWN, COUNTS, DECIDED, GRAD_X, GRAD_DUALS, OPERANDS, SCORES = 0, OTHERS, RESULTS = OTHERS + STATED_NUMBERS + STATED_PARAMETERS };
    XlaCall c;
    void *error = xla_read(frame, &c, OPERANDS, RESULTS);
    if (error) return error;
    const XlaList *in = &frame->operands, *out = &frame->results;
    const int64_t n = c.count, k = c.rows;
    int64_t total = 0;
    for (int g = OTHERS; g < RESULTS; g++) total += xla_elements(xla_buffer(out, g));
    const int of_duals = xla_elements(xla_buffer(in, GRAD_DUALS)) != 0;
    double *room = malloc((total + n * k + 1) * sizeof(double));
    int64_t *status = malloc((n + 1) * sizeof(int64_t));
    int failed = !room || !status;
    if (!failed) {
        for (int64_t i = 0; i < n; i++) status[i] = ((const int32_t *)xla_buffer(in, COUNTS)->data)[3 * i];
        if (of_duals) xla_read_doubles(room + total, xla_buffer(in, GRAD_DUALS), n * k);
        Gradient to[STATED_NUMBERS + STATED_PARAMETERS];
        double *at = room;
        for (int g = OTHERS; g < RESULTS; g++) {
            const XlaBuffer *b = xla_buffer(out, g);
            const int64_t count = xla_elements(b);
            to[g - OTHERS] = (Gradient){count ? at : NULL, count && b->dims[0] != 1 ? b->dims[1] : 0};
            at += count;
        }
        Pull call = {n, c.single, c.threads, xla_buffer(in, OP_SCORES)->data, xla_buffer(in, GRAD_X)->data,
                     xla_buffer(in, BITS)->data, of_duals ? room + total : NULL, status, xla_buffer(in, DECIDED)->data,
                     2 * (c.variables + k), xla_buffer(out, SCORES)->data, to[0], to[1], to[2], to[3], to[4], {to[5], to[6]}};
        failed = linsat_pull_back(c.layout, &c.statement, &call);
        at = room;
        for (int g = OTHERS; g < RESULTS && !failed; g++) {
            const int64_t count = xla_elements(xla_buffer(out, g));
            if (count) xla_write(xla_buffer(out, g), at, count);
            at += count;
        }
    }
    free(room);
    free(status);
    if (c.owned) linsat_layout_free(c.layout);
    return failed ? xla_error(frame, XLA_NO_MEMORY, "linsat: there is not enough memory for the work arrays of the core") : NULL;
}
