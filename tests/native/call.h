/* The core as these tests call it: a question in plain arrays, its answer and the gradients.
 *
 * Only call.c knows the structures of the core.
 */
#ifndef CALL_H
#define CALL_H

#include <stdint.h>

enum { SOLVED, OUT_OF_STEPS, STUCK, CONTRADICTORY, NOT_A_NUMBER };
enum { ENTROPY_WITH_SLACK, ENTROPY_WITHOUT_SLACK, NEAREST_POINT };
enum { AT_MOST = -1, EQUAL_TO = 0, AT_LEAST = 1 };

/* A batch over one set of rows. */
typedef struct {
    int count, rows, variables;
    const double *A;             /* (rows, variables); zeros are no coefficients */
    const int *sense;            /* (rows) */
    const double *side;          /* (rows), or (count, rows) */
    const double *lower, *upper; /* (variables); NULL: 0 and 1 */
    const double *price;         /* (rows) of breaking a row; NULL: none may be broken */
    const double *scores;        /* (count, variables) */
    const double *weights;       /* (variables) of NEAREST_POINT, or NULL */
    int objective;
    double tau;
    int own_sides;     /* side has a row for each instance */
    int single;        /* scores and x pass through single precision */
    int threads;       /* 0 and 1: this one */
    int together;      /* threads share each instance, instead of the instances */
} Question;

typedef struct {
    double *x;     /* (count, variables) */
    double *duals; /* (count, rows) of the rows as written */
    int *status;   /* (count) */
    int failed;    /* for lack of memory, or because there is no layout */
    void *kept;    /* what gradients need of the solve */
} Answer;

/* What the gradient of x, (count, variables), becomes. */
typedef struct {
    double *scores;    /* (count, variables) */
    double *sides;     /* (count, rows) */
    double *parameter; /* (count) of tau, or (count, variables) of the weights */
} Gradients;

Answer answer_to(const Question *question);
Gradients gradient_of(const Question *question, const Answer *answer, const double *grad_x);
void free_answer(Answer *answer);
void free_gradient(Gradients *gradient);

/* The code of the layout of a pattern, and what it is refused for. */
enum { PATTERN_TAKEN, PATTERN_INVALID, PATTERN_TOO_LARGE, PATTERN_NO_MEMORY };
int try_pattern(int64_t rows, int64_t variables, int64_t entries, const int64_t *row, const int64_t *col,
                int64_t *refused);

int tables_are_right(int64_t rows, int64_t variables, int64_t entries, const int64_t *row, const int64_t *col);

/* What a variable of Tsallis adds to the duality gap where the duals ask for u, known to `error`, and x is what it is. */
double tsallis_gap(double alpha, double tau, double upper, double u, double error, double x);

void limit_instructions(int level); /* 0: without AVX2, 1: without AVX-512 */
const char *instructions(void);   /* in use */

#endif
