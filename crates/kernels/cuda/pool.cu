// Pooling over the last two axes, for floats. All operands are contiguous; in = [images], or [images, gradient].
//
// k = [h, w, oh, ow, window sizes]; inner_dims = [strides, paddings, kinds], each of height and width. Windows of
// kind 1 are adaptive: they partition the axis. Others slide, with padding of at most half their size; means over
// windows of kind 2 do not count the padding. function 0: max, 1: mean.

#ifndef HIGHWATER_POOL
#define HIGHWATER_POOL

// The window of an output along an axis: positions from `start` to below `end`. A mean divides by `count`, which
// may include padding, but nothing past it.
struct Window {
    u64 start, end, count;
};

DEVICE Window window(const Job& job, int axis, u64 output) {
    u64 len = job.k[axis], outputs = job.k[2 + axis], size = job.k[4 + axis];
    if (job.inner_dims[4 + axis] == 1) {
        u64 start = quotient(output * len, outputs), end = quotient((output + 1) * len + outputs - 1, outputs);
        return Window{start, end, end - start};
    }
    u64 first = output * job.inner_dims[axis], padding = job.inner_dims[2 + axis], end = first + size - padding;
    u64 start = first < padding ? 0 : first - padding;
    if (end > len) end = len;
    u64 rest = len + 2 * padding - first;
    return Window{start, end, job.inner_dims[4 + axis] == 2 ? end - start : rest < size ? rest : size};
}

// The first output whose window may contain a position, and the end of these outputs.
DEVICE u64 first_output(const Job& job, int axis, u64 place) {
    if (job.inner_dims[4 + axis] == 1) return quotient(place * job.k[2 + axis], job.k[axis]);
    u64 ahead = place + job.inner_dims[2 + axis] + 1, stride = job.inner_dims[axis];
    return ahead > job.k[4 + axis] ? quotient(ahead - job.k[4 + axis] - 1, stride) + 1 : 0;
}

DEVICE u64 last_output(const Job& job, int axis, u64 place) {
    u64 outputs = job.k[2 + axis], len = job.k[axis];
    u64 last = job.inner_dims[4 + axis] == 1 ? quotient((place + 1) * outputs + len - 1, len)
                                        : quotient(place + job.inner_dims[2 + axis], job.inner_dims[axis]) + 1;
    return last < outputs ? last : outputs;
}

// The first maximum in two windows; NaN wins.
template <typename E>
DEVICE u64 largest_at(const E* image, u64 wide, const Window& down, const Window& across) {
    u64 best = down.start * wide + across.start;
    typename Computed<E>::type largest = image[best];
    for (u64 y = down.start; y < down.end; ++y) {
        for (u64 x = across.start; x < across.end; ++x) {
            typename Computed<E>::type seen = image[y * wide + x];
            if (seen > largest || (not_a_number(seen) && !not_a_number(largest))) {
                best = y * wide + x;
                largest = seen;
            }
        }
    }
    return best;
}

#endif

KERNEL(pool2d) {
    u64 wide = job.k[1];
    EACH(i) {
        u64 row = quotient(i, job.k[3]), plane = quotient(row, job.k[2]);
        Window down = window(job, 0, row - plane * job.k[2]), across = window(job, 1, i - row * job.k[3]);
        const T* image = (const T*)job.in[0].address + plane * job.k[0] * wide;
        if (job.function == 0) {
            out<T>(job, 0)[i] = image[largest_at(image, wide, down, across)];
        } else {
            WIDE sum = (WIDE)0;
            // By rows, so that large windows lose no small elements.
            for (u64 y = down.start; y < down.end; ++y) {
                WIDE row_sum = (WIDE)0;
                for (u64 x = across.start; x < across.end; ++x) {
                    row_sum += (WIDE)image[y * wide + x];
                }
                sum += row_sum;
            }
            out<T>(job, 0)[i] = (T)(sum / ((WIDE)down.count * (WIDE)across.count));
        }
    }
}

// One thread per element of an image, which reads the outputs whose windows may contain it.
KERNEL(pool2d_grad, 3) {
    u64 wide = job.k[1];
    EACH(i) {
        u64 row = quotient(i, wide), plane = quotient(row, job.k[0]), y = row - plane * job.k[0], x = i - row * wide;
        u64 first = first_output(job, 1, x), last = last_output(job, 1, x), below = last_output(job, 0, y);
        const T* image = (const T*)job.in[0].address + plane * job.k[0] * wide;
        const T* grad = (const T*)job.in[1].address + plane * job.k[2] * job.k[3];
        WIDE sum = (WIDE)0;
        for (u64 oy = first_output(job, 0, y); oy < below; ++oy) {
            Window down = window(job, 0, oy);
            for (u64 ox = first; ox < last; ++ox) {
                Window across = window(job, 1, ox);
                WIDE g = (WIDE)grad[oy * job.k[3] + ox];
                if (job.function == 1) {
                    sum += g / ((WIDE)down.count * (WIDE)across.count);
                } else if (largest_at(image, wide, down, across) == y * wide + x) {
                    sum += g;
                }
            }
        }
        out<T>(job, 0)[i] = (T)sum;
    }
}
