// Elementwise kernels of all types: fills, unary and binary functions, comparisons, selection.

KERNEL(fill) {
    const u32 N = filling(sizeof(T));
    T values[N];
    for (u32 n = 0; n < N; ++n) values[n] = constant(job, 0, (T)0);
    handfuls<N>(job, [&](const Handful& few) { put<T>(job, 0, few, values); });
}

// start + i step; floats are computed in f64 and rounded once, so that errors do not accumulate.
KERNEL(arange) {
    EACH(i) {
#ifdef T_IS_FLOAT
        out<T>(job, 0)[i] = nearest(job.c[0] + (double)i * job.c[1], (T)0);
#else
        out<T>(job, 0)[i] = (T)((u64)job.i[0] + (u64)job.i[1] * i);
#endif
    }
}

// Strided to contiguous.
KERNEL(copy) {
    convert<T, T>(job, [](T x) { return x; });
}

// Strided to contiguous, reversed along the axes whose bits are set in the function.
KERNEL(flip) {
    EACH(i) {
        u64 rest = i, from = 0;
        for (int axis = (int)job.rank - 1; axis >= 0; --axis) {
            u64 size = job.dims[axis], outer = quotient(rest, size), index = rest - outer * size;
            rest = outer;
            from += (job.function >> axis & 1 ? size - 1 - index : index) * job.in[0].strides[axis];
        }
        out<T>(job, 0)[i] = ((const T*)job.in[0].address)[from];
    }
}

// Strided to strided: writes the second operand.
KERNEL(place) {
    const u32 N = filling(sizeof(T));
    const Operand& to = job.in[1];
    handfuls<N>(job, [&](const Handful& few) {
        T x[N];
        load<T>(job, 0, few, x);
        if (few.packed) {
            pack<T>(to.address, place(job, to, few.first), x);
            return;
        }
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
            if (few.has(n)) ((T*)to.address)[place(job, to, few.at(n))] = x[n];
        }
    });
}

// The caller numbers the functions: crates/tensor/src/backend/cuda.
KERNEL(arithmetic) {
    WIDE c = constant(job, 0, (WIDE)0);
    WIDE high = constant(job, 1, (WIDE)0);
    map<T>(job, [&](WIDE x) {
        WIDE y;
        switch (job.function) {
            case 0: y = negative(x); break;
            case 1: y = magnitude(x); break;
            case 2: y = times(x, x); break;
            case 3: y = below_zero(x) ? (WIDE)0 : x; break;
            case 4: y = plus(x, c); break;
            case 5: y = times(x, c); break;
            case 6: y = sign(x); break;
            case 7: y = x < c ? c : x > high ? high : x; break;
#ifndef T_IS_FLOAT
            case 9: y = raised(x, (u64)job.i[0]); break;
#endif
            default: y = over(x, c); break;
        }
        return y;
    });
}

// The caller numbers the functions: crates/tensor/src/backend/cuda.
KERNEL(binary) {
    zip<T, T>(job, [&](WIDE a, WIDE b) {
        WIDE y;
        switch (job.function) {
            case 0: y = plus(a, b); break;
            case 1: y = minus(a, b); break;
            case 2: y = times(a, b); break;
            case 3: y = over(a, b); break;
            case 4: y = larger(a, b); break;
            case 5: y = smaller(a, b); break;
            case 6: y = power(a, b); break;
            default: y = a; break;
        }
        return y;
    });
}

// The caller numbers the functions: crates/tensor/src/backend/cuda.
KERNEL(compare) {
    zip<T, u8>(job, [&](WIDE a, WIDE b) {
        bool holds;
        switch (job.function) {
            case 0: holds = a == b; break;
            case 1: holds = a != b; break;
            case 2: holds = a < b; break;
            case 3: holds = a <= b; break;
            case 4: holds = a > b; break;
            default: holds = a >= b; break;
        }
        return (u8)(holds ? 1 : 0);
    });
}

KERNEL(choose) {
    EACH(i) {
        bool first = load<u8>(job, 0, i) != 0;
        out<T>(job, 0)[i] = load<T>(job, first ? 1 : 2, i);
    }
}
