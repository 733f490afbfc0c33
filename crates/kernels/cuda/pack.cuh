// How a kernel iterates over elements in packs: a thread reads and writes neighbors at once. In a packed job each operand
// is contiguous, or strided with whole packs in its rows: its last axis has stride 1, or 0 for one element in all places.
// Other jobs and the last incomplete pack use single elements.

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

// body(few) for every handful of one of several threads in a range of elements, as packs of N if it is packed.
template <u32 N, typename Body>
DEVICE void handfuls(u64 first, u64 end, bool is_packed, u64 thread, u64 threads, Body body) {
    static_assert(N >= AHEAD, "elements that are no pack would be left out");
    u64 in_packs = is_packed ? first + (end - first) / N * N : first;
    u64 i = first + thread * N < in_packs ? first + thread * N : in_packs + thread;
    while (i < end) {
        bool packed = i < in_packs;
        body(Handful{i, packed ? 1 : threads, end, packed});
        i += threads * (packed ? N : AHEAD);
        if (packed && i >= in_packs) i = in_packs + thread;
    }
}

// body(few) for every handful of this thread, as packs of N if the job is packed.
template <u32 N, typename Body>
DEVICE void handfuls(const Job& job, Body body) {
    u64 threads = gridDim.x * (u64)BLOCK, thread = blockIdx.x * (u64)BLOCK + threadIdx.x;
    handfuls<N>(0, job.count, job.packed, thread, threads, body);
}

// body(row, few) for every handful of this thread in the chunks of a table: k = [rows, chunks]. Packs of N if all tensors
// of a row are aligned, or if the job is packed.
template <u32 N, typename Body>
DEVICE void row_handfuls(const Job& job, const JobTable& table, Body body) {
    static_assert(TABLE_CHUNK % N == 0, "packs would cross chunks");
    for (u64 chunk = blockIdx.x; chunk < (u64)job.k[1]; chunk += gridDim.x) {
        // The last row that does not start behind the chunk.
        u32 at = 0;
        for (u32 behind = (u32)job.k[0]; behind - at > 1;) {
            u32 middle = (at + behind) / 2;
            if (table.rows[middle].chunk <= chunk) {
                at = middle;
            } else {
                behind = middle;
            }
        }
        const JobRow& row = table.rows[at];
        u64 first = (chunk - row.chunk) * TABLE_CHUNK, end = row.count - first < TABLE_CHUNK ? row.count : first + TABLE_CHUNK;
        u64 addresses = row.in | row.out[0] | row.out[1] | row.out[2] | row.out[3];
        bool packed = job.in[0].contiguous ? addresses % 16 == 0 : job.packed;
        handfuls<N>(first, end, packed, threadIdx.x, BLOCK, [&](const Handful& few) { body(row, few); });
    }
}

template <typename E, typename X, u32 N>
DEVICE void unpack(u64 address, u64 first, X (&x)[N]) {
    Pack<E, N> pack = *(const Pack<E, N>*)((const E*)address + first);
#pragma unroll
    for (u32 n = 0; n < N; ++n) x[n] = (X)pack.of[n];
}

// A pack of an operand.
template <typename E, typename X, u32 N>
DEVICE void unpack(const Job& job, const JobInput& from, const Handful& few, X (&x)[N]) {
    u64 first = place(job, from, few.first);
    if (!from.contiguous && from.strides[job.rank - 1] == 0) {
        X same = (X)((const E*)from.address)[first];
#pragma unroll
        for (u32 n = 0; n < N; ++n) x[n] = same;
    } else {
        unpack<E>(from.address, first, x);
    }
}

template <typename E, typename X, u32 N>
DEVICE void pack(u64 address, u64 first, const X (&x)[N]) {
    Pack<E, N> pack;
#pragma unroll
    for (u32 n = 0; n < N; ++n) pack.of[n] = (E)x[n];
    *(Pack<E, N>*)((E*)address + first) = pack;
}

// The stored elements of an operand; missing ones are 0.
template <typename E, u32 N>
DEVICE void load(const Job& job, int operand, const Handful& few, E (&x)[N]) {
    if (few.packed) {
        unpack<E>(job, job.in[operand], few, x);
        return;
    }
#pragma unroll
    for (u32 n = 0; n < N; ++n) x[n] = few.has(n) ? load<E>(job, operand, few.at(n)) : (E)0;
}

// The elements of an operand, converted for computing.
template <typename E, u32 N>
DEVICE void value(const Job& job, int operand, const Handful& few, typename Computed<E>::type (&x)[N]) {
    typedef typename Computed<E>::type Wide;
    const JobInput& from = job.in[operand];
    if (!few.packed) {
#pragma unroll
        for (u32 n = 0; n < N; ++n) x[n] = few.has(n) ? value<E>(job, operand, few.at(n)) : (Wide)0;
    } else if (sizeof(E) < sizeof(Wide) && from.wide) {
        unpack<Wide>(job, from, few, x);
    } else {
        unpack<E>(job, from, few, x);
    }
}

// The elements of an output that is updated in place.
template <typename E, u32 N>
DEVICE void stored(const JobOutput& from, const Handful& few, typename Computed<E>::type (&x)[N]) {
    typedef typename Computed<E>::type Wide;
    if (!few.packed) {
#pragma unroll
        for (u32 n = 0; n < N; ++n) x[n] = few.has(n) ? stored<E>(from, few.at(n)) : (Wide)0;
    } else if (sizeof(E) < sizeof(Wide) && from.wide) {
        unpack<Wide>(from.address, few.first, x);
    } else {
        unpack<E>(from.address, few.first, x);
    }
}
template <typename E, u32 N>
DEVICE void stored(const Job& job, int output, const Handful& few, typename Computed<E>::type (&x)[N]) {
    stored<E>(job.out[output], few, x);
}

// Writes elements unchanged.
template <typename E, u32 N>
DEVICE void put(const Job& job, int output, const Handful& few, const E (&x)[N]) {
    if (few.packed) {
        pack<E>(job.out[output].address, few.first, x);
        return;
    }
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
        if (few.has(n)) out<E>(job, output)[few.at(n)] = x[n];
    }
}

// Writes results, rounded to the output's type.
template <typename E, u32 N>
DEVICE void store(const JobOutput& to, const Handful& few, const typename Computed<E>::type (&x)[N]) {
    typedef typename Computed<E>::type Wide;
    if (!few.packed) {
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
            if (few.has(n)) store<E>(to, few.at(n), x[n]);
        }
    } else if (sizeof(E) < sizeof(Wide) && to.wide) {
        pack<Wide>(to.address, few.first, x);
    } else {
        pack<E>(to.address, few.first, x);
    }
}
template <typename E, u32 N>
DEVICE void store(const Job& job, int output, const Handful& few, const typename Computed<E>::type (&x)[N]) {
    store<E>(job.out[output], few, x);
}

// Moves the first AHEAD elements out and new ones in at the end: registers cannot be indexed by a loop counter.
template <typename X, u32 N>
DEVICE void rotate(X (&x)[N], const X (&last)[AHEAD]) {
#pragma unroll
    for (u32 n = AHEAD; n < N; ++n) x[n - AHEAD] = x[n];
#pragma unroll
    for (u32 n = 0; n < AHEAD; ++n) x[N - AHEAD + n] = last[n];
}

// compute(group) for AHEAD results at a time, which it computes from the front of its operands. The results replace those
// at the front, or `results` is another array and `compute` rotates the operands. A function is thus compiled AHEAD times,
// not N times, which keeps the code small. Elements that are no pack are the first AHEAD.
template <typename X, u32 N, typename Compute>
DEVICE void in_groups(const Handful& few, X (&results)[N], Compute compute) {
#pragma unroll 1
    for (u32 n = 0; n < N; n += AHEAD) {
        X group[AHEAD] = {};
        if (few.packed || n == 0) compute(group);
        rotate(results, group);
    }
}

// out[i] = f(x) for each element of an operand.
template <typename E, typename Function>
DEVICE void map(const Job& job, Function f) {
    typedef typename Computed<E>::type Wide;
    const u32 N = Packed<E>::count;
    handfuls<N>(job, [&](const Handful& few) {
        Wide x[N];
        value<E>(job, 0, few, x);
        in_groups(few, x, [&](Wide (&group)[AHEAD]) {
#pragma unroll
            for (u32 n = 0; n < AHEAD; ++n) group[n] = f(x[n]);
        });
        store<E>(job, 0, few, x);
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
        in_groups(few, y, [&](Result (&group)[AHEAD]) {
            const Wide used[AHEAD] = {};
#pragma unroll
            for (u32 n = 0; n < AHEAD; ++n) group[n] = f(a[n], b[n]);
            rotate(a, used);
            rotate(b, used);
        });
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
