// Softmax and what is made of it, for floats: one block for each row of k[0] elements. Every row is shifted by its largest
// element before exp, so that nothing overflows. The job's shape is that of the rows with their elements, count the number
// of rows.

#ifndef HIGHWATER_ROWS
#define HIGHWATER_ROWS

// The largest of a row, and the sum of exp of what is below it.
template <typename E>
DEVICE void statistics(const Job& job, E* shared, u64 first, E* largest, E* sum) {
    E own = (E)-INFINITY;
    for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
        own = larger(own, load<E>(job, 0, first + e));
    }
    *largest = join(shared, own, false);
    own = (E)0;
    for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
        own += exponential(load<E>(job, 0, first + e) - *largest);
    }
    *sum = join(shared, own, true);
}

#endif

// function 1: the logarithm.
BLOCK_KERNEL(softmax) {
    SHARED T shared[BLOCK];
    for (u64 row = blockIdx.x; row < job.count; row += gridDim.x) {
        u64 first = row * job.k[0];
        T largest, sum;
        statistics<T>(job, shared, first, &largest, &sum);
        T log_sum = logarithm(sum);
        for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
            T x = load<T>(job, 0, first + e) - largest;
            out<T>(job, 0)[first + e] = job.function ? x - log_sum : exponential(x) / sum;
        }
    }
}

// From the output s and the gradient g: s (g - sum g s), or g - exp(s) sum g for the logarithm.
BLOCK_KERNEL(softmax_grad) {
    SHARED T shared[BLOCK];
    for (u64 row = blockIdx.x; row < job.count; row += gridDim.x) {
        u64 first = row * job.k[0];
        T own = (T)0;
        for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
            T g = load<T>(job, 1, first + e);
            own += job.function ? g : g * load<T>(job, 0, first + e);
        }
        T sum = join(shared, own, true);
        for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
            T s = load<T>(job, 0, first + e);
            T g = load<T>(job, 1, first + e);
            out<T>(job, 0)[first + e] = job.function ? g - exponential(s) * sum : s * (g - sum);
        }
    }
}

// The targets are contiguous, at out[1], and were checked.
BLOCK_KERNEL(cross_entropy) {
    SHARED T shared[BLOCK];
    for (u64 row = blockIdx.x; row < job.count; row += gridDim.x) {
        u64 first = row * job.k[0];
        T largest, sum;
        statistics<T>(job, shared, first, &largest, &sum);
        if (threadIdx.x == 0) {
            u64 target = (u64)((const i64*)job.in[1].address)[row * job.in[1].strides[0]];
            out<T>(job, 0)[row] = logarithm(sum) - (load<T>(job, 0, first + target) - largest);
        }
    }
}

// (softmax(logits) - one_hot(targets)) grad, and 0 where the row's gradient is 0, whatever its logits are.
BLOCK_KERNEL(cross_entropy_grad) {
    SHARED T shared[BLOCK];
    for (u64 row = blockIdx.x; row < job.count; row += gridDim.x) {
        u64 first = row * job.k[0];
        T largest, sum;
        statistics<T>(job, shared, first, &largest, &sum);
        u64 target = (u64)((const i64*)job.in[1].address)[row * job.in[1].strides[0]];
        T scale = ((const T*)job.in[2].address)[row * job.in[2].strides[0]];
        for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
            T p = exponential(load<T>(job, 0, first + e) - largest) / sum;
            out<T>(job, 0)[first + e] = scale == (T)0 ? (T)0 : (e == target ? p - (T)1 : p) * scale;
        }
    }
}

// x brought to mean 0 (function bit 0) and mean square 1, then times the weight (bit 1) and plus the bias (bit 2); in = [x,
// weight, bias], c[0] what is added to the mean square; out[1] takes the mean and the scale of each row.
BLOCK_KERNEL(layer_norm) {
    SHARED T shared[BLOCK];
    for (u64 row = blockIdx.x; row < job.count; row += gridDim.x) {
        u64 first = row * job.k[0];
        T own = (T)0;
        T mean = (T)0;
        if (job.function & 1) {
            for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
                own += load<T>(job, 0, first + e);
            }
            mean = join(shared, own, true) / (T)job.k[0];
        }
        own = (T)0;
        for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
            T x = load<T>(job, 0, first + e) - mean;
            own += x * x;
        }
        T scale = (T)1 / root(join(shared, own, true) / (T)job.k[0] + constant(job, 0, (T)0));
        for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
            T y = (load<T>(job, 0, first + e) - mean) * scale;
            if (job.function & 2) y = y * load<T>(job, 1, first + e);
            if (job.function & 4) y = y + load<T>(job, 2, first + e);
            out<T>(job, 0)[first + e] = y;
        }
        if (threadIdx.x == 0) {
            out<T>(job, 1)[2 * row] = mean;
            out<T>(job, 1)[2 * row + 1] = scale;
        }
    }
}

// scale (h - mean(h) - y mean(h y)) with h the gradient times the weight and y what was normalised; in = [x, weight,
// gradient], also[0] the statistics; function bits as above.
BLOCK_KERNEL(layer_norm_grad) {
    SHARED T shared[BLOCK];
    for (u64 row = blockIdx.x; row < job.count; row += gridDim.x) {
        u64 first = row * job.k[0];
        T mean = ((const T*)job.also[0])[2 * row], scale = ((const T*)job.also[0])[2 * row + 1];
        T sum = (T)0, along = (T)0;
        for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
            T h = load<T>(job, 2, first + e);
            if (job.function & 2) h = h * load<T>(job, 1, first + e);
            sum += h;
            along += h * ((load<T>(job, 0, first + e) - mean) * scale);
        }
        sum = join(shared, sum, true) / (T)job.k[0];
        along = join(shared, along, true) / (T)job.k[0];
        T shift = job.function & 1 ? sum : (T)0;
        for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
            T h = load<T>(job, 2, first + e);
            if (job.function & 2) h = h * load<T>(job, 1, first + e);
            T y = (load<T>(job, 0, first + e) - mean) * scale;
            out<T>(job, 0)[first + e] = scale * (h - shift - y * along);
        }
    }
}

// y times the gradient, whose sum over the rows is the weight's gradient; in = [x, gradient], count elements.
KERNEL(layer_norm_terms) {
    EACH(i) {
        u64 row = quotient(i, job.k[0]);
        T mean = ((const T*)job.also[0])[2 * row], scale = ((const T*)job.also[0])[2 * row + 1];
        out<T>(job, 0)[i] = (load<T>(job, 0, i) - mean) * scale * load<T>(job, 1, i);
    }
}
