# SPDX-License-Identifier: Apache-2.0
"""The library from Python, through ctypes: the same sum as the C program of these tests.

A static variable of an interpreter is nobody's to share, so the sum is on the symmetric heap.
"""

import ctypes
import subprocess
import sys

shmem = ctypes.CDLL(sys.argv[1])
shmem.shmem_calloc.restype = ctypes.c_void_p
shmem.shmem_calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
shmem.shmem_long_atomic_add.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_int]

shmem.shmem_init()
total = shmem.shmem_calloc(1, ctypes.sizeof(ctypes.c_long))
shmem.shmem_long_atomic_add(total, shmem.shmem_my_pe() + 1, 0)
shmem.shmem_barrier_all()
# A child process must find the interpreter's static data as it was.
subprocess.run([sys.executable, "-c", ""], check=True)
if shmem.shmem_my_pe() == 0:
    print(ctypes.c_long.from_address(total).value)
shmem.shmem_finalize()
