/*
 * Makes src/kernel/lloyd_tables.c: Lloyd-Max quantisers of the unit normal distribution.
 *
 *   lloyd_max > src/kernel/lloyd_tables.c
 *
 * A quantiser of least mean squared error has two properties: each level is the mean of its cell, and each threshold is
 * the middle of two levels. The distribution is symmetric, so only the positive half is computed, from zero outwards:
 * the innermost level determines the end of its cell (whose mean it must be), that end the next level, and so on. The
 * innermost level itself is found by bisection: too large, and there is no cell for one of the levels that follow it;
 * too small, and the last one lies below the mean of all that is left.
 *
 * Levels are then rounded to integers, the outermost to 127 (2047 with 8 bits, whose levels lie closer), because
 * attention sums integers; thresholds are the middles of the rounded levels.
 *
 * Sources: Max, Quantizing for minimum distortion (1960); Lloyd, Least squares quantization in PCM (1982).
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { HALF_MAX = 128, STEPS = 80 };

#define FAR 40.0 /* nothing of the distribution is beyond */

static double density(double x) { return exp(-0.5 * x * x) * 0.39894228040143267794; }
static double tail(double x) { return 0.5 * erfc(x * 0.70710678118654752440); }
static double mean(double from, double to) { return (density(from) - density(to)) / (tail(from) - tail(to)); }

/* The end of the cell that begins at `from` and has this mean. */
static double cell_end(double from, double level)
{
    double low = level;
    double high = FAR;
    for (int i = 0; i < STEPS; i++) {
        const double middle = 0.5 * (low + high);
        *(mean(from, middle) < level ? &low : &high) = middle;
    }
    return 0.5 * (low + high);
}

/* The n positive levels that follow from the first; false when it is too large. */
static bool follow(double first, unsigned n, double *levels)
{
    double from = 0.0;
    levels[0] = first;
    for (unsigned i = 0; i + 1 < n; i++) {
        if (levels[i] >= mean(from, FAR)) {
            return false;
        }
        from = cell_end(from, levels[i]);
        levels[i + 1] = 2.0 * from - levels[i];
    }
    return levels[n - 1] < mean(from, FAR);
}

static void positive_levels(unsigned n, double *levels)
{
    double low = 0.0;
    double high = mean(0.0, FAR);
    for (int i = 0; i < STEPS; i++) {
        const double middle = 0.5 * (low + high);
        *(follow(middle, n, levels) ? &low : &high) = middle;
    }
    (void)follow(low, n, levels);
}

static void print_table(unsigned bits)
{
    double levels[HALF_MAX];
    const unsigned half = 1u << (bits - 1);
    positive_levels(half, levels);
    const int32_t centre = bits == 8 ? 2047 : 127;
    const float unit = (float)(levels[half - 1] / centre);
    int32_t integers[2 * HALF_MAX];
    for (unsigned i = 0; i < half; i++) {
        const int32_t level = (int32_t)lrint(levels[i] / (double)unit);
        integers[half + i] = centre + level;
        integers[half - 1 - i] = centre - level;
    }
    printf("static const uint16_t levels_%u[%u] = {", bits, 2 * half);
    for (unsigned i = 0; i < 2 * half; i++) {
        printf("%s%d,", i % 16 == 0 ? "\n    " : " ", integers[i]);
    }
    printf("\n};\n\n");
    if (bits < 8) {
        printf("static const uint8_t bytes_%u[%u] = {", bits, bits == 5 ? 32 : 16);
        for (unsigned i = 0; i < 2 * half; i++) {
            printf("%s%d,", i % 16 == 0 ? "\n    " : " ", integers[i]);
        }
        printf("\n};\n\n");
    }
    printf("static const float thresholds_%u[%u] = {", bits, 2 * half - 1);
    for (unsigned i = 0; i + 1 < 2 * half; i++) {
        const double middle = 0.5 * (integers[i] + integers[i + 1]) - centre;
        printf("%s%af,", i % 6 == 0 ? "\n    " : " ", (double)(float)(middle * (double)unit));
    }
    printf("\n};\n\n");
    printf("static const firni_lloyd lloyd_%u = {\n    .unit = %af,\n    .centre = %d,\n", bits, (double)unit, centre);
    if (bits < 8) {
        printf("    .bytes = bytes_%u,\n", bits);
    }
    printf("    .levels = levels_%u,\n    .thresholds = thresholds_%u,\n};\n\n", bits, bits);
}

int main(void)
{
    static const unsigned widths[] = { 2, 3, 4, 5, 8 };
    printf("/*\n * Made by tools/lloyd_max.c; not to be edited. See lloyd_tables.h.\n */\n"
           "#include <assert.h>\n\n#include \"kernel/lloyd_tables.h\"\n\n");
    for (unsigned i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        print_table(widths[i]);
    }
    printf("const firni_lloyd *firni_lloyd_of(uint32_t bits)\n{\n    switch (bits) {\n");
    for (unsigned i = 0; i + 1 < sizeof widths / sizeof widths[0]; i++) {
        printf("    case %u: return &lloyd_%u;\n", widths[i], widths[i]);
    }
    printf("    default: assert(bits == 8); return &lloyd_8;\n    }\n}\n");
    return 0;
}
