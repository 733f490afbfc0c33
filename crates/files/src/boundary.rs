//! Character boundaries of texts that are cut, like `str::floor_char_boundary` of Rust 1.91, which this crate does not require.

/// Returns the last boundary at or before `index`, at most the length of the text.
pub fn floor_boundary(text: &str, index: usize) -> usize {
    (0..=index.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

/// Returns the first boundary at or after `index`, at most the length of the text.
pub fn ceil_boundary(text: &str, index: usize) -> usize {
    (index..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len())
}

/// Returns how many of these names fit into so many bytes, with a separator behind each.
pub fn count_within<'a>(names: impl Iterator<Item = &'a str>, most: usize) -> usize {
    let bytes = names.scan(0, |sum, name| {
        *sum += name.len() + 1;
        Some(*sum)
    });
    bytes.take_while(|&sum| sum <= most).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_lie_around_a_character_of_two_bytes() {
        let text = "aéz";
        let floors: Vec<usize> = (0..6).map(|index| floor_boundary(text, index)).collect();
        let ceils: Vec<usize> = (0..6).map(|index| ceil_boundary(text, index)).collect();
        assert_eq!(floors, [0, 1, 1, 3, 4, 4]);
        assert_eq!(ceils, [0, 1, 3, 3, 4, 4]);
    }
}
