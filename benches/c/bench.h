/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the benchmark programs: clock, samples, checks.
 *
 * A program prints what it measured as lines
 *
 *     sample NAME UNIT VALUE VALUE ...
 *
 * one value per batch. Things that are compared with each other are measured in turn within each
 * batch, so that value k of one name and value k of another saw the same state of the machine.
 * A program that finds a wrong result ends its job with a non-zero code and prints no sample of it.
 *
 * Only OpenSHMEM 1.4 is used, so that other implementations can be measured with the same source.
 */
#ifndef BENCH_H
#define BENCH_H

#include <shmem.h>

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "plain.h"

enum { BATCHES = 21, CACHE_LINE = 64, PAGE = 4096 };

static inline double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

/* Nanoseconds that one execution of `statement` takes, on average over `count`; `i` counts them. */
#define NS_EACH(count, statement)                                                                  \
    ({                                                                                             \
        double begun_ = now_ns();                                                                  \
        for (long i = 0; i < (long)(count); i++) {                                                 \
            statement;                                                                             \
        }                                                                                          \
        (now_ns() - begun_) / (double)(count);                                                     \
    })

__attribute__((format(printf, 1, 2))) static inline void fail(const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "PE %d: wrong result: ", shmem_my_pe());
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    shmem_global_exit(1);
    abort();
}

static inline void print_samples(const char *name, const char *unit, const double *values, int count)
{
    printf("sample %s %s", name, unit);
    for (int k = 0; k < count; k++)
        printf(" %.4g", values[k]);
    putchar('\n');
    fflush(stdout);
}

static inline void *symmetric(size_t bytes)
{
    void *memory = shmem_align(PAGE, bytes);
    if (memory == NULL) {
        fprintf(stderr, "the symmetric heap has no %zu bytes left\n", bytes);
        shmem_global_exit(1);
        abort();
    }
    memset(memory, 0, bytes);
    shmem_barrier_all();
    return memory;
}

/* The mapping of a peer's heap object; the references are measured on it. */
static inline void *mapped(const void *symmetric_address, int pe)
{
    void *address = shmem_ptr(symmetric_address, pe);
    if (address == NULL) {
        fprintf(stderr, "shmem_ptr finds no mapping of PE %d: nothing to compare with\n", pe);
        shmem_global_exit(1);
        abort();
    }
    return address;
}

#endif
