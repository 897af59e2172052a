/* SPDX-License-Identifier: Apache-2.0 */
/* The Mandelbrot set with work stealing (Dinan & Flajslik, "Contexts: A Mechanism for High Throughput
 * Communication in OpenSHMEM"): threads take rows by fetch-add, first those of their own PE, then
 * those of others, and put the pixels to PE 0. Without contexts, with a context per thread, with
 * non-blocking puts, and with two contexts per thread so that one row travels while the next is
 * taken and computed; with OpenSHMEM 1.5 and later also with the next row taken by a non-blocking
 * fetch while this one is computed. Takes the number of threads per PE. */
#include "bench.h"

#include <pthread.h>

enum { WIDTH = 512, HEIGHT = 512, LIMIT = 96, CHUNK = 64, MOST = 16, TIMES = 7 };
enum { CHUNKS = WIDTH * HEIGHT / CHUNK };

enum { NO_CONTEXT, CONTEXT, NON_BLOCKING, PIPELINED, AHEAD };
static const char *const NAMES[] = {"no_context", "context", "non_blocking", "pipelined", "ahead"};
#if SHMEM_MAJOR_VERSION > 1 || SHMEM_MINOR_VERSION >= 5
enum { KINDS = AHEAD + 1 };
#else
enum { KINDS = AHEAD };
#endif

static unsigned char *image; /* symmetric; the one of PE 0 is the result */
static long *next_chunk;     /* symmetric: chunks of this PE that were taken */

static void compute(unsigned char *pixels, long chunk)
{
    for (int k = 0; k < CHUNK; k++) {
        long pixel = chunk * CHUNK + k;
        double x = (double)(pixel % WIDTH) / WIDTH * 3.0 - 2.0;
        double y = (double)(pixel / WIDTH) / HEIGHT * 2.4 - 1.2;
        double a = 0, b = 0;
        int step = 0;
        for (; step < LIMIT && a * a + b * b < 4; step++) {
            double next = a * a - b * b + x;
            b = 2 * a * b + y;
            a = next;
        }
        pixels[k] = (unsigned char)step;
    }
}

/* PE `pe` owns the chunks pe, pe + n, pe + 2n, ... */
static long owned(int pe)
{
    int n = shmem_n_pes();
    return (CHUNKS - pe + n - 1) / n;
}

#if SHMEM_MAJOR_VERSION > 1 || SHMEM_MINOR_VERSION >= 5
/* The counter has a context of its own: waiting for the next row does not wait for pixels. */
static void work_ahead(shmem_ctx_t rows, shmem_ctx_t puts)
{
    int me = shmem_my_pe(), n = shmem_n_pes(), turn = 0;
    unsigned char pixels[2][CHUNK];
    for (int victim = 0; victim < n; victim++) {
        int owner = (me + victim) % n;
        long next, taken;
        shmem_ctx_long_atomic_fetch_add_nbi(rows, &next, next_chunk, 1, owner);
        for (;;) {
            shmem_ctx_quiet(rows);
            taken = next;
            if (taken >= owned(owner))
                break;
            shmem_ctx_long_atomic_fetch_add_nbi(rows, &next, next_chunk, 1, owner);
            long chunk = owner + taken * n;
            compute(pixels[turn], chunk);
            shmem_ctx_quiet(puts); /* of the other buffer, which is computed next */
            shmem_ctx_putmem_nbi(puts, image + chunk * CHUNK, pixels[turn], CHUNK, 0);
            turn = !turn;
        }
    }
    shmem_ctx_quiet(puts);
}
#endif

static void *work(void *argument)
{
    int kind = *(int *)argument, me = shmem_my_pe(), n = shmem_n_pes();
    unsigned char pixels[2][CHUNK];
    shmem_ctx_t contexts[2] = {SHMEM_CTX_DEFAULT, SHMEM_CTX_DEFAULT};
    int used = kind == NO_CONTEXT ? 0 : kind >= PIPELINED ? 2 : 1;
    for (int c = 0; c < used; c++)
        if (shmem_ctx_create(SHMEM_CTX_PRIVATE, &contexts[c]) != 0) {
            fprintf(stderr, "no context could be created\n");
            shmem_global_exit(1);
        }
    int turn = 0;
#if SHMEM_MAJOR_VERSION > 1 || SHMEM_MINOR_VERSION >= 5
    if (kind == AHEAD)
        work_ahead(contexts[0], contexts[1]);
#endif
    for (int victim = 0; victim < n && kind != AHEAD; victim++) {
        int owner = (me + victim) % n;
        for (;;) {
            shmem_ctx_t context = contexts[used == 2 ? turn : 0];
            long taken = shmem_ctx_long_atomic_fetch_add(context, next_chunk, 1, owner);
            if (taken >= owned(owner))
                break;
            long chunk = owner + taken * n;
            unsigned char *to = image + chunk * CHUNK;
            if (kind >= NON_BLOCKING)
                shmem_ctx_quiet(context); /* the buffer's last put must have been read */
            compute(pixels[turn], chunk);
            if (kind >= NON_BLOCKING)
                shmem_ctx_putmem_nbi(context, to, pixels[turn], CHUNK, 0);
            else
                shmem_ctx_putmem(context, to, pixels[turn], CHUNK, 0);
            if (kind < NON_BLOCKING)
                shmem_ctx_quiet(context);
            if (kind == PIPELINED)
                turn = !turn;
        }
    }
    for (int c = 0; c < (used ? used : 1); c++)
        shmem_ctx_quiet(contexts[c]);
    for (int c = 0; c < used; c++)
        shmem_ctx_destroy(contexts[c]);
    return NULL;
}

static double draw(int kind, int threads)
{
    pthread_t started[MOST];
    *next_chunk = 0;
    memset(image, 0xff, WIDTH * HEIGHT);
    shmem_barrier_all();
    double begun = now_ns();
    for (int t = 1; t < threads; t++)
        if (pthread_create(&started[t], NULL, work, &kind) != 0) {
            fprintf(stderr, "no thread could be started\n");
            shmem_global_exit(1);
        }
    work(&kind);
    for (int t = 1; t < threads; t++)
        pthread_join(started[t], NULL);
    shmem_barrier_all();
    return (now_ns() - begun) / 1e6;
}

int main(int count, char **arguments)
{
    static double ms[KINDS][TIMES];
    int threads = count > 1 ? atoi(arguments[1]) : 2, provided;
    if (shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided) != 0
        || provided != SHMEM_THREAD_MULTIPLE || threads < 1 || threads > MOST) {
        fprintf(stderr, "mandelbrot: needs SHMEM_THREAD_MULTIPLE and 1 to %d threads\n", MOST);
        shmem_global_exit(2);
    }
    image = symmetric(WIDTH * HEIGHT);
    next_chunk = symmetric(CACHE_LINE);
    unsigned char *expected = malloc(WIDTH * HEIGHT);
    for (long chunk = 0; chunk < CHUNKS; chunk++)
        compute(expected + chunk * CHUNK, chunk);
    for (int time = 0; time < TIMES; time++)
        for (int kind = 0; kind < KINDS; kind++) {
            ms[kind][time] = draw(kind, threads);
            if (shmem_my_pe() == 0 && memcmp(image, expected, WIDTH * HEIGHT) != 0)
                fail("the picture drawn by %s differs", NAMES[kind]);
            shmem_barrier_all();
        }
    free(expected);
    for (int kind = 0; kind < KINDS && shmem_my_pe() == 0; kind++) {
        char name[64];
        snprintf(name, sizeof name, "mandelbrot.%s", NAMES[kind]);
        print_samples(name, "ms", ms[kind], TIMES);
    }
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
