//! The memory of readers: a limit in proportion to the file, and vectors that waste little of it while they grow.

/// How many bytes a reader may hold for each byte of a file, once decompressed, whatever its limit.
const HELD_PER_BYTE: u64 = 8;

/// How many bytes a reader may hold after it read `input_bytes`, if its limit is `held_bytes`.
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

/// The bytes that an item takes, with its share of the room for more.
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
