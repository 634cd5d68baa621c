//! The stages of a session at which checks run.

use mail::Reply;

use crate::replies;

/// The point in a session at which a check runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Before the banner.
    Connect,
    /// HELO, EHLO or LHLO.
    Helo,
    /// MAIL.
    Mail,
    /// RCPT.
    Rcpt,
    /// DATA, before the message is sent.
    Data,
    /// The end of the message, before it is stored.
    Message,
}

impl Stage {
    /// All stages, in the order of a session.
    pub const ALL: [Stage; 6] = [Stage::Connect, Stage::Helo, Stage::Mail, Stage::Rcpt, Stage::Data, Stage::Message];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Connect => "connect",
            Stage::Helo => "helo",
            Stage::Mail => "mail",
            Stage::Rcpt => "rcpt",
            Stage::Data => "data",
            Stage::Message => "message",
        }
    }

    /// The reply of a refusal without a text of its own (RFC 5321 sections 3.1 and 4.2.2).
    pub fn default_refusal_reply(self) -> Reply {
        if self == Stage::Connect { replies::CLIENT_DENIED } else { replies::DENIED }
    }

    /// The reply of a deferral without a text of its own.
    pub fn default_deferral_reply(self) -> Reply {
        match self {
            Stage::Connect => replies::CLIENT_DEFERRED,
            Stage::Rcpt => replies::RECIPIENT_DEFERRED,
            Stage::Helo | Stage::Mail | Stage::Data | Stage::Message => replies::DEFERRED,
        }
    }
}

/// A set of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages(u8);

impl Stages {
    /// Whether the stage is in the set.
    pub fn contains(self, stage: Stage) -> bool {
        self.0 & (1 << stage as u8) != 0
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<Stage> for Stages {
    fn from_iter<I: IntoIterator<Item = Stage>>(stages: I) -> Stages {
        Stages(stages.into_iter().fold(0, |set, stage| set | 1 << stage as u8))
    }
}
