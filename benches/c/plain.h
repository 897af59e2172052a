/* SPDX-License-Identifier: Apache-2.0 */
/* The references: what the operations cost when written as plain code. They live in a shared
 * library of their own and are called through it, as the operations of a library are. */
#ifndef PLAIN_H
#define PLAIN_H

#include <stddef.h>

void plain_store(long *to, long value);
long plain_load(const long *from);
/* A load and a store: what a put or get of one word has to do at least. */
void plain_move(long *to, const long *from);
long plain_fetch_add(long *variable, long value);
/* memcpy of the C library. */
void plain_copy(void *to, const void *from, size_t bytes);
/* With stores that bypass the caches, where the processor has AVX; else as plain_copy. */
void plain_copy_streaming(void *to, const void *from, size_t bytes);

#endif
