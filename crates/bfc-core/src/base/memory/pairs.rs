//! Writes a block to memory as two 16-byte stores.
//!
//! Callers copy a returned block 16 bytes at a time. A processor forwards a store to a load only if one store covers the
//! load; after two 8-byte stores the load waits until both reach the cache. Without this file a pool's event takes 15 % to
//! 22 % more time on Zen 5.

use super::Block;

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
impl Block {
    /// Returns the block, built from pairs of words.
    #[inline(always)]
    pub(crate) fn in_pairs(self) -> Self {
        use std::arch::x86_64::{__m128i, _mm_set_epi64x};

        let Self { address, bytes, id, chunk, pool } = self;
        let last = u64::from(pool.0) << 32 | u64::from(chunk);
        // SAFETY: the function is compiled only for processors with SSE2.
        let first = unsafe { _mm_set_epi64x(bytes as i64, address as i64) };
        // SAFETY: as above.
        let second = unsafe { _mm_set_epi64x(last as i64, id as i64) };
        // SAFETY: a block consists of these words in this order, as checked below, and any values are valid.
        unsafe { std::mem::transmute::<[__m128i; 2], Self>([first, second]) }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
impl Block {
    /// Returns the block. The compiler chooses how to write it.
    #[inline(always)]
    pub(crate) const fn in_pairs(self) -> Self {
        self
    }
}

const _: () = {
    use std::mem::offset_of;

    assert!(offset_of!(Block, address) == 0 && offset_of!(Block, bytes) == 8 && offset_of!(Block, id) == 16);
    assert!(offset_of!(Block, chunk) == 24 && offset_of!(Block, pool) == 28 && size_of::<Block>() == 32);
};

#[cfg(test)]
mod tests {
    use super::super::PoolId;
    use super::*;

    #[test]
    fn a_block_made_of_pairs_is_the_same_block() {
        let block = Block {
            address: 0x0123_4567_89AB_CDEF,
            bytes: u64::MAX - 1,
            id: 1 << 63 | 7,
            chunk: 0x8000_0002,
            pool: PoolId(0xF000_0003),
        };
        assert_eq!(block.in_pairs(), block);
        assert_eq!(Block::EMPTY.in_pairs(), Block::EMPTY);
    }
}
