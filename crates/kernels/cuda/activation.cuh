// Activation functions, and the parts that their derivatives share with them.

#ifndef HIGHWATER_ACTIVATION
#define HIGHWATER_ACTIVATION

#define GELU_SCALE 0.79788456080286535588
#define GELU_CUBE 0.044715

template <typename E>
DEVICE E logistic(E x) { return (E)1 / ((E)1 + exponential(-x)); }

template <typename E>
DEVICE E tanh_of_cube(E x) { return hyperbolic((E)GELU_SCALE * (x + (E)GELU_CUBE * x * x * x)); }

template <typename E>
DEVICE E normal_cdf(E x) { return (E)0.5 * ((E)1 + error_function(x * (E)0.70710678118654752440)); }

template <typename E>
DEVICE E gelu(E x) { return x * normal_cdf(x); }

template <typename E>
DEVICE E gelu_tanh(E x) { return (E)0.5 * x * ((E)1 + tanh_of_cube(x)); }

template <typename E>
DEVICE E silu(E x) { return x * logistic(x); }

template <typename E>
DEVICE E softplus(E x) { return larger(x, (E)0) + logarithm_1p(exponential(-magnitude(x))); }

// e^x - 1 for x <= 0, accurate for small x.
template <typename E>
DEVICE E exponential_m1_of_negative(E x) {
    E t = hyperbolic((E)0.5 * x);
    return (t + t) / ((E)1 - t);
}

// The fraction tanh(log(1 + e^x)) = top / (top + rest), by n = e^-|x|, which does not overflow.
template <typename E>
struct MishParts {
    E n, top, rest;
};

template <typename E>
DEVICE MishParts<E> mish_parts(E x) {
    E n = exponential(-magnitude(x));
    E top = x < (E)0 ? n * (n + (E)2) : (E)1 + (E)2 * n;
    return MishParts<E>{n, top, x < (E)0 ? (E)2 : (E)2 * n * n};
}

template <typename E>
DEVICE E mish(E x) {
    MishParts<E> parts = mish_parts(x);
    return x * (parts.top / (parts.top + parts.rest));
}

template <typename E>
DEVICE E hardswish(E x) {
    E sum = x + (E)3;
    return x * (sum < (E)0 ? (E)0 : sum > (E)6 ? (E)6 : sum) / (E)6;
}

// Derivatives by the argument.
template <typename E>
DEVICE E mish_slope(E x) {
    MishParts<E> parts = mish_parts(x);
    E l = (x < (E)0 ? parts.n : (E)1) / ((E)1 + parts.n);
    E bottom = parts.top + parts.rest;
    E steep = parts.rest * (bottom + parts.top) / (bottom * bottom) * l;
    // Far from 0 this is 0, where x may be infinite.
    return parts.top / bottom + (steep == (E)0 ? (E)0 : x * steep);
}

template <typename E>
DEVICE E hardswish_slope(E x) {
    return x <= (E)-3 ? (E)0 : x >= (E)3 ? (E)1 : x / (E)3 + (E)0.5;
}

template <typename E>
DEVICE E gelu_slope(E x) {
    E density = (E)0.39894228040143267794 * exponential((E)-0.5 * x * x);
    return normal_cdf(x) + x * density;
}

template <typename E>
DEVICE E gelu_tanh_slope(E x) {
    E t = tanh_of_cube(x);
    E inner = (E)GELU_SCALE * ((E)1 + (E)3 * (E)GELU_CUBE * x * x);
    // Far from 0 this is 0, where the inner slope may overflow.
    E steep = (E)0.5 * x * ((E)1 - t * t);
    return (E)0.5 * ((E)1 + t) + (steep == (E)0 ? (E)0 : steep * inner);
}

template <typename E>
DEVICE E silu_slope(E x) {
    E l = logistic(x);
    return l * ((E)1 + x * ((E)1 - l));
}

// The functions that a matrix product can apply; x for function 0.
template <typename E>
DEVICE E activated(u64 function, E x) {
    if (function == 0) return x;
    switch ((u32)function) {
        case NAMED("relu"): return below_zero(x) ? (E)0 : x;
        case NAMED("gelu"): return gelu(x);
        case NAMED("gelu_tanh"): return gelu_tanh(x);
        case NAMED("silu"): return silu(x);
        default: return undefined((E)0);
    }
}

#endif
