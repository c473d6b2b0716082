// The kernel alone: nvcc -ptx makes of it what hammerhead check reads.
#include "gemm.h"
template __global__ void cutlass::device_kernel<Kernel>(CUTLASS_GRID_CONSTANT typename Kernel::Params const);
