// A stand-in for the CUDA driver, the CUDA runtime and cuBLAS: one device of addresses without memory, on which kernels
// do nothing. PyTorch's CUDA build then runs real training steps, with its real allocator, on a machine without a GPU.
// Results of kernels are meaningless. `make_labeled.py` has the commands.
#include <cuda_runtime_api.h>
#include <cublas_v2.h>
#include <cublasLt.h>
#include <sys/mman.h>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace {
constexpr size_t capacity = size_t{8} << 30, unit = size_t{2} << 20;
std::mutex lock;
uintptr_t next_address = 0;

// Addresses are never reused: the allocator keeps its segments.
void* take(size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    if (next_address == 0) {
        void* range = mmap(nullptr, size_t{1} << 40, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        next_address = (reinterpret_cast<uintptr_t>(range) + unit - 1) & ~(unit - 1);
    }
    uintptr_t address = next_address;
    next_address += (bytes + unit - 1) & ~(unit - 1);
    return reinterpret_cast<void*>(address);
}
void copy(void* to, size_t bytes, cudaMemcpyKind kind) {
    if (kind == cudaMemcpyDeviceToHost) memset(to, 0, bytes);
}
}  // namespace

#define OK return cudaSuccess
extern "C" {
cudaError_t cudaMalloc(void** p, size_t n) { *p = take(n); OK; }
cudaError_t cudaFree(void*) { OK; }
cudaError_t cudaMemGetInfo(size_t* f, size_t* t) { *f = *t = capacity; OK; }
cudaError_t cudaGetDevice(int* d) { *d = 0; OK; }
cudaError_t cudaSetDevice(int) { OK; }
cudaError_t cudaGetDeviceCount(int* n) { *n = 1; OK; }
cudaError_t cudaDriverGetVersion(int* v) { *v = 13020; OK; }
cudaError_t cudaRuntimeGetVersion(int* v) { *v = 13020; OK; }
cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr, int) { *v = 128; OK; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* a, int* b) { *a = *b = 0; OK; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
    memset(p, 0, sizeof *p);
    strcpy(p->name, "device of addresses");
    p->totalGlobalMem = capacity;
    p->major = 8;
    p->multiProcessorCount = 108;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->sharedMemPerBlock = 49152;
    p->sharedMemPerBlockOptin = 166912;
    p->sharedMemPerMultiprocessor = 167936;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    for (int& size : p->maxGridSize) size = 2147483647;
    for (int& size : p->maxThreadsDim) size = 1024;
    OK;
}
cudaError_t cudaGetLastError() { OK; }
cudaError_t cudaPeekAtLastError() { OK; }
const char* cudaGetErrorString(cudaError_t) { return "error of the stand-in"; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* s) { *s = cudaStreamCaptureStatusNone; OK; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* s, unsigned long long*, cudaGraph_t*,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
    *s = cudaStreamCaptureStatusNone; OK;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { OK; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) { *s = (cudaStream_t)malloc(8); OK; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) { *s = (cudaStream_t)malloc(8); OK; }
cudaError_t cudaStreamDestroy(cudaStream_t) { OK; }
cudaError_t cudaStreamGetPriority(cudaStream_t, int* p) { *p = 0; OK; }
cudaError_t cudaStreamQuery(cudaStream_t) { OK; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { OK; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { OK; }
cudaError_t cudaDeviceSynchronize() { OK; }
cudaError_t cudaEventCreate(cudaEvent_t* e) { *e = (cudaEvent_t)malloc(8); OK; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { *e = (cudaEvent_t)malloc(8); OK; }
cudaError_t cudaEventDestroy(cudaEvent_t e) { free(e); OK; }
cudaError_t cudaEventQuery(cudaEvent_t) { OK; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { OK; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t, cudaStream_t, unsigned) { OK; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { OK; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024; a->ptxVersion = a->binaryVersion = 80; a->numRegs = 32;
    OK;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { OK; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void*, int, size_t) { *n = 2; OK; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int, size_t, unsigned) { *n = 2; OK; }
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) { OK; }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) { OK; }
cudaError_t cudaMemset(void*, int, size_t) { OK; }
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) { OK; }
cudaError_t cudaMemcpy(void* to, const void*, size_t n, cudaMemcpyKind kind) { copy(to, n, kind); OK; }
cudaError_t cudaMemcpyAsync(void* to, const void*, size_t n, cudaMemcpyKind kind, cudaStream_t) { copy(to, n, kind); OK; }
cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) { *p = malloc(n); OK; }
cudaError_t cudaFreeHost(void* p) { free(p); OK; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
    memset(a, 0, sizeof *a); a->type = cudaMemoryTypeUnregistered; a->hostPointer = (void*)p; OK;
}
cudaError_t cudaDeviceCanAccessPeer(int* r, int, int) { *r = 0; OK; }
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** f, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* r);
}
static int nothing(...) { return 0; }
static int some_device(int* d, int) { *d = 0; return 0; }
static int primary_context(int, unsigned* flags, int* active) { *flags = 0; *active = 1; return 0; }
extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** f, unsigned, unsigned long long,
                                                        cudaDriverEntryPointQueryResult* r) {
    if (r) *r = cudaDriverEntryPointSuccess;
    *f = (void*)nothing;
    if (!strcmp(name, "cuDeviceGet") || !strcmp(name, "cuDeviceGetAttribute")) *f = (void*)some_device;
    if (!strcmp(name, "cuDevicePrimaryCtxGetState")) *f = (void*)primary_context;
    OK;
}
#define DONE(name) extern "C" int name##_done() asm(#name); extern "C" int name##_done() { return 0; }
#define MADE(name) extern "C" int name##_made(void** p) asm(#name); extern "C" int name##_made(void** p) { *p = malloc(64); return 0; }
MADE(cublasCreate_v2) DONE(cublasDestroy_v2) DONE(cublasSetStream_v2) DONE(cublasSetWorkspace_v2) DONE(cublasSetMathMode)
DONE(cublasGetMathMode) DONE(cublasSetPointerMode_v2) DONE(cublasGetPointerMode_v2) DONE(cublasSgemm_v2) DONE(cublasSgemmStridedBatched)
DONE(cublasGemmEx) DONE(cublasGemmStridedBatchedEx) DONE(cublasSgemv_v2) DONE(cublasSgemmEx) DONE(cublasSdot_v2) DONE(cublasSetSmCountTarget)
MADE(cublasLtCreate) MADE(cublasLtMatmulDescCreate) DONE(cublasLtMatmulDescDestroy) DONE(cublasLtMatmulDescSetAttribute)
MADE(cublasLtMatmulPreferenceCreate) DONE(cublasLtMatmulPreferenceDestroy) DONE(cublasLtMatmulPreferenceSetAttribute)
MADE(cublasLtMatrixLayoutCreate) DONE(cublasLtMatrixLayoutDestroy) DONE(cublasLtMatrixLayoutSetAttribute) DONE(cublasLtMatmul)
extern "C" cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
    cublasLtMatmulHeuristicResult_t* found, int* count) {
    memset(found, 0, sizeof *found); *count = 1; return CUBLAS_STATUS_SUCCESS;
}
// The driver, which is loaded by name.
DONE(cuCtxGetCurrent) DONE(cuCtxSetCurrent) DONE(cuDeviceGet) DONE(cuDeviceGetAttribute)
DONE(cuDevicePrimaryCtxGetState) DONE(cuDevicePrimaryCtxRetain) DONE(cuFuncGetAttribute)
DONE(cuFuncSetAttribute) DONE(cuFuncSetCacheConfig) DONE(cuGetErrorString) DONE(cuLaunchCooperativeKernel)
DONE(cuLaunchKernel) DONE(cuLinkAddData_v2) DONE(cuLinkComplete) DONE(cuLinkCreate_v2)
DONE(cuModuleGetFunction) DONE(cuModuleLoad) DONE(cuModuleLoadData) DONE(cuModuleLoadDataEx)
DONE(cuModuleUnload) DONE(cuOccupancyMaxActiveBlocksPerMultiprocessor) DONE(cuPointerGetAttribute)
DONE(cuTensorMapEncodeTiled)
