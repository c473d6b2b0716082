// What it costs a stream to ask the host for something: a host function, words that the stream writes and waits for,
// two kernels that do so, one that does both, and nothing. In a stream and in a captured graph, of one layer and of
// twenty, beside a kernel of 50 µs or none, for a host that is at work for 0 or 100 µs. Prints µs per layer.
//
//     nvcc -O3 -std=c++17 -arch=sm_90 -o asking asking.cu -lcuda && ./asking
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cuda.h>
#include <cuda_runtime.h>
#include <thread>

using Clock = std::chrono::steady_clock;
#define CHECK(call) do { auto status = (call); if (status) std::printf("%s: %d\n", #call, int(status)); } while (0)

static volatile unsigned *bell, *answer;
static std::atomic<bool> stop{false};
static double busy = 0;

static double since(Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

static void work() {
    for (auto start = Clock::now(); since(start) < busy;) {}
}

static void CUDART_CB host(void *) { work(); }

static void watch() {
    while (!stop) {
        if (*bell != 1) continue;
        *bell = 0;
        work();
        std::atomic_thread_fence(std::memory_order_seq_cst);
        *answer = 1;
    }
}

__global__ void spin(long cycles) {
    for (long start = clock64(); clock64() - start < cycles;) {}
}
__device__ void ring(volatile unsigned *bell) { *bell = 1; __threadfence_system(); }
__device__ void wait(volatile unsigned *answer) { while (*answer != 1) {} *answer = 0; __threadfence_system(); }
__global__ void rings(volatile unsigned *bell) { ring(bell); }
__global__ void waits(volatile unsigned *answer) { wait(answer); }
__global__ void asks(volatile unsigned *bell, volatile unsigned *answer) { ring(bell); wait(answer); }

enum Way { NOTHING, HOST, WORDS, KERNELS, KERNEL };
static const char *names[] = {"nothing", "host function", "words", "two kernels", "one kernel"};

static void ask(Way way, cudaStream_t stream) {
    auto at = [](volatile unsigned *word) { return CUdeviceptr(word); };
    switch (way) {
    case NOTHING: break;
    case HOST: CHECK(cudaLaunchHostFunc(stream, host, nullptr)); break;
    case WORDS:
        CHECK(cuStreamWriteValue32(stream, at(bell), 1, 0));
        CHECK(cuStreamWaitValue32(stream, at(answer), 1, CU_STREAM_WAIT_VALUE_EQ));
        CHECK(cuStreamWriteValue32(stream, at(answer), 0, 0));
        break;
    case KERNELS: rings<<<1, 1, 0, stream>>>(bell); waits<<<1, 1, 0, stream>>>(answer); break;
    case KERNEL: asks<<<1, 1, 0, stream>>>(bell, answer); break;
    }
}

int main() {
    unsigned *words;
    CHECK(cudaMallocHost(&words, 4096));
    bell = words, answer = words + 64;
    *bell = *answer = 0;
    std::thread watcher(watch);
    for (int layers : {1, 20}) for (double at_work : {0., 100.}) for (double beside : {0., 50.})
        for (Way way : {NOTHING, HOST, WORDS, KERNELS, KERNEL}) for (bool graph : {false, true}) {
            busy = at_work;
            cudaStream_t main, side;
            cudaEvent_t fork, join;
            for (auto *stream : {&main, &side}) CHECK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
            for (auto *event : {&fork, &join}) CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
            auto queue = [&] {
                for (int layer = 0; layer < layers; layer++) {
                    spin<<<1, 32, 0, main>>>(100);
                    CHECK(cudaEventRecord(fork, main));
                    CHECK(cudaStreamWaitEvent(side, fork));
                    spin<<<1, 32, 0, side>>>(100);
                    ask(way, side);
                    CHECK(cudaEventRecord(join, side));
                    if (beside > 0) spin<<<132, 128, 0, main>>>(long(1755 * beside));
                    CHECK(cudaStreamWaitEvent(main, join));
                    spin<<<1, 32, 0, main>>>(100);
                }
            };
            cudaGraphExec_t executable = nullptr;
            if (graph) {
                cudaGraph_t captured;
                CHECK(cudaStreamBeginCapture(main, cudaStreamCaptureModeThreadLocal));
                queue();
                CHECK(cudaStreamEndCapture(main, &captured));
                CHECK(cudaGraphInstantiate(&executable, captured, 0));
            }
            auto once = [&] { if (graph) CHECK(cudaGraphLaunch(executable, main)); else queue(); };
            for (int i = 0; i < 3; i++) once();
            CHECK(cudaStreamSynchronize(main));
            int times = layers == 1 ? 40 : 8;
            auto start = Clock::now();
            for (int i = 0; i < times; i++) once();
            CHECK(cudaStreamSynchronize(main));
            std::printf("%2d layers, host at work %3.0f, kernel beside %2.0f, %-13s %s: %6.1f\n", layers, at_work,
                        beside, names[way], graph ? "graph " : "stream", since(start) / times / layers);
        }
    stop = true;
    watcher.join();
}
