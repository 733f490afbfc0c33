// The steps of optimisers, in place, for floats: one pass over the parameters, their state and their gradient; and what
// is done to gradients before.

// out = [values]; c = [scale, low, high].
KERNEL(clip) {
    T low = (T)job.c[1], high = (T)job.c[2];
    EACH(i) {
        T x = out<T>(job, 0)[i] * (T)job.c[0];
        out<T>(job, 0)[i] = x < low ? low : x > high ? high : x;
    }
}

// out = [param, momentum]; c = [lr, weight decay, momentum]; function 0: without momentum, 1: with, 2: Nesterov's.
KERNEL(sgd) {
    T lr = (T)job.c[0], decay = (T)job.c[1], keep = (T)job.c[2];
    EACH(i) {
        T p = out<T>(job, 0)[i];
        T g = load<T>(job, 0, i) + decay * p;
        if (job.function == 0) {
            out<T>(job, 0)[i] = p - lr * g;
        } else {
            T m = keep * out<T>(job, 1)[i] + g;
            out<T>(job, 1)[i] = m;
            out<T>(job, 0)[i] = p - lr * (job.function == 2 ? g + keep * m : m);
        }
    }
}

// out = [param, mean, variance]; c = [beta1, 1 - beta1, beta2, 1 - beta2, epsilon, rate, scale, coupled decay, shrink].
KERNEL(adam) {
    EACH(i) {
        T p = out<T>(job, 0)[i];
        T g = load<T>(job, 0, i) + (T)job.c[7] * p;
        T m = (T)job.c[0] * out<T>(job, 1)[i] + (T)job.c[1] * g;
        T v = (T)job.c[2] * out<T>(job, 2)[i] + (T)job.c[3] * (g * g);
        out<T>(job, 1)[i] = m;
        out<T>(job, 2)[i] = v;
        out<T>(job, 0)[i] = (T)job.c[8] * p - (T)job.c[5] * m / (root(v) * (T)job.c[6] + (T)job.c[4]);
    }
}

// out = [param, mean of squares, momentum]; c = [lr, weight decay, smoothing, 1 - smoothing, epsilon, momentum]; function 1:
// with momentum.
KERNEL(rms_prop) {
    EACH(i) {
        T p = out<T>(job, 0)[i];
        T g = load<T>(job, 0, i) + (T)job.c[1] * p;
        T v = (T)job.c[2] * out<T>(job, 1)[i] + (T)job.c[3] * (g * g);
        out<T>(job, 1)[i] = v;
        T step = g / (root(v) + (T)job.c[4]);
        if (job.function == 1) {
            step = (T)job.c[5] * out<T>(job, 2)[i] + step;
            out<T>(job, 2)[i] = step;
        }
        out<T>(job, 0)[i] = p - (T)job.c[0] * step;
    }
}

// out = [param, mean]; c = [lr, shrink, beta1, 1 - beta1, beta2, 1 - beta2]. A NaN is a step of itself.
KERNEL(lion) {
    T lr = (T)job.c[0];
    EACH(i) {
        T g = load<T>(job, 0, i);
        T m = out<T>(job, 1)[i];
        T towards = (T)job.c[2] * m + (T)job.c[3] * g;
        T step = towards > (T)0 ? lr : towards < (T)0 ? -lr : towards;
        out<T>(job, 0)[i] = (T)job.c[1] * out<T>(job, 0)[i] - step;
        out<T>(job, 1)[i] = (T)job.c[4] * m + (T)job.c[5] * g;
    }
}
