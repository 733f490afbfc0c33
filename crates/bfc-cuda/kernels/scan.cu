// Running sums, in place.

// One thread for each line along an axis, in order, so that the sum is that of the CPU. k = [elements of a line, distance
// between them], function 1 from the last to the first.
KERNEL(running_sum) {
    EACH(line) {
        u64 length = job.k[0];
        u64 step = job.k[1];
        u64 outer = quotient(line, step);
        u64 first = outer * length * step + (line - outer * step);
        WIDE sum = (WIDE)0;
        // A few are loaded at a time, so that a thread does not wait for memory with each.
        for (u64 start = 0; start < length; start += AHEAD) {
            WIDE x[AHEAD];
#pragma unroll
            for (u32 n = 0; n < AHEAD; ++n) {
                u64 e = start + n;
                if (e < length) x[n] = stored<T>(job, 0, first + (job.function ? length - 1 - e : e) * step);
            }
#pragma unroll
            for (u32 n = 0; n < AHEAD; ++n) {
                u64 e = start + n;
                if (e < length) {
                    sum = e == 0 ? x[n] : plus(sum, x[n]);
                    store<T>(job, 0, first + (job.function ? length - 1 - e : e) * step, sum);
                }
            }
        }
    }
}

// The same with a block for each line: few lines would leave most of a device idle. The block takes a stretch of the line at a time, of
// which each thread sums some neighbours; what stands before them are the sums of the threads before, added up by rising distances,
// and those of the stretches before. So the order follows from the length alone, and is another than that of the CPU.
BLOCK_KERNEL(running_sum_long) {
    SHARED WIDE sums[BLOCK];
    u64 length = job.k[0];
    u64 step = job.k[1];
    for (u64 line = blockIdx.x; line < job.count; line += gridDim.x) {
        u64 outer = quotient(line, step);
        u64 first = outer * length * step + (line - outer * step);
        WIDE before = (WIDE)0;
        for (u64 start = threadIdx.x * AHEAD; start - threadIdx.x * AHEAD < length; start += BLOCK * AHEAD) {
            WIDE x[AHEAD];
#pragma unroll
            for (u32 n = 0; n < AHEAD; ++n) {
                u64 e = start + n;
                x[n] = e < length ? stored<T>(job, 0, first + (job.function ? length - 1 - e : e) * step) : (WIDE)0;
            }
#pragma unroll
            for (u32 n = 1; n < AHEAD; ++n) x[n] = plus(x[n - 1], x[n]);
            WIDE own = x[AHEAD - 1];
            for (u32 distance = 1; distance < BLOCK; distance *= 2) {
                sums[threadIdx.x] = own;
                __syncthreads();
                if (threadIdx.x >= distance) own = plus(sums[threadIdx.x - distance], own);
                __syncthreads();
            }
            sums[threadIdx.x] = own;
            __syncthreads();
            WIDE left = threadIdx.x > 0 ? plus(before, sums[threadIdx.x - 1]) : before;
            before = plus(before, sums[BLOCK - 1]);
            __syncthreads();
#pragma unroll
            for (u32 n = 0; n < AHEAD; ++n) {
                u64 e = start + n;
                if (e < length) {
                    store<T>(job, 0, first + (job.function ? length - 1 - e : e) * step, plus(left, x[n]));
                }
            }
        }
    }
}
