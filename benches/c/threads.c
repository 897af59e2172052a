/* SPDX-License-Identifier: Apache-2.0 */
/* Message rate of 1, 2 and 4 threads of one PE at SHMEM_THREAD_MULTIPLE: 8-byte puts with a quiet
 * after every 64, on a private context per thread and on the default context, against plain stores
 * by the same threads. 2 PEs; PE 1 sleeps. Values are nanoseconds per put over all threads. */
#include "bench.h"

#include <pthread.h>
#include <unistd.h>

enum { MOST = 4, WORDS = PAGE / sizeof(long), WINDOW = 64, PUTS = WINDOW * 8192 };

enum { PRIVATE, DEFAULT, STORE, KINDS };
static const char *const NAMES[KINDS] = {"private_context", "default_context", "stores"};

struct worker {
    pthread_t thread;
    int kind;
    long *area;    /* this thread's own page of the symmetric array */
    long *mapping; /* the same at PE 1 */
    pthread_barrier_t *start;
    double begun, ended;
};

static void *work(void *argument)
{
    struct worker *w = argument;
    shmem_ctx_t context = SHMEM_CTX_DEFAULT;
    if (w->kind == PRIVATE && shmem_ctx_create(SHMEM_CTX_PRIVATE, &context) != 0) {
        fprintf(stderr, "no private context could be created\n");
        shmem_global_exit(1);
    }
    long sources[WINDOW]; /* a non-blocking put may read its source as late as in the quiet */
    pthread_barrier_wait(w->start);
    w->begun = now_ns();
    for (long put = 0; put < PUTS; put++) {
        long at = put % WORDS;
        if (w->kind == STORE) {
            plain_store(&w->mapping[at], put);
            continue;
        }
        sources[put % WINDOW] = put;
        shmem_ctx_long_put_nbi(context, &w->area[at], &sources[put % WINDOW], 1, 1);
        if (put % WINDOW == WINDOW - 1)
            shmem_ctx_quiet(context);
    }
    w->ended = now_ns();
    if (w->kind == PRIVATE)
        shmem_ctx_destroy(context);
    return NULL;
}

static double time_kind(int kind, int threads, long *area, long *mapping)
{
    struct worker workers[MOST];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    for (int t = 0; t < threads; t++) {
        workers[t] = (struct worker){.kind = kind,
                                     .area = area + t * WORDS,
                                     .mapping = mapping + t * WORDS,
                                     .start = &start};
        if (pthread_create(&workers[t].thread, NULL, work, &workers[t]) != 0) {
            fprintf(stderr, "no thread could be started\n");
            shmem_global_exit(1);
        }
    }
    double begun = 0, ended = 0;
    for (int t = 0; t < threads; t++) {
        pthread_join(workers[t].thread, NULL);
        if (t == 0 || workers[t].begun < begun)
            begun = workers[t].begun;
        if (t == 0 || workers[t].ended > ended)
            ended = workers[t].ended;
    }
    pthread_barrier_destroy(&start);
    return (ended - begun) / ((double)threads * PUTS);
}

int main(void)
{
    int provided;
    if (shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided) != 0
        || provided != SHMEM_THREAD_MULTIPLE) {
        fprintf(stderr, "SHMEM_THREAD_MULTIPLE is not provided\n");
        shmem_global_exit(2);
    }
    long *area = symmetric(MOST * PAGE);
    volatile long *done = symmetric(CACHE_LINE);
    if (shmem_my_pe() == 0) {
        static double ns[KINDS][3][BATCHES];
        long *mapping = mapped(area, 1);
        for (int batch = 0; batch < BATCHES; batch++)
            for (int step = 0; step < 3; step++)
                for (int kind = 0; kind < KINDS; kind++)
                    ns[kind][step][batch] = time_kind(kind, 1 << step, area, mapping);
        for (int kind = 0; kind < KINDS; kind++)
            for (int step = 0; step < 3; step++) {
                char name[64];
                snprintf(name, sizeof name, "%s.%d", NAMES[kind], 1 << step);
                print_samples(name, "ns", ns[kind][step], BATCHES);
            }
        time_kind(PRIVATE, MOST, area, mapping);
        shmem_quiet();
        shmem_long_p((long *)done, 1, 1);
    } else {
        while (*done == 0) /* leaves the cores to the threads of PE 0 */
            usleep(2000);
        for (int t = 0; t < MOST; t++)
            for (long at = 0; at < WORDS; at++)
                if (area[t * WORDS + at] != PUTS - WORDS + at)
                    fail("thread %d left %ld in word %ld", t, area[t * WORDS + at], at);
    }
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
