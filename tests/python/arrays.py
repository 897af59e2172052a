# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays in symmetric memory, by shmem4py: each PE fills its part of an array of every PE, and
sums and counts come out the same whatever the number of PEs.
"""

import numpy as np
from shmem4py import shmem

TOTAL = 840  # elements of the whole array, divisible by 1 to 8

me, n_pes = shmem.my_pe(), shmem.n_pes()
share = TOTAL // n_pes
array = shmem.zeros(TOTAL, dtype=np.float64)
counter = shmem.zeros(1, dtype=np.int64)
mine = np.arange(me * share, (me + 1) * share, dtype=np.float64)
for pe in range(n_pes):
    shmem.put(array[me * share : (me + 1) * share], mine, pe)
    shmem.atomic_add(counter, share, pe)
shmem.barrier_all()
assert isinstance(array, np.ndarray) and np.array_equal(array, np.arange(TOTAL)), array
assert counter[0] == TOTAL, counter

grid = shmem.full((6, TOTAL // 6), 0, dtype=np.float64, order="C")
grid[:, :] = array.reshape(6, -1) * (me + 1)
shmem.barrier_all()
remote = np.empty_like(grid)
shmem.get(remote, grid, n_pes - 1)
assert np.array_equal(remote, np.arange(TOTAL).reshape(6, -1) * n_pes), remote

part, total = shmem.zeros(1), shmem.zeros(1)
part[0] = mine.sum()
shmem.sum_reduce(total, part)
if me == 0:
    print(f"arrays: {TOTAL} elements, sum {total[0]:.0f}")
shmem.barrier_all()
for memory in (array, counter, grid, part, total):
    shmem.free(memory)
