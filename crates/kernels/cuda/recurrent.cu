// Single steps of recurrent layers: LSTM, GRU, and RNN with tanh or ReLU.
//
// One thread computes one element of the state of one sequence. Row i * len + t of a matrix belongs to step t of
// sequence i. The function is the cell; k = [hidden, len, t, t of the previous step, flags].

#ifndef HIGHWATER_RECURRENT
#define HIGHWATER_RECURRENT

#define LSTM 0
#define GRU 1
#define RNN_TANH 2
#define RNN_RELU 3

// The flags: the step is the first one, or the last one.
#define FIRST 1
#define LAST 2

DEVICE u64 gates_of(u64 cell) { return cell == LSTM ? 4 : cell == GRU ? 3 : 1; }

// The initial state or cell: operand 2, if present.
template <typename E>
DEVICE typename Computed<E>::type initial(const Job& job, u64 i, u64 j) {
    typedef typename Computed<E>::type Wide;
    const JobInput& from = job.in[2];
    return from.address ? (Wide)((const E*)from.address)[i * from.strides[0] + j * from.strides[1]] : (Wide)0;
}

#endif

// in = [the product of the previous state and the weight, if present; the bias of the product; the initial state of a
// GRU or the initial cell of an LSTM]; out = [gates, extra, states]. The gates hold the inputs' shares, which their
// values replace.
KERNEL(recurrent_step) {
    u64 hidden = job.k[0], len = job.k[1], cell = job.function, count = gates_of(job.function);
    EACH(e) {
        u64 i = quotient(e, hidden), j = e - i * hidden, row = i * len + job.k[2];
        T* gates = out<T>(job, 0) + row * count * hidden + j;
        const T* product = (const T*)job.in[0].address;
        const T* bias = (const T*)job.in[1].address;
        WIDE shares[4];
        for (u64 n = 0; n < 4; ++n) {
            if (n >= count) break;
            WIDE of_state = product ? (WIDE)product[(i * count + n) * hidden + j] : (WIDE)0;
            shares[n] = of_state + (WIDE)bias[(n * hidden + j) * job.in[1].strides[0]];
        }
        u64 at = row * hidden + j, before = (i * len + job.k[3]) * hidden + j;
        bool first = job.k[4] & FIRST;
        WIDE state;
        if (cell == LSTM) {
            WIDE input = logistic((WIDE)gates[0] + shares[0]), forget = logistic((WIDE)gates[hidden] + shares[1]);
            WIDE value = hyperbolic((WIDE)gates[2 * hidden] + shares[2]);
            WIDE output = logistic((WIDE)gates[3 * hidden] + shares[3]);
            WIDE old = first ? initial<T>(job, i, j) : (WIDE)out<T>(job, 1)[before];
            WIDE cells = forget * old + input * value;
            gates[0] = (T)input;
            gates[hidden] = (T)forget;
            gates[2 * hidden] = (T)value;
            gates[3 * hidden] = (T)output;
            out<T>(job, 1)[at] = (T)cells;
            state = output * hyperbolic(cells);
        } else if (cell == GRU) {
            WIDE reset = logistic((WIDE)gates[0] + shares[0]), update = logistic((WIDE)gates[hidden] + shares[1]);
            WIDE value = hyperbolic((WIDE)gates[2 * hidden] + reset * shares[2]);
            WIDE old = first ? initial<T>(job, i, j) : (WIDE)out<T>(job, 2)[before];
            gates[0] = (T)reset;
            gates[hidden] = (T)update;
            gates[2 * hidden] = (T)value;
            out<T>(job, 1)[at] = (T)shares[2];
            state = value + update * (old - value);
        } else {
            WIDE sum = (WIDE)gates[0] + shares[0];
            state = cell == RNN_TANH ? hyperbolic(sum) : sum < (WIDE)0 ? (WIDE)0 : sum;
            gates[0] = (T)state;
        }
        out<T>(job, 2)[at] = (T)state;
    }
}

// in = [the gradient of the states; the product of the next step's gradients and the weight, if there is a next step; the
// initial value, as in recurrent_step]; out = [gates, extra]. The gradients of the inputs' shares replace the gates.
// also = [the states, carry, shares, the gradient of the last cell]. The integers i are the strides of the states. The
// second shape has the strides of the last cell's gradient. A step passes carry to the step before it: the gradient of
// the cell of an LSTM, the direct gradient of the state of a GRU. A GRU writes the gradients of the state's shares.
KERNEL(recurrent_step_grad) {
    u64 hidden = job.k[0], len = job.k[1], cell = job.function, count = gates_of(job.function);
    EACH(e) {
        u64 i = quotient(e, hidden), j = e - i * hidden, row = i * len + job.k[2];
        u64 at = row * hidden + j, before = i * len + job.k[3];
        bool first = job.k[4] & FIRST;
        T* gates = out<T>(job, 0) + row * count * hidden + j;
        WIDE* carry = (WIDE*)job.also[1] + e;
        WIDE passed = (WIDE)0;
        if (!(job.k[4] & LAST)) {
            passed = *carry;
        } else if (job.also[3]) {
            passed = (WIDE)((const T*)job.also[3])[i * job.inner_dims[0] + j * job.inner_dims[1]];
        }
        const JobInput& of_states = job.in[0];
        WIDE grad = (WIDE)((const T*)of_states.address)[row * of_states.strides[0] + j * of_states.strides[1]];
        if (job.in[1].address) grad = grad + (WIDE)((const T*)job.in[1].address)[e];
        if (cell == LSTM) {
            WIDE input = (WIDE)gates[0], forget = (WIDE)gates[hidden];
            WIDE value = (WIDE)gates[2 * hidden], output = (WIDE)gates[3 * hidden];
            const T* cells = out<T>(job, 1);
            WIDE squashed = hyperbolic((WIDE)cells[at]);
            WIDE old = first ? initial<T>(job, i, j) : (WIDE)cells[before * hidden + j];
            WIDE of_cell = passed + grad * output * ((WIDE)1 - squashed * squashed);
            gates[0] = (T)(of_cell * value * (input * ((WIDE)1 - input)));
            gates[hidden] = (T)(of_cell * old * (forget * ((WIDE)1 - forget)));
            gates[2 * hidden] = (T)(of_cell * input * ((WIDE)1 - value * value));
            gates[3 * hidden] = (T)(grad * squashed * (output * ((WIDE)1 - output)));
            *carry = of_cell * forget;
        } else if (cell == GRU) {
            grad = grad + passed;
            WIDE reset = (WIDE)gates[0], update = (WIDE)gates[hidden], value = (WIDE)gates[2 * hidden];
            const T* states = (const T*)job.also[0];
            u64 from = before * (u64)job.i[0] + j * (u64)job.i[1];
            WIDE old = first ? initial<T>(job, i, j) : (WIDE)states[from];
            T* inner = out<T>(job, 1) + at;
            WIDE of_value = grad * ((WIDE)1 - update) * ((WIDE)1 - value * value);
            WIDE of_reset = of_value * (WIDE)*inner * (reset * ((WIDE)1 - reset));
            WIDE of_update = grad * (old - value) * (update * ((WIDE)1 - update));
            gates[0] = (T)of_reset;
            gates[hidden] = (T)of_update;
            gates[2 * hidden] = (T)of_value;
            *inner = (T)(of_value * reset);
            T* shares = (T*)job.also[2] + i * 3 * hidden + j;
            shares[0] = (T)of_reset;
            shares[hidden] = (T)of_update;
            shares[2 * hidden] = (T)(of_value * reset);
            *carry = grad * update;
        } else {
            WIDE y = (WIDE)gates[0];
            WIDE slope = cell == RNN_TANH ? (WIDE)1 - y * y : y <= (WIDE)0 ? (WIDE)0 : (WIDE)1;
            gates[0] = (T)(grad * slope);
        }
    }
}

// out = in[0] + in[1], each if present: the gradient of an initial state or cell, from the last product and the last step.
KERNEL(recurrent_initial_grad) {
    EACH(e) {
        WIDE product = job.in[0].address ? element_at<T>(job.in[0], e) : (WIDE)0;
        WIDE direct = job.in[1].address ? element_at<T>(job.in[1], e) : (WIDE)0;
        out<T>(job, 0)[e] = (T)(product + direct);
    }
}
