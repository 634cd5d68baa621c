//! The client side of one Sync Operation (RFC 4533): takes messages of the server and gives actions
//! for the copy.
//!
//! | stage   | message                          | action                                                     | section |
//! |---------|----------------------------------|------------------------------------------------------------|---------|
//! | refresh | entry add, modify                | [`Put`](SyncAction::Put)                                          | 3.3.2   |
//! | refresh | entry present, set of present    | [`Keep`](SyncAction::Keep)                                        | 3.3.2   |
//! | refresh | entry delete, set of deleted     | [`Gone`](SyncAction::Gone), at the end of the refresh             | 3.3.2   |
//! | refresh | refreshPresent, end with refreshDeletes false | removes unmentioned entries at the end        | 1.3.1   |
//! | refresh | refreshDone, end with success    | [`RefreshDone`](SyncAction::RefreshDone), then the persist stage            | 3.4.1   |
//! | persist | entry add, modify                | [`Put`](SyncAction::Put)                                          | 3.4.2   |
//! | persist | entry delete, set of deleted     | [`Remove`](SyncAction::Remove)                                    | 3.4.2   |
//! | any     | end with e-syncRefreshRequired   | [`Restart`](SyncAction::Restart), without a cookie                | 3.8     |
//!
//! A cookie covers everything before it, including removals. In a refresh removals come last, so
//! cookies are held until [`RefreshDone`](SyncAction::RefreshDone); an interrupted refresh
//! continues from the old cookie and misses nothing. In the persist stage a cookie is valid
//! immediately. A refresh without a cookie mentions all entries (section 3.3.1), so unmentioned
//! ones are removed however it ends.

use std::collections::VecDeque;

use super::batch::EntryUuid;

/// Result code: the server cannot tell what changed since the cookie (RFC 4533 section 2.6).
pub(super) const REFRESH_REQUIRED: u32 = 4096;
/// Result code of success (RFC 4511 appendix A).
pub(super) const SUCCESS: u32 = 0;

/// A message of the server, without the content of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SyncMessage {
    /// A SearchResultEntry with a Sync State Control (section 2.3).
    Entry {
        state: EntryState,
        uuid: EntryUuid,
        cookie: Option<Vec<u8>>,
    },
    /// Sync Info Messages (section 2.5).
    NewCookie(Vec<u8>),
    RefreshDelete {
        cookie: Option<Vec<u8>>,
        done: bool,
    },
    RefreshPresent {
        cookie: Option<Vec<u8>>,
        done: bool,
    },
    IdSet {
        cookie: Option<Vec<u8>>,
        deletes: bool,
        uuids: Vec<EntryUuid>,
    },
    /// A SearchResultDone with a Sync Done Control (section 2.4).
    Done {
        code: u32,
        cookie: Option<Vec<u8>>,
        deletes: bool,
    },
}

/// The state of an entry in its Sync State Control (section 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryState {
    Present,
    Add,
    Modify,
    Delete,
}

/// An action for the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SyncAction {
    /// Add or replace the entry of this message.
    Put(EntryUuid),
    /// The entry is unchanged. If the copy does not have it the copy is invalid: start again
    /// without a cookie.
    Keep(EntryUuid),
    /// Remove the entry at the end of the refresh.
    Gone(EntryUuid),
    /// Remove all entries without a Put or Keep at the end of the refresh.
    GoneUnmentioned,
    /// Remove the entry.
    Remove(EntryUuid),
    /// End the refresh. After its removals the copy matches the server, up to this cookie.
    RefreshDone(Option<Vec<u8>>),
    /// This cookie covers all changes so far.
    Cookie(Vec<u8>),
    /// The cookie is invalid: request again without one.
    Restart,
    /// The operation ended with this result code.
    Ended(u32),
}

/// One operation.
#[derive(Debug)]
pub(super) struct SyncOperation {
    stage: SyncStage,
    with_cookie: bool,
    cookie: Option<Vec<u8>>,
    actions: VecDeque<SyncAction>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncStage {
    Refresh,
    Persist,
    Ended,
}

impl SyncOperation {
    /// An operation requested with or without a cookie.
    pub(super) fn new(with_cookie: bool) -> Self {
        SyncOperation { stage: SyncStage::Refresh, with_cookie, cookie: None, actions: VecDeque::new() }
    }

    /// Whether the refresh has ended and changes arrive as they happen.
    pub(super) fn is_live(&self) -> bool {
        self.stage == SyncStage::Persist
    }

    /// Handles the next message of the server.
    pub(super) fn handle_message(&mut self, message: SyncMessage) {
        if self.stage == SyncStage::Ended {
            return;
        }
        match message {
            SyncMessage::Entry { state, uuid, cookie } => {
                self.handle_entry(state, uuid);
                self.handle_cookie(cookie);
            }
            SyncMessage::NewCookie(cookie) => self.handle_cookie(Some(cookie)),
            SyncMessage::IdSet { cookie, deletes, uuids } => {
                let state = if deletes { EntryState::Delete } else { EntryState::Present };
                uuids.into_iter().for_each(|uuid| self.handle_entry(state, uuid));
                self.handle_cookie(cookie);
            }
            SyncMessage::RefreshDelete { cookie, done } => self.handle_phase_end(cookie, true, done),
            SyncMessage::RefreshPresent { cookie, done } => self.handle_phase_end(cookie, false, done),
            SyncMessage::Done { code, cookie, deletes } => self.handle_done(code, cookie, deletes),
        }
    }

    /// The next action, in order.
    pub(super) fn poll_action(&mut self) -> Option<SyncAction> {
        self.actions.pop_front()
    }

    fn handle_entry(&mut self, state: EntryState, uuid: EntryUuid) {
        let action = match (state, self.stage) {
            (EntryState::Add | EntryState::Modify, _) => SyncAction::Put(uuid),
            (EntryState::Delete, SyncStage::Refresh) => SyncAction::Gone(uuid),
            (EntryState::Delete, _) => SyncAction::Remove(uuid),
            (EntryState::Present, SyncStage::Refresh) => SyncAction::Keep(uuid),
            // Meaningless after the refresh.
            (EntryState::Present, _) => return,
        };
        self.actions.push_back(action);
    }

    fn handle_cookie(&mut self, cookie: Option<Vec<u8>>) {
        match (self.stage, cookie) {
            (_, None) => {}
            (SyncStage::Persist, Some(cookie)) => self.actions.push_back(SyncAction::Cookie(cookie)),
            (_, cookie) => self.cookie = cookie,
        }
    }

    fn handle_phase_end(&mut self, cookie: Option<Vec<u8>>, deletes: bool, done: bool) {
        self.handle_cookie(cookie);
        // Some servers repeat the end of the refresh to send a cookie.
        if self.stage != SyncStage::Refresh {
            return;
        }
        if !deletes || (done && !self.with_cookie) {
            self.actions.push_back(SyncAction::GoneUnmentioned);
        }
        if done {
            self.actions.push_back(SyncAction::RefreshDone(self.cookie.take()));
            self.stage = SyncStage::Persist;
        }
    }

    fn handle_done(&mut self, code: u32, cookie: Option<Vec<u8>>, deletes: bool) {
        match code {
            // The refresh is complete even if the server does not continue with the persist stage.
            SUCCESS => self.handle_phase_end(cookie, deletes, true),
            REFRESH_REQUIRED if self.with_cookie || self.stage == SyncStage::Persist => {
                self.actions.push_back(SyncAction::Restart)
            }
            // A refresh that ends early has not reached the state of its cookie. In the persist
            // stage the cookie is the newest one (section 3.7).
            _ if self.stage == SyncStage::Persist => self.handle_cookie(cookie),
            _ => {}
        }
        self.actions.push_back(SyncAction::Ended(code));
        self.stage = SyncStage::Ended;
    }
}

#[cfg(test)]
#[path = "sync_operation_tests.rs"]
mod tests;
