// A library with cuBLAS's interface on host memory: column-major, and as strict as cuBLAS about its arguments.

struct Products {
    void* stream;
    u64 workspace, bytes;
    int mode;
};

enum { OK = 0, NOT_INITIALISED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };

template <class T, class SUM, class OUT>
static void multiply(bool left_turned, bool right_turned, i64 rows, i64 columns, i64 depth, SUM alpha, const T* left,
                     i64 left_leading, const T* right, i64 right_leading, SUM beta, OUT* out, i64 leading) {
    for (i64 j = 0; j < columns; ++j) {
        for (i64 i = 0; i < rows; ++i) {
            SUM sum = 0;
            for (i64 k = 0; k < depth; ++k) {
                SUM a = (SUM)left[left_turned ? k + i * left_leading : i + k * left_leading];
                SUM b = (SUM)right[right_turned ? j + k * right_leading : k + j * right_leading];
                sum = std::fma(a, b, sum);
            }
            // With beta 0, the old values are not read: they may be anything.
            SUM before = beta == (SUM)0 ? (SUM)0 : beta * (SUM)out[i + j * leading];
            out[i + j * leading] = (OUT)(alpha * sum + before);
        }
    }
}

extern "C" int cublasCreate_v2(Products** handle) {
    *handle = new Products();
    return OK;
}

extern "C" int cublasDestroy_v2(Products* handle) {
    delete handle;
    return handle ? OK : NOT_INITIALISED;
}

extern "C" int cublasSetStream_v2(Products* handle, void* stream) {
    handle->stream = stream;
    return OK;
}

extern "C" int cublasSetMathMode(Products* handle, int mode) {
    handle->mode = mode;
    return mode == 16 ? OK : INVALID_VALUE;
}

extern "C" int cublasGetVersion_v2(Products*, int* version) {
    *version = 120900;
    return OK;
}

extern "C" int cublasSetWorkspace_v2(Products* handle, void* workspace, size_t bytes) {
    handle->workspace = (u64)workspace;
    handle->bytes = bytes;
    return handle->workspace % 256 == 0 ? OK : INVALID_VALUE;
}

extern "C" const char* cublasGetStatusString(int status) {
    return status == INVALID_VALUE ? "an invalid value" : "another status";
}

extern "C" int cublasGemmStridedBatchedEx(Products* handle, int left_op, int right_op, int rows, int columns, int depth,
                                          const void* alpha, const void* left, int left_type, int left_leading,
                                          long long left_step, const void* right, int right_type, int right_leading,
                                          long long right_step, const void* beta, void* out, int out_type,
                                          int leading, long long step, int batch, int compute, int) {
    bool left_turned = left_op == 1, right_turned = right_op == 1;
    if (!handle || handle->mode != 16) return NOT_INITIALISED;
    if (left_op < 0 || left_op > 1 || right_op < 0 || right_op > 1) return INVALID_VALUE;
    if (rows < 0 || columns < 0 || depth < 0 || batch < 0 || leading < (rows > 1 ? rows : 1)) return INVALID_VALUE;
    int left_least = left_turned ? depth : rows, right_least = right_turned ? columns : depth;
    if (left_leading < (left_least > 1 ? left_least : 1)) return INVALID_VALUE;
    if (right_leading < (right_least > 1 ? right_least : 1)) return INVALID_VALUE;
    // Half-precision factors may have a 32-bit product.
    bool wide = (left_type == 2 || left_type == 14) && out_type == 0;
    if (left_type != right_type || (left_type != out_type && !wide)) return NOT_SUPPORTED;
#define AS(T, SUM, OUT)                                                                                                    \
    for (int n = 0; n < batch; ++n)                                                                                   \
    multiply<T, SUM, OUT>(left_turned, right_turned, rows, columns, depth, *(const SUM*)alpha, (const T*)left + n * left_step, \
                     left_leading, (const T*)right + n * right_step, right_leading, *(const SUM*)beta,                \
                     (OUT*)out + n * step, leading)
    if (left_type == 0 && (compute == 68 || compute == 77)) AS(float, float, float);
    else if (left_type == 1 && compute == 70) AS(double, double, double);
    else if (left_type == 2 && compute == 68 && wide) AS(f16, float, float);
    else if (left_type == 2 && compute == 68) AS(f16, float, f16);
    else if (left_type == 14 && compute == 68 && wide) AS(bf16, float, float);
    else if (left_type == 14 && compute == 68) AS(bf16, float, bf16);
    else return NOT_SUPPORTED;
#undef AS
    return OK;
}
