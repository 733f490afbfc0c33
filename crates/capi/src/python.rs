//! The pools of Python libraries: one for NumPy, and one for each CUDA device.
//!
//! The interfaces of these libraries pass no pool. A program chooses it with a call, else the first allocation opens it
//! from an environment variable. Blocks are freed in the pool that has them, also after the choice has changed.

mod child;
mod device;
mod numpy;

pub(crate) use device::*;
pub(crate) use numpy::*;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::Error;
use crate::pool::PoolEntry;
use crate::table;

/// A library, or a device, that allocates from a pool of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum User {
    /// NumPy.
    Numpy,
    /// PyTorch and CuPy on this device.
    Device(i32),
}

impl User {
    /// The environment variable with the configuration of the pool.
    const fn variable(self) -> &'static str {
        match self {
            Self::Numpy => "BFC_NUMPY_POOL",
            Self::Device(_) => "BFC_CUDA_POOL",
        }
    }

    /// The configuration of the pool: that of the variable, with the memory of the user.
    ///
    /// A request of NumPy holds the lock of the interpreter, so that no other thread can free meanwhile: it does not wait.
    fn configuration(self) -> String {
        let options = std::env::var(self.variable()).unwrap_or_default();
        let named =
            |default: &str| if options.contains("name=") { String::new() } else { default.to_owned() };
        // A name of an allocator alone has no colon, which separates it from the options.
        let colon = if options.is_empty() || options.contains(['=', ':']) { "" } else { ":" };
        match self {
            Self::Numpy if options.contains("retry_ms") => {
                format!("{options}{colon},memory=host{}", named(",name=numpy"))
            }
            Self::Numpy => format!("{options}{colon},memory=host,retry_ms=0{}", named(",name=numpy")),
            Self::Device(device) => format!("{options}{colon},memory=cuda:{device}"),
        }
    }

    /// Fails if the user cannot use memory of this pool.
    fn check(self, pool: &PoolEntry) -> Result<(), Error> {
        let allocator = pool.allocator();
        let memory = allocator.memory_kind();
        let (suits, user, needed) = match self {
            Self::Numpy => (memory.is_host_accessible(), "NumPy", "host"),
            Self::Device(_) => (allocator.stream().is_some(), "a library for GPUs", "cuda"),
        };
        let wrong = || Error::WrongMemory { pool: pool.name().to_owned(), memory, user, needed };
        if suits { Ok(()) } else { Err(wrong()) }
    }
}

/// The handles of the pools in use.
#[derive(Debug)]
struct Choices {
    now: BTreeMap<User, u64>,
    /// All that were ever chosen, which may have blocks of the user.
    all: Vec<u64>,
}

static CHOICES: RwLock<Choices> = RwLock::new(Choices { now: BTreeMap::new(), all: Vec::new() });

/// Chooses the pool of a user.
pub(crate) fn choose(user: User, handle: u64) -> Result<(), Error> {
    table::with_pool(handle, |pool| user.check(pool))?;
    CHOICES.write().unwrap_or_else(PoisonError::into_inner).add(user, handle);
    Ok(())
}

/// Returns the handle of a user's pool. Opens the pool if none was chosen.
pub(crate) fn pool_of(user: User) -> Result<u64, Error> {
    if let Some(&handle) = CHOICES.read().unwrap_or_else(PoisonError::into_inner).now.get(&user) {
        return Ok(handle);
    }
    let mut choices = CHOICES.write().unwrap_or_else(PoisonError::into_inner);
    // Another thread may have chosen between the two locks.
    if let Some(&handle) = choices.now.get(&user) {
        return Ok(handle);
    }
    let handle = table::open(&user.configuration())?;
    choices.add(user, handle);
    Ok(handle)
}

impl Choices {
    fn add(&mut self, user: User, handle: u64) {
        self.now.insert(user, handle);
        if !self.all.contains(&handle) {
            self.all.push(handle);
        }
    }
}

/// Returns the pool that has a live block at `address`: that of the user, or an earlier choice.
fn holder(user: User, address: u64) -> Result<Arc<PoolEntry>, Error> {
    let handle = pool_of(user)?;
    let own = table::pool(handle);
    if own.as_ref().is_ok_and(|pool| pool.contains(address)) {
        return own;
    }
    let all = CHOICES.read().unwrap_or_else(PoisonError::into_inner).all.clone();
    let others = all.into_iter().filter_map(|handle| table::pool(handle).ok());
    let found = others.into_iter().find(|pool| pool.contains(address));
    // The own pool gives the reason.
    found.map_or(own, Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_of_python_have_the_memory_of_their_users() {
        // No test sets the variables.
        assert_eq!(User::Numpy.configuration(), ",memory=host,retry_ms=0,name=numpy");
        assert_eq!(User::Device(3).configuration(), ",memory=cuda:3");
        let dry = table::open("memory=dry,name=python-dry").unwrap();
        for user in [User::Numpy, User::Device(0)] {
            let error = choose(user, dry).unwrap_err().to_string();
            assert!(error.contains("python-dry has address only"), "{error}");
        }
        table::close(dry).unwrap();
        assert!(matches!(choose(User::Numpy, dry), Err(Error::Handle { .. })));
    }
}
