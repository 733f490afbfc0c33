// Runs the kernels on the host: what CUDA gives them, in plain C++. A kernel becomes a function of the number of blocks and
// the job. Threads of a block run one after another, or, in kernels whose threads wait for each other, as contexts that
// take turns.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <ucontext.h>
#include <vector>

struct Job;

struct Index {
    unsigned int x;
};

static thread_local Index blockIdx, threadIdx, gridDim;

#define DEVICE static inline
#define SHARED static thread_local
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)

#define KERNEL(name)                                                              \
    static void JOIN(name##_body, SUFFIX)(const Job& job);                        \
    extern "C" void JOIN(name, SUFFIX)(unsigned int blocks, const Job* job) {     \
        emulator::run(blocks, *job, JOIN(name##_body, SUFFIX));                   \
    }                                                                             \
    static void JOIN(name##_body, SUFFIX)(const Job& job)

#define BLOCK_KERNEL(name)                                                        \
    static void JOIN(name##_body, SUFFIX)(const Job& job);                        \
    extern "C" void JOIN(name, SUFFIX)(unsigned int blocks, const Job* job) {     \
        emulator::run_together(blocks, *job, JOIN(name##_body, SUFFIX));          \
    }                                                                             \
    static void JOIN(name##_body, SUFFIX)(const Job& job)

namespace emulator {

const unsigned int THREADS = 256;
const size_t STACK = 64 * 1024;

typedef void (*Body)(const Job&);

static void run(unsigned int blocks, const Job& job, Body body) {
    gridDim.x = blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        for (threadIdx.x = 0; threadIdx.x < THREADS; ++threadIdx.x) {
            body(job);
        }
    }
}

// The contexts of one block.
struct Block {
    ucontext_t scheduler;
    std::vector<ucontext_t> threads;
    std::vector<char> stacks;
    std::vector<bool> done;
    const Job* job;
    Body body;
};

static thread_local Block* block;

static void enter() {
    block->body(*block->job);
    block->done[threadIdx.x] = true;
    swapcontext(&block->threads[threadIdx.x], &block->scheduler);
}

// A thread that waits for the others lets each of them come to the same point.
static void wait_for_block() {
    unsigned int self = threadIdx.x;
    swapcontext(&block->threads[self], &block->scheduler);
}

static void run_together(unsigned int blocks, const Job& job, Body body) {
    Block own;
    own.threads.resize(THREADS);
    own.stacks.resize(THREADS * STACK);
    own.job = &job;
    own.body = body;
    block = &own;
    gridDim.x = blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        own.done.assign(THREADS, false);
        for (unsigned int thread = 0; thread < THREADS; ++thread) {
            getcontext(&own.threads[thread]);
            own.threads[thread].uc_stack.ss_sp = &own.stacks[thread * STACK];
            own.threads[thread].uc_stack.ss_size = STACK;
            own.threads[thread].uc_link = &own.scheduler;
            makecontext(&own.threads[thread], enter, 0);
        }
        for (bool left = true; left;) {
            left = false;
            unsigned int waiting = 0, ended = 0;
            for (unsigned int thread = 0; thread < THREADS; ++thread) {
                if (own.done[thread]) {
                    continue;
                }
                threadIdx.x = thread;
                swapcontext(&own.scheduler, &own.threads[thread]);
                own.done[thread] ? ++ended : ++waiting;
                left = left || !own.done[thread];
            }
            // On a device, a block in which some threads wait for others that have left is undefined.
            if (waiting > 0 && ended > 0) {
                abort();
            }
        }
    }
}

}  // namespace emulator

#define __syncthreads() emulator::wait_for_block()

static inline void atomicMin(unsigned long long* cell, unsigned long long value) {
    if (value < *cell) {
        *cell = value;
    }
}
