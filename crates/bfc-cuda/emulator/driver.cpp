// The emulated CUDA driver: one library with the interfaces of the driver, NVRTC, cuBLAS and NCCL that runs the kernels on
// the host. Tests and scripts/gpu-check-rehearse load it in place of NVIDIA's libraries.
//
// Like the real driver, it checks contexts, addresses, handles and arguments. Streams are asynchronous. A device that
// accesses another device's memory is lost: each later call fails, as after emulated_lose.
//
// Environment variables, all with the prefix EMULATED_:
//
// - KERNELS and PRODUCTS: the emulator's libraries. Kernels run one at a time.
// - DEVICES (2), MEMORY (bytes, 6 GiB), VERSION (13000) and CAPABILITY (90): what the driver reports.
// - NO_MAPPING and NO_GRAPHS: without virtual memory management or graphs. LAZY: work runs when a caller waits for it.
// - INIT_STATUS, CONTEXT_STATUS and RECORD_STATUS: the status of starting, of creating a context, of recording an event.
// - CODE_BYTES: free device memory that code and cuBLAS need. CUBLAS_FAILURES: how often cuBLAS fails to start.
// - NCCL_FAIL: the result of a call of NCCL, as in AllReduce:3:2; see nccl.h.
// - INTERRUPTED_CAPTURES: how many captures are invalidated. WRONG_SUMS: the sums of the self-check are wrong.

#include "host.h"
#include "../kernels/job.cuh"
#include "../kernels/half.cuh"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <fcntl.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sched.h>
#include <set>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

#define CALL(name, ...) extern "C" u32 name(__VA_ARGS__)

// In this order: each file uses the earlier ones.
#include "device.h"
#include "stream.h"
#include "memory.h"
#include "saxpy.h"
#include "work.h"
#include "toolkit.h"
#include "communicator.h"
#include "nccl.h"

// Makes a device fail, as after an illegal address.
extern "C" void emulated_lose(int device) { lost[device + 1] = true; }

// Allocated bytes of a device.
extern "C" size_t emulated_used(int device) {
    Lock lock(mutex);
    return used[device + 1];
}

// The number of calls of cuMemAlloc and of cuMemFree.
extern "C" size_t emulated_allocations() { return allocations; }
extern "C" size_t emulated_frees() { return frees; }

extern "C" size_t emulated_peak_pinned() {
    Lock lock(mutex);
    return peak_pinned_bytes;
}

// The number of live objects, including contexts, and 1 if this thread has a current context.
extern "C" size_t emulated_live() {
    Lock lock(mutex);
    size_t memory = ranges.size() + physical.size() + reserved.size() + pinned.size();
    size_t objects = live<Stream>.size() + live<Event>.size() + live<Module>.size() + live<Cublas>.size();
    objects += live<nccl::Comm>.size();
    return memory + objects + live<Graph>.size() + live<Executable>.size() + contexts + (current != 0);
}
