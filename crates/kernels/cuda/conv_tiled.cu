// The convolutions of conv.cu as tiled matrix products (tile.cuh), for groups with enough channels. The right factor,
// the unfolded image, is never in memory: its elements are read from the image ("implicit GEMM").
//
// | for each group    | rows             | columns         | depth                          |
// |-------------------|------------------|-----------------|--------------------------------|
// | conv2d            | output channels  | output pixels   | channels x taps                |
// | conv2d_input_grad | channels         | pixels          | output channels x taps         |
// | conv2d_weight_grad| output channels  | channels x taps | output pixels, cut into parts  |
//
// Pixels are counted over all images. Operands as in conv.cu; count is the number of tiles. The shapes alone determine
// which products a thread sums and in which order.

#ifndef HIGHWATER_CONV_TILED
#define HIGHWATER_CONV_TILED

// Half of a position in an image: the start of a window, or the offset of a tap. Their sum is the position; coordinates
// wrap around, so that one in the padding is not below the sizes. Sums are exact, because no padded size exceeds 64
// bits.
struct Spot {
    u64 offset, y, x;
};

// A depth step: the offset in a row of the left factor, and the half position that is added to those of the columns.
struct Term {
    u64 along;
    Spot spot;
};

// Shared memory of a block: a step of both factors, the origins of their elements, and the offsets of the result
// columns.
template <typename E>
struct Shared {
    E a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
    Spot columns[TILE];
    Term terms[DEPTH];
    u64 results[TILE];
};

// The left factor from the tile's first row on, the images behind the right one, and whether neighboring threads read
// along the depth (where that is contiguous) or along rows and columns. Tiles at the edge read nothing beyond it.
template <typename E>
struct Factors {
    const E* left;
    u32 rows, columns;
    u64 row_step;
    bool left_along_depth;
    const E* images;
    u64 high, wide;
    bool right_along_depth;
};

// The rows or columns left, at most a tile.
DEVICE u32 within_tile(u64 left) { return left < TILE ? (u32)left : TILE; }

// The position of a tile in its part. Tiles that read the same pixels follow each other.
struct Tile {
    u64 part, top, left;
};

DEVICE Tile tile_at(u64 n, u64 rows, u64 columns) {
    u64 down = (rows + TILE - 1) / TILE, across = (columns + TILE - 1) / TILE;
    u64 column = quotient(n, down), part = quotient(column, across);
    return Tile{part, (n - column * down) * TILE, (column - part * across) * TILE};
}

// Adds the terms from `from` to below `to` to this thread's sums.
template <typename Wide, typename E, typename TermAt>
DEVICE void add_terms(Shared<Wide>& shared, const Factors<E>& of, u64 from, u64 to, TermAt term_at, Wide (*sum)[4]) {
    for (u64 start = from; start < to; start += DEPTH) {
        u32 terms = to - start < DEPTH ? (u32)(to - start) : DEPTH;
        if (threadIdx.x < terms) {
            shared.terms[threadIdx.x] = term_at(start + threadIdx.x);
        }
        __syncthreads();
        for (u32 e = threadIdx.x; e < TILE * DEPTH; e += BLOCK) {
            u32 k = of.left_along_depth ? e % DEPTH : e / TILE;
            u32 i = of.left_along_depth ? e / DEPTH : e % TILE;
            bool inside = i < of.rows && k < terms;
            shared.a[k][i] = inside ? (Wide)of.left[i * of.row_step + shared.terms[k].along] : (Wide)0;
        }
        for (u32 e = threadIdx.x; e < TILE * DEPTH; e += BLOCK) {
            u32 k = of.right_along_depth ? e % DEPTH : e / TILE;
            u32 j = of.right_along_depth ? e / DEPTH : e % TILE;
            const Spot& column = shared.columns[j];
            const Spot& spot = shared.terms[k].spot;
            bool inside = j < of.columns && k < terms && column.y + spot.y < of.high && column.x + spot.x < of.wide;
            shared.b[k][j] = inside ? (Wide)of.images[column.offset + spot.offset] : (Wide)0;
        }
        __syncthreads();
        add_step(shared.a, shared.b, sum);
    }
}

// Writes this thread's sums. Rows of a column are `step` apart; rows and columns beyond the edge are skipped.
template <typename E, typename Wide>
DEVICE void write_sums(const Job& job, const Shared<Wide>& shared, u64 step, u32 rows, u32 columns, const Wide (*sum)[4]) {
    // Without terms, no barrier has made the column offsets visible yet.
    __syncthreads();
    for (u32 c = 0; c < 4; ++c) {
        for (u32 r = 0; r < 4; ++r) {
            if (tile_column(c) < columns && tile_row(r) < rows) {
                store<E>(job, 0, shared.results[tile_column(c)] + tile_row(r) * step, sum[r][c]);
            }
        }
    }
    // All threads must finish before the next tile.
    __syncthreads();
}

// The start of an output's window, among the channels from `channel` on.
DEVICE Spot window_at(const Job& job, const Sizes& of, u64 output, u64 channel) {
    Pixel at = pixel(output, 1, of.OH, of.OW);
    u64 y = seen(job, 0, at.y, 0), x = seen(job, 1, at.x, 0);
    return Spot{((at.n * of.C + channel) * of.H + y) * of.W + x, y, x};
}

// The offset of a tap in its window; taps are counted over the channels of a group.
DEVICE Spot tap_at(const Job& job, const Sizes& of, u64 tap) {
    Pixel at = pixel(tap, 1, of.KH, of.KW);
    u64 y = at.y * job.k[4], x = at.x * job.k[5];
    return Spot{(at.n * of.H + y) * of.W + x, y, x};
}

// Positions of an axis that are a stride apart: the same taps read them.
struct Phase {
    u64 place, places;     // the first of them, and how many there are
    u64 tap, taps, step;   // the first tap that sees them, how many do, and from one to the next
    u64 output;            // the output that would see the first place with tap 0, were it one that does
};

DEVICE Phase phase_at(const Job& job, int axis, u64 place, u64 size, u64 window) {
    u64 stride = job.k[axis], step = (u64)job.i[axis], ahead = place + job.k[2 + axis];
    u64 tap = 0, most = step < window ? step : window;
    while (tap < most && tap * job.k[4 + axis] % stride != ahead % stride) {
        ++tap;
    }
    u64 taps = tap < most ? (window - tap - 1) / step + 1 : 0;
    return Phase{place, (size - place - 1) / stride + 1, tap, taps, step, ahead / stride};
}

#endif

BLOCK_KERNEL(conv2d_tiled, TILE_BLOCKS) {
    SHARED Shared<WIDE> shared;
    Sizes of = sizes(job);
    u32 t = threadIdx.x;
    u64 pixels = job.dims[0] * of.OH * of.OW, plane = of.OH * of.OW, depth = of.inputs * of.KH * of.KW;
    for (u64 n = blockIdx.x; n < job.count; n += gridDim.x) {
        Tile tile = tile_at(n, of.outputs, pixels);
        u64 first = tile.part * of.outputs + tile.top;
        u32 rows = within_tile(of.outputs - tile.top), columns = within_tile(pixels - tile.left);
        if (t < TILE) {
            u64 j = tile.left + t, image = quotient(j, plane);
            shared.columns[t] = window_at(job, of, j, tile.part * of.inputs);
            shared.results[t] = (image * of.O + first) * plane + (j - image * plane);
        }
        const T* weight = (const T*)job.in[1].address + first * depth;
        Factors<T> factors = {weight, rows, columns, depth, true, (const T*)job.in[0].address, of.H, of.W, false};
        auto term_at = [&](u64 k) { return Term{k, tap_at(job, of, k)}; };
        WIDE sum[4][4] = {};
        add_terms(shared, factors, 0, depth, term_at, sum);
        write_sums<T>(job, shared, plane, rows, columns, sum);
    }
}

// A part is one phase of both axes; its depth are the taps that read these pixels. i = the steps of taps.
BLOCK_KERNEL(conv2d_input_grad_tiled, TILE_BLOCKS) {
    SHARED Shared<WIDE> shared;
    SHARED Phase phases[2];
    Sizes of = sizes(job);
    u32 t = threadIdx.x;
    u64 plane = of.OH * of.OW, window = of.KH * of.KW;
    u64 high = job.k[0] < of.H ? job.k[0] : of.H, wide = job.k[1] < of.W ? job.k[1] : of.W;
    u64 most = job.dims[0] * ((of.H + high - 1) / high) * ((of.W + wide - 1) / wide);
    for (u64 n = blockIdx.x; n < job.count; n += gridDim.x) {
        Tile tile = tile_at(n, of.inputs, most);
        Pixel part = pixel(tile.part, 1, high, wide);
        if (t < 2) {
            phases[t] = t == 0 ? phase_at(job, 0, part.y, of.H, of.KH) : phase_at(job, 1, part.x, of.W, of.KW);
        }
        __syncthreads();
        const Phase &down = phases[0], &across = phases[1];
        // Later phases may have fewer pixels.
        u64 pixels = job.dims[0] * down.places * across.places, first = part.n * of.outputs;
        u32 rows = within_tile(of.inputs - tile.top);
        u32 columns = pixels < tile.left ? 0 : within_tile(pixels - tile.left);
        if (t < TILE) {
            Pixel at = pixel(tile.left + t, 1, down.places, across.places);
            u64 y = down.output + at.y, x = across.output + at.x;
            shared.columns[t] = Spot{((at.n * of.O + first) * of.OH + y) * of.OW + x, y, x};
            y = down.place + at.y * job.k[0], x = across.place + at.x * job.k[1];
            shared.results[t] = ((at.n * of.C + part.n * of.inputs + tile.top) * of.H + y) * of.W + x;
        }
        const T* weight = (const T*)job.in[0].address + (first * of.inputs + tile.top) * window;
        Factors<T> factors = {weight, rows, columns, window, window > 1, (const T*)job.in[1].address, of.OH, of.OW, false};
        auto term_at = [&](u64 k) {
            Pixel at = pixel(k, 1, down.taps, across.taps);
            u64 ky = down.tap + at.y * down.step, kx = across.tap + at.x * across.step;
            u64 y = 0 - quotient(ky * job.k[4], job.k[0]), x = 0 - quotient(kx * job.k[5], job.k[1]);
            return Term{at.n * of.inputs * window + ky * of.KW + kx, Spot{at.n * plane + y * of.OW + x, y, x}};
        };
        WIDE sum[4][4] = {};
        add_terms(shared, factors, 0, of.outputs * down.taps * across.taps, term_at, sum);
        write_sums<T>(job, shared, of.H * of.W, rows, columns, sum);
    }
}

// A part sums inner_dims[6] output pixels; the results of parts follow each other.
BLOCK_KERNEL(conv2d_weight_grad_tiled, TILE_BLOCKS) {
    SHARED Shared<WIDE> shared;
    Sizes of = sizes(job);
    u32 t = threadIdx.x;
    u64 pixels = job.dims[0] * of.OH * of.OW, plane = of.OH * of.OW, taps = of.inputs * of.KH * of.KW;
    for (u64 n = blockIdx.x; n < job.count; n += gridDim.x) {
        Tile tile = tile_at(n, of.outputs, taps);
        u64 part = quotient(tile.part, job.inner_dims[5]), group = tile.part - part * job.inner_dims[5];
        u64 from = part * job.inner_dims[6], to = from + job.inner_dims[6];
        u64 first = group * of.outputs + tile.top;
        u32 rows = within_tile(of.outputs - tile.top), columns = within_tile(taps - tile.left);
        if (t < TILE) {
            u64 j = tile.left + t;
            shared.columns[t] = tap_at(job, of, j);
            shared.results[t] = (part * of.O + first) * taps + j;
        }
        const T* grad = (const T*)job.in[1].address + first * plane;
        Factors<T> factors = {grad, rows, columns, plane, true, (const T*)job.in[0].address, of.H, of.W, true};
        auto term_at = [&](u64 k) {
            u64 along = k + quotient(k, plane) * (of.O - 1) * plane;
            return Term{along, window_at(job, of, k, group * of.inputs)};
        };
        WIDE sum[4][4] = {};
        add_terms(shared, factors, from, to < pixels ? to : pixels, term_at, sum);
        write_sums<T>(job, shared, taps, rows, columns, sum);
    }
}
