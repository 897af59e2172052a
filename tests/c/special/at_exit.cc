/* SPDX-License-Identifier: Apache-2.0 */
/* The library is finalised by what runs at exit, which may have been arranged before shmem_init. argv[1] says what
 * that is: "atexit", a function registered with it; "object", the destructor of a static object; "destructor", a
 * function that the program runs after all of those. */
#include "../check.h"

static long arrived;
static const char *finaliser = "";

static void finalise(const char *who) {
    if (strcmp(who, finaliser) != 0) return;
    shmem_long_p(&arrived, 1 + me, next_pe);
    shmem_barrier_all();
    CHECK_EQ(arrived, 1 + previous_pe);
    printf("PE %d is finalised by %s\n", me, who);
    shmem_finalize();
}

static struct Object {
    ~Object() { finalise("object"); }
} object;

static void function(void) { finalise("atexit"); }

__attribute__((destructor)) static void destructor(void) { finalise("destructor"); }

int main(int argc, char **argv) {
    if (argc != 2 || atexit(function) != 0) return 2;
    finaliser = argv[1];
    check_start();
    return 0;
}
