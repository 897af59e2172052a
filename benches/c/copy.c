/* SPDX-License-Identifier: Apache-2.0 */
/* Blocking put and get of 8 B to 4 MiB to a PE of the same host, heap and static data, against plain
 * copies between the same mappings. 2 PEs; PE 0 works. */
#include "bench.h"

#define LARGEST ((size_t)4 << 20)

enum { PUT_HEAP, PUT_STATIC, GET_HEAP, GET_STATIC, CACHED, STREAMING, KINDS };
static const char *const NAMES[KINDS] = {"put.heap",   "put.static", "get.heap",
                                         "get.static", "memcpy",     "streaming"};

static const size_t SIZES[] = {8, 64, 512, 4096, 32768, 262144, 1048576, LARGEST};
enum { SIZE_COUNT = sizeof SIZES / sizeof SIZES[0] };

static _Alignas(PAGE) char in_static[LARGEST];

static double time_kind(int kind, char *in_heap, char *mapping, char *local, size_t size, long count)
{
    switch (kind) {
    case PUT_HEAP: return NS_EACH(count, shmem_putmem(in_heap, local, size, 1));
    case PUT_STATIC: return NS_EACH(count, shmem_putmem(in_static, local, size, 1));
    case GET_HEAP: return NS_EACH(count, shmem_getmem(local, in_heap, size, 1));
    case GET_STATIC: return NS_EACH(count, shmem_getmem(local, in_static, size, 1));
    case CACHED: return NS_EACH(count, plain_copy(mapping, local, size));
    default: return NS_EACH(count, plain_copy_streaming(mapping, local, size));
    }
}

static char pattern(size_t at, size_t size, int kind)
{
    return (char)(at * 31 + at / 251 + size + (size_t)kind);
}

/* Copies `size` bytes by `kind` between buffers whose contents are known; the bytes moved must be
 * the ones expected and the byte behind them untouched. */
static void verify(int kind, char *in_heap, char *local, size_t size)
{
    int is_get = kind == GET_HEAP || kind == GET_STATIC;
    char *remote = kind == PUT_STATIC || kind == GET_STATIC ? in_static : in_heap;
    char *filled = is_get ? remote : local;
    int filling_pe = is_get ? 1 : 0;
    memset(remote, 0x55, size < LARGEST ? size + 1 : size);
    memset(local, 0x55, size < LARGEST ? size + 1 : size);
    for (size_t at = 0; shmem_my_pe() == filling_pe && at < size; at++)
        filled[at] = pattern(at, size, kind);
    shmem_barrier_all();
    if (shmem_my_pe() == 0)
        time_kind(kind, in_heap, NULL, local, size, 1);
    shmem_barrier_all();
    char *arrived = is_get ? local : remote;
    if (shmem_my_pe() == filling_pe)
        return;
    for (size_t at = 0; at < size; at++)
        if (arrived[at] != pattern(at, size, kind))
            fail("%s of %zu bytes: byte %zu", NAMES[kind], size, at);
    if (size < LARGEST && arrived[size] != 0x55)
        fail("%s of %zu bytes wrote behind its end", NAMES[kind], size);
}

static void measure(char *in_heap, char *mapping, char *local, size_t size)
{
    static double ns[KINDS][BATCHES];
    for (int kind = 0; kind < STREAMING; kind++) /* every page touched by this PE */
        time_kind(kind, in_heap, mapping, local, size, 1);
    long count = size < 4096 ? 2000 : size < 262144 ? 64 : size < LARGEST ? 4 : 2;
    for (int batch = 0; batch < BATCHES; batch++)
        for (int kind = 0; kind < STREAMING; kind++) {
            /* Once unmeasured, or a kind would profit from the one before if that left its buffers
             * in the caches. */
            time_kind(kind, in_heap, mapping, local, size, 1);
            ns[kind][batch] = time_kind(kind, in_heap, mapping, local, size, count);
        }
    /* By itself: it leaves the buffers out of the caches, which the next kind would pay for. */
    for (int batch = 0; batch < BATCHES; batch++)
        ns[STREAMING][batch] = time_kind(STREAMING, in_heap, mapping, local, size, count);
    for (int kind = 0; kind < KINDS; kind++) {
        char name[64];
        snprintf(name, sizeof name, "%s.%zu", NAMES[kind], size);
        print_samples(name, "ns", ns[kind], BATCHES);
    }
}

int main(void)
{
    shmem_init();
    char *in_heap = symmetric(LARGEST);
    char *local = symmetric(LARGEST);
    for (int s = 0; s < SIZE_COUNT; s++)
        for (int kind = 0; kind < CACHED; kind++)
            verify(kind, in_heap, local, SIZES[s]);
    shmem_barrier_all();
    for (int s = 0; s < SIZE_COUNT && shmem_my_pe() == 0; s++)
        measure(in_heap, mapped(in_heap, 1), local, SIZES[s]);
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
