//! The two messages between a rank and rank 0.
//!
//! ```text
//! rank n ── magic, rank, size ─────────────▶ rank 0        24 bytes
//!        ◀── magic, status, size, 128 bytes ──             152 bytes
//! ```

use bfc_cuda::UniqueId;

/// The first bytes of each message: the program and the version of the messages.
const MAGIC: [u8; 8] = *b"hw-nccl1";

/// The place of a rank, as it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) rank: u64,
    pub(super) size: u64,
}

impl Hello {
    pub(super) const BYTES: usize = 24;

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.rank.to_le_bytes());
        bytes[16..].copy_from_slice(&self.size.to_le_bytes());
        bytes
    }

    /// `None` if another program sent the bytes.
    pub(super) fn from_bytes(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let ([magic, rank, size], []) = bytes.as_chunks() else { return None };
        (*magic == MAGIC).then(|| Self { rank: u64::from_le_bytes(*rank), size: u64::from_le_bytes(*size) })
    }
}

/// The answer of rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The id of the communicator.
    Id(UniqueId),
    /// The world of rank 0 has this size.
    OtherSize(u64),
    /// Another process is this rank.
    SameRank,
}

impl Reply {
    pub(super) const BYTES: usize = 24 + UniqueId::BYTES;

    pub(super) fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        match self {
            Self::Id(id) => bytes[24..].copy_from_slice(&id.to_bytes()),
            Self::OtherSize(size) => {
                bytes[8] = 1;
                bytes[16..24].copy_from_slice(&size.to_le_bytes());
            }
            Self::SameRank => bytes[8] = 2,
        }
        bytes
    }

    /// `None` if another program sent the bytes.
    pub(super) fn from_bytes(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let (head, id) = bytes.split_at(24);
        let ([magic, status, size], []) = head.as_chunks::<8>() else { return None };
        let (status, size) = (u64::from_le_bytes(*status), u64::from_le_bytes(*size));
        match (*magic == MAGIC, status) {
            (true, 0) => Some(Self::Id(UniqueId::from_bytes(id.try_into().ok()?))),
            (true, 1) => Some(Self::OtherSize(size)),
            (true, 2) => Some(Self::SameRank),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_and_others_are_recognized() {
        let hello = Hello { rank: 3, size: u64::MAX };
        assert_eq!(Hello::from_bytes(hello.to_bytes()), Some(hello));
        assert_eq!(Hello::from_bytes(*b"GET / HTTP/1.1\r\nHost: a\n"), None);
        for reply in [Reply::Id(UniqueId::from_bytes([7; 128])), Reply::OtherSize(5), Reply::SameRank] {
            assert_eq!(Reply::from_bytes(reply.to_bytes()), Some(reply.clone()));
        }
        let mut unknown = Reply::SameRank.to_bytes();
        unknown[8] = 9;
        assert_eq!(Reply::from_bytes(unknown), None);
        unknown[..2].copy_from_slice(b"HT");
        assert_eq!(Reply::from_bytes(unknown), None);
    }
}
