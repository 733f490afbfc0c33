// Products of 16-bit floats on tensor cores, summed as 32-bit floats (PTX: mma.m16n8k16). A warp multiplies 16 rows by 8
// columns; each thread holds some elements of every matrix, as PTX defines. On a host, threads exchange them in memory.

#ifndef HIGHWATER_MMA
#define HIGHWATER_MMA

// A tile in shared memory. The distance of rows puts eight of them into different banks.
struct HalfTile {
    alignas(16) u16 of[TILE][TILE + 8];
};

// The thread's place in its warp: a row of a group of four threads, and its place there.
DEVICE u32 mma_group() { return threadIdx.x % 32 / 4; }
DEVICE u32 mma_place() { return threadIdx.x % 4; }

// The row and column of result e, below 4, of a product.
DEVICE u32 mma_row(u32 e) { return mma_group() + e / 2 * 8; }
DEVICE u32 mma_column(u32 e) { return mma_place() * 2 + e % 2; }

DEVICE u32 two(u16 low, u16 high) { return (u32)low | (u32)high << 16; }

// The fragments of four 8 x 8 matrices: at `row` and `column`, 8 rows below, 8 columns to the right, and both. As left
// factor they are 16 x 16 elements. As right factor whose columns are the tile's rows, fragments 0 and 2 belong to the
// first 8 columns, 1 and 3 to the next 8.
DEVICE void fragments(const HalfTile& tile, u32 row, u32 column, u32 (&x)[4]) {
#ifdef __CUDACC_RTC__
    u32 lane = threadIdx.x % 32;
    u32 address = (u32)__cvta_generic_to_shared(&tile.of[row + lane % 16][column + lane / 16 * 8]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory");
#else
    for (u32 n = 0; n < 4; ++n) {
        const u16* at = &tile.of[row + n % 2 * 8 + mma_group()][column + n / 2 * 8 + 2 * mma_place()];
        x[n] = two(at[0], at[1]);
    }
#endif
}

// The same of the transposed matrices: a right factor whose rows are the tile's. Fragments 0 and 1 belong to the first 8
// columns, 2 and 3 to the next 8.
DEVICE void fragments_down(const HalfTile& tile, u32 row, u32 column, u32 (&x)[4]) {
#ifdef __CUDACC_RTC__
    u32 lane = threadIdx.x % 32;
    u32 address = (u32)__cvta_generic_to_shared(&tile.of[row + lane % 16][column + lane / 16 * 8]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory");
#else
    for (u32 n = 0; n < 4; ++n) {
        u32 from = row + n % 2 * 8 + 2 * mma_place(), at = column + n / 2 * 8 + mma_group();
        x[n] = two(tile.of[from][at], tile.of[from + 1][at]);
    }
#endif
}

template <typename E>
DEVICE float half_of(u32 pair, bool high) {
    E x;
    x.bits = (u16)(high ? pair >> 16 : pair);
    return (float)x;
}

// two_of rounds two floats. mma: sum += a b for a left factor and a right factor of two fragments; all threads of a block
// must call it together. The last argument selects the type.
#ifdef __CUDACC_RTC__
#define DEFINE_MMA(E, NAME)                                                                       \
    DEVICE u32 two_of(float low, float high, E) {                                                 \
        u32 both;                                                                                 \
        asm("cvt.rn." NAME "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));              \
        return both;                                                                              \
    }                                                                                             \
    DEVICE void mma(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1, E) {                      \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 "                        \
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                     \
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                              \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                      \
    }
DEFINE_MMA(f16, "f16")
DEFINE_MMA(bf16, "bf16")
#else
template <typename E>
DEVICE u32 two_of(float low, float high, E) { return two(E(low).bits, E(high).bits); }

template <typename E>
DEVICE void mma(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1, E) {
    SHARED u32 all[BLOCK][6];
    u32 own[6] = {a[0], a[1], a[2], a[3], b0, b1};
    for (u32 n = 0; n < 6; ++n) all[threadIdx.x][n] = own[n];
    __syncthreads();
    u32 warp = threadIdx.x / 32 * 32;
    for (u32 e = 0; e < 4; ++e) {
        u32 row = mma_row(e), column = mma_column(e);
        for (u32 k = 0; k < 16; ++k) {
            u32 left = all[warp + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            u32 right = all[warp + column * 4 + k % 8 / 2][4 + k / 8];
            sum[e] = fmaf(half_of<E>(left, k % 2), half_of<E>(right, k % 2), sum[e]);
        }
    }
    __syncthreads();
}
#endif

// 2 to the power of x, to about 22 bits; results below the smallest normal number are 0.
DEVICE float power_of_2(float x) {
#ifdef __CUDACC_RTC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

#endif
