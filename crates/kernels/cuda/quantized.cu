// Quantized matrices: rows of blocks, each with a scale and values of 8 or 4 bits. The function is the format of the
// blocks (families/quantized/formats.rs). Blocks may begin at any byte.

#ifndef HIGHWATER_QUANTIZED
#define HIGHWATER_QUANTIZED

DEVICE float half_at(const u8* bytes) {
    f16 x;
    x.bits = (u16)(bytes[0] | bytes[1] << 8);
    return (float)x;
}

DEVICE void store_half(u8* bytes, float x) {
    u32 bits = f16(x).bits;
    bytes[0] = (u8)bits;
    bytes[1] = (u8)(bits >> 8);
}

DEVICE float float_at(const u8* bytes) {
    return float_of((u32)bytes[0] | (u32)bytes[1] << 8 | (u32)bytes[2] << 16 | (u32)bytes[3] << 24);
}

// Value i of 32 in 16 bytes: the low nibbles, then the high ones.
DEVICE u32 nibble(const u8* bytes, u32 i) { return i < 16 ? bytes[i] & 15u : (u32)bytes[i - 16] >> 4; }

// A level of NF4.
DEVICE float level(u32 q) {
    float a = q & 1 ? -0.6961928f : -1.0f;
    float b = q & 1 ? -0.3949175f : -0.52507305f;
    float c = q & 1 ? -0.18477343f : -0.28444138f;
    float d = q & 1 ? 0.0f : -0.091050036f;
    float e = q & 1 ? 0.1609302f : 0.0795803f;
    float f = q & 1 ? 0.33791524f : 0.2461123f;
    float g = q & 1 ? 0.562617f : 0.44070983f;
    float h = q & 1 ? 1.0f : 0.72295684f;
    a = q & 2 ? b : a;
    c = q & 2 ? d : c;
    e = q & 2 ? f : e;
    g = q & 2 ? h : g;
    a = q & 4 ? c : a;
    e = q & 4 ? g : e;
    return q & 8 ? e : a;
}

// Value i of a matrix, whose rows have whole blocks.
DEVICE float dequantized(u64 format, const u8* blocks, u64 i) {
    u32 n = (u32)(i % 32);
    switch (format) {
        case NAMED("Q8_0"): {
            const u8* block = blocks + i / 32 * 34;
            return (float)(signed char)block[2 + n] * half_at(block);
        }
        case NAMED("Q4_0"): {
            const u8* block = blocks + i / 32 * 18;
            return ((float)nibble(block + 2, n) - 8.0f) * half_at(block);
        }
        case NAMED("Q4_1"): {
            const u8* block = blocks + i / 32 * 20;
            return (float)nibble(block + 4, n) * half_at(block) + half_at(block + 2);
        }
        case NAMED("NF4"): {
            const u8* block = blocks + i / 64 * 36;
            return level(nibble(block + 4 + i / 32 % 2 * 16, n)) * float_at(block);
        }
    }
    return undefined(0.0f);
}

// Value e of the block of this thread.
template <typename E>
DEVICE float element_of(const Job& job, u64 first, u32 e) { return (float)value<E>(job, 0, first + e); }

// A number from 0 to 15.
DEVICE u32 four_bits(float x) {
    u32 q = to_u8(x);
    return q < 15 ? q : 15;
}

// The level of NF4 that is nearest to x.
DEVICE u32 nearest_level(float x) {
    u32 q = 0;
    for (u32 n = 0; n < 15; ++n) q += x > (level(n) + level(n + 1)) / 2.0f ? 1 : 0;
    return q;
}

// The quantized value e of a block: factor = 1 / scale, least = the smallest value.
template <typename E>
DEVICE u32 quantized(const Job& job, u64 first, u32 e, float factor, float least) {
    float x = element_of<E>(job, first, e);
    switch (job.function) {
        case NAMED("Q4_0"): return four_bits(x * factor + 8.5f);
        case NAMED("Q4_1"): return four_bits((x - least) * factor + 0.5f);
        default: return nearest_level(x * factor);
    }
}

#endif

// out[i, j] = bias[j] + sum over k of lhs[i, k] W[j, k], or W[k, j]. Sums are of type WIDE and rounded once. A block
// computes one tile (tile.cuh) at a time. k = [rows, columns, depth, lhs stride of i, lhs stride of k, columns of W];
// i[0] = whether W is transposed. Operand 1 is W, operand 2 the bias, if present.
BLOCK_KERNEL(product, TILE_BLOCKS) {
    SHARED WIDE a[DEPTH][TILE + 1];
    SHARED WIDE b[DEPTH][TILE + 1];
    u64 rows = job.k[0], columns = job.k[1], depth = job.k[2];
    u64 across = (columns + TILE - 1) / TILE;
    u64 tiles = (rows + TILE - 1) / TILE * across;
    bool transposed = job.i[0] != 0;
    const T* lhs = (const T*)job.in[0].address;
    const u8* blocks = (const u8*)job.in[1].address;
    for (u64 n = blockIdx.x; n < tiles; n += gridDim.x) {
        u64 top = n / across * TILE, left = n % across * TILE;
        WIDE sum[4][4];
        for (u32 c = 0; c < 4; ++c) {
            u64 j = left + tile_column(c);
            bool biased = job.in[2].address && j < columns;
            WIDE first = biased ? element_at<T>(job.in[2], j * job.in[2].strides[0]) : (WIDE)0;
            for (u32 r = 0; r < 4; ++r) {
                sum[r][c] = first;
            }
        }
        for (u64 start = 0; start < depth; start += DEPTH) {
            for (u32 e = threadIdx.x; e < TILE * DEPTH; e += BLOCK) {
                u32 i = e / DEPTH, k = e % DEPTH;
                bool inside = top + i < rows && start + k < depth;
                a[k][i] = inside ? (WIDE)lhs[(top + i) * job.k[3] + (start + k) * job.k[4]] : (WIDE)0;
                u32 j = transposed ? e / DEPTH : e % TILE;
                k = transposed ? e % DEPTH : e / TILE;
                inside = left + j < columns && start + k < depth;
                u64 row = transposed ? left + j : start + k, column = transposed ? start + k : left + j;
                b[k][j] = inside ? (WIDE)dequantized(job.function, blocks, row * job.k[5] + column) : (WIDE)0;
            }
            __syncthreads();
            add_step(a, b, sum);
            __syncthreads();
        }
        for (u32 r = 0; r < 4; ++r) {
            for (u32 c = 0; c < 4; ++c) {
                u64 i = top + tile_row(r), j = left + tile_column(c);
                if (i < rows && j < columns) {
                    store<T>(job, 0, i * columns + j, sum[r][c]);
                }
            }
        }
    }
}

// out[i, j] = W[index[i], j], or W[i, j] without operand 1. Operand 0 is W; k[0] = columns, k[1] = the stride of the
// indices; count = elements.
KERNEL(dequantize) {
    const u8* blocks = (const u8*)job.in[0].address;
    const i64* index = (const i64*)job.in[1].address;
    EACH(i) {
        u64 row = quotient(i, job.k[0]);
        u64 column = i - row * job.k[0];
        if (index) row = (u64)index[row * job.k[1]];
        store<T>(job, 0, i, (WIDE)dequantized(job.function, blocks, row * job.k[0] + column));
    }
}

// Writes the blocks of a matrix whose rows have whole blocks; count = blocks, one thread each. The job's shape is that of
// operand 0. k[0] = values of a block, k[1] = bytes of a block.
KERNEL(quantize) {
    EACH(n) {
        u64 first = n * job.k[0];
        u8* block = out<u8>(job, 0) + n * job.k[1];
        float largest = 0, least = INFINITY, most = -INFINITY;
        for (u32 e = 0; e < job.k[0]; ++e) {
            float x = element_of<T>(job, first, e);
            largest = fabsf(x) > fabsf(largest) ? x : largest;
            least = x < least ? x : least;
            most = x > most ? x : most;
        }
        float scale = fabsf(largest);
        u32 header = 2;
        switch (job.function) {
            case NAMED("Q8_0"): scale = scale / 127.0f; break;
            case NAMED("Q4_0"): scale = largest / -8.0f; break;
            case NAMED("Q4_1"): scale = (most - least) / 15.0f; header = 4; break;
            case NAMED("NF4"): header = 4; break;
        }
        float factor = scale == 0 ? 0.0f : 1.0f / scale;
        if (job.function == NAMED("NF4")) {
            u32 bits = bits_of(scale);
            for (u32 e = 0; e < 4; ++e) block[e] = (u8)(bits >> 8 * e);
        } else {
            store_half(block, scale);
            if (header == 4) store_half(block + 2, least);
        }
        if (job.function == NAMED("Q8_0")) {
            for (u32 e = 0; e < 32; ++e) {
                float q = roundf(element_of<T>(job, first, e) * factor);
                q = q < -128.0f ? -128.0f : q > 127.0f ? 127.0f : q;
                block[2 + e] = (u8)to_i32(q);
            }
            continue;
        }
        for (u32 unit = 0; unit < job.k[0]; unit += 32) {
            for (u32 e = 0; e < 16; ++e) {
                u32 low = quantized<T>(job, first, unit + e, factor, least);
                u32 high = quantized<T>(job, first, unit + e + 16, factor, least);
                block[header + unit / 2 + e] = (u8)(low | high << 4);
            }
        }
    }
}
