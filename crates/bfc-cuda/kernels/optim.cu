// The steps of optimisers, in place, for floats: one pass over the parameters, their state and their gradient; and what
// is done to gradients before.

// out = [values]; c = [scale, low, high].
KERNEL(clip) {
    WIDE low = (WIDE)job.c[1], high = (WIDE)job.c[2];
    EACH(i) {
        WIDE x = stored<T>(job, 0, i) * (WIDE)job.c[0];
        store<T>(job, 0, i, x < low ? low : x > high ? high : x);
    }
}

// out = [param, momentum]; c = [lr, weight decay, momentum]; function 0: without momentum, 1: with, 2: Nesterov's.
KERNEL(sgd) {
    WIDE lr = (WIDE)job.c[0], decay = (WIDE)job.c[1], keep = (WIDE)job.c[2];
    EACH(i) {
        WIDE p = stored<T>(job, 0, i);
        WIDE g = value<T>(job, 0, i) + decay * p;
        if (job.function == 0) {
            store<T>(job, 0, i, p - lr * g);
        } else {
            WIDE m = keep * stored<T>(job, 1, i) + g;
            store<T>(job, 1, i, m);
            store<T>(job, 0, i, p - lr * (job.function == 2 ? g + keep * m : m));
        }
    }
}

// out = [param, mean, variance]; c = [beta1, 1 - beta1, beta2, 1 - beta2, epsilon, rate, scale, coupled decay, shrink].
KERNEL(adam) {
    EACH(i) {
        WIDE p = stored<T>(job, 0, i);
        WIDE g = value<T>(job, 0, i) + (WIDE)job.c[7] * p;
        WIDE m = (WIDE)job.c[0] * stored<T>(job, 1, i) + (WIDE)job.c[1] * g;
        WIDE v = (WIDE)job.c[2] * stored<T>(job, 2, i) + (WIDE)job.c[3] * (g * g);
        store<T>(job, 1, i, m);
        store<T>(job, 2, i, v);
        store<T>(job, 0, i, (WIDE)job.c[8] * p - (WIDE)job.c[5] * m / (root(v) * (WIDE)job.c[6] + (WIDE)job.c[4]));
    }
}

// out = [param, mean of squares, momentum]; c = [lr, weight decay, smoothing, 1 - smoothing, epsilon, momentum]; function 1:
// with momentum.
KERNEL(rms_prop) {
    EACH(i) {
        WIDE p = stored<T>(job, 0, i);
        WIDE g = value<T>(job, 0, i) + (WIDE)job.c[1] * p;
        WIDE v = (WIDE)job.c[2] * stored<T>(job, 1, i) + (WIDE)job.c[3] * (g * g);
        store<T>(job, 1, i, v);
        WIDE step = g / (root(v) + (WIDE)job.c[4]);
        if (job.function == 1) {
            step = (WIDE)job.c[5] * stored<T>(job, 2, i) + step;
            store<T>(job, 2, i, step);
        }
        store<T>(job, 0, i, p - (WIDE)job.c[0] * step);
    }
}

// out = [param, mean]; c = [lr, shrink, beta1, 1 - beta1, beta2, 1 - beta2]. A NaN is a step of itself.
KERNEL(lion) {
    WIDE lr = (WIDE)job.c[0];
    EACH(i) {
        WIDE g = value<T>(job, 0, i);
        WIDE m = stored<T>(job, 1, i);
        WIDE towards = (WIDE)job.c[2] * m + (WIDE)job.c[3] * g;
        WIDE step = towards > (WIDE)0 ? lr : towards < (WIDE)0 ? -lr : towards;
        store<T>(job, 0, i, (WIDE)job.c[1] * stored<T>(job, 0, i) - step);
        store<T>(job, 1, i, (WIDE)job.c[4] * m + (WIDE)job.c[5] * g);
    }
}
