//! The start of the node that had the lane first, and still has its disk: it asks whose the lane is, in
//! the order that `cluster::lane::ownership` prescribes.

use std::time::Duration;

use cluster::lane::ownership::LaneOwnership;
use cluster::lane::{BootTime, StreamTail};
use cluster::record::EpochRecord;

/// A question without an answer is asked again after this time.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is asked of the servers, beside the records of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    NewestEpoch,
    IsClosed,
    MakeStream,
    Tail,
    /// Note that the lane is closed.
    Close,
    DeleteStream,
}

/// What the servers say.
#[derive(Clone, Debug)]
pub(crate) enum Fact {
    NewestEpoch(Option<EpochRecord>),
    IsClosed(bool),
    /// None: there is no stream.
    Tail(Option<StreamTail>),
    Done,
}

/// What comes of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    GoOn,
    /// The disk is not opened.
    Gone,
    /// The lane is claimed while this is the end of its stream.
    Claim(StreamTail),
}

pub(crate) struct Start {
    name: String,
    disk_epoch: u32,
    stage: Stage,
    /// Counts the questions: an answer to an earlier one is none.
    asked: u64,
    due: BootTime,
}

#[derive(Clone, Copy)]
enum Stage {
    Owner,
    Closed,
    Stream,
    End,
    OwnerAgain(StreamTail),
    ClosedAgain(StreamTail),
}

impl Start {
    pub(crate) fn new(name: String, disk_epoch: u32, now: BootTime) -> Self {
        Start { name, disk_epoch, stage: Stage::Owner, asked: 0, due: now }
    }

    pub(crate) fn timeout(&self) -> BootTime {
        self.due
    }

    /// The next question, if it is due.
    pub(crate) fn poll_question(&mut self, now: BootTime) -> Option<(u64, Question)> {
        if now < self.due {
            return None;
        }
        self.asked += 1;
        self.due = now.after(PATIENCE);
        let question = match self.stage {
            Stage::Owner | Stage::OwnerAgain(_) => Question::NewestEpoch,
            Stage::Closed | Stage::ClosedAgain(_) => Question::IsClosed,
            Stage::Stream => Question::MakeStream,
            Stage::End => Question::Tail,
        };
        Some((self.asked, question))
    }

    pub(crate) fn handle(&mut self, number: u64, fact: Fact, now: BootTime) -> Decision {
        if number != self.asked {
            return Decision::GoOn;
        }
        let ownership = self.ownership(&fact);
        self.due = now;
        self.stage = match (self.stage, fact) {
            (_, Fact::NewestEpoch(Some(_)) | Fact::IsClosed(_)) if ownership != LaneOwnership::Ours => {
                return Decision::Gone;
            }
            (Stage::Owner, Fact::NewestEpoch(None)) => Stage::Closed,
            (Stage::Owner, Fact::NewestEpoch(Some(_))) | (Stage::Closed, Fact::IsClosed(_)) => Stage::Stream,
            (Stage::Stream, Fact::Done) => Stage::End,
            (Stage::End, Fact::Tail(Some(tail))) => Stage::OwnerAgain(tail),
            (Stage::OwnerAgain(tail), Fact::NewestEpoch(None)) => Stage::ClosedAgain(tail),
            (Stage::OwnerAgain(tail), Fact::NewestEpoch(Some(_))) | (Stage::ClosedAgain(tail), Fact::IsClosed(_)) => {
                return Decision::Claim(tail);
            }
            // The stream is gone since.
            _ => Stage::Owner,
        };
        Decision::GoOn
    }

    fn ownership(&self, fact: &Fact) -> LaneOwnership {
        let (newest, is_closed) = match fact {
            Fact::NewestEpoch(newest) => (newest.as_ref(), false),
            Fact::IsClosed(is_closed) => (None, *is_closed),
            Fact::Tail(_) | Fact::Done => (None, false),
        };
        LaneOwnership::decide(&self.name.parse().unwrap(), self.disk_epoch, newest, is_closed)
    }
}
