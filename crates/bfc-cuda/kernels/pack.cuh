// How a kernel iterates over contiguous elements: a thread reads and writes packs of neighbors at once. Strided
// operands and the last incomplete pack use single elements.

// Neighboring elements: a multiple of 16 bytes, or fewer.
template <typename E, u32 N>
struct alignas(N * sizeof(E) < 16 ? N * sizeof(E) : 16) Pack {
    E of[N];
};

// The elements per pack: as many as 16 bytes hold, but at least as many as single loads read ahead.
DEVICE constexpr u32 filling(u32 bytes) { return bytes * AHEAD < 16 ? 16 / bytes : AHEAD; }

// The elements per pack for expensive functions: for bytes no more than for 16-bit types, because all are in registers.
template <typename E>
struct Packed {
    static const u32 count = filling(sizeof(E) < 2 ? 2 : sizeof(E));
};

// The elements that a thread computes at a time: a pack, or up to AHEAD elements that are a grid apart.
struct Handful {
    u64 first, step, end;
    bool packed;
    MEMBER u64 at(u32 n) const { return first + n * step; }
    MEMBER bool has(u32 n) const { return packed || (n < AHEAD && at(n) < end); }
};

// body(few) for every handful of this thread, as packs of N if the job is packed.
template <u32 N, typename Body>
DEVICE void handfuls(const Job& job, Body body) {
    static_assert(N >= AHEAD, "elements that are no pack would be left out");
    u64 threads = gridDim.x * (u64)BLOCK, thread = blockIdx.x * (u64)BLOCK + threadIdx.x;
    u64 in_packs = job.packed ? job.count / N * N : 0;
    u64 i = thread * N < in_packs ? thread * N : in_packs + thread;
    while (i < job.count) {
        bool packed = i < in_packs;
        body(Handful{i, packed ? 1 : threads, job.count, packed});
        i += threads * (packed ? N : AHEAD);
        if (packed && i >= in_packs) i = in_packs + thread;
    }
}

template <typename E, typename X, u32 N>
DEVICE void unpack(u64 address, const Handful& few, X (&x)[N]) {
    Pack<E, N> pack = *(const Pack<E, N>*)((const E*)address + few.first);
#pragma unroll
    for (u32 n = 0; n < N; ++n) x[n] = (X)pack.of[n];
}

template <typename E, typename X, u32 N>
DEVICE void pack(u64 address, const Handful& few, const X (&x)[N]) {
    Pack<E, N> pack;
#pragma unroll
    for (u32 n = 0; n < N; ++n) pack.of[n] = (E)x[n];
    *(Pack<E, N>*)((E*)address + few.first) = pack;
}

// The stored elements of an operand; missing ones are 0.
template <typename E, u32 N>
DEVICE void load(const Job& job, int operand, const Handful& few, E (&x)[N]) {
    if (few.packed) {
        unpack<E>(job.in[operand].address, few, x);
        return;
    }
#pragma unroll
    for (u32 n = 0; n < N; ++n) x[n] = few.has(n) ? load<E>(job, operand, few.at(n)) : (E)0;
}

// The elements of an operand, converted for computing.
template <typename E, u32 N>
DEVICE void value(const Job& job, int operand, const Handful& few, typename Computed<E>::type (&x)[N]) {
    typedef typename Computed<E>::type Wide;
    const Operand& from = job.in[operand];
    if (!few.packed) {
#pragma unroll
        for (u32 n = 0; n < N; ++n) x[n] = few.has(n) ? value<E>(job, operand, few.at(n)) : (Wide)0;
    } else if (sizeof(E) < sizeof(Wide) && from.wide) {
        unpack<Wide>(from.address, few, x);
    } else {
        unpack<E>(from.address, few, x);
    }
}

// The elements of an output that is updated in place.
template <typename E, u32 N>
DEVICE void stored(const Job& job, int output, const Handful& few, typename Computed<E>::type (&x)[N]) {
    typedef typename Computed<E>::type Wide;
    const Output& from = job.out[output];
    if (!few.packed) {
#pragma unroll
        for (u32 n = 0; n < N; ++n) x[n] = few.has(n) ? stored<E>(job, output, few.at(n)) : (Wide)0;
    } else if (sizeof(E) < sizeof(Wide) && from.wide) {
        unpack<Wide>(from.address, few, x);
    } else {
        unpack<E>(from.address, few, x);
    }
}

// Writes elements unchanged.
template <typename E, u32 N>
DEVICE void put(const Job& job, int output, const Handful& few, const E (&x)[N]) {
    if (few.packed) {
        pack<E>(job.out[output].address, few, x);
        return;
    }
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
        if (few.has(n)) out<E>(job, output)[few.at(n)] = x[n];
    }
}

// Writes results, rounded to the output's type.
template <typename E, u32 N>
DEVICE void store(const Job& job, int output, const Handful& few, const typename Computed<E>::type (&x)[N]) {
    typedef typename Computed<E>::type Wide;
    const Output& to = job.out[output];
    if (!few.packed) {
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
            if (few.has(n)) store<E>(job, output, few.at(n), x[n]);
        }
    } else if (sizeof(E) < sizeof(Wide) && to.wide) {
        pack<Wide>(to.address, few, x);
    } else {
        pack<E>(to.address, few, x);
    }
}

// Shifts the elements by one: registers cannot be indexed by a loop counter.
template <typename X, u32 N>
DEVICE X shift(X (&x)[N], X last = X()) {
    X first = x[0];
#pragma unroll
    for (u32 n = 1; n < N; ++n) x[n - 1] = x[n];
    x[N - 1] = last;
    return first;
}

// out[i] = f(x) for each element of an operand. f is compiled once.
template <typename E, typename Function>
DEVICE void map(const Job& job, Function f) {
    typedef typename Computed<E>::type Wide;
    const u32 N = Packed<E>::count;
    handfuls<N>(job, [&](const Handful& few) {
        Wide x[N], y[N];
        value<E>(job, 0, few, x);
#pragma unroll 1
        for (u32 n = 0; n < N; ++n) {
            Wide next = shift(x);
            shift(y, few.has(n) ? f(next) : (Wide)0);
        }
        store<E>(job, 0, few, y);
    });
}

// out[i] = f(a, b) for the elements of two operands.
template <typename E, typename To, typename Function>
DEVICE void zip(const Job& job, Function f) {
    typedef typename Computed<E>::type Wide;
    typedef typename Computed<To>::type Result;
    const u32 N = Packed<E>::count;
    handfuls<N>(job, [&](const Handful& few) {
        Wide a[N], b[N];
        Result y[N];
        value<E>(job, 0, few, a);
        value<E>(job, 1, few, b);
#pragma unroll 1
        for (u32 n = 0; n < N; ++n) {
            Wide of_a = shift(a), of_b = shift(b);
            shift(y, few.has(n) ? f(of_a, of_b) : (Result)0);
        }
        store<To>(job, 0, few, y);
    });
}

// out[i] = f(x) for cheap functions: 16 bytes of the wider type at a time.
template <typename From, typename To, typename Function>
DEVICE void convert(const Job& job, Function f) {
    const u32 N = filling(sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
    handfuls<N>(job, [&](const Handful& few) {
        From x[N];
        To y[N];
        load<From>(job, 0, few, x);
#pragma unroll
        for (u32 n = 0; n < N; ++n) y[n] = f(x[n]);
        put<To>(job, 0, few, y);
    });
}
