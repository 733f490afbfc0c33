// Pools over the last two axes, for floats. All operands are contiguous; in = [images], or [images, gradient].
//
// k = [h, w, oh, ow, window sizes]; inner_dims = [strides, paddings, whether adaptive], each of height and width. Adaptive
// windows cover the axis; the others slide, and padding is at most half of their size. function 0: the largest, 1: the mean.

#ifndef HIGHWATER_POOL
#define HIGHWATER_POOL

// The first place that an output sees.
DEVICE u64 window_start(const Job& job, int axis, u64 output) {
    if (job.inner_dims[4 + axis]) return output * job.k[axis] / job.k[2 + axis];
    u64 start = output * job.inner_dims[axis], padding = job.inner_dims[2 + axis];
    return start < padding ? 0 : start - padding;
}

// Past the last.
DEVICE u64 window_end(const Job& job, int axis, u64 output) {
    u64 len = job.k[axis];
    if (job.inner_dims[4 + axis]) return ((output + 1) * len + job.k[2 + axis] - 1) / job.k[2 + axis];
    u64 end = output * job.inner_dims[axis] + job.k[4 + axis] - job.inner_dims[2 + axis];
    return end < len ? end : len;
}

// By what a mean divides: padding counts.
DEVICE u64 window_count(const Job& job, int axis, u64 output) {
    bool adaptive = job.inner_dims[4 + axis];
    return adaptive ? window_end(job, axis, output) - window_start(job, axis, output) : job.k[4 + axis];
}

// The first output that may see a place, and past the last.
DEVICE u64 first_output(const Job& job, int axis, u64 place) {
    if (job.inner_dims[4 + axis]) return place * job.k[2 + axis] / job.k[axis];
    u64 ahead = place + job.inner_dims[2 + axis] + 1, stride = job.inner_dims[axis];
    return ahead > job.k[4 + axis] ? (ahead - job.k[4 + axis] + stride - 1) / stride : 0;
}

DEVICE u64 last_output(const Job& job, int axis, u64 place) {
    u64 outputs = job.k[2 + axis], len = job.k[axis];
    u64 last = job.inner_dims[4 + axis] ? ((place + 1) * outputs + len - 1) / len
                                        : (place + job.inner_dims[2 + axis]) / job.inner_dims[axis] + 1;
    return last < outputs ? last : outputs;
}

// The first of the largest that an output sees; NaN wins.
template <typename E>
DEVICE u64 largest_at(const Job& job, const E* image, u64 oy, u64 ox) {
    u64 best = window_start(job, 0, oy) * job.k[1] + window_start(job, 1, ox);
    for (u64 y = window_start(job, 0, oy); y < window_end(job, 0, oy); ++y) {
        for (u64 x = window_start(job, 1, ox); x < window_end(job, 1, ox); ++x) {
            E value = image[y * job.k[1] + x];
            E so_far = image[best];
            if (value > so_far || (not_a_number(value) && !not_a_number(so_far))) {
                best = y * job.k[1] + x;
            }
        }
    }
    return best;
}

#endif

KERNEL(pool2d) {
    EACH(i) {
        u64 ox = i % job.k[3], oy = i / job.k[3] % job.k[2], plane = i / (job.k[3] * job.k[2]);
        const T* image = (const T*)job.in[0].address + plane * job.k[0] * job.k[1];
        if (job.function == 0) {
            out<T>(job, 0)[i] = image[largest_at(job, image, oy, ox)];
        } else {
            T sum = (T)0;
            for (u64 y = window_start(job, 0, oy); y < window_end(job, 0, oy); ++y) {
                for (u64 x = window_start(job, 1, ox); x < window_end(job, 1, ox); ++x) {
                    sum += image[y * job.k[1] + x];
                }
            }
            out<T>(job, 0)[i] = sum / ((T)window_count(job, 0, oy) * (T)window_count(job, 1, ox));
        }
    }
}

// One thread for each element of an image, which asks the outputs that may have seen it.
KERNEL(pool2d_grad) {
    EACH(i) {
        u64 x = i % job.k[1], y = i / job.k[1] % job.k[0], plane = i / (job.k[1] * job.k[0]);
        const T* image = (const T*)job.in[0].address + plane * job.k[0] * job.k[1];
        const T* grad = (const T*)job.in[1].address + plane * job.k[2] * job.k[3];
        T sum = (T)0;
        for (u64 oy = first_output(job, 0, y); oy < last_output(job, 0, y); ++oy) {
            for (u64 ox = first_output(job, 1, x); ox < last_output(job, 1, x); ++ox) {
                T g = grad[oy * job.k[3] + ox];
                if (job.function == 1) {
                    sum += g / ((T)window_count(job, 0, oy) * (T)window_count(job, 1, ox));
                } else if (largest_at(job, image, oy, ox) == y * job.k[1] + x) {
                    sum += g;
                }
            }
        }
        out<T>(job, 0)[i] = sum;
    }
}
