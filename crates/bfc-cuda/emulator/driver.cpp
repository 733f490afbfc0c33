// A CUDA driver and an NVRTC that run the kernels on the host, for rehearsals of whole programs: scripts/gpu-check-rehearse.
//
// One device of 6 GiB of host memory. Work is done as soon as it is given, on whatever stream, by the emulator's kernels, which the
// library that HOST_KERNELS names has. Graphs are not supported, as on an old driver. It checks next to nothing of how it is
// called: for that there is tests/fake_driver.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <sys/mman.h>

namespace {

using u32 = uint32_t;
using u64 = uint64_t;

constexpr u32 SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_FOUND = 500, NOT_SUPPORTED = 801;
constexpr size_t TOTAL = size_t(6) << 30, GRANULARITY = 2 << 20;
constexpr char CODE[] = "code";

std::mutex mutex;
size_t used = 0;
u64 handles = 0;
std::map<u64, size_t> device_memory, pinned_memory;
thread_local size_t current = 0;

// Memory that is full of what nobody wrote.
void* taken(size_t bytes, size_t alignment) {
    void* memory = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (memory) memset(memory, 0xab, bytes < 4096 ? bytes : 4096);
    return memory;
}

u32 handle(size_t* out) {
    std::lock_guard<std::mutex> turn(mutex);
    *out = ++handles * 16;
    return SUCCESS;
}

}  // namespace

#define CALL(name, ...) extern "C" u32 name(__VA_ARGS__)

CALL(cuInit, u32) { return SUCCESS; }
CALL(cuDriverGetVersion, int* version) { return *version = 13000, SUCCESS; }
CALL(cuDeviceGetCount, int* count) { return *count = 1, SUCCESS; }
CALL(cuDeviceGet, int* device, int ordinal) { return *device = ordinal, ordinal == 0 ? SUCCESS : INVALID_DEVICE; }
CALL(cuDeviceGetName, char* name, int room, int) { return strncpy(name, "the host, in a GPU's place", room), SUCCESS; }
CALL(cuDeviceGetAttribute, int* value, int attribute, int) {
    // Compute capability 9.0; memory apart from addresses.
    return *value = attribute == 75 ? 9 : attribute == 102 ? 1 : 0, SUCCESS;
}
CALL(cuDeviceTotalMem_v2, size_t* bytes, int) { return *bytes = TOTAL, SUCCESS; }
CALL(cuDevicePrimaryCtxRetain, size_t* context, int device) { return *context = device + 1, SUCCESS; }
CALL(cuDevicePrimaryCtxRelease_v2, int) { return SUCCESS; }
CALL(cuCtxGetCurrent, size_t* context) { return *context = current, SUCCESS; }
CALL(cuCtxSetCurrent, size_t context) { return current = context, SUCCESS; }
CALL(cuCtxSynchronize) { return SUCCESS; }
CALL(cuGetErrorName, u32, const char**) { return INVALID_VALUE; }
CALL(cuGetErrorString, u32, const char**) { return INVALID_VALUE; }

CALL(cuMemGetInfo_v2, size_t* free_bytes, size_t* total) {
    std::lock_guard<std::mutex> turn(mutex);
    return *free_bytes = TOTAL - used, *total = TOTAL, SUCCESS;
}

CALL(cuMemAlloc_v2, u64* address, size_t bytes) {
    std::lock_guard<std::mutex> turn(mutex);
    if (bytes == 0) return INVALID_VALUE;
    void* memory = bytes > TOTAL - used ? nullptr : taken(bytes, 512);
    if (!memory) return OUT_OF_MEMORY;
    device_memory[*address = (u64)memory] = bytes;
    return used += bytes, SUCCESS;
}

CALL(cuMemFree_v2, u64 address) {
    std::lock_guard<std::mutex> turn(mutex);
    auto memory = device_memory.find(address);
    if (memory == device_memory.end()) return INVALID_VALUE;
    used -= memory->second;
    device_memory.erase(memory);
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

// Addresses and memory apart: a range that nobody may access, of which parts may be accessed.
CALL(cuMemGetAllocationGranularity, size_t* bytes, const void*, u32) { return *bytes = GRANULARITY, SUCCESS; }
CALL(cuMemAddressReserve, u64* address, size_t bytes, size_t, u64, u64) {
    void* range = mmap(nullptr, bytes + GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) return OUT_OF_MEMORY;
    return *address = ((u64)range + GRANULARITY - 1) / GRANULARITY * GRANULARITY, SUCCESS;
}
CALL(cuMemAddressFree, u64, size_t) { return SUCCESS; }
CALL(cuMemCreate, u64* out, size_t bytes, const void*, u64) {
    std::lock_guard<std::mutex> turn(mutex);
    if (bytes > TOTAL - used) return OUT_OF_MEMORY;
    return used += bytes, *out = ++handles, SUCCESS;
}
CALL(cuMemRelease, u64) { return SUCCESS; }
CALL(cuMemMap, u64 address, size_t bytes, size_t, u64, u64) {
    return mprotect((void*)address, bytes, PROT_READ | PROT_WRITE) == 0 ? SUCCESS : INVALID_VALUE;
}
CALL(cuMemSetAccess, u64, size_t, const void*, size_t) { return SUCCESS; }
CALL(cuMemUnmap, u64 address, size_t bytes) {
    std::lock_guard<std::mutex> turn(mutex);
    used -= bytes;
    madvise((void*)address, bytes, MADV_DONTNEED);
    return mprotect((void*)address, bytes, PROT_NONE) == 0 ? SUCCESS : INVALID_VALUE;
}

// All work has ended when it was given.
CALL(cuStreamCreate, size_t* stream, u32) { return handle(stream); }
CALL(cuStreamDestroy_v2, size_t) { return SUCCESS; }
CALL(cuStreamWaitEvent, size_t, size_t, u32) { return SUCCESS; }
CALL(cuStreamSynchronize, size_t) { return SUCCESS; }
CALL(cuEventCreate, size_t* event, u32) { return handle(event); }
CALL(cuEventDestroy_v2, size_t) { return SUCCESS; }
CALL(cuEventRecord, size_t, size_t) { return SUCCESS; }
CALL(cuEventQuery, size_t) { return SUCCESS; }
CALL(cuEventSynchronize, size_t) { return SUCCESS; }
CALL(cuMemcpyHtoDAsync_v2, u64 to, const void* from, size_t bytes, size_t) { return memcpy((void*)to, from, bytes), SUCCESS; }
CALL(cuMemcpyDtoHAsync_v2, void* to, u64 from, size_t bytes, size_t) { return memcpy(to, (void*)from, bytes), SUCCESS; }
CALL(cuMemcpyDtoDAsync_v2, u64 to, u64 from, size_t bytes, size_t) { return memmove((void*)to, (void*)from, bytes), SUCCESS; }

// Kernels by their names, in the emulator's library.
CALL(cuModuleLoadData, size_t* module, const void*) { return *module = 1, SUCCESS; }
CALL(cuModuleGetFunction, void** function, size_t, const char* name) {
    static void* kernels = dlopen(getenv("HOST_KERNELS") ? getenv("HOST_KERNELS") : "", RTLD_NOW);
    return *function = kernels ? dlsym(kernels, name) : nullptr, *function ? SUCCESS : NOT_FOUND;
}
CALL(cuLaunchKernel, void* function, u32 blocks, u32, u32, u32 threads, u32, u32, u32, size_t, void** arguments, void**) {
    if (blocks == 0 || threads != 256) return INVALID_VALUE;
    std::lock_guard<std::mutex> turn(mutex);
    // A few blocks do the work of all.
    return ((void (*)(u32, const void*))function)(blocks < 3 ? blocks : 3, arguments[0]), SUCCESS;
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
