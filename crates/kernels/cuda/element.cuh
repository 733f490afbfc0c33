// How a kernel iterates over its elements, finds their offsets, and loads them.

// Loops over the elements of this thread.
#define EACH(i) for (u64 i = blockIdx.x * (u64)BLOCK + threadIdx.x; i < job.count; i += gridDim.x * (u64)BLOCK)

// a / b. A device divides 64-bit integers several times slower than 32-bit ones.
DEVICE u64 quotient(u64 a, u64 b) { return (a | b) >> 32 == 0 ? (u32)a / (u32)b : a / b; }

// The offset of element i of a shape in an operand. Uses 32-bit divisions where possible. Not unrolled, to keep the
// code small.
DEVICE u64 offset_in(u64 rank, const u64* dims, const u64* strides, u64 i) {
    u64 offset = 0;
    int axis = (int)rank - 1;
#pragma unroll 1
    for (; i > 0xffffffffULL && axis > 0; --axis) {
        u64 quotient = i / dims[axis];
        offset += (i - quotient * dims[axis]) * strides[axis];
        i = quotient;
    }
    if (axis == 0) return offset + i * strides[0];
    u32 rest = (u32)i;
#pragma unroll 1
    for (; axis > 0; --axis) {
        // A size beyond 32 bits exceeds the remainder.
        if (dims[axis] > 0xffffffffULL) return offset + rest * strides[axis];
        u32 size = (u32)dims[axis], quotient = rest / size;
        offset += (u64)(rest - quotient * size) * strides[axis];
        rest = quotient;
    }
    return rank > 0 ? offset + rest * strides[0] : offset;
}

// The offset of element i of the job's shape in an operand.
DEVICE u64 place(const Job& job, const JobInput& operand, u64 i) {
    return operand.contiguous ? i : offset_in(job.rank, job.dims, operand.strides, i);
}

template <typename E>
DEVICE E load(const Job& job, int operand, u64 i) {
    const JobInput& from = job.in[operand];
    return ((const E*)from.address)[place(job, from, i)];
}

template <typename E>
DEVICE E* out(const Job& job, int output) {
    return (E*)job.out[output].address;
}

// The type of computations.
template <typename E> struct Computed { typedef E type; };
template <> struct Computed<f16> { typedef float type; };
template <> struct Computed<bf16> { typedef float type; };

// The type of running sums.
template <typename E> struct Summed { typedef E type; };
template <> struct Summed<float> { typedef double type; };

// The element at an offset of an operand, converted for computing.
template <typename E>
DEVICE typename Computed<E>::type element_at(const JobInput& from, u64 at) {
    typedef typename Computed<E>::type Wide;
    if (sizeof(E) < sizeof(Wide) && from.wide) return ((const Wide*)from.address)[at];
    return (Wide)((const E*)from.address)[at];
}

// Element i of the job's shape, converted for computing.
template <typename E>
DEVICE typename Computed<E>::type value(const Job& job, int operand, u64 i) {
    return element_at<E>(job.in[operand], place(job, job.in[operand], i));
}

// Element i of an output that is updated in place.
template <typename E>
DEVICE typename Computed<E>::type stored(const JobOutput& from, u64 i) {
    typedef typename Computed<E>::type Wide;
    if (sizeof(E) < sizeof(Wide) && from.wide) return ((const Wide*)from.address)[i];
    return (Wide)((const E*)from.address)[i];
}
template <typename E>
DEVICE typename Computed<E>::type stored(const Job& job, int output, u64 i) {
    return stored<E>(job.out[output], i);
}

// Writes a result, rounded to the output's type.
template <typename E>
DEVICE void store(const JobOutput& to, u64 i, typename Computed<E>::type x) {
    typedef typename Computed<E>::type Wide;
    if (sizeof(E) < sizeof(Wide) && to.wide) {
        ((Wide*)to.address)[i] = x;
    } else {
        ((E*)to.address)[i] = (E)x;
    }
}
template <typename E>
DEVICE void store(const Job& job, int output, u64 i, typename Computed<E>::type x) {
    store<E>(job.out[output], i, x);
}

// How many elements a thread loads before it computes with the first.
#define AHEAD 4

// use(i, load(i)) for every element of this thread. Several elements are loaded before the first is used, so that the
// thread waits for memory once; `use` is compiled once.
template <typename Load, typename Use>
DEVICE void each(const Job& job, Load load, Use use) {
    u64 step = gridDim.x * (u64)BLOCK;
    for (u64 i = blockIdx.x * (u64)BLOCK + threadIdx.x; i < job.count;) {
        decltype(load(i)) loaded[AHEAD];
#pragma unroll
        for (u32 n = 0; n < AHEAD; ++n) {
            if (i + n * step < job.count) loaded[n] = load(i + n * step);
        }
#pragma unroll 1
        for (u32 n = 0; n < AHEAD && i < job.count; ++n, i += step) {
            use(i, loaded[0]);
#pragma unroll
            for (u32 later = 1; later < AHEAD; ++later) loaded[later - 1] = loaded[later];
        }
    }
}
