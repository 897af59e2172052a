/* SPDX-License-Identifier: Apache-2.0 */
/*
 * C11 type-generic routines of OpenSHMEM 1.6.
 *
 * Each macro selects a routine by the type its pointer argument points to, whatever its qualifiers,
 * and calls that routine with the arguments as given: the compiler checks them, const included,
 * against the prototype. Where the standard has a form with a context in front, the number of
 * arguments tells the two apart: so an argument with commas outside of parentheses, such as the
 * compound literal (long[]){1, 2}, has to be written in parentheses.
 */
#ifndef TOMBOLO_GENERICS_C11_H
#define TOMBOLO_GENERICS_C11_H

/* Named by a compiler's message when a call has no routine to select; neither is ever defined. */
void tombolo_error_no_routine_for_this_type(void);
#define TOMBOLO_ARITY(TABLE, VERB, ...) tombolo_error_wrong_number_of_arguments

/* The object POINTER points to, unqualified and unevaluated. Through a type, so that compilers do
 * not remark on side effects in POINTER, which happen once, in the call. */
#define TOMBOLO_OBJECT(POINTER) (*(__typeof__(*(POINTER)) *)0)

#define TOMBOLO_CASE(TYPENAME, TYPE, VERB)     TYPE: shmem_##TYPENAME##VERB,
#define TOMBOLO_CASE_CTX(TYPENAME, TYPE, VERB) TYPE: shmem_ctx_##TYPENAME##VERB,
#define TOMBOLO_ROUTINE(POINTER, CASES)                                                            \
    _Generic(TOMBOLO_OBJECT(POINTER), CASES default: tombolo_error_no_routine_for_this_type)

/* Selection by the first argument; by the second, after a team; by the second, after a context.
 * VERB has a leading underscore, so that no macro of the program can be taken for it. */
#define TOMBOLO_FIRST(FIRST, ...)          FIRST
#define TOMBOLO_SECOND(FIRST, SECOND, ...) SECOND
#define TOMBOLO_PLAIN(TABLE, VERB, ...)                                                            \
    TOMBOLO_ROUTINE(TOMBOLO_FIRST(__VA_ARGS__, ~), TABLE(TOMBOLO_CASE, VERB))(__VA_ARGS__)
#define TOMBOLO_TEAM(TABLE, VERB, ...)                                                             \
    TOMBOLO_ROUTINE(TOMBOLO_SECOND(__VA_ARGS__, ~), TABLE(TOMBOLO_CASE, VERB))(__VA_ARGS__)
#define TOMBOLO_CTX(TABLE, VERB, ...)                                                              \
    TOMBOLO_ROUTINE(TOMBOLO_SECOND(__VA_ARGS__, ~), TABLE(TOMBOLO_CASE_CTX, VERB))(__VA_ARGS__)

/* TOMBOLO_FORM_<n>(arguments): PLAIN for n arguments, CTX for n + 1. */
#define TOMBOLO_TENTH(_1, _2, _3, _4, _5, _6, _7, _8, _9, TENTH, ...) TENTH
#define TOMBOLO_FORM_2(...)                                                                        \
    TOMBOLO_TENTH(__VA_ARGS__, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY,         \
                  TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_CTX, TOMBOLO_PLAIN, TOMBOLO_ARITY, ~)
#define TOMBOLO_FORM_3(...)                                                                        \
    TOMBOLO_TENTH(__VA_ARGS__, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY,         \
                  TOMBOLO_ARITY, TOMBOLO_CTX, TOMBOLO_PLAIN, TOMBOLO_ARITY, TOMBOLO_ARITY, ~)
#define TOMBOLO_FORM_4(...)                                                                        \
    TOMBOLO_TENTH(__VA_ARGS__, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY,         \
                  TOMBOLO_CTX, TOMBOLO_PLAIN, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY, ~)
#define TOMBOLO_FORM_5(...)                                                                        \
    TOMBOLO_TENTH(__VA_ARGS__, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_CTX,           \
                  TOMBOLO_PLAIN, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY, ~)
#define TOMBOLO_FORM_6(...)                                                                        \
    TOMBOLO_TENTH(__VA_ARGS__, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_CTX, TOMBOLO_PLAIN,           \
                  TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY, ~)
#define TOMBOLO_FORM_7(...)                                                                        \
    TOMBOLO_TENTH(__VA_ARGS__, TOMBOLO_ARITY, TOMBOLO_CTX, TOMBOLO_PLAIN, TOMBOLO_ARITY,           \
                  TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY, ~)

/* Remote memory access. */
#define shmem_put(...)                                                                             \
    TOMBOLO_FORM_4(__VA_ARGS__)(TOMBOLO_RMA_DISTINCT, _put, __VA_ARGS__)
#define shmem_get(...)                                                                             \
    TOMBOLO_FORM_4(__VA_ARGS__)(TOMBOLO_RMA_DISTINCT, _get, __VA_ARGS__)
#define shmem_put_nbi(...)                                                                         \
    TOMBOLO_FORM_4(__VA_ARGS__)(TOMBOLO_RMA_DISTINCT, _put_nbi, __VA_ARGS__)
#define shmem_get_nbi(...)                                                                         \
    TOMBOLO_FORM_4(__VA_ARGS__)(TOMBOLO_RMA_DISTINCT, _get_nbi, __VA_ARGS__)
#define shmem_p(...)                                                                               \
    TOMBOLO_FORM_3(__VA_ARGS__)(TOMBOLO_RMA_DISTINCT, _p, __VA_ARGS__)
#define shmem_g(...)                                                                               \
    TOMBOLO_FORM_2(__VA_ARGS__)(TOMBOLO_RMA_DISTINCT, _g, __VA_ARGS__)
#define shmem_iput(...)                                                                            \
    TOMBOLO_FORM_6(__VA_ARGS__)(TOMBOLO_RMA_DISTINCT, _iput, __VA_ARGS__)
#define shmem_iget(...)                                                                            \
    TOMBOLO_FORM_6(__VA_ARGS__)(TOMBOLO_RMA_DISTINCT, _iget, __VA_ARGS__)
#define shmem_ibput(...)                                                                           \
    TOMBOLO_FORM_7(__VA_ARGS__)(TOMBOLO_RMA_DISTINCT, _ibput, __VA_ARGS__)
#define shmem_ibget(...)                                                                           \
    TOMBOLO_FORM_7(__VA_ARGS__)(TOMBOLO_RMA_DISTINCT, _ibget, __VA_ARGS__)

/* Atomic memory operations. */
#define shmem_atomic_fetch(...)                                                                    \
    TOMBOLO_FORM_2(__VA_ARGS__)(TOMBOLO_EXTENDED_AMO_DISTINCT, _atomic_fetch, __VA_ARGS__)
#define shmem_atomic_set(...)                                                                      \
    TOMBOLO_FORM_3(__VA_ARGS__)(TOMBOLO_EXTENDED_AMO_DISTINCT, _atomic_set, __VA_ARGS__)
#define shmem_atomic_swap(...)                                                                     \
    TOMBOLO_FORM_3(__VA_ARGS__)(TOMBOLO_EXTENDED_AMO_DISTINCT, _atomic_swap, __VA_ARGS__)
#define shmem_atomic_fetch_nbi(...)                                                                \
    TOMBOLO_FORM_3(__VA_ARGS__)(TOMBOLO_EXTENDED_AMO_DISTINCT, _atomic_fetch_nbi, __VA_ARGS__)
#define shmem_atomic_swap_nbi(...)                                                                 \
    TOMBOLO_FORM_4(__VA_ARGS__)(TOMBOLO_EXTENDED_AMO_DISTINCT, _atomic_swap_nbi, __VA_ARGS__)
#define shmem_atomic_compare_swap(...)                                                             \
    TOMBOLO_FORM_4(__VA_ARGS__)(TOMBOLO_AMO_DISTINCT, _atomic_compare_swap, __VA_ARGS__)
#define shmem_atomic_compare_swap_nbi(...)                                                         \
    TOMBOLO_FORM_5(__VA_ARGS__)(TOMBOLO_AMO_DISTINCT, _atomic_compare_swap_nbi, __VA_ARGS__)
#define shmem_atomic_fetch_inc(...)                                                                \
    TOMBOLO_FORM_2(__VA_ARGS__)(TOMBOLO_AMO_DISTINCT, _atomic_fetch_inc, __VA_ARGS__)
#define shmem_atomic_inc(...)                                                                      \
    TOMBOLO_FORM_2(__VA_ARGS__)(TOMBOLO_AMO_DISTINCT, _atomic_inc, __VA_ARGS__)
#define shmem_atomic_fetch_inc_nbi(...)                                                            \
    TOMBOLO_FORM_3(__VA_ARGS__)(TOMBOLO_AMO_DISTINCT, _atomic_fetch_inc_nbi, __VA_ARGS__)
#define shmem_atomic_fetch_add(...)                                                                \
    TOMBOLO_FORM_3(__VA_ARGS__)(TOMBOLO_AMO_DISTINCT, _atomic_fetch_add, __VA_ARGS__)
#define shmem_atomic_add(...)                                                                      \
    TOMBOLO_FORM_3(__VA_ARGS__)(TOMBOLO_AMO_DISTINCT, _atomic_add, __VA_ARGS__)
#define shmem_atomic_fetch_add_nbi(...)                                                            \
    TOMBOLO_FORM_4(__VA_ARGS__)(TOMBOLO_AMO_DISTINCT, _atomic_fetch_add_nbi, __VA_ARGS__)
#define shmem_atomic_fetch_and(...)                                                                \
    TOMBOLO_FORM_3(__VA_ARGS__)(TOMBOLO_BITWISE_AMO_DISTINCT, _atomic_fetch_and, __VA_ARGS__)
#define shmem_atomic_and(...)                                                                      \
    TOMBOLO_FORM_3(__VA_ARGS__)(TOMBOLO_BITWISE_AMO_DISTINCT, _atomic_and, __VA_ARGS__)
#define shmem_atomic_fetch_and_nbi(...)                                                            \
    TOMBOLO_FORM_4(__VA_ARGS__)(TOMBOLO_BITWISE_AMO_DISTINCT, _atomic_fetch_and_nbi, __VA_ARGS__)
#define shmem_atomic_fetch_or(...)                                                                 \
    TOMBOLO_FORM_3(__VA_ARGS__)(TOMBOLO_BITWISE_AMO_DISTINCT, _atomic_fetch_or, __VA_ARGS__)
#define shmem_atomic_or(...)                                                                       \
    TOMBOLO_FORM_3(__VA_ARGS__)(TOMBOLO_BITWISE_AMO_DISTINCT, _atomic_or, __VA_ARGS__)
#define shmem_atomic_fetch_or_nbi(...)                                                             \
    TOMBOLO_FORM_4(__VA_ARGS__)(TOMBOLO_BITWISE_AMO_DISTINCT, _atomic_fetch_or_nbi, __VA_ARGS__)
#define shmem_atomic_fetch_xor(...)                                                                \
    TOMBOLO_FORM_3(__VA_ARGS__)(TOMBOLO_BITWISE_AMO_DISTINCT, _atomic_fetch_xor, __VA_ARGS__)
#define shmem_atomic_xor(...)                                                                      \
    TOMBOLO_FORM_3(__VA_ARGS__)(TOMBOLO_BITWISE_AMO_DISTINCT, _atomic_xor, __VA_ARGS__)
#define shmem_atomic_fetch_xor_nbi(...)                                                            \
    TOMBOLO_FORM_4(__VA_ARGS__)(TOMBOLO_BITWISE_AMO_DISTINCT, _atomic_fetch_xor_nbi, __VA_ARGS__)

/* Atomic memory operations, deprecated. */
#define shmem_fetch(...) TOMBOLO_PLAIN(TOMBOLO_EXTENDED_AMO_DISTINCT, _fetch, __VA_ARGS__)
#define shmem_set(...) TOMBOLO_PLAIN(TOMBOLO_EXTENDED_AMO_DISTINCT, _set, __VA_ARGS__)
#define shmem_swap(...) TOMBOLO_PLAIN(TOMBOLO_EXTENDED_AMO_DISTINCT, _swap, __VA_ARGS__)
#define shmem_cswap(...) TOMBOLO_PLAIN(TOMBOLO_AMO_DISTINCT, _cswap, __VA_ARGS__)
#define shmem_finc(...) TOMBOLO_PLAIN(TOMBOLO_AMO_DISTINCT, _finc, __VA_ARGS__)
#define shmem_inc(...) TOMBOLO_PLAIN(TOMBOLO_AMO_DISTINCT, _inc, __VA_ARGS__)
#define shmem_fadd(...) TOMBOLO_PLAIN(TOMBOLO_AMO_DISTINCT, _fadd, __VA_ARGS__)
#define shmem_add(...) TOMBOLO_PLAIN(TOMBOLO_AMO_DISTINCT, _add, __VA_ARGS__)

/* Signaling operations. */
#define shmem_put_signal(...)                                                                      \
    TOMBOLO_FORM_7(__VA_ARGS__)(TOMBOLO_RMA_DISTINCT, _put_signal, __VA_ARGS__)
#define shmem_put_signal_nbi(...)                                                                  \
    TOMBOLO_FORM_7(__VA_ARGS__)(TOMBOLO_RMA_DISTINCT, _put_signal_nbi, __VA_ARGS__)
#define shmem_signal_add(...)                                                                      \
    TOMBOLO_TENTH(__VA_ARGS__, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY,         \
                  TOMBOLO_ARITY, shmem_ctx_signal_add, shmem_signal_add, TOMBOLO_ARITY,            \
                  TOMBOLO_ARITY, ~)(__VA_ARGS__)
#define shmem_signal_set(...)                                                                      \
    TOMBOLO_TENTH(__VA_ARGS__, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY,         \
                  TOMBOLO_ARITY, shmem_ctx_signal_set, shmem_signal_set, TOMBOLO_ARITY,            \
                  TOMBOLO_ARITY, ~)(__VA_ARGS__)

/* Collectives. With four arguments shmem_sync is the deprecated routine over an active set. */
#define shmem_sync(...)                                                                            \
    TOMBOLO_TENTH(__VA_ARGS__, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY, TOMBOLO_ARITY,         \
                  TOMBOLO_ARITY, shmem_sync, TOMBOLO_ARITY, TOMBOLO_ARITY, shmem_team_sync,        \
                  ~)(__VA_ARGS__)
#define shmem_alltoall(...) TOMBOLO_TEAM(TOMBOLO_RMA_DISTINCT, _alltoall, __VA_ARGS__)
#define shmem_alltoalls(...) TOMBOLO_TEAM(TOMBOLO_RMA_DISTINCT, _alltoalls, __VA_ARGS__)
#define shmem_broadcast(...) TOMBOLO_TEAM(TOMBOLO_RMA_DISTINCT, _broadcast, __VA_ARGS__)
#define shmem_collect(...) TOMBOLO_TEAM(TOMBOLO_RMA_DISTINCT, _collect, __VA_ARGS__)
#define shmem_fcollect(...) TOMBOLO_TEAM(TOMBOLO_RMA_DISTINCT, _fcollect, __VA_ARGS__)
#define shmem_and_reduce(...)                                                                      \
    TOMBOLO_TEAM(TOMBOLO_BITWISE_REDUCE_DISTINCT, _and_reduce, __VA_ARGS__)
#define shmem_or_reduce(...) TOMBOLO_TEAM(TOMBOLO_BITWISE_REDUCE_DISTINCT, _or_reduce, __VA_ARGS__)
#define shmem_xor_reduce(...)                                                                      \
    TOMBOLO_TEAM(TOMBOLO_BITWISE_REDUCE_DISTINCT, _xor_reduce, __VA_ARGS__)
#define shmem_max_reduce(...)                                                                      \
    TOMBOLO_TEAM(TOMBOLO_MINMAX_REDUCE_DISTINCT, _max_reduce, __VA_ARGS__)
#define shmem_min_reduce(...)                                                                      \
    TOMBOLO_TEAM(TOMBOLO_MINMAX_REDUCE_DISTINCT, _min_reduce, __VA_ARGS__)
#define shmem_sum_reduce(...) TOMBOLO_TEAM(TOMBOLO_ARITH_REDUCE_DISTINCT, _sum_reduce, __VA_ARGS__)
#define shmem_prod_reduce(...)                                                                     \
    TOMBOLO_TEAM(TOMBOLO_ARITH_REDUCE_DISTINCT, _prod_reduce, __VA_ARGS__)
#define shmem_sum_inscan(...) TOMBOLO_TEAM(TOMBOLO_ARITH_REDUCE_DISTINCT, _sum_inscan, __VA_ARGS__)
#define shmem_sum_exscan(...) TOMBOLO_TEAM(TOMBOLO_ARITH_REDUCE_DISTINCT, _sum_exscan, __VA_ARGS__)

/* Point-to-point synchronisation. */
#define shmem_wait_until(...) TOMBOLO_PLAIN(TOMBOLO_WAIT_DISTINCT, _wait_until, __VA_ARGS__)
#define shmem_wait_until_all(...) TOMBOLO_PLAIN(TOMBOLO_AMO_DISTINCT, _wait_until_all, __VA_ARGS__)
#define shmem_wait_until_any(...) TOMBOLO_PLAIN(TOMBOLO_AMO_DISTINCT, _wait_until_any, __VA_ARGS__)
#define shmem_wait_until_some(...)                                                                 \
    TOMBOLO_PLAIN(TOMBOLO_AMO_DISTINCT, _wait_until_some, __VA_ARGS__)
#define shmem_wait_until_all_vector(...)                                                           \
    TOMBOLO_PLAIN(TOMBOLO_AMO_DISTINCT, _wait_until_all_vector, __VA_ARGS__)
#define shmem_wait_until_any_vector(...)                                                           \
    TOMBOLO_PLAIN(TOMBOLO_AMO_DISTINCT, _wait_until_any_vector, __VA_ARGS__)
#define shmem_wait_until_some_vector(...)                                                          \
    TOMBOLO_PLAIN(TOMBOLO_AMO_DISTINCT, _wait_until_some_vector, __VA_ARGS__)
#define shmem_test(...) TOMBOLO_PLAIN(TOMBOLO_WAIT_DISTINCT, _test, __VA_ARGS__)
#define shmem_test_all(...) TOMBOLO_PLAIN(TOMBOLO_AMO_DISTINCT, _test_all, __VA_ARGS__)
#define shmem_test_any(...) TOMBOLO_PLAIN(TOMBOLO_AMO_DISTINCT, _test_any, __VA_ARGS__)
#define shmem_test_some(...) TOMBOLO_PLAIN(TOMBOLO_AMO_DISTINCT, _test_some, __VA_ARGS__)
#define shmem_test_all_vector(...)                                                                 \
    TOMBOLO_PLAIN(TOMBOLO_AMO_DISTINCT, _test_all_vector, __VA_ARGS__)
#define shmem_test_any_vector(...)                                                                 \
    TOMBOLO_PLAIN(TOMBOLO_AMO_DISTINCT, _test_any_vector, __VA_ARGS__)
#define shmem_test_some_vector(...)                                                                \
    TOMBOLO_PLAIN(TOMBOLO_AMO_DISTINCT, _test_some_vector, __VA_ARGS__)

#endif
