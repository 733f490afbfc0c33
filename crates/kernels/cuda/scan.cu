// Cumulative sums and products, in place. Floats are computed in double: a running sum in float would lose small
// elements. k = [elements of a line, distance between them], function 1: from last to first.

#ifndef HIGHWATER_SCAN
#define HIGHWATER_SCAN

struct Adds {
    static const int identity = 0;
    template <typename E> MEMBER static E join(E a, E b) { return plus(a, b); }
};

struct Multiplies {
    static const int identity = 1;
    template <typename E> MEMBER static E join(E a, E b) { return times(a, b); }
};

// One thread per line, in order, as on the CPU.
template <typename E, typename F>
DEVICE void scan(const Job& job) {
    typedef typename Computed<E>::type Wide;
    typedef typename Summed<Wide>::type Sum;
    EACH(line) {
        u64 length = job.k[0];
        u64 step = job.k[1];
        u64 outer = quotient(line, step);
        u64 first = outer * length * step + (line - outer * step);
        Sum total = (Sum)F::identity;
        // Loads a few at a time, so that a thread waits for memory less often.
        for (u64 start = 0; start < length; start += AHEAD) {
            Wide x[AHEAD];
#pragma unroll
            for (u32 n = 0; n < AHEAD; ++n) {
                u64 e = start + n;
                if (e < length) x[n] = stored<E>(job, 0, first + (job.function ? length - 1 - e : e) * step);
            }
#pragma unroll
            for (u32 n = 0; n < AHEAD; ++n) {
                u64 e = start + n;
                if (e < length) {
                    total = F::join(total, (Sum)x[n]);
                    store<E>(job, 0, first + (job.function ? length - 1 - e : e) * step, (Wide)total);
                }
            }
        }
    }
}

// One block per line, for few lines, which would leave most of a device idle. The block computes one segment of the line
// at a time; each thread joins some neighbors, and a parallel scan joins the results before them. The order depends only
// on the length, and differs from the CPU's.
template <typename E, typename F, typename Sum>
DEVICE void scan_long(const Job& job, Sum* totals) {
    typedef typename Computed<E>::type Wide;
    u64 length = job.k[0];
    u64 step = job.k[1];
    for (u64 line = blockIdx.x; line < job.count; line += gridDim.x) {
        u64 outer = quotient(line, step);
        u64 first = outer * length * step + (line - outer * step);
        Sum before = (Sum)F::identity;
        for (u64 start = threadIdx.x * AHEAD; start - threadIdx.x * AHEAD < length; start += BLOCK * AHEAD) {
            Sum x[AHEAD];
#pragma unroll
            for (u32 n = 0; n < AHEAD; ++n) {
                u64 e = start + n;
                bool has = e < length;
                x[n] = has ? (Sum)stored<E>(job, 0, first + (job.function ? length - 1 - e : e) * step) : (Sum)F::identity;
            }
#pragma unroll
            for (u32 n = 1; n < AHEAD; ++n) x[n] = F::join(x[n - 1], x[n]);
            Sum own = x[AHEAD - 1];
            for (u32 distance = 1; distance < BLOCK; distance *= 2) {
                totals[threadIdx.x] = own;
                __syncthreads();
                if (threadIdx.x >= distance) own = F::join(totals[threadIdx.x - distance], own);
                __syncthreads();
            }
            totals[threadIdx.x] = own;
            __syncthreads();
            Sum left = threadIdx.x > 0 ? F::join(before, totals[threadIdx.x - 1]) : before;
            before = F::join(before, totals[BLOCK - 1]);
            __syncthreads();
#pragma unroll
            for (u32 n = 0; n < AHEAD; ++n) {
                u64 e = start + n;
                if (e < length) {
                    Sum total = F::join(left, x[n]);
                    store<E>(job, 0, first + (job.function ? length - 1 - e : e) * step, (Wide)total);
                }
            }
        }
    }
}

#endif

KERNEL(running_sum) { scan<T, Adds>(job); }

KERNEL(running_product) { scan<T, Multiplies>(job); }

BLOCK_KERNEL(running_sum_long) {
    SHARED Summed<WIDE>::type totals[BLOCK];
    scan_long<T, Adds>(job, totals);
}

BLOCK_KERNEL(running_product_long) {
    SHARED Summed<WIDE>::type totals[BLOCK];
    scan_long<T, Multiplies>(job, totals);
}
