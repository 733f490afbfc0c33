// out[batch, i, j] = bias[j] + sum over k of lhs[batch, i, k] rhs[batch, k, j]. Half-precision products are summed as
// 32-bit floats and rounded once, or not at all if the bias and the outputs are 32-bit floats; integers wrap.
//
// A block computes one tile (tile.cuh) at a time. The job's shape is that of the batch; k = [rows, columns, depth, lhs
// stride of i, lhs stride of k, rhs stride of k], i[0] = the rhs stride of j. The bias is operand 2, if present. If i[1]
// is not 0, the product is added to the output instead. The function is an activation (activation.cuh), for floats only;
// the second output, if present, receives the sums before it.

BLOCK_KERNEL(matmul, TILE_BLOCKS) {
    SHARED WIDE a[DEPTH][TILE + 1];
    SHARED WIDE b[DEPTH][TILE + 1];
    u64 rows = job.k[0], columns = job.k[1], depth = job.k[2];
    u64 across = (columns + TILE - 1) / TILE;
    u64 tiles = (rows + TILE - 1) / TILE * across;
    for (u64 n = blockIdx.x; n < tiles * job.count; n += gridDim.x) {
        u64 batch = n / tiles;
        u64 top = n % tiles / across * TILE, left = n % tiles % across * TILE;
        const T* lhs = (const T*)job.in[0].address + offset_in(job.rank, job.dims, job.in[0].strides, batch);
        const T* rhs = (const T*)job.in[1].address + offset_in(job.rank, job.dims, job.in[1].strides, batch);
        WIDE sum[4][4];
        for (u32 c = 0; c < 4; ++c) {
            u64 j = left + tile_column(c);
            bool biased = job.in[2].address && j < columns;
            WIDE first = biased ? element_at<T>(job.in[2], j * job.in[2].strides[0]) : (WIDE)0;
            for (u32 r = 0; r < 4; ++r) {
                u64 i = top + tile_row(r);
                bool added = job.i[1] != 0 && i < rows && j < columns;
                sum[r][c] = added ? stored<T>(job, 0, batch * rows * columns + i * columns + j) : first;
            }
        }
        for (u64 start = 0; start < depth; start += DEPTH) {
            for (u32 e = threadIdx.x; e < TILE * DEPTH; e += BLOCK) {
                // Neighboring threads read along the contiguous axis.
                bool along = job.k[4] == 1;
                u32 i = along ? e / DEPTH : e % TILE;
                u32 k = along ? e % DEPTH : e / TILE;
                bool inside = top + i < rows && start + k < depth;
                a[k][i] = inside ? (WIDE)lhs[(top + i) * job.k[3] + (start + k) * job.k[4]] : (WIDE)0;
                along = job.k[5] == 1 && job.i[0] != 1;
                u32 j = along ? e / DEPTH : e % TILE;
                k = along ? e % DEPTH : e / TILE;
                inside = left + j < columns && start + k < depth;
                b[k][j] = inside ? (WIDE)rhs[(start + k) * job.k[5] + (left + j) * (u64)job.i[0]] : (WIDE)0;
            }
            __syncthreads();
            add_step(a, b, sum);
            __syncthreads();
        }
        u32 sums = job.out[1].address ? 1 : 0;
        u64 to = batch * rows * columns;
        for (u32 r = 0; r < 4; ++r) {
            for (u32 c = 0; c < 4; ++c) {
                u64 i = top + tile_row(r), j = left + tile_column(c);
                if (i < rows && j < columns) {
                    store<T>(job, sums, to + i * columns + j, sum[r][c]);
                }
            }
        }
#ifdef T_IS_FLOAT
        if (job.function == 0) continue;
        // Each thread reads its own results back, so that the function is compiled once and takes no registers from the
        // sums.
#pragma unroll 1
        for (u32 e = 0; e < 16; ++e) {
            u64 i = top + tile_row(e / 4), j = left + tile_column(e % 4);
            if (i < rows && j < columns) {
                u64 at = to + i * columns + j;
                store<T>(job, 0, at, activated(job.function, stored<T>(job, sums, at)));
            }
        }
#endif
    }
}
