/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A five-point stencil on a square grid, the same in C, C++, Python and Rust; stencil.c explains it.
 *
 *   oshc++ -O2 stencil.cc -o stencil++ && oshrun -n 4 ./stencil++ [points [steps]]
 */
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <shmem.h>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

/* Symmetric memory, freed by all PEs together at the end of its scope. */
template <class T> class Symmetric {
  public:
    explicit Symmetric(std::size_t count)
        : place(static_cast<T *>(shmem_calloc(count, sizeof(T)))), count(count)
    {
        if (!place)
            shmem_global_exit(1);
    }
    ~Symmetric() { shmem_free(place); }
    Symmetric(const Symmetric &) = delete;
    Symmetric &operator=(const Symmetric &) = delete;
    std::span<T> part(std::size_t begin, std::size_t length) { return {place + begin, length}; }
    std::span<T> all() { return {place, count}; }

  private:
    T *place;
    std::size_t count;
};

void run(std::size_t points, std::size_t steps)
{
    const std::size_t me = shmem_my_pe(), n_pes = shmem_n_pes();
    const std::size_t first = points * me / n_pes, rows = points * (me + 1) / n_pes - first;
    std::vector<double> now((rows + 2) * points, 0.0);
    if (me == 0)
        std::fill_n(now.begin() + points, points, 1.0);
    auto next = now;
    Symmetric<double> halo(4 * points), row_sums(points);
    Symmetric<std::uint64_t> arrived(2);
    auto *from_above = &arrived.all()[0], *from_below = &arrived.all()[1];

    for (std::uint64_t step = 1; step <= steps; step++) {
        const auto above = halo.part(step % 2 * 2 * points, points);
        const auto below = halo.part((step % 2 * 2 + 1) * points, points);
        if (me > 0)
            shmem_put_signal(below.data(), &now[points], points, from_below, step,
                             SHMEM_SIGNAL_SET, int(me - 1));
        if (me + 1 < n_pes)
            shmem_put_signal(above.data(), &now[rows * points], points, from_above, step,
                             SHMEM_SIGNAL_SET, int(me + 1));
        if (me > 0) {
            shmem_signal_wait_until(from_above, SHMEM_CMP_GE, step);
            std::copy(above.begin(), above.end(), now.begin());
        }
        if (me + 1 < n_pes) {
            shmem_signal_wait_until(from_below, SHMEM_CMP_GE, step);
            std::copy(below.begin(), below.end(), now.begin() + (rows + 1) * points);
        }
        for (std::size_t row = 1; row <= rows; row++) {
            if (first + row == 1 || first + row == points)
                continue; /* the rim never changes */
            for (auto i = row * points + 1; i + 1 < (row + 1) * points; i++)
                next[i] = 0.25 * (now[i - points] + now[i - 1] + now[i + 1] + now[i + points]);
        }
        std::swap(now, next);
    }

    for (std::size_t row = 1; row <= rows; row++) {
        const auto begin = now.begin() + row * points;
        shmem_p(&row_sums.all()[first + row - 1], std::accumulate(begin, begin + points, 0.0), 0);
    }
    shmem_barrier_all();
    if (me == 0) {
        const auto sums = row_sums.all();
        const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
        std::printf("stencil: %zu points, %zu steps, sum %.9f\n", points, steps, sum);
    }
}

} // namespace

int main(int argc, char **argv)
{
    shmem_init();
    const std::size_t points = argc > 1 ? std::stoul(argv[1]) : 64;
    const std::size_t steps = argc > 2 ? std::stoul(argv[2]) : 100;
    if (points < 2 || points < std::size_t(shmem_n_pes())) {
        if (shmem_my_pe() == 0)
            std::fprintf(stderr, "%zu points per side do for as many PEs at most\n", points);
        shmem_global_exit(2);
    }
    run(points, steps);
    shmem_finalize();
}
