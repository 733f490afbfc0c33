// Folds over axes. The job's shape is that of the kept axes, its inner shape that of the reduced ones; operand 0 has the
// strides of the kept axes, operand 1 those of the reduced ones and no address.
//
// An output's sequence is cut into k[1] slabs of k[2] of its k[0] elements; the result of slab s for output o goes to
// s * count + o, divided by c[0] if k[3] is not 0. Which elements a thread folds, and in which order results are joined,
// follows from the shape alone.

#ifndef HIGHWATER_FOLD
#define HIGHWATER_FOLD

// Reductions of crates/kernels/src/families/reduce/functions.rs.
template <typename E>
DEVICE E fold(u64 function, E a, E b) {
    switch ((u32)function) {
        case NAMED("max"): return larger(a, b);
        case NAMED("min"): return smaller(a, b);
        case NAMED("prod"): return times(a, b);
        case NAMED("sum"):
        case NAMED("sum_magnitudes"):
        case NAMED("sum_squares"): return plus(a, b);
        default: return undefined((E)0);
    }
}

// The value of an element before the reduction.
template <typename E>
DEVICE E element(u64 function, E a) {
    switch ((u32)function) {
        case NAMED("sum_magnitudes"): return magnitude(a);
        case NAMED("sum_squares"): return times(a, a);
        default: return a;
    }
}

template <typename E>
DEVICE E result(const Job& job, E folded) {
    return job.k[3] ? over(folded, (E)job.c[0]) : folded;
}

DEVICE u64 inner(const Job& job, u64 e) {
    return job.in[1].contiguous ? e : offset_in(job.inner_rank, job.inner_dims, job.in[1].strides, e);
}

// Element e of the sequence at an offset.
template <typename E>
DEVICE typename Computed<E>::type along(const Job& job, u64 first, u64 e) {
    return element_at<E>(job.in[0], first + inner(job, e));
}

// How many elements of a sequence a thread loads before it folds the first.
#define FOLDED_AHEAD 8

// Reduces every `step`-th element of a sequence from `e` to below `to`, at least one, in order.
template <typename E, typename Load>
DEVICE E fold_run(u64 function, u64 e, u64 to, u64 step, Load load) {
    E folded = element(function, load(e));
    for (e += step; e + (FOLDED_AHEAD - 1) * step < to; e += FOLDED_AHEAD * step) {
        E x[FOLDED_AHEAD];
#pragma unroll
        for (u32 n = 0; n < FOLDED_AHEAD; ++n) x[n] = load(e + n * step);
#pragma unroll
        for (u32 n = 0; n < FOLDED_AHEAD; ++n) folded = fold(function, folded, element(function, x[n]));
    }
    // The rest, fewer than FOLDED_AHEAD.
    E x[FOLDED_AHEAD - 1];
#pragma unroll
    for (u32 n = 0; n < FOLDED_AHEAD - 1; ++n) {
        if (e + n * step < to) x[n] = load(e + n * step);
    }
#pragma unroll
    for (u32 n = 0; n < FOLDED_AHEAD - 1; ++n) {
        if (e + n * step < to) folded = fold(function, folded, element(function, x[n]));
    }
    return folded;
}

// As fold_run: in runs and then over runs, so that the rounding error of a sum of n elements grows with n / RUN + RUN
// instead of n.
template <typename E>
DEVICE typename Computed<E>::type fold_steps(const Job& job, u64 first, u64 e, u64 to, u64 step) {
    typedef typename Computed<E>::type Wide;
    const u64 RUN = 256;
    // One axis has the same distance between all elements.
    bool even = job.in[1].contiguous || job.inner_rank == 1;
    u64 distance = job.in[1].contiguous ? 1 : job.in[1].strides[0];
    Wide whole = (Wide)0;
    for (bool is_first = true; e < to; is_first = false) {
        u64 end = to - e > RUN * step ? e + RUN * step : to;
        Wide run = even ? fold_run<Wide>(job.function, e, end, step, [&](u64 at) { return element_at<E>(job.in[0], first + at * distance); })
                        : fold_run<Wide>(job.function, e, end, step, [&](u64 at) { return along<E>(job, first, at); });
        whole = is_first ? run : fold(job.function, whole, run);
        e += RUN * step;
    }
    return whole;
}

// Whether x is larger (function max) or smaller than the best so far; NaN always wins.
template <typename E>
DEVICE bool more_extreme(u64 function, E x, E best) {
    if (not_a_number(best)) return false;
    return not_a_number(x) || (function == NAMED("max") ? x > best : x < best);
}

#endif

// One thread per output and slab, for short sequences.
KERNEL(reduce_serial, 4) {
    u64 slabs = job.k[1];
    for (u64 n = blockIdx.x * (u64)BLOCK + threadIdx.x; n < job.count * slabs; n += gridDim.x * (u64)BLOCK) {
        u64 s = quotient(n, job.count);
        u64 o = n - s * job.count;
        u64 from = s * job.k[2];
        u64 to = from + job.k[2] < job.k[0] ? from + job.k[2] : job.k[0];
        store<T>(job, 0, n, result(job, fold_steps<T>(job, place(job, job.in[0], o), from, to, 1)));
    }
}

// One block per output and slab, for long contiguous sequences.
BLOCK_KERNEL(reduce_rows, 4) {
    SHARED WIDE folded[BLOCK];
    u64 slabs = job.k[1];
    for (u64 n = blockIdx.x; n < job.count * slabs; n += gridDim.x) {
        u64 s = quotient(n, job.count);
        u64 o = n - s * job.count;
        u64 from = s * job.k[2];
        u64 to = from + job.k[2] < job.k[0] ? from + job.k[2] : job.k[0];
        u64 e = from + threadIdx.x;
        if (e < to) {
            folded[threadIdx.x] = fold_steps<T>(job, place(job, job.in[0], o), e, to, BLOCK);
        }
        __syncthreads();
        u64 filled = to - from < BLOCK ? to - from : BLOCK;
        for (u32 step = BLOCK / 2; step > 0; step /= 2) {
            if (threadIdx.x < step && threadIdx.x + step < filled) {
                folded[threadIdx.x] = fold(job.function, folded[threadIdx.x], folded[threadIdx.x + step]);
            }
            __syncthreads();
        }
        if (threadIdx.x == 0) {
            store<T>(job, 0, n, result(job, folded[0]));
        }
        __syncthreads();
    }
}

// One block per 32 neighboring outputs and slab, for strided sequences.
BLOCK_KERNEL(reduce_columns, 4) {
    SHARED WIDE folded[8][32];
    u64 tiles = (job.count + 31) / 32;
    u32 column = threadIdx.x % 32;
    u32 row = threadIdx.x / 32;
    for (u64 n = blockIdx.x; n < tiles * job.k[1]; n += gridDim.x) {
        u64 slab = n / tiles;
        u64 o = n % tiles * 32 + column;
        u64 from = slab * job.k[2];
        u64 to = from + job.k[2] < job.k[0] ? from + job.k[2] : job.k[0];
        u64 e = from + row;
        if (o < job.count && e < to) {
            folded[row][column] = fold_steps<T>(job, place(job, job.in[0], o), e, to, 8);
        }
        __syncthreads();
        if (row == 0 && o < job.count) {
            WIDE whole = folded[0][column];
            for (u32 other = 1; other < 8 && from + other < to; ++other) {
                whole = fold(job.function, whole, folded[other][column]);
            }
            store<T>(job, 0, slab * job.count + o, result(job, whole));
        }
        __syncthreads();
    }
}

// The index of the first maximum (function max) or minimum; NaN wins. One thread per output.
KERNEL(arg_reduce) {
    EACH(o) {
        u64 first = place(job, job.in[0], o);
        WIDE best = along<T>(job, first, 0);
        u64 index = 0;
        for (u64 e = 1; e < job.k[0] && !not_a_number(best); ++e) {
            WIDE x = along<T>(job, first, e);
            if (more_extreme(job.function, x, best)) {
                best = x;
                index = e;
            }
        }
        out<i64>(job, 0)[o] = (i64)index;
    }
}

// Like arg_reduce with one block per output, for long sequences.
BLOCK_KERNEL(arg_reduce_rows) {
    SHARED WIDE bests[BLOCK];
    SHARED u64 indices[BLOCK];
    u32 t = threadIdx.x;
    for (u64 o = blockIdx.x; o < job.count; o += gridDim.x) {
        u64 first = place(job, job.in[0], o);
        if (t < job.k[0]) {
            WIDE best = along<T>(job, first, t);
            u64 index = t;
            for (u64 e = t + (u64)BLOCK; e < job.k[0] && !not_a_number(best); e += BLOCK) {
                WIDE x = along<T>(job, first, e);
                if (more_extreme(job.function, x, best)) {
                    best = x;
                    index = e;
                }
            }
            bests[t] = best;
            indices[t] = index;
        }
        __syncthreads();
        for (u32 step = BLOCK / 2; step > 0; step /= 2) {
            if (t < step && t + step < job.k[0]) {
                WIDE other = bests[t + step];
                bool before = indices[t + step] < indices[t] && !more_extreme(job.function, bests[t], other);
                if (before || more_extreme(job.function, other, bests[t])) {
                    bests[t] = other;
                    indices[t] = indices[t + step];
                }
            }
            __syncthreads();
        }
        if (t == 0) {
            out<i64>(job, 0)[o] = (i64)indices[0];
        }
        __syncthreads();
    }
}
