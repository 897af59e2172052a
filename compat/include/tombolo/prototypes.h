/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prototypes of OpenSHMEM 1.6, in the order of the standard.
 *
 * Included once by shmem.h with TOMBOLO_(routine) naming shmem_<routine>, and once by pshmem.h with
 * TOMBOLO_ naming pshmem_<routine>, hence no include guard. A family of routines is one template
 * that reads like its prototype in the standard, applied to a type table of tombolo/types.h.
 */

/* Library setup, exit, query. */
void TOMBOLO_(init)(void);
int  TOMBOLO_(my_pe)(void);
int  TOMBOLO_(n_pes)(void);
void TOMBOLO_(finalize)(void);
TOMBOLO_NORETURN void TOMBOLO_(global_exit)(int status);
int  TOMBOLO_(pe_accessible)(int pe);
int  TOMBOLO_(addr_accessible)(const void *addr, int pe);
void *TOMBOLO_(ptr)(const void *dest, int pe);
void *TOMBOLO_(team_ptr)(shmem_team_t team, const void *dest, int pe);
void TOMBOLO_(info_get_version)(int *major, int *minor);
void TOMBOLO_(info_get_name)(char *name);
void TOMBOLO_(query_initialized)(int *initialized);

/* Thread support. */
int  TOMBOLO_(init_thread)(int requested, int *provided);
void TOMBOLO_(query_thread)(int *provided);

/* Memory management. */
void *TOMBOLO_(malloc)(size_t size);
void  TOMBOLO_(free)(void *ptr);
void *TOMBOLO_(realloc)(void *ptr, size_t size);
void *TOMBOLO_(align)(size_t alignment, size_t size);
void *TOMBOLO_(malloc_with_hints)(size_t size, long hints);
void *TOMBOLO_(calloc)(size_t count, size_t size);

/* Team management. */
int  TOMBOLO_(team_my_pe)(shmem_team_t team);
int  TOMBOLO_(team_n_pes)(shmem_team_t team);
int  TOMBOLO_(team_get_config)(shmem_team_t team, long config_mask, shmem_team_config_t *config);
int  TOMBOLO_(team_translate_pe)(shmem_team_t src_team, int src_pe, shmem_team_t dest_team);
int  TOMBOLO_(team_split_strided)(shmem_team_t parent_team, int start, int stride, int size,
                                  const shmem_team_config_t *config, long config_mask,
                                  shmem_team_t *new_team);
int  TOMBOLO_(team_split_2d)(shmem_team_t parent_team, int xrange,
                             const shmem_team_config_t *xaxis_config, long xaxis_mask,
                             shmem_team_t *xaxis_team,
                             const shmem_team_config_t *yaxis_config, long yaxis_mask,
                             shmem_team_t *yaxis_team);
void TOMBOLO_(team_destroy)(shmem_team_t team);

/* Communication management. */
int  TOMBOLO_(ctx_create)(long options, shmem_ctx_t *ctx);
int  TOMBOLO_(team_create_ctx)(shmem_team_t team, long options, shmem_ctx_t *ctx);
void TOMBOLO_(ctx_destroy)(shmem_ctx_t ctx);
int  TOMBOLO_(ctx_get_team)(shmem_ctx_t ctx, shmem_team_t *team);
void TOMBOLO_(ctx_session_start)(shmem_ctx_t ctx, long options,
                                 const shmem_ctx_session_config_t *config, long config_mask);
void TOMBOLO_(ctx_session_stop)(shmem_ctx_t ctx);

/* Remote memory access. */
#define TOMBOLO_RMA(TYPENAME, TYPE)                                                                \
    void TOMBOLO_(TYPENAME##_put)(TYPE *dest, const TYPE *source, size_t nelems, int pe);          \
    void TOMBOLO_(ctx_##TYPENAME##_put)(shmem_ctx_t ctx, TYPE *dest, const TYPE *source,           \
                                        size_t nelems, int pe);                                    \
    void TOMBOLO_(TYPENAME##_p)(TYPE *dest, TYPE value, int pe);                                   \
    void TOMBOLO_(ctx_##TYPENAME##_p)(shmem_ctx_t ctx, TYPE *dest, TYPE value, int pe);            \
    void TOMBOLO_(TYPENAME##_iput)(TYPE *dest, const TYPE *source, ptrdiff_t dst, ptrdiff_t sst,   \
                                   size_t nelems, int pe);                                         \
    void TOMBOLO_(ctx_##TYPENAME##_iput)(shmem_ctx_t ctx, TYPE *dest, const TYPE *source,          \
                                         ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe);     \
    void TOMBOLO_(TYPENAME##_ibput)(TYPE *dest, const TYPE *source, ptrdiff_t dst, ptrdiff_t sst,  \
                                    size_t bsize, size_t nblocks, int pe);                         \
    void TOMBOLO_(ctx_##TYPENAME##_ibput)(shmem_ctx_t ctx, TYPE *dest, const TYPE *source,         \
                                          ptrdiff_t dst, ptrdiff_t sst, size_t bsize,              \
                                          size_t nblocks, int pe);                                 \
    void TOMBOLO_(TYPENAME##_get)(TYPE *dest, const TYPE *source, size_t nelems, int pe);          \
    void TOMBOLO_(ctx_##TYPENAME##_get)(shmem_ctx_t ctx, TYPE *dest, const TYPE *source,           \
                                        size_t nelems, int pe);                                    \
    TYPE TOMBOLO_(TYPENAME##_g)(const TYPE *source, int pe);                                       \
    TYPE TOMBOLO_(ctx_##TYPENAME##_g)(shmem_ctx_t ctx, const TYPE *source, int pe);                \
    void TOMBOLO_(TYPENAME##_iget)(TYPE *dest, const TYPE *source, ptrdiff_t dst, ptrdiff_t sst,   \
                                   size_t nelems, int pe);                                         \
    void TOMBOLO_(ctx_##TYPENAME##_iget)(shmem_ctx_t ctx, TYPE *dest, const TYPE *source,          \
                                         ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe);     \
    void TOMBOLO_(TYPENAME##_ibget)(TYPE *dest, const TYPE *source, ptrdiff_t dst, ptrdiff_t sst,  \
                                    size_t bsize, size_t nblocks, int pe);                         \
    void TOMBOLO_(ctx_##TYPENAME##_ibget)(shmem_ctx_t ctx, TYPE *dest, const TYPE *source,         \
                                          ptrdiff_t dst, ptrdiff_t sst, size_t bsize,              \
                                          size_t nblocks, int pe);
TOMBOLO_RMA_TYPES(TOMBOLO_RMA)

#define TOMBOLO_RMA_CONTIGUOUS(SIZE)                                                               \
    void TOMBOLO_(put##SIZE)(void *dest, const void *source, size_t nelems, int pe);               \
    void TOMBOLO_(ctx_put##SIZE)(shmem_ctx_t ctx, void *dest, const void *source, size_t nelems,   \
                                 int pe);                                                          \
    void TOMBOLO_(get##SIZE)(void *dest, const void *source, size_t nelems, int pe);               \
    void TOMBOLO_(ctx_get##SIZE)(shmem_ctx_t ctx, void *dest, const void *source, size_t nelems,   \
                                 int pe);
TOMBOLO_SIZES_AND_MEM(TOMBOLO_RMA_CONTIGUOUS)

#define TOMBOLO_RMA_STRIDED(SIZE)                                                                  \
    void TOMBOLO_(iput##SIZE)(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst,        \
                              size_t nelems, int pe);                                              \
    void TOMBOLO_(ctx_iput##SIZE)(shmem_ctx_t ctx, void *dest, const void *source, ptrdiff_t dst,  \
                                  ptrdiff_t sst, size_t nelems, int pe);                           \
    void TOMBOLO_(ibput##SIZE)(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst,       \
                               size_t bsize, size_t nblocks, int pe);                              \
    void TOMBOLO_(ctx_ibput##SIZE)(shmem_ctx_t ctx, void *dest, const void *source, ptrdiff_t dst, \
                                   ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);           \
    void TOMBOLO_(iget##SIZE)(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst,        \
                              size_t nelems, int pe);                                              \
    void TOMBOLO_(ctx_iget##SIZE)(shmem_ctx_t ctx, void *dest, const void *source, ptrdiff_t dst,  \
                                  ptrdiff_t sst, size_t nelems, int pe);                           \
    void TOMBOLO_(ibget##SIZE)(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst,       \
                               size_t bsize, size_t nblocks, int pe);                              \
    void TOMBOLO_(ctx_ibget##SIZE)(shmem_ctx_t ctx, void *dest, const void *source, ptrdiff_t dst, \
                                   ptrdiff_t sst, size_t bsize, size_t nblocks, int pe);
TOMBOLO_SIZES(TOMBOLO_RMA_STRIDED)

/* Non-blocking remote memory access. */
#define TOMBOLO_RMA_NBI(TYPENAME, TYPE)                                                            \
    void TOMBOLO_(TYPENAME##_put_nbi)(TYPE *dest, const TYPE *source, size_t nelems, int pe);      \
    void TOMBOLO_(ctx_##TYPENAME##_put_nbi)(shmem_ctx_t ctx, TYPE *dest, const TYPE *source,       \
                                            size_t nelems, int pe);                                \
    void TOMBOLO_(TYPENAME##_get_nbi)(TYPE *dest, const TYPE *source, size_t nelems, int pe);      \
    void TOMBOLO_(ctx_##TYPENAME##_get_nbi)(shmem_ctx_t ctx, TYPE *dest, const TYPE *source,       \
                                            size_t nelems, int pe);
TOMBOLO_RMA_TYPES(TOMBOLO_RMA_NBI)

#define TOMBOLO_RMA_NBI_UNTYPED(SIZE)                                                              \
    void TOMBOLO_(put##SIZE##_nbi)(void *dest, const void *source, size_t nelems, int pe);         \
    void TOMBOLO_(ctx_put##SIZE##_nbi)(shmem_ctx_t ctx, void *dest, const void *source,            \
                                       size_t nelems, int pe);                                     \
    void TOMBOLO_(get##SIZE##_nbi)(void *dest, const void *source, size_t nelems, int pe);         \
    void TOMBOLO_(ctx_get##SIZE##_nbi)(shmem_ctx_t ctx, void *dest, const void *source,            \
                                       size_t nelems, int pe);
TOMBOLO_SIZES_AND_MEM(TOMBOLO_RMA_NBI_UNTYPED)

/* Atomic memory operations: extended types. */
#define TOMBOLO_AMO_EXTENDED(TYPENAME, TYPE)                                                       \
    TYPE TOMBOLO_(TYPENAME##_atomic_fetch)(const TYPE *source, int pe);                            \
    TYPE TOMBOLO_(ctx_##TYPENAME##_atomic_fetch)(shmem_ctx_t ctx, const TYPE *source, int pe);     \
    void TOMBOLO_(TYPENAME##_atomic_set)(TYPE *dest, TYPE value, int pe);                          \
    void TOMBOLO_(ctx_##TYPENAME##_atomic_set)(shmem_ctx_t ctx, TYPE *dest, TYPE value, int pe);   \
    TYPE TOMBOLO_(TYPENAME##_atomic_swap)(TYPE *dest, TYPE value, int pe);                         \
    TYPE TOMBOLO_(ctx_##TYPENAME##_atomic_swap)(shmem_ctx_t ctx, TYPE *dest, TYPE value, int pe);  \
    void TOMBOLO_(TYPENAME##_atomic_fetch_nbi)(TYPE *fetch, const TYPE *source, int pe);           \
    void TOMBOLO_(ctx_##TYPENAME##_atomic_fetch_nbi)(shmem_ctx_t ctx, TYPE *fetch,                 \
                                                     const TYPE *source, int pe);                  \
    void TOMBOLO_(TYPENAME##_atomic_swap_nbi)(TYPE *fetch, TYPE *dest, TYPE value, int pe);        \
    void TOMBOLO_(ctx_##TYPENAME##_atomic_swap_nbi)(shmem_ctx_t ctx, TYPE *fetch, TYPE *dest,      \
                                                    TYPE value, int pe);                           \
    TOMBOLO_DEPRECATED("use the _atomic_fetch routine")                                            \
    TYPE TOMBOLO_(TYPENAME##_fetch)(const TYPE *source, int pe);                                   \
    TOMBOLO_DEPRECATED("use the _atomic_set routine")                                              \
    void TOMBOLO_(TYPENAME##_set)(TYPE *dest, TYPE value, int pe);                                 \
    TOMBOLO_DEPRECATED("use the _atomic_swap routine")                                             \
    TYPE TOMBOLO_(TYPENAME##_swap)(TYPE *dest, TYPE value, int pe);
TOMBOLO_EXTENDED_AMO_TYPES(TOMBOLO_AMO_EXTENDED)

/* Atomic memory operations: standard types. */
#define TOMBOLO_AMO_STANDARD(TYPENAME, TYPE)                                                       \
    TYPE TOMBOLO_(TYPENAME##_atomic_compare_swap)(TYPE *dest, TYPE cond, TYPE value, int pe);      \
    TYPE TOMBOLO_(ctx_##TYPENAME##_atomic_compare_swap)(shmem_ctx_t ctx, TYPE *dest, TYPE cond,    \
                                                        TYPE value, int pe);                       \
    TYPE TOMBOLO_(TYPENAME##_atomic_fetch_inc)(TYPE *dest, int pe);                                \
    TYPE TOMBOLO_(ctx_##TYPENAME##_atomic_fetch_inc)(shmem_ctx_t ctx, TYPE *dest, int pe);         \
    void TOMBOLO_(TYPENAME##_atomic_inc)(TYPE *dest, int pe);                                      \
    void TOMBOLO_(ctx_##TYPENAME##_atomic_inc)(shmem_ctx_t ctx, TYPE *dest, int pe);               \
    TYPE TOMBOLO_(TYPENAME##_atomic_fetch_add)(TYPE *dest, TYPE value, int pe);                    \
    TYPE TOMBOLO_(ctx_##TYPENAME##_atomic_fetch_add)(shmem_ctx_t ctx, TYPE *dest, TYPE value,      \
                                                     int pe);                                      \
    void TOMBOLO_(TYPENAME##_atomic_add)(TYPE *dest, TYPE value, int pe);                          \
    void TOMBOLO_(ctx_##TYPENAME##_atomic_add)(shmem_ctx_t ctx, TYPE *dest, TYPE value, int pe);   \
    void TOMBOLO_(TYPENAME##_atomic_compare_swap_nbi)(TYPE *fetch, TYPE *dest, TYPE cond,          \
                                                      TYPE value, int pe);                         \
    void TOMBOLO_(ctx_##TYPENAME##_atomic_compare_swap_nbi)(shmem_ctx_t ctx, TYPE *fetch,          \
                                                            TYPE *dest, TYPE cond, TYPE value,     \
                                                            int pe);                               \
    void TOMBOLO_(TYPENAME##_atomic_fetch_inc_nbi)(TYPE *fetch, TYPE *dest, int pe);               \
    void TOMBOLO_(ctx_##TYPENAME##_atomic_fetch_inc_nbi)(shmem_ctx_t ctx, TYPE *fetch, TYPE *dest, \
                                                         int pe);                                  \
    void TOMBOLO_(TYPENAME##_atomic_fetch_add_nbi)(TYPE *fetch, TYPE *dest, TYPE value, int pe);   \
    void TOMBOLO_(ctx_##TYPENAME##_atomic_fetch_add_nbi)(shmem_ctx_t ctx, TYPE *fetch, TYPE *dest, \
                                                         TYPE value, int pe);                      \
    TOMBOLO_DEPRECATED("use the _atomic_compare_swap routine")                                     \
    TYPE TOMBOLO_(TYPENAME##_cswap)(TYPE *dest, TYPE cond, TYPE value, int pe);                    \
    TOMBOLO_DEPRECATED("use the _atomic_fetch_inc routine")                                        \
    TYPE TOMBOLO_(TYPENAME##_finc)(TYPE *dest, int pe);                                            \
    TOMBOLO_DEPRECATED("use the _atomic_inc routine")                                              \
    void TOMBOLO_(TYPENAME##_inc)(TYPE *dest, int pe);                                             \
    TOMBOLO_DEPRECATED("use the _atomic_fetch_add routine")                                        \
    TYPE TOMBOLO_(TYPENAME##_fadd)(TYPE *dest, TYPE value, int pe);                                \
    TOMBOLO_DEPRECATED("use the _atomic_add routine")                                              \
    void TOMBOLO_(TYPENAME##_add)(TYPE *dest, TYPE value, int pe);
TOMBOLO_AMO_TYPES(TOMBOLO_AMO_STANDARD)

/* Atomic memory operations: bitwise. */
/* TYPENAME_ is pasted before it goes through a second macro, which would expand "ulong" and the like where the program
 * has such macros. */
#define TOMBOLO_AMO_BITWISE(TYPENAME_, TYPE, OP)                                                   \
    TYPE TOMBOLO_(TYPENAME_##atomic_fetch##OP)(TYPE *dest, TYPE value, int pe);                    \
    TYPE TOMBOLO_(ctx_##TYPENAME_##atomic_fetch##OP)(shmem_ctx_t ctx, TYPE *dest, TYPE value,      \
                                                     int pe);                                      \
    void TOMBOLO_(TYPENAME_##atomic##OP)(TYPE *dest, TYPE value, int pe);                          \
    void TOMBOLO_(ctx_##TYPENAME_##atomic##OP)(shmem_ctx_t ctx, TYPE *dest, TYPE value, int pe);   \
    void TOMBOLO_(TYPENAME_##atomic_fetch##OP##_nbi)(TYPE *fetch, TYPE *dest, TYPE value,          \
                                                     int pe);                                      \
    void TOMBOLO_(ctx_##TYPENAME_##atomic_fetch##OP##_nbi)(shmem_ctx_t ctx, TYPE *fetch,           \
                                                           TYPE *dest, TYPE value, int pe);
/* "and", "or" and "xor" are operators in C++, on which compilers remark, and macros in <iso646.h>: here they are never
 * words of their own. */
#define TOMBOLO_AMO_BITWISE_AND(TYPENAME, TYPE) TOMBOLO_AMO_BITWISE(TYPENAME##_, TYPE, _and)
#define TOMBOLO_AMO_BITWISE_OR(TYPENAME, TYPE)  TOMBOLO_AMO_BITWISE(TYPENAME##_, TYPE, _or)
#define TOMBOLO_AMO_BITWISE_XOR(TYPENAME, TYPE) TOMBOLO_AMO_BITWISE(TYPENAME##_, TYPE, _xor)
TOMBOLO_BITWISE_AMO_TYPES(TOMBOLO_AMO_BITWISE_AND)
TOMBOLO_BITWISE_AMO_TYPES(TOMBOLO_AMO_BITWISE_OR)
TOMBOLO_BITWISE_AMO_TYPES(TOMBOLO_AMO_BITWISE_XOR)

/* Signaling operations. */
#define TOMBOLO_PUT_SIGNAL(TYPENAME, TYPE)                                                         \
    void TOMBOLO_(TYPENAME##_put_signal)(TYPE *dest, const TYPE *source, size_t nelems,            \
                                         uint64_t *sig_addr, uint64_t signal, int sig_op, int pe); \
    void TOMBOLO_(ctx_##TYPENAME##_put_signal)(shmem_ctx_t ctx, TYPE *dest, const TYPE *source,    \
                                               size_t nelems, uint64_t *sig_addr, uint64_t signal, \
                                               int sig_op, int pe);                                \
    void TOMBOLO_(TYPENAME##_put_signal_nbi)(TYPE *dest, const TYPE *source, size_t nelems,        \
                                             uint64_t *sig_addr, uint64_t signal, int sig_op,      \
                                             int pe);                                              \
    void TOMBOLO_(ctx_##TYPENAME##_put_signal_nbi)(shmem_ctx_t ctx, TYPE *dest,                    \
                                                   const TYPE *source, size_t nelems,              \
                                                   uint64_t *sig_addr, uint64_t signal,            \
                                                   int sig_op, int pe);
TOMBOLO_RMA_TYPES(TOMBOLO_PUT_SIGNAL)

#define TOMBOLO_PUT_SIGNAL_UNTYPED(SIZE)                                                           \
    void TOMBOLO_(put##SIZE##_signal)(void *dest, const void *source, size_t nelems,               \
                                      uint64_t *sig_addr, uint64_t signal, int sig_op, int pe);    \
    void TOMBOLO_(ctx_put##SIZE##_signal)(shmem_ctx_t ctx, void *dest, const void *source,         \
                                          size_t nelems, uint64_t *sig_addr, uint64_t signal,      \
                                          int sig_op, int pe);                                     \
    void TOMBOLO_(put##SIZE##_signal_nbi)(void *dest, const void *source, size_t nelems,           \
                                          uint64_t *sig_addr, uint64_t signal, int sig_op,         \
                                          int pe);                                                 \
    void TOMBOLO_(ctx_put##SIZE##_signal_nbi)(shmem_ctx_t ctx, void *dest, const void *source,     \
                                              size_t nelems, uint64_t *sig_addr, uint64_t signal,  \
                                              int sig_op, int pe);
TOMBOLO_SIZES_AND_MEM(TOMBOLO_PUT_SIGNAL_UNTYPED)

void TOMBOLO_(signal_add)(uint64_t *sig_addr, uint64_t signal, int pe);
void TOMBOLO_(ctx_signal_add)(shmem_ctx_t ctx, uint64_t *sig_addr, uint64_t signal, int pe);
void TOMBOLO_(signal_set)(uint64_t *sig_addr, uint64_t signal, int pe);
void TOMBOLO_(ctx_signal_set)(shmem_ctx_t ctx, uint64_t *sig_addr, uint64_t signal, int pe);
uint64_t TOMBOLO_(signal_fetch)(const uint64_t *sig_addr);

/* Collectives: synchronisation. */
void TOMBOLO_(barrier_all)(void);
TOMBOLO_DEPRECATED("use shmem_quiet and shmem_team_sync")
void TOMBOLO_(barrier)(int PE_start, int logPE_stride, int PE_size, long *pSync);
void TOMBOLO_(sync_all)(void);
int  TOMBOLO_(team_sync)(shmem_team_t team);
TOMBOLO_DEPRECATED("use shmem_team_sync")
void TOMBOLO_(sync)(int PE_start, int logPE_stride, int PE_size, long *pSync);

/* Collectives: data. */
#define TOMBOLO_COLLECTIVE(TYPENAME, TYPE)                                                         \
    int TOMBOLO_(TYPENAME##_alltoall)(shmem_team_t team, TYPE *dest, const TYPE *source,           \
                                      size_t nelems);                                              \
    int TOMBOLO_(TYPENAME##_alltoalls)(shmem_team_t team, TYPE *dest, const TYPE *source,          \
                                       ptrdiff_t dst, ptrdiff_t sst, size_t nelems);               \
    int TOMBOLO_(TYPENAME##_broadcast)(shmem_team_t team, TYPE *dest, const TYPE *source,          \
                                       size_t nelems, int PE_root);                                \
    int TOMBOLO_(TYPENAME##_collect)(shmem_team_t team, TYPE *dest, const TYPE *source,            \
                                     size_t nelems);                                               \
    int TOMBOLO_(TYPENAME##_fcollect)(shmem_team_t team, TYPE *dest, const TYPE *source,           \
                                      size_t nelems);
TOMBOLO_RMA_TYPES(TOMBOLO_COLLECTIVE)

int TOMBOLO_(alltoallmem)(shmem_team_t team, void *dest, const void *source, size_t nelems);
int TOMBOLO_(alltoallsmem)(shmem_team_t team, void *dest, const void *source, ptrdiff_t dst,
                           ptrdiff_t sst, size_t nelems);
int TOMBOLO_(broadcastmem)(shmem_team_t team, void *dest, const void *source, size_t nelems,
                           int PE_root);
int TOMBOLO_(collectmem)(shmem_team_t team, void *dest, const void *source, size_t nelems);
int TOMBOLO_(fcollectmem)(shmem_team_t team, void *dest, const void *source, size_t nelems);

/* Collectives over an active set, deprecated. */
#define TOMBOLO_ACTIVE_SET_COLLECTIVE(SIZE)                                                        \
    TOMBOLO_DEPRECATED("use the team-based shmem_TYPENAME_alltoall")                               \
    void TOMBOLO_(alltoall##SIZE)(void *dest, const void *source, size_t nelems, int PE_start,     \
                                  int logPE_stride, int PE_size, long *pSync);                     \
    TOMBOLO_DEPRECATED("use the team-based shmem_TYPENAME_alltoalls")                              \
    void TOMBOLO_(alltoalls##SIZE)(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst,   \
                                   size_t nelems, int PE_start, int logPE_stride, int PE_size,     \
                                   long *pSync);                                                   \
    TOMBOLO_DEPRECATED("use the team-based shmem_TYPENAME_broadcast")                              \
    void TOMBOLO_(broadcast##SIZE)(void *dest, const void *source, size_t nelems, int PE_root,     \
                                   int PE_start, int logPE_stride, int PE_size, long *pSync);      \
    TOMBOLO_DEPRECATED("use the team-based shmem_TYPENAME_collect")                                \
    void TOMBOLO_(collect##SIZE)(void *dest, const void *source, size_t nelems, int PE_start,      \
                                 int logPE_stride, int PE_size, long *pSync);                      \
    TOMBOLO_DEPRECATED("use the team-based shmem_TYPENAME_fcollect")                               \
    void TOMBOLO_(fcollect##SIZE)(void *dest, const void *source, size_t nelems, int PE_start,     \
                                  int logPE_stride, int PE_size, long *pSync);
TOMBOLO_ACTIVE_SET_COLLECTIVE(32)
TOMBOLO_ACTIVE_SET_COLLECTIVE(64)

/* Collectives: reductions and scans. */
#define TOMBOLO_REDUCE_BITWISE(TYPENAME, TYPE)                                                     \
    int TOMBOLO_(TYPENAME##_and_reduce)(shmem_team_t team, TYPE *dest, const TYPE *source,         \
                                        size_t nreduce);                                           \
    int TOMBOLO_(TYPENAME##_or_reduce)(shmem_team_t team, TYPE *dest, const TYPE *source,          \
                                       size_t nreduce);                                            \
    int TOMBOLO_(TYPENAME##_xor_reduce)(shmem_team_t team, TYPE *dest, const TYPE *source,         \
                                        size_t nreduce);
TOMBOLO_BITWISE_REDUCE_TYPES(TOMBOLO_REDUCE_BITWISE)

#define TOMBOLO_REDUCE_MINMAX(TYPENAME, TYPE)                                                      \
    int TOMBOLO_(TYPENAME##_max_reduce)(shmem_team_t team, TYPE *dest, const TYPE *source,         \
                                        size_t nreduce);                                           \
    int TOMBOLO_(TYPENAME##_min_reduce)(shmem_team_t team, TYPE *dest, const TYPE *source,         \
                                        size_t nreduce);
TOMBOLO_MINMAX_REDUCE_TYPES(TOMBOLO_REDUCE_MINMAX)

#define TOMBOLO_REDUCE_ARITH(TYPENAME, TYPE)                                                       \
    int TOMBOLO_(TYPENAME##_sum_reduce)(shmem_team_t team, TYPE *dest, const TYPE *source,         \
                                        size_t nreduce);                                           \
    int TOMBOLO_(TYPENAME##_prod_reduce)(shmem_team_t team, TYPE *dest, const TYPE *source,        \
                                         size_t nreduce);                                          \
    int TOMBOLO_(TYPENAME##_sum_inscan)(shmem_team_t team, TYPE *dest, const TYPE *source,         \
                                        size_t nelems);                                            \
    int TOMBOLO_(TYPENAME##_sum_exscan)(shmem_team_t team, TYPE *dest, const TYPE *source,         \
                                        size_t nelems);
TOMBOLO_ARITH_REDUCE_TYPES(TOMBOLO_REDUCE_ARITH)

#define TOMBOLO_TO_ALL(ROUTINE, TYPE, OP)                                                          \
    TOMBOLO_DEPRECATED("use the team-based shmem_TYPENAME" #OP "_reduce")                          \
    void TOMBOLO_(ROUTINE##_to_all)(TYPE *dest, const TYPE *source, int nreduce, int PE_start,     \
                                    int logPE_stride, int PE_size, TYPE *pWrk, long *pSync);
#define TOMBOLO_TO_ALL_BITWISE(TYPENAME, TYPE)                                                     \
    TOMBOLO_TO_ALL(TYPENAME##_and, TYPE, _and)                                                     \
    TOMBOLO_TO_ALL(TYPENAME##_or, TYPE, _or)                                                       \
    TOMBOLO_TO_ALL(TYPENAME##_xor, TYPE, _xor)
#define TOMBOLO_TO_ALL_MINMAX(TYPENAME, TYPE)                                                      \
    TOMBOLO_TO_ALL(TYPENAME##_max, TYPE, _max)                                                     \
    TOMBOLO_TO_ALL(TYPENAME##_min, TYPE, _min)
#define TOMBOLO_TO_ALL_ARITH(TYPENAME, TYPE)                                                       \
    TOMBOLO_TO_ALL(TYPENAME##_sum, TYPE, _sum)                                                     \
    TOMBOLO_TO_ALL(TYPENAME##_prod, TYPE, _prod)
TOMBOLO_BITWISE_TO_ALL_TYPES(TOMBOLO_TO_ALL_BITWISE)
TOMBOLO_MINMAX_TO_ALL_TYPES(TOMBOLO_TO_ALL_MINMAX)
TOMBOLO_ARITH_TO_ALL_TYPES(TOMBOLO_TO_ALL_ARITH)

/* Point-to-point synchronisation. */
#define TOMBOLO_WAIT(TYPENAME, TYPE)                                                               \
    void TOMBOLO_(TYPENAME##_wait_until)(TYPE *ivar, int cmp, TYPE cmp_value);                     \
    void TOMBOLO_(TYPENAME##_wait_until_all)(TYPE *ivars, size_t nelems, const int *status,        \
                                             int cmp, TYPE cmp_value);                             \
    size_t TOMBOLO_(TYPENAME##_wait_until_any)(TYPE *ivars, size_t nelems, const int *status,      \
                                               int cmp, TYPE cmp_value);                           \
    size_t TOMBOLO_(TYPENAME##_wait_until_some)(TYPE *ivars, size_t nelems, size_t *indices,       \
                                                const int *status, int cmp, TYPE cmp_value);       \
    void TOMBOLO_(TYPENAME##_wait_until_all_vector)(TYPE *ivars, size_t nelems, const int *status, \
                                                    int cmp, const TYPE *cmp_values);              \
    size_t TOMBOLO_(TYPENAME##_wait_until_any_vector)(TYPE *ivars, size_t nelems,                  \
                                                      const int *status, int cmp,                  \
                                                      const TYPE *cmp_values);                     \
    size_t TOMBOLO_(TYPENAME##_wait_until_some_vector)(TYPE *ivars, size_t nelems,                 \
                                                       size_t *indices, const int *status,         \
                                                       int cmp, const TYPE *cmp_values);
TOMBOLO_AMO_TYPES(TOMBOLO_WAIT)

#define TOMBOLO_TEST(TYPENAME, TYPE)                                                               \
    int TOMBOLO_(TYPENAME##_test)(TYPE *ivar, int cmp, TYPE cmp_value);                            \
    int TOMBOLO_(TYPENAME##_test_all)(TYPE *ivars, size_t nelems, const int *status, int cmp,      \
                                      TYPE cmp_value);                                             \
    size_t TOMBOLO_(TYPENAME##_test_any)(TYPE *ivars, size_t nelems, const int *status, int cmp,   \
                                         TYPE cmp_value);                                          \
    size_t TOMBOLO_(TYPENAME##_test_some)(TYPE *ivars, size_t nelems, size_t *indices,             \
                                          const int *status, int cmp, TYPE cmp_value);             \
    int TOMBOLO_(TYPENAME##_test_all_vector)(TYPE *ivars, size_t nelems, const int *status,        \
                                             int cmp, const TYPE *cmp_values);                     \
    size_t TOMBOLO_(TYPENAME##_test_any_vector)(TYPE *ivars, size_t nelems, const int *status,     \
                                                int cmp, const TYPE *cmp_values);                  \
    size_t TOMBOLO_(TYPENAME##_test_some_vector)(TYPE *ivars, size_t nelems, size_t *indices,      \
                                                 const int *status, int cmp,                       \
                                                 const TYPE *cmp_values);
TOMBOLO_AMO_TYPES(TOMBOLO_TEST)

uint64_t TOMBOLO_(signal_wait_until)(uint64_t *sig_addr, int cmp, uint64_t cmp_value);

#define TOMBOLO_WAIT_DEPRECATED(TYPENAME, TYPE)                                                    \
    TOMBOLO_DEPRECATED("use the _wait_until routine with SHMEM_CMP_NE")                            \
    void TOMBOLO_(TYPENAME##_wait)(TYPE *ivar, TYPE cmp_value);
TOMBOLO_AMO_TYPES(TOMBOLO_WAIT_DEPRECATED)

/* Deprecated, but without a warning: it would come with every use of the generic routines, which
 * choose among these and others. */
#define TOMBOLO_WAIT_SHORT(TYPENAME, TYPE)                                                         \
    void TOMBOLO_(TYPENAME##_wait_until)(TYPE *ivar, int cmp, TYPE cmp_value);                     \
    int  TOMBOLO_(TYPENAME##_test)(TYPE *ivar, int cmp, TYPE cmp_value);
TOMBOLO_WAIT_DEPRECATED(short, short)
TOMBOLO_WAIT_DEPRECATED(ushort, unsigned short)
TOMBOLO_WAIT_SHORT(short, short)
TOMBOLO_WAIT_SHORT(ushort, unsigned short)
TOMBOLO_DEPRECATED("use shmem_long_wait_until with SHMEM_CMP_NE")
void TOMBOLO_(wait)(long *ivar, long cmp_value);
/* In C++ this is the generic routine for long as well, which is not deprecated. */
#ifndef __cplusplus
TOMBOLO_DEPRECATED("use shmem_long_wait_until")
#endif
void TOMBOLO_(wait_until)(long *ivar, int cmp, long cmp_value);

/* Memory ordering. */
void TOMBOLO_(fence)(void);
void TOMBOLO_(ctx_fence)(shmem_ctx_t ctx);
void TOMBOLO_(quiet)(void);
void TOMBOLO_(ctx_quiet)(shmem_ctx_t ctx);
void TOMBOLO_(pe_quiet)(const int *target_pes, size_t npes);
void TOMBOLO_(ctx_pe_quiet)(shmem_ctx_t ctx, const int *target_pes, size_t npes);

/* Distributed locking. */
void TOMBOLO_(clear_lock)(long *lock);
void TOMBOLO_(set_lock)(long *lock);
int  TOMBOLO_(test_lock)(long *lock);

/* Profiling control. */
void TOMBOLO_(pcontrol)(int level, ...);

/* Cache management, deprecated. */
TOMBOLO_DEPRECATED("caches are coherent: the routine has no effect")
void TOMBOLO_(clear_cache_inv)(void);
TOMBOLO_DEPRECATED("caches are coherent: the routine has no effect")
void TOMBOLO_(set_cache_inv)(void);
TOMBOLO_DEPRECATED("caches are coherent: the routine has no effect")
void TOMBOLO_(clear_cache_line_inv)(void *dest);
TOMBOLO_DEPRECATED("caches are coherent: the routine has no effect")
void TOMBOLO_(set_cache_line_inv)(void *dest);
TOMBOLO_DEPRECATED("caches are coherent: the routine has no effect")
void TOMBOLO_(udcflush)(void);
TOMBOLO_DEPRECATED("caches are coherent: the routine has no effect")
void TOMBOLO_(udcflush_line)(void *dest);
