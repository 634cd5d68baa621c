//! The request to reload the configuration, which the process carries out and answers.

use std::sync::mpsc::{self, Receiver};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedSender;

/// The channel for reload requests.
pub type ReloadSender = UnboundedSender<ReloadRequest>;

/// A request to reload, with a channel for the answer.
pub struct ReloadRequest {
    answer: mpsc::Sender<ReloadAnswer>,
}

/// The result of a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ReloadAnswer {
    /// The configuration is in force.
    InForce {
        /// Its file, or that it is the built-in one.
        source: String,
        /// What has changed, and what is likely to be a mistake; never empty.
        changes: Vec<String>,
    },
    /// It is refused, and the old one stays in force.
    Refused {
        /// The exit code of the command.
        exit_code: u8,
        /// The errors, with the lines of the configuration that have them. Secrets in these are masked where
        /// the text is, so no client gets the errors without their lines.
        errors: String,
    },
}

impl ReloadRequest {
    /// A request, and the receiver of its answer. No answer comes if the server ends first.
    pub fn new() -> (Self, Receiver<ReloadAnswer>) {
        let (answer, answered) = mpsc::channel();
        (ReloadRequest { answer }, answered)
    }

    /// Answers the request.
    pub fn reply(self, answer: ReloadAnswer) {
        // The caller may be gone.
        drop(self.answer.send(answer));
    }
}
