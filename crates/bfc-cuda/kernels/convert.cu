// From T to every other type; to bool: whether it is not zero.

KERNEL(to_f32) {
    EACH(i) { out<float>(job, 0)[i] = (float)(WIDE)load<T>(job, 0, i); }
}

KERNEL(to_f64) {
    EACH(i) { out<double>(job, 0)[i] = (double)(WIDE)load<T>(job, 0, i); }
}

KERNEL(to_f16) {
    EACH(i) { out<f16>(job, 0)[i] = f16(to_odd(load<T>(job, 0, i))); }
}

KERNEL(to_bf16) {
    EACH(i) { out<bf16>(job, 0)[i] = bf16(to_odd(load<T>(job, 0, i))); }
}

KERNEL(to_i32) {
    EACH(i) { out<i32>(job, 0)[i] = to_i32((WIDE)load<T>(job, 0, i)); }
}

KERNEL(to_i64) {
    EACH(i) { out<i64>(job, 0)[i] = to_i64((WIDE)load<T>(job, 0, i)); }
}

KERNEL(to_u8) {
    EACH(i) { out<u8>(job, 0)[i] = to_u8((WIDE)load<T>(job, 0, i)); }
}

KERNEL(to_bool) {
    EACH(i) { out<u8>(job, 0)[i] = (WIDE)load<T>(job, 0, i) != (WIDE)0 ? 1 : 0; }
}
