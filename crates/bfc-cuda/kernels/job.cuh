// What every kernel is given. All sources stand on this file and on half.cuh, element.cuh, pack.cuh, number.cuh and
// team.cuh.
//
// A kernel takes one argument, a Job: where its operands lie, over which shape, and a few numbers. The host writes the
// same struct (src/kernels/job.rs). Every source is compiled once for each element type T, whose name ends the names of
// the kernels: KERNEL(unary) is unary_f32 where T is float. WIDE is what elements are computed with: float for the halves,
// else T. What kernels for halves compute with may also lie in memory as floats, operand by operand. A second argument of
// KERNEL says for how many blocks a processor must have registers: without one the compiler may aim at more than it can
// without spilling.
//
// Products and sums are not fused unless a kernel says fma, so that plain arithmetic gives what the CPU gives.

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
    u64 packed;           // whether all operands lie in order, from a multiple of 16 bytes on
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
