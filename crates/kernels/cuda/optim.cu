// Optimizer steps for floats, in place, in one pass over parameters, state and gradient; and scaling of gradients. The rows
// of a table are different parameters or gradients.

// Rows: out = [values]; c = [scale, low, high].
TABLE_KERNEL(clip) {
    WIDE low = (WIDE)job.c[1], high = (WIDE)job.c[2];
    row_handfuls<AHEAD>(job, table, [&](const JobRow& row, const Handful& few) {
        JobOutput values = {row.out[0], job.out[0].wide};
        WIDE x[AHEAD];
        stored<T>(values, few, x);
#pragma unroll
        for (u32 n = 0; n < AHEAD; ++n) {
            WIDE scaled = x[n] * (WIDE)job.c[0];
            x[n] = scaled < low ? low : scaled > high ? high : scaled;
        }
        store<T>(values, few, x);
    });
}

#ifndef HIGHWATER_OPTIM_STEP
#define HIGHWATER_OPTIM_STEP

// Whether the parameters have this state.
DEVICE bool has_state(const Job& job, int state) { return job.function >> state & 1; }

// Updates the parameter out[0] of each row and its states out[1..] along the gradient `in`: rule(p, g, s) for each element,
// where s are its states. The only row of a job with a strided gradient reads the job's in[0]. Each rule gets the constants
// of its formula in job.c, as `StepRule::constants` computes them.
template <typename E, int STATES, typename Rule>
DEVICE void update(const Job& job, const JobTable& table, Rule rule) {
    typedef typename Computed<E>::type Wide;
    row_handfuls<AHEAD>(job, table, [&](const JobRow& row, const Handful& few) {
        Wide p[AHEAD], g[AHEAD], s[STATES][AHEAD] = {};
        JobOutput param = {row.out[0], job.out[0].wide};
        stored<E>(param, few, p);
        if (job.in[0].contiguous) {
            stored<E>(JobOutput{row.in, job.in[0].wide}, few, g);
        } else {
            value<E>(job, 0, few, g);
        }
#pragma unroll
        for (int n = 0; n < STATES; ++n) {
            if (has_state(job, n)) stored<E>(JobOutput{row.out[n + 1], job.out[n + 1].wide}, few, s[n]);
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
        for (int n = 0; n < STATES; ++n) {
            if (has_state(job, n)) store<E>(JobOutput{row.out[n + 1], job.out[n + 1].wide}, few, s[n]);
        }
        store<E>(param, few, p);
    });
}

#endif

// c = [lr, weight decay, momentum, whether Nesterov's]; s = [momentum]
TABLE_KERNEL(sgd) {
    WIDE lr = (WIDE)job.c[0], decay = (WIDE)job.c[1], momentum = (WIDE)job.c[2];
    bool has_momentum = has_state(job, 0), nesterov = job.c[3] != 0;
    update<T, 1>(job, table, [&](WIDE& p, WIDE g, WIDE (&s)[1]) {
        WIDE update = g + decay * p;
        if (has_momentum) {
            s[0] = momentum * s[0] + update;
            update = nesterov ? update + momentum * s[0] : s[0];
        }
        p = p - lr * update;
    });
}

// c = [beta1, 1 - beta1, beta2, 1 - beta2, epsilon, rate, scale, coupled decay, shrink]; s = [mean, variance, max variance]
TABLE_KERNEL(adam) {
    bool amsgrad = has_state(job, 2);
    update<T, 3>(job, table, [&](WIDE& p, WIDE g, WIDE (&s)[3]) {
        WIDE gradient = g + (WIDE)job.c[7] * p;
        s[0] = (WIDE)job.c[0] * s[0] + (WIDE)job.c[1] * gradient;
        s[1] = (WIDE)job.c[2] * s[1] + (WIDE)job.c[3] * (gradient * gradient);
        // If the variance is NaN, it stays NaN, and so does the largest variance.
        s[2] = amsgrad && s[2] >= s[1] ? s[2] : s[1];
        p = (WIDE)job.c[8] * p - (WIDE)job.c[5] * s[0] / (root(s[2]) * (WIDE)job.c[6] + (WIDE)job.c[4]);
    });
}

// c = [lr, weight decay, smoothing, 1 - smoothing, epsilon, momentum]; s = [mean of squares, momentum]
TABLE_KERNEL(rms_prop) {
    bool has_momentum = has_state(job, 1);
    update<T, 2>(job, table, [&](WIDE& p, WIDE g, WIDE (&s)[2]) {
        WIDE gradient = g + (WIDE)job.c[1] * p;
        s[0] = (WIDE)job.c[2] * s[0] + (WIDE)job.c[3] * (gradient * gradient);
        WIDE update = gradient / (root(s[0]) + (WIDE)job.c[4]);
        if (has_momentum) update = s[1] = (WIDE)job.c[5] * s[1] + update;
        p = p - (WIDE)job.c[0] * update;
    });
}

// c = [lr, shrink, beta1, 1 - beta1, beta2, 1 - beta2]; s = [mean]. The sign of a NaN is NaN.
TABLE_KERNEL(lion) {
    WIDE lr = (WIDE)job.c[0];
    update<T, 1>(job, table, [&](WIDE& p, WIDE g, WIDE (&s)[1]) {
        WIDE direction = (WIDE)job.c[2] * s[0] + (WIDE)job.c[3] * g;
        WIDE update = direction > (WIDE)0 ? lr : direction < (WIDE)0 ? -lr : direction;
        p = (WIDE)job.c[1] * p - update;
        s[0] = (WIDE)job.c[4] * s[0] + (WIDE)job.c[5] * g;
    });
}

// c = [rate, weight decay, epsilon]; s = [sum of squares]
TABLE_KERNEL(adagrad) {
    update<T, 1>(job, table, [&](WIDE& p, WIDE g, WIDE (&s)[1]) {
        WIDE gradient = g + (WIDE)job.c[1] * p;
        s[0] = s[0] + gradient * gradient;
        p = p - (WIDE)job.c[0] * gradient / (root(s[0]) + (WIDE)job.c[2]);
    });
}

// c = [lr, weight decay, rho, 1 - rho, epsilon]; s = [mean of squares, mean of squared steps]
TABLE_KERNEL(adadelta) {
    update<T, 2>(job, table, [&](WIDE& p, WIDE g, WIDE (&s)[2]) {
        WIDE gradient = g + (WIDE)job.c[1] * p, epsilon = (WIDE)job.c[4];
        s[0] = (WIDE)job.c[2] * s[0] + (WIDE)job.c[3] * (gradient * gradient);
        WIDE update = root(s[1] + epsilon) / root(s[0] + epsilon) * gradient;
        s[1] = (WIDE)job.c[2] * s[1] + (WIDE)job.c[3] * (update * update);
        p = p - (WIDE)job.c[0] * update;
    });
}

// c = [beta1, 1 - beta1, beta2, 1 - beta2, epsilon, rate, rate ahead, coupled decay, shrink]; s = [mean, variance]
TABLE_KERNEL(nadam) {
    update<T, 2>(job, table, [&](WIDE& p, WIDE g, WIDE (&s)[2]) {
        WIDE gradient = g + (WIDE)job.c[7] * p;
        s[0] = (WIDE)job.c[0] * s[0] + (WIDE)job.c[1] * gradient;
        s[1] = (WIDE)job.c[2] * s[1] + (WIDE)job.c[3] * (gradient * gradient);
        WIDE update = (WIDE)job.c[5] * gradient + (WIDE)job.c[6] * s[0];
        p = (WIDE)job.c[8] * p - update / (root(s[1]) + (WIDE)job.c[4]);
    });
}
