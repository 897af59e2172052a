/* A PE that neither calls the library nor is asked for anything sleeps: its threads wake only now and
 * then, and are there at once when somebody asks. */
#include "../check.h"

#include <dirent.h>
#include <unistd.h>

/* Seconds without a call, and wake-ups a second that are too many. A thread that looks every half
 * millisecond wakes 2,000 times. */
enum { SECONDS = 2, MANY = 200 };

static long here;

/* How often the threads of this process have gone to sleep so far. */
static long sleeps(void) {
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    long all = 0;
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        char path[300], line[200];
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = task->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (status == NULL) continue;
        long own;
        while (fgets(line, sizeof line, status) != NULL)
            if (sscanf(line, "voluntary_ctxt_switches: %ld", &own) == 1) all += own;
        fclose(status);
    }
    closedir(tasks);
    return all;
}

int main(void) {
    check_start();
    /* Connections are there, and waiting for them is over. */
    shmem_long_atomic_inc(&here, next_pe);
    shmem_barrier_all();
    sleep(1);
    long before = sleeps();
    sleep(SECONDS);
    long woken = sleeps() - before;
    if (woken > MANY * SECONDS) {
        fprintf(stderr, "PE %d woke %ld times in %d s\n", me, woken, SECONDS);
        check_failed(__FILE__, __LINE__, "an idle PE sleeps");
    }
    shmem_barrier_all();
    if (me % 2 == 0) {
        /* The others sleep on. */
        shmem_long_atomic_inc(&here, next_pe);
        CHECK(shmem_long_atomic_fetch(&here, next_pe) >= 1);
    } else {
        sleep(1);
    }
    shmem_barrier_all();
    CHECK_EQ(here, previous_pe % 2 == 0 ? 2 : 1);
    return check_done();
}
