// 16-bit floats: conversions only, no arithmetic.

// The bits of a float.
#ifdef __CUDACC_RTC__
DEVICE u32 bits_of(float x) { return __float_as_uint(x); }
DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }
#else
DEVICE u32 bits_of(float x) { u32 bits; __builtin_memcpy(&bits, &x, 4); return bits; }
DEVICE float float_of(u32 bits) { float x; __builtin_memcpy(&x, &bits, 4); return x; }
#endif

// IEEE 754 half precision; rounds to nearest, ties to even.
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
            // Subnormal: adding 1/2 moves the last kept bit to the end of the float's significand, which rounds.
            bits = (u16)(sign | (bits_of(float_of(rest) + 0.5f) - 0x3f000000));
        } else {
            // An overflow carries into the exponent, up to infinity.
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

// bfloat16: the upper half of a float; rounds to nearest, ties to even.
struct bf16 {
    u16 bits;
    bf16() = default;
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 800
    MEMBER explicit bf16(float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
#else
    MEMBER explicit bf16(float x) {
        u32 wide = bits_of(x);
        bits = x != x ? (u16)(wide >> 16 | 0x40) : (u16)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
    }
#endif
    MEMBER operator float() const { return float_of((u32)bits << 16); }
};

// Converts to float so that a second rounding to 16 bits equals a single one: inexact values round to the neighbor
// whose last bit is 1 (Boldo and Melquiond, When double rounding is odd, 2005).
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
DEVICE float to_odd(u32 x) { return to_odd((double)x); }
DEVICE float to_odd(u8 x) { return (float)x; }
DEVICE float to_odd(i64 x) {
    // As many bits as a double holds exactly; the last is set if any bit was cut off.
    u64 size = x < 0 ? 0 - (u64)x : (u64)x;
    if (size >> 53 != 0) {
        size = (size & ~0xffffULL) | ((size & 0xffffULL) != 0 ? 0x10000ULL : 0);
    }
    return to_odd(x < 0 ? -(double)size : (double)size);
}

// The last argument only selects the type.
DEVICE float nearest(double x, float) { return (float)x; }
DEVICE double nearest(double x, double) { return x; }
DEVICE f16 nearest(double x, f16) { return f16(to_odd(x)); }
DEVICE bf16 nearest(double x, bf16) { return bf16(to_odd(x)); }
