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
