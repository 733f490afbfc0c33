// Gather, scatter and one-hot.

// Writes to out[0] the position of the first index that is not below k[0]; out[0] holds the largest integer before.
KERNEL(check) {
    EACH(i) {
        i64 index = load<i64>(job, 0, i);
        if (index < 0 || (u64)index >= job.k[0]) {
            atomicMin(out<u64>(job, 0), i);
        }
    }
}

// out[i] = input[.., index[i], ..]: the job's shape is that of the indices; operand 0 is the input, with stride 0 along
// the indexed axis, whose real stride is k[1]; operand 1 the indices.
KERNEL(gather) {
    const u32 N = filling(sizeof(T));
    // Whether neighbors have the same index and lie together, as in rows of a table.
    bool in_rows = job.packed && !job.in[1].contiguous && job.in[1].strides[job.rank - 1] == 0 &&
                   job.in[0].strides[job.rank - 1] == 1 && job.k[1] % N == 0;
    if (in_rows) {
        // Rows consist of packs, so that no elements remain.
        handfuls<N>(job, [&](const Handful& few) {
            u64 index = (u64)load<i64>(job, 1, few.first);
            u64 beside = offset_in(job.rank, job.dims, job.in[0].strides, few.first);
            T x[N];
            unpack<T>(job.in[0].address, beside + index * job.k[1], x);
            pack<T>(job.out[0].address, few.first, x);
        });
        return;
    }
    each(job, [&](u64 i) { return (u64)load<i64>(job, 1, i); }, [&](u64 i, u64 index) {
        u64 beside = offset_in(job.rank, job.dims, job.in[0].strides, i);
        out<T>(job, 0)[i] = ((const T*)job.in[0].address)[beside + index * job.k[1]];
    });
}

// out[.., index, ..] += input: one thread per line along the axis, in the order of the indices, so that sums are
// deterministic. Half-precision sums are floats. The job's shape is that of the indices without the axis; operand 0 is
// the input, operand 1 the indices, operand 2 the output; k = [indices along the axis, strides along it of input,
// indices and output].
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

// Like scatter_add, where all lines share the indices, and also[0] lists their positions sorted by index, stable
// (merge_runs). One thread per position and line: the first position of an index sums all elements with it. The output,
// which may be half precision, starts at zero. function 1: rounds only the complete sum, not each partial one.
KERNEL(scatter_add_sorted) {
    const i64* index = (const i64*)job.in[1].address;
    const i64* order = (const i64*)job.also[0];
    u64 length = job.k[0], lines = job.count / length;
    EACH(i) {
        u64 place = quotient(i, lines), line = i - place * lines;
        i64 own = index[(u64)order[place] * job.k[2]];
        if (place > 0 && index[(u64)order[place - 1] * job.k[2]] == own) continue;
        u64 from = offset_in(job.rank, job.dims, job.in[0].strides, line);
        Summed<WIDE>::type sum = 0;
        // Loads a few at a time; those with the index come first.
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
                if (!has[n]) continue;
                sum = plus(sum, (Summed<WIDE>::type)x[n]);
                if (!job.function) sum = (WIDE)sum;
            }
            more = has[AHEAD - 1];
        }
        u64 to = offset_in(job.rank, job.dims, job.in[2].strides, line) + (u64)own * job.k[3];
        if (sizeof(T) < sizeof(WIDE) && job.in[2].wide) {
            ((WIDE*)job.in[2].address)[to] = (WIDE)sum;
        } else {
            ((T*)job.in[2].address)[to] = (T)(WIDE)sum;
        }
    }
}

// out[row, c] = (c == index of the row); k[0] = classes, count = elements.
KERNEL(one_hot) {
    EACH(i) {
        u64 row = quotient(i, job.k[0]);
        u64 index = (u64)((const i64*)job.in[0].address)[place(job, job.in[0], row)];
        out<T>(job, 0)[i] = i - row * job.k[0] == index ? (T)1 : (T)0;
    }
}
