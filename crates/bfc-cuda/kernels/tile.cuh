// Sums of products by tiles: a block computes 64 x 64 of them, in steps of 16 along their depth. What a step takes of both
// factors, the block keeps in memory that its threads share; a thread sums 4 x 4 elements.

#ifndef HIGHWATER_TILE
#define HIGHWATER_TILE
#define TILE 64
#define DEPTH 16

// Blocks that share a processor, by the registers that sums take.
#define TILE_BLOCKS (sizeof(WIDE) > 4 ? 2 : 3)

// The rows and columns of a tile that this thread sums, r and c below 4.
DEVICE u32 tile_row(u32 r) { return threadIdx.x / 16 * 4 + r; }
DEVICE u32 tile_column(u32 c) { return threadIdx.x % 16 + 16 * c; }

// Adds the products of a step, a[k][row] b[k][column], in rising order of k.
template <typename E>
DEVICE void add_step(const E (*a)[TILE + 1], const E (*b)[TILE + 1], E (*sum)[4]) {
    // All at once would take so many registers that fewer blocks share a processor.
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
