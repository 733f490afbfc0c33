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

#ifndef HIGHWATER_OPTIM_STEP
#define HIGHWATER_OPTIM_STEP

// Whether the parameter has this state.
DEVICE bool has_state(const Job& job, int state) { return job.function >> state & 1; }

// Updates the parameter out[0] and the states out[1..] along the gradient in[0]: rule(p, g, s) for each element, where s
// are its states. Each rule gets the constants of its formula in job.c, as `StepRule::constants` computes them.
template <typename E, int STATES, typename Rule>
DEVICE void update(const Job& job, Rule rule) {
    typedef typename Computed<E>::type Wide;
    handfuls<AHEAD>(job, [&](const Handful& few) {
        Wide p[AHEAD], g[AHEAD], s[STATES][AHEAD] = {};
        stored<E>(job, 0, few, p);
        value<E>(job, 0, few, g);
#pragma unroll
        for (int state = 0; state < STATES; ++state) {
            if (has_state(job, state)) stored<E>(job, state + 1, few, s[state]);
        }
#pragma unroll
        for (u32 n = 0; n < AHEAD; ++n) {
            Wide states[STATES];
#pragma unroll
            for (int state = 0; state < STATES; ++state) states[state] = s[state][n];
            rule(p[n], g[n], states);
#pragma unroll
            for (int state = 0; state < STATES; ++state) s[state][n] = states[state];
        }
#pragma unroll
        for (int state = 0; state < STATES; ++state) {
            if (has_state(job, state)) store<E>(job, state + 1, few, s[state]);
        }
        store<E>(job, 0, few, p);
    });
}

#endif

// c = [lr, weight decay, momentum, whether Nesterov's]; s = [momentum]
KERNEL(sgd) {
    WIDE lr = (WIDE)job.c[0], decay = (WIDE)job.c[1], momentum = (WIDE)job.c[2];
    bool has_momentum = has_state(job, 0), nesterov = job.c[3] != 0;
    update<T, 1>(job, [&](WIDE& p, WIDE g, WIDE (&s)[1]) {
        WIDE update = g + decay * p;
        if (has_momentum) {
            s[0] = momentum * s[0] + update;
            update = nesterov ? update + momentum * s[0] : s[0];
        }
        p = p - lr * update;
    });
}

// c = [beta1, 1 - beta1, beta2, 1 - beta2, epsilon, rate, scale, coupled decay, shrink]; s = [mean, variance, max variance]
KERNEL(adam) {
    bool amsgrad = has_state(job, 2);
    update<T, 3>(job, [&](WIDE& p, WIDE g, WIDE (&s)[3]) {
        WIDE gradient = g + (WIDE)job.c[7] * p;
        s[0] = (WIDE)job.c[0] * s[0] + (WIDE)job.c[1] * gradient;
        s[1] = (WIDE)job.c[2] * s[1] + (WIDE)job.c[3] * (gradient * gradient);
        // If the variance is NaN, it stays NaN, and so does the largest variance.
        s[2] = amsgrad && s[2] >= s[1] ? s[2] : s[1];
        p = (WIDE)job.c[8] * p - (WIDE)job.c[5] * s[0] / (root(s[2]) * (WIDE)job.c[6] + (WIDE)job.c[4]);
    });
}

// c = [lr, weight decay, smoothing, 1 - smoothing, epsilon, momentum]; s = [mean of squares, momentum]
KERNEL(rms_prop) {
    bool has_momentum = has_state(job, 1);
    update<T, 2>(job, [&](WIDE& p, WIDE g, WIDE (&s)[2]) {
        WIDE gradient = g + (WIDE)job.c[1] * p;
        s[0] = (WIDE)job.c[2] * s[0] + (WIDE)job.c[3] * (gradient * gradient);
        WIDE update = gradient / (root(s[0]) + (WIDE)job.c[4]);
        if (has_momentum) update = s[1] = (WIDE)job.c[5] * s[1] + update;
        p = p - (WIDE)job.c[0] * update;
    });
}

// c = [lr, shrink, beta1, 1 - beta1, beta2, 1 - beta2]; s = [mean]. The sign of a NaN is NaN.
KERNEL(lion) {
    WIDE lr = (WIDE)job.c[0];
    update<T, 1>(job, [&](WIDE& p, WIDE g, WIDE (&s)[1]) {
        WIDE direction = (WIDE)job.c[2] * s[0] + (WIDE)job.c[3] * g;
        WIDE update = direction > (WIDE)0 ? lr : direction < (WIDE)0 ? -lr : direction;
        p = (WIDE)job.c[1] * p - update;
        s[0] = (WIDE)job.c[4] * s[0] + (WIDE)job.c[5] * g;
    });
}

// c = [rate, weight decay, epsilon]; s = [sum of squares]
KERNEL(adagrad) {
    update<T, 1>(job, [&](WIDE& p, WIDE g, WIDE (&s)[1]) {
        WIDE gradient = g + (WIDE)job.c[1] * p;
        s[0] = s[0] + gradient * gradient;
        p = p - (WIDE)job.c[0] * gradient / (root(s[0]) + (WIDE)job.c[2]);
    });
}

// c = [lr, weight decay, rho, 1 - rho, epsilon]; s = [mean of squares, mean of squared steps]
KERNEL(adadelta) {
    update<T, 2>(job, [&](WIDE& p, WIDE g, WIDE (&s)[2]) {
        WIDE gradient = g + (WIDE)job.c[1] * p, epsilon = (WIDE)job.c[4];
        s[0] = (WIDE)job.c[2] * s[0] + (WIDE)job.c[3] * (gradient * gradient);
        WIDE update = root(s[1] + epsilon) / root(s[0] + epsilon) * gradient;
        s[1] = (WIDE)job.c[2] * s[1] + (WIDE)job.c[3] * (update * update);
        p = p - (WIDE)job.c[0] * update;
    });
}

// c = [beta1, 1 - beta1, beta2, 1 - beta2, epsilon, rate, rate ahead, coupled decay, shrink]; s = [mean, variance]
KERNEL(nadam) {
    update<T, 2>(job, [&](WIDE& p, WIDE g, WIDE (&s)[2]) {
        WIDE gradient = g + (WIDE)job.c[7] * p;
        s[0] = (WIDE)job.c[0] * s[0] + (WIDE)job.c[1] * gradient;
        s[1] = (WIDE)job.c[2] * s[1] + (WIDE)job.c[3] * (gradient * gradient);
        WIDE update = (WIDE)job.c[5] * gradient + (WIDE)job.c[6] * s[0];
        p = (WIDE)job.c[8] * p - update / (root(s[1]) + (WIDE)job.c[4]);
    });
}
