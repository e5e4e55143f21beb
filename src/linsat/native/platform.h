/* What differs between systems: symbols, memory, time, threads. POSIX (Linux, macOS, BSD) and Windows; gcc and clang.
 *
 * Nothing else asks which system it is compiled for. Windows has its own threads and locks here, so that nothing has to
 * be linked with a library for them.
 */
#ifndef LINSAT_PLATFORM
#define LINSAT_PLATFORM

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)

#define EXPORT __declspec(dllexport)
#define HIDDEN /* what is not exported is hidden */

#if !defined(_WIN32_WINNT) || _WIN32_WINNT < 0x0601
#undef _WIN32_WINNT
#define _WIN32_WINNT 0x0601 /* Windows 7, the first with all of these */
#endif
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <malloc.h>
#include <process.h>
#include <windows.h>
#undef near /* these remain of 16-bit compilers */
#undef far

/* On Windows gcc stores vectors of 32 bytes on a stack that is aligned to 16, by instructions that fault there (its bug
 * 54412; some distributions mend it). An assembler told to replace these (-Wa,-muse-unaligned-vector-move) makes them
 * harmless: builds with that option define LINSAT_UNALIGNED_MOVES. All others do without AVX2. */
#if !defined(__clang__) && !defined(LINSAT_UNALIGNED_MOVES)
#define LINSAT_NARROW
#endif

typedef SRWLOCK Lock;
typedef CONDITION_VARIABLE Condition;
#define LOCK_INITIAL SRWLOCK_INIT
#define CONDITION_INITIAL CONDITION_VARIABLE_INIT
#define THREAD(name) static unsigned __stdcall name(void *unused)

static inline void make_lock(Lock *which) { InitializeSRWLock(which); }
static inline void make_condition(Condition *which) { InitializeConditionVariable(which); }
static inline void lock(Lock *which) { AcquireSRWLockExclusive(which); }
static inline void unlock(Lock *which) { ReleaseSRWLockExclusive(which); }
static inline int try_lock(Lock *which) { return TryAcquireSRWLockExclusive(which); }
static inline void wait_for(Condition *which, Lock *held) { SleepConditionVariableSRW(which, held, INFINITE, 0); }
static inline void wake_one(Condition *which) { WakeConditionVariable(which); }
static inline void yield_processor(void) { SwitchToThread(); }

static inline int64_t nanoseconds(void) {
    LARGE_INTEGER ticks, rate;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&rate);
    const int64_t second = INT64_C(1000000000), whole = ticks.QuadPart / rate.QuadPart;
    return whole * second + ticks.QuadPart % rate.QuadPart * second / rate.QuadPart;
}

/* Start up to `count` threads that nobody waits for; returns how many. */
static inline int64_t start_threads(unsigned(__stdcall *body)(void *), int64_t count) {
    int64_t started = 0;
    for (; started < count; started++) {
        const uintptr_t thread = _beginthreadex(NULL, 0, body, NULL, 0, NULL);
        if (!thread) break;
        CloseHandle((HANDLE)thread);
    }
    return started;
}

/* Have a function called in every child made by fork; returns whether it will be. There are no such children here. */
static inline int call_after_fork(void (*function)(void)) {
    (void)function;
    return 1;
}

static inline void *aligned_block(size_t alignment, size_t size) { return _aligned_malloc(size, alignment); }
static inline void free_block(void *block) { _aligned_free(block); }
static inline void prefer_large_pages(void *block, size_t size) { (void)block, (void)size; }

#else /* POSIX */

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))

typedef pthread_mutex_t Lock;
typedef pthread_cond_t Condition;
#define LOCK_INITIAL PTHREAD_MUTEX_INITIALIZER
#define CONDITION_INITIAL PTHREAD_COND_INITIALIZER
#define THREAD(name) static void *name(void *unused)

static inline void make_lock(Lock *which) { pthread_mutex_init(which, NULL); }
static inline void make_condition(Condition *which) { pthread_cond_init(which, NULL); }
static inline void lock(Lock *which) { pthread_mutex_lock(which); }
static inline void unlock(Lock *which) { pthread_mutex_unlock(which); }
static inline int try_lock(Lock *which) { return !pthread_mutex_trylock(which); }
static inline void wait_for(Condition *which, Lock *held) { pthread_cond_wait(which, held); }
static inline void wake_one(Condition *which) { pthread_cond_signal(which); }
static inline void yield_processor(void) { sched_yield(); }

static inline int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Start up to `count` threads that nobody waits for; returns how many. */
static inline int64_t start_threads(void *(*body)(void *), int64_t count) {
    sigset_t all, before;
    int64_t started = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads of the program */
    for (pthread_t thread; started < count; started++) {
        if (pthread_create(&thread, NULL, body, NULL)) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* Have a function called in every child made by fork; returns whether it will be. */
static inline int call_after_fork(void (*function)(void)) { return !pthread_atfork(NULL, NULL, function); }

static inline void *aligned_block(size_t alignment, size_t size) {
    void *block = NULL;
    return posix_memalign(&block, alignment, size) ? NULL : block;
}
static inline void free_block(void *block) { free(block); }

static inline void prefer_large_pages(void *block, size_t size) {
#ifdef MADV_HUGEPAGE
    madvise(block, size, MADV_HUGEPAGE);
#else
    (void)block, (void)size;
#endif
}

#endif

/* Zeroed memory for free_block; large blocks in large pages, which are made faster and looked up faster. */
static inline void *zeroed_block(size_t size) {
    const size_t large = (size_t)1 << 21;
    void *block = aligned_block(size >= 4 * large ? large : 64, size);
    if (!block) return NULL;
    if (size >= 4 * large) prefer_large_pages(block, size & ~(large - 1));
    memset(block, 0, size);
    return block;
}

/* A moment in a loop that waits for another thread. */
static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
