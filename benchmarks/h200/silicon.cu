// What an H200 does where kernels rely on more than the ISA says, or break what it says. One experiment per argument,
// since a fault ends the process's context. docs/silicon.md has the answers. To run all, ten seconds each at the most:
//
//     nvcc -std=c++17 -arch=sm_90a -o silicon silicon.cu -lcuda
//     for e in $(./silicon); do printf '%s: ' $e; timeout 10 ./silicon $e || echo "exit status $?"; done
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <cuda.h>
#include <cuda_runtime.h>

#define DEVICE __device__ __forceinline__

DEVICE uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
DEVICE uint32_t rank_in_cluster() { uint32_t r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
DEVICE void meet() { asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory"); }
DEVICE void init(uint64_t* b, uint32_t n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\nfence.mbarrier_init.release.cluster;" :: "r"(shared_address(b)), "r"(n) : "memory");
}
DEVICE void expect(uint64_t* b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(b)), "r"(bytes) : "memory");
}
DEVICE bool test(uint64_t* b, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");
    return done;
}
DEVICE void wait(uint64_t* b, uint32_t parity) { while (!test(b, parity)) {} }
DEVICE void pause(uint64_t nanoseconds) {
    uint64_t start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); } while (now - start < nanoseconds);
}

// Every block of a cluster brings its part of `bytes` and the copy engine delivers it to all blocks.
// The blocks with `late` announce what they get some time after it may have come.
__global__ void bulk_multicast(const uint8_t* from, uint32_t bytes, uint32_t blocks, uint32_t rounds, uint32_t late, uint32_t* wrong) {
    extern __shared__ __align__(1024) uint8_t tile[];
    __shared__ uint64_t full;
    uint32_t rank = rank_in_cluster(), part = bytes / blocks;
    if (threadIdx.x == 0) init(&full, 1);
    meet();
    for (uint32_t round = 0; round < rounds; round++) {
        const uint8_t* source = from + (round % 7) * bytes;
        if (threadIdx.x == 0) {
            if (late >> rank & 1) pause(3000);
            expect(&full, bytes);
            uint16_t all = (1u << blocks) - 1;
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
                         :: "r"(shared_address(tile + rank * part)), "l"(source + rank * part), "r"(part), "r"(shared_address(&full)), "h"(all) : "memory");
        }
        wait(&full, round & 1);
        for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x)
            if (tile[i] != (uint8_t)((i + (round % 7) * bytes) * 31 >> 3)) atomicAdd(wrong, 1);
        meet();
    }
}

// The same by a tensor map of rows of 128 bytes, without a swizzle.
__global__ void tensor_multicast(const __grid_constant__ CUtensorMap map, uint32_t rows, uint32_t blocks, uint32_t rounds, uint32_t* wrong) {
    extern __shared__ __align__(1024) uint8_t tile[];
    __shared__ uint64_t full;
    uint32_t rank = rank_in_cluster(), part = rows / blocks, bytes = rows * 128;
    if (threadIdx.x == 0) init(&full, 1);
    meet();
    for (uint32_t round = 0; round < rounds; round++) {
        if (threadIdx.x == 0) {
            expect(&full, bytes);
            uint16_t all = (1u << blocks) - 1;
            int row = (round % 7) * rows + rank * part;
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                         :: "r"(shared_address(tile + rank * part * 128)), "l"(&map), "r"(0), "r"(row), "r"(shared_address(&full)), "h"(all) : "memory");
        }
        wait(&full, round & 1);
        for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x)
            if (tile[i] != (uint8_t)((i + (round % 7) * bytes) * 31 >> 3)) atomicAdd(wrong, 1);
        meet();
    }
}

DEVICE void load_box(const CUtensorMap* map, uint32_t to, int column, int row, uint64_t* full) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(to), "l"(map), "r"(column), "r"(row), "r"(shared_address(full)) : "memory");
}

// One box, with so many bytes expected; says whether the barrier completed and the first and last byte.
__global__ void one_box(const __grid_constant__ CUtensorMap map, uint32_t offset, int column, int row, uint32_t expected, uint32_t last, uint32_t* out) {
    extern __shared__ __align__(1024) uint8_t tile[];
    __shared__ uint64_t full;
    if (threadIdx.x != 0) return;
    tile[offset + last] = 0xee;
    init(&full, 1);
    asm volatile("fence.proxy.async;" ::: "memory");
    expect(&full, expected);
    load_box(&map, shared_address(tile) + offset, column, row, &full);
    uint32_t tries = 0;
    while (!test(&full, 0) && tries < 100000) tries++;
    out[0] = tries < 100000; out[1] = tile[offset]; out[2] = tile[offset + last];
}

// The same with a tensor map in global memory, wherever it is.
__global__ void map_at(const CUtensorMap* map, uint32_t* out) {
    extern __shared__ __align__(1024) uint8_t tile[];
    __shared__ uint64_t full;
    if (threadIdx.x != 0) return;
    init(&full, 1);
    asm volatile("fence.proxy.async;" ::: "memory");
    expect(&full, 8 * 128);
    load_box(map, shared_address(tile), 0, 0, &full);
    uint32_t tries = 0;
    while (!test(&full, 0) && tries < 100000) tries++;
    out[0] = tries < 100000; out[1] = tile[0]; out[2] = tile[1023];
}

__global__ void bulk_copy(const uint8_t* from, uint32_t bytes, uint32_t* out) {
    extern __shared__ __align__(1024) uint8_t tile[];
    __shared__ uint64_t full;
    if (threadIdx.x != 0) return;
    init(&full, 1);
    asm volatile("fence.proxy.async;" ::: "memory");
    expect(&full, bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(shared_address(tile)), "l"(from), "r"(bytes), "r"(shared_address(&full)) : "memory");
    uint32_t tries = 0;
    while (!test(&full, 0) && tries < 100000) tries++;
    out[0] = tries < 100000; out[1] = tile[0]; out[2] = tile[bytes - 1];
}

// Whether a barrier's phase completes when more bytes were announced than a count holds, and none came.
__global__ void announce(uint32_t bytes, uint32_t times, uint32_t* out) {
    __shared__ uint64_t full;
    if (threadIdx.x != 0) return;
    init(&full, times + 1);
    for (uint32_t i = 0; i < times; i++) expect(&full, bytes);
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(&full)) : "memory");
    uint32_t tries = 0;
    while (!test(&full, 0) && tries < 10000) tries++;
    out[0] = tries < 10000;
}

__global__ void fresh(uint32_t* out) {
    __shared__ uint64_t full;
    if (threadIdx.x != 0) return;
    init(&full, 1);
    out[0] = test(&full, 1); out[1] = test(&full, 0);
    init(&full, 3);
    for (int i = 0; i < 3; i++) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(&full)) : "memory");
    out[2] = test(&full, 0);
}

// The second block leaves at once; the first arrives at its barrier later.
__global__ void arrive_at_the_gone(uint32_t stays, uint32_t* out) {
    __shared__ uint64_t full;
    if (threadIdx.x == 0) init(&full, 1);
    meet();
    if (rank_in_cluster() == 1) { if (stays) meet(); return; }
    pause(200000);
    if (threadIdx.x == 0) {
        uint32_t there;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(&full)), "r"(1));
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(there) : "memory");
        out[0] = 1;
    }
    if (stays) meet();
}

// Cycles that one thread takes per arrival at the other block's barrier, by what the arrival publishes and how far.
template <int KIND>
DEVICE void arrive_there(uint32_t there) {
    if (KIND == 0) asm volatile("mbarrier.arrive.release.cta.shared::cluster.b64 _, [%0];" :: "r"(there) : "memory");
    if (KIND == 1) asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(there) : "memory");
    if (KIND == 2) asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" :: "r"(there) : "memory");
}
template <int KIND>
DEVICE uint32_t arrivals(uint64_t* own, uint32_t there, uint32_t* global, bool stores) {
    uint64_t start = clock64();
    for (uint32_t i = 0; i < 1000; i++) {
        test(own, 1);
        if (stores) global[threadIdx.x] = i;
        arrive_there<KIND>(there);
    }
    return (uint32_t)((clock64() - start) / 1000);
}
__global__ void cycles_of_arrivals(uint32_t* out, uint32_t* global) {
    __shared__ uint64_t bars[2];
    if (threadIdx.x == 0) { init(&bars[0], 1); init(&bars[1], 1000000); }
    meet();
    if (rank_in_cluster() == 1 && threadIdx.x == 0) {
        uint32_t there;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(&bars[1])), "r"(0));
        out[0] = arrivals<0>(&bars[0], there, global, false);
        out[1] = arrivals<1>(&bars[0], there, global, false);
        out[2] = arrivals<2>(&bars[0], there, global, false);
        out[3] = arrivals<1>(&bars[0], there, global, true);
    }
    meet();
}

__global__ void first(uint32_t* value) {
    asm volatile("griddepcontrol.launch_dependents;");
    pause(300000);
    if (threadIdx.x == 0) *(volatile uint32_t*)value = 7;
}
__global__ void second(const uint32_t* value, uint32_t waits, uint32_t* out) {
    if (waits) asm volatile("griddepcontrol.wait;" ::: "memory");
    if (threadIdx.x == 0) out[0] = *(const volatile uint32_t*)value;
}

__global__ void spare(uint32_t* out) { extern __shared__ uint8_t tile[]; if (out) out[0] = tile[threadIdx.x]; }

static uint32_t* out;
static uint8_t* bytes;

static int finish(const char* what, uint32_t count) {
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) { printf("%s: %s\n", what, cudaGetErrorName(error)); return 0; }
    uint32_t found[4] = {0, 0, 0, 0};
    cudaMemcpy(found, out, 16, cudaMemcpyDeviceToHost);
    printf("%s:", what);
    for (uint32_t i = 0; i < count; i++) printf(" %u", found[i]);
    printf("\n");
    return 0;
}

static CUtensorMap rows_of_128(void* address, uint64_t rows, uint32_t box, bool& ok, CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8, uint32_t width = 128) {
    CUtensorMap map;
    cuuint64_t dims[2] = {type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 128u : 64u, rows}, strides[1] = {128};
    cuuint32_t tile[2] = {width, box}, steps[2] = {1, 1};
    ok = cuTensorMapEncodeTiled(&map, type, 2, address, dims, strides, tile, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
    return map;
}

template <class... Args, class... Given>
static void clustered(void (*kernel)(Args...), uint32_t grid, uint32_t cluster, uint32_t shared, bool overlaps, Given... args) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2];
    uint32_t count = 0;
    if (cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count].val.clusterDim.x = cluster; attributes[count].val.clusterDim.y = 1; attributes[count++].val.clusterDim.z = 1;
    }
    if (overlaps) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    config.gridDim = dim3(grid); config.blockDim = dim3(128); config.dynamicSmemBytes = shared; config.attrs = attributes; config.numAttrs = count;
    cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024);
    cudaLaunchKernelEx(&config, kernel, Args(args)...);
}

int main(int count, char** words) {
    const char* all[] = {"bulk-multicast-2", "bulk-multicast-4", "bulk-multicast-ahead", "tensor-multicast-2", "tensor-multicast-4", "box-beyond-the-last-row", "box-whole",
        "box-few-bytes-expected", "box-to-64-bytes", "box-to-16-bytes", "box-from-2-bytes", "box-from-8-bytes", "box-from-16-bytes", "box-of-plain-rows", "map-at-64-bytes", "map-at-32-bytes", "map-at-16-bytes",
        "bulk-of-8-bytes", "bulk-from-8-bytes", "announce-most", "announce-one-more", "announce-twice-half", "fresh-barrier", "arrive-at-the-gone",
        "arrive-at-who-stays", "cycles-of-arrivals", "dependent-waits", "dependent-does-not-wait", "clusters"};
    if (count < 2) { for (const char* name : all) printf("%s\n", name); return 0; }
    auto is = [&](const char* name) { return !strcmp(words[1], name); };
    cudaFree(0); cuInit(0);
    std::vector<uint8_t> host(1 << 20);
    for (size_t i = 0; i < host.size(); i++) host[i] = (uint8_t)((uint32_t)i * 31 >> 3);
    cudaMalloc(&bytes, host.size()); cudaMalloc(&out, 4096);
    cudaMemcpy(bytes, host.data(), host.size(), cudaMemcpyHostToDevice); cudaMemset(out, 0, 4096);
    bool ok = true;
    for (uint32_t blocks : {2u, 4u}) {
        char bulk[32], tensor[32];
        snprintf(bulk, 32, "bulk-multicast-%u", blocks); snprintf(tensor, 32, "tensor-multicast-%u", blocks);
        if (is(bulk)) { clustered(bulk_multicast, 120, blocks, 32768, false, (const uint8_t*)bytes, 32768u, blocks, 2000u, 0u, out); return finish("wrong bytes", 1); }
        if (is(tensor)) {
            CUtensorMap map = rows_of_128(bytes, 8192, 256 / blocks, ok);
            clustered(tensor_multicast, 120, blocks, 32768, false, map, 256u, blocks, 2000u, out);
            return finish(ok ? "wrong bytes" : "no map; wrong bytes", 1);
        }
    }
    if (is("bulk-multicast-ahead")) {
        clustered(bulk_multicast, 120, 2, 32768, false, (const uint8_t*)bytes, 32768u, 2u, 2000u, 2u, out);
        return finish("wrong bytes", 1);
    }
    auto box = [&](uint32_t offset, int column, int row, uint32_t expected, CUtensorMapDataType type, uint32_t width) {
        CUtensorMap map = rows_of_128(bytes, 16, 8, ok, type, width);
        clustered(one_box, 1, 1, 8192, false, map, offset, column, row, expected, 1023u, out);
        return finish(ok ? "completed, first and last byte" : "no map; completed", 3);
    };
    auto u8 = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    if (is("box-beyond-the-last-row")) return box(0, 0, 12, 1024, u8, 128);
    if (is("box-whole")) return box(0, 0, 0, 1024, u8, 128);
    if (is("box-few-bytes-expected")) return box(0, 0, 12, 512, u8, 128);
    if (is("box-to-64-bytes")) return box(64, 0, 0, 1024, u8, 128);
    if (is("box-to-16-bytes")) return box(16, 0, 0, 1024, u8, 128);
    auto f16 = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    if (is("box-from-2-bytes")) return box(0, 1, 0, 8 * 64, f16, 32);
    if (is("box-from-8-bytes")) return box(0, 4, 0, 8 * 64, f16, 32);
    if (is("box-from-16-bytes")) return box(0, 8, 0, 8 * 64, f16, 32);
    if (is("box-of-plain-rows")) return box(0, 0, 1, 8 * 64, f16, 32);
    for (uint32_t at : {64u, 32u, 16u}) {
        char name[32];
        snprintf(name, 32, "map-at-%u-bytes", at);
        if (!is(name)) continue;
        CUtensorMap map = rows_of_128(bytes, 16, 8, ok);
        uint8_t* there; cudaMalloc(&there, 4096);
        cudaMemcpy(there + at, &map, sizeof map, cudaMemcpyHostToDevice);
        clustered(map_at, 1, 1, 8192, false, (const CUtensorMap*)(there + at), out);
        return finish("completed, first and last byte", 3);
    }
    if (is("bulk-of-8-bytes")) { clustered(bulk_copy, 1, 1, 8192, false, (const uint8_t*)bytes, 8u, out); return finish("completed, first and last byte", 3); }
    if (is("bulk-from-8-bytes")) { clustered(bulk_copy, 1, 1, 8192, false, (const uint8_t*)bytes + 8, 1024u, out); return finish("completed, first and last byte", 3); }
    if (is("announce-most")) { announce<<<1, 32>>>((1u << 20) - 1, 1, out); return finish("completed without bytes", 1); }
    if (is("announce-one-more")) { announce<<<1, 32>>>(1u << 20, 1, out); return finish("completed without bytes", 1); }
    if (is("announce-twice-half")) { announce<<<1, 32>>>(1u << 20, 2, out); return finish("completed without bytes", 1); }
    if (is("fresh-barrier")) { fresh<<<1, 32>>>(out); return finish("parity 1 passes, parity 0 passes, made anew without inval passes", 3); }
    if (is("arrive-at-the-gone")) { clustered(arrive_at_the_gone, 2, 2, 0, false, 0u, out); return finish("arrived", 1); }
    if (is("arrive-at-who-stays")) { clustered(arrive_at_the_gone, 2, 2, 0, false, 1u, out); return finish("arrived", 1); }
    if (is("cycles-of-arrivals")) {
        clustered(cycles_of_arrivals, 2, 2, 0, false, out, (uint32_t*)bytes);
        return finish("cycles: release.cta, release.cluster, relaxed.cluster, release.cluster behind a store", 4);
    }
    for (uint32_t waits : {0u, 1u})
        if (is(waits ? "dependent-waits" : "dependent-does-not-wait")) {
            // Once before, so that nothing is loaded between the two.
            clustered(second, 1, 1, 0, false, (const uint32_t*)(out + 1), 0u, out);
            clustered(first, 1, 1, 0, false, out + 2);
            cudaDeviceSynchronize();
            clustered(first, 1, 1, 0, false, out + 1);
            clustered(second, 1, 1, 0, true, (const uint32_t*)(out + 1), waits, out);
            return finish("read (7 was written)", 1);
        }
    if (is("clusters")) {
        cudaFuncSetAttribute(spare, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024);
        cudaFuncSetAttribute(spare, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
        for (uint32_t cluster : {1u, 2u, 4u, 8u, 16u}) {
            cudaLaunchConfig_t config = {};
            cudaLaunchAttribute attribute;
            attribute.id = cudaLaunchAttributeClusterDimension;
            attribute.val.clusterDim.x = cluster; attribute.val.clusterDim.y = 1; attribute.val.clusterDim.z = 1;
            config.gridDim = dim3(cluster); config.blockDim = dim3(256); config.dynamicSmemBytes = 200 * 1024; config.attrs = &attribute; config.numAttrs = 1;
            int fit = 0;
            cudaError_t error = cudaOccupancyMaxActiveClusters(&fit, spare, &config);
            printf("%u: %d%s ", cluster, fit, error == cudaSuccess ? "" : cudaGetErrorName(error));
        }
        printf("\n");
        return 0;
    }
    return 2;
}
