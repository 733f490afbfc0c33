// What every kernel is given, and how it finds its elements.
//
// A kernel takes one argument, a Job: where its operands lie, over which shape, and a few numbers. The host writes the
// same struct (src/kernels/job.rs). Every source is compiled once for each element type T, whose name ends the names of
// the kernels: KERNEL(unary) is unary_f32 where T is float. WIDE is what elements are computed with: float for the halves,
// else T. What kernels for halves compute with may also lie in memory as floats, operand by operand. A second argument of KERNEL says for how many blocks a processor must have registers: without one the compiler may aim at
// more than it can without spilling.
//
// Products and sums are not fused unless a kernel says fma, so that plain arithmetic gives what the CPU gives.

#ifndef HIGHWATER_JOB
#define HIGHWATER_JOB

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef int i32;
typedef unsigned short u16;

#define MAX_RANK 8
#define BLOCK 256

// A strided operand. Strides are in elements; the address is that of the element at the origin.
struct Operand {
    u64 address;
    u64 strides[MAX_RANK];
    u64 contiguous;
    u64 wide;             // whether its elements are of type WIDE, not T
};

// What is written: contiguous.
struct Output {
    u64 address;
    u64 wide;
};

struct Job {
    u64 count;            // elements, rows or outputs to compute
    u64 rank;             // axes of the shape
    u64 dims[MAX_RANK];
    u64 inner_rank;       // a second shape: the reduced axes
    u64 inner_dims[MAX_RANK];
    Operand in[3];
    u64 also[4];          // addresses of further inputs, contiguous unless a kernel says how
    Output out[3];
    u64 function;         // which of a family of functions
    u64 k[6];             // counts
    double c[9];          // constants
    i64 i[2];             // integer constants
};

#ifdef __CUDACC_RTC__
#define INFINITY __longlong_as_double(0x7ff0000000000000LL)
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define KERNEL(name, ...) \
    extern "C" __global__ void __launch_bounds__(BLOCK, ##__VA_ARGS__) JOIN(name, SUFFIX)(const Job job)
#define BLOCK_KERNEL(name, ...) KERNEL(name, ##__VA_ARGS__)
#define DEVICE __device__ __forceinline__
#define MEMBER __device__ __forceinline__
#define SHARED __shared__
#endif

// The bits of a float.
#ifdef __CUDACC_RTC__
DEVICE u32 bits_of(float x) { return __float_as_uint(x); }
DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }
#else
DEVICE u32 bits_of(float x) { u32 bits; __builtin_memcpy(&bits, &x, 4); return bits; }
DEVICE float float_of(u32 bits) { float x; __builtin_memcpy(&x, &bits, 4); return x; }
#endif

// A float of 16 bits as IEEE 754 has it; rounded to nearest, ties to even.
struct f16 {
    u16 bits;
    f16() = default;
#ifdef __CUDACC_RTC__
    MEMBER explicit f16(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
    MEMBER operator float() const {
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
        return x;
    }
#else
    MEMBER explicit f16(float x) {
        u32 wide = bits_of(x), sign = wide >> 16 & 0x8000, rest = wide & 0x7fffffff;
        if (rest >= 0x7f800000) {
            bits = (u16)(sign | 0x7c00 | (rest > 0x7f800000 ? 0x200 | (rest >> 13 & 0x3ff) : 0));
        } else if (rest < 0x38800000) {
            // Subnormal: adding 1/2 puts the last bit that is kept where a float ends, and rounds.
            bits = (u16)(sign | (bits_of(float_of(rest) + 0.5f) - 0x3f000000));
        } else {
            // Overflow carries into the exponent, and into infinity.
            u32 rounded = (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13;
            bits = (u16)(sign | (rounded < 0x7c00 ? rounded : 0x7c00));
        }
    }
    MEMBER operator float() const {
        u32 sign = (u32)(bits & 0x8000) << 16, rest = bits & 0x7fff;
        if (rest >= 0x7c00) return float_of(sign | 0x7f800000 | (rest & 0x3ff) << 13 | (rest > 0x7c00 ? 0x400000 : 0));
        if (rest < 0x400) {
            float x = (float)rest / 16777216.0f;
            return sign ? -x : x;
        }
        return float_of(sign | (rest << 13) + 0x38000000);
    }
#endif
};

// The upper half of a float; rounded to nearest, ties to even.
struct bf16 {
    u16 bits;
    bf16() = default;
    MEMBER explicit bf16(float x) {
        u32 wide = bits_of(x);
        bits = x != x ? (u16)(wide >> 16 | 0x40) : (u16)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
    }
    MEMBER operator float() const { return float_of((u32)bits << 16); }
};

// As a float, rounded so that rounding once more to a half gives what rounding once would have: to the neighbour whose last
// bit is 1, unless exact (Boldo and Melquiond, When double rounding is odd, 2005).
DEVICE float to_odd(double x) {
    float near = (float)x;
    u32 bits = bits_of(near);
    if ((double)near == x || x != x || (bits & 1) != 0) return near;
    double wide = (double)near;
    bool beyond = (wide < 0 ? -wide : wide) > (x < 0 ? -x : x);
    return float_of(beyond ? bits - 1 : bits + 1);
}
DEVICE float to_odd(float x) { return x; }
DEVICE float to_odd(f16 x) { return (float)x; }
DEVICE float to_odd(bf16 x) { return (float)x; }
DEVICE float to_odd(i32 x) { return to_odd((double)x); }
DEVICE float to_odd(u8 x) { return (float)x; }
DEVICE float to_odd(i64 x) {
    // So many bits as a double holds exactly, the last one set if any that are cut off is.
    u64 size = x < 0 ? 0 - (u64)x : (u64)x;
    if (size >> 53 != 0) {
        size = (size & ~0xffffULL) | ((size & 0xffffULL) != 0 ? 0x10000ULL : 0);
    }
    return to_odd(x < 0 ? -(double)size : (double)size);
}

// The last argument only says of which type.
DEVICE float nearest(double x, float) { return (float)x; }
DEVICE double nearest(double x, double) { return x; }
DEVICE f16 nearest(double x, f16) { return f16(to_odd(x)); }
DEVICE bf16 nearest(double x, bf16) { return bf16(to_odd(x)); }

// Every element that this thread is to compute.
#define EACH(i) for (u64 i = blockIdx.x * (u64)BLOCK + threadIdx.x; i < job.count; i += gridDim.x * (u64)BLOCK)

// a / b. A device divides numbers of 64 bits several times slower than those of 32: by those where they suffice.
DEVICE u64 quotient(u64 a, u64 b) { return (a | b) >> 32 == 0 ? (u32)a / (u32)b : a / b; }

// Where element i, counted in order over a shape, lies in an operand. Divisions of 32 bits where they suffice. Not unrolled: it
// stands in the code many times.
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
        // A size beyond 32 bits is larger than the rest.
        if (dims[axis] > 0xffffffffULL) return offset + rest * strides[axis];
        u32 size = (u32)dims[axis], quotient = rest / size;
        offset += (u64)(rest - quotient * size) * strides[axis];
        rest = quotient;
    }
    return rank > 0 ? offset + rest * strides[0] : offset;
}

// Where element i of the job's shape lies in an operand.
DEVICE u64 place(const Job& job, const Operand& operand, u64 i) {
    return operand.contiguous ? i : offset_in(job.rank, job.dims, operand.strides, i);
}

template <typename E>
DEVICE E load(const Job& job, int operand, u64 i) {
    const Operand& from = job.in[operand];
    return ((const E*)from.address)[place(job, from, i)];
}

template <typename E>
DEVICE E* out(const Job& job, int output) {
    return (E*)job.out[output].address;
}

// What elements are computed with.
template <typename E> struct Computed { typedef E type; };
template <> struct Computed<f16> { typedef float type; };
template <> struct Computed<bf16> { typedef float type; };

// The element at a place of an operand, as it is computed with.
template <typename E>
DEVICE typename Computed<E>::type element_at(const Operand& from, u64 at) {
    typedef typename Computed<E>::type Wide;
    if (sizeof(E) < sizeof(Wide) && from.wide) return ((const Wide*)from.address)[at];
    return (Wide)((const E*)from.address)[at];
}

// Element i of the job's shape, as it is computed with.
template <typename E>
DEVICE typename Computed<E>::type value(const Job& job, int operand, u64 i) {
    return element_at<E>(job.in[operand], place(job, job.in[operand], i));
}

// Element i of an output that is changed in place.
template <typename E>
DEVICE typename Computed<E>::type stored(const Job& job, int output, u64 i) {
    typedef typename Computed<E>::type Wide;
    if (sizeof(E) < sizeof(Wide) && job.out[output].wide) return out<Wide>(job, output)[i];
    return (Wide)out<E>(job, output)[i];
}

// Writes what was computed, rounded to what the output holds.
template <typename E>
DEVICE void store(const Job& job, int output, u64 i, typename Computed<E>::type x) {
    typedef typename Computed<E>::type Wide;
    if (sizeof(E) < sizeof(Wide) && job.out[output].wide) {
        out<Wide>(job, output)[i] = x;
    } else {
        out<E>(job, output)[i] = (E)x;
    }
}

// What a thread loads before it computes with the first of it.
#define AHEAD 4

// use(i, load(i)) for every element that this thread is to compute. A few are loaded before the first is used, so that a thread
// waits for memory once and not for each; what is done with them stands in the code once.
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

// Two elements that belong together.
template <typename E>
struct Pair {
    E a, b;
};

// out[i] = f(x) for each element of an operand.
template <typename E, typename Function>
DEVICE void map(const Job& job, Function f) {
    typedef typename Computed<E>::type Wide;
    each(job, [&](u64 i) { return value<E>(job, 0, i); }, [&](u64 i, Wide x) { store<E>(job, 0, i, f(x)); });
}

// The elements of two operands.
template <typename E>
DEVICE Pair<typename Computed<E>::type> pair(const Job& job, u64 i) {
    return Pair<typename Computed<E>::type>{value<E>(job, 0, i), value<E>(job, 1, i)};
}

template <typename E> DEVICE bool not_a_number(E x) { return x != x; }

// NaN wins.
template <typename E> DEVICE E larger(E a, E b) { return a > b || not_a_number(a) ? a : b; }
template <typename E> DEVICE E smaller(E a, E b) { return a < b || not_a_number(a) ? a : b; }

// Integer arithmetic wraps. C++ leaves that to unsigned types.
DEVICE float plus(float a, float b) { return a + b; }
DEVICE double plus(double a, double b) { return a + b; }
DEVICE i64 plus(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DEVICE i32 plus(i32 a, i32 b) { return (i32)((u32)a + (u32)b); }
DEVICE u8 plus(u8 a, u8 b) { return (u8)(a + b); }
DEVICE float minus(float a, float b) { return a - b; }
DEVICE double minus(double a, double b) { return a - b; }
DEVICE i64 minus(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
DEVICE i32 minus(i32 a, i32 b) { return (i32)((u32)a - (u32)b); }
DEVICE u8 minus(u8 a, u8 b) { return (u8)(a - b); }
DEVICE float times(float a, float b) { return a * b; }
DEVICE double times(double a, double b) { return a * b; }
DEVICE i64 times(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
DEVICE i32 times(i32 a, i32 b) { return (i32)((u32)a * (u32)b); }
DEVICE u8 times(u8 a, u8 b) { return (u8)(a * b); }

// By zero: zero, for integers.
DEVICE float over(float a, float b) { return a / b; }
DEVICE double over(double a, double b) { return a / b; }
DEVICE i64 over(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? (i64)(0 - (u64)a) : a / b; }
DEVICE i32 over(i32 a, i32 b) { return b == 0 ? 0 : b == -1 ? (i32)(0 - (u32)a) : a / b; }
DEVICE u8 over(u8 a, u8 b) { return b == 0 ? (u8)0 : (u8)(a / b); }
DEVICE float negative(float a) { return -a; }
DEVICE double negative(double a) { return -a; }
DEVICE i64 negative(i64 a) { return (i64)(0 - (u64)a); }
DEVICE i32 negative(i32 a) { return (i32)(0 - (u32)a); }
DEVICE u8 negative(u8 a) { return (u8)(0 - a); }
DEVICE bool below_zero(u8) { return false; }
template <typename E> DEVICE bool below_zero(E a) { return a < (E)0; }
DEVICE float magnitude(float a) { return fabsf(a); }
DEVICE double magnitude(double a) { return fabs(a); }
DEVICE i64 magnitude(i64 a) { return a < 0 ? (i64)(0 - (u64)a) : a; }
DEVICE i32 magnitude(i32 a) { return a < 0 ? (i32)(0 - (u32)a) : a; }
DEVICE u8 magnitude(u8 a) { return a; }

template <typename E> DEVICE E sign(E a) { return a > (E)0 ? (E)1 : below_zero(a) ? negative((E)1) : a; }

// Conversions. Floats to integers cut towards zero and saturate, NaN becomes 0.
DEVICE i64 to_i64(double x) {
    if (x != x) return 0;
    if (x >= 9223372036854775808.0) return 0x7fffffffffffffffLL;
    if (x <= -9223372036854775808.0) return -0x7fffffffffffffffLL - 1;
    return (i64)x;
}
DEVICE i64 to_i64(float x) { return to_i64((double)x); }
DEVICE i64 to_i64(i64 x) { return x; }
DEVICE i64 to_i64(i32 x) { return (i64)x; }
DEVICE i64 to_i64(u8 x) { return (i64)x; }

DEVICE i32 to_i32(double x) {
    if (x != x) return 0;
    if (x >= 2147483648.0) return 0x7fffffff;
    if (x <= -2147483648.0) return -0x7fffffff - 1;
    return (i32)x;
}
DEVICE i32 to_i32(float x) { return to_i32((double)x); }
DEVICE i32 to_i32(i64 x) { return (i32)x; }
DEVICE i32 to_i32(i32 x) { return x; }
DEVICE i32 to_i32(u8 x) { return (i32)x; }

DEVICE u8 to_u8(double x) { return x >= 255.0 ? (u8)255 : x > 0.0 ? (u8)x : (u8)0; }
DEVICE u8 to_u8(float x) { return to_u8((double)x); }
DEVICE u8 to_u8(i64 x) { return (u8)x; }
DEVICE u8 to_u8(i32 x) { return (u8)x; }
DEVICE u8 to_u8(u8 x) { return x; }

// From the constants of a job: floats from c, integers from i.
// The last argument only says of which type.
DEVICE float constant(const Job& job, int n, float) { return (float)job.c[n]; }
DEVICE double constant(const Job& job, int n, double) { return job.c[n]; }
DEVICE i64 constant(const Job& job, int n, i64) { return job.i[n]; }
DEVICE i32 constant(const Job& job, int n, i32) { return (i32)job.i[n]; }
DEVICE f16 constant(const Job& job, int n, f16) { return f16(to_odd(job.c[n])); }
DEVICE bf16 constant(const Job& job, int n, bf16) { return bf16(to_odd(job.c[n])); }
DEVICE u8 constant(const Job& job, int n, u8) { return (u8)job.i[n]; }

// The functions of one float, by type.
DEVICE float exponential(float x) { return expf(x); }
DEVICE double exponential(double x) { return exp(x); }
DEVICE float logarithm(float x) { return logf(x); }
DEVICE double logarithm(double x) { return log(x); }
DEVICE float root(float x) { return sqrtf(x); }
DEVICE double root(double x) { return sqrt(x); }
DEVICE float hyperbolic(float x) { return tanhf(x); }
DEVICE double hyperbolic(double x) { return tanh(x); }
DEVICE float error_function(float x) { return erff(x); }
DEVICE double error_function(double x) { return erf(x); }
DEVICE float rounded_down(float x) { return floorf(x); }
DEVICE double rounded_down(double x) { return floor(x); }
DEVICE float rounded_up(float x) { return ceilf(x); }
DEVICE double rounded_up(double x) { return ceil(x); }
// To the even one of two that are as near.
DEVICE float rounded(float x) { return rintf(x); }
DEVICE double rounded(double x) { return rint(x); }
DEVICE float sine(float x) { return sinf(x); }
DEVICE double sine(double x) { return sin(x); }
DEVICE float cosine(float x) { return cosf(x); }
DEVICE double cosine(double x) { return cos(x); }
DEVICE float logarithm_1p(float x) { return log1pf(x); }
DEVICE double logarithm_1p(double x) { return log1p(x); }
DEVICE float power(float x, float y) { return powf(x, y); }
DEVICE double power(double x, double y) { return pow(x, y); }
// By the same exponent everywhere: powers of a half are roots, also at -0 and the infinities, as on the CPU.
template <typename E>
DEVICE E power_of(E x, E y) {
    if (y == (E)0.5) return root(x);
    if (y == (E)-0.5) return (E)1 / root(x);
    return power(x, y);
}
DEVICE float fused(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE double fused(double a, double b, double c) { return fma(a, b, c); }

// What another thread of the same 32 has: all threads of a block ask at once.
template <typename E>
DEVICE E across(E own, u32 mask) {
#ifdef __CUDACC_RTC__
    return __shfl_xor_sync(0xffffffffu, own, mask);
#else
    SHARED E all[BLOCK];
    all[threadIdx.x] = own;
    __syncthreads();
    E other = all[threadIdx.x ^ mask];
    __syncthreads();
    return other;
#endif
}

template <typename E>
DEVICE E joined(E a, E b, bool sum) { return sum ? a + b : larger(a, b); }

// Joins what every thread of a team has folded: 32, or the whole block. All get the whole, and all teams ask at once.
template <typename E>
DEVICE E join(E* shared, E own, bool sum, u32 team = BLOCK) {
    for (u32 mask = 16; mask > 0; mask /= 2) {
        own = joined(own, across(own, mask), sum);
    }
    if (team == 32) return own;
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = own;
    __syncthreads();
    own = shared[0];
    for (u32 other = 1; other < BLOCK / 32; ++other) {
        own = joined(own, shared[other], sum);
    }
    __syncthreads();
    return own;
}

#endif
