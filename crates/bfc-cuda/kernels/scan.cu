// Running sums, in place.

// One thread for each line along an axis, in order, so that the sum is that of the CPU. k = [elements of a line, distance
// between them], function 1 from the last to the first.
KERNEL(running_sum) {
    EACH(line) {
        u64 length = job.k[0];
        u64 step = job.k[1];
        u64 outer = quotient(line, step);
        T* first = out<T>(job, 0) + outer * length * step + (line - outer * step);
        T sum = first[job.function ? (length - 1) * step : 0];
        for (u64 e = 1; e < length; ++e) {
            T* cell = first + (job.function ? length - 1 - e : e) * step;
            sum = plus(sum, *cell);
            *cell = sum;
        }
    }
}
