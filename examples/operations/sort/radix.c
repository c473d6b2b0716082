/* Three passes over 11 bits each, on keys whose order as whole numbers is that of the numbers they stand for. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint32_t ordered(uint32_t bits) { return bits & 0x80000000u ? ~bits : bits | 0x80000000u; }
static uint32_t number(uint32_t order) { return order & 0x80000000u ? order & 0x7fffffffu : ~order; }

void sort(const float *keys, float *sorted, long count) {
    uint32_t *from = malloc(2 * count * sizeof *from), *to = from + count, *whole = from;
    static uint32_t starts[3][2048];
    memset(starts, 0, sizeof starts);
    memcpy(from, keys, count * sizeof *from);
    for (long i = 0; i < count; i++) {
        uint32_t key = from[i] = ordered(from[i]);
        for (int pass = 0; pass < 3; pass++) starts[pass][key >> 11 * pass & 2047]++;
    }
    for (int pass = 0; pass < 3; pass++) {
        uint32_t start = 0;
        for (int digit = 0; digit < 2048; digit++) {
            uint32_t next = start + starts[pass][digit];
            starts[pass][digit] = start;
            start = next;
        }
        for (long i = 0; i < count; i++) to[starts[pass][from[i] >> 11 * pass & 2047]++] = from[i];
        uint32_t *other = from;
        from = to;
        to = other;
    }
    for (long i = 0; i < count; i++) {
        uint32_t bits = number(from[i]);
        memcpy(sorted + i, &bits, sizeof bits);
    }
    free(whole);
}
