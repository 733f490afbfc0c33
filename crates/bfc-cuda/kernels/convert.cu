// From T to every other type; to bool: whether it is not zero.

KERNEL(to_f32) {
    each(job, [&](u64 i) { return load<T>(job, 0, i); }, [&](u64 i, T x) { out<float>(job, 0)[i] = (float)(WIDE)x; });
}

KERNEL(to_f64) {
    each(job, [&](u64 i) { return load<T>(job, 0, i); }, [&](u64 i, T x) { out<double>(job, 0)[i] = (double)(WIDE)x; });
}

KERNEL(to_f16) {
    each(job, [&](u64 i) { return load<T>(job, 0, i); }, [&](u64 i, T x) { out<f16>(job, 0)[i] = f16(to_odd(x)); });
}

KERNEL(to_bf16) {
    each(job, [&](u64 i) { return load<T>(job, 0, i); }, [&](u64 i, T x) { out<bf16>(job, 0)[i] = bf16(to_odd(x)); });
}

KERNEL(to_i32) {
    each(job, [&](u64 i) { return load<T>(job, 0, i); }, [&](u64 i, T x) { out<i32>(job, 0)[i] = to_i32((WIDE)x); });
}

KERNEL(to_i64) {
    each(job, [&](u64 i) { return load<T>(job, 0, i); }, [&](u64 i, T x) { out<i64>(job, 0)[i] = to_i64((WIDE)x); });
}

KERNEL(to_u8) {
    each(job, [&](u64 i) { return load<T>(job, 0, i); }, [&](u64 i, T x) { out<u8>(job, 0)[i] = to_u8((WIDE)x); });
}

KERNEL(to_bool) {
    each(job, [&](u64 i) { return load<T>(job, 0, i); }, [&](u64 i, T x) { out<u8>(job, 0)[i] = (WIDE)x != (WIDE)0 ? 1 : 0; });
}
