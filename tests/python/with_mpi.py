# SPDX-License-Identifier: Apache-2.0
"""mpi4py and shmem4py in one process: PEs and ranks have the same numbers, and each library has what
the other has brought.
"""

import sys

import numpy as np

# In both orders: importing one initialises it.
if sys.argv[1] == "mpi":
    from mpi4py import MPI
    from shmem4py import shmem
else:
    from shmem4py import shmem
    from mpi4py import MPI

me, n_pes = shmem.my_pe(), shmem.n_pes()
world = MPI.COMM_WORLD
assert (me, n_pes) == (world.rank, world.size), (me, n_pes, world.rank, world.size)
cell = shmem.zeros(1, dtype="i8")
shmem.put(cell, np.array([me + 1]), (me + 1) % n_pes)
shmem.barrier_all()
total = world.allreduce(int(cell[0]))
assert total == n_pes * (n_pes + 1) // 2, total
if me == 0:
    print(f"both agree: {n_pes}")
shmem.barrier_all()
