//! The control socket: the running server answers short questions of the operator. One line asks, lines answer,
//! and the end of the connection is the end of the answer. Whoever may open the socket may ask: it is made with
//! mode 0600.
//!
//! | question | answer |
//! |---|---|
//! | `count` | a number: recipients that wait |
//! | `list` | an object of JSON for each recipient that waits |
//! | `status` | metrics in the text format of Prometheus |

use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use intake::Desk;
use mail::{Envelope, QueueId};
use queue::{Entry, Progress};
use serde_json::{Value, json};
use spool::Spool;

use crate::cli::QueueList;
use crate::config::Config;
use crate::exit::{self, Exit};
use crate::flow::Mailbag;
use crate::log::{Level, Log};
use crate::metrics;

/// Somebody who asks and does not read holds up the others for no longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The server's side.
pub struct Server {
    socket: PathBuf,
}

struct Clerk {
    mailbag: Mailbag,
    desk: Arc<Desk>,
    log: Arc<Log>,
}

impl Server {
    /// Binds the socket, in place of one that a dead server left, and answers on a thread of its own.
    pub fn start(socket: &Path, mailbag: Mailbag, desk: Arc<Desk>, log: Arc<Log>) -> anyhow::Result<Server> {
        let bound = bind(socket).with_context(|| format!("the control socket {}", socket.display()))?;
        let clerk = Clerk { mailbag, desk, log };
        thread::Builder::new().name("admin".into()).spawn(move || clerk.work(&bound))?;
        Ok(Server { socket: socket.to_owned() })
    }

    /// Takes the socket away; the thread ends with the process.
    pub fn stop(self) {
        // A leftover is replaced at the next start.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// The lanes are locked by now, so a socket that is there belongs to nobody who lives.
fn bind(socket: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let bound = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, PermissionsExt::from_mode(0o600))?;
    Ok(bound)
}

impl Clerk {
    fn work(self, listener: &UnixListener) {
        for stream in listener.incoming() {
            if let Err(error) = stream.and_then(|stream| self.answer(&stream)) {
                self.log.event(Level::Warning, "a question on the control socket", &[("error", &error)]);
            }
        }
    }

    fn answer(&self, stream: &UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut question = String::new();
        BufReader::new(stream).read_line(&mut question)?;
        let mut out = BufWriter::new(stream);
        match question.trim() {
            "count" => writeln!(out, "{}", self.mailbag.count().unwrap_or(0))?,
            "list" => self.list(&mut out)?,
            "status" => out.write_all(metrics::text(&self.desk, &self.mailbag, &self.log).as_bytes())?,
            other => writeln!(out, "unknown question: {other}")?,
        }
        out.flush()
    }

    fn list(&self, out: &mut impl Write) -> io::Result<()> {
        let mut entries = self.mailbag.list().unwrap_or_default();
        entries.sort_unstable_by_key(|entry| (entry.accepted_at, entry.id, entry.ordinal));
        let mut page = Page { spool: &self.desk.spool, read: None };
        for entry in entries {
            // What was delivered since the question is not in the list any more.
            if let Some(line) = page.line(&entry) {
                writeln!(out, "{line}")?;
            }
        }
        Ok(())
    }
}

/// Reads each message's envelope once, however many recipients it has.
struct Page<'a> {
    spool: &'a Spool,
    read: Option<(QueueId, Envelope, u64)>,
}

impl Page<'_> {
    fn line(&mut self, entry: &Entry) -> Option<Value> {
        if self.read.as_ref().is_none_or(|(id, ..)| *id != entry.id) {
            let stored = self.spool.message(entry.id).ok()?;
            self.read = Some((entry.id, stored.envelope, stored.body.len()));
        }
        let (id, envelope, size) = self.read.as_ref()?;
        let recipient = envelope.recipients.get(entry.ordinal as usize)?;
        let (state, until) = match entry.progress {
            Progress::Ready => ("ready", None),
            Progress::InFlight => ("in flight", None),
            Progress::Waiting(until) => ("waiting", Some(until.rfc3339_date())),
        };
        Some(json!({
            "id": id.to_string(),
            "sender": envelope.sender.as_ref().map_or("", |sender| sender.as_str()),
            "recipient": recipient.address.as_str(),
            "size": size,
            "accepted": envelope.accepted_at.rfc3339_date(),
            "attempts": entry.attempts,
            "state": state,
            "until": until,
        }))
    }
}

/// `mailrace queue list`.
pub fn list(config: &Config, how: &QueueList) -> anyhow::Result<()> {
    let answer = ask(config, if how.count { "count" } else { "list" })?;
    let mut out = BufWriter::new(io::stdout().lock());
    for line in answer.lines() {
        let line = line?;
        if how.count || how.json {
            writeln!(out, "{line}")?;
        } else {
            let entry: Value = serde_json::from_str(&line)?;
            writeln!(out, "{}", human(&entry))?;
        }
    }
    Ok(out.flush()?)
}

/// `mailrace status`.
pub fn status(config: &Config) -> anyhow::Result<()> {
    io::copy(&mut ask(config, "status")?, &mut io::stdout().lock())?;
    Ok(())
}

fn human(entry: &Value) -> String {
    let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let state = match entry["until"].as_str() {
        Some(until) => format!("waiting until {until}, {} attempts", entry["attempts"]),
        None => text("state"),
    };
    let (id, accepted, size) = (text("id"), text("accepted"), &entry["size"]);
    format!("{id}  {accepted}  {size:>9}  <{}> to <{}>: {state}", text("sender"), text("recipient"))
}

fn ask(config: &Config, question: &str) -> anyhow::Result<BufReader<UnixStream>> {
    let socket = &config.admin.socket;
    let stream = UnixStream::connect(socket).map_err(|error| Exit {
        code: exit::UNAVAILABLE,
        text: format!("the server does not answer on {}: {error}", socket.display()),
    })?;
    writeln!(&stream, "{question}")?;
    Ok(BufReader::new(stream))
}
