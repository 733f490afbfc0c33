// Running sums, in place.

// One thread for each line along an axis, in order, so that the sum is that of the CPU. k = [elements of a line, distance
// between them], function 1 from the last to the first.
KERNEL(running_sum) {
    EACH(line) {
        u64 length = job.k[0];
        u64 step = job.k[1];
        u64 outer = quotient(line, step);
        u64 first = outer * length * step + (line - outer * step);
        WIDE sum = stored<T>(job, 0, first + (job.function ? (length - 1) * step : 0));
        for (u64 e = 1; e < length; ++e) {
            u64 cell = first + (job.function ? length - 1 - e : e) * step;
            sum = plus(sum, stored<T>(job, 0, cell));
            store<T>(job, 0, cell, sum);
        }
    }
}
