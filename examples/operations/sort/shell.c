/* Insertion in ever smaller steps, without a call per comparison. */
#include <string.h>

void sort(const float *keys, float *sorted, long count) {
    static const long steps[] = {59049, 29524, 9841, 3280, 1093, 364, 121, 40, 13, 4, 1};
    memcpy(sorted, keys, count * sizeof *keys);
    for (unsigned s = 0; s < sizeof steps / sizeof *steps; s++) {
        for (long step = steps[s], i = step; i < count; i++) {
            float key = sorted[i];
            long j = i;
            for (; j >= step && sorted[j - step] > key; j -= step) sorted[j] = sorted[j - step];
            sorted[j] = key;
        }
    }
}
