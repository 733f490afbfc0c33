//! The handles of open pools.
//!
//! A handle is a number that was never used before, so that the handle of a closed pool never names another pool. Its
//! upper bits tell its kind.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bfc_core::Allocator;
use bfc_core::sync::lock;

use crate::config::PoolSpec;
use crate::error::{ConfigurationError, Error};
use crate::pool::{PoolEntry, default_name};
use crate::run::TrackedRun;

/// The bits of the number below the kind.
const NUMBER_BITS: u32 = 56;

/// The kind of a handle: its upper eight bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Pool = 1,
    Scope = 2,
}

/// Returns a handle that was never used before.
pub(crate) fn new_handle(kind: Kind) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % (1 << NUMBER_BITS);
    (kind as u64) << NUMBER_BITS | number
}

type Pools = BTreeMap<u64, Arc<PoolEntry>>;

static POOLS: RwLock<Pools> = RwLock::new(BTreeMap::new());

/// Locked while a pool is opened.
static OPENING: Mutex<()> = Mutex::new(());

fn read() -> RwLockReadGuard<'static, Pools> {
    POOLS.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Pools> {
    POOLS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the pool that a configuration describes, and returns its handle.
pub(crate) fn open(text: &str) -> Result<u64, Error> {
    let spec = PoolSpec::parse(text)?;
    // One pool is opened at a time, so that its name stays free. Other calls do not wait for it.
    let _opening = lock(&OPENING);
    let taken = |name: &str| read().values().any(|pool| pool.name() == name);
    let name = match &spec.name {
        Some(name) if taken(name) => {
            return Err(ConfigurationError::NameTaken { name: name.clone() }.into());
        }
        Some(name) => name.clone(),
        None => free_name(&default_name(spec.memory), taken),
    };
    let pool = PoolEntry::from_spec(&spec, &name)?;
    let handle = new_handle(Kind::Pool);
    write().insert(handle, pool);
    Ok(handle)
}

/// Returns the first free name of `name`, `name-2`, `name-3` and so on.
fn free_name(name: &str, taken: impl Fn(&str) -> bool) -> String {
    let numbered = (2_u64..).map(|number| format!("{name}-{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    names.find(|name| !taken(name)).unwrap_or_default()
}

/// Returns the pool of a handle.
pub(crate) fn pool(handle: u64) -> Result<Arc<PoolEntry>, Error> {
    read().get(&handle).cloned().ok_or(Error::Handle { handle, kind: "pool" })
}

/// Calls a method of a pool. Completes its errors: the handle of a pool that another thread has just closed, and the
/// pool that an address belongs to.
pub(crate) fn with_pool<T>(
    handle: u64,
    call: impl FnOnce(&Arc<PoolEntry>) -> Result<T, Error>,
) -> Result<T, Error> {
    call(&pool(handle)?).map_err(|error| match error {
        Error::Handle { handle: 0, kind } => Error::Handle { handle, kind },
        Error::NotAllocated { pool, address, .. } => {
            let owner =
                read().values().find(|pool| pool.contains(address)).map(|pool| pool.name().to_owned());
            Error::NotAllocated { other_pool: owner.filter(|owner| *owner != pool), pool, address }
        }
        error => error,
    })
}

/// Closes a pool. Fails and changes nothing while the pool is in use.
pub(crate) fn close(handle: u64) -> Result<(), Error> {
    with_pool(handle, |pool| {
        // The recording of a dry pool ends with a summary of the pool.
        let is_shared = Arc::ptr_eq(pool.run(), TrackedRun::shared());
        if let Some(path) = pool.run().recording().filter(|_| !is_shared) {
            return Err(Error::Recording { path });
        }
        // Of several threads, one succeeds.
        pool.close()
    })?;
    let closed = write().remove(&handle);
    // The memory returns to its source without the lock.
    drop(closed);
    Ok(())
}

/// Returns the run of a pool; 0 names the run of all pools with memory.
pub(crate) fn run(handle: u64) -> Result<Arc<TrackedRun>, Error> {
    if handle == 0 { Ok(Arc::clone(TrackedRun::shared())) } else { Ok(Arc::clone(pool(handle)?.run())) }
}

/// Returns the runs of all pools.
pub(crate) fn runs() -> Vec<Arc<TrackedRun>> {
    let dry = |run: &&Arc<TrackedRun>| !Arc::ptr_eq(run, TrackedRun::shared());
    let pools = read();
    std::iter::once(TrackedRun::shared())
        .chain(pools.values().map(|pool| pool.run()).filter(dry))
        .cloned()
        .collect()
}

/// Returns the pools of a run, in the order of their opening.
pub(crate) fn pools_of(run: &Arc<TrackedRun>) -> Vec<Arc<dyn Allocator>> {
    let pools = read();
    pools
        .values()
        .filter(|pool| Arc::ptr_eq(pool.run(), run))
        .map(|pool| Arc::clone(pool.allocator()))
        .collect()
}
