// Functions of one float, and derivatives.

DEVICE T JOIN(normal_cdf, SUFFIX)(T x) { return (T)0.5 * ((T)1 + error_function(x * (T)0.70710678118654752440)); }

// The order is that of `Transcendental` in src/kernels/families.rs.
KERNEL(transcendental) {
    EACH(i) {
        T x = load<T>(job, 0, i);
        T y;
        switch (job.function) {
            case 0: y = exponential(x); break;
            case 1: y = logarithm(x); break;
            case 2: y = root(x); break;
            case 3: y = x * JOIN(normal_cdf, SUFFIX)(x); break;
            case 4: y = hyperbolic(x); break;
            default: y = (T)1 / ((T)1 + exponential(-x)); break;
        }
        out<T>(job, 0)[i] = y;
    }
}

// grad f'(s), where s is the function's value or its argument. The order is that of `Derivative` in
// src/kernels/families.rs.
KERNEL(derivative) {
    T c = constant(job, 0, (T)0);
    EACH(i) {
        T s = load<T>(job, 0, i);
        T g = load<T>(job, 1, i);
        T y;
        switch (job.function) {
            case 0: y = -g; break;
            // 0 at 0, where there is no derivative, and NaN for NaN.
            case 1: y = s > (T)0 ? g : s < (T)0 ? -g : magnitude(s); break;
            case 2: y = (T)2 * s * g; break;
            case 3: y = g * s; break;
            case 4: y = g / s; break;
            case 5: y = g / ((T)2 * s); break;
            case 6: y = s <= (T)0 ? (T)0 : g; break;
            case 7: {
                T slope = (T)0.39894228040143267794 * exponential((T)-0.5 * s * s);
                y = g * (JOIN(normal_cdf, SUFFIX)(s) + s * slope);
                break;
            }
            case 8: y = g * ((T)1 - s * s); break;
            case 9: y = g * s * ((T)1 - s); break;
            case 10: y = g; break;
            default: y = g * c; break;
        }
        out<T>(job, 0)[i] = y;
    }
}
