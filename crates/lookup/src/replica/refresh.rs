//! The client side of one Sync Operation (RFC 4533): takes messages of the server and gives actions
//! for the copy.
//!
//! | stage   | message                          | action                                                     | section |
//! |---------|----------------------------------|------------------------------------------------------------|---------|
//! | refresh | entry add, modify                | [`Put`](Act::Put)                                          | 3.3.2   |
//! | refresh | entry present, set of present    | [`Keep`](Act::Keep)                                        | 3.3.2   |
//! | refresh | entry delete, set of deleted     | [`Gone`](Act::Gone), at the end of the refresh             | 3.3.2   |
//! | refresh | refreshPresent, end with refreshDeletes false | removes unmentioned entries at the end        | 1.3.1   |
//! | refresh | refreshDone, end with success    | [`Agreed`](Act::Agreed), then the persist stage            | 3.4.1   |
//! | persist | entry add, modify                | [`Put`](Act::Put)                                          | 3.4.2   |
//! | persist | entry delete, set of deleted     | [`Remove`](Act::Remove)                                    | 3.4.2   |
//! | any     | end with e-syncRefreshRequired   | [`Restart`](Act::Restart), without a cookie                | 3.8     |
//!
//! A cookie covers everything before it, including removals. In a refresh removals come last, so
//! cookies are held until [`Agreed`](Act::Agreed); an interrupted refresh continues from the old
//! cookie and misses nothing. In the persist stage a cookie is valid immediately. A refresh without
//! a cookie mentions all entries (section 3.3.1), so unmentioned ones are removed however it ends.

use std::collections::VecDeque;

use super::batch::Uuid;

/// Result code: the server cannot tell what changed since the cookie (RFC 4533 section 2.6).
pub(super) const REFRESH_REQUIRED: u32 = 4096;
/// Result code of success (RFC 4511 appendix A).
pub(super) const SUCCESS: u32 = 0;

/// A message of the server, without the content of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A SearchResultEntry with a Sync State Control (section 2.3).
    Entry {
        state: State,
        uuid: Uuid,
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
        uuids: Vec<Uuid>,
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
pub(super) enum State {
    Present,
    Add,
    Modify,
    Delete,
}

/// An action for the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Add or replace the entry of this message.
    Put(Uuid),
    /// The entry is unchanged. If the copy does not have it the copy is invalid: start again
    /// without a cookie.
    Keep(Uuid),
    /// Remove the entry at the end of the refresh.
    Gone(Uuid),
    /// Remove all entries without a Put or Keep at the end of the refresh.
    GoneUnmentioned,
    /// Remove the entry.
    Remove(Uuid),
    /// End the refresh. After its removals the copy matches the server, up to this cookie.
    Agreed(Option<Vec<u8>>),
    /// This cookie covers all changes so far.
    Cookie(Vec<u8>),
    /// The cookie is invalid: request again without one.
    Restart,
    /// The operation ended with this result code.
    Ended(u32),
}

/// One operation.
#[derive(Debug)]
pub(super) struct Refresh {
    stage: Stage,
    with_cookie: bool,
    cookie: Option<Vec<u8>>,
    acts: VecDeque<Act>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Refresh,
    Persist,
    Over,
}

impl Refresh {
    /// An operation requested with or without a cookie.
    pub(super) fn new(with_cookie: bool) -> Self {
        Refresh { stage: Stage::Refresh, with_cookie, cookie: None, acts: VecDeque::new() }
    }

    /// Whether the refresh has ended and changes arrive as they happen.
    pub(super) fn is_live(&self) -> bool {
        self.stage == Stage::Persist
    }

    /// Handles the next message of the server.
    pub(super) fn handle_message(&mut self, message: Message) {
        if self.stage == Stage::Over {
            return;
        }
        match message {
            Message::Entry { state, uuid, cookie } => {
                self.handle_entry(state, uuid);
                self.handle_cookie(cookie);
            }
            Message::NewCookie(cookie) => self.handle_cookie(Some(cookie)),
            Message::IdSet { cookie, deletes, uuids } => {
                let state = if deletes { State::Delete } else { State::Present };
                uuids.into_iter().for_each(|uuid| self.handle_entry(state, uuid));
                self.handle_cookie(cookie);
            }
            Message::RefreshDelete { cookie, done } => self.handle_phase_end(cookie, true, done),
            Message::RefreshPresent { cookie, done } => self.handle_phase_end(cookie, false, done),
            Message::Done { code, cookie, deletes } => self.handle_done(code, cookie, deletes),
        }
    }

    /// The next action, in order.
    pub(super) fn poll_act(&mut self) -> Option<Act> {
        self.acts.pop_front()
    }

    fn handle_entry(&mut self, state: State, uuid: Uuid) {
        let act = match (state, self.stage) {
            (State::Add | State::Modify, _) => Act::Put(uuid),
            (State::Delete, Stage::Refresh) => Act::Gone(uuid),
            (State::Delete, _) => Act::Remove(uuid),
            (State::Present, Stage::Refresh) => Act::Keep(uuid),
            // Meaningless after the refresh.
            (State::Present, _) => return,
        };
        self.acts.push_back(act);
    }

    fn handle_cookie(&mut self, cookie: Option<Vec<u8>>) {
        match (self.stage, cookie) {
            (_, None) => {}
            (Stage::Persist, Some(cookie)) => self.acts.push_back(Act::Cookie(cookie)),
            (_, cookie) => self.cookie = cookie,
        }
    }

    fn handle_phase_end(&mut self, cookie: Option<Vec<u8>>, deletes: bool, done: bool) {
        self.handle_cookie(cookie);
        // Some servers repeat the end of the refresh to send a cookie.
        if self.stage != Stage::Refresh {
            return;
        }
        if !deletes || (done && !self.with_cookie) {
            self.acts.push_back(Act::GoneUnmentioned);
        }
        if done {
            self.acts.push_back(Act::Agreed(self.cookie.take()));
            self.stage = Stage::Persist;
        }
    }

    fn handle_done(&mut self, code: u32, cookie: Option<Vec<u8>>, deletes: bool) {
        match code {
            // The refresh is complete even if the server does not continue with the persist stage.
            SUCCESS => self.handle_phase_end(cookie, deletes, true),
            REFRESH_REQUIRED if self.with_cookie || self.stage == Stage::Persist => self.acts.push_back(Act::Restart),
            // A refresh that ends early has not reached the state of its cookie. In the persist
            // stage the cookie is the newest one (section 3.7).
            _ if self.stage == Stage::Persist => self.handle_cookie(cookie),
            _ => {}
        }
        self.acts.push_back(Act::Ended(code));
        self.stage = Stage::Over;
    }
}

#[cfg(test)]
#[path = "refresh_tests.rs"]
mod tests;
