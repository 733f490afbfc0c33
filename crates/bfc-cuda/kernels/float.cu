// Unary float functions and derivatives. Some are in activation.cuh.

// The caller numbers the functions: crates/tensor/src/backend/cuda.
KERNEL(transcendental) {
    WIDE c = constant(job, 0, (WIDE)0);
    // A loop of its own does not choose the function for each element.
    if (job.function == 3) return map<T>(job, [](WIDE x) { return gelu(x); });
    map<T>(job, [&](WIDE x) {
        WIDE y;
        switch (job.function) {
            case 0: y = exponential(x); break;
            case 1: y = logarithm(x); break;
            case 2: y = root(x); break;
            case 3: y = gelu(x); break;
            case 4: y = hyperbolic(x); break;
            case 5: y = logistic(x); break;
            case 6: y = (WIDE)1 / x; break;
            case 7: y = (WIDE)1 / root(x); break;
            case 8: y = sine(x); break;
            case 9: y = cosine(x); break;
            case 10: y = silu(x); break;
            case 11: y = larger(x, (WIDE)0) + logarithm_1p(exponential(-magnitude(x))); break;
            case 12: y = gelu_tanh(x); break;
            case 13: y = x < (WIDE)0 ? x * c : x; break;
            case 15: y = rounded_down(x); break;
            case 16: y = rounded_up(x); break;
            case 17: y = rounded(x); break;
            case 18: y = x > (WIDE)0 ? x : c * exponential_m1(x); break;
            case 19: y = mish(x); break;
            case 20: y = hardswish(x); break;
            default: y = power_of(x, c); break;
        }
        return y;
    });
}

// grad f'(s), where s is the value or the argument of the function. Numbered separately.
KERNEL(derivative) {
    WIDE c = constant(job, 0, (WIDE)0);
    WIDE high = constant(job, 1, (WIDE)0);
    if (job.function == 7) return zip<T, T>(job, [](WIDE s, WIDE g) { return g * gelu_slope(s); });
    zip<T, T>(job, [&](WIDE s, WIDE g) {
        WIDE y;
        switch (job.function) {
            case 0: y = -g; break;
            // 0 at 0, where there is no derivative; NaN for NaN.
            case 1: y = s > (WIDE)0 ? g : s < (WIDE)0 ? -g : magnitude(s); break;
            case 2: y = (WIDE)2 * s * g; break;
            case 3: y = g * s; break;
            case 4: y = g / s; break;
            case 5: y = g / ((WIDE)2 * s); break;
            case 6: y = s <= (WIDE)0 ? (WIDE)0 : g; break;
            case 7: y = g * gelu_slope(s); break;
            case 8: y = g * ((WIDE)1 - s * s); break;
            case 9: y = g * s * ((WIDE)1 - s); break;
            case 10: y = g; break;
            case 11: y = g * c; break;
            case 12: y = -g * s * s; break;
            case 13: y = (WIDE)-0.5 * g * s * s * s; break;
            case 14: y = (WIDE)0; break;
            case 15: y = g * cosine(s); break;
            case 16: y = -g * sine(s); break;
            case 17: y = g * silu_slope(s); break;
            case 18: y = g * logistic(s); break;
            case 19: y = g * gelu_tanh_slope(s); break;
            case 20: y = s <= (WIDE)0 ? g * c : g; break;
            case 21: y = g * c * power_of(s, c - (WIDE)1); break;
            case 22: y = s > c && s < high ? g : (WIDE)0; break;
            case 24: y = s > (WIDE)0 ? g : g * c * exponential(s); break;
            case 25: y = g * mish_slope(s); break;
            case 26: y = g * hardswish_slope(s); break;
            default: y = g / c; break;
        }
        return y;
    });
}

// out = f(x + bias) by rows; x and out may be the same memory. The second output, if present, receives x + bias.
// Functions are numbered as in activation.cuh; also[0] is the optional bias; k = [columns, stride of the bias].
#ifndef HIGHWATER_BIAS_ACTIVATION
#define HIGHWATER_BIAS_ACTIVATION

template <typename E, typename Activation>
DEVICE void activate_biased(const Job& job, Activation activation) {
    typedef typename Computed<E>::type Wide;
    const u32 N = Packed<E>::count;
    const E* bias = (const E*)job.also[0];
    u64 columns = job.k[0];
    handfuls<N>(job, [&](const Handful& few) {
        E x[N];
        load<E>(job, 0, few, x);
        if (bias) {
            u64 column = few.first - quotient(few.first, columns) * columns;
            u64 step = few.step - quotient(few.step, columns) * columns;
#pragma unroll
            for (u32 n = 0; n < N; ++n) {
                x[n] = (E)((Wide)x[n] + (Wide)bias[column * job.k[1]]);
                column += step;
                if (column >= columns) column -= columns;
            }
        }
        if (job.out[1].address) put<E>(job, 1, few, x);
        in_groups(few, x, [&](E (&group)[AHEAD]) {
#pragma unroll
            for (u32 n = 0; n < AHEAD; ++n) group[n] = (E)activation((Wide)x[n]);
        });
        put<E>(job, 0, few, x);
    });
}

#endif

KERNEL(bias_activation) {
    if (job.function == 2) return activate_biased<T>(job, [](WIDE x) { return gelu(x); });
    activate_biased<T>(job, [&](WIDE x) { return activated(job.function, x); });
}
