/* SPDX-License-Identifier: Apache-2.0 */
/*
 * C++ form of the type-generic routines of OpenSHMEM 1.6: overloads, one template per verb.
 *
 * The overloads forward to the C routines. std::complex is accepted wherever the C routines take
 * _Complex: the two have the same representation (C++11, [complex.numbers]/4).
 */
#ifndef TOMBOLO_GENERICS_CXX_H
#define TOMBOLO_GENERICS_CXX_H

#include <complex>

/* Remote memory access. */
#define TOMBOLO_CXX_RMA(TYPENAME, TYPE, ...)                                                       \
    inline void shmem_put(TYPE *dest, const TYPE *source, size_t nelems, int pe) {                 \
        shmem_##TYPENAME##_put(dest, source, nelems, pe);                                          \
    }                                                                                              \
    inline void shmem_put(shmem_ctx_t ctx, TYPE *dest, const TYPE *source, size_t nelems,          \
                          int pe) {                                                                \
        shmem_ctx_##TYPENAME##_put(ctx, dest, source, nelems, pe);                                 \
    }                                                                                              \
    inline void shmem_get(TYPE *dest, const TYPE *source, size_t nelems, int pe) {                 \
        shmem_##TYPENAME##_get(dest, source, nelems, pe);                                          \
    }                                                                                              \
    inline void shmem_get(shmem_ctx_t ctx, TYPE *dest, const TYPE *source, size_t nelems,          \
                          int pe) {                                                                \
        shmem_ctx_##TYPENAME##_get(ctx, dest, source, nelems, pe);                                 \
    }                                                                                              \
    inline void shmem_put_nbi(TYPE *dest, const TYPE *source, size_t nelems, int pe) {             \
        shmem_##TYPENAME##_put_nbi(dest, source, nelems, pe);                                      \
    }                                                                                              \
    inline void shmem_put_nbi(shmem_ctx_t ctx, TYPE *dest, const TYPE *source, size_t nelems,      \
                              int pe) {                                                            \
        shmem_ctx_##TYPENAME##_put_nbi(ctx, dest, source, nelems, pe);                             \
    }                                                                                              \
    inline void shmem_get_nbi(TYPE *dest, const TYPE *source, size_t nelems, int pe) {             \
        shmem_##TYPENAME##_get_nbi(dest, source, nelems, pe);                                      \
    }                                                                                              \
    inline void shmem_get_nbi(shmem_ctx_t ctx, TYPE *dest, const TYPE *source, size_t nelems,      \
                              int pe) {                                                            \
        shmem_ctx_##TYPENAME##_get_nbi(ctx, dest, source, nelems, pe);                             \
    }                                                                                              \
    inline void shmem_p(TYPE *dest, TYPE value, int pe) { shmem_##TYPENAME##_p(dest, value, pe); } \
    inline void shmem_p(shmem_ctx_t ctx, TYPE *dest, TYPE value, int pe) {                         \
        shmem_ctx_##TYPENAME##_p(ctx, dest, value, pe);                                            \
    }                                                                                              \
    inline TYPE shmem_g(const TYPE *source, int pe) { return shmem_##TYPENAME##_g(source, pe); }   \
    inline TYPE shmem_g(shmem_ctx_t ctx, const TYPE *source, int pe) {                             \
        return shmem_ctx_##TYPENAME##_g(ctx, source, pe);                                          \
    }                                                                                              \
    inline void shmem_iput(TYPE *dest, const TYPE *source, ptrdiff_t dst, ptrdiff_t sst,           \
                           size_t nelems, int pe) {                                                \
        shmem_##TYPENAME##_iput(dest, source, dst, sst, nelems, pe);                               \
    }                                                                                              \
    inline void shmem_iput(shmem_ctx_t ctx, TYPE *dest, const TYPE *source, ptrdiff_t dst,         \
                           ptrdiff_t sst, size_t nelems, int pe) {                                 \
        shmem_ctx_##TYPENAME##_iput(ctx, dest, source, dst, sst, nelems, pe);                      \
    }                                                                                              \
    inline void shmem_iget(TYPE *dest, const TYPE *source, ptrdiff_t dst, ptrdiff_t sst,           \
                           size_t nelems, int pe) {                                                \
        shmem_##TYPENAME##_iget(dest, source, dst, sst, nelems, pe);                               \
    }                                                                                              \
    inline void shmem_iget(shmem_ctx_t ctx, TYPE *dest, const TYPE *source, ptrdiff_t dst,         \
                           ptrdiff_t sst, size_t nelems, int pe) {                                 \
        shmem_ctx_##TYPENAME##_iget(ctx, dest, source, dst, sst, nelems, pe);                      \
    }                                                                                              \
    inline void shmem_ibput(TYPE *dest, const TYPE *source, ptrdiff_t dst, ptrdiff_t sst,          \
                            size_t bsize, size_t nblocks, int pe) {                                \
        shmem_##TYPENAME##_ibput(dest, source, dst, sst, bsize, nblocks, pe);                      \
    }                                                                                              \
    inline void shmem_ibput(shmem_ctx_t ctx, TYPE *dest, const TYPE *source, ptrdiff_t dst,        \
                            ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) {                 \
        shmem_ctx_##TYPENAME##_ibput(ctx, dest, source, dst, sst, bsize, nblocks, pe);             \
    }                                                                                              \
    inline void shmem_ibget(TYPE *dest, const TYPE *source, ptrdiff_t dst, ptrdiff_t sst,          \
                            size_t bsize, size_t nblocks, int pe) {                                \
        shmem_##TYPENAME##_ibget(dest, source, dst, sst, bsize, nblocks, pe);                      \
    }                                                                                              \
    inline void shmem_ibget(shmem_ctx_t ctx, TYPE *dest, const TYPE *source, ptrdiff_t dst,        \
                            ptrdiff_t sst, size_t bsize, size_t nblocks, int pe) {                 \
        shmem_ctx_##TYPENAME##_ibget(ctx, dest, source, dst, sst, bsize, nblocks, pe);             \
    }
TOMBOLO_RMA_DISTINCT(TOMBOLO_CXX_RMA, ~)

/* Atomic memory operations. */
#define TOMBOLO_CXX_EXTENDED_AMO(TYPENAME, TYPE, ...)                                              \
    inline TYPE shmem_atomic_fetch(const TYPE *source, int pe) {                                   \
        return shmem_##TYPENAME##_atomic_fetch(source, pe);                                        \
    }                                                                                              \
    inline TYPE shmem_atomic_fetch(shmem_ctx_t ctx, const TYPE *source, int pe) {                  \
        return shmem_ctx_##TYPENAME##_atomic_fetch(ctx, source, pe);                               \
    }                                                                                              \
    inline void shmem_atomic_set(TYPE *dest, TYPE value, int pe) {                                 \
        shmem_##TYPENAME##_atomic_set(dest, value, pe);                                            \
    }                                                                                              \
    inline void shmem_atomic_set(shmem_ctx_t ctx, TYPE *dest, TYPE value, int pe) {                \
        shmem_ctx_##TYPENAME##_atomic_set(ctx, dest, value, pe);                                   \
    }                                                                                              \
    inline TYPE shmem_atomic_swap(TYPE *dest, TYPE value, int pe) {                                \
        return shmem_##TYPENAME##_atomic_swap(dest, value, pe);                                    \
    }                                                                                              \
    inline TYPE shmem_atomic_swap(shmem_ctx_t ctx, TYPE *dest, TYPE value, int pe) {               \
        return shmem_ctx_##TYPENAME##_atomic_swap(ctx, dest, value, pe);                           \
    }                                                                                              \
    inline void shmem_atomic_fetch_nbi(TYPE *fetch, const TYPE *source, int pe) {                  \
        shmem_##TYPENAME##_atomic_fetch_nbi(fetch, source, pe);                                    \
    }                                                                                              \
    inline void shmem_atomic_fetch_nbi(shmem_ctx_t ctx, TYPE *fetch, const TYPE *source, int pe) { \
        shmem_ctx_##TYPENAME##_atomic_fetch_nbi(ctx, fetch, source, pe);                           \
    }                                                                                              \
    inline void shmem_atomic_swap_nbi(TYPE *fetch, TYPE *dest, TYPE value, int pe) {               \
        shmem_##TYPENAME##_atomic_swap_nbi(fetch, dest, value, pe);                                \
    }                                                                                              \
    inline void shmem_atomic_swap_nbi(shmem_ctx_t ctx, TYPE *fetch, TYPE *dest, TYPE value,        \
                                      int pe) {                                                    \
        shmem_ctx_##TYPENAME##_atomic_swap_nbi(ctx, fetch, dest, value, pe);                       \
    }
TOMBOLO_EXTENDED_AMO_DISTINCT(TOMBOLO_CXX_EXTENDED_AMO, ~)

#define TOMBOLO_CXX_AMO(TYPENAME, TYPE, ...)                                                       \
    inline TYPE shmem_atomic_compare_swap(TYPE *dest, TYPE cond, TYPE value, int pe) {             \
        return shmem_##TYPENAME##_atomic_compare_swap(dest, cond, value, pe);                      \
    }                                                                                              \
    inline TYPE shmem_atomic_compare_swap(shmem_ctx_t ctx, TYPE *dest, TYPE cond, TYPE value,      \
                                          int pe) {                                                \
        return shmem_ctx_##TYPENAME##_atomic_compare_swap(ctx, dest, cond, value, pe);             \
    }                                                                                              \
    inline void shmem_atomic_compare_swap_nbi(TYPE *fetch, TYPE *dest, TYPE cond, TYPE value,      \
                                              int pe) {                                            \
        shmem_##TYPENAME##_atomic_compare_swap_nbi(fetch, dest, cond, value, pe);                  \
    }                                                                                              \
    inline void shmem_atomic_compare_swap_nbi(shmem_ctx_t ctx, TYPE *fetch, TYPE *dest, TYPE cond, \
                                              TYPE value, int pe) {                                \
        shmem_ctx_##TYPENAME##_atomic_compare_swap_nbi(ctx, fetch, dest, cond, value, pe);         \
    }                                                                                              \
    inline TYPE shmem_atomic_fetch_inc(TYPE *dest, int pe) {                                       \
        return shmem_##TYPENAME##_atomic_fetch_inc(dest, pe);                                      \
    }                                                                                              \
    inline TYPE shmem_atomic_fetch_inc(shmem_ctx_t ctx, TYPE *dest, int pe) {                      \
        return shmem_ctx_##TYPENAME##_atomic_fetch_inc(ctx, dest, pe);                             \
    }                                                                                              \
    inline void shmem_atomic_fetch_inc_nbi(TYPE *fetch, TYPE *dest, int pe) {                      \
        shmem_##TYPENAME##_atomic_fetch_inc_nbi(fetch, dest, pe);                                  \
    }                                                                                              \
    inline void shmem_atomic_fetch_inc_nbi(shmem_ctx_t ctx, TYPE *fetch, TYPE *dest, int pe) {     \
        shmem_ctx_##TYPENAME##_atomic_fetch_inc_nbi(ctx, fetch, dest, pe);                         \
    }                                                                                              \
    inline void shmem_atomic_inc(TYPE *dest, int pe) { shmem_##TYPENAME##_atomic_inc(dest, pe); }  \
    inline void shmem_atomic_inc(shmem_ctx_t ctx, TYPE *dest, int pe) {                            \
        shmem_ctx_##TYPENAME##_atomic_inc(ctx, dest, pe);                                          \
    }                                                                                              \
    inline TYPE shmem_atomic_fetch_add(TYPE *dest, TYPE value, int pe) {                           \
        return shmem_##TYPENAME##_atomic_fetch_add(dest, value, pe);                               \
    }                                                                                              \
    inline TYPE shmem_atomic_fetch_add(shmem_ctx_t ctx, TYPE *dest, TYPE value, int pe) {          \
        return shmem_ctx_##TYPENAME##_atomic_fetch_add(ctx, dest, value, pe);                      \
    }                                                                                              \
    inline void shmem_atomic_fetch_add_nbi(TYPE *fetch, TYPE *dest, TYPE value, int pe) {          \
        shmem_##TYPENAME##_atomic_fetch_add_nbi(fetch, dest, value, pe);                           \
    }                                                                                              \
    inline void shmem_atomic_fetch_add_nbi(shmem_ctx_t ctx, TYPE *fetch, TYPE *dest, TYPE value,   \
                                           int pe) {                                               \
        shmem_ctx_##TYPENAME##_atomic_fetch_add_nbi(ctx, fetch, dest, value, pe);                  \
    }                                                                                              \
    inline void shmem_atomic_add(TYPE *dest, TYPE value, int pe) {                                 \
        shmem_##TYPENAME##_atomic_add(dest, value, pe);                                            \
    }                                                                                              \
    inline void shmem_atomic_add(shmem_ctx_t ctx, TYPE *dest, TYPE value, int pe) {                \
        shmem_ctx_##TYPENAME##_atomic_add(ctx, dest, value, pe);                                   \
    }
TOMBOLO_AMO_DISTINCT(TOMBOLO_CXX_AMO, ~)

#define TOMBOLO_CXX_BITWISE_AMO(TYPENAME, TYPE, ...)                                               \
    inline TYPE shmem_atomic_fetch_and(TYPE *dest, TYPE value, int pe) {                           \
        return shmem_##TYPENAME##_atomic_fetch_and(dest, value, pe);                               \
    }                                                                                              \
    inline TYPE shmem_atomic_fetch_and(shmem_ctx_t ctx, TYPE *dest, TYPE value, int pe) {          \
        return shmem_ctx_##TYPENAME##_atomic_fetch_and(ctx, dest, value, pe);                      \
    }                                                                                              \
    inline void shmem_atomic_fetch_and_nbi(TYPE *fetch, TYPE *dest, TYPE value, int pe) {          \
        shmem_##TYPENAME##_atomic_fetch_and_nbi(fetch, dest, value, pe);                           \
    }                                                                                              \
    inline void shmem_atomic_fetch_and_nbi(shmem_ctx_t ctx, TYPE *fetch, TYPE *dest, TYPE value,   \
                                           int pe) {                                               \
        shmem_ctx_##TYPENAME##_atomic_fetch_and_nbi(ctx, fetch, dest, value, pe);                  \
    }                                                                                              \
    inline void shmem_atomic_and(TYPE *dest, TYPE value, int pe) {                                 \
        shmem_##TYPENAME##_atomic_and(dest, value, pe);                                            \
    }                                                                                              \
    inline void shmem_atomic_and(shmem_ctx_t ctx, TYPE *dest, TYPE value, int pe) {                \
        shmem_ctx_##TYPENAME##_atomic_and(ctx, dest, value, pe);                                   \
    }                                                                                              \
    inline TYPE shmem_atomic_fetch_or(TYPE *dest, TYPE value, int pe) {                            \
        return shmem_##TYPENAME##_atomic_fetch_or(dest, value, pe);                                \
    }                                                                                              \
    inline TYPE shmem_atomic_fetch_or(shmem_ctx_t ctx, TYPE *dest, TYPE value, int pe) {           \
        return shmem_ctx_##TYPENAME##_atomic_fetch_or(ctx, dest, value, pe);                       \
    }                                                                                              \
    inline void shmem_atomic_fetch_or_nbi(TYPE *fetch, TYPE *dest, TYPE value, int pe) {           \
        shmem_##TYPENAME##_atomic_fetch_or_nbi(fetch, dest, value, pe);                            \
    }                                                                                              \
    inline void shmem_atomic_fetch_or_nbi(shmem_ctx_t ctx, TYPE *fetch, TYPE *dest, TYPE value,    \
                                          int pe) {                                                \
        shmem_ctx_##TYPENAME##_atomic_fetch_or_nbi(ctx, fetch, dest, value, pe);                   \
    }                                                                                              \
    inline void shmem_atomic_or(TYPE *dest, TYPE value, int pe) {                                  \
        shmem_##TYPENAME##_atomic_or(dest, value, pe);                                             \
    }                                                                                              \
    inline void shmem_atomic_or(shmem_ctx_t ctx, TYPE *dest, TYPE value, int pe) {                 \
        shmem_ctx_##TYPENAME##_atomic_or(ctx, dest, value, pe);                                    \
    }                                                                                              \
    inline TYPE shmem_atomic_fetch_xor(TYPE *dest, TYPE value, int pe) {                           \
        return shmem_##TYPENAME##_atomic_fetch_xor(dest, value, pe);                               \
    }                                                                                              \
    inline TYPE shmem_atomic_fetch_xor(shmem_ctx_t ctx, TYPE *dest, TYPE value, int pe) {          \
        return shmem_ctx_##TYPENAME##_atomic_fetch_xor(ctx, dest, value, pe);                      \
    }                                                                                              \
    inline void shmem_atomic_fetch_xor_nbi(TYPE *fetch, TYPE *dest, TYPE value, int pe) {          \
        shmem_##TYPENAME##_atomic_fetch_xor_nbi(fetch, dest, value, pe);                           \
    }                                                                                              \
    inline void shmem_atomic_fetch_xor_nbi(shmem_ctx_t ctx, TYPE *fetch, TYPE *dest, TYPE value,   \
                                           int pe) {                                               \
        shmem_ctx_##TYPENAME##_atomic_fetch_xor_nbi(ctx, fetch, dest, value, pe);                  \
    }                                                                                              \
    inline void shmem_atomic_xor(TYPE *dest, TYPE value, int pe) {                                 \
        shmem_##TYPENAME##_atomic_xor(dest, value, pe);                                            \
    }                                                                                              \
    inline void shmem_atomic_xor(shmem_ctx_t ctx, TYPE *dest, TYPE value, int pe) {                \
        shmem_ctx_##TYPENAME##_atomic_xor(ctx, dest, value, pe);                                   \
    }
TOMBOLO_BITWISE_AMO_DISTINCT(TOMBOLO_CXX_BITWISE_AMO, ~)

/* Atomic memory operations, deprecated. Where TOMBOLO_WARN_DEPRECATED asks for it, compilers remark on their uses, not on
 * their bodies, which call deprecated routines. */
#define TOMBOLO_CXX_EXTENDED_AMO_DEPRECATED(TYPENAME, TYPE, ...)                                   \
    TOMBOLO_DEPRECATED("use shmem_atomic_fetch")                                                   \
    inline TYPE shmem_fetch(const TYPE *source, int pe) {                                          \
        return shmem_##TYPENAME##_fetch(source, pe);                                               \
    }                                                                                              \
    TOMBOLO_DEPRECATED("use shmem_atomic_set")                                                     \
    inline void shmem_set(TYPE *dest, TYPE value, int pe) {                                        \
        shmem_##TYPENAME##_set(dest, value, pe);                                                   \
    }                                                                                              \
    TOMBOLO_DEPRECATED("use shmem_atomic_swap")                                                    \
    inline TYPE shmem_swap(TYPE *dest, TYPE value, int pe) {                                       \
        return shmem_##TYPENAME##_swap(dest, value, pe);                                           \
    }
#define TOMBOLO_CXX_AMO_DEPRECATED(TYPENAME, TYPE, ...)                                            \
    TOMBOLO_DEPRECATED("use shmem_atomic_compare_swap")                                            \
    inline TYPE shmem_cswap(TYPE *dest, TYPE cond, TYPE value, int pe) {                           \
        return shmem_##TYPENAME##_cswap(dest, cond, value, pe);                                    \
    }                                                                                              \
    TOMBOLO_DEPRECATED("use shmem_atomic_fetch_inc")                                               \
    inline TYPE shmem_finc(TYPE *dest, int pe) { return shmem_##TYPENAME##_finc(dest, pe); }       \
    TOMBOLO_DEPRECATED("use shmem_atomic_inc")                                                     \
    inline void shmem_inc(TYPE *dest, int pe) { shmem_##TYPENAME##_inc(dest, pe); }                \
    TOMBOLO_DEPRECATED("use shmem_atomic_fetch_add")                                               \
    inline TYPE shmem_fadd(TYPE *dest, TYPE value, int pe) {                                       \
        return shmem_##TYPENAME##_fadd(dest, value, pe);                                           \
    }                                                                                              \
    TOMBOLO_DEPRECATED("use shmem_atomic_add")                                                     \
    inline void shmem_add(TYPE *dest, TYPE value, int pe) {                                        \
        shmem_##TYPENAME##_add(dest, value, pe);                                                   \
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
TOMBOLO_EXTENDED_AMO_DISTINCT(TOMBOLO_CXX_EXTENDED_AMO_DEPRECATED, ~)
TOMBOLO_AMO_DISTINCT(TOMBOLO_CXX_AMO_DEPRECATED, ~)
#pragma GCC diagnostic pop

/* Signaling operations. */
#define TOMBOLO_CXX_PUT_SIGNAL(TYPENAME, TYPE, ...)                                                \
    inline void shmem_put_signal(TYPE *dest, const TYPE *source, size_t nelems,                    \
                                 uint64_t *sig_addr, uint64_t signal, int sig_op, int pe) {        \
        shmem_##TYPENAME##_put_signal(dest, source, nelems, sig_addr, signal, sig_op, pe);         \
    }                                                                                              \
    inline void shmem_put_signal(shmem_ctx_t ctx, TYPE *dest, const TYPE *source, size_t nelems,   \
                                 uint64_t *sig_addr, uint64_t signal, int sig_op, int pe) {        \
        shmem_ctx_##TYPENAME##_put_signal(ctx, dest, source, nelems, sig_addr, signal, sig_op,     \
                                          pe);                                                     \
    }                                                                                              \
    inline void shmem_put_signal_nbi(TYPE *dest, const TYPE *source, size_t nelems,                \
                                     uint64_t *sig_addr, uint64_t signal, int sig_op, int pe) {    \
        shmem_##TYPENAME##_put_signal_nbi(dest, source, nelems, sig_addr, signal, sig_op, pe);     \
    }                                                                                              \
    inline void shmem_put_signal_nbi(shmem_ctx_t ctx, TYPE *dest, const TYPE *source,              \
                                     size_t nelems, uint64_t *sig_addr, uint64_t signal,           \
                                     int sig_op, int pe) {                                         \
        shmem_ctx_##TYPENAME##_put_signal_nbi(ctx, dest, source, nelems, sig_addr, signal, sig_op, \
                                              pe);                                                 \
    }
TOMBOLO_RMA_DISTINCT(TOMBOLO_CXX_PUT_SIGNAL, ~)

inline void shmem_signal_add(shmem_ctx_t ctx, uint64_t *sig_addr, uint64_t signal, int pe) {
    shmem_ctx_signal_add(ctx, sig_addr, signal, pe);
}
inline void shmem_signal_set(shmem_ctx_t ctx, uint64_t *sig_addr, uint64_t signal, int pe) {
    shmem_ctx_signal_set(ctx, sig_addr, signal, pe);
}

/* Collectives. */
inline int shmem_sync(shmem_team_t team) { return shmem_team_sync(team); }

#define TOMBOLO_CXX_COLLECTIVE(TYPENAME, TYPE, ...)                                                \
    inline int shmem_alltoall(shmem_team_t team, TYPE *dest, const TYPE *source, size_t nelems) {  \
        return shmem_##TYPENAME##_alltoall(team, dest, source, nelems);                            \
    }                                                                                              \
    inline int shmem_alltoalls(shmem_team_t team, TYPE *dest, const TYPE *source, ptrdiff_t dst,   \
                               ptrdiff_t sst, size_t nelems) {                                     \
        return shmem_##TYPENAME##_alltoalls(team, dest, source, dst, sst, nelems);                 \
    }                                                                                              \
    inline int shmem_broadcast(shmem_team_t team, TYPE *dest, const TYPE *source, size_t nelems,   \
                               int PE_root) {                                                      \
        return shmem_##TYPENAME##_broadcast(team, dest, source, nelems, PE_root);                  \
    }                                                                                              \
    inline int shmem_collect(shmem_team_t team, TYPE *dest, const TYPE *source, size_t nelems) {   \
        return shmem_##TYPENAME##_collect(team, dest, source, nelems);                             \
    }                                                                                              \
    inline int shmem_fcollect(shmem_team_t team, TYPE *dest, const TYPE *source, size_t nelems) {  \
        return shmem_##TYPENAME##_fcollect(team, dest, source, nelems);                            \
    }
TOMBOLO_RMA_DISTINCT(TOMBOLO_CXX_COLLECTIVE, ~)

#define TOMBOLO_CXX_REDUCE_BITWISE(TYPENAME, TYPE, ...)                                            \
    inline int shmem_and_reduce(shmem_team_t team, TYPE *dest, const TYPE *source,                 \
                                size_t nreduce) {                                                  \
        return shmem_##TYPENAME##_and_reduce(team, dest, source, nreduce);                         \
    }                                                                                              \
    inline int shmem_or_reduce(shmem_team_t team, TYPE *dest, const TYPE *source,                  \
                               size_t nreduce) {                                                   \
        return shmem_##TYPENAME##_or_reduce(team, dest, source, nreduce);                          \
    }                                                                                              \
    inline int shmem_xor_reduce(shmem_team_t team, TYPE *dest, const TYPE *source,                 \
                                size_t nreduce) {                                                  \
        return shmem_##TYPENAME##_xor_reduce(team, dest, source, nreduce);                         \
    }
TOMBOLO_BITWISE_REDUCE_DISTINCT(TOMBOLO_CXX_REDUCE_BITWISE, ~)

#define TOMBOLO_CXX_REDUCE_MINMAX(TYPENAME, TYPE, ...)                                             \
    inline int shmem_max_reduce(shmem_team_t team, TYPE *dest, const TYPE *source,                 \
                                size_t nreduce) {                                                  \
        return shmem_##TYPENAME##_max_reduce(team, dest, source, nreduce);                         \
    }                                                                                              \
    inline int shmem_min_reduce(shmem_team_t team, TYPE *dest, const TYPE *source,                 \
                                size_t nreduce) {                                                  \
        return shmem_##TYPENAME##_min_reduce(team, dest, source, nreduce);                         \
    }
TOMBOLO_MINMAX_REDUCE_DISTINCT(TOMBOLO_CXX_REDUCE_MINMAX, ~)

#define TOMBOLO_CXX_REDUCE_ARITH(TYPENAME, TYPE, ...)                                              \
    inline int shmem_sum_reduce(shmem_team_t team, TYPE *dest, const TYPE *source,                 \
                                size_t nreduce) {                                                  \
        return shmem_##TYPENAME##_sum_reduce(team, dest, source, nreduce);                         \
    }                                                                                              \
    inline int shmem_prod_reduce(shmem_team_t team, TYPE *dest, const TYPE *source,                \
                                 size_t nreduce) {                                                 \
        return shmem_##TYPENAME##_prod_reduce(team, dest, source, nreduce);                        \
    }                                                                                              \
    inline int shmem_sum_inscan(shmem_team_t team, TYPE *dest, const TYPE *source,                 \
                                size_t nelems) {                                                   \
        return shmem_##TYPENAME##_sum_inscan(team, dest, source, nelems);                          \
    }                                                                                              \
    inline int shmem_sum_exscan(shmem_team_t team, TYPE *dest, const TYPE *source,                 \
                                size_t nelems) {                                                   \
        return shmem_##TYPENAME##_sum_exscan(team, dest, source, nelems);                          \
    }
TOMBOLO_ARITH_REDUCE_DISTINCT(TOMBOLO_CXX_REDUCE_ARITH, ~)

/* Point-to-point synchronisation. */
#define TOMBOLO_CXX_WAIT(TYPENAME, TYPE, ...)                                                      \
    inline void shmem_wait_until_all(TYPE *ivars, size_t nelems, const int *status, int cmp,       \
                                     TYPE cmp_value) {                                             \
        shmem_##TYPENAME##_wait_until_all(ivars, nelems, status, cmp, cmp_value);                  \
    }                                                                                              \
    inline size_t shmem_wait_until_any(TYPE *ivars, size_t nelems, const int *status, int cmp,     \
                                       TYPE cmp_value) {                                           \
        return shmem_##TYPENAME##_wait_until_any(ivars, nelems, status, cmp, cmp_value);           \
    }                                                                                              \
    inline size_t shmem_wait_until_some(TYPE *ivars, size_t nelems, size_t *indices,               \
                                        const int *status, int cmp, TYPE cmp_value) {              \
        return shmem_##TYPENAME##_wait_until_some(ivars, nelems, indices, status, cmp, cmp_value); \
    }                                                                                              \
    inline void shmem_wait_until_all_vector(TYPE *ivars, size_t nelems, const int *status,         \
                                            int cmp, const TYPE *cmp_values) {                     \
        shmem_##TYPENAME##_wait_until_all_vector(ivars, nelems, status, cmp, cmp_values);          \
    }                                                                                              \
    inline size_t shmem_wait_until_any_vector(TYPE *ivars, size_t nelems, const int *status,       \
                                              int cmp, const TYPE *cmp_values) {                   \
        return shmem_##TYPENAME##_wait_until_any_vector(ivars, nelems, status, cmp, cmp_values);   \
    }                                                                                              \
    inline size_t shmem_wait_until_some_vector(TYPE *ivars, size_t nelems, size_t *indices,        \
                                               const int *status, int cmp,                         \
                                               const TYPE *cmp_values) {                           \
        return shmem_##TYPENAME##_wait_until_some_vector(ivars, nelems, indices, status, cmp,      \
                                                         cmp_values);                              \
    }                                                                                              \
    inline int shmem_test_all(TYPE *ivars, size_t nelems, const int *status, int cmp,              \
                              TYPE cmp_value) {                                                    \
        return shmem_##TYPENAME##_test_all(ivars, nelems, status, cmp, cmp_value);                 \
    }                                                                                              \
    inline size_t shmem_test_any(TYPE *ivars, size_t nelems, const int *status, int cmp,           \
                                 TYPE cmp_value) {                                                 \
        return shmem_##TYPENAME##_test_any(ivars, nelems, status, cmp, cmp_value);                 \
    }                                                                                              \
    inline size_t shmem_test_some(TYPE *ivars, size_t nelems, size_t *indices, const int *status,  \
                                  int cmp, TYPE cmp_value) {                                       \
        return shmem_##TYPENAME##_test_some(ivars, nelems, indices, status, cmp, cmp_value);       \
    }                                                                                              \
    inline int shmem_test_all_vector(TYPE *ivars, size_t nelems, const int *status, int cmp,       \
                                     const TYPE *cmp_values) {                                     \
        return shmem_##TYPENAME##_test_all_vector(ivars, nelems, status, cmp, cmp_values);         \
    }                                                                                              \
    inline size_t shmem_test_any_vector(TYPE *ivars, size_t nelems, const int *status, int cmp,    \
                                        const TYPE *cmp_values) {                                  \
        return shmem_##TYPENAME##_test_any_vector(ivars, nelems, status, cmp, cmp_values);         \
    }                                                                                              \
    inline size_t shmem_test_some_vector(TYPE *ivars, size_t nelems, size_t *indices,              \
                                         const int *status, int cmp, const TYPE *cmp_values) {     \
        return shmem_##TYPENAME##_test_some_vector(ivars, nelems, indices, status, cmp,            \
                                                   cmp_values);                                    \
    }
TOMBOLO_AMO_DISTINCT(TOMBOLO_CXX_WAIT, ~)

#define TOMBOLO_CXX_TEST(TYPENAME, TYPE, ...)                                                      \
    inline int shmem_test(TYPE *ivar, int cmp, TYPE cmp_value) {                                   \
        return shmem_##TYPENAME##_test(ivar, cmp, cmp_value);                                      \
    }
TOMBOLO_WAIT_DISTINCT(TOMBOLO_CXX_TEST, ~)

/* For long, the deprecated C routine shmem_wait_until has the very prototype of the generic one. */
#define TOMBOLO_CXX_WAIT_UNTIL(TYPENAME, TYPE)                                                     \
    inline void shmem_wait_until(TYPE *ivar, int cmp, TYPE cmp_value) {                            \
        shmem_##TYPENAME##_wait_until(ivar, cmp, cmp_value);                                       \
    }
TOMBOLO_CXX_WAIT_UNTIL(short, short)
TOMBOLO_CXX_WAIT_UNTIL(ushort, unsigned short)
TOMBOLO_CXX_WAIT_UNTIL(int, int)
TOMBOLO_CXX_WAIT_UNTIL(longlong, long long)
TOMBOLO_CXX_WAIT_UNTIL(uint, unsigned int)
TOMBOLO_CXX_WAIT_UNTIL(ulong, unsigned long)
TOMBOLO_CXX_WAIT_UNTIL(ulonglong, unsigned long long)

/* OpenSHMEM 1.3 had variables that are waited for and locks volatile; programs that have them so still compile. C compilers
 * convert the pointer with a warning, C++ does not. */
#define TOMBOLO_CXX_VOLATILE_GENERIC(TYPENAME, TYPE, ...)                                          \
    inline void shmem_wait_until(volatile TYPE *ivar, int cmp, TYPE cmp_value) {                   \
        shmem_##TYPENAME##_wait_until(const_cast<TYPE *>(ivar), cmp, cmp_value);                   \
    }                                                                                              \
    inline int shmem_test(volatile TYPE *ivar, int cmp, TYPE cmp_value) {                          \
        return shmem_##TYPENAME##_test(const_cast<TYPE *>(ivar), cmp, cmp_value);                  \
    }
TOMBOLO_WAIT_DISTINCT(TOMBOLO_CXX_VOLATILE_GENERIC, ~)

#define TOMBOLO_CXX_VOLATILE(TYPENAME, TYPE)                                                       \
    inline void shmem_##TYPENAME##_wait_until(volatile TYPE *ivar, int cmp, TYPE cmp_value) {      \
        shmem_##TYPENAME##_wait_until(const_cast<TYPE *>(ivar), cmp, cmp_value);                   \
    }                                                                                              \
    inline int shmem_##TYPENAME##_test(volatile TYPE *ivar, int cmp, TYPE cmp_value) {             \
        return shmem_##TYPENAME##_test(const_cast<TYPE *>(ivar), cmp, cmp_value);                  \
    }                                                                                              \
    TOMBOLO_DEPRECATED("use the _wait_until routine with SHMEM_CMP_NE")                            \
    inline void shmem_##TYPENAME##_wait(volatile TYPE *ivar, TYPE cmp_value) {                     \
        shmem_##TYPENAME##_wait(const_cast<TYPE *>(ivar), cmp_value);                              \
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
TOMBOLO_CXX_VOLATILE(short, short)
TOMBOLO_CXX_VOLATILE(ushort, unsigned short)
TOMBOLO_AMO_TYPES(TOMBOLO_CXX_VOLATILE)
TOMBOLO_DEPRECATED("use shmem_long_wait_until with SHMEM_CMP_NE")
inline void shmem_wait(volatile long *ivar, long cmp_value) {
    shmem_wait(const_cast<long *>(ivar), cmp_value);
}
#pragma GCC diagnostic pop

inline void shmem_set_lock(volatile long *lock) { shmem_set_lock(const_cast<long *>(lock)); }
inline void shmem_clear_lock(volatile long *lock) { shmem_clear_lock(const_cast<long *>(lock)); }
inline int shmem_test_lock(volatile long *lock) {
    return shmem_test_lock(const_cast<long *>(lock));
}

/* std::complex for the routines, typed and generic, that take _Complex. TYPENAME is pasted before it goes through a
 * second macro, which would expand it where the program has such a macro. */
#define TOMBOLO_CXX_COMPLEX_TEAM(TYPENAME_, TYPE, REAL, VERB)                                      \
    inline int shmem_##TYPENAME_##VERB(shmem_team_t team, std::complex<REAL> *dest,                \
                                       const std::complex<REAL> *source, size_t nelems) {          \
        return shmem_##TYPENAME_##VERB(team, reinterpret_cast<TYPE *>(dest),                       \
                                       reinterpret_cast<const TYPE *>(source), nelems);            \
    }                                                                                              \
    inline int shmem_##VERB(shmem_team_t team, std::complex<REAL> *dest,                           \
                            const std::complex<REAL> *source, size_t nelems) {                     \
        return shmem_##TYPENAME_##VERB(team, dest, source, nelems);                                \
    }
#define TOMBOLO_CXX_COMPLEX_TO_ALL(TYPENAME_, TYPE, REAL, VERB)                                    \
    TOMBOLO_DEPRECATED("use the team-based routine that ends in _reduce")                          \
    inline void shmem_##TYPENAME_##VERB(std::complex<REAL> *dest,                                  \
                                        const std::complex<REAL> *source, int nreduce,             \
                                        int PE_start, int logPE_stride, int PE_size,               \
                                        std::complex<REAL> *pWrk, long *pSync) {                   \
        shmem_##TYPENAME_##VERB(reinterpret_cast<TYPE *>(dest),                                    \
                                reinterpret_cast<const TYPE *>(source), nreduce, PE_start,         \
                                logPE_stride, PE_size, reinterpret_cast<TYPE *>(pWrk), pSync);     \
    }
#define TOMBOLO_CXX_COMPLEX(TYPENAME, REAL)                                                        \
    TOMBOLO_CXX_COMPLEX_TEAM(TYPENAME##_, tombolo_##TYPENAME, REAL, sum_reduce)                    \
    TOMBOLO_CXX_COMPLEX_TEAM(TYPENAME##_, tombolo_##TYPENAME, REAL, prod_reduce)                   \
    TOMBOLO_CXX_COMPLEX_TEAM(TYPENAME##_, tombolo_##TYPENAME, REAL, sum_inscan)                    \
    TOMBOLO_CXX_COMPLEX_TEAM(TYPENAME##_, tombolo_##TYPENAME, REAL, sum_exscan)                    \
    TOMBOLO_CXX_COMPLEX_TO_ALL(TYPENAME##_, tombolo_##TYPENAME, REAL, sum_to_all)                  \
    TOMBOLO_CXX_COMPLEX_TO_ALL(TYPENAME##_, tombolo_##TYPENAME, REAL, prod_to_all)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
TOMBOLO_CXX_COMPLEX(complexf, float)
TOMBOLO_CXX_COMPLEX(complexd, double)
#pragma GCC diagnostic pop

#endif
