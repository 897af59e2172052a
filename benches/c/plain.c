/* SPDX-License-Identifier: Apache-2.0 */
#include "plain.h"

#include <stdint.h>
#include <string.h>

void plain_store(long *to, long value)
{
    *(volatile long *)to = value;
}

long plain_load(const long *from)
{
    return *(const volatile long *)from;
}

void plain_move(long *to, const long *from)
{
    *(volatile long *)to = *(const volatile long *)from;
}

long plain_fetch_add(long *variable, long value)
{
    return __atomic_fetch_add(variable, value, __ATOMIC_SEQ_CST);
}

void plain_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx"))) static void copy_avx(char *to, const char *from, size_t bytes)
{
    size_t head = -(uintptr_t)to & 31;
    if (head > bytes)
        head = bytes;
    memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= 128; bytes -= 128, to += 128, from += 128) {
        __m256i a = _mm256_loadu_si256((const __m256i *)from);
        __m256i b = _mm256_loadu_si256((const __m256i *)(from + 32));
        __m256i c = _mm256_loadu_si256((const __m256i *)(from + 64));
        __m256i d = _mm256_loadu_si256((const __m256i *)(from + 96));
        _mm256_stream_si256((__m256i *)to, a);
        _mm256_stream_si256((__m256i *)(to + 32), b);
        _mm256_stream_si256((__m256i *)(to + 64), c);
        _mm256_stream_si256((__m256i *)(to + 96), d);
    }
    memcpy(to, from, bytes);
    _mm_sfence();
}

void plain_copy_streaming(void *to, const void *from, size_t bytes)
{
    if (__builtin_cpu_supports("avx"))
        copy_avx(to, from, bytes);
    else
        memcpy(to, from, bytes);
}
#else
void plain_copy_streaming(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif
