// Normalization of the channels of a batch. Images have the shape [images, channels, places] and are contiguous.
//
// k = [channels, places, elements of a channel, slabs of a channel, elements of a slab]. The workspace has three values per
// slab of a channel, those of all channels for each slab in turn. Kernels for one channel combine the slabs in order and
// leave their results in the first slab.

#ifndef HIGHWATER_BATCH_NORM
#define HIGHWATER_BATCH_NORM
#define VALUES 3

template <typename Wide>
struct ChannelSums {
    Wide a, b;
};

// term(i), a ChannelSums, over this thread's elements of a slab; i is the index of an element of the channel in all images. In
// runs, as in reduce.cu.
template <typename Wide, typename Term>
DEVICE ChannelSums<Wide> sum_slab(const Job& job, u64 channel, u64 slab, Term term) {
    const u64 RUN = 256;
    u64 from = slab * job.k[4], to = from + job.k[4] < job.k[2] ? from + job.k[4] : job.k[2];
    ChannelSums<Wide> whole = {};
    for (u64 e = from + threadIdx.x; e < to;) {
        u64 end = to - e > RUN * BLOCK ? e + RUN * BLOCK : to;
        ChannelSums<Wide> run = {};
        for (; e < end; e += BLOCK) {
            u64 image = quotient(e, job.k[1]);
            ChannelSums<Wide> one = term((image * job.k[0] + channel) * job.k[1] + (e - image * job.k[1]));
            run.a += one.a;
            run.b += one.b;
        }
        whole.a += run.a;
        whole.b += run.b;
    }
    return whole;
}

// The values of a slab of a channel.
template <typename Wide>
DEVICE Wide* slab_values(const Job& job, u64 workspace, u64 channel, u64 slab) {
    return (Wide*)workspace + VALUES * (slab * job.k[0] + channel);
}

// The first element of a channel; 0 if there is none.
template <typename E>
DEVICE typename Computed<E>::type first_of(const Job& job, u64 channel) {
    typedef typename Computed<E>::type Wide;
    return job.k[2] > 0 ? element_at<E>(job.in[0], channel * job.k[1]) : (Wide)0;
}

// The gradient where the output of a ReLU is not 0; in[1] and in[2], function bit 0: there is a ReLU.
template <typename E>
DEVICE typename Computed<E>::type masked(const Job& job, u64 i) {
    typedef typename Computed<E>::type Wide;
    Wide g = value<E>(job, 1, i);
    return (job.function & 1) && value<E>(job, 2, i) <= (Wide)0 ? (Wide)0 : g;
}

#endif

// The mean m of a slab, less the first element of the channel, and the sum of (x - m)^2; in = [x], out[0] = workspace.
BLOCK_KERNEL(channel_moments, 4) {
    SHARED WIDE shared[BLOCK / 32];
    for (u64 n = blockIdx.x; n < job.count; n += gridDim.x) {
        u64 slab = quotient(n, job.k[0]), channel = n - slab * job.k[0];
        u64 from = slab * job.k[4], to = from + job.k[4] < job.k[2] ? from + job.k[4] : job.k[2];
        WIDE first = first_of<T>(job, channel);
        ChannelSums<WIDE> own = sum_slab<WIDE>(job, channel, slab, [&](u64 i) {
            return ChannelSums<WIDE>{value<T>(job, 0, i) - first, (WIDE)0};
        });
        WIDE mean = to > from ? join(shared, own.a, true) / (WIDE)(to - from) : join(shared, own.a, true);
        own = sum_slab<WIDE>(job, channel, slab, [&](u64 i) {
            WIDE d = value<T>(job, 0, i) - first - mean;
            return ChannelSums<WIDE>{d * d, d};
        });
        WIDE squares = join(shared, own.a, true);
        if (threadIdx.x == 0) {
            WIDE* values = slab_values<WIDE>(job, job.out[0].address, channel, slab);
            values[0] = mean;
            values[1] = squares;
        }
    }
}

// The statistics of a channel, and what subtracts from its elements and multiplies them; one thread per channel. in = [x, or
// the given mean if function bit 1 is set; the given variance; weight], c[0] = epsilon, out = [workspace, statistics,
// variance].
KERNEL(channel_statistics) {
    EACH(channel) {
        WIDE mean, variance, center, shift = (WIDE)0;
        WIDE* values = slab_values<WIDE>(job, job.out[0].address, channel, 0);
        if (job.function & 2) {
            center = element_at<T>(job.in[0], channel);
            variance = element_at<T>(job.in[1], channel);
        } else {
            // Chan, Golub and LeVeque, Algorithms for computing the sample variance, 1983.
            WIDE count = (WIDE)0;
            WIDE squares = (WIDE)0;
            center = (WIDE)0;
            shift = first_of<T>(job, channel);
            for (u64 slab = 0; slab < job.k[3]; ++slab) {
                const WIDE* of_slab = slab_values<WIDE>(job, job.out[0].address, channel, slab);
                u64 from = slab * job.k[4], to = from + job.k[4] < job.k[2] ? from + job.k[4] : job.k[2];
                WIDE more = (WIDE)(to - from), all = count + more, apart = of_slab[0] - center;
                squares += of_slab[1] + apart * apart * (count * more / all);
                center += apart * (more / all);
                count = all;
            }
            variance = squares / (WIDE)job.k[2];
            out<WIDE>(job, 2)[channel] = variance;
        }
        mean = shift + center;
        WIDE scale = (WIDE)1 / root(variance + constant(job, 0, (WIDE)0));
        values[0] = center;
        values[1] = scale * element_at<T>(job.in[2], channel);
        out<WIDE>(job, 1)[2 * channel] = mean;
        out<WIDE>(job, 1)[2 * channel + 1] = scale;
    }
}

// (x - mean) s weight + bias + residual, or ReLU of that (function bit 0); in = [x, bias, residual if bit 2 is set], also[0]
// = workspace. Bit 1: the statistics were given, so nothing but the workspace's value subtracts from x.
KERNEL(batch_norm) {
    const u32 N = Packed<T>::count;
    handfuls<N>(job, [&](const Handful& few) {
        WIDE x[N], added[N];
        value<T>(job, 0, few, x);
        if (job.function & 4) value<T>(job, 2, few, added);
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
            if (!few.has(n)) continue;
            u64 plane = quotient(few.at(n), job.k[1]);
            u64 channel = plane - quotient(plane, job.k[0]) * job.k[0];
            const WIDE* values = slab_values<WIDE>(job, job.also[0], channel, 0);
            WIDE y = job.function & 2 ? x[n] : x[n] - first_of<T>(job, channel);
            y = (y - values[0]) * values[1] + element_at<T>(job.in[1], channel);
            if (job.function & 4) y = y + added[n];
            x[n] = (job.function & 1) && y < (WIDE)0 ? (WIDE)0 : y;
        }
        store<T>(job, 0, few, x);
    });
}

// The sums of (x - mean) g and of g over a slab; in = [x, gradient, output], also[0] = statistics, out[0] = workspace.
BLOCK_KERNEL(channel_grad_sums, 4) {
    SHARED WIDE shared[BLOCK / 32];
    for (u64 n = blockIdx.x; n < job.count; n += gridDim.x) {
        u64 slab = quotient(n, job.k[0]), channel = n - slab * job.k[0];
        WIDE mean = ((const WIDE*)job.also[0])[2 * channel];
        ChannelSums<WIDE> own = sum_slab<WIDE>(job, channel, slab, [&](u64 i) {
            WIDE g = masked<T>(job, i);
            return ChannelSums<WIDE>{(value<T>(job, 0, i) - mean) * g, g};
        });
        WIDE along = join(shared, own.a, true), total = join(shared, own.b, true);
        if (threadIdx.x == 0) {
            WIDE* values = slab_values<WIDE>(job, job.out[0].address, channel, slab);
            values[0] = along;
            values[1] = total;
        }
    }
}

// The gradients of weight and bias, and the factors of the elements; one thread per channel. in = [weight if function bit 2
// is set], also[0] = statistics, out = [workspace, weight, bias]. Bit 1: the statistics were given.
KERNEL(channel_grad_factors) {
    EACH(channel) {
        WIDE along = (WIDE)0;
        WIDE total = (WIDE)0;
        for (u64 slab = 0; slab < job.k[3]; ++slab) {
            const WIDE* of_slab = slab_values<WIDE>(job, job.out[0].address, channel, slab);
            along += of_slab[0];
            total += of_slab[1];
        }
        WIDE scale = ((const WIDE*)job.also[0])[2 * channel + 1];
        along = along * scale;
        out<WIDE>(job, 1)[channel] = along;
        out<WIDE>(job, 2)[channel] = total;
        WIDE* values = slab_values<WIDE>(job, job.out[0].address, channel, 0);
        values[0] = job.function & 4 ? scale * element_at<T>(job.in[0], channel) : scale;
        values[1] = job.function & 2 ? (WIDE)0 : total / (WIDE)job.k[2];
        values[2] = job.function & 2 ? (WIDE)0 : scale * along / (WIDE)job.k[2];
    }
}

// The gradients of x (function bit 2) and of the residual (bit 3); in = [x, gradient, output], also = [statistics,
// workspace], out = [x, residual]. Bit 1: the statistics were given.
KERNEL(batch_norm_grad) {
    const u32 N = Packed<T>::count;
    handfuls<N>(job, [&](const Handful& few) {
        WIDE x[N], g[N], y[N];
        value<T>(job, 1, few, g);
        if (job.function & 1) {
            value<T>(job, 2, few, y);
#pragma unroll
            for (u32 n = 0; n < N; ++n) g[n] = y[n] <= (WIDE)0 ? (WIDE)0 : g[n];
        }
        if (job.function & 8) store<T>(job, 1, few, g);
        if (!(job.function & 4)) return;
        value<T>(job, 0, few, x);
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
            if (!few.has(n)) continue;
            u64 plane = quotient(few.at(n), job.k[1]);
            u64 channel = plane - quotient(plane, job.k[0]) * job.k[0];
            const WIDE* values = slab_values<WIDE>(job, job.also[1], channel, 0);
            WIDE rest = g[n];
            if (!(job.function & 2)) {
                WIDE mean = ((const WIDE*)job.also[0])[2 * channel];
                rest = rest - values[1] - (x[n] - mean) * values[2];
            }
            x[n] = values[0] * rest;
        }
        store<T>(job, 0, few, x);
    });
}
