// Prints what a launch of the kernel takes, as JSON: grid, block, cluster, shared memory, and the bytes of Params.
// No GPU and no driver: CUTLASS makes Params on the host, and encoding a tensor map only notes what it is given.
#define CUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL 1
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "gemm.h"
#include "cutlass/util/packed_stride.hpp"

// A tensor map in Params is this mark and its number among those below.
constexpr unsigned long long Mark = 0x7a7a7a7a00000000ull;
static std::vector<std::string> maps;

template <class T>
static std::string list(char const* name, T const* numbers, unsigned count) {
    std::string text = std::string(",\"") + name + "\":[";
    for (unsigned i = 0; i < count; i++) text += (i ? "," : "") + std::to_string((unsigned long long)numbers[i]);
    return text + "]";
}

extern "C" CUresult CUDAAPI cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
    void* address, cuuint64_t const* dims, cuuint64_t const* strides, cuuint32_t const* box, cuuint32_t const* steps,
    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
    std::memset(map, 0, sizeof *map);
    unsigned long long mark = Mark + maps.size();
    std::memcpy(map, &mark, sizeof mark);
    maps.push_back("{\"dtype\":" + std::to_string(type) + ",\"address\":" + std::to_string((unsigned long long)address)
        + ",\"interleave\":" + std::to_string(interleave) + ",\"swizzle\":" + std::to_string(swizzle) + ",\"fill\":"
        + std::to_string(fill) + list("dims", dims, rank) + list("strides", strides, rank - 1) + list("box", box, rank)
        + list("steps", steps, rank) + "}");
    return CUDA_SUCCESS;
}

extern "C" CUresult CUDAAPI cuTensorMapEncodeIm2col(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
    cuuint64_t const*, cuuint64_t const*, int const*, int const*, cuuint32_t, cuuint32_t, cuuint32_t const*,
    CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    return CUDA_ERROR_NOT_SUPPORTED;
}

// The address that stands for a buffer by its number; launch.py knows them again.
template <class T>
static void buffer(T& pointer, unsigned long long number) {
    pointer = (T)(0x7b0000000000ull + (number << 32));
}

// The scales of a GEMM that has some. A template, since others lack the very names.
template <class Mainloop, class Arguments>
static void scales(Arguments& loop, int m, int n, int k) {
    if constexpr (Gemm::scaled) {
        using Scales = typename Mainloop::Sm1xxBlkScaledConfig;
        buffer(loop.ptr_SFA, 5);
        buffer(loop.ptr_SFB, 6);
        loop.layout_SFA = Scales::tile_atom_to_shape_SFA(cute::make_shape(m, n, k, 1));
        loop.layout_SFB = Scales::tile_atom_to_shape_SFB(cute::make_shape(m, n, k, 1));
    }
}

int main(int argc, char** argv) {
    if (argc != 7) return std::fprintf(stderr, "usage: params M N K ALPHA BETA MULTIPROCESSORS\n"), 2;
    int m = std::atoi(argv[1]), n = std::atoi(argv[2]), k = std::atoi(argv[3]), sms = std::atoi(argv[6]);
    typename Kernel::Arguments args{};
    args.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    args.problem_shape = {m, n, k, 1};
    auto& loop = args.mainloop;
    buffer(loop.ptr_A, 1);
    buffer(loop.ptr_B, 2);
    loop.dA = cutlass::make_cute_packed_stride(typename Kernel::StrideA{}, {m, k, 1});
    loop.dB = cutlass::make_cute_packed_stride(typename Kernel::StrideB{}, {n, k, 1});
    scales<typename Kernel::CollectiveMainloop>(loop, m, n, k);
    args.epilogue.thread.alpha = float(std::atof(argv[4]));
    args.epilogue.thread.beta = float(std::atof(argv[5]));
    buffer(args.epilogue.ptr_C, 3);
    buffer(args.epilogue.ptr_D, 4);
    args.epilogue.dC = cutlass::make_cute_packed_stride(typename Kernel::StrideC{}, {m, n, 1});
    args.epilogue.dD = cutlass::make_cute_packed_stride(typename Kernel::StrideD{}, {m, n, 1});
    args.hw_info.sm_count = sms;
    args.hw_info.max_active_clusters = sms / int(cute::size(Gemm::Cluster{}));
    if constexpr (Gemm::dynamic_cluster) {
        args.hw_info.cluster_shape = dim3(cute::size<0>(Gemm::Cluster{}), cute::size<1>(Gemm::Cluster{}), 1);
        args.hw_info.cluster_shape_fallback = args.hw_info.cluster_shape;
    }
    void* workspace;
    buffer(workspace, 7);
    // Padding is zero.
    alignas(128) static unsigned char bytes[sizeof(typename Kernel::Params)];
    auto* params = new (bytes) typename Kernel::Params(Kernel::to_underlying_arguments(args, workspace));
    dim3 grid = Kernel::get_grid_shape(*params), block = Kernel::get_block_shape();
    std::printf("{\"grid\":[%u,%u,%u],\"block\":[%u,%u,%u],\"cluster\":[%d,%d,1],\"shared\":%d,\"workspace\":%zu,\"bytes\":\"",
        grid.x, grid.y, grid.z, block.x, block.y, block.z, int(cute::size<0>(Gemm::Cluster{})),
        int(cute::size<1>(Gemm::Cluster{})), int(Kernel::SharedStorageSize), Kernel::get_workspace_size(args));
    for (unsigned char byte : bytes) std::printf("%02x", byte);
    std::printf("\",\"maps\":[");
    for (size_t i = 0; i < maps.size(); i++) std::printf("%s%s", i ? "," : "", maps[i].c_str());
    std::printf("]}\n");
}
