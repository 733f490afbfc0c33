// The emulator's driver API: a CUDA driver, an NVRTC and a cuBLAS that run the kernels on the host, for whole programs
// (scripts/gpu-check-rehearse and tests of several devices).
//
// HOST_DEVICES devices (default 1) of 6 GiB of host memory each. Each stream is a thread that works in order and pauses
// at random, so that unordered work runs in any order. A device that accesses another device's memory is lost: each
// later call fails, as after host_device_lose. Kernels come from the emulator's library HOST_KERNELS and run one at a
// time. Products use the library HOST_PRODUCTS after all earlier work has ended. Graphs are not supported, as on an old
// driver. It hardly checks its arguments; tests/fake_driver does.

#include "host.h"
#include "../kernels/job.cuh"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <functional>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace {

constexpr u32 SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_HANDLE = 400, NOT_FOUND = 500,
              NOT_READY = 600, ILLEGAL_ADDRESS = 700, NOT_SUPPORTED = 801;
constexpr u32 INTERNAL_ERROR = 14; // of cuBLAS
constexpr int MOST_DEVICES = 4;
constexpr size_t TOTAL = size_t(6) << 30, GRANULARITY = 2 << 20;
constexpr char CODE[] = "code";

std::mutex mutex;
// Indexed by context: the device's number plus one, or 0.
size_t used[MOST_DEVICES + 1];
std::atomic<bool> lost[MOST_DEVICES + 1];
u64 handles = 0;
std::map<u64, size_t> device_memory, pinned_memory;
// Ranges of device memory, with their owners.
std::map<u64, std::pair<size_t, size_t>> ranges;
thread_local size_t current = 0;

int devices() {
    const char* said = getenv("HOST_DEVICES");
    int count = said ? atoi(said) : 1;
    return count < MOST_DEVICES ? count : MOST_DEVICES;
}

void own(u64 address, size_t bytes) { ranges[address] = {bytes, current}; }

// Whether an address belongs to another device.
bool is_foreign(u64 address) {
    std::lock_guard<std::mutex> turn(mutex);
    auto after = ranges.upper_bound(address);
    if (address == 0 || after == ranges.begin()) return false;
    auto [start, range] = *--after;
    return address < start + range.first && range.second != current;
}

// Checks the addresses that work accesses.
u32 touched(std::initializer_list<u64> addresses) {
    for (u64 address : addresses) if (is_foreign(address)) lost[current] = true;
    return lost[current] ? ILLEGAL_ADDRESS : SUCCESS;
}

// Allocates memory that is not zero.
void* taken(size_t bytes, size_t alignment) {
    void* memory = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (memory) memset(memory, 0xab, bytes < 4096 ? bytes : 4096);
    return memory;
}

// A stream: a thread that executes work in order.
class Stream {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> work;
    u64 given = 0, done = 0;

    void run() {
        unsigned seed = (unsigned)(size_t)this;
        for (;;) {
            std::unique_lock<std::mutex> lock(mutex);
            changed.wait(lock, [&] { return !work.empty(); });
            std::function<void()> next = std::move(work.front());
            work.pop_front();
            lock.unlock();
            if (rand_r(&seed) % 4 == 0) usleep(rand_r(&seed) % 300);
            next();
            lock.lock();
            ++done;
            changed.notify_all();
        }
    }

public:
    const size_t context = current;

    // Streams are never destroyed, because events may refer to them.
    Stream() { std::thread([this] { run(); }).detach(); }

    void give(std::function<void()> next) {
        std::lock_guard<std::mutex> lock(mutex);
        work.push_back(std::move(next));
        ++given;
        changed.notify_all();
    }

    u64 last() {
        std::lock_guard<std::mutex> lock(mutex);
        return given;
    }

    bool has_passed(u64 number) {
        std::lock_guard<std::mutex> lock(mutex);
        return done >= number;
    }

    void wait(u64 number) {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return done >= number; });
    }
};

// A position in a stream.
struct Event {
    Stream* stream;
    u64 number;
};

std::vector<Stream*> streams;
std::mutex kernel_turn;

void wait_for_all() {
    std::unique_lock<std::mutex> turn(mutex);
    std::vector<Stream*> now = streams;
    turn.unlock();
    for (Stream* stream : now) if (stream->context == current) stream->wait(stream->last());
}

void* of_library(const char* variable, const char* name) {
    const char* path = getenv(variable);
    void* library = path ? dlopen(path, RTLD_NOW) : nullptr;
    return library ? dlsym(library, name) : nullptr;
}

}  // namespace

#define CALL(name, ...) extern "C" u32 name(__VA_ARGS__)
#define UNLESS_LOST do { if (lost[current]) return ILLEGAL_ADDRESS; } while (0)
// The stream must belong to the current device.
#define OF_CURRENT(stream) do { UNLESS_LOST; if ((stream)->context != current) return INVALID_HANDLE; } while (0)

extern "C" void host_device_lose(int device) { lost[device + 1] = true; }
// Allocated bytes of a device.
extern "C" size_t host_device_used(int device) {
    std::lock_guard<std::mutex> turn(mutex);
    return used[device + 1];
}

CALL(cuInit, u32) { return SUCCESS; }
CALL(cuDriverGetVersion, int* version) { return *version = 13000, SUCCESS; }
CALL(cuDeviceGetCount, int* count) { return *count = devices(), SUCCESS; }
CALL(cuDeviceGet, int* device, int ordinal) { return *device = ordinal, ordinal < devices() ? SUCCESS : INVALID_DEVICE; }
CALL(cuDeviceGetName, char* name, int room, int) { return strncpy(name, "the host, in a GPU's place", room), SUCCESS; }
CALL(cuDeviceGetAttribute, int* value, int attribute, int) {
    // Compute capability 9.0, with virtual memory management.
    return *value = attribute == 75 ? 9 : attribute == 102 ? 1 : 0, SUCCESS;
}
CALL(cuDeviceTotalMem_v2, size_t* bytes, int) { return *bytes = TOTAL, SUCCESS; }
CALL(cuDevicePrimaryCtxRetain, size_t* context, int device) { return *context = device + 1, SUCCESS; }
CALL(cuDevicePrimaryCtxRelease_v2, int) { return SUCCESS; }
CALL(cuCtxGetCurrent, size_t* context) { return *context = current, SUCCESS; }
CALL(cuCtxSetCurrent, size_t context) { return current = context, SUCCESS; }
CALL(cuCtxSynchronize) {
    UNLESS_LOST;
    return wait_for_all(), SUCCESS;
}
CALL(cuGetErrorName, u32, const char**) { return INVALID_VALUE; }
CALL(cuGetErrorString, u32, const char**) { return INVALID_VALUE; }

CALL(cuMemGetInfo_v2, size_t* free_bytes, size_t* total) {
    std::lock_guard<std::mutex> turn(mutex);
    return *free_bytes = TOTAL - used[current], *total = TOTAL, SUCCESS;
}

CALL(cuMemAlloc_v2, u64* address, size_t bytes) {
    std::lock_guard<std::mutex> turn(mutex);
    UNLESS_LOST;
    if (bytes == 0) return INVALID_VALUE;
    void* memory = bytes > TOTAL - used[current] ? nullptr : taken(bytes, 512);
    if (!memory) return OUT_OF_MEMORY;
    device_memory[*address = (u64)memory] = bytes;
    own(*address, bytes);
    return used[current] += bytes, SUCCESS;
}

CALL(cuMemFree_v2, u64 address) {
    wait_for_all();
    std::lock_guard<std::mutex> turn(mutex);
    auto memory = device_memory.find(address);
    if (memory == device_memory.end() || ranges[address].second != current) return INVALID_VALUE;
    used[current] -= memory->second;
    device_memory.erase(memory);
    ranges.erase(address);
    return free((void*)address), SUCCESS;
}

CALL(cuMemHostAlloc, void** address, size_t bytes, u32) {
    std::lock_guard<std::mutex> turn(mutex);
    *address = taken(bytes, 4096);
    if (!*address) return OUT_OF_MEMORY;
    return pinned_memory[(u64)*address] = bytes, SUCCESS;
}

CALL(cuMemFreeHost, void* address) {
    std::lock_guard<std::mutex> turn(mutex);
    if (!pinned_memory.erase((u64)address)) return INVALID_VALUE;
    return free(address), SUCCESS;
}

// Virtual memory: a range without access, of which parts become accessible.
CALL(cuMemGetAllocationGranularity, size_t* bytes, const void*, u32) { return *bytes = GRANULARITY, SUCCESS; }
CALL(cuMemAddressReserve, u64* address, size_t bytes, size_t, u64, u64) {
    void* range = mmap(nullptr, bytes + GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) return OUT_OF_MEMORY;
    return *address = ((u64)range + GRANULARITY - 1) / GRANULARITY * GRANULARITY, SUCCESS;
}
CALL(cuMemAddressFree, u64, size_t) { return SUCCESS; }
CALL(cuMemCreate, u64* out, size_t bytes, const void*, u64) {
    std::lock_guard<std::mutex> turn(mutex);
    UNLESS_LOST;
    if (bytes > TOTAL - used[current]) return OUT_OF_MEMORY;
    return used[current] += bytes, *out = ++handles, SUCCESS;
}
CALL(cuMemRelease, u64) { return SUCCESS; }
CALL(cuMemMap, u64 address, size_t bytes, size_t, u64, u64) {
    std::lock_guard<std::mutex> turn(mutex);
    own(address, bytes);
    return mprotect((void*)address, bytes, PROT_READ | PROT_WRITE) == 0 ? SUCCESS : INVALID_VALUE;
}
CALL(cuMemSetAccess, u64, size_t, const void*, size_t) { return SUCCESS; }
CALL(cuMemUnmap, u64 address, size_t bytes) {
    std::lock_guard<std::mutex> turn(mutex);
    used[current] -= bytes;
    ranges.erase(address);
    madvise((void*)address, bytes, MADV_DONTNEED);
    return mprotect((void*)address, bytes, PROT_NONE) == 0 ? SUCCESS : INVALID_VALUE;
}

CALL(cuStreamCreate, Stream** stream, u32) {
    std::lock_guard<std::mutex> turn(mutex);
    return streams.push_back(*stream = new Stream), SUCCESS;
}
CALL(cuStreamDestroy_v2, Stream*) { return SUCCESS; }
CALL(cuStreamSynchronize, Stream* stream) {
    OF_CURRENT(stream);
    return stream->wait(stream->last()), SUCCESS;
}
CALL(cuStreamWaitEvent, Stream* stream, Event* event, u32) {
    OF_CURRENT(stream);
    // The event as recorded now.
    Event of = *event;
    if (of.stream) stream->give([of] { of.stream->wait(of.number); });
    return SUCCESS;
}
CALL(cuEventCreate, Event** event, u32) { return *event = new Event(), SUCCESS; }
CALL(cuEventDestroy_v2, Event* event) { return delete event, SUCCESS; }
CALL(cuEventRecord, Event* event, Stream* stream) {
    OF_CURRENT(stream);
    return *event = {stream, stream->last()}, SUCCESS;
}
CALL(cuEventQuery, Event* event) {
    UNLESS_LOST;
    return !event->stream || event->stream->has_passed(event->number) ? SUCCESS : NOT_READY;
}
CALL(cuEventSynchronize, Event* event) {
    UNLESS_LOST;
    if (event->stream) event->stream->wait(event->number);
    return SUCCESS;
}

CALL(cuMemcpyHtoDAsync_v2, u64 to, const char* from, size_t bytes, Stream* stream) {
    OF_CURRENT(stream);
    if (u32 code = touched({to})) return code;
    std::unique_lock<std::mutex> turn(mutex);
    auto after = pinned_memory.upper_bound((u64)from);
    bool pinned = after != pinned_memory.begin() && (u64)from < std::prev(after)->first + std::prev(after)->second;
    turn.unlock();
    if (pinned) return stream->give([=] { memcpy((void*)to, from, bytes); }), SUCCESS;
    // From pageable memory the driver copies the bytes at once.
    std::vector<char> taken(from, from + bytes);
    return stream->give([=] { memcpy((void*)to, taken.data(), bytes); }), SUCCESS;
}
CALL(cuMemcpyDtoHAsync_v2, void* to, u64 from, size_t bytes, Stream* stream) {
    OF_CURRENT(stream);
    if (u32 code = touched({from})) return code;
    return stream->give([=] { memcpy(to, (void*)from, bytes); }), SUCCESS;
}
CALL(cuMemcpyDtoDAsync_v2, u64 to, u64 from, size_t bytes, Stream* stream) {
    OF_CURRENT(stream);
    if (u32 code = touched({to, from})) return code;
    return stream->give([=] { memmove((void*)to, (void*)from, bytes); }), SUCCESS;
}

// Kernels by name, from the emulator's library.
CALL(cuModuleUnload, size_t) { return SUCCESS; }
CALL(cuModuleLoadData, size_t* module, const void*) { return *module = 1, SUCCESS; }
CALL(cuModuleGetFunction, void** function, size_t, const char* name) {
    return *function = of_library("HOST_KERNELS", name), *function ? SUCCESS : NOT_FOUND;
}
CALL(cuLaunchKernel, void* function, u32 blocks, u32, u32, u32 threads, u32, u32, u32, Stream* stream, void** arguments, void**) {
    if (blocks == 0 || threads != BLOCK) return INVALID_VALUE;
    OF_CURRENT(stream);
    Job job = *(const Job*)arguments[0];
    for (const Operand& in : job.in) if (u32 code = touched({in.address})) return code;
    for (const Output& out : job.out) if (u32 code = touched({out.address})) return code;
    if (u32 code = touched({job.also[0], job.also[1], job.also[2], job.also[3]})) return code;
    stream->give([=] {
        std::lock_guard<std::mutex> turn(kernel_turn);
        // Few blocks suffice: kernels loop until no element is left.
        ((void (*)(u32, const Job*))function)(blocks < 3 ? blocks : 3, &job);
    });
    return SUCCESS;
}

// Products, from the emulator's library.
#define PRODUCTS(name, types, ...) ((u32 (*) types)of_library("HOST_PRODUCTS", #name))(__VA_ARGS__)
CALL(cublasCreate_v2, void** handle) { return PRODUCTS(cublasCreate_v2, (void**), handle); }
CALL(cublasDestroy_v2, void* handle) { return PRODUCTS(cublasDestroy_v2, (void*), handle); }
CALL(cublasSetStream_v2, void* handle, void* stream) { return PRODUCTS(cublasSetStream_v2, (void*, void*), handle, stream); }
CALL(cublasSetMathMode, void* handle, int mode) { return PRODUCTS(cublasSetMathMode, (void*, int), handle, mode); }
CALL(cublasGetVersion_v2, void* handle, int* version) { return PRODUCTS(cublasGetVersion_v2, (void*, int*), handle, version); }
CALL(cublasSetWorkspace_v2, void* handle, void* workspace, size_t bytes) {
    return PRODUCTS(cublasSetWorkspace_v2, (void*, void*, size_t), handle, workspace, bytes);
}
CALL(cublasGemmStridedBatchedEx, void* handle, int lop, int rop, int rows, int columns, int depth, const void* alpha, const void* left,
     int ltype, int lleading, i64 lstep, const void* right, int rtype, int rleading, i64 rstep, const void* beta, void* out, int type,
     int leading, i64 step, int batch, int compute, int algorithm) {
    if (touched({(u64)left, (u64)right, (u64)out})) return INTERNAL_ERROR;
    wait_for_all();
    return PRODUCTS(cublasGemmStridedBatchedEx,
                    (void*, int, int, int, int, int, const void*, const void*, int, int, i64, const void*, int, int, i64, const void*,
                     void*, int, int, i64, int, int, int),
                    handle, lop, rop, rows, columns, depth, alpha, left, ltype, lleading, lstep, right, rtype, rleading, rstep, beta, out,
                    type, leading, step, batch, compute, algorithm);
}

CALL(cuStreamBeginCapture_v2, size_t, u32) { return NOT_SUPPORTED; }
CALL(cuStreamEndCapture, size_t, size_t*) { return NOT_SUPPORTED; }
CALL(cuGraphCreate, size_t*, u32) { return NOT_SUPPORTED; }
CALL(cuGraphAddKernelNode_v2) { return NOT_SUPPORTED; }
CALL(cuGraphAddChildGraphNode) { return NOT_SUPPORTED; }
CALL(cuGraphInstantiateWithFlags) { return NOT_SUPPORTED; }
CALL(cuGraphExecKernelNodeSetParams_v2) { return NOT_SUPPORTED; }
CALL(cuGraphLaunch) { return NOT_SUPPORTED; }
CALL(cuGraphExecDestroy) { return SUCCESS; }
CALL(cuGraphDestroy) { return SUCCESS; }

// The compiler compiles nothing.
CALL(nvrtcVersion, int* major, int* minor) { return *major = 13, *minor = 0, SUCCESS; }
CALL(nvrtcGetNumSupportedArchs, int* count) { return *count = 1, SUCCESS; }
CALL(nvrtcGetSupportedArchs, int* architectures) { return *architectures = 90, SUCCESS; }
CALL(nvrtcCreateProgram, size_t* program, const char*, const char*, int, const void*, const void*) { return *program = 1, SUCCESS; }
CALL(nvrtcDestroyProgram, size_t*) { return SUCCESS; }
CALL(nvrtcCompileProgram, size_t, int, const void*) { return SUCCESS; }
CALL(nvrtcGetProgramLogSize, size_t, size_t* bytes) { return *bytes = 1, SUCCESS; }
CALL(nvrtcGetProgramLog, size_t, char* text) { return *text = 0, SUCCESS; }
CALL(nvrtcGetPTXSize, size_t, size_t* bytes) { return *bytes = sizeof CODE, SUCCESS; }
CALL(nvrtcGetPTX, size_t, char* text) { return memcpy(text, CODE, sizeof CODE), SUCCESS; }
CALL(nvrtcGetCUBINSize, size_t, size_t* bytes) { return *bytes = sizeof CODE, SUCCESS; }
CALL(nvrtcGetCUBIN, size_t, char* text) { return memcpy(text, CODE, sizeof CODE), SUCCESS; }
