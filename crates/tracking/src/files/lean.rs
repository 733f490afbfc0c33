//! The memory of readers: a limit in proportion to the file, and vectors that waste little of it while they grow.

/// The bytes that a reader may hold per decompressed byte of a file, regardless of its limit.
const HELD_PER_BYTE: u64 = 8;

/// Returns the bytes that a reader may hold after `input_bytes` of input, with a limit of `held_bytes`.
pub(crate) const fn held_limit(held_bytes: u64, input_bytes: u64) -> u64 {
    let of_input = input_bytes.saturating_mul(HELD_PER_BYTE);
    if held_bytes > of_input { held_bytes } else { of_input }
}

/// Appends an item. A full vector grows by a quarter, where [`Vec::push`] doubles it.
pub(crate) fn push<T>(items: &mut Vec<T>, item: T) {
    if items.len() == items.capacity() {
        items.reserve_exact((items.len() / 4).max(16));
    }
    items.push(item);
}

/// The bytes of an item, with its share of unused capacity.
pub(crate) const fn cost<T>() -> u64 {
    size_of::<T>() as u64 * 5 / 4
}

/// Appends items, as [`push`] does.
pub(crate) fn extend<T: Copy>(items: &mut Vec<T>, more: &[T]) {
    if items.capacity() - items.len() < more.len() {
        items.reserve_exact(more.len().max(items.len() / 4).max(16));
    }
    items.extend_from_slice(more);
}
