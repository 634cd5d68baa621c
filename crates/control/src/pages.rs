//! Long lists in pages: what a client asks for, and what it gets. Where a page begins is a text that
//! means nothing to clients.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::list::QueuedRecipient;
use crate::summary::{DestinationStatus, NextHopStatus};

/// The page of recipients that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageRequest {
    /// The slot that it begins with.
    pub(crate) from: u32,
    /// The most recipients on it.
    pub(crate) limit: usize,
}

/// A page of recipients, in no particular order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct RecipientPage {
    /// The recipients. A page can be short, or empty, before the last one.
    pub recipients: Vec<QueuedRecipient>,
    /// Messages that were left out of this page because they cannot be read; the log names the first one.
    pub unreadable: usize,
    /// The cursor of the next page; null: this is the last one.
    pub next: Option<String>,
}

/// A page of destinations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct DestinationPage {
    /// The destinations, in the order that was asked for.
    pub destinations: Vec<DestinationStatus>,
    /// The cursor of the next page; null: this is the last one, or the order has no pages.
    pub next: Option<String>,
}

/// A page of next hops.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct NextHopPage {
    /// The next hops, in the order that was asked for.
    pub next_hops: Vec<NextHopStatus>,
    /// The cursor of the next page; null: this is the last one, or the order has no pages.
    pub next: Option<String>,
}
