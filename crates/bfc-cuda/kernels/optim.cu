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

// Whether the parameter has this state.
DEVICE bool has_state(const Job& job, int state) { return job.function >> state & 1; }

// Updates the parameter out[0] and the states out[1..] along the gradient in[0]: rule(p, g, s) for each element, where s are
// its states. A rule gives the numbers of its formula in job.c, in the order of its Rust file (kernels/step/rules.rs).
template <int STATES, typename Rule>
DEVICE void step(const Job& job, Rule rule) {
    handfuls<AHEAD>(job, [&](const Handful& few) {
        WIDE p[AHEAD], g[AHEAD], s[STATES][AHEAD] = {};
        stored<T>(job, 0, few, p);
        value<T>(job, 0, few, g);
#pragma unroll
        for (int state = 0; state < STATES; ++state) {
            if (has_state(job, state)) stored<T>(job, state + 1, few, s[state]);
        }
#pragma unroll
        for (u32 n = 0; n < AHEAD; ++n) {
            WIDE of[STATES];
#pragma unroll
            for (int state = 0; state < STATES; ++state) of[state] = s[state][n];
            rule(p[n], g[n], of);
#pragma unroll
            for (int state = 0; state < STATES; ++state) s[state][n] = of[state];
        }
#pragma unroll
        for (int state = 0; state < STATES; ++state) {
            if (has_state(job, state)) store<T>(job, state + 1, few, s[state]);
        }
        store<T>(job, 0, few, p);
    });
}

// c = [lr, weight decay, momentum, whether Nesterov's]; s = [momentum]
KERNEL(sgd) {
    WIDE lr = (WIDE)job.c[0], decay = (WIDE)job.c[1], keep = (WIDE)job.c[2];
    bool has_momentum = has_state(job, 0), nesterov = job.c[3] != 0;
    step<1>(job, [&](WIDE& p, WIDE g, WIDE (&s)[1]) {
        WIDE by = g + decay * p;
        if (has_momentum) {
            s[0] = keep * s[0] + by;
            by = nesterov ? by + keep * s[0] : s[0];
        }
        p = p - lr * by;
    });
}

// c = [beta1, 1 - beta1, beta2, 1 - beta2, epsilon, rate, scale, coupled decay, shrink]; s = [mean, variance, max variance]
KERNEL(adam) {
    bool amsgrad = has_state(job, 2);
    step<3>(job, [&](WIDE& p, WIDE g, WIDE (&s)[3]) {
        WIDE pull = g + (WIDE)job.c[7] * p;
        s[0] = (WIDE)job.c[0] * s[0] + (WIDE)job.c[1] * pull;
        s[1] = (WIDE)job.c[2] * s[1] + (WIDE)job.c[3] * (pull * pull);
        // If the variance is NaN, it stays NaN, and so does the largest variance.
        s[2] = amsgrad && s[2] >= s[1] ? s[2] : s[1];
        p = (WIDE)job.c[8] * p - (WIDE)job.c[5] * s[0] / (root(s[2]) * (WIDE)job.c[6] + (WIDE)job.c[4]);
    });
}

// c = [lr, weight decay, smoothing, 1 - smoothing, epsilon, momentum]; s = [mean of squares, momentum]
KERNEL(rms_prop) {
    bool has_momentum = has_state(job, 1);
    step<2>(job, [&](WIDE& p, WIDE g, WIDE (&s)[2]) {
        WIDE pull = g + (WIDE)job.c[1] * p;
        s[0] = (WIDE)job.c[2] * s[0] + (WIDE)job.c[3] * (pull * pull);
        WIDE by = pull / (root(s[0]) + (WIDE)job.c[4]);
        if (has_momentum) by = s[1] = (WIDE)job.c[5] * s[1] + by;
        p = p - (WIDE)job.c[0] * by;
    });
}

// c = [lr, shrink, beta1, 1 - beta1, beta2, 1 - beta2]; s = [mean]. The sign of a NaN is NaN.
KERNEL(lion) {
    WIDE lr = (WIDE)job.c[0];
    step<1>(job, [&](WIDE& p, WIDE g, WIDE (&s)[1]) {
        WIDE towards = (WIDE)job.c[2] * s[0] + (WIDE)job.c[3] * g;
        WIDE by = towards > (WIDE)0 ? lr : towards < (WIDE)0 ? -lr : towards;
        p = (WIDE)job.c[1] * p - by;
        s[0] = (WIDE)job.c[4] * s[0] + (WIDE)job.c[5] * g;
    });
}

// c = [rate, weight decay, epsilon]; s = [sum of squares]
KERNEL(adagrad) {
    step<1>(job, [&](WIDE& p, WIDE g, WIDE (&s)[1]) {
        WIDE pull = g + (WIDE)job.c[1] * p;
        s[0] = s[0] + pull * pull;
        p = p - (WIDE)job.c[0] * pull / (root(s[0]) + (WIDE)job.c[2]);
    });
}

// c = [lr, weight decay, rho, 1 - rho, epsilon]; s = [mean of squares, mean of squared steps]
KERNEL(adadelta) {
    step<2>(job, [&](WIDE& p, WIDE g, WIDE (&s)[2]) {
        WIDE pull = g + (WIDE)job.c[1] * p, epsilon = (WIDE)job.c[4];
        s[0] = (WIDE)job.c[2] * s[0] + (WIDE)job.c[3] * (pull * pull);
        WIDE by = root(s[1] + epsilon) / root(s[0] + epsilon) * pull;
        s[1] = (WIDE)job.c[2] * s[1] + (WIDE)job.c[3] * (by * by);
        p = p - (WIDE)job.c[0] * by;
    });
}

// c = [beta1, 1 - beta1, beta2, 1 - beta2, epsilon, rate, rate ahead, coupled decay, shrink]; s = [mean, variance]
KERNEL(nadam) {
    step<2>(job, [&](WIDE& p, WIDE g, WIDE (&s)[2]) {
        WIDE pull = g + (WIDE)job.c[7] * p;
        s[0] = (WIDE)job.c[0] * s[0] + (WIDE)job.c[1] * pull;
        s[1] = (WIDE)job.c[2] * s[1] + (WIDE)job.c[3] * (pull * pull);
        WIDE by = (WIDE)job.c[5] * pull + (WIDE)job.c[6] * s[0];
        p = (WIDE)job.c[8] * p - by / (root(s[1]) + (WIDE)job.c[4]);
    });
}
