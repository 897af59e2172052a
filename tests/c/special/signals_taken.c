/* SPDX-License-Identifier: Apache-2.0 */
/* A program blocks a signal in all of its threads, after it has initialised the library, and takes it by sigwait. No
 * thread of the library takes it before. */
#define _GNU_SOURCE
#include "../check.h"
#include <signal.h>
#include <unistd.h>

int main(void) {
    check_start();
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    CHECK_EQ(sigprocmask(SIG_BLOCK, &signals, NULL), 0);
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(kill(getpid(), SIGUSR1), 0);
        int taken = 0;
        CHECK_EQ(sigwait(&signals, &taken), 0);
        CHECK_EQ(taken, SIGUSR1);
    }
    return check_done();
}
