/* SPDX-License-Identifier: Apache-2.0 */
/* The exploration of patterns in the paper on SHMEM+ (Aggarwal and others): a gather by get, by put and in a tree,
 * and a search for images by their auto-correlograms whose result is gathered in these ways. */
#include "bench.h"

enum { TIMES = 5, LARGEST = 1 << 18, IMAGES = 24, SIDE = 48, COLOURS = 16, FAR = 4, ROUNDS = 10 };
enum { BY_GET, BY_PUT, BY_TREE, WAYS };
static const char *const NAMES[WAYS] = {"get", "put", "tree"};

static int me, n;
static char *blocks; /* symmetric: one block of each PE, that of PE p at p */

static void gather(int way, size_t bytes)
{
    char *own = blocks + (size_t)me * bytes;
    if (way == BY_GET) {
        shmem_barrier_all();
        for (int pe = 1; pe < n && me == 0; pe++)
            shmem_getmem_nbi(blocks + (size_t)pe * bytes, blocks + (size_t)pe * bytes, bytes, pe);
        shmem_quiet();
    } else if (way == BY_PUT) {
        if (me != 0)
            shmem_putmem(own, own, bytes, 0);
        shmem_barrier_all();
    } else {
        for (int step = 1; step < n; step *= 2) {
            if (me % (2 * step) == step) {
                int have = n - me < step ? n - me : step;
                shmem_putmem(own, own, (size_t)have * bytes, me - step);
            }
            shmem_barrier_all();
        }
    }
    shmem_barrier_all();
}

static void check(size_t bytes, int round)
{
    for (int pe = 0; pe < n && me == 0; pe++)
        for (size_t i = 0; i < bytes; i += bytes > 64 ? bytes / 64 : 1)
            if (blocks[(size_t)pe * bytes + i] != (char)(pe + round + 1))
                fail("the block of PE %d is not that of round %d", pe, round);
}

static uint32_t noise(uint32_t x)
{
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* How often a colour is found again at each distance to the right and below, for each image of this PE. */
static void correlogram(int image, float *features)
{
    static unsigned char pixel[SIDE][SIDE];
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            pixel[y][x] = (unsigned char)((noise((uint32_t)(image * 7919 + x / 3 * 31 + y / 3)) >> 3) % COLOURS);
    static float count[COLOURS];
    memset(count, 0, sizeof count);
    memset(features, 0, sizeof(float) * COLOURS * FAR);
    for (int y = 0; y + FAR < SIDE; y++)
        for (int x = 0; x + FAR < SIDE; x++) {
            int colour = pixel[y][x];
            count[colour]++;
            for (int d = 1; d <= FAR; d++)
                features[colour * FAR + d - 1] += (pixel[y][x + d] == colour) + (pixel[y + d][x] == colour);
        }
    for (int i = 0; i < COLOURS * FAR; i++)
        features[i] /= 2 * count[i / FAR] + 1;
}

/* The image among those of all PEs that is most like the one asked for: features are gathered at PE 0. */
static int search(int way, int asked)
{
    float *own = (float *)(blocks + (size_t)me * IMAGES * COLOURS * FAR * sizeof(float)), wanted[COLOURS * FAR];
    for (int image = 0; image < IMAGES; image++)
        correlogram(me * IMAGES + image, own + image * COLOURS * FAR);
    correlogram(asked, wanted);
    gather(way, IMAGES * COLOURS * FAR * sizeof(float));
    int best = -1;
    float least = 1e30f;
    for (int image = 0; image < n * IMAGES && me == 0; image++) {
        float distance = 0, *features = (float *)blocks + image * COLOURS * FAR;
        for (int i = 0; i < COLOURS * FAR; i++) {
            float difference = features[i] - wanted[i];
            distance += difference < 0 ? -difference : difference;
        }
        if (distance < least)
            least = distance, best = image;
    }
    return best;
}

int main(void)
{
    static double us[WAYS][TIMES], ms[WAYS][TIMES];
    shmem_init();
    me = shmem_my_pe(), n = shmem_n_pes();
    blocks = symmetric((size_t)n * LARGEST);
    char name[64];
    for (size_t bytes = 64; bytes <= LARGEST; bytes *= 16) {
        for (int time = -1; time < TIMES; time++)
            for (int way = 0; way < WAYS; way++) {
                memset(blocks, 0, (size_t)n * bytes);
                memset(blocks + (size_t)me * bytes, me + way + 1, bytes);
                shmem_barrier_all();
                double begun = now_ns();
                int rounds = time < 0 ? 1 : bytes > 65536 ? 4 : ROUNDS;
                for (int round = 0; round < rounds; round++)
                    gather(way, bytes);
                if (time >= 0)
                    us[way][time] = (now_ns() - begun) / 1e3 / rounds;
                check(bytes, way);
                shmem_barrier_all();
            }
        for (int way = 0; way < WAYS && me == 0; way++) {
            snprintf(name, sizeof name, "gather.%s_%zu", NAMES[way], bytes);
            print_samples(name, "us", us[way], TIMES);
        }
    }
    for (int time = 0; time < TIMES; time++)
        for (int way = 0; way < WAYS; way++) {
            shmem_barrier_all();
            int asked = (time * 5 + 3) % (n * IMAGES);
            double begun = now_ns();
            int found = search(way, asked);
            shmem_barrier_all();
            ms[way][time] = (now_ns() - begun) / 1e6;
            if (me == 0 && found != asked)
                fail("image %d was found in place of %d", found, asked);
        }
    for (int way = 0; way < WAYS && me == 0; way++) {
        snprintf(name, sizeof name, "images.%s", NAMES[way]);
        print_samples(name, "ms", ms[way], TIMES);
    }
    /* What a tuned library does better: puts by size. */
    char *to = blocks, *from = malloc(LARGEST);
    memset(from, 1, LARGEST);
    for (size_t bytes = 64; bytes <= LARGEST; bytes *= 16) {
        for (int time = 0; time < TIMES; time++) {
            int count = bytes > 4096 ? 50 : 500;
            shmem_barrier_all();
            if (me == 0) {
                double begun = now_ns();
                for (int i = 0; i < count; i++)
                    shmem_putmem(to, from, bytes, n - 1);
                shmem_quiet();
                us[0][time] = (now_ns() - begun) / 1e3 / count;
            }
            shmem_barrier_all();
        }
        if (me == 0) {
            snprintf(name, sizeof name, "tuned.put_%zu", bytes);
            print_samples(name, "us", us[0], TIMES);
        }
    }
    shmem_finalize();
    return 0;
}
