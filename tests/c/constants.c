/* SPDX-License-Identifier: Apache-2.0 */
/* Constants of the program are symmetric: they can be read at any PE, by every kind of routine and
 * in any length, and are the source of collective operations. */
#include "check.h"

#define COUNT 20000
#define EVERY(I) (long)(I) % 7 + 1

/* COUNT elements that begin 1 2 3 4 5 6 7 1 2 3 ... */
#define TEN(A) A, A, A, A, A, A, A, A, A, A
#define SEVEN 1, 2, 3, 4, 5, 6, 7
static const long table[COUNT] = {TEN(SEVEN), TEN(SEVEN)};
static const int one = 77;
static const float fraction = 0.5f;
/* The address makes the loader write to it, unless it knows the place of the program. */
static const struct { const long *table; long number; } relocated = {table, 5};

static long dest[COUNT], gathered[8 * COUNT];

static long expected(size_t i) { return i < 140 ? EVERY(i) : 0; }

static void read_one_sided(void) {
    long few[9];
    CHECK_EQ(shmem_long_g(&table[3], next_pe), 4);
    CHECK_EQ(shmem_int_g(&one, next_pe), 77);
    CHECK_EQ(shmem_float_g(&fraction, next_pe), 0.5f);
    shmem_long_get(few, table + 5, 9, next_pe);
    for (int i = 0; i < 9; i++) CHECK_EQ(few[i], expected(5 + i));
    memset(few, 0, sizeof few);
    shmem_long_iget(few, table, 2, 3, 4, next_pe);
    for (int i = 0; i < 4; i++) CHECK_EQ(few[2 * i], expected(3 * i));
    memset(dest, -1, sizeof dest);
    shmem_getmem_nbi(dest, table, sizeof dest, next_pe);
    shmem_quiet();
    for (size_t i = 0; i < COUNT; i++) CHECK_EQ(dest[i], expected(i));
    shmem_long_put(dest, table + 70, 70, me);
    CHECK_EQ(dest[69], expected(69));
    CHECK_EQ(shmem_long_g(&relocated.number, me), 5);
}

static void read_atomically(void) {
    long fetched = 0;
    CHECK_EQ(shmem_long_atomic_fetch(&table[6], next_pe), 7);
    CHECK_EQ(shmem_float_atomic_fetch(&fraction, next_pe), 0.5f);
    shmem_long_atomic_fetch_nbi(&fetched, &table[2], next_pe);
    shmem_quiet();
    CHECK_EQ(fetched, 3);
}

static void look(void) {
    int *there = shmem_ptr(dest, next_pe), on_stack = 0;
    CHECK_EQ(shmem_addr_accessible(table, next_pe), 1);
    CHECK_EQ(shmem_addr_accessible(&on_stack, next_pe), 0);
    CHECK(shmem_ptr(table, me) == (void *)table);
#ifdef __x86_64__
    /* Linkers for other processors put code and constants into one segment. */
    CHECK_EQ(shmem_addr_accessible((void *)look, next_pe), 0);
    CHECK(shmem_ptr((void *)look, me) == NULL);
#endif
    const long *theirs = shmem_ptr(table, next_pe);
    CHECK((theirs != NULL) == (there != NULL));
    if (theirs != NULL) CHECK_EQ(theirs[6], 7);
}

static void check_gathered(size_t count, size_t first, size_t each) {
    for (size_t i = 0; i < count; i++) CHECK_EQ(gathered[i], expected(first + i % each));
    memset(gathered, -1, sizeof gathered);
    shmem_barrier_all();
}

static void collect(size_t count) {
    CHECK_EQ(shmem_long_sum_reduce(SHMEM_TEAM_WORLD, dest, table, count), 0);
    for (size_t i = 0; i < count; i++) CHECK_EQ(dest[i], npes * expected(i));
    shmem_barrier_all();
    CHECK_EQ(shmem_long_sum_exscan(SHMEM_TEAM_WORLD, dest, table, count), 0);
    for (size_t i = 0; me > 0 && i < count; i++) CHECK_EQ(dest[i], me * expected(i));
    shmem_barrier_all();
    CHECK_EQ(shmem_long_sum_inscan(SHMEM_TEAM_WORLD, dest, table, count), 0);
    for (size_t i = 0; i < count; i++) CHECK_EQ(dest[i], (me + 1) * expected(i));
    shmem_barrier_all();
    CHECK_EQ(shmem_long_broadcast(SHMEM_TEAM_WORLD, gathered, table, count, npes - 1), 0);
    check_gathered(count, 0, count);
    CHECK_EQ(shmem_long_fcollect(SHMEM_TEAM_WORLD, gathered, table, count), 0);
    check_gathered(npes * count, 0, count);
    CHECK_EQ(shmem_long_collect(SHMEM_TEAM_WORLD, gathered, table, count), 0);
    check_gathered(npes * count, 0, count);
    size_t each = count / npes;
    CHECK_EQ(shmem_long_alltoall(SHMEM_TEAM_WORLD, gathered, table, each), 0);
    check_gathered(npes * each, me * each, each);
}

int main(void) {
    check_start();
    CHECK(npes <= 8);
    read_one_sided();
    read_atomically();
    look();
    for (size_t count = 1; count <= COUNT; count = count * 5 + 3) collect(count);
    collect(COUNT);
    return check_done();
}
