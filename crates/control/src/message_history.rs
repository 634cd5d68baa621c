//! What happened to a message, as the log of the server has it: also after the message is finished. The
//! binary reads the log, behind a trait; this module only knows what it may find there.

use std::collections::BTreeMap;
use std::io;

use mail::QueueId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Finds the events of a message in the log. It reads a limited part of the log, and may take a second.
pub trait MessageLog: Send + Sync {
    /// The events of a message, in the order of the log.
    ///
    /// # Errors
    ///
    /// The log cannot be read.
    fn history(&self, id: QueueId) -> io::Result<MessageHistory>;
}

/// The events of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MessageHistory {
    /// In the order of the log; the last ones, if there are too many.
    pub events: Vec<MessageLogEvent>,
    /// Whether earlier events may be missing: the log is longer than what was searched, or was rotated
    /// twice.
    pub may_lack_earlier: bool,
}

/// An event in the life of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MessageLogEvent {
    /// When (RFC 3339).
    pub time: String,
    /// What, by its name in the log: `received`, `delivered`, `deferred`, `bounced`, `held` and the like.
    pub event: String,
    /// The other fields of the line by their names, which the page about the log explains. Without the
    /// user who sent the message.
    pub fields: BTreeMap<String, String>,
}

/// A line for each event, for people.
pub fn lines(history: &MessageHistory) -> Vec<String> {
    let line = |event: &MessageLogEvent| {
        let fields = event.fields.iter().map(|(name, value)| format!(" {name}={value}")).collect::<String>();
        format!("{} {}{fields}", event.time, event.event)
    };
    let gap = history.may_lack_earlier.then(|| "earlier events may be missing: see older logs".to_owned());
    gap.into_iter().chain(history.events.iter().map(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let fields = [("to", "<bob@a.example>"), ("reason", "450 4.2.1 later")];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let event = MessageLogEvent { time: "2026-11-20T17:46:16.123Z".into(), event: "deferred".into(), fields };
        let mut history = MessageHistory { events: vec![event], may_lack_earlier: false };
        let line = "2026-11-20T17:46:16.123Z deferred reason=450 4.2.1 later to=<bob@a.example>";
        assert_eq!(lines(&history), [line]);
        history.may_lack_earlier = true;
        assert_eq!(lines(&history), ["earlier events may be missing: see older logs", line]);
    }
}
