//! Many threads on one pool.

use std::collections::BTreeMap;
use std::sync::{Mutex, mpsc};

use bfc::*;

use crate::support::{Block, allocate, free, open, push, reallocate, size_of_block, stats};

/// The steps of each thread.
const STEPS: u64 = if cfg!(miri) { 20 } else { 2000 };

/// A pseudorandom sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Fills a block with a byte and checks it later, so that blocks that overlap are found.
fn fill(block: Block, bytes: u64, value: u8) {
    // SAFETY: the block has this many bytes, and its thread alone uses it.
    unsafe { block.0.cast::<u8>().write_bytes(value, bytes as usize) };
}

fn check(block: Block, bytes: u64, value: u8) {
    // SAFETY: the block has this many bytes, which its thread has written.
    let found = unsafe { std::slice::from_raw_parts(block.0.cast::<u8>(), bytes as usize) };
    assert!(found.iter().all(|byte| *byte == value));
}

#[test]
fn eight_threads_agree_with_a_model() {
    let pool = open("limit=64MiB,retry_ms=0,name=threads").unwrap();
    // Blocks that any thread may take over: their size and content by address.
    let shared = Mutex::new(BTreeMap::<Block, (u64, u8)>::new());
    std::thread::scope(|threads| {
        for thread in 0..8_u64 {
            let shared = &shared;
            threads.spawn(move || {
                let mut random = Random(thread + 1);
                for step in 0..STEPS {
                    let scope = push(&format!("threads-{}", random.below(4)));
                    let taken = if random.below(2) == 0 { shared.lock().unwrap().pop_first() } else { None };
                    let value = (thread * 31 + step) as u8;
                    let bytes = 1 + random.below(10_000);
                    let kept = match taken {
                        None => Some(allocate(pool, bytes, "x").unwrap()),
                        Some((block, (size, content))) => {
                            assert_eq!(size_of_block(pool, block), Ok(size));
                            check(block, size, content);
                            if random.below(3) == 0 {
                                let moved = reallocate(pool, block, bytes).unwrap();
                                check(moved, size.min(bytes), content);
                                Some(moved)
                            } else {
                                assert_eq!(free(pool, block), BFC_OK);
                                None
                            }
                        }
                    };
                    if let Some(block) = kept {
                        fill(block, bytes, value);
                        let before = shared.lock().unwrap().insert(block, (bytes, value));
                        assert_eq!(before, None, "two live blocks at one address");
                    }
                    assert_eq!(bfc_scope_pop(scope), BFC_OK);
                }
            });
        }
    });
    let shared = shared.into_inner().unwrap();
    let requested: u64 = shared.values().map(|(bytes, _)| bytes).sum();
    let found = stats(pool);
    assert_eq!((found.live_blocks, found.bytes_requested), (shared.len() as u64, requested));
    for (block, (bytes, content)) in shared {
        check(block, bytes, content);
        assert_eq!(free(pool, block), BFC_OK);
    }
    assert_eq!(stats(pool).bytes_in_use, 0);
    assert_eq!(bfc_pool_close(pool), BFC_OK);
}

#[test]
fn another_thread_frees_a_block_that_this_one_waits_for() {
    let pool = open("limit=64KiB,name=waits").unwrap();
    let first = allocate(pool, 48 << 10, "x").unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|threads| {
        threads.spawn(move || {
            // This thread allocates too, so that the request below waits for it.
            let own = allocate(pool, 1000, "y").unwrap();
            sender.send(()).unwrap();
            while stats(pool).waits == 0 {
                std::thread::yield_now();
            }
            assert_eq!((free(pool, first), free(pool, own)), (BFC_OK, BFC_OK));
        });
        receiver.recv().unwrap();
        let second = allocate(pool, 48 << 10, "z").unwrap();
        assert_eq!(free(pool, second), BFC_OK);
    });
    assert_eq!(bfc_pool_close(pool), BFC_OK);
}

#[test]
fn one_of_several_threads_closes_a_pool() {
    let pool = open("memory=dry,name=race").unwrap();
    let statuses: Vec<bfc_status> = std::thread::scope(|threads| {
        let closing: Vec<_> = (0..4).map(|_| threads.spawn(move || bfc_pool_close(pool))).collect();
        closing.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == BFC_OK).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == BFC_ERROR_INVALID_HANDLE).count(), 3);
}
