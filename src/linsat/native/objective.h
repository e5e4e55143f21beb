/* The objectives: all that the core knows of an Omega.
 *
 * A variable is x = base + unit p, a row's coefficient c = a unit / rho, and the share p answers to
 *
 *     u = gain y + offset + C' mu,      p = psi'(u),      d = psi''(u) = dp/du,      least <= p <= most
 *
 *                base   unit  gain  offset        p                                  psi                d, inside
 *     ENTROPY    lower  w     w     0             sigmoid(u / T)                     T softplus(u / T)  p (1 - p) / T
 *     EUCLIDEAN  0      1     q     0             u / q                              p (u - q p / 2)    1 / q
 *     KL         lower  s     s     T log prior   exp(u / T) / s                     T p                p / T
 *     TSALLIS    lower  s     s     0             [v]^(1 / (alpha - 1)) / s          T p v / alpha      p / (v T)
 *                                                 v = (alpha - 1) u / T + 1 / alpha
 *
 * where w is the width of the box and s, a power of two, what the rows of an instance are about: shares, residuals and steps
 * are of the size of one in every objective. T is tau, times s where that is the unit; a hotter T is a step of continuation.
 * Where x cannot exceed `most` psi goes on as a straight line.
 *
 * `most` is what the box leaves, or LOOSE times what rows of non-negative coefficients leave, which changes no answer: it
 * keeps exponentials from overflowing on the way.
 *
 * Here is what is asked of one variable; shares.h has p, psi and d of vectors of them. A new objective is a number in linsat.h, a
 * row of SEPARABLE and a case in the functions of both files, whose switches have no default: the compiler names those that lack
 * one (-Wswitch). Everything else asks its row.
 */

enum { PARAMETERS = 2, GRADIENTS = 5 + PARAMETERS }; /* of an objective; that a call may ask for, but for that of the scores */
enum { NONE, ONE, EACH, SQUARE }; /* numbers of a parameter: for the instance, for each variable, or for each pair of them */
enum { NO_SHARES, ITSELF, OF_BOX, OF_ROWS }; /* what p is: nothing; x; its share of w; x - lower in units of s */
enum { NOTHING, SHARES, ODDS };   /* what a dual multiplies, for which Sinkhorn's sweeps make sense */

typedef struct {
    int8_t sizes[PARAMETERS];         /* of tau (ONE) or weights (EACH), and of alpha (ONE) or a prior (EACH) */
    double above[PARAMETERS];         /* every number must exceed this */
    int8_t zero[PARAMETERS];          /* or be zero, which holds a variable at its lower bound */
    int8_t unit, multiplies;          /* as above */
    int8_t finite_lower, finite_upper;
    int8_t interior;                  /* x never reaches its lower bound: variables that rows force there are taken out */
    int8_t temperature;               /* its first parameter, and the one of continuation */
    int8_t product;                   /* theta has the logarithm of a product over variables, see Terms */
    int8_t affine;                    /* inside its bounds x follows u in a straight line */
} Objective;

/* The objectives with terms of single variables, and all that depends on which it is but for the functions below and in shares.h:
 * DO(objective, (its row), ...) for each. */
#define SEPARABLE(DO, ...)                                                                                                  \
    DO(ENTROPY, (.sizes = {ONE}, .unit = OF_BOX, .multiplies = ODDS, .finite_lower = 1, .finite_upper = 1, .interior = 1,   \
                 .temperature = 1, .product = 1), __VA_ARGS__)                                                              \
    DO(EUCLIDEAN, (.sizes = {EACH}, .unit = ITSELF, .affine = 1), __VA_ARGS__)                                              \
    DO(KL, (.sizes = {ONE, EACH}, .zero = {0, 1}, .unit = OF_ROWS, .multiplies = SHARES, .finite_lower = 1, .interior = 1,  \
            .temperature = 1), __VA_ARGS__)                                                                                 \
    DO(TSALLIS, (.sizes = {ONE, ONE}, .above = {0, 1}, .unit = OF_ROWS, .finite_lower = 1, .temperature = 1), __VA_ARGS__)

#define NUMBER_OF(objective, ...) IS_##objective = objective,
#define ONE_MORE(...) +1
#define UNWRAPPED(...) __VA_ARGS__
#define ROW_OF(objective, row, ...) [objective] = {UNWRAPPED row},

typedef enum { SEPARABLE(NUMBER_OF) } Separable;
_Static_assert(0 SEPARABLE(ONE_MORE) == QUADRATIC, "every objective of linsat.h before QUADRATIC has a row in SEPARABLE");

static const Objective OBJECTIVES[] = {
    SEPARABLE(ROW_OF)
    [QUADRATIC] = {.sizes = {SQUARE}, .above = {-INFINITY}},
    [METRIC] = {.sizes = {SQUARE}, .above = {-INFINITY}},
};

#define LOOSE 1e10     /* times what rows leave of a variable */
#define FARTHEST 1e150 /* what x may reach where nothing holds it */

/* Whether a set is small enough for the dense factors of the interior-point method. */
static int interior_takes(const Layout *a) {
    return a->rows + a->variables <= CONSTANTS.most_dense && a->rows * a->variables <= CONSTANTS.largest_dense;
}

/* Whether variables have no terms of their own: quadratic.h solves it. */
static int is_full(const Statement *s) { return s->objective == QUADRATIC || s->objective == METRIC; }

static int takes_objective(const Layout *a, const Statement *s) {
    if (s->objective < 0 || s->objective >= (int64_t)(sizeof(OBJECTIVES) / sizeof(*OBJECTIVES))) return 0;
    return !is_full(s) || interior_takes(a);
}

/* How many numbers parameter p of an objective is; 0: it has none. */
static int64_t size_of_parameter(const Layout *a, const Statement *s, int p) {
    const int size = OBJECTIVES[s->objective].sizes[p];
    return size == EACH ? a->variables : size == SQUARE ? a->variables * a->variables : size == ONE ? 1 : 0;
}

/* How far above its lower bound x may be, on the way too: `room` is what rows leave, and an upper bound beyond that does
 * nothing but get into the way of a dual that is on its own way. */
static inline double most_of(double width, double room) {
    const double most = width < room ? width : LOOSE * room;
    return most < FARTHEST ? most : FARTHEST;
}

/* ---- what an instance has of its parameters ---- */

/* Whether variables have weights, or an offset, of their own. */
static int is_weighted(const Statement *s) { return OBJECTIVES[s->objective].sizes[0] == EACH && s->parameters[0].at; }
static int is_shifted(const Statement *s) { return OBJECTIVES[s->objective].sizes[1] == EACH && s->parameters[1].at; }

static inline int has_alpha(int o) { return OBJECTIVES[o].sizes[1] == ONE; }

/* Whether the numbers of single variables follow from the parameters. */
static int parameters_fold(const Statement *s) { return is_weighted(s) || is_shifted(s) || has_alpha((int)s->objective); }

/* T at the end of continuation, in the unit s, and alpha. */
static double tau_of(int o, double *const *parameters, double s) {
    return OBJECTIVES[o].temperature ? parameters[0][0] * s : 1.0;
}

static double alpha_of(int o, double *const *parameters) { return has_alpha(o) ? parameters[1][0] : 2.0; }

/* x = base + unit p of a variable that moves between low and high, and least <= p <= most. */
typedef struct {
    double base, unit, least, most;
} Frame;

static inline Frame frame_of(int o, double low, double high, double s, double room) {
    if (OBJECTIVES[o].unit == ITSELF) return (Frame){0.0, 1.0, low, high};
    if (OBJECTIVES[o].unit == OF_BOX) return (Frame){low, high - low, 0.0, 1.0};
    return (Frame){low, s, 0.0, most_of(high - low, room) / s};
}

/* ---- one variable in the user's units: for the interior-point method, and for the verdict on its answer ---- */

typedef struct {
    double lower, upper, numbers[PARAMETERS]; /* of this variable, or of the instance */
} Variable;

/* A column of the interior-point method: its costs, and at each bound an entropy of some width. */
typedef struct {
    double linear, quadratic, entropy[2], width;
} Column;

/* What multiplies x in the objective. */
static double linear_term(int o, const Variable *of, double score) {
    const double *n = of->numbers;
    switch ((Separable)o) {
    case ENTROPY:
    case TSALLIS: return score;
    case EUCLIDEAN: return n[0] * score;
    case KL: return score + n[0] * log(n[1]);
    }
    return NAN;
}

/* The x that u asks for, but for its bounds. */
static double asked_point(int o, const Variable *of, double u) {
    const double *n = of->numbers, width = of->upper - of->lower;
    double v;
    switch ((Separable)o) {
    case ENTROPY: return of->lower + width / (1.0 + exp(-u * width / n[0]));
    case EUCLIDEAN: return u / n[0];
    case KL: return of->lower + exp(u / n[0]);
    case TSALLIS:
        v = (n[1] - 1.0) * u / n[0] + 1.0 / n[1];
        return of->lower + (v > 0 ? pow(v, 1.0 / (n[1] - 1.0)) : 0.0);
    }
    return NAN;
}

/* dx/du at x, inside its bounds. */
static double steepness(int o, const Variable *of, double x) {
    const double *n = of->numbers, t = x - of->lower;
    if (!(t > 0 && of->upper - x > 0)) return 0.0;
    switch ((Separable)o) {
    case ENTROPY: return t * (of->upper - x) / n[0];
    case EUCLIDEAN: return 1.0 / n[0];
    case KL: return t / n[0];
    case TSALLIS: return pow(t, 2.0 - n[1]) / n[0];
    }
    return NAN;
}

/* How x follows its bounds, lower and upper, where p and d are at u. */
static void follow_bounds(int o, double p, double d, double u, double most, double *to) {
    const int at_upper = p >= most;
    to[0] = !at_upper;
    to[1] = at_upper;
    switch ((Separable)o) {
    case ENTROPY: to[0] = 1.0 - (to[1] = p + d * u); break;
    case EUCLIDEAN:
        if (d > 0) to[0] = 0.0;
        break;
    case KL:
    case TSALLIS: break;
    }
}

/* What rows and box leave of x is `most` above its lower bound. An entropy at that bound alone has slope a (log(t / w) - 1),
 * so that w must be no less than x gets, and what it adds to KL's own slope is taken from the linear cost. TSALLIS is none of
 * these: KL's column leads near enough for Newton's method to end, or the verdict refuses it. */
static Column column_of(int o, const Variable *of, double score, double most) {
    const double *n = of->numbers, linear = linear_term(o, of, score);
    double width = of->upper - of->lower;
    switch ((Separable)o) {
    case ENTROPY: return (Column){linear, 0.0, {n[0] / width, n[0] / width}, width};
    case EUCLIDEAN: return (Column){linear, n[0], {0.0, 0.0}, 1.0};
    case KL:
    case TSALLIS:
        width = most < FARTHEST ? most : 1e10 * (n[1] > 1.0 ? n[1] : 1.0);
        return (Column){linear - n[0] * (log(width) + 1.0), 0.0, {n[0], 0.0}, width};
    }
    return (Column){NAN, NAN, {NAN, NAN}, NAN};
}

/* p log(p / s) + (1 - p) log((1 - p) / (1 - s)) with s = sigmoid(v), and the entropy of p; 0 beyond the ends. */
static double relative_entropy(double share, double v, double lower, double upper, double *entropy) {
    const double width = upper - lower, ends[2] = {(1.0 + fabs(lower)) / width, (1.0 + fabs(upper)) / width};
    *entropy = 0.0;
    const double least = CONSTANTS.at_end * (ends[0] < 1.0 ? ends[0] : 1.0);
    const double most = 1.0 - CONSTANTS.at_end * (ends[1] < 1.0 ? ends[1] : 1.0);
    if (!(share > least && share < most)) return 0.0;
    const double tail = log1p(exp(-fabs(v))), out = v > 0 ? v + tail : tail, in = v > 0 ? tail : tail - v;
    *entropy = -share * log(share) - (1.0 - share) * log1p(-share);
    const double found = share * in + (1.0 - share) * out - *entropy;
    return found > 0.0 ? found : 0.0;
}

/* psi(u) + omega(x) - u x, less what an error in u may add to it in second order; and what the variable adds to the size
 * of the objective. */
static double gap_of(int o, const Variable *of, double score, long double u, double x, double error, double *size) {
    const double *n = of->numbers, low = of->lower, high = of->upper, width = high - low, t = x - low;
    if (o == TSALLIS) { /* near its bound x may be as steep as it likes: of the u within `error`, what x answers to best */
        const long double own = n[0] / (n[1] - 1.0) * (pow(t, n[1] - 1.0) - 1.0 / n[1]);
        u = own < u - error ? u - error : own > u + error ? u + error : own;
        error = 0.0;
    }
    const double away = asked_point(o, of, (double)u), nearest = away < low ? low : away > high ? high : away, a = nearest - low;
    double part, entropy, scale, power, curve = NAN, slope = NAN; /* omega(t) - omega(a) - omega'(a) (t - a), and omega'(a) */
    *size = fabs(score * x) + n[0] * t;
    switch ((Separable)o) {
    case ENTROPY:
        part = relative_entropy(t / width, (double)(u * width / n[0]), low, high, &entropy);
        *size = fabs(score * x) + n[0] * entropy;
        return n[0] * part - width * width / (8 * n[0]) * error * error;
    case EUCLIDEAN: /* times twice how far u asks x to go */
        *size = fabs(n[0] * score * x) + n[0] * x * x / 2;
        part = n[0] * (x - nearest) * (double)(x + nearest - 2 * (u / n[0])) / 2;
        return fabs(part) - error * error / (2 * n[0]);
    case KL:
        if (t <= CONSTANTS.at_end * (width < 1.0 + fabs(low) ? width : 1.0 + fabs(low))) return 0.0;
        slope = nearest != away ? n[0] * log(a) : (double)u;
        curve = n[0] * (t * log(t) - t + a) - t * slope;
        break;
    case TSALLIS:
        scale = n[0] / (n[1] * (n[1] - 1.0));
        power = pow(a, n[1] - 1.0);
        curve = scale * (pow(t, n[1]) - a * power - n[1] * power * (t - a));
        slope = scale * (n[1] * power - 1.0);
        break;
    }
    const int cut = nearest != away || !(a > 0.0); /* u asks x beyond a bound */
    const double pushed = cut ? fabs((double)(u - slope) * (t - a)) : 0.0;
    return (curve > 0.0 ? curve : 0.0) + pushed - steepness(o, of, nearest) * error * error / 2;
}
