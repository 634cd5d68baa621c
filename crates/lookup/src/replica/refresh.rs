//! One Sync Operation as its client sees it (RFC 4533): messages of the server in, what to do with the copy out.
//!
//! | stage   | message                          | means                                                      | section |
//! |---------|----------------------------------|------------------------------------------------------------|---------|
//! | refresh | entry add, modify                | [`Put`](Act::Put)                                          | 3.3.2   |
//! | refresh | entry present, set of present    | [`Keep`](Act::Keep)                                        | 3.3.2   |
//! | refresh | entry delete, set of deleted     | [`Gone`](Act::Gone), when the refresh ends                 | 3.3.2   |
//! | refresh | refreshPresent, end with refreshDeletes false | what was not mentioned is gone, when it ends  | 1.3.1   |
//! | refresh | refreshDone, end with success    | [`Agreed`](Act::Agreed), and the persist stage             | 3.4.1   |
//! | persist | entry add, modify                | [`Put`](Act::Put)                                          | 3.4.2   |
//! | persist | entry delete, set of deleted     | [`Remove`](Act::Remove) at once                            | 3.4.2   |
//! | any     | end with e-syncRefreshRequired   | [`Restart`](Act::Restart), without a cookie                | 3.8     |
//!
//! A cookie is the state after everything that came before it, removals included. In a refresh removals come last, so a
//! cookie that arrives meanwhile is kept back until [`Agreed`](Act::Agreed): whoever stops before that goes on from the
//! cookie that he had, and misses nothing. In the persist stage a cookie counts from where it stands.
//!
//! A refresh that began without a cookie mentions everything there is (section 3.3.1): whichever way it ends, what it did
//! not mention is gone.

use std::collections::VecDeque;

use super::batch::Uuid;

/// Of a result: the server cannot tell what changed since the cookie (RFC 4533 section 2.6).
pub(super) const REFRESH_REQUIRED: u32 = 4096;
/// Of a result: it is over, and all is well (RFC 4511 appendix A).
pub(super) const SUCCESS: u32 = 0;

/// What a server says, but for the contents of entries.
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

/// Of an entry, in its Sync State Control (section 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Present,
    Add,
    Modify,
    Delete,
}

/// What to do with the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// The entry of this message is in the content, as it is there.
    Put(Uuid),
    /// The entry is in the content, as the copy has it. If the copy has it not, it is no copy: start anew without a cookie.
    Keep(Uuid),
    /// The entry is not in the content. To be removed when the refresh ends.
    Gone(Uuid),
    /// What was neither put nor kept since the refresh began is not in the content. The same.
    GoneUnmentioned,
    /// The entry was removed from the content just now.
    Remove(Uuid),
    /// The refresh is over: when what is gone is removed the copy agrees with the content, up to this cookie.
    Agreed(Option<Vec<u8>>),
    /// All changes so far are in this cookie.
    Cookie(Vec<u8>),
    /// The cookie is worth nothing: ask again without one.
    Restart,
    /// The operation is over, with this result.
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
    /// An operation that was asked for with or without a cookie.
    pub(super) fn new(with_cookie: bool) -> Self {
        Refresh { stage: Stage::Refresh, with_cookie, cookie: None, acts: VecDeque::new() }
    }

    /// Whether the refresh is over and changes come as they are made.
    pub(super) fn is_live(&self) -> bool {
        self.stage == Stage::Persist
    }

    /// Takes what the server says next.
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

    /// What to do next, in this order.
    pub(super) fn poll_act(&mut self) -> Option<Act> {
        self.acts.pop_front()
    }

    fn handle_entry(&mut self, state: State, uuid: Uuid) {
        let act = match (state, self.stage) {
            (State::Add | State::Modify, _) => Act::Put(uuid),
            (State::Delete, Stage::Refresh) => Act::Gone(uuid),
            (State::Delete, _) => Act::Remove(uuid),
            (State::Present, Stage::Refresh) => Act::Keep(uuid),
            // Nothing is said by it once the refresh is over.
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
        // Some servers repeat the end of the refresh to hand out a cookie.
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
            // A server that ends the operation where it should persist has refreshed nevertheless.
            SUCCESS => self.handle_phase_end(cookie, deletes, true),
            REFRESH_REQUIRED if self.with_cookie || self.stage == Stage::Persist => self.acts.push_back(Act::Restart),
            // Whoever ends a refresh early has not got to where its cookie goes; in the persist stage it is the newest one
            // (section 3.7).
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
