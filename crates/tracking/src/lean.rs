//! Vectors that waste little memory while they grow, for readers whose memory is limited.

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
