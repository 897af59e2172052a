/* SPDX-License-Identifier: Apache-2.0 */
/* The process ends, and leaves the job in order, when the last thread of the program returns, whatever threads the library
 * has started meanwhile: a long copy beside the program takes one. */
#define _GNU_SOURCE
#include "../check.h"
#include <pthread.h>

enum { LONG = 8 << 20 };

static char source[LONG], dest[LONG];
static pthread_t first;

static void *last(void *unused) {
    (void)unused;
    CHECK(pthread_join(first, NULL) == 0);
    return NULL;
}

int main(void) {
    CHECK_EQ(shmem_init_thread(SHMEM_THREAD_MULTIPLE, &(int){0}), 0);
    check_places();
    memset(source, 'a' + me, LONG);
    shmem_putmem_nbi(dest, source, LONG, next_pe);
    shmem_barrier_all();
    for (int i = 0; i < LONG; i++) CHECK(dest[i] == 'a' + previous_pe);
    first = pthread_self();
    pthread_t other;
    CHECK(pthread_create(&other, NULL, last, NULL) == 0);
    pthread_exit(NULL);
}
