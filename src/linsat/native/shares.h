/* The objectives in vectors: p, psi and d of objective.h.
 *
 * Lanes are variables of one instance (evaluate.h), or instances (lanes.h). `o` is a constant wherever the functions are compiled.
 *
 * Compiled once per instruction set (kernel.h).
 */

/* FOR_OBJECTIVES makes of an inline function one function per objective, in which that is a constant; BY_OBJECTIVE calls the
 * one that is asked for. They are not merged into their caller: it would be so large that compilers keep numbers of the hot
 * loops in memory. */
#define FUNCTION_FOR(o, row, name, parameters, ...) \
    static __attribute__((noinline)) void V(name##_##o) parameters { V(name)(o, __VA_ARGS__); }
#define CASE_FOR(o, row, name, ...) case o: V(name##_##o)(__VA_ARGS__); break;
#define FOR_OBJECTIVES(name, parameters, ...) SEPARABLE(FUNCTION_FOR, name, parameters, __VA_ARGS__)
#define BY_OBJECTIVE(which, name, ...) \
    switch ((Separable)(which)) { SEPARABLE(CASE_FOR, name, __VA_ARGS__) }

/* The numbers of a variable: bounds of p; q, or log(s most) and s most to the power of alpha - 1. */
typedef struct {
    vec least, most, first, second;
} Own;

/* The numbers of an instance: T, 1 / T, alpha, 1 / (alpha - 1); and whether variables have weights. */
typedef struct {
    vec T, inverse, alpha, power;
    int weighted;
} Heat;

/* Terms of theta: their sum (Entropy: over T, and less the logarithm of the product), and the sum of their sizes. */
typedef struct {
    vec value, size, product;
} Terms;

INLINE Terms V(no_terms)(void) { return (Terms){{0}, {0}, V(all)(1.0)}; }

/* ---- p, psi, d ---- */

/* v of TSALLIS */
INLINE vec V(power_base)(vec u, const Heat *at) { return (at->alpha - 1.0) * (u * at->inverse) + 1.0 / at->alpha; }

/* log of p over `most`, where p is in units of s; above 0 where p is cut. */
INLINE vec V(log_share)(const int o, vec u, const Own *own, const Heat *at) {
    vec v;
    switch ((Separable)o) {
    case KL: return u * at->inverse - own->first;
    case TSALLIS: /* v of 0 and below: p is nothing, also where a small power would leave something of it */
        v = V(power_base)(u, at);
        return V(pick)(v > 0.0, at->power * V(log_of)(V(larger)(v, V(all)(1e-300))) - own->first, V(all)(-INFINITY));
    case ENTROPY:
    case EUCLIDEAN: break;
    }
    return V(all)(NAN);
}

/* psi of some variables at u, where p is their share. */
INLINE void V(add_terms)(const int o, vec u, vec p, const Own *own, const Heat *at, Terms *to) {
    vec term = V(all)(NAN), pull = p, v, inside, beyond;
    switch ((Separable)o) {
    case ENTROPY: /* T softplus(u / T) is the larger of u and 0, less T log of the larger of p and 1 - p */
        to->value += V(larger)(u * at->inverse, (vec){0});
        to->product *= V(larger)(p, 1.0 - p);
        return;
    case EUCLIDEAN:
        if (at->weighted) pull = own->first * p;
        term = p * (u - 0.5 * pull);
        break;
    case KL: term = at->T * (p + own->most * V(larger)(V(log_share)(o, u, own, at), (vec){0})); break;
    case TSALLIS:
        v = V(larger)(V(power_base)(u, at), (vec){0});
        inside = V(smaller)(v, own->second);
        beyond = V(where)(v > own->second, own->most * at->power * (v - own->second));
        term = at->T * (p * inside / at->alpha + beyond);
        break;
    }
    to->value += term;
    to->size += V(size_of)(term);
}

/* p of ENTROPY, and where asked for its terms. */
INLINE vec V(share_of_box)(vec u, const Heat *at, Terms *to) {
    const vec t = u * at->inverse, e = V(exp_of)(V(minus_size_of)(t)), tail = 1.0 + e, share = 1.0 / tail;
    const mask up = t >= 0.0;
    if (to) {
        to->value += V(where)(up, t);
        to->product *= share;
    }
    return V(pick)(up, share, e * share);
}

/* p, and where asked for its terms. */
INLINE vec V(share_of)(const int o, vec u, const Own *own, const Heat *at, Terms *to) {
    vec p = V(all)(NAN), e;
    switch ((Separable)o) {
    case ENTROPY: return V(share_of_box)(u, at, to);
    case EUCLIDEAN:
        p = u;
        if (at->weighted) p = u / own->first;
        p = V(pick)(p <= own->least, own->least, V(pick)(p >= own->most, own->most, p));
        break;
    case KL:
    case TSALLIS:
        e = V(log_share)(o, u, own, at);
        p = own->most * V(where)(e > -700.0, V(exp_of)(V(smaller)(e, (vec){0})));
        break;
    }
    if (to) V(add_terms)(o, u, p, own, at, to);
    return p;
}

/* d */
INLINE vec V(slope_of)(const int o, vec u, vec p, const Own *own, const Heat *at) {
    vec slope = V(all)(NAN);
    switch ((Separable)o) {
    case ENTROPY: return p * (1.0 - p) * at->inverse;
    case EUCLIDEAN:
        slope = V(all)(1.0);
        if (at->weighted) slope = slope / own->first;
        break;
    case KL: slope = p * at->inverse; break;
    case TSALLIS: slope = p * at->inverse / V(larger)(V(power_base)(u, at), V(all)(1e-300)); break;
    }
    return V(where)((p > own->least) & (p < own->most), slope);
}

/* ---- what follows from the numbers of variables ---- */

/* `first` and `second` of Own where p is in units of s. */
INLINE void V(edge_of)(int o, vec most, vec s, vec alpha, vec *first, vec *second) {
    *first = V(log_of)(V(larger)(most, V(all)(1e-200)) * s);
    if (has_alpha(o)) *second = V(exp_of)(V(smaller)(*first * (alpha - 1.0), V(all)(700.0)));
}

INLINE vec V(offset_of)(vec T, vec prior) { return T * V(log_of)(V(larger)(prior, V(all)(1e-300))); }

/* x, exactly at its upper bound where p says so. */
INLINE vec V(point_at)(int o, vec p, vec base, vec unit, vec upper) {
    const vec x = V(smaller)(base + unit * p, upper);
    if (OBJECTIVES[o].unit != OF_ROWS) return x;
    return V(pick)(p >= (upper - base) / unit, upper, x);
}

/* dp by the parameter that is no temperature, where u moves with it as the scores let it: the weights, prior, alpha.
 * `number` is the variable's own, `linear` is gain y + offset. */
INLINE vec V(by_parameter)(const int o, vec u, vec p, vec d, vec linear, vec number, const Own *own, const Heat *at) {
    vec v, moved;
    switch ((Separable)o) {
    case ENTROPY: break;
    case EUCLIDEAN: return d * (linear - u) / number;
    case KL: return V(where)(d > 0.0, d * at->T / number);
    case TSALLIS:
        v = V(larger)(V(power_base)(u, at), V(all)(1e-300));
        moved = (u * at->inverse - 1.0 / (at->alpha * at->alpha)) / v - at->power * V(log_of)(v);
        return V(where)((p > own->least) & (p < own->most), p * at->power * moved);
    }
    return (vec){0};
}
