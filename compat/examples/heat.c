/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heat spreading over a plate, on any number of PEs.
 *
 *   oshcc -O2 heat.c -o heat -lm && oshrun -n 4 ./heat [picture.png [points [steps]]]
 *
 * Each PE owns a band of rows of the plate. After every step it puts its first and last row into
 * the neighbours' halo rows together with a signal, and waits for theirs: one-sided, no barrier.
 * From time to time all PEs agree on the largest change by a reduction, and PE 0 gets some of the
 * temperatures of the others to draw them. At the end it writes a picture, and prints the sum of all
 * temperatures, which is the same on any number of PEs to the last bit, as is the picture.
 *
 * Temperatures of two steps alternate between two arrays. That makes the puts safe without any
 * answer: a neighbour's row for step t is sent after it has our signal of step t-1, which we send
 * after we have read the halo of step t-2, which lies in the array it now writes.
 */
#include <math.h>
#include <shmem.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCREEN_WIDTH = 64, SCREEN_HEIGHT = 20, REPORTS = 4 };

struct plate {
    int points;                /* per side */
    int me, npes;
    int first_row, rows;       /* of this PE */
    double *now, *next;        /* symmetric: rows + 2 halo rows of `points` each */
    double *sources;           /* of our rows: the temperature kept, negative where free */
    uint64_t *from_above, *from_below; /* symmetric: last step whose halo row has arrived */
};

static int first_row_of(const struct plate *p, int pe) {
    return (int)((long)p->points * pe / p->npes);
}

static int owner_of(const struct plate *p, int row) {
    int pe = (int)((long)row * p->npes / p->points);
    while (pe + 1 < p->npes && first_row_of(p, pe + 1) <= row) pe++;
    while (first_row_of(p, pe) > row) pe--;
    return pe;
}

/* The sources of heat, which keep their temperature; a negative number elsewhere. */
static double source(int points, int row, int column) {
    double x = (double)column / points, y = (double)row / points;
    double radius = hypot(x - 0.5, y - 0.5);
    int gap = x > 0.5 && fabs(y - 0.5) < 0.12;
    if (radius > 0.30 && radius < 0.33 && !gap) return 1.0; /* a hot ring with a gap */
    if (radius < 0.06) return 0.0;                          /* a cold core */
    if (row == 0 || row == points - 1 || column == 0 || column == points - 1) return 0.0;
    return -1.0;
}

static void fill(struct plate *p) {
    size_t row_bytes = (size_t)p->points * sizeof(double);
    memset(p->now, 0, (size_t)(p->rows + 2) * row_bytes);
    memset(p->next, 0, (size_t)(p->rows + 2) * row_bytes);
    for (int r = 0; r < p->rows; r++) {
        for (int c = 0; c < p->points; c++) {
            size_t at = (size_t)r * p->points + c;
            p->sources[at] = source(p->points, p->first_row + r, c);
            p->now[at + p->points] = fmax(0.0, p->sources[at]);
        }
    }
}

/* Puts our edge rows of `step` into the neighbours' halos and waits for theirs. */
static void exchange(struct plate *p, uint64_t step) {
    size_t n = (size_t)p->points;
    if (p->me > 0) {
        int above = p->me - 1;
        int rows = p->first_row - first_row_of(p, above);
        shmem_double_put_signal(p->now + (size_t)(rows + 1) * n, p->now + n, n, p->from_below,
                                step, SHMEM_SIGNAL_SET, above);
    }
    if (p->me + 1 < p->npes)
        shmem_double_put_signal(p->now, p->now + (size_t)p->rows * n, n, p->from_above, step,
                                SHMEM_SIGNAL_SET, p->me + 1);
    if (p->me > 0) shmem_signal_wait_until(p->from_above, SHMEM_CMP_GE, step);
    if (p->me + 1 < p->npes) shmem_signal_wait_until(p->from_below, SHMEM_CMP_GE, step);
}

/* One step; returns the largest change of a temperature here. */
static double advance(struct plate *p) {
    int n = p->points;
    double largest = 0.0;
    for (int r = 1; r <= p->rows; r++) {
        const double *row = p->now + (size_t)r * n;
        const double *sources = p->sources + (size_t)(r - 1) * n;
        double *out = p->next + (size_t)r * n;
        for (int c = 0; c < n; c++) {
            if (sources[c] >= 0.0) {
                out[c] = sources[c];
                continue;
            }
            out[c] = 0.25 * (row[c - n] + row[c + n] + row[c - 1] + row[c + 1]);
            double change = fabs(out[c] - row[c]);
            if (change > largest) largest = change;
        }
    }
    double *swap = p->now;
    p->now = p->next;
    p->next = swap;
    return largest;
}

/* PE 0: a row of the plate, wherever it is. */
static void get_row(const struct plate *p, int row, double *into) {
    int pe = owner_of(p, row);
    size_t at = (size_t)(row - first_row_of(p, pe) + 1) * p->points;
    shmem_double_get(into, p->now + at, (size_t)p->points, pe);
}

/* PE 0: the plate in characters, from a sample of its rows. */
static void draw(const struct plate *p) {
    static const char shades[] = " .:-=+*#%@";
    double *row = malloc((size_t)p->points * sizeof *row);
    if (!row) shmem_global_exit(1);
    for (int y = 0; y < SCREEN_HEIGHT; y++) {
        char line[SCREEN_WIDTH + 1];
        get_row(p, (int)((y + 0.5) * p->points / SCREEN_HEIGHT), row);
        for (int x = 0; x < SCREEN_WIDTH; x++) {
            double heat = row[(int)((x + 0.5) * p->points / SCREEN_WIDTH)];
            line[x] = shades[(int)(heat * 9.0 + 0.5)];
        }
        line[SCREEN_WIDTH] = 0;
        printf("  |%s|\n", line);
    }
    free(row);
}

/* PE 0: the sum of all temperatures, row by row, so that it does not depend on who has which. */
static double sum_of(const struct plate *p) {
    double *row = malloc((size_t)p->points * sizeof *row), sum = 0.0;
    if (!row) shmem_global_exit(1);
    for (int y = 0; y < p->points; y++) {
        get_row(p, y, row);
        for (int x = 0; x < p->points; x++) sum += row[x];
    }
    free(row);
    return sum;
}

/* --- a PNG without compression, so that nothing but C is needed ------------------------------ */

struct png {
    FILE *file;
    uint32_t crc, adler_a, adler_b;
};

static void png_bytes(struct png *png, const void *data, size_t count) {
    const unsigned char *bytes = data;
    for (size_t i = 0; i < count; i++) {
        png->crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            png->crc = (png->crc >> 1) ^ (png->crc & 1 ? 0xedb88320u : 0);
    }
    fwrite(bytes, 1, count, png->file);
}

static void png_word(struct png *png, uint32_t word) {
    unsigned char bytes[4] = {word >> 24, word >> 16 & 255, word >> 8 & 255, word & 255};
    png_bytes(png, bytes, 4);
}

static void png_begin(struct png *png, const char *kind, uint32_t length) {
    png_word(png, length);
    png->crc = 0xffffffffu;
    png_bytes(png, kind, 4);
}

static void png_end(struct png *png) { png_word(png, ~png->crc); }

/* One row of pixels as one stored block of the zlib stream. */
static void png_row(struct png *png, const unsigned char *row, size_t count, int last) {
    unsigned char head[5] = {(unsigned char)last, count & 255, count >> 8 & 255, ~count & 255,
                             ~count >> 8 & 255};
    for (size_t i = 0; i < count; i++) {
        png->adler_a = (png->adler_a + row[i]) % 65521;
        png->adler_b = (png->adler_b + png->adler_a) % 65521;
    }
    png_bytes(png, head, 5);
    png_bytes(png, row, count);
}

/* Black, red, yellow, white. */
static void colour(double heat, unsigned char *rgb) {
    for (int i = 0; i < 3; i++) {
        double part = fmin(1.0, fmax(0.0, heat * 3.0 - i));
        rgb[i] = (unsigned char)(part * 255.0 + 0.5);
    }
}

static int write_picture(const struct plate *p, const char *path) {
    uint32_t n = (uint32_t)p->points, row_bytes = 1 + 3 * n;
    struct png png = {fopen(path, "wb"), 0, 1, 0};
    double *row = malloc(n * sizeof *row);
    unsigned char *pixels = calloc(row_bytes, 1);
    if (!png.file || !row || !pixels) return 0;
    fwrite("\x89PNG\r\n\x1a\n", 1, 8, png.file);
    png_begin(&png, "IHDR", 13);
    png_word(&png, n);
    png_word(&png, n);
    png_bytes(&png, "\x08\x02\0\0", 5); /* 8 bits, RGB; deflate, no filter, no interlace */
    png_end(&png);
    png_begin(&png, "IDAT", 2 + n * (5 + row_bytes) + 4);
    png_bytes(&png, "\x78\x01", 2);
    for (uint32_t y = 0; y < n; y++) {
        get_row(p, (int)y, row);
        for (uint32_t x = 0; x < n; x++) colour(row[x], pixels + 1 + 3 * x);
        png_row(&png, pixels, row_bytes, y + 1 == n);
    }
    png_word(&png, png.adler_b << 16 | png.adler_a);
    png_end(&png);
    png_begin(&png, "IEND", 0);
    png_end(&png);
    free(row);
    free(pixels);
    return fclose(png.file) == 0;
}

/* --------------------------------------------------------------------------------------------- */

static void allocate(struct plate *p) {
    int most = (p->points + p->npes - 1) / p->npes;
    size_t count = (size_t)(most + 2) * p->points;
    p->first_row = first_row_of(p, p->me);
    p->rows = first_row_of(p, p->me + 1) - p->first_row;
    p->now = shmem_malloc(count * sizeof(double));
    p->next = shmem_malloc(count * sizeof(double));
    p->sources = malloc(count * sizeof(double));
    p->from_above = shmem_calloc(1, sizeof(uint64_t));
    p->from_below = shmem_calloc(1, sizeof(uint64_t));
    if (!p->now || !p->next || !p->sources || !p->from_above || !p->from_below) {
        fprintf(stderr, "PE %d: %d x %d points do not fit into the symmetric heap\n", p->me,
                p->points, p->points);
        shmem_global_exit(1);
    }
}

int main(int argc, char **argv) {
    static double change, largest_change; /* symmetric, as all static data */
    const char *picture = argc > 1 ? argv[1] : "heat.png";
    struct plate p = {0};
    shmem_init();
    p.me = shmem_my_pe();
    p.npes = shmem_n_pes();
    p.points = argc > 2 ? atoi(argv[2]) : 384;
    int steps = argc > 3 ? atoi(argv[3]) : 8000;
    if (p.points < p.npes || p.points < 16 || p.points > 20000 || steps < 1) {
        if (p.me == 0)
            fprintf(stderr, "heat: 16 to 20000 points, one per PE at least, and 1 step or more\n");
        shmem_global_exit(2);
    }
    allocate(&p);
    fill(&p);
    shmem_barrier_all(); /* no halo row may arrive before its place is cleared */
    if (p.me == 0)
        printf("%d x %d points on %d PEs, %d of them sharing memory with PE 0\n", p.points,
               p.points, p.npes, shmem_team_n_pes(SHMEM_TEAM_SHARED));

    for (int step = 1; step <= steps; step++) {
        exchange(&p, (uint64_t)step);
        change = advance(&p);
        if (step % ((steps + REPORTS - 1) / REPORTS) == 0 || step == steps) {
            shmem_double_max_reduce(SHMEM_TEAM_WORLD, &largest_change, &change, 1);
            if (p.me == 0) {
                printf("step %d, largest change %.1e\n", step, largest_change);
                draw(&p);
                fflush(stdout);
            }
            shmem_barrier_all(); /* PE 0 has drawn this step before anyone makes the next */
        }
    }
    int written = 1;
    if (p.me == 0) {
        written = write_picture(&p, picture);
        if (written) printf("picture written to %s\n", picture);
        else fprintf(stderr, "heat: cannot write %s\n", picture);
        printf("heat: %d points, %d steps, sum %.9f\n", p.points, steps, sum_of(&p));
    }
    shmem_barrier_all(); /* the others' temperatures are needed until here */
    shmem_free(p.now < p.next ? p.now : p.next);
    shmem_free(p.now < p.next ? p.next : p.now);
    shmem_free(p.from_above);
    shmem_free(p.from_below);
    free(p.sources);
    shmem_finalize();
    return written ? 0 : 1;
}
