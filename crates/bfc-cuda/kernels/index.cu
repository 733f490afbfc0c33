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

// out[row, c] = whether c is the index of the row; k[0] classes, count elements.
KERNEL(one_hot) {
    EACH(i) {
        u64 row = quotient(i, job.k[0]);
        u64 index = (u64)((const i64*)job.in[0].address)[place(job, job.in[0], row)];
        out<T>(job, 0)[i] = i - row * job.k[0] == index ? (T)1 : (T)0;
    }
}
