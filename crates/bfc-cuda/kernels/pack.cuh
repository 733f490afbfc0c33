// How a kernel goes over elements that lie in order: by packs of neighbours, which a thread reads and writes in one go. Where operands lie
// apart, and where the elements that are left fill no pack, they are read and written one by one.

// Neighbours, of 16 bytes or a multiple of that, or fewer.
template <typename E, u32 N>
struct alignas(N * sizeof(E) < 16 ? N * sizeof(E) : 16) Pack {
    E of[N];
};

// How many elements of so many bytes a pack has: as many as 16 bytes hold, but no fewer than are read ahead one by one.
DEVICE constexpr u32 filling(u32 bytes) { return bytes * AHEAD < 16 ? 16 / bytes : AHEAD; }

// The same where functions are computed, one element after the other: of bytes no more than of halves, as all are in registers meanwhile.
template <typename E>
struct Packed {
    static const u32 count = filling(sizeof(E) < 2 ? 2 : sizeof(E));
};

// The elements that a thread computes at a time: a pack, or up to AHEAD that are a grid apart.
struct Handful {
    u64 first, step, end;
    bool packed;
    MEMBER u64 at(u32 n) const { return first + n * step; }
    MEMBER bool has(u32 n) const { return packed || (n < AHEAD && at(n) < end); }
};

// body(few) for every handful of this thread, with packs of N where the launcher says that all operands lie so.
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

// The elements of an operand as they lie; 0 where there are fewer.
template <typename E, u32 N>
DEVICE void load(const Job& job, int operand, const Handful& few, E (&x)[N]) {
    if (few.packed) {
        unpack<E>(job.in[operand].address, few, x);
        return;
    }
#pragma unroll
    for (u32 n = 0; n < N; ++n) x[n] = few.has(n) ? load<E>(job, operand, few.at(n)) : (E)0;
}

// The elements of an operand as they are computed with.
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

// The elements of an output that is changed in place.
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

// Writes elements as they are.
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

// Writes what was computed, rounded to what the output holds.
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

// Drops the first, and puts one behind the last: registers have no numbers that a loop could count.
template <typename X, u32 N>
DEVICE X shift(X (&x)[N], X last = X()) {
    X first = x[0];
#pragma unroll
    for (u32 n = 1; n < N; ++n) x[n - 1] = x[n];
    x[N - 1] = last;
    return first;
}

// out[i] = f(x) for each element of an operand. The function stands in the code once.
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

// out[i] = f(x) for elements of which little is computed: 16 bytes of the wider ones at a time.
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
