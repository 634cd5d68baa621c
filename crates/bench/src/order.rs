//! Which of several is next: pages, mailboxes, recipients.

use crate::pace::Ticket;

/// In which order a load takes what it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// One after the other, and again from the first
    Turn,
    /// Any, each as likely
    Random,
}

impl Order {
    /// The place among `count`, of which there is at least one.
    pub(crate) fn choose(self, ticket: Ticket, random: &mut fastrand::Rng, count: usize) -> usize {
        match self {
            Order::Turn => (ticket.number % count as u64) as usize,
            Order::Random => random.usize(..count),
        }
    }
}
