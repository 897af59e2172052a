# SPDX-License-Identifier: Apache-2.0
# In a copy of this system, with Open MPI's programs of the same names.
list() {
    find /usr/bin /usr/include /usr/lib/x86_64-linux-gnu /usr/share/man /usr/share/doc /usr/share/bash-completion \
        /etc/alternatives /var/lib/dpkg/alternatives /var/lib/dpkg/info -printf '%p %l\n' | sort
    dpkg-divert --list | sort
}
list > /tmp/before
dpkg -i /packages/libtombolo0_* /packages/libtombolo-dev_* /packages/tombolo-tools_*

oshrun --version | grep -q Tombolo
oshcc --showme:version | grep -q Tombolo
oshc++ --showme | grep -q 'include/tombolo'
# Who prefers Open MPI gets all of it, and may come back.
update-alternatives --set oshrun /usr/bin/oshrun.other
update-alternatives --set oshcc /usr/bin/oshcc.other
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 oshrun --version | grep -q 'Open MPI\|OpenRTE'
readlink -f /usr/bin/oshc++ | grep -q opal_wrapper
update-alternatives --auto oshrun
update-alternatives --auto oshcc
oshrun --version | grep -q Tombolo

cd /tmp
cp /usr/share/doc/libtombolo-dev/examples/ring.c .
if command -v pkg-config > /dev/null; then
    pkg-config --libs tombolo | grep -v rpath
    cc -O2 ring.c $(pkg-config --cflags --libs tombolo) -o by-pkg-config
    oshrun -n 2 ./by-pkg-config | grep -q 'all as they were sent'
fi
if command -v cmake > /dev/null; then
    printf '%s\n' 'cmake_minimum_required(VERSION 3.16)' 'project(app C)' 'find_package(Tombolo REQUIRED)' \
        'add_executable(app ring.c)' 'target_link_libraries(app PRIVATE Tombolo::Tombolo)' \
        'file(WRITE "${CMAKE_BINARY_DIR}/oshrun" "${Tombolo_OSHRUN}")' > CMakeLists.txt
    cmake -B build . > /dev/null && cmake --build build > /dev/null
    "$(cat build/oshrun)" -n 2 build/app | grep -q 'all as they were sent'
fi

# Installed over itself, as by an upgrade.
dpkg -i /packages/libtombolo0_* /packages/libtombolo-dev_* /packages/tombolo-tools_*
oshrun --version | grep -q Tombolo

dpkg -P libtombolo-dev tombolo-tools libtombolo0
list > /tmp/after
diff /tmp/before /tmp/after
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 oshrun --version | grep -q 'Open MPI\|OpenRTE'
echo "nothing is left"
