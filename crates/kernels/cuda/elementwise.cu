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
    const JobInput& to = job.in[1];
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

// Functions of crates/kernels/src/families/map/functions.rs.
KERNEL(arithmetic) {
    WIDE c = constant(job, 0, (WIDE)0);
    WIDE high = constant(job, 1, (WIDE)0);
    map<T>(job, [&](WIDE x) {
        WIDE y;
        switch ((u32)job.function) {
            case NAMED("neg"): y = negative(x); break;
            case NAMED("abs"): y = magnitude(x); break;
            case NAMED("square"): y = times(x, x); break;
            case NAMED("relu"): y = below_zero(x) ? (WIDE)0 : x; break;
            case NAMED("add_scalar"): y = plus(x, c); break;
            case NAMED("mul_scalar"): y = times(x, c); break;
            case NAMED("sign"): y = sign(x); break;
            case NAMED("clamp"): y = x < c ? c : x > high ? high : x; break;
#ifndef T_IS_FLOAT
            case NAMED("powf"): y = raised(x, (u64)job.i[0]); break;
#endif
            case NAMED("div_scalar"): y = over(x, c); break;
            default: y = undefined((WIDE)0); break;
        }
        return y;
    });
}

// Functions of crates/kernels/src/families/zip/functions.rs.
KERNEL(binary) {
    zip<T, T>(job, [&](WIDE a, WIDE b) {
        WIDE y;
        switch ((u32)job.function) {
            case NAMED("add"): y = plus(a, b); break;
            case NAMED("sub"): y = minus(a, b); break;
            case NAMED("mul"): y = times(a, b); break;
            case NAMED("div"): y = over(a, b); break;
            case NAMED("maximum"): y = larger(a, b); break;
            case NAMED("minimum"): y = smaller(a, b); break;
            case NAMED("pow"): y = power(a, b); break;
#ifdef T_IS_FLOAT
            case NAMED("atan2"): y = angle(a, b); break;
            case NAMED("silu_mul"): y = times(silu(a), b); break;
#endif
            default: y = undefined((WIDE)0); break;
        }
        return y;
    });
}

// Comparisons of crates/kernels/src/families/zip/functions.rs. An unknown one holds nowhere.
KERNEL(compare) {
    zip<T, u8>(job, [&](WIDE a, WIDE b) {
        bool holds;
        switch ((u32)job.function) {
            case NAMED("eq"): holds = a == b; break;
            case NAMED("ne"): holds = a != b; break;
            case NAMED("lt"): holds = a < b; break;
            case NAMED("le"): holds = a <= b; break;
            case NAMED("gt"): holds = a > b; break;
            case NAMED("ge"): holds = a >= b; break;
            default: holds = false; break;
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
