/* Softmax as the formula says it, in double precision. */
#include <math.h>

void softmax(const float *x, float *y, long rows, long columns) {
    for (long row = 0; row < rows; row++, x += columns, y += columns) {
        double largest = x[0], whole = 0.0;
        for (long j = 1; j < columns; j++) largest = x[j] > largest ? x[j] : largest;
        for (long j = 0; j < columns; j++) whole += exp(x[j] - largest);
        for (long j = 0; j < columns; j++) y[j] = (float)(exp(x[j] - largest) / whole);
    }
}
