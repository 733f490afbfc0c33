//! The waiting requests: their order and whose turn it is, without threads or clocks.
//!
//! Each free makes the waiters *due* that it may serve. One waiter at a time has the *turn* to try: the oldest due one.
//! A free during its attempt makes it due again, so a waiter that every free may serve could keep the turn forever.
//! Waiters with many failures therefore move behind the others until no waiter is due.

use std::collections::VecDeque;

use crate::allocator::request::WaitKey;

/// The failed turns after which a waiter moves back once.
const PATIENCE: u32 = 4;

/// The waiters by age. `B` wakes one waiter.
#[derive(Debug)]
pub(super) struct Queue<B> {
    waiters: VecDeque<Waiter<B>>,
    last_ticket: u64,
    /// The number of frees.
    epoch: u64,
    /// The ticket with the turn.
    turn: Option<u64>,
    /// The number of turns.
    turns: u64,
}

#[derive(Debug)]
struct Waiter<B> {
    /// The ticket number, ascending from 1.
    ticket: u64,
    key: WaitKey,
    /// The latest free that may serve the waiter and came after its last attempt began; 0 if none.
    due: u64,
    /// Failed turns since a waiter was last due without interruption.
    failures: u32,
    bell: B,
}

impl<B> Default for Queue<B> {
    fn default() -> Self {
        Self { waiters: VecDeque::new(), last_ticket: 0, epoch: 0, turn: None, turns: 0 }
    }
}

impl<B: Clone> Queue<B> {
    /// Returns the number of frees.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the turns since the start or the last [`clear_turns`](Self::clear_turns).
    pub(super) fn turns(&self) -> u64 {
        self.turns
    }

    pub(super) fn clear_turns(&mut self) {
        self.turns = 0;
    }

    pub(super) fn has_turn(&self, ticket: u64) -> bool {
        self.turn == Some(ticket)
    }

    /// Queues a request whose failed attempt began at `tried`. Returns its ticket and the waiter to wake: a free since
    /// then may serve it.
    pub(super) fn enter(&mut self, key: WaitKey, tried: u64, bell: B) -> (u64, Option<B>) {
        self.last_ticket += 1;
        let due = if self.epoch > tried { self.epoch } else { 0 };
        // Starts behind all waiters, so that newcomers without failures cannot always precede a waiter with failures.
        let failures = self.waiters.iter().map(|waiter| waiter.failures).max().unwrap_or(0);
        let ticket = self.last_ticket;
        self.waiters.push_back(Waiter { ticket, key, due, failures, bell });
        (self.last_ticket, self.give_turn())
    }

    /// Counts a free that serves no request of more than `up_to` bytes. Returns the waiter to wake.
    pub(super) fn freed(&mut self, up_to: u64) -> Option<B> {
        self.epoch += 1;
        for waiter in &mut self.waiters {
            if waiter.key.bytes <= up_to {
                waiter.due = self.epoch;
            }
        }
        self.give_turn()
    }

    /// Records a failed attempt that began at epoch `tried`. Earlier frees serve neither this waiter nor comparable
    /// larger ones. Passes the turn on, if it had it. Returns the waiter to wake.
    pub(super) fn failed(&mut self, ticket: u64, key: WaitKey, tried: u64) -> Option<B> {
        for waiter in &mut self.waiters {
            if waiter.due <= tried && (waiter.ticket == ticket || key.rules_out(waiter.key)) {
                waiter.due = 0;
            }
        }
        if self.has_turn(ticket) {
            if let Ok(index) = self.position(ticket) {
                self.waiters[index].failures += 1;
            }
        }
        self.end_turn(ticket)
    }

    /// Removes a waiter. Passes the turn on, if it had it. Returns the waiter to wake.
    pub(super) fn leave(&mut self, ticket: u64) -> Option<B> {
        if let Ok(index) = self.position(ticket) {
            self.waiters.remove(index);
        }
        self.end_turn(ticket)
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

    /// Gives a free turn to the next due waiter.
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
