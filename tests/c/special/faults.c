/* SPDX-License-Identifier: Apache-2.0 */
/* One way of going wrong, or of coming near it, named by argv[1]; see tests/faults.rs. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../check.h"

static int is(const char *word, const char *other) { return strcmp(word, other) == 0; }

/* Copies by the kernel: the library calls these instead of the C library's, so they can be counted. */
static long copies;

ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long n,
                         const struct iovec *remote, unsigned long m, unsigned long flags) {
    copies++;
    return syscall(SYS_process_vm_readv, pid, local, n, remote, m, flags);
}

ssize_t process_vm_writev(pid_t pid, const struct iovec *local, unsigned long n,
                          const struct iovec *remote, unsigned long m, unsigned long flags) {
    copies++;
    return syscall(SYS_process_vm_writev, pid, local, n, remote, m, flags);
}

/* Whether the environment asks for this fault, of PE 1 under oshrun. */
static int is_asked(const char *variable) {
    const char *pe = getenv("PMI_RANK");
    return getenv(variable) != NULL && pe != NULL && is(pe, "1");
}

/* The library asks here how much memory the machine has. */
int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    if (is(path, "/proc/meminfo") && is_asked("FAULTS_MEMORY")) path = getenv("FAULTS_MEMORY");
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

/* It gets its memory by way of a socket without a name in the file system. */
int connect(int socket, __CONST_SOCKADDR_ARG address, socklen_t len) {
    const struct sockaddr *to = address.__sockaddr__;
    if (to->sa_family == AF_UNIX && to->sa_data[0] == 0 && is_asked("FAULTS_CONNECT")) {
        errno = ENOBUFS;
        return -1;
    }
    return (int)syscall(SYS_connect, socket, to, len);
}

/* How often the library has let other processes trace this one. */
static long permissions;

int prctl(int option, ...) {
    va_list more;
    va_start(more, option);
    unsigned long arg[4];
    for (int i = 0; i < 4; i++) arg[i] = va_arg(more, unsigned long);
    va_end(more);
    if (option == PR_SET_PTRACER && arg[0] != 0) permissions++;
    return (int)syscall(SYS_prctl, option, arg[0], arg[1], arg[2], arg[3]);
}

/* Copies since the last call. */
static long counted(void) {
    long count = copies;
    copies = 0;
    return count;
}

/* Says how many copies by the kernel each scalar and small operation took. */
static void small_operations(void) {
    static short variable;
    long *heap = check_alloc(16, sizeof *heap), local[2] = {1, 2};
    short *small = (short *)heap;
    CHECK(shmem_ptr(heap, next_pe) != NULL && shmem_ptr(&variable, next_pe) != NULL);
    counted();
    if (me == 0) {
        printf("to oneself:");
        shmem_short_p(small, 1, me);
        (void)shmem_long_g(heap, me);
        printf(" %ld", counted());
        printf("\nheap:");
        shmem_short_p(small, 3, next_pe);
        printf(" p %ld", counted());
        shmem_putmem(heap, local, 2, next_pe);
        printf(" put %ld", counted());
        CHECK_EQ(shmem_short_g(small, next_pe), 1);
        CHECK_EQ(shmem_long_g(heap + 8, next_pe), 0);
        printf(" g %ld", counted());
        shmem_getmem(local, heap, 8, next_pe);
        printf(" get %ld", counted());
        shmem_long_atomic_inc(heap + 4, next_pe);
        printf(" amo %ld\n", counted());
        printf("static:");
        shmem_short_p(&variable, 5, next_pe);
        printf(" p %ld", counted());
        CHECK_EQ(shmem_short_g(&variable, next_pe), 5);
        printf(" g %ld\n", counted());
    }
    shmem_barrier_all();
}

static void *work(void *unused) {
    (void)unused;
    usleep(100000);
    printf("PE %d: the thread has ended\n", me);
    fflush(stdout);
    return NULL;
}

/* Has the standard input locked: nobody types a line. */
static void *read_line(void *unused) {
    (void)unused;
    (void)getchar();
    return NULL;
}

/* The first descriptor of a memory file of this name, or -1. */
static int memory_file(const char *name) {
    for (int fd = 0; fd < 100; fd++) {
        char link[32], target[64] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (readlink(link, target, sizeof target - 1) > 0 && strstr(target, name)) return fd;
    }
    return -1;
}

static void leave(const char *how) {
    if (is(how, "_exit")) _exit(0);
    if (is(how, "quick_exit")) quick_exit(0);
    if (is(how, "exec")) execlp("sleep", "sleep", "0.8", (char *)NULL);
    if (is(how, "exec-long")) execlp("sleep", "sleep", "50", (char *)NULL);
    if (is(how, "_exit-3")) _exit(3);
    abort();
}

static volatile sig_atomic_t interrupted;

static void note_interrupt(int signal) { interrupted = signal; }

/* PE 0 needs longer to save its state than the links of hosts that are gone are believed in. */
static void save_state(void) {
    if (me == 0) signal(SIGINT, note_interrupt);
    shmem_barrier_all();
    /* As a terminal does. */
    if (me == 1) kill(0, SIGINT);
    while (!interrupted) usleep(1000);
    for (int i = 0; i < 30; i++) usleep(100000);
    puts("saved");
    fflush(stdout);
    _exit(0);
}

int main(int argc, char **argv) {
    const char *which = argc > 1 ? argv[1] : "", *argument = argc > 2 ? argv[2] : "";
    check_start();
#define CASE(NAME) if (is(which, NAME))
    CASE("small-operations") small_operations();
    CASE("save-state") save_state();
    CASE("exit-early") {
        if (me == 1) exit(0);
        shmem_barrier_all();
        shmem_barrier_all();
    }
    CASE("exit-last") {
        if (me == 1) exit(0);
        shmem_barrier_all();
        shmem_finalize();
        return 0;
    }
    CASE("die-unseen") {
        if (me == 1) {
            /* The launcher, both processes of it, hears of it a second later than PE 0, whose connection ends at once. */
            char resume[80];
            snprintf(resume, sizeof resume, "(sleep 1; kill -CONT %d; kill -CONT 0) &", (int)getppid());
            CHECK_EQ(system(resume), 0);
            CHECK_EQ(kill(getppid(), SIGSTOP), 0);
            raise(SIGKILL);
        }
        for (;;) shmem_barrier_all();
    }
    CASE("finalize-early") {
        if (me == 1) {
            shmem_finalize();
            return 0;
        }
        shmem_barrier_all();
        shmem_barrier_all();
    }
    CASE("finalize-twice") {
        shmem_finalize();
        shmem_finalize();
        return 0;
    }
    CASE("leave") {
        shmem_finalize();
        leave(argument);
    }
    CASE("leave-second") {
        shmem_finalize();
        shmem_init();
        leave(argument);
    }
    CASE("finalize-late") {
        if (me == 1) sleep(30);
    }
    CASE("finalize-alone") {
        if (me == 1) sleep(30);
        shmem_finalize();
        return 0;
    }
    CASE("malloc") {
        void *block = shmem_malloc(strtoull(argument, NULL, 10));
        void *again = shmem_malloc(strtoull(argument, NULL, 10));
        printf("PE %d: %s %s\n", me, block ? "block" : "null", again ? "block" : "null");
    }
    CASE("pe-past-end") {
        long *heap = check_alloc(16, sizeof *heap);
        shmem_long_p(heap, 1, npes + atoi(argument));
        (void)shmem_long_g(heap, npes + atoi(argument));
        puts("not noticed");
    }
    CASE("broadcast-in-place") {
        long *heap = check_alloc(16, sizeof *heap);
        for (int round = 0; round < 3; round++) {
            heap[0] = me + 7;
            shmem_barrier_all();
            shmem_long_broadcast(SHMEM_TEAM_WORLD, heap, heap, 1, 0);
            CHECK_EQ(heap[0], 7);
            shmem_barrier_all();
        }
    }
    CASE("collect-too-small") {
        long *source = check_alloc(4, sizeof *source), *dest = shmem_malloc(3 * sizeof *dest);
        printf("PE %d: dest %p\n", me, (void *)dest);
        fflush(stdout);
        shmem_barrier_all();
        shmem_long_collect(SHMEM_TEAM_WORLD, dest, source, 2);
    }
    CASE("outside-of-set") {
        static long flags[SHMEM_REDUCE_SYNC_SIZE], work[SHMEM_REDUCE_MIN_WRKDATA_SIZE], sum, one = 1;
        for (int i = 0; i < SHMEM_REDUCE_SYNC_SIZE; i++) flags[i] = SHMEM_SYNC_VALUE;
        shmem_barrier_all();
        for (int i = 0; i < 2; i++) {
            shmem_long_sum_to_all(&sum, &one, 1, 0, 1, 2, work, flags);
            shmem_barrier_all();
        }
        CHECK_EQ(sum, me % 2 == 0 ? 2 : 0);
    }
    CASE("clear-free") {
        static long lock;
        shmem_clear_lock(&lock);
    }
    CASE("clear-twice") {
        static long lock;
        shmem_set_lock(&lock);
        shmem_clear_lock(&lock);
        shmem_clear_lock(&lock);
    }
    CASE("clear-other") {
        static long lock;
        if (shmem_my_pe() == 0)
            shmem_set_lock(&lock);
        shmem_barrier_all();
        if (shmem_my_pe() == 1)
            shmem_clear_lock(&lock);
        shmem_barrier_all();
    }
    CASE("destroy-twice") {
        shmem_ctx_t ctx;
        CHECK_EQ(shmem_ctx_create(0, &ctx), 0);
        shmem_ctx_destroy(ctx);
        shmem_ctx_destroy(ctx);
    }
    CASE("pthread-exit") {
        pthread_t thread;
        pthread_create(&thread, NULL, work, NULL);
        pthread_detach(thread);
        pthread_exit(NULL);
    }
    CASE("global-exit") {
        static char words[1 << 16];
        char *heap = check_alloc(sizeof words, 1);
        if (me == 0) {
            usleep(20000);
            shmem_global_exit(7);
        }
        for (;;) {
            shmem_putmem(heap, words, sizeof words, 0);
            shmem_getmem(words, heap, sizeof words, 0);
            shmem_putmem_nbi(heap, words, sizeof words, 0);
            shmem_quiet();
        }
    }
    CASE("reading") {
        int ends[2];
        pthread_t reader;
        CHECK_EQ(pipe(ends), 0);
        CHECK_EQ(dup2(ends[0], 0), 0);
        CHECK_EQ(pthread_create(&reader, NULL, read_line, NULL), 0);
        while (ftrylockfile(stdin) == 0) funlockfile(stdin);
        printf("output of PE %d before the end\n", me); /* not flushed: the error does */
        shmem_sync_all();
        shmem_long_wait_until((long *)check_alloc(1, sizeof(long)), -1, 0);
    }
    CASE("tracers") printf("PE %d: %ld\n", me, permissions);
    CASE("shrink") {
        int fd = memory_file(argument);
        CHECK(fd >= 0);
        CHECK_EQ(ftruncate(fd, 4096), -1);
        CHECK_EQ(errno, EPERM);
    }
    return check_done();
}
