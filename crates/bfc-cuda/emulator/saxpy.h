// The kernel of programs that compile their own: y[i] += a * x[i].
//
//     extern "C" __global__ void saxpy(float* y, const float* x, float a, size_t n)

static void saxpy(float* y, const float* x, float a, size_t n) {
    for (size_t i = 0; i < n; ++i) y[i] += a * x[i];
}

// Checks a launch of the kernel with these arguments; returns its work.
static u32 check_saxpy(void** arguments, Work& work) {
    float* y = *(float**)arguments[0];
    const float* x = *(const float**)arguments[1];
    float a = *(float*)arguments[2];
    size_t n = *(size_t*)arguments[3];
    for (u64 address : {(u64)y, (u64)x}) if (u32 status = check_access(address, n * sizeof(float))) return status;
    return work = [=] { saxpy(y, x, a, n); }, SUCCESS;
}
