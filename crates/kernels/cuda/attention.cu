// Scaled dot-product attention for floats without tensor cores: tile.cuh, 4 by 4 scores per thread. Half-precision products
// are summed as 32-bit floats and rounded once. See attention.cuh for the job.

#ifndef HIGHWATER_ATTENTION_TILES
#define HIGHWATER_ATTENTION_TILES

// One depth step of both factors.
template <typename E>
struct Steps {
    E a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
};

// Adds the products of all rows of one matrix with all rows of another.
template <typename Wide, typename E>
DEVICE void add_products(Steps<Wide>& shared, const Rows<E>& left, const Rows<E>& right, Wide (*sum)[4]) {
    for (u64 start = 0; start < left.width; start += DEPTH) {
        for (u32 e = threadIdx.x; e < TILE * DEPTH; e += BLOCK) {
            u32 i = e / DEPTH, k = e % DEPTH;
            bool inside = start + k < left.width;
            shared.a[k][i] = inside && i < left.count ? (Wide)left.first[i * left.width + start + k] : (Wide)0;
            shared.b[k][i] = inside && i < right.count ? (Wide)right.first[i * right.width + start + k] : (Wide)0;
        }
        __syncthreads();
        add_step(shared.a, shared.b, sum);
        __syncthreads();
    }
}

// Adds the product of the tile in the threads' registers with the columns of a matrix from `left` on.
template <typename Wide, typename E>
DEVICE void add_weighted(Steps<Wide>& shared, const Wide (*weights)[4], const Rows<E>& rows, u64 left, Wide (*sum)[4]) {
#pragma unroll
    for (u32 c = 0; c < 4; ++c) {
        // Column c of all threads: 16 neighboring columns of the tile.
        for (u32 r = 0; r < 4; ++r) {
            shared.a[threadIdx.x % 16][tile_row(r)] = weights[r][c];
        }
        for (u32 e = threadIdx.x; e < TILE * DEPTH; e += BLOCK) {
            u32 k = e / TILE, j = e % TILE, row = c * DEPTH + k;
            bool inside = row < rows.count && left + j < rows.width;
            shared.b[k][j] = inside ? (Wide)rows.first[row * rows.width + left + j] : (Wide)0;
        }
        __syncthreads();
        add_step(shared.a, shared.b, sum);
        __syncthreads();
    }
}

// Combines the values of the 16 threads that share rows.
template <typename E>
DEVICE E join_row(E own, bool sum) {
    for (u32 mask = 8; mask > 0; mask /= 2) {
        own = joined(own, across(own, mask), sum);
    }
    return own;
}

// Writes the threads' sums to rows of `width` elements.
template <typename E>
DEVICE void write_rows(const Job& job, int output, const Turn& turn, u64 rows, u64 width, const typename Computed<E>::type (*sum)[4]) {
    for (u32 r = 0; r < 4; ++r) {
        for (u32 c = 0; c < 4; ++c) {
            u64 row = turn.top + tile_row(r), column = turn.left + tile_column(c);
            if (row < rows && column < width) store<E>(job, output, (turn.head * rows + row) * width + column, sum[r][c]);
        }
    }
}

#endif

#ifndef USES_MMA

// out[0] = the result, out[1] = the logarithm of the sum of exp of each query's scores.
BLOCK_KERNEL(attention, TILE_BLOCKS - 1) {
    SHARED Steps<WIDE> shared;
    u64 queries = job.k[0], width = job.k[2], values = job.k[3];
    for (u64 n = blockIdx.x; n < job.count; n += gridDim.x) {
        // Without values there are still sums to write.
        Turn turn = turn_at(n, queries, values > 0 ? values : 1);
        Rows<T> q = rows_at<T>(job.in[0].address, turn.head, turn.top, queries, width);
        u64 key_head = key_head_of(job, turn.head);
        WIDE result[4][4] = {}, largest[4], sum[4] = {};
        for (u32 r = 0; r < 4; ++r) {
            largest[r] = (WIDE)-INFINITY;
        }
        for (u64 start = 0; start < keys_seen(job, turn.top); start += TILE) {
            WIDE weights[4][4] = {};
            add_products(shared, q, key_rows_at<T>(job, 1, key_head, start, width), weights);
            for (u32 r = 0; r < 4; ++r) {
                WIDE best = largest[r];
                for (u32 c = 0; c < 4; ++c) {
                    u64 query = turn.top + tile_row(r), key = start + tile_column(c);
                    weights[r][c] = score_of<T>(job, turn.head, query, key, weights[r][c]);
                    best = larger(best, weights[r][c]);
                }
                best = join_row(best, false);
                // Before the first visible key all weights are 0, not exp(-infinity + infinity).
                WIDE base = best == (WIDE)-INFINITY ? (WIDE)0 : best;
                WIDE shrink = exponential(largest[r] - base), own = (WIDE)0;
                for (u32 c = 0; c < 4; ++c) {
                    weights[r][c] = exponential(weights[r][c] - base);
                    own += weights[r][c];
                    result[r][c] *= shrink;
                }
                sum[r] = sum[r] * shrink + join_row(own, true);
                largest[r] = best;
            }
            add_weighted(shared, weights, key_rows_at<T>(job, 2, key_head, start, values), turn.left, result);
        }
        for (u32 r = 0; r < 4; ++r) {
            // A query without visible keys gets 0.
            for (u32 c = 0; c < 4; ++c) {
                result[r][c] = sum[r] == (WIDE)0 ? (WIDE)0 : result[r][c] / sum[r];
            }
            u64 query = turn.top + tile_row(r);
            if (turn.left == 0 && threadIdx.x % 16 == 0 && query < queries) {
                store<T>(job, 1, turn.head * queries + query, sum[r] == (WIDE)0 ? (WIDE)-INFINITY : largest[r] + logarithm(sum[r]));
            }
        }
        write_rows<T>(job, 0, turn, queries, values, result);
    }
}

// out[0] = the gradient of q; also = [result, logarithms of sums, gradient of the result].
BLOCK_KERNEL(attention_query_grad, TILE_BLOCKS - 1) {
    SHARED Steps<WIDE> shared;
    u64 queries = job.k[0], width = job.k[2], values = job.k[3];
    for (u64 n = blockIdx.x; n < job.count; n += gridDim.x) {
        Turn turn = turn_at(n, queries, width);
        Rows<T> q = rows_at<T>(job.in[0].address, turn.head, turn.top, queries, width);
        Rows<T> g = rows_at<T>(job.also[2], turn.head, turn.top, queries, values);
        Rows<T> result = rows_at<T>(job.also[0], turn.head, turn.top, queries, values);
        u64 key_head = key_head_of(job, turn.head);
        WIDE to_query[4][4] = {}, log_sum[4], along[4] = {};
        for (u32 r = 0; r < 4; ++r) {
            bool inside = tile_row(r) < q.count;
            log_sum[r] = inside ? ((const WIDE*)job.also[1])[turn.head * queries + turn.top + tile_row(r)] : (WIDE)-INFINITY;
            for (u64 d = threadIdx.x % 16; inside && d < values; d += 16) {
                u64 at = tile_row(r) * values + d;
                along[r] = fused((WIDE)g.first[at], (WIDE)result.first[at], along[r]);
            }
            along[r] = join_row(along[r], true);
        }
        for (u64 start = 0; start < keys_seen(job, turn.top); start += TILE) {
            Rows<T> k = key_rows_at<T>(job, 1, key_head, start, width);
            WIDE slopes[4][4] = {}, through[4][4] = {};
            add_products(shared, q, k, slopes);
            add_products(shared, g, key_rows_at<T>(job, 2, key_head, start, values), through);
            for (u32 r = 0; r < 4; ++r) {
                for (u32 c = 0; c < 4; ++c) {
                    u64 query = turn.top + tile_row(r), key = start + tile_column(c);
                    WIDE weight = share(score_of<T>(job, turn.head, query, key, slopes[r][c]), log_sum[r]);
                    slopes[r][c] = weight * (through[r][c] - along[r]) * constant(job, 0, (WIDE)0);
                }
            }
            add_weighted(shared, slopes, k, turn.left, to_query);
        }
        write_rows<T>(job, 0, turn, queries, width, to_query);
    }
}

// out[1] = the gradient of k, out[2] = the gradient of v in the same columns; `also` as above. Rows of the tile are
// keys, and the head of the tile is one of k.
BLOCK_KERNEL(attention_key_grad, TILE_BLOCKS - 1) {
    SHARED Steps<WIDE> shared;
    SHARED WIDE log_sums[TILE];
    SHARED WIDE alongs[TILE];
    u64 queries = job.k[0], keys = job.k[1], width = job.k[2], values = job.k[3];
    for (u64 n = blockIdx.x; n < job.count; n += gridDim.x) {
        Turn turn = turn_at(n, keys, width > values ? width : values);
        Rows<T> k = key_rows_at<T>(job, 1, turn.head, turn.top, width);
        Rows<T> v = key_rows_at<T>(job, 2, turn.head, turn.top, values);
        WIDE to_key[4][4] = {}, to_value[4][4] = {};
        // The heads of q that attend to this head. Queries before the first one that sees the tile's first key see none.
        u64 first = first_query(job, turn.top), heads_end = (turn.head + 1) * job.k[4];
        for (u64 head = turn.head * job.k[4]; head < heads_end; ++head) {
            for (u64 start = first; start < queries; start += TILE) {
                Rows<T> q = rows_at<T>(job.in[0].address, head, start, queries, width);
                Rows<T> g = rows_at<T>(job.also[2], head, start, queries, values);
                Rows<T> result = rows_at<T>(job.also[0], head, start, queries, values);
                // Four threads for each query.
                u32 mine = threadIdx.x / 4;
                WIDE along = (WIDE)0;
                for (u64 d = threadIdx.x % 4; mine < q.count && d < values; d += 4) {
                    along = fused((WIDE)g.first[mine * values + d], (WIDE)result.first[mine * values + d], along);
                }
                along = joined(along, across(along, 1), true);
                along = joined(along, across(along, 2), true);
                if (threadIdx.x % 4 == 0) {
                    alongs[mine] = along;
                    log_sums[mine] = mine < q.count ? ((const WIDE*)job.also[1])[head * queries + start + mine] : (WIDE)-INFINITY;
                }
                __syncthreads();
                WIDE weights[4][4] = {}, slopes[4][4] = {};
                add_products(shared, k, q, weights);
                add_products(shared, v, g, slopes);
#pragma unroll
                for (u32 r = 0; r < 4; ++r) {
                    for (u32 c = 0; c < 4; ++c) {
                        u32 of = tile_column(c);
                        WIDE score = score_of<T>(job, head, start + of, turn.top + tile_row(r), weights[r][c]);
                        weights[r][c] = share(score, log_sums[of]);
                        slopes[r][c] = weights[r][c] * (slopes[r][c] - alongs[of]) * constant(job, 0, (WIDE)0);
                    }
                }
                add_weighted(shared, slopes, q, turn.left, to_key);
                add_weighted(shared, weights, g, turn.left, to_value);
            }
        }
        write_rows<T>(job, 1, turn, keys, width, to_key);
        write_rows<T>(job, 2, turn, keys, values, to_value);
    }
}

#endif
