/* Softmax with powers by a polynomial, so that a compiler can do several at a time: e^x = 2^n · e^r with |r| ≤ ln 2 / 2. */
#include <stdint.h>
#include <string.h>

static inline float power(float x) {
    float n = __builtin_rintf(x * 1.44269504f);
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    /* Below 2^-126 nothing is left that single precision could hold. */
    uint32_t bits = n < -126.0f ? 0 : (uint32_t)((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

void softmax(const float *x, float *y, long rows, long columns) {
    for (long row = 0; row < rows; row++, x += columns, y += columns) {
        float largest = x[0], sums[16] = {0};
        for (long j = 1; j < columns; j++) largest = x[j] > largest ? x[j] : largest;
        for (long j = 0; j < columns; j++) y[j] = power(x[j] - largest);
        for (long j = 0; j < columns; j++) sums[j & 15] += y[j];
        double whole = 0.0;
        for (int lane = 0; lane < 16; lane++) whole += sums[lane];
        float part = (float)(1.0 / whole);
        for (long j = 0; j < columns; j++) y[j] *= part;
    }
}
