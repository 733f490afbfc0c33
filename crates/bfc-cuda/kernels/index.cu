// Elements chosen by indices that are data.

// Writes to out[0] the least number of an index that is not below k[0]; it holds the largest number before.
KERNEL(check) {
    EACH(i) {
        i64 index = load<i64>(job, 0, i);
        if (index < 0 || (u64)index >= job.k[0]) {
            atomicMin(out<u64>(job, 0), i);
        }
    }
}

// out[i] = input[beside i, index[i]]: the job's shape is that of the indices; operand 0 is the input, whose stride along
// the axis chosen is k[1] and stands as 0 among its strides; operand 1 the indices.
KERNEL(gather) {
    each(job, [&](u64 i) { return (u64)load<i64>(job, 1, i); }, [&](u64 i, u64 index) {
        u64 beside = offset_in(job.rank, job.dims, job.in[0].strides, i);
        out<T>(job, 0)[i] = ((const T*)job.in[0].address)[beside + index * job.k[1]];
    });
}

// out[beside, index] += input: one thread for each line along the axis, in the order of the indices, so that the sum is
// the same every time; sums of halves are floats. The job's shape is that of the indices without the axis; operand 0 is the
// input, operand 1 the indices, operand 2 the output; k = [indices along the axis, strides along it of input, indices and
// output].
KERNEL(scatter_add) {
    EACH(line) {
        u64 from = offset_in(job.rank, job.dims, job.in[0].strides, line);
        const i64* index = (const i64*)job.in[1].address + offset_in(job.rank, job.dims, job.in[1].strides, line);
        WIDE* to = (WIDE*)job.in[2].address + offset_in(job.rank, job.dims, job.in[2].strides, line);
        for (u64 e = 0; e < job.k[0]; ++e) {
            WIDE* cell = to + (u64)index[e * job.k[2]] * job.k[3];
            *cell = plus(*cell, element_at<T>(job.in[0], from + e * job.k[1]));
        }
    }
}

// The same where the indices are the same for all lines, and also[0] their places in rising order of the index, equals in order
// (merge_runs). One thread for each place and line: that of the first place of an index adds up all elements that have it, and no others
// write there. The output, which may be of halves, holds zeros before.
KERNEL(scatter_add_sorted) {
    const i64* index = (const i64*)job.in[1].address;
    const i64* order = (const i64*)job.also[0];
    u64 length = job.k[0], lines = job.count / length;
    EACH(i) {
        u64 place = quotient(i, lines), line = i - place * lines;
        i64 own = index[(u64)order[place] * job.k[2]];
        if (place > 0 && index[(u64)order[place - 1] * job.k[2]] == own) continue;
        u64 from = offset_in(job.rank, job.dims, job.in[0].strides, line);
        WIDE sum = (WIDE)0;
        // A few are loaded at a time. Those with the index are the first of them.
        for (bool more = true; more; place += AHEAD) {
            WIDE x[AHEAD];
            bool has[AHEAD];
#pragma unroll
            for (u32 n = 0; n < AHEAD; ++n) {
                u64 e = place + n < length ? (u64)order[place + n] : 0;
                has[n] = place + n < length && index[e * job.k[2]] == own;
                if (has[n]) x[n] = element_at<T>(job.in[0], from + e * job.k[1]);
            }
#pragma unroll
            for (u32 n = 0; n < AHEAD; ++n) {
                if (has[n]) sum = plus(sum, x[n]);
            }
            more = has[AHEAD - 1];
        }
        u64 to = offset_in(job.rank, job.dims, job.in[2].strides, line) + (u64)own * job.k[3];
        if (sizeof(T) < sizeof(WIDE) && job.in[2].wide) {
            ((WIDE*)job.in[2].address)[to] = sum;
        } else {
            ((T*)job.in[2].address)[to] = (T)sum;
        }
    }
}

// out[row, c] = whether c is the index of the row; k[0] classes, count elements.
KERNEL(one_hot) {
    EACH(i) {
        u64 row = quotient(i, job.k[0]);
        u64 index = (u64)((const i64*)job.in[0].address)[place(job, job.in[0], row)];
        out<T>(job, 0)[i] = i - row * job.k[0] == index ? (T)1 : (T)0;
    }
}
