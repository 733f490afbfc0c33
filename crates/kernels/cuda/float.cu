// Unary float functions and derivatives. Some are in activation.cuh.

// Functions of crates/kernels/src/families/map/functions.rs.
KERNEL(transcendental) {
    WIDE c = constant(job, 0, (WIDE)0);
    // A loop of its own does not choose the function for each element.
    if (job.function == NAMED("gelu")) return map<T>(job, [](WIDE x) { return gelu(x); });
    map<T>(job, [&](WIDE x) {
        WIDE y;
        switch ((u32)job.function) {
            case NAMED("exp"): y = exponential(x); break;
            case NAMED("expm1"): y = exponential_m1(x); break;
            case NAMED("log"): y = logarithm(x); break;
            case NAMED("log1p"): y = logarithm_1p(x); break;
            case NAMED("sqrt"): y = root(x); break;
            case NAMED("gelu"): y = gelu(x); break;
            case NAMED("erf"): y = error_function(x); break;
            case NAMED("tanh"): y = hyperbolic(x); break;
            case NAMED("sigmoid"): y = logistic(x); break;
            case NAMED("recip"): y = (WIDE)1 / x; break;
            case NAMED("rsqrt"): y = (WIDE)1 / root(x); break;
            case NAMED("sin"): y = sine(x); break;
            case NAMED("cos"): y = cosine(x); break;
            case NAMED("logsigmoid"): y = -softplus(-x); break;
            case NAMED("silu"): y = silu(x); break;
            case NAMED("softplus"): y = softplus(x); break;
            case NAMED("softsign"): y = x / ((WIDE)1 + magnitude(x)); break;
            case NAMED("gelu_tanh"): y = gelu_tanh(x); break;
            case NAMED("leaky_relu"): y = x < (WIDE)0 ? x * c : x; break;
            case NAMED("floor"): y = rounded_down(x); break;
            case NAMED("ceil"): y = rounded_up(x); break;
            case NAMED("round"): y = rounded(x); break;
            case NAMED("elu"): y = x > (WIDE)0 ? x : c * exponential_m1_of_negative(x); break;
            case NAMED("mish"): y = mish(x); break;
            case NAMED("hardswish"): y = hardswish(x); break;
            case NAMED("powf"): y = power_of(x, c); break;
            default: y = undefined((WIDE)0); break;
        }
        return y;
    });
}

// grad f'(s), where s is the value or the argument of the function.
KERNEL(derivative) {
    WIDE c = constant(job, 0, (WIDE)0);
    WIDE high = constant(job, 1, (WIDE)0);
    if (job.function == NAMED("gelu")) return zip<T, T>(job, [](WIDE s, WIDE g) { return g * gelu_slope(s); });
    zip<T, T>(job, [&](WIDE s, WIDE g) {
        WIDE y;
        switch ((u32)job.function) {
            case NAMED("neg"): y = -g; break;
            // 0 at 0, where there is no derivative; NaN for NaN.
            case NAMED("abs"): y = s > (WIDE)0 ? g : s < (WIDE)0 ? -g : magnitude(s); break;
            case NAMED("square"): y = (WIDE)2 * s * g; break;
            case NAMED("exp"): y = g * s; break;
            case NAMED("expm1"): y = g * (s + (WIDE)1); break;
            case NAMED("log"): y = g / s; break;
            case NAMED("log1p"): y = g / ((WIDE)1 + s); break;
            case NAMED("sqrt"): y = g / ((WIDE)2 * s); break;
            case NAMED("relu"): y = s <= (WIDE)0 ? (WIDE)0 : g; break;
            case NAMED("gelu"): y = g * gelu_slope(s); break;
            case NAMED("erf"): y = g * (WIDE)1.12837916709551257390 * exponential(-s * s); break;
            case NAMED("tanh"): y = g * ((WIDE)1 - s * s); break;
            case NAMED("sigmoid"): y = g * s * ((WIDE)1 - s); break;
            case NAMED("add_scalar"): y = g; break;
            case NAMED("mul_scalar"): y = g * c; break;
            case NAMED("recip"): y = -g * s * s; break;
            case NAMED("rsqrt"): y = (WIDE)-0.5 * g * s * s * s; break;
            case NAMED("sign"):
            case NAMED("floor"):
            case NAMED("ceil"):
            case NAMED("round"): y = (WIDE)0; break;
            case NAMED("sin"): y = g * cosine(s); break;
            case NAMED("cos"): y = -g * sine(s); break;
            case NAMED("logsigmoid"): y = g * logistic(-s); break;
            case NAMED("silu"): y = g * silu_slope(s); break;
            case NAMED("softplus"): y = g * logistic(s); break;
            case NAMED("softsign"): y = g / (((WIDE)1 + magnitude(s)) * ((WIDE)1 + magnitude(s))); break;
            case NAMED("gelu_tanh"): y = g * gelu_tanh_slope(s); break;
            case NAMED("leaky_relu"): y = s <= (WIDE)0 ? g * c : g; break;
            // x^0 is constant; the formula gives NaN for x = 0.
            case NAMED("powf"): y = c == (WIDE)0 ? (WIDE)0 : g * c * power_of(s, c - (WIDE)1); break;
            case NAMED("clamp"): y = s > c && s < high ? g : (WIDE)0; break;
            case NAMED("elu"): y = s > (WIDE)0 ? g : g * c * exponential(s); break;
            case NAMED("mish"): y = g * mish_slope(s); break;
            case NAMED("hardswish"): y = g * hardswish_slope(s); break;
            case NAMED("div_scalar"): y = g / c; break;
            default: y = undefined((WIDE)0); break;
        }
        return y;
    });
}

// out = f(x + bias) by rows; x and out may be the same memory. The second output, if present, receives x + bias.
// The function is one of activation.cuh; also[0] is the optional bias; k = [columns, stride of the bias].
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
    if (job.function == NAMED("gelu")) return activate_biased<T>(job, [](WIDE x) { return gelu(x); });
    activate_biased<T>(job, [&](WIDE x) { return activated(job.function, x); });
}
