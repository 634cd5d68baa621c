//! The order in which pages, mailboxes or recipients are used.

use crate::pacer::Ticket;

/// The order in which items are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SelectionOrder {
    /// One after the other, then again from the first
    Turn,
    /// Each with the same probability
    Random,
}

impl SelectionOrder {
    /// The index of the next of `count` items (at least one).
    pub(crate) fn choose(self, ticket: Ticket, random: &mut fastrand::Rng, count: usize) -> usize {
        match self {
            SelectionOrder::Turn => (ticket.number % count as u64) as usize,
            SelectionOrder::Random => random.usize(..count),
        }
    }
}
