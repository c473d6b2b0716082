// CUTLASS GEMMs to be checked, one per structure: nvcc -DGEMM=NAME chooses.
#pragma once
#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"

using cute::_1, cute::_2, cute::_4, cute::_64, cute::_128, cute::_256, cute::Shape;
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using Nvfp4 = cutlass::nv_float4_t<cutlass::float_e2m1_t>;

// What a collective builder chooses by itself.
struct Automatic {
    using Mainloop = cutlass::gemm::collective::KernelScheduleAuto;
    using Epilogue = cutlass::epilogue::collective::EpilogueScheduleAuto;
    static constexpr bool scaled = false, dynamic_cluster = false;
};

// Hopper: warp-specialised, cooperative; as CUTLASS's examples 48 and 49.
struct sm90_f16 : Automatic {
    using Arch = cutlass::arch::Sm90;
    using Class = cutlass::arch::OpClassTensorOp;
    using Element = cutlass::half_t;
    using Result = cutlass::half_t;
    using Order = Row;
    using Tile = Shape<_128, _128, _64>;
    using Cluster = Shape<_2, _1, _1>;
    using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
    using Epilogue = cutlass::epilogue::TmaWarpSpecializedCooperative;
};

// Hopper: ping-pong with fast accumulation.
struct sm90_fp8 : Automatic {
    using Arch = cutlass::arch::Sm90;
    using Class = cutlass::arch::OpClassTensorOp;
    using Element = cutlass::float_e4m3_t;
    using Result = cutlass::half_t;
    using Order = Row;
    using Tile = Shape<_64, _128, _128>;
    using Cluster = Shape<_1, _2, _1>;
    using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedPingpongFP8FastAccum;
    using Epilogue = cutlass::epilogue::TmaWarpSpecialized;
};

// Blackwell: pairs of blocks; as example 70.
struct sm100_f16 : Automatic {
    using Arch = cutlass::arch::Sm100;
    using Class = cutlass::arch::OpClassTensorOp;
    using Element = cutlass::half_t;
    using Result = float;
    using Order = Column;
    using Tile = Shape<_256, _128, _64>;
    using Cluster = Shape<_2, _2, _1>;
    static constexpr bool dynamic_cluster = true;
};

// Blackwell: pairs of blocks and block scales; as example 72a.
struct sm100_nvfp4 : Automatic {
    using Arch = cutlass::arch::Sm100;
    using Class = cutlass::arch::OpClassBlockScaledTensorOp;
    using Element = Nvfp4;
    using Result = cutlass::bfloat16_t;
    using Order = Row;
    using Tile = Shape<_256, _256, _256>;
    using Cluster = Shape<_2, _4, _1>;
    static constexpr bool scaled = true, dynamic_cluster = true;
};

// GeForce: mma.sync with block scales; as example 79a.
struct sm120_nvfp4 : Automatic {
    using Arch = cutlass::arch::Sm120;
    using Class = cutlass::arch::OpClassBlockScaledTensorOp;
    using Element = Nvfp4;
    using Result = cutlass::bfloat16_t;
    using Order = Row;
    using Tile = Shape<_128, _128, _128>;
    using Cluster = Shape<_1, _1, _1>;
    static constexpr bool scaled = true;
};

using Gemm = GEMM;
// Sixteen bytes of each operand are aligned, and of results.
constexpr int Aligned = Gemm::scaled ? 32 : 128 / cutlass::sizeof_bits<Gemm::Element>::value;
constexpr int AlignedResult = 128 / cutlass::sizeof_bits<Gemm::Result>::value;
using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    Gemm::Arch, Gemm::Class, Gemm::Tile, Gemm::Cluster, cutlass::epilogue::collective::EpilogueTileAuto, float, float,
    Gemm::Result, Gemm::Order, AlignedResult, Gemm::Result, Gemm::Order, AlignedResult, Gemm::Epilogue>::CollectiveOp;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    Gemm::Arch, Gemm::Class, Gemm::Element, Row, Aligned, Gemm::Element, Column, Aligned, float, Gemm::Tile,
    Gemm::Cluster, cutlass::gemm::collective::StageCountAutoCarveout<int(sizeof(typename Epilogue::SharedStorage))>,
    Gemm::Mainloop>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue, void>;
