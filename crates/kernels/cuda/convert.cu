// Converts T to every other type; to bool: nonzero.

KERNEL(to_f32) {
    convert<T, float>(job, [](T x) { return (float)(WIDE)x; });
}

KERNEL(to_f64) {
    convert<T, double>(job, [](T x) { return (double)(WIDE)x; });
}

KERNEL(to_f16) {
    convert<T, f16>(job, [](T x) { return f16(to_odd(x)); });
}

KERNEL(to_bf16) {
    convert<T, bf16>(job, [](T x) { return bf16(to_odd(x)); });
}

KERNEL(to_i32) {
    convert<T, i32>(job, [](T x) { return to_i32((WIDE)x); });
}

KERNEL(to_i64) {
    convert<T, i64>(job, [](T x) { return to_i64((WIDE)x); });
}

KERNEL(to_u32) {
    convert<T, u32>(job, [](T x) { return to_u32((WIDE)x); });
}

KERNEL(to_u8) {
    convert<T, u8>(job, [](T x) { return to_u8((WIDE)x); });
}

KERNEL(to_bool) {
    convert<T, u8>(job, [](T x) { return (u8)((WIDE)x != (WIDE)0 ? 1 : 0); });
}
