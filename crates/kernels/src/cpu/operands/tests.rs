//! Tests that every layout pairs each output with its elements, in long and short rows.

use std::ops::Range;

use super::*;
use crate::testing::{Buffer, values};

/// Shapes with rows and columns shorter and longer than a block.
const SHAPES: &[[usize; 2]] = &[[3, 600], [600, 3], [5, 64], [7, 63], [2, 257], [70, 130]];

/// Views of one shape: contiguous, strided, and broadcast along one or both axes. Only broadcast elements are equal.
fn each_view(dims: [usize; 2], mut check: impl FnMut(View<'_>)) {
    let [rows, columns] = dims;
    let numbers: Vec<i64> = (1..=(rows * columns) as i64).collect();
    Buffer::arrangements(&dims, &numbers).iter().for_each(|buffer| check(buffer.view()));
    for repeated in [[rows, 1], [1, columns], [1, 1]] {
        let count = repeated.iter().product::<usize>();
        check(Buffer::of(&repeated, &numbers[..count]).broadcast(&dims).view());
    }
}

/// Ranges of outputs: all, from the middle of a row, and few.
fn parts(len: usize) -> [Range<usize>; 4] {
    [0..len, len / 3..len, 1..len - 1, len / 2..len / 2 + 20]
}

#[test]
fn single_operands_match_the_positions_of_their_layout() {
    for &dims in SHAPES {
        each_view(dims, |view| {
            let (source, expected) = (Source::<i64>::new("test", view).unwrap(), values::<i64>(&view));
            for part in parts(expected.len()) {
                let mut out = vec![0; part.len()];
                source.each(part.start, &mut out, |out, a| *out += a);
                assert_eq!(out, expected[part], "{:?}", view.layout());
            }
        });
    }
}

#[test]
fn pairs_match_elements_by_index() {
    for &dims in SHAPES {
        each_view(dims, |a| {
            each_view(dims, |b| {
                let (of_a, of_b) = (values::<i64>(&a), values::<i64>(&b));
                let pair = Pair::<i64, i64>::new("test", a, b).unwrap();
                for part in parts(of_a.len()) {
                    let mut out = vec![[0; 2]; part.len()];
                    pair.each(part.start, &mut out, |out, a, b| *out = [a, b]);
                    let expected = part.map(|i| [of_a[i], of_b[i]]);
                    assert!(out.into_iter().eq(expected), "{:?} {:?}", a.layout(), b.layout());
                }
            })
        });
    }
}
