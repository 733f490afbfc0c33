// Tiled matrix products: a block computes 64 x 64 sums in depth steps of 16. Shared memory holds both factors of a
// step; a thread sums 4 x 4 elements.

#ifndef HIGHWATER_TILE
#define HIGHWATER_TILE
#define TILE 64
#define DEPTH 16

// Blocks per multiprocessor, limited by the registers for sums.
#define TILE_BLOCKS (sizeof(WIDE) > 4 ? 2 : 3)

// The rows and columns of this thread's sums, r and c below 4.
DEVICE u32 tile_row(u32 r) { return threadIdx.x / 16 * 4 + r; }
DEVICE u32 tile_column(u32 c) { return threadIdx.x % 16 + 16 * c; }

// Adds the products a[k][row] b[k][column] of a step, in ascending k.
template <typename E>
DEVICE void add_step(const E (*a)[TILE + 1], const E (*b)[TILE + 1], E (*sum)[4]) {
    // Full unrolling would take too many registers and reduce the blocks per multiprocessor.
#pragma unroll 8
    for (u32 k = 0; k < DEPTH; ++k) {
        E p[4], q[4];
        for (u32 r = 0; r < 4; ++r) {
            p[r] = a[k][tile_row(r)];
            q[r] = b[k][tile_column(r)];
        }
        for (u32 r = 0; r < 4; ++r) {
            for (u32 c = 0; c < 4; ++c) {
                sum[r][c] = fused(p[r], q[c], sum[r][c]);
            }
        }
    }
}

#endif
