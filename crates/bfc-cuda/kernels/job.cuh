// The argument of every kernel. All sources include this file and half.cuh.
//
// A kernel takes one Job: the locations of its operands, the shape, and parameters. The host writes the same struct
// (src/kernels/job.rs). Each source is compiled once per element type T: KERNEL(unary) is unary_f32 if T is float. WIDE
// is the type of computations: float for 16-bit types, else T. Operands of half-precision kernels may also be 32-bit
// floats. The second argument of KERNEL is the number of blocks per multiprocessor that must fit in its registers;
// without it the compiler chooses.
//
// TABLE_KERNEL(name) takes a JobTable as well, whose rows are tensors that one launch processes together.
//
// Products and sums are not fused unless a kernel calls fma, so that results equal the CPU's.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef int i32;
typedef unsigned short u16;

#define MAX_RANK 8
#define BLOCK 256

// An input. Strides are in elements; the address is that of the element at the origin.
struct JobInput {
    u64 address;
    u64 strides[MAX_RANK];
    u64 contiguous;
    u64 wide;             // whether its elements are of type WIDE, not T
};

// An output, contiguous.
struct JobOutput {
    u64 address;
    u64 wide;
};

struct Job {
    u64 count;            // elements, rows or outputs to compute
    u64 rank;             // axes of the shape
    u64 dims[MAX_RANK];
    u64 inner_rank;       // a second shape: the reduced axes
    u64 inner_dims[MAX_RANK];
    JobInput in[3];
    u64 also[4];          // addresses of further inputs, contiguous unless a kernel says how
    JobOutput out[4];
    u64 function;         // which of a family of functions: NAMED("exp"), or flags
    u64 k[6];             // counts
    double c[9];          // constants
    i64 i[2];             // integer constants
    u64 packed;           // whether all operands consist of aligned packs (pack.cuh)
};

// The elements of one chunk of a row, and the most rows of a table.
#define TABLE_CHUNK 4096
#define TABLE_ROWS 60

// Tensors of one length, contiguous. The job says what kernels do with them.
struct JobRow {
    u64 count;            // elements of each tensor
    u64 chunk;            // the number of the row's first chunk: those of all rows are numbered through
    u64 in;               // the address of an input
    u64 out[4];           // addresses of outputs
};

struct JobTable {
    JobRow rows[TABLE_ROWS];
};

#ifdef __CUDACC_RTC__
#define INFINITY __longlong_as_double(0x7ff0000000000000LL)
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define KERNEL(name, ...) \
    extern "C" __global__ void __launch_bounds__(BLOCK, ##__VA_ARGS__) JOIN(name, SUFFIX)(const Job job)
#define BLOCK_KERNEL(name, ...) KERNEL(name, ##__VA_ARGS__)
#define TABLE_KERNEL(name) \
    extern "C" __global__ void __launch_bounds__(BLOCK) JOIN(name, SUFFIX)(const Job job, const JobTable table)
#define DEVICE __device__ __forceinline__
#define MEMBER __device__ __forceinline__
#define SHARED __shared__
#endif

// A function by its name: case NAMED("exp"). src/kernels/job.rs computes the same number, the FNV-1a hash. Two equal
// names in one switch do not compile. An unknown function has the result undefined (number.cuh).
DEVICE constexpr u32 named(const char* name) {
    u32 hash = 2166136261u;
    for (; *name; ++name) hash = (hash ^ (u8)*name) * 16777619u;
    return hash;
}
template <u32 N> struct Constant { static const u32 value = N; };
#define NAMED(name) Constant<named(name)>::value
// As in src/kernels/job.rs.
static_assert(named("softsign") == 0x0d0a7674u, "names have the numbers of the host");
