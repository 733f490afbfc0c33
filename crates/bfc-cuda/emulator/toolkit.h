// An NVRTC that compiles nothing, and a cuBLAS that multiplies with the emulator's library.

// Statuses of cuBLAS.
constexpr u32 NOT_INITIALIZED = 1, ALLOC_FAILED = 3, EXECUTION_FAILED = 13;
// CUBLAS_COMPUTE_64F.
constexpr int COMPUTE_64F = 70;

// The CUDA version: 12 for a copy of this library named so, as in libnvrtc.so.12, else 13.
static int toolkit_major() {
    Dl_info info;
    std::string file = dladdr((void*)toolkit_major, &info) ? info.dli_fname : "";
    return file.size() > 3 && file.substr(file.size() - 3) == ".12" ? 12 : 13;
}

CALL(nvrtcVersion, int* major, int* minor) { return *major = toolkit_major(), *minor = 0, SUCCESS; }
CALL(nvrtcGetNumSupportedArchs, int* count) { return *count = 2, SUCCESS; }
CALL(nvrtcGetSupportedArchs, int* architectures) {
    return architectures[0] = toolkit_major() == 12 ? 70 : 80, architectures[1] = 90, SUCCESS;
}
CALL(nvrtcCreateProgram, size_t* program, const char*, const char*, int, const void*, const void*) { return *program = 1, SUCCESS; }
CALL(nvrtcDestroyProgram, size_t*) { return SUCCESS; }
CALL(nvrtcCompileProgram, size_t, int, const void*) { return SUCCESS; }
CALL(nvrtcGetProgramLogSize, size_t, size_t* bytes) { return *bytes = 1, SUCCESS; }
CALL(nvrtcGetProgramLog, size_t, char* text) { return *text = 0, SUCCESS; }
CALL(nvrtcGetPTXSize, size_t, size_t* bytes) { return *bytes = sizeof CODE, SUCCESS; }
CALL(nvrtcGetPTX, size_t, char* text) { return memcpy(text, CODE, sizeof CODE), SUCCESS; }
CALL(nvrtcGetCUBINSize, size_t, size_t* bytes) { return *bytes = sizeof CODE, SUCCESS; }
CALL(nvrtcGetCUBIN, size_t, char* text) { return memcpy(text, CODE, sizeof CODE), SUCCESS; }

// A handle, with the handle of the emulator's library.
struct Cublas {
    void* inner;
    Stream* stream;
};

// Calls a function of the emulator's library for products.
template <class... Arguments> static u32 products(const char* name, Arguments... arguments) {
    auto function = (u32 (*)(Arguments...))library_function("PRODUCTS", name);
    return function ? function(arguments...) : NOT_INITIALIZED;
}

CALL(cublasCreate_v2, Cublas** handle) {
    static std::atomic<u64> failures{0};
    u64 most = setting("CUBLAS_FAILURES");
    if (!has_code_memory()) return ALLOC_FAILED;
    if (failures < most) return ++failures, NOT_INITIALIZED;
    void* inner;
    if (u32 status = products("cublasCreate_v2", &inner)) return status;
    return *handle = created(new Cublas{inner, nullptr}), SUCCESS;
}
CALL(cublasDestroy_v2, Cublas* handle) {
    if (!ended(handle)) return NOT_INITIALIZED;
    wait_for_all();
    u32 status = products("cublasDestroy_v2", handle->inner);
    return delete handle, status;
}
CALL(cublasSetStream_v2, Cublas* handle, Stream* stream) { return handle->stream = stream, SUCCESS; }
CALL(cublasSetMathMode, Cublas* handle, int mode) { return products("cublasSetMathMode", handle->inner, mode); }
CALL(cublasGetVersion_v2, Cublas*, int* version) { return *version = toolkit_major() * 10000, SUCCESS; }
CALL(cublasGetProperty, int which, int* value) { return *value = which == 0 ? toolkit_major() : 0, SUCCESS; }
CALL(cublasSetWorkspace_v2, Cublas* handle, void* workspace, size_t bytes) {
    return products("cublasSetWorkspace_v2", handle->inner, workspace, bytes);
}
CALL(cublasGemmStridedBatchedEx, Cublas* handle, int lop, int rop, int rows, int columns, int depth, const void* alpha,
     const void* left, int ltype, int lleading, i64 lstep, const void* right, int rtype, int rleading, i64 rstep, const void* beta,
     void* out, int type, int leading, i64 step, int batch, int compute, int algorithm) {
    if (usable(handle->stream)) return EXECUTION_FAILED;
    for (const void* address : {left, right, (const void*)out}) if (check_access((u64)address, 1)) return EXECUTION_FAILED;
    // The caller's scalars end with the call.
    double scale = 0, keep = 0;
    memcpy(&scale, alpha, compute == COMPUTE_64F ? 8 : 4);
    memcpy(&keep, beta, compute == COMPUTE_64F ? 8 : 4);
    void* inner = handle->inner;
    auto multiply = [=](int count) {
        return products("cublasGemmStridedBatchedEx", inner, lop, rop, rows, columns, depth, (const void*)&scale, left, ltype, lleading,
                        lstep, right, rtype, rleading, rstep, (const void*)&keep, out, type, leading, step, count, compute, algorithm);
    };
    // A batch of none has its arguments checked.
    if (u32 status = multiply(0)) return status;
    return submit(handle->stream, [=] { multiply(batch); }) == SUCCESS ? SUCCESS : EXECUTION_FAILED;
}
