// From T to every other type; to bool: whether it is not zero.

KERNEL(to_f32) {
    EACH(i) { out<float>(job, 0)[i] = (float)load<T>(job, 0, i); }
}

KERNEL(to_f64) {
    EACH(i) { out<double>(job, 0)[i] = (double)load<T>(job, 0, i); }
}

KERNEL(to_i64) {
    EACH(i) { out<i64>(job, 0)[i] = to_i64(load<T>(job, 0, i)); }
}

KERNEL(to_u8) {
    EACH(i) { out<u8>(job, 0)[i] = to_u8(load<T>(job, 0, i)); }
}

KERNEL(to_bool) {
    EACH(i) { out<u8>(job, 0)[i] = load<T>(job, 0, i) != (T)0 ? 1 : 0; }
}
