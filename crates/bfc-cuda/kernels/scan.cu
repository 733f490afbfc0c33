// Cumulative sums, in place. Floats are summed in double: a running sum in float would lose small elements.

// One thread per line, in order, as on the CPU. k = [elements of a line, distance between them], function 1: from last
// to first.
KERNEL(running_sum) {
    typedef Summed<WIDE>::type Sum;
    EACH(line) {
        u64 length = job.k[0];
        u64 step = job.k[1];
        u64 outer = quotient(line, step);
        u64 first = outer * length * step + (line - outer * step);
        Sum sum = (Sum)0;
        // Loads a few at a time, so that a thread waits for memory less often.
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
                    sum = plus(sum, (Sum)x[n]);
                    store<T>(job, 0, first + (job.function ? length - 1 - e : e) * step, (WIDE)sum);
                }
            }
        }
    }
}

// One block per line, for few lines, which would leave most of a device idle. The block sums one segment of the line at
// a time; each thread sums some neighbors, and a parallel scan adds the sums before them. The order depends only on the
// length, and differs from the CPU's.
BLOCK_KERNEL(running_sum_long) {
    typedef Summed<WIDE>::type Sum;
    SHARED Sum sums[BLOCK];
    u64 length = job.k[0];
    u64 step = job.k[1];
    for (u64 line = blockIdx.x; line < job.count; line += gridDim.x) {
        u64 outer = quotient(line, step);
        u64 first = outer * length * step + (line - outer * step);
        Sum before = (Sum)0;
        for (u64 start = threadIdx.x * AHEAD; start - threadIdx.x * AHEAD < length; start += BLOCK * AHEAD) {
            Sum x[AHEAD];
#pragma unroll
            for (u32 n = 0; n < AHEAD; ++n) {
                u64 e = start + n;
                bool has = e < length;
                x[n] = has ? (Sum)stored<T>(job, 0, first + (job.function ? length - 1 - e : e) * step) : (Sum)0;
            }
#pragma unroll
            for (u32 n = 1; n < AHEAD; ++n) x[n] = plus(x[n - 1], x[n]);
            Sum own = x[AHEAD - 1];
            for (u32 distance = 1; distance < BLOCK; distance *= 2) {
                sums[threadIdx.x] = own;
                __syncthreads();
                if (threadIdx.x >= distance) own = plus(sums[threadIdx.x - distance], own);
                __syncthreads();
            }
            sums[threadIdx.x] = own;
            __syncthreads();
            Sum left = threadIdx.x > 0 ? plus(before, sums[threadIdx.x - 1]) : before;
            before = plus(before, sums[BLOCK - 1]);
            __syncthreads();
#pragma unroll
            for (u32 n = 0; n < AHEAD; ++n) {
                u64 e = start + n;
                if (e < length) {
                    Sum sum = plus(left, x[n]);
                    store<T>(job, 0, first + (job.function ? length - 1 - e : e) * step, (WIDE)sum);
                }
            }
        }
    }
}
