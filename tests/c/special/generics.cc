/* SPDX-License-Identifier: Apache-2.0 */
// C++: the generic routines as overloads, for every distinct type, with and without a context, and
// std::complex where C has _Complex.
#include <shmem.h>

#include <complex>
#include <cstdint>
#include <cstdio>
#include <cstring>

static int me, npes, next_pe, previous_pe;

#define CHECK(CONDITION)                                                                           \
    do {                                                                                           \
        if (!(CONDITION)) {                                                                        \
            std::fprintf(stderr, "PE %d: %s:%d: expected %s\n", me, __FILE__, __LINE__,            \
                         #CONDITION);                                                              \
            shmem_global_exit(1);                                                                  \
        }                                                                                          \
    } while (0)

template <typename T> static T *allocate(size_t count) {
    void *memory = shmem_calloc(count, sizeof(T));
    CHECK(memory != nullptr);
    return static_cast<T *>(memory);
}

template <typename T> static void rma(shmem_ctx_t ctx) {
    T *dest = allocate<T>(8);
    T source[4], got[4];
    for (int i = 0; i < 4; i++) source[i] = static_cast<T>(me * 10 + i + 1);
    shmem_put(dest, source, 4, next_pe);
    shmem_put(ctx, dest + 4, source, 4, next_pe);
    shmem_ctx_quiet(ctx);
    shmem_barrier_all();
    for (int i = 0; i < 8; i++) CHECK(dest[i] == static_cast<T>(previous_pe * 10 + i % 4 + 1));
    shmem_get(got, dest, 4, next_pe);
    CHECK(std::memcmp(got, source, sizeof(T)) == 0);
    CHECK(shmem_g(dest + 1, next_pe) == source[1]);
    CHECK(shmem_g(ctx, dest + 2, next_pe) == source[2]);
    shmem_barrier_all();
    shmem_p(dest, source[3], next_pe);
    shmem_p(ctx, dest + 1, source[2], next_pe);
    shmem_iput(dest + 2, source, 2, 1, 2, next_pe);
    shmem_ctx_quiet(ctx);
    shmem_barrier_all();
    CHECK(dest[0] == static_cast<T>(previous_pe * 10 + 4));
    CHECK(dest[4] == static_cast<T>(previous_pe * 10 + 2));
    static uint64_t signal;
    signal = 0;
    shmem_barrier_all();
    shmem_put_signal(dest, source, 4, &signal, 1, SHMEM_SIGNAL_ADD, next_pe);
    shmem_signal_wait_until(&signal, SHMEM_CMP_EQ, 1);
    shmem_barrier_all();
    CHECK(shmem_fcollect(SHMEM_TEAM_WORLD, dest, source, 0) == 0);
    dest[0] = static_cast<T>(me + 1);
    CHECK(shmem_max_reduce(SHMEM_TEAM_WORLD, dest + 1, dest, 1) == 0);
    CHECK(dest[1] == static_cast<T>(npes));
    shmem_barrier_all();
    shmem_free(dest);
}

template <typename T> static void amo(shmem_ctx_t ctx) {
    T *x = allocate<T>(1);
    shmem_atomic_set(x, T(5), next_pe);
    shmem_quiet();
    CHECK(shmem_atomic_fetch_add(x, T(2), next_pe) == T(5));
    CHECK(shmem_atomic_fetch_inc(ctx, x, next_pe) == T(7));
    CHECK(shmem_atomic_compare_swap(x, T(8), T(9), next_pe) == T(8));
    CHECK(shmem_atomic_swap(ctx, x, T(10), next_pe) == T(9));
    CHECK(shmem_atomic_fetch(x, next_pe) == T(10));
    shmem_barrier_all();
    shmem_p(x, T(11), next_pe);
    shmem_wait_until(x, SHMEM_CMP_EQ, T(11));
    CHECK(shmem_test(x, SHMEM_CMP_GE, T(11)) == 1);
    shmem_barrier_all();
    shmem_free(x);
}

template <typename R> static void complex_numbers() {
    typedef std::complex<R> C;
    C *z = allocate<C>(2);
    z[0] = C(R(me), R(1));
    shmem_barrier_all();
    CHECK(shmem_sum_reduce(SHMEM_TEAM_WORLD, z + 1, z, 1) == 0);
    CHECK(z[1] == C(R(npes * (npes - 1) / 2), R(npes)));
    shmem_barrier_all();
    CHECK(shmem_sum_inscan(SHMEM_TEAM_WORLD, z, z, 1) == 0);
    CHECK(z[0].imag() == R(me + 1));
    shmem_barrier_all();
    shmem_free(z);
}

int main() {
    shmem_init();
    me = shmem_my_pe(), npes = shmem_n_pes();
    next_pe = (me + 1) % npes, previous_pe = (me + npes - 1) % npes;
    shmem_ctx_t ctx;
    CHECK(shmem_ctx_create(0, &ctx) == 0);
    rma<float>(ctx), rma<double>(ctx), rma<long double>(ctx), rma<char>(ctx), rma<signed char>(ctx);
    rma<short>(ctx), rma<int>(ctx), rma<long>(ctx), rma<long long>(ctx), rma<unsigned char>(ctx);
    rma<unsigned short>(ctx), rma<unsigned>(ctx), rma<unsigned long>(ctx);
    rma<unsigned long long>(ctx);
    rma<std::int64_t>(ctx), rma<std::size_t>(ctx), rma<std::ptrdiff_t>(ctx);
    amo<int>(ctx), amo<long>(ctx), amo<long long>(ctx), amo<unsigned>(ctx), amo<unsigned long>(ctx);
    amo<unsigned long long>(ctx), amo<std::int64_t>(ctx), amo<std::size_t>(ctx);
    complex_numbers<float>();
    complex_numbers<double>();
    CHECK(shmem_sync(SHMEM_TEAM_WORLD) == 0);
    shmem_ctx_destroy(ctx);
    shmem_finalize();
    return 0;
}
