# SPDX-License-Identifier: Apache-2.0
# In a root without Open MPI: all packages at once, so that dpkg finds every dependency that is missing.
list() { find /usr /etc /var/lib/dpkg/alternatives /var/lib/dpkg/info | sort; }
list > /tmp/before
dpkg -i /packages/*.deb

cat > /tmp/app.c <<'END'
#include <shmem.h>
#include <stdio.h>
int main(void)
{
    static long sum;
    shmem_init();
    shmem_long_atomic_add(&sum, shmem_my_pe() + 1, 0);
    shmem_barrier_all();
    if (shmem_my_pe() == 0) printf("%ld\n", sum);
    shmem_finalize();
    return 0;
}
END
cd /tmp
oshcc -O2 app.c -o app
[ "$(oshrun -n 3 ./app)" = 6 ]
oshcc --static-tombolo app.c -o contained
[ "$(oshrun -n 2 ./contained)" = 3 ]
cc -I/usr/include/tombolo -c app.c && cc app.o -L/usr/lib/x86_64-linux-gnu/tombolo -lsma -o other
[ "$(./other)" = 1 ]
oshinfo | grep -q "installed in.*/usr$"
oshrun --version | grep -q Tombolo
oshperf --help > /dev/null
readlink -f /usr/bin/oshrun | grep -qx /usr/bin/oshrun.tombolo
[ ! -e /usr/share/doc/libtombolo-dev/html/LICENSE ] # every system has it
[ -e /usr/share/man/man3/shmem_putmem.3.gz ] && [ -e /usr/share/man/man1/oshrun.1.gz ]

dpkg -P libtombolo0-dbgsym libtombolo-dev-dbgsym tombolo-tools-dbgsym libtombolo-dev tombolo-tools libtombolo0
list > /tmp/after
diff /tmp/before /tmp/after
echo "nothing is left"
