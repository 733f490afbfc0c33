// The order of elements along the last axis: indices, merged from sorted runs into runs twice as long, launch by launch.
//
// Of a pair of runs each thread places one index: it stands after those before it in its own run and after those of the
// other run that come before it, which a binary search counts. Equals of the first run come before those of the second.

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

// The job's shape is that of the lines; operand 0 is the elements at their starts, also[0] the indices so far, which for
// runs of 1 are not read; k = [indices of a line, indices of a run, distance between elements], function 1 for the largest
// first; count indices in all.
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
