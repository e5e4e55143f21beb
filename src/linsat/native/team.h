/* Several threads on one instance: parts of a loop, claimed one by one.
 *
 * One thread leads and calls `share`; the others `help` until it is done. Parts are the same whatever the number of
 * threads, and each writes to a place that is its own, so no result depends on who computed what. The leader never waits
 * for a thread that has not claimed a part.
 */
#ifndef LINSAT_TEAM
#define LINSAT_TEAM

#include <stdint.h>

#include "platform.h"

typedef void (*Part)(void *argument, int64_t index);

/* What the threads of one call share. */
typedef struct {
    int64_t counter;  /* the next instance, or whether somebody leads */
    uint64_t ticket;  /* which loop (24 bits), its next part (20) and the number of its parts (20) */
    int64_t done;     /* finished parts */
    int64_t over;     /* nothing more will come */
    int64_t together; /* all work on one instance at a time */
    int64_t blocks, block;  /* of instances whose contributions to a shared gradient are added up in order, and their size */
    double *partial;        /* (blocks, partial_size) these contributions */
    int64_t partial_size;
    Part part;
    void *argument;
} Team;

enum { PART_BITS = 20 };
#define PART_MASK ((UINT64_C(1) << PART_BITS) - 1)

static inline void rest_a_little(int *turns) {
    if (++*turns < 64) pause_briefly();
    else yield_processor();
}

/* Run one part that nobody has claimed; returns whether there was one. */
static int take_part(Team *team) {
    uint64_t ticket = __atomic_load_n(&team->ticket, __ATOMIC_ACQUIRE);
    for (;;) {
        const uint64_t next = (ticket >> PART_BITS) & PART_MASK;
        if (next >= (ticket & PART_MASK)) return 0;
        const uint64_t taken = ticket + (UINT64_C(1) << PART_BITS);
        if (__atomic_compare_exchange_n(&team->ticket, &ticket, taken, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            team->part(team->argument, (int64_t)next); /* stays until every part is done */
            __atomic_fetch_add(&team->done, 1, __ATOMIC_RELEASE);
            return 1;
        }
    }
}

/* part(argument, 0 .. count - 1), by whoever is there; team may be NULL. */
static void share(Team *team, int64_t count, Part part, void *argument) {
    if (!team || count < 2) {
        for (int64_t i = 0; i < count; i++) part(argument, i);
        return;
    }
    const uint64_t loop = (__atomic_load_n(&team->ticket, __ATOMIC_RELAXED) >> (2 * PART_BITS)) + 1; /* read by helpers */
    team->part = part;
    team->argument = argument;
    team->done = 0;
    __atomic_store_n(&team->ticket, (loop << (2 * PART_BITS)) | (uint64_t)count, __ATOMIC_RELEASE);
    while (take_part(team)) {}
    for (int turns = 0; __atomic_load_n(&team->done, __ATOMIC_ACQUIRE) < count;) rest_a_little(&turns);
}

static void help(Team *team) {
    for (int turns = 0; !__atomic_load_n(&team->over, __ATOMIC_ACQUIRE);) {
        if (take_part(team)) turns = 0;
        else rest_a_little(&turns);
    }
}

static inline int64_t claim(int64_t *counter) { return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

/* The first instance, or block of them, of a thread: one that nobody has claimed, or all for the one that leads. `count`:
 * there is none for it, and where threads work together it has helped until the others were done. */
static int64_t enter(Team *team, int64_t count) {
    const int64_t n = claim(&team->counter);
    if (!team->together || n == 0) return n < count ? n : count;
    help(team);
    return count;
}

static inline int64_t after(Team *team, int64_t n) { return team->together ? n + 1 : claim(&team->counter); }

/* Whoever leads lets the others go. */
static inline void leave(Team *team) {
    if (team->together) __atomic_store_n(&team->over, 1, __ATOMIC_RELEASE);
}

#endif
