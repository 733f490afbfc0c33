// Convolutions over height and width, for floats, and their gradients. All operands are contiguous.
//
// dims = the larger images [n, channels, h, w]; inner_dims = [output channels, oh, ow, kh, kw, groups]; k = [strides, paddings,
// dilations], each of height and width. A weight is [output channels, channels of a group, kh, kw].

#ifndef HIGHWATER_CONV
#define HIGHWATER_CONV

// The place that a window sees, or none: then it is not below the size.
DEVICE u64 seen(const Job& job, int axis, u64 output, u64 tap) {
    return output * job.k[axis] + tap * job.k[4 + axis] - job.k[2 + axis];
}

// The output whose window sees a place with a tap; none is not below the number of outputs.
DEVICE u64 seeing(const Job& job, int axis, u64 place, u64 tap) {
    u64 ahead = place + job.k[2 + axis], behind = tap * job.k[4 + axis];
    u64 moved = ahead - behind;
    return ahead < behind || moved % job.k[axis] != 0 ? ~0ULL : moved / job.k[axis];
}

#endif

// in = [images, weight]: one thread for each output.
KERNEL(conv2d) {
    u64 C = job.dims[1], H = job.dims[2], W = job.dims[3];
    u64 O = job.inner_dims[0], OH = job.inner_dims[1], OW = job.inner_dims[2];
    u64 KH = job.inner_dims[3], KW = job.inner_dims[4], per = C / job.inner_dims[5];
    const T* images = (const T*)job.in[0].address;
    const T* weight = (const T*)job.in[1].address;
    EACH(i) {
        u64 ox = i % OW, oy = i / OW % OH, o = i / (OW * OH) % O, n = i / (OW * OH * O);
        u64 first = o / (O / job.inner_dims[5]) * per;
        T sum = (T)0;
        for (u64 c = 0; c < per; ++c) {
            for (u64 ky = 0; ky < KH; ++ky) {
                u64 y = seen(job, 0, oy, ky);
                for (u64 kx = 0; y < H && kx < KW; ++kx) {
                    u64 x = seen(job, 1, ox, kx);
                    if (x < W) {
                        T pixel = images[((n * C + first + c) * H + y) * W + x];
                        sum = fused(pixel, weight[((o * per + c) * KH + ky) * KW + kx], sum);
                    }
                }
            }
        }
        out<T>(job, 0)[i] = sum;
    }
}

// in = [weight, gradient]: one thread for each element of an image.
KERNEL(conv2d_input_grad) {
    u64 C = job.dims[1], H = job.dims[2], W = job.dims[3];
    u64 O = job.inner_dims[0], OH = job.inner_dims[1], OW = job.inner_dims[2];
    u64 KH = job.inner_dims[3], KW = job.inner_dims[4];
    u64 per = C / job.inner_dims[5], outputs = O / job.inner_dims[5];
    const T* weight = (const T*)job.in[0].address;
    const T* grad = (const T*)job.in[1].address;
    EACH(i) {
        u64 x = i % W, y = i / W % H, c = i / (W * H) % C, n = i / (W * H * C);
        u64 first = c / per * outputs;
        T sum = (T)0;
        for (u64 o = first; o < first + outputs; ++o) {
            for (u64 ky = 0; ky < KH; ++ky) {
                u64 oy = seeing(job, 0, y, ky);
                for (u64 kx = 0; oy < OH && kx < KW; ++kx) {
                    u64 ox = seeing(job, 1, x, kx);
                    if (ox < OW) {
                        T g = grad[((n * O + o) * OH + oy) * OW + ox];
                        sum = fused(g, weight[((o * per + c % per) * KH + ky) * KW + kx], sum);
                    }
                }
            }
        }
        out<T>(job, 0)[i] = sum;
    }
}

// in = [images, gradient]: one block for each element of the weight.
BLOCK_KERNEL(conv2d_weight_grad) {
    SHARED T shared[BLOCK];
    u64 C = job.dims[1], H = job.dims[2], W = job.dims[3];
    u64 O = job.inner_dims[0], OH = job.inner_dims[1], OW = job.inner_dims[2];
    u64 KH = job.inner_dims[3], KW = job.inner_dims[4], per = C / job.inner_dims[5];
    const T* images = (const T*)job.in[0].address;
    const T* grad = (const T*)job.in[1].address;
    for (u64 e = blockIdx.x; e < job.count; e += gridDim.x) {
        u64 kx = e % KW, ky = e / KW % KH, c = e / (KW * KH) % per, o = e / (KW * KH * per);
        u64 channel = o / (O / job.inner_dims[5]) * per + c;
        T sum = (T)0;
        for (u64 i = threadIdx.x; i < job.dims[0] * OH * OW; i += BLOCK) {
            u64 ox = i % OW, oy = i / OW % OH, n = i / (OW * OH);
            u64 y = seen(job, 0, oy, ky), x = seen(job, 1, ox, kx);
            if (y < H && x < W) {
                T pixel = images[((n * C + channel) * H + y) * W + x];
                sum = fused(pixel, grad[((n * O + o) * OH + oy) * OW + ox], sum);
            }
        }
        sum = join(shared, sum, true);
        if (threadIdx.x == 0) {
            out<T>(job, 0)[e] = sum;
        }
    }
}
