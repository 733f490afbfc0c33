// Scaled dot-product attention for 16-bit floats on tensor cores (mma.cuh). Weights and their gradients are rounded to 16
// bits before they are factors of a second product; sums are 32-bit floats. See attention.cuh for the job.
//
// Of the 64 rows of a block's tile, each warp has 16. Four warps take the first 32 rows of every tile of the other matrix,
// four take the rest; in the end the first four add up both results.

#ifndef HIGHWATER_ATTENTION_MMA
#define HIGHWATER_ATTENTION_MMA

// The first row of this warp's results in the tile, and the first row of the other tile that it takes.
DEVICE u32 warp_top() { return threadIdx.x / 32 % 4 * 16; }
DEVICE u32 warp_other() { return threadIdx.x / 32 / 4 * 32; }

// 16 rows of scores for 32 rows of the other matrix, and 16 rows of 64 columns of a result.
typedef float Scores[4][4];
typedef float Sums[8][4];

// Eight neighbors, in words: elements in registers of their own would be packed and unpacked.
struct alignas(16) Neighbors {
    u32 words[4];
};

// Eight neighbors of a row from a column on, 0 where there are none.
template <typename E>
DEVICE Neighbors load_neighbors(const Rows<E>& rows, u32 row, u64 column, bool packed) {
    const E* from = rows.first + row * rows.width + column;
    Neighbors x = {};
    if (row >= rows.count || column >= rows.width) return x;
    if (packed) return *(const Neighbors*)from;
#pragma unroll
    for (u32 n = 0; n < 4; ++n) {
        u16 low = from[2 * n < rows.width - column ? 2 * n : 0].bits;
        u16 high = from[2 * n + 1 < rows.width - column ? 2 * n + 1 : 0].bits;
        x.words[n] = two(2 * n < rows.width - column ? low : (u16)0, 2 * n + 1 < rows.width - column ? high : (u16)0);
    }
    return x;
}

// Copies 64 columns of all rows from `left` on to shared memory.
template <typename E>
DEVICE void load_tile(HalfTile& tile, const Rows<E>& rows, u64 left) {
    bool packed = (u64)rows.first % 16 == 0 && rows.width % 8 == 0;
    u32 row = threadIdx.x / 8, column = threadIdx.x % 8 * 8;
    Neighbors upper = load_neighbors(rows, row, left + column, packed);
    Neighbors lower = load_neighbors(rows, row + TILE / 2, left + column, packed);
    *(Neighbors*)&tile.of[row][column] = upper;
    *(Neighbors*)&tile.of[row + TILE / 2][column] = lower;
}

// Adds the products of this warp's rows of one matrix with its rows of another. Loads the left tile if it is `new_left`.
// In the end the tiles hold the last 64 columns, and no thread reads them any more.
template <typename E>
DEVICE void add_scores(HalfTile& a, HalfTile& b, const Rows<E>& left, const Rows<E>& right, bool new_left, Scores& sum) {
    for (u64 start = 0; start < left.width; start += TILE) {
        if (new_left || left.width > TILE) load_tile(a, left, start);
        load_tile(b, right, start);
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < TILE; k += 16) {
            if (start + k >= left.width) break;
            u32 x[4], y[4];
            fragments(a, warp_top(), k, x);
#pragma unroll
            for (u32 j = 0; j < 2; ++j) {
                fragments(b, warp_other() + 16 * j, k, y);
                mma(sum[2 * j], x, y[0], y[2], E());
                mma(sum[2 * j + 1], x, y[1], y[3], E());
            }
        }
        __syncthreads();
    }
}

// The columns of a matrix from `left` on, of which a tile may hold the last ones after add_scores.
template <typename E>
DEVICE void load_columns(HalfTile& tile, const Rows<E>& rows, u64 left) {
    if (rows.width > TILE) load_tile(tile, rows, left);
}

// Scores as left factors: 16 rows and twice 16 columns.
typedef u32 LeftFactors[2][4];

template <typename E>
DEVICE void round_scores(const Scores& scores, LeftFactors& factors) {
#pragma unroll
    for (u32 n = 0; n < 8; ++n) {
        u32 tile = n / 2, first = n % 2 * 2;
        factors[tile / 2][tile % 2 * 2 + n % 2] = two_of(scores[tile][first], scores[tile][first + 1], E());
    }
}

// Adds the products of this warp's factors with its rows of a tile.
template <typename E>
DEVICE void add_weighted_rows(const LeftFactors& factors, const HalfTile& rows, Sums& sum) {
#pragma unroll
    for (u32 k = 0; k < 2; ++k) {
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            u32 y[4];
            fragments_down(rows, warp_other() + 16 * k, 16 * j, y);
            mma(sum[2 * j], factors[k], y[0], y[1], E());
            mma(sum[2 * j + 1], factors[k], y[2], y[3], E());
        }
    }
}

// Adds up the values of the four threads that share rows.
DEVICE float join_four(float own) {
    own += across(own, 1);
    return own + across(own, 2);
}

// The sums of both halves of the warps, in the first half. `shared` has room for 64 x 64 floats.
DEVICE void join_halves(float* shared, Sums& sum) {
    __syncthreads();
#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
            u32 at = (warp_top() + mma_row(e)) * TILE + 8 * j + mma_column(e);
            if (warp_other() > 0) shared[at] = sum[j][e];
        }
    }
    __syncthreads();
#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
            u32 at = (warp_top() + mma_row(e)) * TILE + 8 * j + mma_column(e);
            if (warp_other() == 0) sum[j][e] += shared[at];
        }
    }
    __syncthreads();
}

// Writes the first half's sums times a factor for each row.
template <typename E>
DEVICE void write_sums(const Job& job, int output, const Turn& turn, u64 rows, u64 width, const Sums& sum, const float (&factor)[2]) {
    if (warp_other() > 0) return;
#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
            u64 row = turn.top + warp_top() + mma_row(e), column = turn.left + 8 * j + mma_column(e);
            if (row < rows && column < width) {
                store<E>(job, output, (turn.head * rows + row) * width + column, sum[j][e] * factor[e / 2]);
            }
        }
    }
}

// The sum of the products of two rows of `width` elements that four threads share.
template <typename E>
DEVICE float dot_of_four(const E* a, const E* b, u64 width) {
    const u32 N = 8;
    float sum = 0;
    bool packed = ((u64)a | (u64)b) % 16 == 0 && width % N == 0;
    for (u64 d = threadIdx.x % 4 * N; d < width; d += 4 * N) {
        Pack<E, N> x, y;
        if (packed) {
            x = *(const Pack<E, N>*)(a + d);
            y = *(const Pack<E, N>*)(b + d);
        }
#pragma unroll
        for (u32 e = 0; e < N; ++e) {
            if (packed) {
                sum = fmaf((float)x.of[e], (float)y.of[e], sum);
            } else if (d + e < width) {
                sum = fmaf((float)a[d + e], (float)b[d + e], sum);
            }
        }
    }
    return sum;
}

#define LOG2_E 1.44269504088896340736f

// Turns products into scores times LOG2_E, so that weights are powers of 2. `top` and `other` are the first row of the
// block's tile and of the other; rows of the block's tile are queries if `of_queries`, else keys.
template <typename E>
DEVICE void scale_scores(const Job& job, u64 head, u64 top, u64 other, bool of_queries, Scores& scores) {
    u64 query = of_queries ? top : other, key = of_queries ? other : top;
    bool inside = query + TILE <= job.k[0] && key + TILE <= job.k[1];
    if (inside && !(job.function & 6) && (!(job.function & 1) || key + TILE + job.k[0] <= query + job.k[1] + 1)) {
        float scale = constant(job, 0, 0.0f) * LOG2_E;
#pragma unroll
        for (u32 n = 0; n < 16; ++n) scores[n / 4][n % 4] *= scale;
        return;
    }
#pragma unroll
    for (u32 n = 0; n < 16; ++n) {
        u64 row = top + warp_top() + mma_row(n % 4), column = other + warp_other() + 8 * (n / 4) + mma_column(n % 4);
        float& score = scores[n / 4][n % 4];
        score = score_of<E>(job, head, of_queries ? row : column, of_queries ? column : row, score) * LOG2_E;
    }
}

// What to subtract from scores times LOG2_E, given the logarithm of the sum of a query: weights are 0 if all scores are
// -infinity.
DEVICE float offset_of(float log_sum) { return log_sum == (float)-INFINITY ? (float)INFINITY : log_sum * LOG2_E; }

#endif

#ifdef USES_MMA

// out[0] = the result, out[1] = the logarithm of the sum of exp of each query's scores.
BLOCK_KERNEL(attention, 2) {
    SHARED HalfTile tiles[3];
    SHARED float maxima[2][TILE];
    SHARED float sums[2][TILE];
    u64 queries = job.k[0], width = job.k[2], values = job.k[3];
    for (u64 n = blockIdx.x; n < job.count; n += gridDim.x) {
        // Without values there are still sums to write.
        Turn turn = turn_at(n, queries, values > 0 ? values : 1);
        Rows<T> q = rows_at<T>(job.in[0].address, turn.head, turn.top, queries, width);
        u64 key_head = key_head_of(job, turn.head);
        Sums result = {};
        float largest[2] = {(float)-INFINITY, (float)-INFINITY}, sum[2] = {};
        for (u64 start = 0; start < keys_seen(job, turn.top); start += TILE) {
            Rows<T> k = key_rows_at<T>(job, 1, key_head, start, width);
            Scores weights = {};
            load_tile(tiles[2], key_rows_at<T>(job, 2, key_head, start, values), turn.left);
            add_scores(tiles[0], tiles[1], q, k, start == 0, weights);
            // Without columns, no barrier has followed the load.
            if (width == 0) __syncthreads();
            scale_scores<T>(job, turn.head, turn.top, start, true, weights);
#pragma unroll
            for (u32 r = 0; r < 2; ++r) {
                // NaN is no maximum, but makes the sum NaN.
                float best = largest[r];
#pragma unroll
                for (u32 c = 0; c < 8; ++c) best = fmaxf(best, weights[c / 2][2 * r + c % 2]);
                best = fmaxf(best, across(best, 1));
                best = fmaxf(best, across(best, 2));
                // Before the first visible key all weights are 0, not 2 to the power of -infinity + infinity.
                float base = best == (float)-INFINITY ? 0.0f : best;
                float shrink = power_of_2(largest[r] - base), own = 0.0f;
#pragma unroll
                for (u32 c = 0; c < 8; ++c) {
                    float& weight = weights[c / 2][2 * r + c % 2];
                    weight = power_of_2(weight - base);
                    own += weight;
                    result[c][2 * r] *= shrink;
                    result[c][2 * r + 1] *= shrink;
                }
                sum[r] = sum[r] * shrink + join_four(own);
                largest[r] = best;
            }
            LeftFactors factors;
            round_scores<T>(weights, factors);
            add_weighted_rows<T>(factors, tiles[2], result);
            __syncthreads();
        }
        // Both halves of the warps have seen other keys.
        u32 half = warp_other() > 0;
        for (u32 r = 0; r < 2; ++r) {
            u32 row = warp_top() + mma_row(2 * r);
            if (mma_place() == 0) {
                maxima[half][row] = largest[r];
                sums[half][row] = sum[r];
            }
        }
        __syncthreads();
        float factor[2];
#pragma unroll
        for (u32 r = 0; r < 2; ++r) {
            u32 row = warp_top() + mma_row(2 * r);
            float best = fmaxf(maxima[0][row], maxima[1][row]);
            float base = best == (float)-INFINITY ? 0.0f : best;
            float own = power_of_2(largest[r] - base);
            float total = sums[0][row] * power_of_2(maxima[0][row] - base) + sums[1][row] * power_of_2(maxima[1][row] - base);
            for (u32 j = 0; j < 8; ++j) {
                result[j][2 * r] *= own;
                result[j][2 * r + 1] *= own;
            }
            // A query without visible keys gets 0.
            factor[r] = total == 0.0f ? 0.0f : 1.0f / total;
            u64 query = turn.top + row;
            if (turn.left == 0 && half == 0 && mma_place() == 0 && query < queries) {
                store<T>(job, 1, turn.head * queries + query, total == 0.0f ? (float)-INFINITY : best / LOG2_E + logarithm(total));
            }
        }
        join_halves((float*)tiles, result);
        write_sums<T>(job, 0, turn, queries, values, result, factor);
    }
}

// out[0] = the gradient of q; also = [result, logarithms of sums, gradient of the result].
BLOCK_KERNEL(attention_query_grad, 2) {
    SHARED HalfTile tiles[4];
    u64 queries = job.k[0], width = job.k[2], values = job.k[3];
    float scale = constant(job, 0, 0.0f);
    for (u64 n = blockIdx.x; n < job.count; n += gridDim.x) {
        Turn turn = turn_at(n, queries, width);
        Rows<T> q = rows_at<T>(job.in[0].address, turn.head, turn.top, queries, width);
        Rows<T> g = rows_at<T>(job.also[2], turn.head, turn.top, queries, values);
        Rows<T> result = rows_at<T>(job.also[0], turn.head, turn.top, queries, values);
        u64 key_head = key_head_of(job, turn.head);
        Sums to_query = {};
        float offset[2], along[2];
#pragma unroll
        for (u32 r = 0; r < 2; ++r) {
            u32 row = warp_top() + mma_row(2 * r);
            bool inside = row < q.count;
            offset[r] = offset_of(inside ? ((const float*)job.also[1])[turn.head * queries + turn.top + row] : (float)-INFINITY);
            along[r] = inside ? dot_of_four(g.first + row * values, result.first + row * values, values) : 0.0f;
            along[r] = join_four(along[r]);
        }
        for (u64 start = 0; start < keys_seen(job, turn.top); start += TILE) {
            Rows<T> k = key_rows_at<T>(job, 1, key_head, start, width);
            Rows<T> v = key_rows_at<T>(job, 2, key_head, start, values);
            Scores slopes = {}, through = {};
            add_scores(tiles[0], tiles[1], q, k, start == 0, slopes);
            add_scores(tiles[2], tiles[3], g, v, start == 0, through);
            load_columns(tiles[1], k, turn.left);
            scale_scores<T>(job, turn.head, turn.top, start, true, slopes);
#pragma unroll
            for (u32 n = 0; n < 16; ++n) {
                u32 r = n % 4 / 2;
                float weight = power_of_2(slopes[n / 4][n % 4] - offset[r]);
                slopes[n / 4][n % 4] = weight * (through[n / 4][n % 4] - along[r]);
            }
            LeftFactors factors;
            round_scores<T>(slopes, factors);
            __syncthreads();
            add_weighted_rows<T>(factors, tiles[1], to_query);
            __syncthreads();
        }
        join_halves((float*)tiles, to_query);
        write_sums<T>(job, 0, turn, queries, width, to_query, {scale, scale});
    }
}

// out[1] = the gradient of k, out[2] = the gradient of v in the same columns; `also` as above. Rows of the tile are
// keys, and the head of the tile is one of k.
BLOCK_KERNEL(attention_key_grad, 2) {
    SHARED HalfTile tiles[4];
    SHARED float offsets[TILE];
    SHARED float alongs[TILE];
    u64 queries = job.k[0], keys = job.k[1], width = job.k[2], values = job.k[3];
    float scale = constant(job, 0, 0.0f);
    for (u64 n = blockIdx.x; n < job.count; n += gridDim.x) {
        Turn turn = turn_at(n, keys, width > values ? width : values);
        Rows<T> k = key_rows_at<T>(job, 1, turn.head, turn.top, width);
        Rows<T> v = key_rows_at<T>(job, 2, turn.head, turn.top, values);
        Sums to_key = {}, to_value = {};
        // The heads of q that attend to this head. Queries before the first one that sees the tile's first key see none.
        u64 first = first_query(job, turn.top), heads_end = (turn.head + 1) * job.k[4];
        for (u64 head = turn.head * job.k[4]; head < heads_end; ++head) {
            for (u64 start = first; start < queries; start += TILE) {
                Rows<T> q = rows_at<T>(job.in[0].address, head, start, queries, width);
                Rows<T> g = rows_at<T>(job.also[2], head, start, queries, values);
                Rows<T> result = rows_at<T>(job.also[0], head, start, queries, values);
                // Four threads for each query.
                u32 mine = threadIdx.x / 4;
                float along = mine < q.count ? dot_of_four(g.first + mine * values, result.first + mine * values, values) : 0.0f;
                along = join_four(along);
                if (threadIdx.x % 4 == 0) {
                    alongs[mine] = along;
                    offsets[mine] = offset_of(mine < q.count ? ((const float*)job.also[1])[head * queries + start + mine] : (float)-INFINITY);
                }
                Scores weights = {};
                add_scores(tiles[0], tiles[1], k, q, start == first, weights);
                // Without columns, no barrier has followed the sums and offsets.
                if (width == 0) __syncthreads();
                scale_scores<T>(job, head, turn.top, start, false, weights);
#pragma unroll
                for (u32 n = 0; n < 16; ++n) {
                    u32 of = warp_other() + 8 * (n / 4) + mma_column(n % 4);
                    weights[n / 4][n % 4] = power_of_2(weights[n / 4][n % 4] - offsets[of]);
                }
                LeftFactors rounded;
                round_scores<T>(weights, rounded);
                Scores slopes = {};
                add_scores(tiles[2], tiles[3], v, g, start == first, slopes);
                load_columns(tiles[1], q, turn.left);
                load_columns(tiles[3], g, turn.left);
#pragma unroll
                for (u32 n = 0; n < 16; ++n) {
                    u32 of = warp_other() + 8 * (n / 4) + mma_column(n % 4);
                    float weight = half_of<T>(rounded[n / 8][n / 4 % 2 * 2 + n % 4 / 2], n % 2);
                    slopes[n / 4][n % 4] = weight * (slopes[n / 4][n % 4] - alongs[of]);
                }
                __syncthreads();
                add_weighted_rows<T>(rounded, tiles[3], to_value);
                round_scores<T>(slopes, rounded);
                add_weighted_rows<T>(rounded, tiles[1], to_key);
                __syncthreads();
            }
        }
        join_halves((float*)tiles, to_key);
        join_halves((float*)tiles, to_value);
        write_sums<T>(job, 1, turn, keys, width, to_key, {scale, scale});
        write_sums<T>(job, 2, turn, keys, values, to_value, {1.0f, 1.0f});
    }
}

#endif
