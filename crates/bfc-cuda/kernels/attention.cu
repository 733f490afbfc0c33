// Scaled dot-product attention for floats: softmax(c[0] q k^T) v for each head. The matrix of scores is never in memory.
//
// k = [queries, keys, width, values]; in = [q, k, v], contiguous; also[3] a mask, whose strides along heads, queries and keys are
// inner_dims: bytes if bit 1 of the function is set, floats that are added to the scores if bit 2 is. Bit 0: query i sees the keys
// 0 to i alone. A thread does one score of
// BLOCK at a time, then one element of the result.

#ifndef HIGHWATER_ATTENTION
#define HIGHWATER_ATTENTION

DEVICE u64 mask_place(const Job& job, u64 head, u64 query, u64 key) {
    return head * job.inner_dims[0] + query * job.inner_dims[1] + key * job.inner_dims[2];
}

DEVICE bool sees(const Job& job, u64 head, u64 query, u64 key) {
    if ((job.function & 1) && key > query) return false;
    if (!(job.function & 2)) return true;
    return ((const u8*)job.also[3])[mask_place(job, head, query, key)] != 0;
}

// A scaled product as a score: with what the mask adds.
template <typename E>
DEVICE E with_mask(const Job& job, u64 head, u64 query, u64 key, E score) {
    return job.function & 4 ? score + ((const E*)job.also[3])[mask_place(job, head, query, key)] : score;
}

template <typename E>
DEVICE E product(const E* a, const E* b, u64 len) {
    E sum = (E)0;
    for (u64 e = 0; e < len; ++e) {
        sum = fused(a[e], b[e], sum);
    }
    return sum;
}

// Row `row` of a stack of matrices with `rows` rows of `width` elements for each head.
template <typename E>
DEVICE const E* row_of(u64 address, u64 head, u64 row, u64 rows, u64 width) {
    return (const E*)address + (head * rows + row) * width;
}

// The weight that a score has: none where all scores are -infinity, as the result is 0 there.
template <typename E>
DEVICE E share(E score, E log_sum) {
    return log_sum == (E)-INFINITY ? (E)0 : exponential(score - log_sum);
}

#endif

// One block for each query; out[0] the result, out[1] the logarithm of the sum of exp of its scores.
BLOCK_KERNEL(attention, 4) {
    SHARED T shared[BLOCK];
    SHARED T weights[BLOCK];
    u64 queries = job.k[0], keys = job.k[1], width = job.k[2], values = job.k[3];
    for (u64 n = blockIdx.x; n < job.count; n += gridDim.x) {
        u64 head = n / queries, query = n % queries;
        const T* q = row_of<T>(job.in[0].address, head, query, queries, width);
        T* result = out<T>(job, 0) + n * values;
        for (u64 d = threadIdx.x; d < values; d += BLOCK) {
            result[d] = (T)0;
        }
        T largest = (T)-INFINITY, sum = (T)0;
        for (u64 base = 0; base < keys; base += BLOCK) {
            u64 key = base + threadIdx.x;
            T score = (T)-INFINITY;
            if (key < keys && sees(job, head, query, key)) {
                score = with_mask(job, head, query, key, product(q, row_of<T>(job.in[1].address, head, key, keys, width), width) * constant(job, 0, (T)0));
            }
            T best = larger(largest, join(shared, score, false));
            if (best == (T)-INFINITY) continue;
            T weight = exponential(score - best);
            T shrink = exponential(largest - best);
            weights[threadIdx.x] = weight;
            sum = sum * shrink + join(shared, weight, true);
            largest = best;
            u64 here = keys - base < BLOCK ? keys - base : BLOCK;
            for (u64 d = threadIdx.x; d < values; d += BLOCK) {
                T total = result[d] * shrink;
                for (u64 t = 0; t < here; ++t) {
                    total = fused(weights[t], row_of<T>(job.in[2].address, head, base + t, keys, values)[d], total);
                }
                result[d] = total;
            }
            __syncthreads();
        }
        // A query that sees nothing gets 0.
        for (u64 d = threadIdx.x; d < values; d += BLOCK) {
            result[d] = sum == (T)0 ? (T)0 : result[d] / sum;
        }
        if (threadIdx.x == 0) {
            out<T>(job, 1)[n] = sum == (T)0 ? (T)-INFINITY : largest + logarithm(sum);
        }
    }
}

// One block for each query: out[0] the gradient of q; also = [result, logarithms of sums, gradient of the result].
BLOCK_KERNEL(attention_query_grad, 4) {
    SHARED T shared[BLOCK];
    SHARED T weights[BLOCK];
    u64 queries = job.k[0], keys = job.k[1], width = job.k[2], values = job.k[3];
    for (u64 n = blockIdx.x; n < job.count; n += gridDim.x) {
        u64 head = n / queries, query = n % queries;
        const T* q = row_of<T>(job.in[0].address, head, query, queries, width);
        const T* g = (const T*)job.also[2] + n * values;
        T log_sum = ((const T*)job.also[1])[n];
        T own = (T)0;
        for (u64 d = threadIdx.x; d < values; d += BLOCK) {
            own = fused(g[d], ((const T*)job.also[0])[n * values + d], own);
        }
        T along = join(shared, own, true);
        T* to = out<T>(job, 0) + n * width;
        for (u64 d = threadIdx.x; d < width; d += BLOCK) {
            to[d] = (T)0;
        }
        for (u64 base = 0; base < keys; base += BLOCK) {
            u64 key = base + threadIdx.x;
            T slope = (T)0;
            if (key < keys && sees(job, head, query, key)) {
                T score = with_mask(job, head, query, key, product(q, row_of<T>(job.in[1].address, head, key, keys, width), width) * constant(job, 0, (T)0));
                T through = product(g, row_of<T>(job.in[2].address, head, key, keys, values), values);
                slope = share(score, log_sum) * (through - along) * constant(job, 0, (T)0);
            }
            weights[threadIdx.x] = slope;
            __syncthreads();
            u64 here = keys - base < BLOCK ? keys - base : BLOCK;
            for (u64 d = threadIdx.x; d < width; d += BLOCK) {
                T total = to[d];
                for (u64 t = 0; t < here; ++t) {
                    total = fused(weights[t], row_of<T>(job.in[1].address, head, base + t, keys, width)[d], total);
                }
                to[d] = total;
            }
            __syncthreads();
        }
    }
}

// One block for each key: out[1] the gradient of k, out[2] that of v; also as above, count heads times keys.
BLOCK_KERNEL(attention_key_grad, 4) {
    SHARED T weights[BLOCK];
    SHARED T slopes[BLOCK];
    u64 queries = job.k[0], keys = job.k[1], width = job.k[2], values = job.k[3];
    for (u64 n = blockIdx.x; n < job.count; n += gridDim.x) {
        u64 head = n / keys, key = n % keys;
        const T* k = row_of<T>(job.in[1].address, head, key, keys, width);
        const T* v = row_of<T>(job.in[2].address, head, key, keys, values);
        T* to_key = out<T>(job, 1) + n * width;
        T* to_value = out<T>(job, 2) + n * values;
        for (u64 d = threadIdx.x; d < width; d += BLOCK) {
            to_key[d] = (T)0;
        }
        for (u64 d = threadIdx.x; d < values; d += BLOCK) {
            to_value[d] = (T)0;
        }
        for (u64 base = 0; base < queries; base += BLOCK) {
            u64 query = base + threadIdx.x;
            T weight = (T)0, slope = (T)0;
            if (query < queries && sees(job, head, query, key)) {
                const T* g = row_of<T>(job.also[2], head, query, queries, values);
                T score = with_mask(job, head, query, key, product(row_of<T>(job.in[0].address, head, query, queries, width), k, width) * constant(job, 0, (T)0));
                T along = product(g, row_of<T>(job.also[0], head, query, queries, values), values);
                weight = share(score, ((const T*)job.also[1])[head * queries + query]);
                slope = weight * (product(g, v, values) - along) * constant(job, 0, (T)0);
            }
            weights[threadIdx.x] = weight;
            slopes[threadIdx.x] = slope;
            __syncthreads();
            u64 here = queries - base < BLOCK ? queries - base : BLOCK;
            for (u64 d = threadIdx.x; d < width; d += BLOCK) {
                T total = to_key[d];
                for (u64 t = 0; t < here; ++t) {
                    total = fused(slopes[t], row_of<T>(job.in[0].address, head, base + t, queries, width)[d], total);
                }
                to_key[d] = total;
            }
            for (u64 d = threadIdx.x; d < values; d += BLOCK) {
                T total = to_value[d];
                for (u64 t = 0; t < here; ++t) {
                    total = fused(weights[t], row_of<T>(job.also[2], head, base + t, queries, values)[d], total);
                }
                to_value[d] = total;
            }
            __syncthreads();
        }
    }
}
