// Does resetting persisting lines of L2 in one process reach those of another? A process reads some memory with an access policy that has it persist; another sweeps
// L2, with or without `cuCtxResetPersistingL2Cache` before; the first reads again and says how long that took.
//
//     nvcc -arch=native -o persisting persisting.cu -lcuda && ./persisting
#include <cuda.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>

#define OK(call)                                                                                  \
    do {                                                                                          \
        auto status = (call);                                                                     \
        if (status != 0) {                                                                        \
            fprintf(stderr, "%s: status %d\n", #call, int(status));                               \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

__global__ void read(const float4* x, size_t count, float* sum) {
    float s = 0;
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
        float4 v = x[i];
        s += v.x + v.y + v.z + v.w;
    }
    if (s == 12345.0f) *sum = s;
}

const size_t BYTES = 16 << 20, SWEEP = size_t(160) << 20;
enum Sweep { NOTHING, PLAIN, RESET };

// The reader: says ready, waits for the sweep, reads and tells.
void reader(bool persisting, int to, int from) {
    float4* x;
    float* sum;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMalloc(&x, BYTES));
    OK(cudaMalloc(&sum, 4));
    OK(cudaMemset(x, 0, BYTES));
    if (persisting) {
        cudaDeviceProp about;
        OK(cudaGetDeviceProperties(&about, 0));
        OK(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, about.persistingL2CacheMaxSize));
        cudaStreamAttrValue value = {};
        value.accessPolicyWindow.base_ptr = x;
        value.accessPolicyWindow.num_bytes = std::min<size_t>(BYTES, about.accessPolicyMaxWindowSize);
        value.accessPolicyWindow.hitRatio = 1.0f;
        value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
        value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
        OK(cudaStreamSetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &value));
    }
    cudaEvent_t a, b;
    OK(cudaEventCreate(&a));
    OK(cudaEventCreate(&b));
    char word;
    for (int turn = 0; turn < 9; turn++) {
        for (int i = 0; i < 3; i++) read<<<264, 512, 0, stream>>>(x, BYTES / 16, sum);
        OK(cudaStreamSynchronize(stream));
        if (write(to, "r", 1) != 1 || ::read(from, &word, 1) != 1) exit(1);
        OK(cudaEventRecord(a, stream));
        read<<<264, 512, 0, stream>>>(x, BYTES / 16, sum);
        OK(cudaEventRecord(b, stream));
        OK(cudaEventSynchronize(b));
        float ms;
        OK(cudaEventElapsedTime(&ms, a, b));
        if (write(to, &ms, 4) != 4) exit(1);
    }
}

float measured(bool persisting, Sweep sweep) {
    int up[2], down[2];
    if (pipe(up) || pipe(down)) exit(1);
    pid_t child = fork();
    if (child == 0) {
        reader(persisting, up[1], down[0]);
        _exit(0);
    }
    // A process of its own for the sweep too: this one must not hold a context when it forks again.
    pid_t sweeper = fork();
    if (sweeper == 0) {
        OK(cuInit(0));
        void* memory;
        OK(cudaMalloc(&memory, SWEEP));
        float times[9];
        char word;
        for (float& time : times) {
            if (::read(up[0], &word, 1) != 1) exit(1);
            if (sweep == RESET) OK(cuCtxResetPersistingL2Cache());
            for (int i = 0; sweep != NOTHING && i < 4; i++) OK(cudaMemset(memory, i, SWEEP));
            OK(cudaDeviceSynchronize());
            if (write(down[1], "g", 1) != 1 || ::read(up[0], &time, 4) != 4) exit(1);
        }
        std::sort(times, times + 9);
        printf("%-12s %-28s %6.1f us\n", persisting ? "persisting" : "plain",
               sweep == NOTHING ? "nobody swept" : sweep == PLAIN ? "swept" : "reset, then swept", 1e3 * times[4]);
        fflush(stdout);
        _exit(0);
    }
    int status;
    waitpid(sweeper, &status, 0);
    waitpid(child, &status, 0);
    return 0;
}

int main() {
    for (bool persisting : {false, true})
        for (Sweep sweep : {NOTHING, PLAIN, RESET}) measured(persisting, sweep);
}
