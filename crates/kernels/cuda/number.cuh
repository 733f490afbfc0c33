// Arithmetic, conversions and functions under the same names for all element types.

template <typename E> DEVICE bool not_a_number(E x) { return x != x; }

// The result of an unknown function: NaN, or 0 for integers.
template <typename E> DEVICE E undefined(E) { return (E)0; }
DEVICE float undefined(float) { return (float)(INFINITY - INFINITY); }
DEVICE double undefined(double) { return INFINITY - INFINITY; }

// NaN wins.
template <typename E> DEVICE E larger(E a, E b) { return a > b || not_a_number(a) ? a : b; }
template <typename E> DEVICE E smaller(E a, E b) { return a < b || not_a_number(a) ? a : b; }

// Integer arithmetic wraps; in C++ only unsigned types do.
DEVICE float plus(float a, float b) { return a + b; }
DEVICE double plus(double a, double b) { return a + b; }
DEVICE i64 plus(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DEVICE i32 plus(i32 a, i32 b) { return (i32)((u32)a + (u32)b); }
DEVICE u32 plus(u32 a, u32 b) { return a + b; }
DEVICE u8 plus(u8 a, u8 b) { return (u8)(a + b); }
DEVICE float minus(float a, float b) { return a - b; }
DEVICE double minus(double a, double b) { return a - b; }
DEVICE i64 minus(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
DEVICE i32 minus(i32 a, i32 b) { return (i32)((u32)a - (u32)b); }
DEVICE u32 minus(u32 a, u32 b) { return a - b; }
DEVICE u8 minus(u8 a, u8 b) { return (u8)(a - b); }
DEVICE float times(float a, float b) { return a * b; }
DEVICE double times(double a, double b) { return a * b; }
DEVICE i64 times(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
DEVICE i32 times(i32 a, i32 b) { return (i32)((u32)a * (u32)b); }
DEVICE u32 times(u32 a, u32 b) { return a * b; }
DEVICE u8 times(u8 a, u8 b) { return (u8)(a * b); }

// An integer division by zero returns zero.
DEVICE float over(float a, float b) { return a / b; }
DEVICE double over(double a, double b) { return a / b; }
DEVICE i64 over(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? (i64)(0 - (u64)a) : a / b; }
DEVICE i32 over(i32 a, i32 b) { return b == 0 ? 0 : b == -1 ? (i32)(0 - (u32)a) : a / b; }
DEVICE u32 over(u32 a, u32 b) { return b == 0 ? 0 : a / b; }
DEVICE u8 over(u8 a, u8 b) { return b == 0 ? (u8)0 : (u8)(a / b); }
DEVICE float negative(float a) { return -a; }
DEVICE double negative(double a) { return -a; }
DEVICE i64 negative(i64 a) { return (i64)(0 - (u64)a); }
DEVICE i32 negative(i32 a) { return (i32)(0 - (u32)a); }
DEVICE u32 negative(u32 a) { return 0 - a; }
DEVICE u8 negative(u8 a) { return (u8)(0 - a); }
DEVICE bool below_zero(u32) { return false; }
DEVICE bool below_zero(u8) { return false; }
template <typename E> DEVICE bool below_zero(E a) { return a < (E)0; }
DEVICE float magnitude(float a) { return fabsf(a); }
DEVICE double magnitude(double a) { return fabs(a); }
DEVICE i64 magnitude(i64 a) { return a < 0 ? (i64)(0 - (u64)a) : a; }
DEVICE i32 magnitude(i32 a) { return a < 0 ? (i32)(0 - (u32)a) : a; }
DEVICE u32 magnitude(u32 a) { return a; }
DEVICE u8 magnitude(u8 a) { return a; }

template <typename E> DEVICE E sign(E a) { return a > (E)0 ? (E)1 : below_zero(a) ? negative((E)1) : a; }

// Conversions. Floats to integers truncate and saturate; NaN becomes 0.
DEVICE i64 to_i64(double x) {
    if (x != x) return 0;
    if (x >= 9223372036854775808.0) return 0x7fffffffffffffffLL;
    if (x <= -9223372036854775808.0) return -0x7fffffffffffffffLL - 1;
    return (i64)x;
}
DEVICE i64 to_i64(float x) { return to_i64((double)x); }
DEVICE i64 to_i64(i64 x) { return x; }
DEVICE i64 to_i64(i32 x) { return (i64)x; }
DEVICE i64 to_i64(u32 x) { return (i64)x; }
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
DEVICE i32 to_i32(u32 x) { return (i32)x; }
DEVICE i32 to_i32(u8 x) { return (i32)x; }

DEVICE u32 to_u32(double x) { return x >= 4294967295.0 ? 0xffffffffu : x > 0.0 ? (u32)x : 0; }
DEVICE u32 to_u32(float x) { return to_u32((double)x); }
DEVICE u32 to_u32(i64 x) { return (u32)x; }
DEVICE u32 to_u32(i32 x) { return (u32)x; }
DEVICE u32 to_u32(u32 x) { return x; }
DEVICE u32 to_u32(u8 x) { return x; }

DEVICE u8 to_u8(double x) { return x >= 255.0 ? (u8)255 : x > 0.0 ? (u8)x : (u8)0; }
DEVICE u8 to_u8(float x) { return to_u8((double)x); }
DEVICE u8 to_u8(i64 x) { return (u8)x; }
DEVICE u8 to_u8(i32 x) { return (u8)x; }
DEVICE u8 to_u8(u32 x) { return (u8)x; }
DEVICE u8 to_u8(u8 x) { return x; }

// Reads a constant of the job: floats from c, integers from i.
DEVICE float constant(const Job& job, int n, float) { return (float)job.c[n]; }
DEVICE double constant(const Job& job, int n, double) { return job.c[n]; }
DEVICE i64 constant(const Job& job, int n, i64) { return job.i[n]; }
DEVICE i32 constant(const Job& job, int n, i32) { return (i32)job.i[n]; }
DEVICE f16 constant(const Job& job, int n, f16) { return f16(to_odd(job.c[n])); }
DEVICE bf16 constant(const Job& job, int n, bf16) { return bf16(to_odd(job.c[n])); }
DEVICE u32 constant(const Job& job, int n, u32) { return (u32)job.i[n]; }
DEVICE u8 constant(const Job& job, int n, u8) { return (u8)job.i[n]; }

// Unary float functions, by type.
DEVICE float exponential(float x) { return expf(x); }
DEVICE double exponential(double x) { return exp(x); }
DEVICE float logarithm(float x) { return logf(x); }
DEVICE double logarithm(double x) { return log(x); }
DEVICE float root(float x) { return sqrtf(x); }
DEVICE double root(double x) { return sqrt(x); }
DEVICE float hyperbolic(float x) { return tanhf(x); }
DEVICE double hyperbolic(double x) { return tanh(x); }
DEVICE float exponential_m1(float x) { return expm1f(x); }
DEVICE double exponential_m1(double x) { return expm1(x); }
DEVICE float error_function(float x) { return erff(x); }
DEVICE double error_function(double x) { return erf(x); }
DEVICE float rounded_down(float x) { return floorf(x); }
DEVICE double rounded_down(double x) { return floor(x); }
DEVICE float rounded_up(float x) { return ceilf(x); }
DEVICE double rounded_up(double x) { return ceil(x); }
// Rounds ties to even.
DEVICE float rounded(float x) { return rintf(x); }
DEVICE double rounded(double x) { return rint(x); }
DEVICE float sine(float x) { return sinf(x); }
DEVICE double sine(double x) { return sin(x); }
DEVICE float cosine(float x) { return cosf(x); }
DEVICE double cosine(double x) { return cos(x); }
DEVICE float angle(float y, float x) { return atan2f(y, x); }
DEVICE double angle(double y, double x) { return atan2(y, x); }
DEVICE float logarithm_1p(float x) { return log1pf(x); }
DEVICE double logarithm_1p(double x) { return log1p(x); }
DEVICE float power(float x, float y) { return powf(x, y); }
DEVICE double power(double x, double y) { return pow(x, y); }
// Power with one exponent for all elements: 0.5 is a square root, also at -0 and infinity, as on the CPU.
template <typename E>
DEVICE E power_of(E x, E y) {
    if (y == (E)0.5) return root(x);
    if (y == (E)-0.5) return (E)1 / root(x);
    return power(x, y);
}
// Integer powers wrap.
template <typename E>
DEVICE E raised(E x, u64 exponent) {
    E power = (E)1;
    for (; exponent > 0; exponent /= 2) {
        if (exponent % 2 == 1) power = times(power, x);
        x = times(x, x);
    }
    return power;
}
// A negative exponent: the truncated reciprocal of a power.
template <typename E>
DEVICE E whole_power(E x, E exponent) {
    if (!below_zero(exponent)) return raised(x, (u64)exponent);
    return magnitude(x) == (E)1 ? raised(x, (u64)exponent % 2) : (E)0;
}
DEVICE i64 power(i64 x, i64 y) { return whole_power(x, y); }
DEVICE i32 power(i32 x, i32 y) { return whole_power(x, y); }
DEVICE u32 power(u32 x, u32 y) { return whole_power(x, y); }
DEVICE u8 power(u8 x, u8 y) { return whole_power(x, y); }
DEVICE float fused(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE double fused(double a, double b, double c) { return fma(a, b, c); }
DEVICE i64 fused(i64 a, i64 b, i64 c) { return plus(times(a, b), c); }
DEVICE i32 fused(i32 a, i32 b, i32 c) { return plus(times(a, b), c); }
DEVICE u32 fused(u32 a, u32 b, u32 c) { return a * b + c; }
DEVICE u8 fused(u8 a, u8 b, u8 c) { return plus(times(a, b), c); }
