// 2-D convolutions for floats and their gradients. All operands are contiguous. Outputs of half-precision kernels may be
// 32-bit floats.
//
// dims = the input images [n, channels, h, w]; inner_dims = [output channels, oh, ow, kh, kw, groups]; k = [strides,
// paddings, dilations], each of height and width. The weight is [output channels, channels per group, kh, kw].
//
// These kernels suit groups with few channels; conv_tiled.cu handles the rest.

#ifndef HIGHWATER_CONV
#define HIGHWATER_CONV

// The sizes of images, outputs and windows, and the channels per group.
struct Sizes {
    u64 C, H, W, O, OH, OW, KH, KW, inputs, outputs;
};

DEVICE Sizes sizes(const Job& job) {
    const u64* inner = job.inner_dims;
    return Sizes{job.dims[1], job.dims[2], job.dims[3], inner[0], inner[1], inner[2], inner[3], inner[4],
                 quotient(job.dims[1], inner[5]), quotient(inner[0], inner[5])};
}

// The indices of element i of images [n, channels, high, wide].
struct Pixel {
    u64 n, channel, y, x;
};

DEVICE Pixel pixel(u64 i, u64 channels, u64 high, u64 wide) {
    u64 row = quotient(i, wide), plane = quotient(row, high), n = quotient(plane, channels);
    return Pixel{n, plane - n * channels, row - plane * high, i - row * wide};
}

// The position that a tap reads; in the padding it is not below the size.
DEVICE u64 seen(const Job& job, int axis, u64 output, u64 tap) {
    return output * job.k[axis] + tap * job.k[4 + axis] - job.k[2 + axis];
}

// The output whose window reads a position with this tap; not below the number of outputs if there is none.
DEVICE u64 seeing(const Job& job, int axis, u64 place, u64 tap) {
    u64 ahead = place + job.k[2 + axis], behind = tap * job.k[4 + axis];
    if (ahead < behind) return ~0ULL;
    u64 output = quotient(ahead - behind, job.k[axis]);
    return output * job.k[axis] == ahead - behind ? output : ~0ULL;
}

#endif

// in = [images, weight]: one thread for each output.
KERNEL(conv2d) {
    Sizes of = sizes(job);
    const T* images = (const T*)job.in[0].address;
    const T* weight = (const T*)job.in[1].address;
    EACH(i) {
        Pixel to = pixel(i, of.O, of.OH, of.OW);
        const T* image = images + (to.n * of.C + quotient(to.channel, of.outputs) * of.inputs) * of.H * of.W;
        const T* filter = weight + to.channel * of.inputs * of.KH * of.KW;
        WIDE sum = (WIDE)0;
        for (u64 c = 0; c < of.inputs; ++c) {
            for (u64 ky = 0; ky < of.KH; ++ky) {
                u64 y = seen(job, 0, to.y, ky);
                for (u64 kx = 0; y < of.H && kx < of.KW; ++kx) {
                    u64 x = seen(job, 1, to.x, kx);
                    if (x < of.W) {
                        sum = fused((WIDE)image[(c * of.H + y) * of.W + x], (WIDE)filter[(c * of.KH + ky) * of.KW + kx], sum);
                    }
                }
            }
        }
        store<T>(job, 0, i, sum);
    }
}

// in = [weight, gradient]: one thread for each element of an image.
KERNEL(conv2d_input_grad) {
    Sizes of = sizes(job);
    const T* weight = (const T*)job.in[0].address;
    const T* grads = (const T*)job.in[1].address;
    EACH(i) {
        Pixel to = pixel(i, of.C, of.H, of.W);
        u64 group = quotient(to.channel, of.inputs), channel = to.channel - group * of.inputs;
        const T* grad = grads + (to.n * of.O + group * of.outputs) * of.OH * of.OW;
        const T* filter = weight + (group * of.outputs * of.inputs + channel) * of.KH * of.KW;
        WIDE sum = (WIDE)0;
        for (u64 o = 0; o < of.outputs; ++o) {
            for (u64 ky = 0; ky < of.KH; ++ky) {
                u64 oy = seeing(job, 0, to.y, ky);
                for (u64 kx = 0; oy < of.OH && kx < of.KW; ++kx) {
                    u64 ox = seeing(job, 1, to.x, kx);
                    if (ox < of.OW) {
                        WIDE tap = (WIDE)filter[(o * of.inputs * of.KH + ky) * of.KW + kx];
                        sum = fused((WIDE)grad[(o * of.OH + oy) * of.OW + ox], tap, sum);
                    }
                }
            }
        }
        store<T>(job, 0, i, sum);
    }
}

// in = [images, gradient]: one block for each element of the weight.
BLOCK_KERNEL(conv2d_weight_grad) {
    SHARED WIDE shared[BLOCK / 32];
    Sizes of = sizes(job);
    const T* images = (const T*)job.in[0].address;
    const T* grads = (const T*)job.in[1].address;
    for (u64 e = blockIdx.x; e < job.count; e += gridDim.x) {
        Pixel tap = pixel(e, of.inputs, of.KH, of.KW);
        u64 o = tap.n, channel = quotient(o, of.outputs) * of.inputs + tap.channel;
        WIDE sum = (WIDE)0;
        for (u64 i = threadIdx.x; i < job.dims[0] * of.OH * of.OW; i += BLOCK) {
            Pixel from = pixel(i, 1, of.OH, of.OW);
            u64 y = seen(job, 0, from.y, tap.y), x = seen(job, 1, from.x, tap.x);
            if (y < of.H && x < of.W) {
                WIDE g = (WIDE)grads[((from.n * of.O + o) * of.OH + from.y) * of.OW + from.x];
                sum = fused((WIDE)images[((from.n * of.C + channel) * of.H + y) * of.W + x], g, sum);
            }
        }
        sum = join(shared, sum, true);
        if (threadIdx.x == 0) {
            store<T>(job, 0, e, sum);
        }
    }
}
