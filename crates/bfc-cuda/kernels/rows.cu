// Softmax and what is made of it, for floats: one block for each row of k[0] elements. Every row is shifted by its largest
// element before exp, so that nothing overflows. The job's shape is that of the rows with their elements, count the number
// of rows.

#ifndef HIGHWATER_ROWS
#define HIGHWATER_ROWS

// The largest of a row, and the sum of exp of what is below it.
template <typename E, typename Wide>
DEVICE void statistics(const Job& job, Wide* shared, u64 first, Wide* largest, Wide* sum) {
    Wide own = (Wide)-INFINITY;
    for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
        own = larger(own, value<E>(job, 0, first + e));
    }
    *largest = join(shared, own, false);
    own = (Wide)0;
    for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
        own += exponential(value<E>(job, 0, first + e) - *largest);
    }
    *sum = join(shared, own, true);
}

#endif

// function 1: the logarithm.
BLOCK_KERNEL(softmax) {
    SHARED WIDE shared[BLOCK];
    for (u64 row = blockIdx.x; row < job.count; row += gridDim.x) {
        u64 first = row * job.k[0];
        WIDE largest, sum;
        statistics<T>(job, shared, first, &largest, &sum);
        WIDE log_sum = logarithm(sum);
        for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
            WIDE x = value<T>(job, 0, first + e) - largest;
            store<T>(job, 0, first + e, job.function ? x - log_sum : exponential(x) / sum);
        }
    }
}

// From the output s and the gradient g: s (g - sum g s), or g - exp(s) sum g for the logarithm.
BLOCK_KERNEL(softmax_grad) {
    SHARED WIDE shared[BLOCK];
    for (u64 row = blockIdx.x; row < job.count; row += gridDim.x) {
        u64 first = row * job.k[0];
        WIDE own = (WIDE)0;
        for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
            WIDE g = value<T>(job, 1, first + e);
            own += job.function ? g : g * value<T>(job, 0, first + e);
        }
        WIDE sum = join(shared, own, true);
        for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
            WIDE s = value<T>(job, 0, first + e);
            WIDE g = value<T>(job, 1, first + e);
            store<T>(job, 0, first + e, job.function ? g - exponential(s) * sum : s * (g - sum));
        }
    }
}

// The targets are contiguous, at out[1], and were checked.
BLOCK_KERNEL(cross_entropy) {
    SHARED WIDE shared[BLOCK];
    for (u64 row = blockIdx.x; row < job.count; row += gridDim.x) {
        u64 first = row * job.k[0];
        WIDE largest, sum;
        statistics<T>(job, shared, first, &largest, &sum);
        if (threadIdx.x == 0) {
            u64 target = (u64)((const i64*)job.in[1].address)[row * job.in[1].strides[0]];
            store<T>(job, 0, row, logarithm(sum) - (value<T>(job, 0, first + target) - largest));
        }
    }
}

// (softmax(logits) - one_hot(targets)) grad, and 0 where the row's gradient is 0, whatever its logits are.
BLOCK_KERNEL(cross_entropy_grad) {
    SHARED WIDE shared[BLOCK];
    for (u64 row = blockIdx.x; row < job.count; row += gridDim.x) {
        u64 first = row * job.k[0];
        WIDE largest, sum;
        statistics<T>(job, shared, first, &largest, &sum);
        u64 target = (u64)((const i64*)job.in[1].address)[row * job.in[1].strides[0]];
        WIDE scale = element_at<T>(job.in[2], row * job.in[2].strides[0]);
        for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
            WIDE p = exponential(value<T>(job, 0, first + e) - largest) / sum;
            store<T>(job, 0, first + e, scale == (WIDE)0 ? (WIDE)0 : (e == target ? p - (WIDE)1 : p) * scale);
        }
    }
}

// x brought to mean 0 (function bit 0) and mean square 1, then times the weight (bit 1) and plus the bias (bit 2); in = [x,
// weight, bias], c[0] what is added to the mean square; out[1] takes the mean and the scale of each row.
BLOCK_KERNEL(layer_norm) {
    SHARED WIDE shared[BLOCK];
    for (u64 row = blockIdx.x; row < job.count; row += gridDim.x) {
        u64 first = row * job.k[0];
        WIDE own = (WIDE)0;
        WIDE mean = (WIDE)0;
        if (job.function & 1) {
            for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
                own += value<T>(job, 0, first + e);
            }
            mean = join(shared, own, true) / (WIDE)job.k[0];
        }
        own = (WIDE)0;
        for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
            WIDE x = value<T>(job, 0, first + e) - mean;
            own += x * x;
        }
        WIDE scale = (WIDE)1 / root(join(shared, own, true) / (WIDE)job.k[0] + constant(job, 0, (WIDE)0));
        for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
            WIDE y = (value<T>(job, 0, first + e) - mean) * scale;
            if (job.function & 2) y = y * value<T>(job, 1, first + e);
            if (job.function & 4) y = y + value<T>(job, 2, first + e);
            store<T>(job, 0, first + e, y);
        }
        if (threadIdx.x == 0) {
            store<T>(job, 1, 2 * row, mean);
            store<T>(job, 1, 2 * row + 1, scale);
        }
    }
}

// scale (h - mean(h) - y mean(h y)) with h the gradient times the weight and y what was normalised; in = [x, weight,
// gradient], also[0] the statistics; function bits as above.
BLOCK_KERNEL(layer_norm_grad) {
    SHARED WIDE shared[BLOCK];
    for (u64 row = blockIdx.x; row < job.count; row += gridDim.x) {
        u64 first = row * job.k[0];
        WIDE mean = ((const WIDE*)job.also[0])[2 * row], scale = ((const WIDE*)job.also[0])[2 * row + 1];
        WIDE sum = (WIDE)0, along = (WIDE)0;
        for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
            WIDE h = value<T>(job, 2, first + e);
            if (job.function & 2) h = h * value<T>(job, 1, first + e);
            sum += h;
            along += h * ((value<T>(job, 0, first + e) - mean) * scale);
        }
        sum = join(shared, sum, true) / (WIDE)job.k[0];
        along = join(shared, along, true) / (WIDE)job.k[0];
        WIDE shift = job.function & 1 ? sum : (WIDE)0;
        for (u64 e = threadIdx.x; e < job.k[0]; e += BLOCK) {
            WIDE h = value<T>(job, 2, first + e);
            if (job.function & 2) h = h * value<T>(job, 1, first + e);
            WIDE y = (value<T>(job, 0, first + e) - mean) * scale;
            store<T>(job, 0, first + e, scale * (h - shift - y * along));
        }
    }
}

// y times the gradient, whose sum over the rows is the weight's gradient; in = [x, gradient], count elements.
KERNEL(layer_norm_terms) {
    EACH(i) {
        u64 row = quotient(i, job.k[0]);
        WIDE mean = ((const WIDE*)job.also[0])[2 * row], scale = ((const WIDE*)job.also[0])[2 * row + 1];
        store<T>(job, 0, i, (value<T>(job, 0, i) - mean) * scale * value<T>(job, 1, i));
    }
}
