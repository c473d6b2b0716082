/* A layer of experts from C: quantise the experts, pack them, run tokens by a router's logits and by given ids, and check both against plain loops.
 *
 *     cargo build --release -p hammerhead-c
 *     cc -std=c11 -Wall -Icrates/c/include examples/c/experts.c -Ltarget/release -lhammerhead_c -lm \
 *        -Wl,-rpath,"$PWD/target/release" -o target/experts && target/experts
 */

#include <hammerhead.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { T = 5, E = 4, TOP = 2, K = 64, N = 48 };

/* Ends the program with the library's own words if a call failed. */
static void check(int32_t status) {
    if (status != HAMMERHEAD_OK) {
        fprintf(stderr, "hammerhead: %s\n", hammerhead_last_error());
        exit(1);
    }
}

/* A matrix of the caller's, in NVFP4; of gate, up and down the sizes are the same. */
struct weight {
    uint8_t codes[N * K / 2];
    uint8_t scales[N * K / 16];
    float global_scale;
    size_t rows, k;
};

static void quantize(struct weight *weight, size_t rows, size_t k, float step) {
    static float values[N * K];
    for (int i = 0; i < N * K; i++) values[i] = 0.3f * sinf(step * i);
    weight->rows = rows, weight->k = k;
    check(hammerhead_quantize(HAMMERHEAD_F32, values, sizeof values, rows, k, weight->codes, sizeof weight->codes, weight->scales,
                              sizeof weight->scales, &weight->global_scale));
}

static HammerheadMatrix matrix(const struct weight *weight) {
    return (HammerheadMatrix){.codes = weight->codes, .codes_bytes = sizeof weight->codes,
                              .scales = weight->scales, .scales_bytes = sizeof weight->scales,
                              .rows = weight->rows, .k = weight->k, .global_scale = weight->global_scale};
}

/* One element of an NVFP4 matrix, from the format's definition. */
static double element(const struct weight *weight, size_t row, size_t k) {
    static const double e2m1[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6};
    int byte = weight->codes[(row * weight->k + k) / 2], scale = weight->scales[(row * weight->k + k) / 16];
    int exponent = scale >> 3 & 15, mantissa = scale & 7;
    double e4m3 = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return e2m1[k % 2 ? byte >> 4 : byte & 15] * e4m3 * weight->global_scale;
}

static double product(const struct weight *weight, size_t row, const double *x) {
    double sum = 0;
    for (size_t k = 0; k < weight->k; k++) sum += x[k] * element(weight, row, k);
    return sum;
}

static struct weight b1[E], b2[E], down[E];
static float down_bias[K];

/* Adds an expert's result, times a weight, to y. */
static void add(int expert, const double *x, double by, double *y) {
    double h[N];
    for (int n = 0; n < N; n++) {
        double g = product(&b1[expert], n, x);
        h[n] = g / (1 + exp(-g)) * product(&b2[expert], n, x);
    }
    for (int k = 0; k < K; k++) y[k] += by * (product(&down[expert], k, h) + down_bias[k]);
}

/* The two largest logits, and their softmax. */
static void route(const float *logits, int64_t ids[TOP], float weights[TOP]) {
    ids[0] = 0;
    for (int e = 1; e < E; e++) ids[0] = logits[e] > logits[ids[0]] ? e : ids[0];
    ids[1] = ids[0] == 0;
    for (int e = 0; e < E; e++) ids[1] = e != ids[0] && logits[e] > logits[ids[1]] ? e : ids[1];
    double a = exp(logits[ids[0]]), b = exp(logits[ids[1]]);
    weights[0] = (float)(a / (a + b)), weights[1] = (float)(b / (a + b));
}

int main(void) {
    static float tokens[T * K], logits[T * E], results[2][T * K], weights[T * TOP];
    static int64_t ids[T * TOP];
    HammerheadMlpMatrices experts[E] = {0};
    for (int e = 0; e < E; e++) {
        quantize(&b1[e], N, K, 0.37f + e), quantize(&b2[e], N, K, 0.11f + e), quantize(&down[e], K, N, 0.23f + e);
        experts[e] = (HammerheadMlpMatrices){.b1 = matrix(&b1[e]), .b2 = matrix(&b2[e]), .down = matrix(&down[e]),
                                             .down_bias = {.values = down_bias, .bytes = sizeof down_bias}};
    }
    for (int i = 0; i < K; i++) down_bias[i] = 0.01f * i;
    for (int i = 0; i < T * K; i++) tokens[i] = sinf(0.05f * i);
    for (int i = 0; i < T * E; i++) logits[i] = cosf(1.7f * i);

    HammerheadEngine *engine = NULL;
    HammerheadLayer *moe = NULL;
    HammerheadRouting routing = {.scoring = HAMMERHEAD_ROUTING_TOPK_SOFTMAX, .top_k = TOP};
    check(hammerhead_engine_create(NULL, 0, NULL, &engine));
    check(hammerhead_moe_load(engine, experts, E, NULL, (HammerheadVector){0}, &routing, HAMMERHEAD_GATE_SILU, 0, NULL, &moe));

    HammerheadTokens x = {.element = HAMMERHEAD_F32, .values = tokens, .values_bytes = sizeof tokens,
                          .rows = T, .k = K, .global_scale = 1};
    HammerheadOutput y[2];
    for (int i = 0; i < 2; i++)
        y[i] = (HammerheadOutput){.element = HAMMERHEAD_F32, .values = results[i], .values_bytes = sizeof results[i]};
    check(hammerhead_moe_run_logits(engine, moe, &x, (HammerheadVector){.values = logits, .bytes = sizeof logits}, &y[0]));
    for (int t = 0; t < T; t++) route(logits + t * E, ids + t * TOP, weights + t * TOP);
    /* Somebody else's expert adds nothing. */
    ids[TOP * T - 1] = -1;
    check(hammerhead_moe_run(engine, moe, &x, ids, 64, sizeof ids, (HammerheadVector){.values = weights, .bytes = sizeof weights}, 0,
                             &y[1]));

    double worst = 0, largest = 0;
    for (int t = 0; t < T; t++) {
        double token[K], expected[2][K] = {0};
        int64_t own[TOP];
        float by[TOP];
        for (int k = 0; k < K; k++) token[k] = tokens[t * K + k];
        route(logits + t * E, own, by);
        for (int j = 0; j < TOP; j++) {
            add((int)own[j], token, by[j], expected[0]);
            if (ids[t * TOP + j] >= 0) add((int)own[j], token, by[j], expected[1]);
        }
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < K; k++) {
                worst = fmax(worst, fabs(results[i][t * K + k] - expected[i][k]));
                largest = fmax(largest, fabs(expected[i][k]));
            }
    }
    printf("hammerhead %s: %d tokens, %d of %d experts, off by at most %.1e of %.1f\n", hammerhead_version(), T, TOP, E, worst, largest);
    hammerhead_layer_destroy(moe);
    hammerhead_engine_destroy(engine);
    return worst <= 1e-5 * largest ? 0 : 1;
}
