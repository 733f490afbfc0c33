//! Plain values and tools of every other folder: byte units, memory kinds, blocks, owners, the ledger, locks, printable text,
//! suggestions for misspelled names, thread-local values with guards, and `Debug` of errors.
//!
//! A [`Ledger`] sums live bytes by [`OwnerId`] and [`Category`]; the pools store live bytes nowhere else.
//! [`sync`] exports the primitives of `std`, or those of the `shuttle` checker under `--cfg shuttle`.
//! Nothing here refers to an allocator, a policy or a device.

#[macro_use]
mod error_debug;
#[macro_use]
pub(crate) mod thread_scoped;

pub(crate) mod amount;
pub(crate) mod closest;
pub(crate) mod hint;
pub(crate) mod ledger;
pub(crate) mod memory;
pub(crate) mod owner;
pub(crate) mod placement;
pub(crate) mod printable;
#[doc(hidden)]
pub mod sync;
pub(crate) mod units;

pub use amount::{Amount, ParseAmountError, Share};
pub use closest::{closest_name, did_you_mean};
pub use error_debug::write_error;
pub use ledger::{Category, Ledger, OwnerBytes, Tag};
pub use memory::{AddressSpace, Block, MemoryKind, PoolId, Span};
pub use owner::OwnerId;
pub use placement::{Inconsistent, PackingCounts, Placement};
pub use printable::{Printable, is_printable, printable, printable_json, printable_lines};
pub use thread_scoped::{ThreadScoped, ThreadScopedGuard, ThreadVariable};
pub use units::{Bytes, GIB, KIB, MIB, ParseBytesError};
