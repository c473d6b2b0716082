/* A gated layer from C: quantise two matrices, pack them, run tokens, and check the result against plain loops.
 *
 *     cargo build --release -p hammerhead-c
 *     cc -std=c11 -Wall -Icrates/c/include examples/c/dual_gemm.c -Ltarget/release -lhammerhead_c -lm \
 *        -Wl,-rpath,"$PWD/target/release" -o target/dual_gemm && target/dual_gemm
 */

#include <hammerhead.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { M = 3, N = 40, K = 64 };

/* Ends the program with the library's own words if a call failed. */
static void check(int32_t status) {
    if (status != HAMMERHEAD_OK) {
        fprintf(stderr, "hammerhead: %s\n", hammerhead_last_error());
        exit(1);
    }
}

/* A matrix of the caller's, in NVFP4. */
struct weight {
    uint8_t codes[N * K / 2];
    uint8_t scales[N * K / 16];
    float global_scale;
};

static void quantize(struct weight *weight, const float *values, size_t bytes) {
    check(hammerhead_quantize(HAMMERHEAD_F32, values, bytes, N, K, weight->codes, sizeof weight->codes, weight->scales,
                              sizeof weight->scales, &weight->global_scale));
}

static HammerheadMatrix matrix(const struct weight *weight) {
    return (HammerheadMatrix){.codes = weight->codes, .codes_bytes = sizeof weight->codes,
                              .scales = weight->scales, .scales_bytes = sizeof weight->scales,
                              .rows = N, .k = K, .global_scale = weight->global_scale};
}

/* One element of an NVFP4 matrix, from the format's definition. */
static double element(const struct weight *weight, int row, int k) {
    static const double e2m1[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6};
    int byte = weight->codes[(row * K + k) / 2], scale = weight->scales[(row * K + k) / 16];
    int exponent = scale >> 3 & 15, mantissa = scale & 7;
    double e4m3 = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return e2m1[k % 2 ? byte >> 4 : byte & 15] * e4m3 * weight->global_scale;
}

int main(void) {
    static float values[2][N * K], tokens[M * K], result[M * N];
    static struct weight gate, up;
    for (int i = 0; i < N * K; i++) {
        values[0][i] = sinf(0.37f * i);
        values[1][i] = cosf(0.11f * i);
    }
    for (int i = 0; i < M * K; i++) tokens[i] = sinf(0.05f * i);
    quantize(&gate, values[0], sizeof values[0]);
    quantize(&up, values[1], sizeof values[1]);

    HammerheadEngine *engine = NULL;
    HammerheadLayer *layer = NULL;
    check(hammerhead_engine_create(NULL, 0, NULL, &engine));
    HammerheadWeights weights = {.b1 = matrix(&gate), .b2 = matrix(&up)};
    check(hammerhead_layer_load(engine, &weights, 1, HAMMERHEAD_GATE_SILU, 0, &layer));

    HammerheadTokens a = {.element = HAMMERHEAD_F32, .values = tokens, .values_bytes = sizeof tokens,
                          .rows = M, .k = K, .global_scale = 1};
    HammerheadOutput c = {.element = HAMMERHEAD_F32, .values = result, .values_bytes = sizeof result};
    check(hammerhead_run(engine, layer, &a, &c, 1));

    double worst = 0, largest = 0;
    for (int row = 0; row < M; row++) {
        for (int n = 0; n < N; n++) {
            double g = 0, u = 0;
            for (int k = 0; k < K; k++) {
                g += tokens[row * K + k] * element(&gate, n, k);
                u += tokens[row * K + k] * element(&up, n, k);
            }
            double expected = g / (1 + exp(-g)) * u;
            worst = fmax(worst, fabs(result[row * N + n] - expected));
            largest = fmax(largest, fabs(expected));
        }
    }
    printf("hammerhead %s: %d tokens, off by at most %.1e of %.1f\n", hammerhead_version(), M, worst, largest);
    hammerhead_layer_destroy(layer);
    hammerhead_engine_destroy(engine);
    return worst <= 1e-5 * largest ? 0 : 1;
}
