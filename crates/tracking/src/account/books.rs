//! The books of a tracker: what its finished ops add up to, and what waits to be used again.
//!
//! Every op execution has a tracking allocator of its own, which lives as long as the op's last allocation. Taking both
//! from here, and putting them back, keeps the heap out of the path of every op. All of it stands behind one lock, which
//! an op takes when it begins, when it turns to an allocator, when it ends, and when its last allocation is freed: while one
//! thread runs ops, that costs no atomic exchange.
//!
//! What waits has given its handles up, so that it keeps no pool alive. Over a pool that was [adopted](Books::adopt) it keeps them: a
//! seat in its home is where it waits, and there is no change of handles as ops begin and end.

use std::sync::Arc;

use bfc_core::sync::{BiasedGuard, BiasedMutex, ThreadNumber};
use bfc_core::{Allocator, LastResort, OwnerId};

use super::allocator::TrackingAllocator;
use super::saved::Saves;
use super::totals::{Figures, Totals};
use super::tracker::Execution;
use crate::record::Recorder;

/// How many finished executions are kept: about as many as run at a time.
const IDLE_EXECUTIONS: usize = 64;

/// How many idle allocators are kept. All ops of a forward pass whose results wait for the backward pass come back in
/// one step, so this is about the number of ops in a large model.
const IDLE_ALLOCATORS: usize = 4096;

/// An allocator that ops turn to all the time, as that of a device's memory. The tracking allocators over it keep their handles of it
/// and of the books while they wait, so that an op begins and ends without a change of these.
#[derive(Debug)]
struct Home {
    base: Arc<dyn Allocator>,
    /// How often it was made one.
    adoptions: usize,
    /// The tracking allocators over it, each in its seat but while its op runs.
    seats: Vec<Option<Seated>>,
    /// Those that wait.
    idle: Vec<usize>,
    /// Those that are free.
    vacant: Vec<usize>,
}

/// A tracking allocator in its seat, with the two handles that an op needs of it, so that none is made for each.
#[derive(Debug)]
pub(crate) struct Seated {
    /// The one that the execution has.
    pub(crate) account: Arc<TrackingAllocator>,
    /// The one that the op takes memory through.
    pub(crate) handle: Arc<dyn Allocator>,
}

impl Seated {
    /// The handles in here.
    pub(crate) const HANDLES: usize = 2;

    /// Whether somebody has a handle beside these: the allocator would come to count for another op.
    fn is_kept(account: &Arc<TrackingAllocator>) -> bool {
        Arc::strong_count(account) > Self::HANDLES || Arc::weak_count(account) > 0
    }
}

impl Home {
    /// A seat for a new allocator.
    fn free_seat(&mut self) -> usize {
        self.vacant.pop().unwrap_or_else(|| {
            self.seats.push(None);
            self.seats.len() - 1
        })
    }
}

fn is_same(one: &Arc<dyn Allocator>, other: &Arc<dyn Allocator>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Books {
    pub(crate) recorder: Recorder,
    pub(crate) saves: Saves,
    /// Whom all allocators ask before a request fails.
    pub(crate) last_resort: Arc<LastResort>,
    open: BiasedMutex<Open>,
}

/// What the lock protects. Nothing in here has another handle, but for executions that a captured context refers to, and for
/// allocators in their seats.
#[derive(Debug, Default)]
pub(crate) struct Open {
    pub(crate) totals: Totals,
    executions: Vec<Arc<Execution>>,
    /// Those that wait without handles: in here, beside another one, they would keep their pools alive.
    allocators: Vec<Arc<TrackingAllocator>>,
    homes: Vec<Home>,
}

impl Books {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            recorder: Recorder::default(),
            saves: Saves::default(),
            last_resort: Arc::default(),
            open: BiasedMutex::new(Open::default()),
        })
    }

    /// To be held for a moment: nothing may be called that comes back here.
    pub(crate) fn open(&self) -> BiasedGuard<'_, Open> {
        self.open.lock(ThreadNumber::current())
    }

    /// A tracking allocator over `inner` with all figures at zero: a recycled one if there is one.
    pub(crate) fn take_allocator(
        self: &Arc<Self>,
        inner: &Arc<dyn Allocator>,
        owner: OwnerId,
    ) -> Arc<TrackingAllocator> {
        let mut open = self.open();
        if let Some(seated) = open.take_seated(inner) {
            drop(open);
            seated.account.resume(owner);
            return seated.account;
        }
        if let Some(home) = open.home(inner) {
            let seat = home.free_seat();
            drop(open);
            let (inner, books) = (Arc::clone(inner), Arc::clone(self));
            return Arc::new(TrackingAllocator::for_op(inner, owner, books, Some(seat)));
        }
        let idle = open.allocators.pop();
        drop(open);
        let (books, inner) = (Arc::clone(self), Arc::clone(inner));
        // What waits here has no other handle: only the last one is put here.
        if let Some(mut idle) = idle
            && let Some(allocator) = Arc::get_mut(&mut idle)
        {
            allocator.restart(inner, owner, books);
            return idle;
        }
        Arc::new(TrackingAllocator::for_op(inner, owner, books, None))
    }

    /// Has an allocator that came to rest wait in its seat. One that somebody still holds, and one too many, loses it.
    pub(crate) fn seat(
        &self,
        allocator: &Arc<TrackingAllocator>,
        inner: &Arc<dyn Allocator>,
        seat: usize,
        unused: bool,
    ) {
        let mut open = self.open();
        let Some(home) = open.home(inner) else { return };
        let place = home.seats.get_mut(seat);
        let own = |place: &&mut Option<Seated>| {
            place.as_ref().is_some_and(|seated| Arc::ptr_eq(&seated.account, allocator))
        };
        let Some(place) = place.filter(own) else { return };
        if unused && home.idle.len() < IDLE_ALLOCATORS {
            home.idle.push(seat);
            return;
        }
        let lost = place.take();
        home.vacant.push(seat);
        drop(open);
        drop(lost);
    }

    /// Makes an allocator a home, until it was released as often.
    pub(crate) fn adopt(&self, base: &Arc<dyn Allocator>) {
        let mut open = self.open();
        match open.home(base) {
            Some(home) => home.adoptions += 1,
            None => open.homes.push(Home {
                base: Arc::clone(base),
                adoptions: 1,
                seats: Vec::new(),
                idle: Vec::new(),
                vacant: Vec::new(),
            }),
        }
    }

    /// See [`adopt`](Self::adopt).
    pub(crate) fn release(&self, base: &Arc<dyn Allocator>) {
        let mut open = self.open();
        let Some(at) = open.homes.iter().position(|home| is_same(&home.base, base)) else { return };
        open.homes[at].adoptions -= 1;
        if open.homes[at].adoptions > 0 {
            return;
        }
        let home = open.homes.swap_remove(at);
        // Its allocators hold the books, and it may be the last to hold a pool.
        drop(open);
        drop(home);
    }

    /// Releases all homes: their allocators hold the books, which would else never go.
    pub(crate) fn release_all(&self) {
        let homes = std::mem::take(&mut self.open().homes);
        drop(homes);
    }

    /// Keeps an allocator that nobody else has a handle of; one too many is dropped.
    pub(crate) fn put_allocator(&self, allocator: Arc<TrackingAllocator>) {
        let mut open = self.open();
        if open.allocators.len() < IDLE_ALLOCATORS {
            open.allocators.push(allocator);
        }
    }

    /// How many allocators wait.
    #[cfg(test)]
    pub(crate) fn idle_allocators(&self) -> usize {
        let open = self.open();
        open.allocators.len() + open.homes.iter().map(|home| home.idle.len()).sum::<usize>()
    }
}

impl Open {
    fn home(&mut self, base: &Arc<dyn Allocator>) -> Option<&mut Home> {
        self.homes.iter_mut().find(|home| is_same(&home.base, base))
    }

    /// A tracking allocator over `base` that waits in its seat there. The seat is empty until the op that takes it
    /// [ends](Self::end_op).
    #[inline]
    pub(crate) fn take_seated(&mut self, base: &Arc<dyn Allocator>) -> Option<Seated> {
        let home = self.home(base)?;
        let seat = home.idle.pop()?;
        home.seats[seat].take()
    }

    /// Ends what an op has to do with an allocator that has a seat, and puts it there, with the handle of it that the op gives
    /// up. One that does not go there any more is handed back, to be dropped without the lock.
    #[inline]
    pub(crate) fn end_op(
        &mut self,
        account: Arc<TrackingAllocator>,
        handle: Option<Arc<dyn Allocator>>,
        figures: &mut Figures,
    ) -> Option<Seated> {
        let rests = account.end_op(figures);
        let handle = handle.unwrap_or_else(|| Arc::clone(&account) as Arc<dyn Allocator>);
        let home = account.seat().and_then(|(seat, base)| Some((seat, self.home(base)?)));
        let Some((seat, home)) = home else { return Some(Seated { account, handle }) };
        // In a home that was made anew it may be another one's.
        let Some(place) = home.seats.get_mut(seat).filter(|place| place.is_none()) else {
            return Some(Seated { account, handle });
        };
        if rests && (Seated::is_kept(&account) || home.idle.len() >= IDLE_ALLOCATORS) {
            home.vacant.push(seat);
            return Some(Seated { account, handle });
        }
        if rests {
            home.idle.push(seat);
        }
        *place = Some(Seated { account, handle });
        None
    }

    /// A finished execution, to be begun anew, if there is one.
    #[inline]
    pub(crate) fn take_execution(&mut self) -> Option<Arc<Execution>> {
        while let Some(idle) = self.executions.pop() {
            // A captured context may still refer to the finished op; it must not come to mean another one. Where there is no
            // other handle, and none is weak, none can come to be.
            if Arc::strong_count(&idle) == 1 {
                return Some(idle);
            }
        }
        None
    }

    /// Keeps a finished execution; one too many is dropped.
    #[inline]
    pub(crate) fn put_execution(&mut self, execution: Arc<Execution>) {
        if self.executions.len() < IDLE_EXECUTIONS {
            self.executions.push(execution);
        }
    }
}
