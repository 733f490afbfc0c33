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

// Derivatives by the argument.
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

// The caller numbers the functions: crates/tensor/src/backend/cuda.
template <typename E>
DEVICE E activated(u64 function, E x) {
    switch (function) {
        case 1: return below_zero(x) ? (E)0 : x;
        case 2: return gelu(x);
        case 3: return gelu_tanh(x);
        case 4: return silu(x);
        default: return x;
    }
}

#endif
