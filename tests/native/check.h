/* Tests in C: functions that CHECK, counted; random numbers that are the same everywhere. */
#ifndef CHECK_H
#define CHECK_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static struct {
    int passed, failed, wrong; /* tests; checks of the present test that did not hold */
} tally;

/* Go on after a check that does not hold, but say where it is; the first few of a test are enough. */
#define CHECK(condition)                                                                         \
    do {                                                                                         \
        if (!(condition) && tally.wrong++ < 5) printf("    %s:%d: %s\n", __FILE__, __LINE__, #condition); \
    } while (0)

#define CHECK_NEAR(value, expected, tolerance)                                                                         \
    do {                                                                                                               \
        const double value_ = (value), expected_ = (expected);                                                         \
        if (!(fabs(value_ - expected_) <= (tolerance)) && tally.wrong++ < 5)                                           \
            printf("    %s:%d: %s is %.17g, expected %.17g\n", __FILE__, __LINE__, #value, value_, expected_);         \
    } while (0)

#define TEST(name) run_test(#name, name)

static void run_test(const char *name, void (*test)(void)) {
    tally.wrong = 0;
    test();
    printf("%s  %s\n", tally.wrong ? "FAILED" : "passed", name);
    fflush(stdout);
    if (tally.wrong) tally.failed++;
    else tally.passed++;
}

/* Uniform in (0, 1): a linear congruential generator, its upper bits. */
static double uniform(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return ((double)(*state >> 12) + 0.5) / (double)(UINT64_C(1) << 52);
}

/* Numbers between -width and width. */
static void fill_uniform(double *to, int count, double width, uint64_t seed) {
    uint64_t state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    for (int i = 0; i < count; i++) to[i] = width * (2.0 * uniform(&state) - 1.0);
}

#endif
