//! Who waits, in what order, and whose turn it is: the rules of waiting, without threads or clocks.
//!
//! Each free makes those waiters *due* that it may serve. One waiter at a time has the *turn* to try: the oldest who is
//! due. Frees that come while it tries make it due again, so a waiter whom every free may serve, and none does, could
//! keep the turn for ever. Hence those who failed often step back behind the others, until nobody is due.

use std::collections::VecDeque;

use crate::allocator::request::WaitKey;

/// After so many failed turns a waiter steps back once.
const PATIENCE: u32 = 4;

/// The waiters in the order of their age. `B` is what wakes one.
#[derive(Debug)]
pub(super) struct Queue<B> {
    waiters: VecDeque<Waiter<B>>,
    last_ticket: u64,
    /// Frees so far.
    epoch: u64,
    /// Whose turn it is to try.
    turn: Option<u64>,
    /// Turns given so far.
    turns: u64,
}

#[derive(Debug)]
struct Waiter<B> {
    /// Rises with each waiter, from 1.
    ticket: u64,
    want: WaitKey,
    thread: u64,
    /// Its time is over, or it was told to give up: it makes its last attempt, and waits no more.
    last: bool,
    /// The latest free that may serve it and came after its last attempt began; 0 if there was none.
    due: u64,
    /// Turns that it had in vain since somebody was due without a break.
    failures: u32,
    bell: B,
}

impl<B> Default for Queue<B> {
    fn default() -> Self {
        Self { waiters: VecDeque::new(), last_ticket: 0, epoch: 0, turn: None, turns: 0 }
    }
}

impl<B: Clone> Queue<B> {
    /// The number of the latest free.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Turns given since the start or the last [`clear_turns`](Self::clear_turns).
    pub(super) fn turns(&self) -> u64 {
        self.turns
    }

    pub(super) fn clear_turns(&mut self) {
        self.turns = 0;
    }

    pub(super) fn has_turn(&self, ticket: u64) -> bool {
        self.turn == Some(ticket)
    }

    /// Queues a request whose failed attempt began at `tried`. Returns its ticket and whom to wake: a free since then
    /// may serve it, for all one knows.
    pub(super) fn enter(&mut self, want: WaitKey, tried: u64, thread: u64, bell: B) -> (u64, Option<B>) {
        self.last_ticket += 1;
        let due = if self.epoch > tried { self.epoch } else { 0 };
        // Behind all who are there: otherwise newcomers, who have not failed yet, could for ever precede one who has.
        let failures = self.waiters.iter().map(|waiter| waiter.failures).max().unwrap_or(0);
        let ticket = self.last_ticket;
        self.waiters.push_back(Waiter { ticket, want, thread, last: false, due, failures, bell });
        (self.last_ticket, self.give_turn())
    }

    /// Counts a free that can serve no request of more than `up_to` bytes. Returns whom to wake.
    pub(super) fn freed(&mut self, up_to: u64) -> Option<B> {
        self.epoch += 1;
        for waiter in &mut self.waiters {
            if waiter.want.bytes <= up_to {
                waiter.due = self.epoch;
            }
        }
        self.give_turn()
    }

    /// Notes that an attempt failed that began at epoch `tried`: the frees up to then serve neither this waiter nor
    /// those who want the like of it and no less. If it had the turn, that goes on. Returns whom to wake.
    pub(super) fn failed(&mut self, ticket: u64, want: WaitKey, tried: u64) -> Option<B> {
        for waiter in &mut self.waiters {
            if waiter.due <= tried && (waiter.ticket == ticket || want.rules_out(waiter.want)) {
                waiter.due = 0;
            }
        }
        if self.has_turn(ticket)
            && let Ok(index) = self.position(ticket)
        {
            self.waiters[index].failures += 1;
        }
        self.end_turn(ticket)
    }

    /// Forgets a waiter, with or without its memory. If it had the turn, that goes on. Returns whom to wake.
    pub(super) fn leave(&mut self, ticket: u64) -> Option<B> {
        if let Ok(index) = self.position(ticket) {
            self.waiters.remove(index);
        }
        self.end_turn(ticket)
    }

    /// Notes that a waiter makes its last attempt.
    pub(super) fn give_up(&mut self, ticket: u64) {
        if let Ok(index) = self.position(ticket) {
            self.waiters[index].last = true;
        }
    }

    /// Whether all these threads wait, and none has reason to try.
    pub(super) fn all_wait(&self, threads: &[u64]) -> bool {
        let waits = |thread| self.waiters.iter().any(|waiter| waiter.thread == thread && !waiter.last);
        self.turn.is_none() && threads.iter().all(|&thread| waits(thread))
    }

    /// The oldest who waits, and what wakes it.
    pub(super) fn oldest(&self) -> Option<(u64, &B)> {
        self.waiters.iter().find(|waiter| !waiter.last).map(|waiter| (waiter.ticket, &waiter.bell))
    }

    fn end_turn(&mut self, ticket: u64) -> Option<B> {
        if self.has_turn(ticket) {
            self.turn = None;
        }
        self.give_turn()
    }

    fn position(&self, ticket: u64) -> Result<usize, usize> {
        self.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket)
    }

    /// Gives the turn, if nobody has it, to the next who is due.
    fn give_turn(&mut self) -> Option<B> {
        if self.turn.is_some() {
            return None;
        }
        let due = self.waiters.iter().filter(|waiter| waiter.due > 0);
        let Some(next) = due.min_by_key(|waiter| (waiter.failures / PATIENCE, waiter.ticket)) else {
            self.waiters.iter_mut().for_each(|waiter| waiter.failures = 0);
            return None;
        };
        self.turn = Some(next.ticket);
        self.turns += 1;
        Some(next.bell.clone())
    }
}

#[cfg(test)]
mod tests;
