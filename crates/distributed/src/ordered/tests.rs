//! Ranks as threads against sums of plain loops.

use std::sync::atomic::{AtomicUsize, Ordering};

use half::{bf16, f16};
use proptest::prelude::*;

use crate::collective::{SliceMut, SumOrder, span, spans};
use crate::threads::run_ranks;

/// A value that depends on the rank and the index, with an order-dependent sum.
fn value(rank: usize, index: usize) -> f64 {
    let hash = (rank * 7_919 + index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    (hash as f64 / 1e4).powi(1 + (hash % 3) as i32) * if hash.is_multiple_of(2) { -1e-3 } else { 1e-3 }
}

/// An element type of the tests: its values, and the sum of one element over all ranks.
trait Tested: bytemuck::Pod + Send + Sync + PartialEq + std::fmt::Debug {
    fn of(value: f64) -> Self;

    fn sum(values: impl Iterator<Item = Self>) -> Self;
}

macro_rules! tested {
    ($type:ty, $of:expr, $upcast:expr, $downcast:expr) => {
        impl Tested for $type {
            fn of(value: f64) -> Self {
                $of(value)
            }

            fn sum(values: impl Iterator<Item = Self>) -> Self {
                $downcast(values.map($upcast).reduce(|sum, value| sum + value).unwrap())
            }
        }
    };
}

tested!(f32, |value| value as f32, |value| value, |sum| sum);
tested!(f64, |value| value, |value| value, |sum| sum);
tested!(f16, |value| f16::from_f64(value * 1e-2), f16::to_f32, f16::from_f32);
tested!(bf16, bf16::from_f64, bf16::to_f32, bf16::from_f32);

/// Checks each operation on data of one type and length.
fn check<T: Tested>(size: usize, length: usize)
where
    for<'a> SliceMut<'a>: From<&'a mut [T]>,
{
    let input = |rank| (0..length).map(|index| T::of(value(rank, index))).collect::<Vec<T>>();
    let sums: Vec<T> =
        (0..length).map(|index| T::sum((0..size).map(|rank| T::of(value(rank, index))))).collect();
    let results = run_ranks(size, |world| {
        let (rank, collective) = (world.rank(), world.collective());
        let mut reduced = input(rank);
        let dtype = SliceMut::from(&mut reduced[..]).dtype();
        let bytes = SumOrder::Ordered.workspace_bytes(length, dtype, size);
        let mut workspace = vec![T::of(f64::NAN); bytes / size_of::<T>()];
        let workspace: &mut [u8] = bytemuck::cast_slice_mut(&mut workspace);
        collective.all_reduce((&mut reduced[..]).into(), SumOrder::Ordered, workspace).unwrap();

        let mut scattered = input(rank);
        let parts = spans(length, size);
        collective.reduce_scatter((&mut scattered[..]).into(), &parts, workspace).unwrap();
        let partial = scattered.clone();
        collective.all_gather((&mut scattered[..]).into(), &parts).unwrap();
        (reduced, partial, scattered)
    });
    for (rank, (reduced, partial, gathered)) in results.iter().enumerate() {
        assert_eq!(bytemuck::cast_slice::<T, u8>(reduced), bytemuck::cast_slice::<T, u8>(&sums));
        assert_eq!(gathered, &sums);
        let mut expected = input(rank);
        let own = span(length, size, rank);
        expected[own.clone()].copy_from_slice(&sums[own]);
        assert_eq!(partial, &expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn reductions_equal_sums_in_rank_order(
        size in 1_usize..=5,
        length in prop_oneof![0_usize..20, 0_usize..6000],
        dtype in 0..4,
    ) {
        match dtype {
            0 => check::<f32>(size, length),
            1 => check::<f64>(size, length),
            2 => check::<f16>(size, length),
            _ => check::<bf16>(size, length),
        }
    }
}

#[test]
fn the_order_of_ranks_decides_the_sum() {
    let values = [1e8_f32, 1.0, -1e8];
    let results = run_ranks(3, |world| {
        let (mut data, mut workspace) = ([values[world.rank()]], [0.0_f32; 2]);
        let workspace = bytemuck::cast_slice_mut(&mut workspace);
        world.collective().all_reduce((&mut data[..]).into(), SumOrder::Ordered, workspace).unwrap();
        data[0]
    });
    assert_eq!(results, [0.0; 3]); // (1e8 + 1) - 1e8 rounds; (1e8 - 1e8) + 1 would be 1
}

#[test]
fn sums_of_half_precision_round_once() {
    // bf16 has 8 significant bits: 256 + 1 + 1 rounds to 256 after each addition, and to 258 at the end.
    let values = [256.0, 1.0, 1.0].map(bf16::from_f32);
    let results = run_ranks(3, |world| {
        let (mut data, mut workspace) = ([values[world.rank()]], [bf16::ZERO; 2]);
        let workspace = bytemuck::cast_slice_mut(&mut workspace);
        world.collective().all_reduce((&mut data[..]).into(), SumOrder::Ordered, workspace).unwrap();
        data[0].to_f32()
    });
    assert_eq!(results, [258.0; 3]);
}

#[test]
fn broadcasts_reach_all_ranks_from_each_root() {
    for size in 1..=9 {
        for root in 0..size {
            let results = run_ranks(size, |world| {
                let mut data = [world.rank() as u8; 3];
                world.collective().broadcast((&mut data[..]).into(), root).unwrap();
                data
            });
            assert_eq!(results, vec![[root as u8; 3]; size]);
        }
    }
}

#[test]
fn a_barrier_waits_for_all_ranks() {
    let arrived = AtomicUsize::new(0);
    let seen = run_ranks(4, |world| {
        arrived.fetch_add(1, Ordering::SeqCst);
        world.collective().barrier().unwrap();
        arrived.load(Ordering::SeqCst)
    });
    assert_eq!(seen, [4; 4]);
}
