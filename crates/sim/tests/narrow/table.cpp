// What CUDA's headers make of floats of eight bits and fewer, on the host: table.txt is this program's output.
//     g++ -I $CUDA/include table.cpp -o table && ./table > table.txt
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_fp6.h>
#include <cuda_fp4.h>
#include <cstdio>
#include <cstring>
#include <vector>

static unsigned bits(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
static float number(unsigned u) { float x; memcpy(&x, &u, 4); return x; }
static unsigned wide(__half_raw h) { return h.x; }
static unsigned wide(__nv_bfloat16_raw h) { return h.x; }

int main() {
    std::vector<unsigned> all;
    // Mantissas around each tie, for every exponent that matters; zeros, infinities and NaN; of both signs.
    for (unsigned exponent = 0; exponent < 256; exponent++)
        for (unsigned mantissa : {0u, 1u, 0x080000u, 0x100000u, 0x200000u, 0x380000u, 0x600000u, 0x7fffffu})
            if (exponent == 0 || exponent == 255 || (exponent > 108 && exponent < 146) || (exponent % 16 == 1 && mantissa == 1))
                for (unsigned sign : {0u, 0x80000000u}) all.push_back(sign | exponent << 23 | mantissa);
    for (unsigned from : all) {
        float x = number(from);
        printf("round %08x %02x %02x %02x %02x %x %02x %02x %02x\n", from,
            __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3), __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2),
            __nv_cvt_float_to_fp6(x, __NV_E2M3, cudaRoundNearest), __nv_cvt_float_to_fp6(x, __NV_E3M2, cudaRoundNearest),
            __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest),
            __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundZero), __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf),
            __nv_cvt_float_to_e8m0(x, __NV_NOSAT, cudaRoundPosInf));
    }
    for (unsigned code = 0; code < 256; code++)
        printf("widen %02x %04x %04x %04x %04x %04x %04x\n", code,
            wide(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)), wide(__nv_cvt_fp8_to_halfraw(code, __NV_E5M2)),
            wide(__nv_cvt_fp6_to_halfraw(code & 63, __NV_E2M3)), wide(__nv_cvt_fp6_to_halfraw(code & 63, __NV_E3M2)),
            wide(__nv_cvt_fp4_to_halfraw(code & 15, __NV_E2M1)), wide(__nv_cvt_e8m0_to_bf16raw(code)));
}
