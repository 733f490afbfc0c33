//! Copies of short rows, such as those of small images.
//!
//! `memcpy` of 28 elements takes several times longer than two copies of 16. So rows are copied in pieces of constant length,
//! of which the last two overlap.

/// Copies `from` to `to`, which has the same length.
#[inline(always)]
pub(crate) fn copy<T: Copy>(to: &mut [T], from: &[T]) {
    let from = &from[..to.len()];
    if !(copy_pieces::<T, 16>(to, from) || copy_pieces::<T, 4>(to, from)) {
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = from);
    }
}

/// Copies at least `LEN` elements. Returns `false` if there are fewer.
#[inline(always)]
fn copy_pieces<T: Copy, const LEN: usize>(to: &mut [T], from: &[T]) -> bool {
    let pieces = to.as_chunks_mut::<LEN>().0.iter_mut().zip(from.as_chunks::<LEN>().0);
    pieces.for_each(|(to, from)| *to = *from);
    let (Some(to), Some(from)) = (to.last_chunk_mut::<LEN>(), from.last_chunk::<LEN>()) else { return false };
    *to = *from;
    true
}

#[cfg(test)]
mod tests {
    #[test]
    fn rows_of_every_length_are_copied() {
        let from: Vec<i32> = (1..=70).collect();
        for len in 0..=from.len() {
            let mut to = vec![0; len];
            super::copy(&mut to, &from);
            assert_eq!(to, from[..len]);
        }
    }
}
