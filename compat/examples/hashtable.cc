/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash table over all PEs: words are counted by all of them at once, by atomic operations.
 *
 *   oshc++ -O2 hashtable.cc -o hashtable && oshrun -n 4 ./hashtable [insertions in all [keys]]
 *
 * A key belongs to a PE and a first slot there. Whoever finds a free slot claims it with a
 * compare-and-swap; if another was faster, it looks at what is there now, and goes on.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <shmem.h>
#include <string>

namespace {

std::uint64_t mixed(std::uint64_t x)
{
    x = (x + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Keys are not 0. All PEs make and destroy it together. */
class Table {
  public:
    explicit Table(std::size_t slots_per_pe)
        : slots(slots_per_pe),
          keys(static_cast<std::uint64_t *>(shmem_calloc(slots, sizeof *keys))),
          counts(static_cast<std::uint64_t *>(shmem_calloc(slots, sizeof *counts)))
    {
        if (!keys || !counts)
            shmem_global_exit(1);
    }
    ~Table()
    {
        shmem_free(counts);
        shmem_free(keys);
    }
    Table(const Table &) = delete;
    Table &operator=(const Table &) = delete;

    void add(std::uint64_t key)
    {
        const Place place = find(key, true);
        shmem_atomic_inc(&counts[place.slot], place.pe);
    }

    std::uint64_t count(std::uint64_t key)
    {
        const Place place = find(key, false);
        return place.pe < 0 ? 0 : shmem_atomic_fetch(&counts[place.slot], place.pe);
    }

    /* Of this PE's part: keys and their counts, added up. */
    void tally(std::uint64_t &used, std::uint64_t &sum) const
    {
        for (std::size_t slot = 0; slot < slots; slot++) {
            used += keys[slot] != 0;
            sum += counts[slot];
        }
    }

  private:
    struct Place {
        int pe;
        std::size_t slot;
    };

    Place find(std::uint64_t key, bool claim)
    {
        const std::uint64_t hash = mixed(key);
        const int pe = int(hash % shmem_n_pes());
        const std::size_t first = hash / shmem_n_pes() % slots;
        for (std::size_t step = 0; step < slots; step++) {
            const std::size_t slot = (first + step) % slots;
            std::uint64_t there = shmem_atomic_fetch(&keys[slot], pe);
            if (there == 0 && claim)
                there = shmem_atomic_compare_swap(&keys[slot], std::uint64_t(0), key, pe);
            if (there == key || (there == 0 && claim))
                return {pe, slot};
            if (there == 0)
                return {-1, 0};
        }
        std::fprintf(stderr, "the table is full\n");
        shmem_global_exit(3);
        return {-1, 0};
    }

    std::size_t slots;
    std::uint64_t *keys, *counts;
};

std::uint64_t mine[3], all[3]; /* keys, insertions, insertions of the key 1 */

} // namespace

int main(int argc, char **argv)
{
    shmem_init();
    const std::uint64_t me = shmem_my_pe(), n_pes = shmem_n_pes();
    const std::uint64_t insertions = argc > 1 ? std::stoull(argv[1]) : 20000;
    const std::uint64_t range = argc > 2 ? std::stoull(argv[2]) : 500;
    bool right = false;
    {
        Table table(2 * range + 16);
        const std::uint64_t end = insertions * (me + 1) / n_pes;
        for (std::uint64_t i = insertions * me / n_pes; i < end; i++) {
            const std::uint64_t key = 1 + mixed(i) % range;
            mine[2] += key == 1;
            table.add(key);
        }
        shmem_barrier_all();
        table.tally(mine[0], mine[1]);
        shmem_sum_reduce(SHMEM_TEAM_WORLD, all, mine, 3);
        right = all[1] == insertions && table.count(1) == all[2];
        if (me == 0)
            std::printf("hashtable: %llu insertions, %llu keys: %s\n", (unsigned long long)all[1],
                        (unsigned long long)all[0], right ? "right" : "WRONG");
        shmem_barrier_all();
    }
    shmem_finalize();
    return right ? 0 : 1;
}
