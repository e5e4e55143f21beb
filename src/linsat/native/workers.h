/* Worker threads, which sleep between calls.
 *
 * A call works in the thread that makes it. Workers that wake up in time share the work (team.h); nobody waits for one
 * that does not. One call at a time has the workers: another that comes meanwhile works alone. They are plain threads,
 * because those of OpenMP do not survive a fork; a forked child starts its own when it needs them.
 */
#ifndef LINSAT_WORKERS
#define LINSAT_WORKERS

#include <stdint.h>

#include "platform.h"
#include "team.h"

typedef int (*Task)(const void *layout, const void *statement, const void *call, Team *team);

typedef struct {
    Task task;
    const void *layout, *statement, *call;
    Team team;
    int failed;
} Job;

enum { MOST_WORKERS = 255, COUNT_BITS = 16, AWAKE_NANOSECONDS = 100000 }; /* a backward pass often follows soon */
#define COUNT_MASK ((UINT64_C(1) << COUNT_BITS) - 1)

static struct {
    Lock turn; /* of the call that has the workers */
    Lock lock; /* of going to sleep */
    Condition wake;
    Job *job;
    uint64_t state; /* which job (32 bits), how many workers it still takes (16) and how many are at it (16) */
    int64_t sleeping, workers;
} pool = {LOCK_INITIAL, LOCK_INITIAL, CONDITION_INITIAL, NULL, 0, 0, 0};

/* Whether there is a job that takes a worker who was last at job `known`. */
static int has_work(uint64_t state, uint64_t known) {
    return state >> (2 * COUNT_BITS) != known && ((state >> COUNT_BITS) & COUNT_MASK) > 0;
}

static uint64_t wait_for_work(uint64_t known) {
    const int64_t begin = nanoseconds();
    for (int turns = 1;; turns++) {
        const uint64_t state = __atomic_load_n(&pool.state, __ATOMIC_SEQ_CST);
        if (has_work(state, known)) return state;
        pause_briefly();
        if (turns % 16 == 0 && nanoseconds() - begin > AWAKE_NANOSECONDS) break;
    }
    lock(&pool.lock);
    __atomic_fetch_add(&pool.sleeping, 1, __ATOMIC_SEQ_CST); /* before it looks again, so that no job is missed */
    uint64_t state;
    while (!has_work(state = __atomic_load_n(&pool.state, __ATOMIC_SEQ_CST), known)) wait_for(&pool.wake, &pool.lock);
    __atomic_fetch_sub(&pool.sleeping, 1, __ATOMIC_SEQ_CST);
    unlock(&pool.lock);
    return state;
}

static void work_on(Job *job) {
    if (job->task(job->layout, job->statement, job->call, &job->team)) __atomic_store_n(&job->failed, 1, __ATOMIC_RELAXED);
}

THREAD(worker) {
    (void)unused;
    uint64_t known = 0;
    for (;;) {
        uint64_t state = wait_for_work(known);
        const uint64_t joined = state - (UINT64_C(1) << COUNT_BITS) + 1; /* one place less, one more at it */
        if (!__atomic_compare_exchange_n(&pool.state, &state, joined, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) continue;
        known = joined >> (2 * COUNT_BITS);
        work_on(pool.job); /* stays until nobody is at it */
        __atomic_fetch_sub(&pool.state, 1, __ATOMIC_SEQ_CST);
    }
    return 0;
}

static void forget_workers(void) {
    make_lock(&pool.turn);
    make_lock(&pool.lock);
    make_condition(&pool.wake);
    pool.state = 0;
    pool.sleeping = pool.workers = 0;
}

/* Have `wanted` workers, or as many as the system allows. */
static void hire(int64_t wanted) {
    static int registered = 0;
    if (!registered) registered = call_after_fork(forget_workers);
    if (registered) pool.workers += start_threads(worker, wanted - pool.workers);
}

/* Run the task here and in up to `threads` - 1 workers at once; returns whether one of them failed. */
static int run_shared(Task task, const void *layout, const void *statement, const void *call, Team team, int64_t threads) {
    Job job = {.task = task, .layout = layout, .statement = statement, .call = call, .team = team};
    if (threads < 2 || !try_lock(&pool.turn)) {
        work_on(&job);
        return job.failed;
    }
    const int64_t wanted = threads - 1 < MOST_WORKERS ? threads - 1 : MOST_WORKERS;
    if (pool.workers < wanted) hire(wanted);
    pool.job = &job;
    const uint64_t last = __atomic_load_n(&pool.state, __ATOMIC_RELAXED); /* late workers still look at it */
    const uint64_t number = ((last >> (2 * COUNT_BITS)) + 1) & UINT32_MAX;
    __atomic_store_n(&pool.state, number << (2 * COUNT_BITS) | (uint64_t)wanted << COUNT_BITS, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&pool.sleeping, __ATOMIC_SEQ_CST) > 0) {
        lock(&pool.lock);
        for (int64_t i = 0; i < wanted && i < pool.sleeping; i++) wake_one(&pool.wake);
        unlock(&pool.lock);
    }
    work_on(&job);
    uint64_t state = __atomic_and_fetch(&pool.state, ~(COUNT_MASK << COUNT_BITS), __ATOMIC_SEQ_CST); /* nobody else joins */
    for (int turns = 0; state & COUNT_MASK; state = __atomic_load_n(&pool.state, __ATOMIC_SEQ_CST)) rest_a_little(&turns);
    unlock(&pool.turn);
    return job.failed;
}

#endif
