/* SPDX-License-Identifier: Apache-2.0 */
/* Global and static variables are symmetric: initialised, zero, large, in functions; by every
 * kind of routine; and they keep the values they had before shmem_init. With a remapped data
 * segment pointers to them work as well; without (SHMEM_STATIC=cma) only routines reach them. */
#include "check.h"

long initialised = 42;
static int file_static[3] = {1, 2, 3};
static double zero_initialised[1000];
static char large[3 << 20];
char *text = "a pointer in the data segment";
static struct { char c; long l; float f; } aggregate = {'x', 7, 1.5f};
static const long constant = 99;

static long *in_function(void) {
    static long counter = 10;
    return &counter;
}

int main(void) {
    initialised = 43; /* written before the library starts */
    zero_initialised[999] = 2.5;
    check_start();

    CHECK_EQ(initialised, 43);
    CHECK_EQ(zero_initialised[999], 2.5);
    CHECK_EQ(file_static[2], 3);
    CHECK(strcmp(text, "a pointer in the data segment") == 0);
    shmem_barrier_all();

    /* Put, get, p and g. */
    shmem_long_p(&initialised, 100 + me, next_pe);
    int three[3] = {me, me + 1, me + 2}, got[3];
    shmem_int_put(file_static, three, 3, next_pe);
    shmem_double_p(&zero_initialised[500], me + 0.5, next_pe);
    shmem_barrier_all();
    CHECK_EQ(initialised, 100 + previous_pe);
    CHECK_EQ(shmem_long_g(&initialised, next_pe), 100 + me);
    shmem_int_get(got, file_static, 3, next_pe);
    CHECK(memcmp(got, three, sizeof got) == 0);
    CHECK_EQ(zero_initialised[500], previous_pe + 0.5);
    CHECK_EQ(aggregate.l, 7);
    shmem_barrier_all();

    /* Parts of a structure, strided, block transfers over pages, from static to static. */
    shmem_long_p(&aggregate.l, me, next_pe);
    shmem_float_p(&aggregate.f, me * 2.0f, next_pe);
    static double strided_source[10];
    for (int i = 0; i < 10; i++) strided_source[i] = i + me;
    shmem_double_iput(zero_initialised, strided_source, 7, 1, 10, next_pe);
    shmem_barrier_all();
    CHECK_EQ(aggregate.l, previous_pe);
    CHECK_EQ(aggregate.f, previous_pe * 2.0f);
    CHECK(aggregate.c == 'x');
    for (int i = 0; i < 10; i++) CHECK_EQ(zero_initialised[7 * i], i + previous_pe);

    static char large_source[sizeof large];
    memset(large_source, 'a' + me, sizeof large_source);
    shmem_putmem(large, large_source, sizeof large, next_pe);
    shmem_barrier_all();
    for (size_t i = 0; i < sizeof large; i += 997) CHECK_EQ(large[i], 'a' + previous_pe);
    CHECK_EQ(large[sizeof large - 1], 'a' + previous_pe);
    memset(large_source, 0, sizeof large_source);
    shmem_getmem(large_source, large, sizeof large, next_pe);
    CHECK_EQ(large_source[sizeof large - 1], 'a' + me);

    /* Atomics, all PEs on one variable; waiting on static data. */
    for (int i = 0; i < 100; i++) shmem_long_atomic_inc(in_function(), 0);
    shmem_barrier_all();
    if (me == 0) CHECK_EQ(*in_function(), 10 + 100 * npes);
    static int flag;
    shmem_int_p(&flag, 1, next_pe);
    shmem_int_wait_until(&flag, SHMEM_CMP_EQ, 1);

#ifdef WITH_GAP
    /* Data in two segments, with other memory or none between them. */
    extern char _edata[];
    CHECK_EQ(check_aligned[1], 1);
    CHECK(shmem_addr_accessible(check_aligned, next_pe) && shmem_addr_accessible(&flag, next_pe));
    CHECK(!shmem_addr_accessible(_edata + (1 << 16), next_pe));
    shmem_barrier_all();
    shmem_char_p(&check_aligned[sizeof check_aligned - 1], (char)me, next_pe);
    shmem_putmem(check_aligned, large, sizeof large, next_pe);
    shmem_int_atomic_add((int *)&check_aligned[sizeof large], 5, next_pe);
    shmem_barrier_all();
    CHECK_EQ(check_aligned[sizeof check_aligned - 1], (char)previous_pe);
    CHECK_EQ(check_aligned[sizeof large - 1], 'a' + (previous_pe + npes - 1) % npes);
    CHECK_EQ(*(int *)&check_aligned[sizeof large], 5);
#endif

    /* Collectives on static data. */
    static long sum, mine;
    mine = me;
    CHECK_EQ(shmem_long_sum_reduce(SHMEM_TEAM_WORLD, &sum, &mine, 1), 0);
    CHECK_EQ(sum, (long)npes * (npes - 1) / 2);

    /* Constants stay readable, and private variables are not symmetric. */
    CHECK_EQ(constant, 99);
    int on_stack = 0;
    CHECK(!shmem_addr_accessible(&on_stack, next_pe));
    return check_done();
}
