// The kernels of the self-check, for float. They need no header but job.cuh.

#define EACH_OF(i, count) for (u64 i = (u64)blockIdx.x * BLOCK + threadIdx.x; i < count; i += (u64)gridDim.x * BLOCK)

DEVICE const float* check_in(const Job& job, u32 n) { return (const float*)job.in[n].address; }
DEVICE float* check_out(const Job& job) { return (float*)job.out[0].address; }

// out[i] = c
KERNEL(check_fill) { EACH_OF(i, job.count) check_out(job)[i] = (float)job.c[0]; }

// out[i] = in[i] + c
KERNEL(check_add) { EACH_OF(i, job.count) check_out(job)[i] = check_in(job, 0)[i] + (float)job.c[0]; }

// out[i] = in[i] · c
KERNEL(check_scale) { EACH_OF(i, job.count) check_out(job)[i] = check_in(job, 0)[i] * (float)job.c[0]; }

// out[0] = Σ in[k] over k[0] elements, by one thread
KERNEL(check_sum) {
    EACH_OF(i, job.count) {
        float sum = 0;
        for (u64 k = 0; k < job.k[0]; ++k) sum += check_in(job, 0)[k];
        check_out(job)[i] = sum;
    }
}

// out = in[0] · in[1], contiguous matrices of k[0] rows, k[1] columns and depth k[2]
KERNEL(check_product) {
    EACH_OF(i, job.count) {
        float sum = 0;
        for (u64 k = 0; k < job.k[2]; ++k) {
            sum += check_in(job, 0)[i / job.k[1] * job.k[2] + k] * check_in(job, 1)[k * job.k[1] + i % job.k[1]];
        }
        check_out(job)[i] = sum;
    }
}
