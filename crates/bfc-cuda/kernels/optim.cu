// Optimizer steps for floats, in place, in one pass over parameters, state and gradient; and scaling of gradients.

// out = [values]; c = [scale, low, high].
KERNEL(clip) {
    WIDE low = (WIDE)job.c[1], high = (WIDE)job.c[2];
    handfuls<AHEAD>(job, [&](const Handful& few) {
        WIDE x[AHEAD];
        stored<T>(job, 0, few, x);
#pragma unroll
        for (u32 n = 0; n < AHEAD; ++n) {
            WIDE scaled = x[n] * (WIDE)job.c[0];
            x[n] = scaled < low ? low : scaled > high ? high : scaled;
        }
        store<T>(job, 0, few, x);
    });
}

// out = [param, momentum]; c = [lr, weight decay, momentum]; function 0: without momentum, 1: with, 2: Nesterov's.
KERNEL(sgd) {
    WIDE lr = (WIDE)job.c[0], decay = (WIDE)job.c[1], keep = (WIDE)job.c[2];
    handfuls<AHEAD>(job, [&](const Handful& few) {
        WIDE p[AHEAD], g[AHEAD], m[AHEAD];
        stored<T>(job, 0, few, p);
        value<T>(job, 0, few, g);
        if (job.function > 0) stored<T>(job, 1, few, m);
#pragma unroll
        for (u32 n = 0; n < AHEAD; ++n) {
            WIDE step = g[n] + decay * p[n];
            if (job.function > 0) {
                m[n] = keep * m[n] + step;
                step = job.function == 2 ? step + keep * m[n] : m[n];
            }
            p[n] = p[n] - lr * step;
        }
        if (job.function > 0) store<T>(job, 1, few, m);
        store<T>(job, 0, few, p);
    });
}

// out = [param, mean, variance, max variance]; c = [beta1, 1 - beta1, beta2, 1 - beta2, epsilon, rate, scale, coupled
// decay, shrink]; function 1: AMSGrad, with the max variance.
KERNEL(adam) {
    handfuls<AHEAD>(job, [&](const Handful& few) {
        WIDE p[AHEAD], g[AHEAD], m[AHEAD], v[AHEAD], max_v[AHEAD];
        stored<T>(job, 0, few, p);
        value<T>(job, 0, few, g);
        stored<T>(job, 1, few, m);
        stored<T>(job, 2, few, v);
        if (job.function == 1) stored<T>(job, 3, few, max_v);
#pragma unroll
        for (u32 n = 0; n < AHEAD; ++n) {
            WIDE pull = g[n] + (WIDE)job.c[7] * p[n];
            m[n] = (WIDE)job.c[0] * m[n] + (WIDE)job.c[1] * pull;
            v[n] = (WIDE)job.c[2] * v[n] + (WIDE)job.c[3] * (pull * pull);
            // If v is NaN, it stays NaN, and so does the largest variance.
            max_v[n] = job.function == 1 && max_v[n] >= v[n] ? max_v[n] : v[n];
            p[n] = (WIDE)job.c[8] * p[n] - (WIDE)job.c[5] * m[n] / (root(max_v[n]) * (WIDE)job.c[6] + (WIDE)job.c[4]);
        }
        store<T>(job, 1, few, m);
        store<T>(job, 2, few, v);
        if (job.function == 1) store<T>(job, 3, few, max_v);
        store<T>(job, 0, few, p);
    });
}

// out = [param, mean of squares, momentum]; c = [lr, weight decay, smoothing, 1 - smoothing, epsilon, momentum]; function 1:
// with momentum.
KERNEL(rms_prop) {
    handfuls<AHEAD>(job, [&](const Handful& few) {
        WIDE p[AHEAD], g[AHEAD], v[AHEAD], m[AHEAD];
        stored<T>(job, 0, few, p);
        value<T>(job, 0, few, g);
        stored<T>(job, 1, few, v);
        if (job.function == 1) stored<T>(job, 2, few, m);
#pragma unroll
        for (u32 n = 0; n < AHEAD; ++n) {
            WIDE pull = g[n] + (WIDE)job.c[1] * p[n];
            v[n] = (WIDE)job.c[2] * v[n] + (WIDE)job.c[3] * (pull * pull);
            WIDE step = pull / (root(v[n]) + (WIDE)job.c[4]);
            if (job.function == 1) step = m[n] = (WIDE)job.c[5] * m[n] + step;
            p[n] = p[n] - (WIDE)job.c[0] * step;
        }
        store<T>(job, 1, few, v);
        if (job.function == 1) store<T>(job, 2, few, m);
        store<T>(job, 0, few, p);
    });
}

// out = [param, mean]; c = [lr, shrink, beta1, 1 - beta1, beta2, 1 - beta2]. The sign of a NaN is NaN.
KERNEL(lion) {
    WIDE lr = (WIDE)job.c[0];
    handfuls<AHEAD>(job, [&](const Handful& few) {
        WIDE p[AHEAD], g[AHEAD], m[AHEAD];
        stored<T>(job, 0, few, p);
        value<T>(job, 0, few, g);
        stored<T>(job, 1, few, m);
#pragma unroll
        for (u32 n = 0; n < AHEAD; ++n) {
            WIDE towards = (WIDE)job.c[2] * m[n] + (WIDE)job.c[3] * g[n];
            WIDE step = towards > (WIDE)0 ? lr : towards < (WIDE)0 ? -lr : towards;
            p[n] = (WIDE)job.c[1] * p[n] - step;
            m[n] = (WIDE)job.c[4] * m[n] + (WIDE)job.c[5] * g[n];
        }
        store<T>(job, 0, few, p);
        store<T>(job, 1, few, m);
    });
}
