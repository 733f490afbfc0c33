// Softmax and what is made of it, for floats: one block for each row of k[0] elements. Every row is shifted by its largest
// element before exp, so that nothing overflows. The job's shape is that of the rows with their elements, count the number
// of rows.

#ifndef HIGHWATER_ROWS
#define HIGHWATER_ROWS

// Joins what every thread has folded of a row; all threads get the whole.
template <typename E>
DEVICE E join(E* shared, E own, bool sum) {
    shared[threadIdx.x] = own;
    __syncthreads();
    for (u32 step = BLOCK / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) {
            E other = shared[threadIdx.x + step];
            shared[threadIdx.x] = sum ? shared[threadIdx.x] + other : larger(shared[threadIdx.x], other);
        }
        __syncthreads();
    }
    E whole = shared[0];
    __syncthreads();
    return whole;
}

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

// (softmax(logits) - one_hot(targets)) grad
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
            out<T>(job, 0)[first + e] = (e == target ? p - (T)1 : p) * scale;
        }
    }
}
