//! Finds a message in the log of the server, for operators. The end of the log is read, up to
//! [`LOG_OCTETS_MAX`], and the log before the last rotation, if it is beside it with the suffix `.1`. A
//! log that cannot be read is an error of the request alone.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use control::{MessageHistory, MessageLog, MessageLogEvent};
use mail::QueueId;
use server_log::{LineKind, LogSettings, LogTarget, parse_line};

use crate::log_lines::{LINE_OCTETS_MAX, next_line};

/// Octets of the log that are searched for a message.
const LOG_OCTETS_MAX: u64 = 64 << 20;
/// Events of one message that are shown: the last ones.
const EVENTS_MAX: usize = 1000;
/// Names a user, whom not every reader of the log may see.
const USER_FIELD: &str = "user";

/// The log of these settings; None if it is not a file.
pub fn of(settings: &LogSettings) -> Option<Arc<dyn MessageLog>> {
    match &settings.to {
        LogTarget::File(path) => Some(Arc::new(LogFile { path: path.clone(), octets_max: LOG_OCTETS_MAX })),
        LogTarget::Stderr => None,
    }
}

/// A log in a file.
struct LogFile {
    path: PathBuf,
    octets_max: u64,
}

impl LogFile {
    /// The log before the last rotation.
    fn rotated(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".1");
        path.into()
    }
}

impl MessageLog for LogFile {
    fn history(&self, id: QueueId) -> io::Result<MessageHistory> {
        let mut search = Search { id: id.to_string(), events: VecDeque::new(), may_lack_earlier: false };
        let length = self.path.metadata()?.len();
        match open(&self.rotated(), self.octets_max.saturating_sub(length))? {
            Some((mut older, is_whole)) => {
                // Logs before this one may exist.
                search.may_lack_earlier = !is_whole || length >= self.octets_max;
                search.read(&mut older)?;
            }
            None => search.may_lack_earlier = length > self.octets_max,
        }
        if let Some((mut log, _)) = open(&self.path, self.octets_max)? {
            search.read(&mut log)?;
        }
        let has_beginning = search.events.front().is_some_and(|event| event.event == "received");
        search.may_lack_earlier &= !has_beginning;
        Ok(MessageHistory { events: search.events.into(), may_lack_earlier: search.may_lack_earlier })
    }
}

/// The last octets of a log, and whether these are all; None if there is no such file.
fn open(path: &Path, octets_max: u64) -> io::Result<Option<(BufReader<File>, bool)>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    let start = length.saturating_sub(octets_max);
    file.seek(SeekFrom::Start(start))?;
    Ok(Some((BufReader::with_capacity(LINE_OCTETS_MAX, file), start == 0)))
}

/// The events of a message that were found so far.
struct Search {
    id: String,
    events: VecDeque<MessageLogEvent>,
    may_lack_earlier: bool,
}

impl Search {
    fn read(&mut self, log: &mut dyn BufRead) -> io::Result<()> {
        let mut line = Vec::new();
        while next_line(log, &mut line)? {
            let found =
                str::from_utf8(&line).ok().filter(|line| line.contains(&self.id)).and_then(|line| self.event(line));
            self.events.extend(found);
            if self.events.len() > EVENTS_MAX {
                self.events.pop_front();
                self.may_lack_earlier = true;
            }
        }
        Ok(())
    }

    /// The event of a line, if it is about the message.
    fn event(&self, line: &str) -> Option<MessageLogEvent> {
        let line = parse_line(line)?;
        let LineKind::Mail(kind) = line.kind else { return None };
        if line.text("id") != self.id {
            return None;
        }
        let shown = kind.fields().iter().filter(|name| !["id", USER_FIELD].contains(name));
        let fields = shown.filter(|name| !line.text(name).is_empty());
        Some(MessageLogEvent {
            time: line.time.to_string(),
            event: kind.name().to_owned(),
            fields: fields.map(|name| ((*name).to_owned(), line.text(name).to_owned())).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use mail::SpoolId;

    use super::*;

    fn line(second: u32, event: &str, id: QueueId, rest: &str) -> String {
        format!("2026-11-20T17:46:{second:02}.000Z {event} id={id} {rest}\n")
    }

    #[test]
    fn a_message_is_found_in_the_log_and_in_the_one_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let [id, other] = [1, 2].map(|sequence| QueueId::new(SpoolId::new(7), 0, sequence));
        let path = folder.path().join("mailrace.log");
        let received = line(1, "received", id, "from=<a@b.example> user=anna");
        let deferred = line(2, "deferred", id, "to=<c@d.example> reason=\"450 later\"");
        let old = [received, line(1, "received", other, "from=<>"), deferred].concat();
        fs::write(folder.path().join("mailrace.log.1"), &old).unwrap();
        let noise = format!("not a line with {id}\n{}", line(3, "bounced", other, &format!("bounce={id}")));
        let delivered = line(4, "delivered", id, "to=<c@d.example> reply=\"250 ok\"");
        fs::write(&path, format!("{noise}{delivered}")).unwrap();

        let log = LogFile { path: path.clone(), octets_max: LOG_OCTETS_MAX };
        let history = log.history(id).unwrap();
        let names: Vec<_> = history.events.iter().map(|event| &*event.event).collect();
        assert_eq!((names, history.may_lack_earlier), (vec!["received", "deferred", "delivered"], false));
        assert_eq!(history.events[0].fields, [("from".to_owned(), "<a@b.example>".to_owned())].into());
        assert_eq!(history.events[1].fields["reason"], "450 later");

        let short = LogFile { path, octets_max: noise.len() as u64 + delivered.len() as u64 + 80 };
        let history = short.history(id).unwrap();
        let names: Vec<_> = history.events.iter().map(|event| &*event.event).collect();
        assert_eq!((names, history.may_lack_earlier), (vec!["deferred", "delivered"], true));
        let none = QueueId::new(SpoolId::new(7), 0, 3);
        assert!(short.history(none).unwrap().events.is_empty());
    }

    #[test]
    fn a_log_that_cannot_be_read_is_an_error() {
        let log = LogFile { path: "/nowhere/mailrace.log".into(), octets_max: 1 };
        assert!(log.history(QueueId::new(SpoolId::new(7), 0, 1)).is_err());
    }
}
