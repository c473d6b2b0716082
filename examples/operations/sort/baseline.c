/* The library's sort. */
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

void sort(const float *keys, float *sorted, long count) {
    memcpy(sorted, keys, count * sizeof *keys);
    qsort(sorted, count, sizeof *sorted, compare);
}
