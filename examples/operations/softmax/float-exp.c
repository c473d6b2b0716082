/* Softmax with every power computed once, in single precision. */
#include <math.h>

void softmax(const float *x, float *y, long rows, long columns) {
    for (long row = 0; row < rows; row++, x += columns, y += columns) {
        float largest = x[0];
        double whole = 0.0;
        for (long j = 1; j < columns; j++) largest = x[j] > largest ? x[j] : largest;
        for (long j = 0; j < columns; j++) whole += y[j] = expf(x[j] - largest);
        float part = (float)(1.0 / whole);
        for (long j = 0; j < columns; j++) y[j] *= part;
    }
}
