// Runs the kernels on the host: CUDA's built-ins in plain C++. A kernel becomes a function of the number of blocks,
// the job and its table. The threads of a block run one after another, or as coroutines if they wait for each other.

#include <cmath>
#include <csetjmp>
#include <cstdlib>
#include <ucontext.h>
#include <vector>

struct Job;
struct JobTable;

struct Index {
    unsigned int x;
};

static thread_local Index blockIdx, threadIdx, gridDim;

#define DEVICE static inline
#define MEMBER inline
#define SHARED static thread_local
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)

#define KERNEL(name, ...)                                                         \
    static void JOIN(name##_body, SUFFIX)(const Job& job);                        \
    extern "C" void JOIN(name, SUFFIX)(unsigned int blocks, const Job* job, const JobTable*) { \
        emulator::run(blocks, *job, JOIN(name##_body, SUFFIX));                   \
    }                                                                             \
    static void JOIN(name##_body, SUFFIX)(const Job& job)

#define BLOCK_KERNEL(name, ...)                                                   \
    static void JOIN(name##_body, SUFFIX)(const Job& job);                        \
    extern "C" void JOIN(name, SUFFIX)(unsigned int blocks, const Job* job, const JobTable*) { \
        emulator::run_together(blocks, *job, JOIN(name##_body, SUFFIX));          \
    }                                                                             \
    static void JOIN(name##_body, SUFFIX)(const Job& job)

#define TABLE_KERNEL(name)                                                        \
    static void JOIN(name##_body, SUFFIX)(const Job& job, const JobTable& table); \
    extern "C" void JOIN(name, SUFFIX)(unsigned int blocks, const Job* job, const JobTable* table) { \
        emulator::run(blocks, *job, [=](const Job& job) { JOIN(name##_body, SUFFIX)(job, *table); }); \
    }                                                                             \
    static void JOIN(name##_body, SUFFIX)(const Job& job, const JobTable& table)

namespace emulator {

const unsigned int THREADS = 256;
const size_t STACK = 64 * 1024;

typedef void (*Body)(const Job&);

template <typename Function>
static void run(unsigned int blocks, const Job& job, Function body) {
    gridDim.x = blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        for (threadIdx.x = 0; threadIdx.x < THREADS; ++threadIdx.x) {
            body(job);
        }
    }
}

// The threads of a block as coroutines. They are created once and run one kernel after another. Switches use longjmp,
// which, unlike swapcontext, makes no system call.
struct Block {
    ucontext_t start[THREADS];
    jmp_buf scheduler;
    jmp_buf threads[THREADS];
    bool started[THREADS];
    bool done[THREADS];
    std::vector<char> stacks;
    const Job* job;
    Body body;
};

static thread_local Block* block;

// Yields; returns when the thread is resumed.
static void give_turn(unsigned int self) {
    if (_setjmp(block->threads[self]) == 0) {
        _longjmp(block->scheduler, 1);
    }
}

static void work() {
    unsigned int self = threadIdx.x;
    for (;;) {
        block->body(*block->job);
        block->done[self] = true;
        give_turn(self);
    }
}

// A barrier: lets every other thread reach the same point.
static void wait_for_block() {
    give_turn(threadIdx.x);
}

// Resumes a thread until it waits or ends.
static void turn(unsigned int thread) {
    threadIdx.x = thread;
    if (_setjmp(block->scheduler) == 0) {
        if (block->started[thread]) {
            _longjmp(block->threads[thread], 1);
        }
        block->started[thread] = true;
        setcontext(&block->start[thread]);
    }
}

static void make_block() {
    block = new Block();
    block->stacks.resize(THREADS * STACK);
    for (unsigned int thread = 0; thread < THREADS; ++thread) {
        ucontext_t* start = &block->start[thread];
        getcontext(start);
        start->uc_stack.ss_sp = &block->stacks[thread * STACK];
        start->uc_stack.ss_size = STACK;
        start->uc_link = 0;
        makecontext(start, work, 0);
    }
}

static void run_together(unsigned int blocks, const Job& job, Body body) {
    if (!block) {
        make_block();
    }
    block->job = &job;
    block->body = body;
    gridDim.x = blocks;
    for (unsigned int number = 0; number < blocks; ++number) {
        blockIdx.x = number;
        for (unsigned int thread = 0; thread < THREADS; ++thread) {
            block->done[thread] = false;
        }
        for (bool left = true; left;) {
            unsigned int waiting = 0, ended = 0;
            for (unsigned int thread = 0; thread < THREADS; ++thread) {
                if (!block->done[thread]) {
                    turn(thread);
                    if (block->done[thread]) {
                        ++ended;
                    } else {
                        ++waiting;
                    }
                }
            }
            // On a device it is undefined if threads wait for others that have ended.
            if (waiting > 0 && ended > 0) {
                abort();
            }
            left = waiting > 0;
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
