// What the attention kernels share. softmax(c[0] q k^T) v for each head: the score matrix is never in memory. A block
// computes one tile of it after the other and keeps its sums in registers (Dao et al., FlashAttention, 2022).
//
// k = [queries, keys, width, values, group]; in = [q, k, v]. The rows of a head are contiguous; heads of k and v may have
// any stride. Each head of k and v serves `group` heads of q. also[3] is an optional mask, whose strides along heads,
// queries and keys are inner_dims: booleans if bit 1 of the function is set, values added to the scores if bit 2 is.
// Bit 0: causal, the last query sees all keys, and each query before it one key fewer. A block computes 64 rows and 64
// columns of the result; for wider rows, other blocks compute the same scores again. count is the number of tiles.

#ifndef HIGHWATER_ATTENTION
#define HIGHWATER_ATTENTION

// The tile of a block: the head, its first row and its first column.
struct Turn {
    u64 head, top, left;
};

DEVICE Turn turn_at(u64 n, u64 rows, u64 columns) {
    u64 down = (rows + TILE - 1) / TILE, across = (columns + TILE - 1) / TILE;
    u64 row = quotient(n, across), head = quotient(row, down);
    return Turn{head, (row - head * down) * TILE, (n - row * across) * TILE};
}

DEVICE u32 up_to_tile(u64 size, u64 from) { return from >= size ? 0 : size - from < TILE ? (u32)(size - from) : TILE; }

// A matrix of a head from a start row on, with `width` elements per row.
template <typename E>
struct Rows {
    const E* first;
    u32 count;
    u64 width;
};

template <typename E>
DEVICE Rows<E> rows_at(u64 address, u64 head, u64 from, u64 rows, u64 width) {
    return Rows<E>{(const E*)address + (head * rows + from) * width, up_to_tile(rows, from), width};
}

// The rows of a head of k (input 1) or v (input 2) from a start row on.
template <typename E>
DEVICE Rows<E> key_rows_at(const Job& job, u32 input, u64 key_head, u64 from, u64 width) {
    const E* first = (const E*)job.in[input].address + key_head * job.in[input].strides[0] + from * width;
    return Rows<E>{first, up_to_tile(job.k[1], from), width};
}

// The head of k and v that a head of q attends to.
DEVICE u64 key_head_of(const Job& job, u64 head) { return quotient(head, job.k[4]); }

// The score of a query and a key: scaled, masked, and -infinity for unseen keys.
template <typename E>
DEVICE typename Computed<E>::type score_of(const Job& job, u64 head, u64 query, u64 key, typename Computed<E>::type product) {
    typedef typename Computed<E>::type Wide;
    if (query >= job.k[0] || key >= job.k[1] || ((job.function & 1) && key + job.k[0] > query + job.k[1])) return (Wide)-INFINITY;
    Wide score = product * constant(job, 0, (Wide)0);
    if (!(job.function & 6)) return score;
    u64 at = head * job.inner_dims[0] + query * job.inner_dims[1] + key * job.inner_dims[2];
    if (job.function & 2) return ((const u8*)job.also[3])[at] ? score : (Wide)-INFINITY;
    return score + (Wide)((const E*)job.also[3])[at];
}

// The weight of a score: 0 if all scores are -infinity, so that the result is 0.
template <typename E>
DEVICE E share(E score, E log_sum) {
    return log_sum == (E)-INFINITY ? (E)0 : exponential(score - log_sum);
}

// The end of the keys that a tile of queries sees.
DEVICE u64 keys_seen(const Job& job, u64 top) {
    u64 last = top + TILE + job.k[1];
    if (!(job.function & 1) || last >= job.k[0] + job.k[1]) return job.k[1];
    return last > job.k[0] ? last - job.k[0] : 0;
}

// The first query of the first tile of queries that sees a key.
DEVICE u64 first_query(const Job& job, u64 key) {
    if (!(job.function & 1) || key + job.k[0] <= job.k[1]) return 0;
    return (key + job.k[0] - job.k[1]) / TILE * TILE;
}

#endif

// 16-bit floats use tensor cores if the device has them for both types.
#undef USES_MMA
#if defined(T_IS_HALF) && (!defined(__CUDACC_RTC__) || __CUDA_ARCH__ >= 800)
#define USES_MMA
#endif
