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

/// The result of a reload, as the command prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReloadAnswer {
    /// The exit code; 0: the configuration is in force.
    pub code: u8,
    /// The output, in lines.
    pub text: String,
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
