// Functions of one float, and derivatives.

#define SCALE ((T)0.79788456080286535588)
#define CUBE ((T)0.044715)
DEVICE T JOIN(logistic, SUFFIX)(T x) { return (T)1 / ((T)1 + exponential(-x)); }
DEVICE T JOIN(tanh_of_cube, SUFFIX)(T x) { return hyperbolic(SCALE * (x + CUBE * x * x * x)); }
DEVICE T JOIN(normal_cdf, SUFFIX)(T x) { return (T)0.5 * ((T)1 + error_function(x * (T)0.70710678118654752440)); }

// Whoever launches numbers the functions: crates/tensor/src/backend/cuda.
KERNEL(transcendental) {
    T c = constant(job, 0, (T)0);
    EACH(i) {
        T x = load<T>(job, 0, i);
        T y;
        switch (job.function) {
            case 0: y = exponential(x); break;
            case 1: y = logarithm(x); break;
            case 2: y = root(x); break;
            case 3: y = x * JOIN(normal_cdf, SUFFIX)(x); break;
            case 4: y = hyperbolic(x); break;
            case 5: y = JOIN(logistic, SUFFIX)(x); break;
            case 6: y = (T)1 / x; break;
            case 7: y = (T)1 / root(x); break;
            case 8: y = sine(x); break;
            case 9: y = cosine(x); break;
            case 10: y = x * JOIN(logistic, SUFFIX)(x); break;
            case 11: y = larger(x, (T)0) + logarithm_1p(exponential(-magnitude(x))); break;
            case 12: y = (T)0.5 * x * ((T)1 + JOIN(tanh_of_cube, SUFFIX)(x)); break;
            case 13: y = x < (T)0 ? x * c : x; break;
            default: y = power(x, c); break;
        }
        out<T>(job, 0)[i] = y;
    }
}

// grad f'(s), where s is the function's value or its argument. Numbered as above, in an order of its own.
KERNEL(derivative) {
    T c = constant(job, 0, (T)0);
    T high = constant(job, 1, (T)0);
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
            case 11: y = g * c; break;
            case 12: y = -g * s * s; break;
            case 13: y = (T)-0.5 * g * s * s * s; break;
            case 14: y = (T)0; break;
            case 15: y = g * cosine(s); break;
            case 16: y = -g * sine(s); break;
            case 17: {
                T l = JOIN(logistic, SUFFIX)(s);
                y = g * l * ((T)1 + s * ((T)1 - l));
                break;
            }
            case 18: y = g * JOIN(logistic, SUFFIX)(s); break;
            case 19: {
                T t = JOIN(tanh_of_cube, SUFFIX)(s);
                T inner = SCALE * ((T)1 + (T)3 * CUBE * s * s);
                y = g * ((T)0.5 * ((T)1 + t) + (T)0.5 * s * ((T)1 - t * t) * inner);
                break;
            }
            case 20: y = s <= (T)0 ? g * c : g; break;
            case 21: y = g * c * power(s, c - (T)1); break;
            default: y = s < c || s > high ? (T)0 : g; break;
        }
        out<T>(job, 0)[i] = y;
    }
}
