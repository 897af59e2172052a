# SPDX-License-Identifier: Apache-2.0
"""A five-point stencil on a square grid, the same in C, C++, Python and Rust; stencil.c explains it.

    oshrun -n 4 python3 stencil.py [points [steps]]

It needs the library alone: ctypes loads it. With NumPy, shmem4py gives arrays in symmetric memory.
"""

import ctypes
import os
import shutil
import sys


def library():
    """The library of the installation whose oshrun is found in PATH, or else that of the system."""
    oshrun = shutil.which("oshrun")
    if oshrun:
        prefix = os.path.dirname(os.path.dirname(os.path.realpath(oshrun)))
        path = os.path.join(prefix, "lib", "libtombolo.so.0")
        if os.path.exists(path):
            return path
    return "libtombolo.so.0"


shmem = ctypes.CDLL(library())
Doubles = ctypes.POINTER(ctypes.c_double)
Word = ctypes.POINTER(ctypes.c_uint64)
shmem.shmem_calloc.restype = ctypes.c_void_p
shmem.shmem_calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
shmem.shmem_free.argtypes = [ctypes.c_void_p]
shmem.shmem_double_p.argtypes = [ctypes.c_void_p, ctypes.c_double, ctypes.c_int]
shmem.shmem_double_put_signal.argtypes = [
    ctypes.c_void_p, Doubles, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int,
    ctypes.c_int,
]
shmem.shmem_signal_wait_until.restype = ctypes.c_uint64
shmem.shmem_signal_wait_until.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
SIGNAL_SET, CMP_GE = 0, 5


def symmetric(count):
    """Address and contents of so many doubles in symmetric memory."""
    place = shmem.shmem_calloc(count, 8)
    if not place:
        shmem.shmem_global_exit(1)
    return place, (ctypes.c_double * count).from_address(place)


def main():
    points = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    shmem.shmem_init()
    me, n_pes = shmem.shmem_my_pe(), shmem.shmem_n_pes()
    if points < max(2, n_pes):
        if me == 0:
            print(f"{points} points per side do for as many PEs at most", file=sys.stderr)
        shmem.shmem_global_exit(2)
    first = points * me // n_pes
    rows = points * (me + 1) // n_pes - first
    now = [[0.0] * points for _ in range(rows + 2)]
    if me == 0:
        now[1] = [1.0] * points
    following = [list(row) for row in now]
    halo, halo_values = symmetric(4 * points)
    arrived, _ = symmetric(2)
    sums, sum_values = symmetric(points)
    from_above, from_below = arrived, arrived + 8

    def send(row, slot, signal, step, pe):
        data = (ctypes.c_double * points)(*row)
        shmem.shmem_double_put_signal(
            halo + slot * points * 8, data, points, signal, step, SIGNAL_SET, pe
        )

    def receive(slot, signal, step):
        shmem.shmem_signal_wait_until(signal, CMP_GE, step)
        return list(halo_values[slot * points : (slot + 1) * points])

    for step in range(1, steps + 1):
        above, below = step % 2 * 2, step % 2 * 2 + 1
        if me > 0:
            send(now[1], below, from_below, step, me - 1)
        if me + 1 < n_pes:
            send(now[rows], above, from_above, step, me + 1)
        if me > 0:
            now[0] = receive(above, from_above, step)
        if me + 1 < n_pes:
            now[rows + 1] = receive(below, from_below, step)
        for row in range(1, rows + 1):
            if first + row in (1, points):
                continue  # the rim never changes
            up, here, down, out = now[row - 1], now[row], now[row + 1], following[row]
            for i in range(1, points - 1):
                out[i] = 0.25 * (up[i] + here[i - 1] + here[i + 1] + down[i])
        now, following = following, now

    for row in range(1, rows + 1):
        total = 0.0
        for value in now[row]:
            total += value
        shmem.shmem_double_p(sums + (first + row - 1) * 8, total, 0)
    shmem.shmem_barrier_all()
    if me == 0:
        total = 0.0
        for value in sum_values:
            total += value
        print(f"stencil: {points} points, {steps} steps, sum {total:.9f}", flush=True)
    for place in (sums, arrived, halo):
        shmem.shmem_free(place)
    shmem.shmem_finalize()


main()
