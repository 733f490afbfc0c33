//! The micro-kernel for any vector register.

use super::{COLUMNS, ROWS, Right, Row, Tile};

/// A vector register of sums.
///
/// The methods are `inline(always)`, so that they are compiled for the instruction set of their caller. All of them require
/// that the processor supports this instruction set.
pub(super) trait Vector: Copy {
    /// An element of a panel.
    type Packed: Copy;
    /// An element of the tile.
    type Sum: Copy;
    /// A register of packed elements.
    type Operand: Copy;

    /// The number of sums in a register; divides [`HALF`](super::HALF).
    const LANES: usize;
    /// The largest number of rows whose sums, two registers each, leave room for the operands.
    const ROWS: usize;

    /// All sums 0.
    ///
    /// # Safety
    /// See above.
    unsafe fn zero() -> Self;

    /// Loads [`LANES`](Self::LANES) elements.
    ///
    /// # Safety
    /// See above; `from` must be valid for reads of these elements.
    unsafe fn load(from: *const Self::Packed) -> Self::Operand;

    /// Copies one element to all lanes.
    ///
    /// # Safety
    /// See above.
    unsafe fn broadcast(value: Self::Packed) -> Self::Operand;

    /// Adds the products of two operands.
    ///
    /// # Safety
    /// See above.
    unsafe fn multiply_add(self, lhs: Self::Operand, rhs: Self::Operand) -> Self;

    /// Stores [`LANES`](Self::LANES) sums.
    ///
    /// # Safety
    /// See above; `to` must be valid for writes of these sums.
    unsafe fn store(self, to: *mut Self::Sum);
}

/// Computes `rows` rows of a tile, in parts that fit in the registers.
///
/// # Safety
/// The processor must support the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn multiply<V: Vector>(
    lhs: &[[V::Packed; ROWS]],
    rhs: impl Right<V::Packed>,
    rows: usize,
    tile: &mut Tile<V::Sum>,
) {
    let mut first = 0;
    while first < rows {
        let part = V::ROWS.min(rows - first);
        let mut column = 0;
        while column < COLUMNS {
            let at = [first, column];
            // The guards remove the arms that a narrow vector never reaches.
            macro_rules! select {
                ($($count:literal)+) => {
                    match part {
                        // SAFETY: the caller guarantees the instruction set.
                        $($count if $count <= V::ROWS => unsafe { sums::<V, _, $count>(lhs, rhs, at, tile) },)+
                        _ => {}
                    }
                };
            }
            select!(1 2 3 4 5 6 7 8 9 10 11 12);
            column += 2 * V::LANES;
        }
        first += part;
    }
}

/// Computes `R` rows and two registers of columns, starting at `[row, column]` of the tile.
///
/// # Safety
/// The processor must support the instruction set of `V`.
#[inline(always)]
unsafe fn sums<V: Vector, M: Right<V::Packed>, const R: usize>(
    lhs: &[[V::Packed; ROWS]],
    rhs: M,
    [first, column]: [usize; 2],
    tile: &mut Tile<V::Sum>,
) {
    // SAFETY: the caller guarantees the instruction set.
    let mut sums = [[unsafe { V::zero() }; 2]; R];
    for (lhs, rhs) in lhs.iter().zip(rhs.rows()) {
        let lhs: &[V::Packed] = &lhs[first..first + R];
        let left = &rhs.register(column, V::LANES)[..V::LANES];
        let right = &rhs.register(column + V::LANES, V::LANES)[..V::LANES];
        // SAFETY: the slice has `LANES` elements.
        let left = unsafe { V::load(left.as_ptr()) };
        // SAFETY: as above.
        let right = unsafe { V::load(right.as_ptr()) };
        for (sums, &lhs) in sums.iter_mut().zip(lhs) {
            // SAFETY: the caller guarantees the instruction set.
            let lhs = unsafe { V::broadcast(lhs) };
            // SAFETY: as above.
            sums[0] = unsafe { sums[0].multiply_add(lhs, left) };
            // SAFETY: as above.
            sums[1] = unsafe { sums[1].multiply_add(lhs, right) };
        }
    }
    for (row, sums) in tile.0[first..first + R].iter_mut().zip(sums) {
        let (left, right) = row[column..column + 2 * V::LANES].split_at_mut(V::LANES);
        // SAFETY: the slice has `LANES` elements.
        unsafe { sums[0].store(left.as_mut_ptr()) };
        // SAFETY: as above.
        unsafe { sums[1].store(right.as_mut_ptr()) };
    }
}
