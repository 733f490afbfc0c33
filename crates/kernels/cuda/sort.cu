// Sorts indices along the last axis: each launch merges sorted runs into runs twice as long.
//
// Each thread places one index of a pair of runs: after its predecessors in its own run and those of the other run,
// which a binary search counts. Equal elements of the first run come first, so the sort is stable.

#ifndef HIGHWATER_SORT
#define HIGHWATER_SORT

// NaN is larger than every number.
template <typename E>
DEVICE bool comes_before(E a, E b, bool descending) {
    E low = descending ? b : a;
    E high = descending ? a : b;
    return low < high || (not_a_number(high) && !not_a_number(low));
}

#endif

// The job's shape is that of the lines; operand 0 points to their starts; also[0] = the indices so far, unused for runs
// of 1; k = [indices of a line, indices of a run, distance between elements]; function 1: descending; count = all
// indices.
KERNEL(merge_runs, 4) {
    EACH(i) {
        u64 length = job.k[0];
        u64 run = job.k[1];
        bool descending = job.function == 1;
        u64 number = quotient(i, length);
        u64 line = number * length;
        u64 at = i - line;
        const T* elements = (const T*)job.in[0].address + offset_in(job.rank, job.dims, job.in[0].strides, number);
        const i64* from = (const i64*)job.also[0] + line;
        u64 pair = quotient(at, 2 * run) * (2 * run);
        bool is_second = at - pair >= run;
        u64 index = run == 1 ? at : (u64)from[at];
        WIDE element = (WIDE)elements[index * job.k[2]];
        // The other run is [begin, end) of the line.
        u64 begin = is_second ? pair : pair + run;
        u64 end = begin + run;
        begin = begin < length ? begin : length;
        end = end < length ? end : length;
        u64 low = begin;
        u64 high = end;
        while (low < high) {
            u64 middle = low + (high - low) / 2;
            WIDE other = (WIDE)elements[(run == 1 ? middle : (u64)from[middle]) * job.k[2]];
            bool passes = is_second ? !comes_before(element, other, descending) : comes_before(other, element, descending);
            if (passes) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        u64 own = at - pair - (is_second ? run : 0);
        out<i64>(job, 0)[line + pair + own + (low - begin)] = (i64)index;
    }
}
