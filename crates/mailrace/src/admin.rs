//! The control socket: the running server answers short questions of the operator. Whoever may open the socket may
//! ask: it is made with mode 0600. One line asks; lines answer, and the last of them is `done`, or `failed: ` and
//! why. An answer that ends otherwise was cut short, and is none.
//!
//! | question | answer |
//! |---|---|
//! | `count` | a number: recipients that wait |
//! | `list` | an object of JSON for each recipient that waits |
//! | `status` | metrics in the text format of Prometheus |

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use intake::Desk;
use mail::{Envelope, QueueId};
use queue::{Entry, Progress};
use serde_json::{Value, json};
use spool::Spool;

use crate::cli::QueueList;
use crate::config::{Config, Durability};
use crate::exit::{self, Exit};
use crate::flow::Mailbag;
use crate::line::Level;
use crate::log::Log;
use crate::metrics::{self, Reading};

/// How long the server waits for one client in all: for the question, and again while it reads the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// A question with its line end.
const QUESTION_OCTETS_MAX: u64 = 1024;
/// Questions that are answered at once.
const CLERKS_MAX: usize = 8;
/// After a connection could not be taken, for want of files perhaps.
const PAUSE: Duration = Duration::from_millis(50);

/// The server's side.
pub struct Server {
    socket: PathBuf,
    listener: UnixListener,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Binds the socket, in place of one that a dead server left, and answers on threads of its own.
    pub fn start(config: &Config, mailbag: Mailbag, desk: Arc<Desk>, log: Arc<Log>) -> anyhow::Result<Server> {
        let socket = config.admin.socket.clone();
        let listener = bind(&socket).with_context(|| format!("the control socket {}", socket.display()))?;
        let stopping = Arc::new(AtomicBool::new(false));
        let relaxed = config.spool.durability != Durability::Commit;
        let office = Office {
            listener: listener.try_clone()?,
            stopping: stopping.clone(),
            clerk: Arc::new(Clerk { mailbag, desk, log, relaxed }),
            busy: Vec::new(),
        };
        let thread = thread::Builder::new().name("admin".into()).spawn(move || office.work())?;
        Ok(Server { socket, listener, stopping, thread })
    }

    /// Cuts off who is asking, takes the socket away, and returns when nothing here holds the desk any more.
    pub fn stop(self) {
        self.stopping.store(true, Relaxed);
        // Whoever waits in `accept` gets an error (unix(7) does not say so, but Linux has always done it).
        if rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).is_ok() {
            // A thread that panicked has said so already.
            drop(self.thread.join());
        }
        // A leftover is replaced at the next start.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// The lanes are locked by now, so a socket that is there belongs to nobody who lives. What is no socket is left.
fn bind(socket: &Path) -> io::Result<UnixListener> {
    if socket.symlink_metadata().is_ok_and(|there| there.file_type().is_socket()) {
        std::fs::remove_file(socket)?;
    }
    let bound = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, PermissionsExt::from_mode(0o600))?;
    Ok(bound)
}

/// Takes connections, and gives each to a clerk's thread.
struct Office {
    listener: UnixListener,
    stopping: Arc<AtomicBool>,
    clerk: Arc<Clerk>,
    /// The threads, and by what they can be cut off.
    busy: Vec<(JoinHandle<()>, UnixStream)>,
}

impl Office {
    fn work(mut self) {
        loop {
            let taken = self.listener.accept().and_then(|(stream, _)| self.hand_on(stream));
            if self.stopping.load(Relaxed) {
                break;
            }
            if let Err(error) = taken {
                self.clerk.complain(&error);
                thread::sleep(PAUSE);
            }
        }
        for (thread, stream) in self.busy {
            // It may have come to its end by itself.
            let _ = stream.shutdown(Shutdown::Both);
            drop(thread.join());
        }
    }

    fn hand_on(&mut self, stream: UnixStream) -> io::Result<()> {
        self.busy.retain(|(thread, _)| !thread.is_finished());
        if self.busy.len() >= CLERKS_MAX {
            // A few bytes into an empty socket never wait.
            return writeln!(&stream, "failed: {CLERKS_MAX} others are asking");
        }
        let (clerk, rope) = (self.clerk.clone(), stream.try_clone()?);
        let thread = thread::Builder::new().name("clerk".into()).spawn(move || clerk.serve(&stream))?;
        self.busy.push((thread, rope));
        Ok(())
    }
}

/// Answers questions.
struct Clerk {
    mailbag: Mailbag,
    desk: Arc<Desk>,
    log: Arc<Log>,
    relaxed: bool,
}

/// Why there is no answer, or none to the end.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    #[error("the server is stopping")]
    Stopping,
    #[error("unknown question: {0}")]
    Unknown(String),
    #[error(transparent)]
    Broken(#[from] io::Error),
}

impl Clerk {
    fn serve(&self, stream: &UnixStream) {
        let answered = read_question(stream).and_then(|question| {
            let mut out = BufWriter::new(Patient::new(stream));
            match self.answer(&question, &mut out) {
                Ok(()) => writeln!(out, "done")?,
                Err(Unanswered::Broken(error)) => return Err(error),
                Err(why) => writeln!(out, "failed: {why}")?,
            }
            out.flush()
        });
        if let Err(error) = answered {
            self.complain(&error);
        }
        // The office holds it too, so dropping it does not end the answer. The client may be gone.
        let _ = stream.shutdown(Shutdown::Both);
    }

    fn complain(&self, error: &io::Error) {
        self.log.event(Level::Warning, "a question on the control socket", &[("error", error)]);
    }

    fn answer(&self, question: &str, out: &mut impl Write) -> Result<(), Unanswered> {
        match question {
            "count" => writeln!(out, "{}", self.mailbag.ask(|queues| queues.len()).ok_or(Unanswered::Stopping)?)?,
            "list" => self.list(out)?,
            "status" => out.write_all(metrics::text(&self.reading()?).as_bytes())?,
            other => return Err(Unanswered::Unknown(other.escape_default().to_string())),
        }
        Ok(())
    }

    fn reading(&self) -> Result<Reading, Unanswered> {
        Ok(Reading {
            sessions: self.desk.gate.sessions(),
            recipients: self.mailbag.ask(|queues| queues.len()).ok_or(Unanswered::Stopping)?,
            log_lines_dropped: self.log.dropped(),
            relaxed: self.relaxed,
            spool: self.desk.spool.stats(),
        })
    }

    fn list(&self, out: &mut impl Write) -> Result<(), Unanswered> {
        let mut entries =
            self.mailbag.ask(|queues| queues.entries().collect::<Vec<_>>()).ok_or(Unanswered::Stopping)?;
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

fn read_question(stream: &UnixStream) -> io::Result<String> {
    let mut question = String::new();
    BufReader::new(Patient::new(stream)).take(QUESTION_OCTETS_MAX).read_line(&mut question)?;
    match question.strip_suffix('\n') {
        Some(line) => Ok(line.trim_end().to_owned()),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a line, or too long")),
    }
}

/// A stream for which one waits no longer than [`PATIENCE`] in all.
struct Patient<'a> {
    stream: &'a UnixStream,
    left: Duration,
}

impl<'a> Patient<'a> {
    fn new(stream: &'a UnixStream) -> Self {
        Patient { stream, left: PATIENCE }
    }

    fn wait<T>(&mut self, work: impl FnOnce(&UnixStream) -> io::Result<T>) -> io::Result<T> {
        if self.left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(self.left))?;
        self.stream.set_write_timeout(Some(self.left))?;
        let begin = Instant::now();
        let done = work(self.stream);
        self.left = self.left.saturating_sub(begin.elapsed());
        done
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait(|mut stream| stream.read(buffer))
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(|mut stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
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
        let (_, envelope, size) = self.read.as_ref()?;
        object(entry, envelope, *size)
    }
}

/// A recipient that waits, as JSON; None if the envelope has no such recipient.
fn object(entry: &Entry, envelope: &Envelope, size: u64) -> Option<Value> {
    let recipient = envelope.recipients.get(entry.ordinal as usize)?;
    let (state, until) = match entry.progress {
        Progress::Ready => ("ready", None),
        Progress::InFlight => ("in flight", None),
        Progress::Held => ("held", None),
        Progress::Waiting(until) => ("waiting", Some(until.rfc3339_date())),
    };
    Some(json!({
        "id": entry.id.to_string(),
        "sender": envelope.sender.as_ref().map_or("", |sender| sender.as_str()),
        "recipient": recipient.address.as_str(),
        "size": size,
        "accepted": envelope.accepted_at.rfc3339_date(),
        "attempts": entry.attempts,
        "state": state,
        "until": until,
    }))
}

/// `mailrace queue list`.
pub fn list(config: &Config, how: &QueueList) -> anyhow::Result<()> {
    let answer = ask(&config.admin.socket, if how.count { "count" } else { "list" })?;
    let mut out = BufWriter::new(io::stdout().lock());
    for line in answer.lines() {
        if how.count || how.json {
            writeln!(out, "{line}")?;
        } else {
            let entry: Value = serde_json::from_str(line)?;
            writeln!(out, "{}", human(&entry))?;
        }
    }
    Ok(out.flush()?)
}

/// `mailrace status`.
pub fn status(config: &Config) -> anyhow::Result<()> {
    let answer = ask(&config.admin.socket, "status")?;
    Ok(io::stdout().lock().write_all(answer.as_bytes())?)
}

fn human(entry: &Value) -> String {
    let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let state = match entry["until"].as_str() {
        Some(until) => format!("waiting until {until}, {} attempts", entry["attempts"]),
        None => text("state"),
    };
    let (id, accepted, size) = (text("id"), text("accepted"), entry["size"].as_u64().unwrap_or_default());
    format!("{id}  {accepted}  {size:>9}  <{}> to <{}>: {state}", text("sender"), text("recipient"))
}

/// The whole answer, read before any of it is shown: the server waits for nobody who pages through a list.
fn ask(socket: &Path, question: &str) -> anyhow::Result<String> {
    let unavailable = |text| Exit { code: exit::UNAVAILABLE, text };
    let stream = UnixStream::connect(socket)
        .map_err(|error| unavailable(format!("the server does not answer on {}: {error}", socket.display())))?;
    // One that refuses has hung up before it was asked; what it said is there to read.
    let asked = writeln!(&stream, "{question}");
    let mut answer = Vec::new();
    let read = (&stream).read_to_end(&mut answer);
    // What is no text is no answer.
    let mut answer = String::from_utf8(answer).unwrap_or_default();
    let body = answer.trim_end_matches('\n');
    let (start, last) = body.rsplit_once('\n').map_or((0, body), |(before, last)| (before.len() + 1, last));
    if let Some(why) = last.strip_prefix("failed: ").filter(|_| answer.ends_with('\n')) {
        return Err(unavailable(format!("the server does not answer: {why}")).into());
    }
    if last != "done" || !answer.ends_with('\n') {
        let error = asked.err().or(read.err()).map_or_else(String::new, |error| format!(": {error}"));
        let text = format!("the server's answer was cut short{error}");
        return Err(Exit { code: exit::IO, text }.into());
    }
    answer.truncate(start);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use mail::{Address, BodyType, Client, Notify, Recipient, SpoolId, Timestamp};

    use super::*;

    #[test]
    fn a_list_shows_each_recipient_on_a_line_for_people_and_for_programs() {
        let recipient = |text: &str| Recipient {
            address: text.parse::<Address>().unwrap(),
            original: None,
            notify: Notify::default(),
            orcpt: None,
        };
        let mut envelope = Envelope {
            sender: Some("carol@example.net".parse().unwrap()),
            recipients: ["bob@example.org", "\"a b\"@example.org"].map(recipient).into(),
            accepted_at: Timestamp(1_795_196_776_123),
            client: Client { address: None, helo: "".into() },
            body_type: BodyType::default(),
            smtputf8: false,
            ret: None,
            envid: None,
        };
        let mut queue = queue::Queue::new(
            queue::Config {
                name: "standard".into(),
                concurrency: 1,
                retry: queue::Retry::default(),
                recipients_per_attempt_max: 1,
            },
            0,
        );
        let destination = queue.destination("example.org");
        let entry = |ordinal, attempts, progress| Entry {
            id: QueueId::new(SpoolId::new(7), 0, 42),
            ordinal,
            destination,
            attempts,
            accepted_at: envelope.accepted_at,
            progress,
        };
        let until = Progress::Waiting(Timestamp(1_795_196_836_123));
        let entries = [entry(0, 0, Progress::Ready), entry(1, 1, Progress::InFlight), entry(0, 2, until)];
        let mut objects: Vec<_> = entries.iter().map(|entry| object(entry, &envelope, 6000).unwrap()).collect();
        envelope.sender = None;
        objects.push(object(&entries[0], &envelope, 1 << 40).unwrap());
        assert_eq!(object(&Entry { ordinal: 2, ..entries[0] }, &envelope, 0), None);
        let lines = |form: fn(&Value) -> String| objects.iter().map(form).collect::<Vec<_>>().join("\n");
        insta::assert_snapshot!("queue_list", lines(human));
        insta::assert_snapshot!("queue_list_json", lines(Value::to_string));
    }

    /// What the client makes of an answer of these bytes.
    fn answered(bytes: &'static [u8]) -> Result<String, (u8, String)> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = bind(&socket).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert_eq!(read_question(&stream).unwrap(), "list");
            stream.write_all(bytes).unwrap();
        });
        let answer = ask(&socket, "list").map_err(|error| {
            let exit = error.downcast::<Exit>().unwrap();
            (exit.code, exit.text)
        });
        server.join().unwrap();
        answer
    }

    #[test]
    fn an_answer_that_was_cut_short_is_none() {
        assert_eq!(answered(b"a\nb\ndone\n").unwrap(), "a\nb\n");
        assert_eq!(answered(b"done\n").unwrap(), "");
        for cut in [&b""[..], b"a\n", b"a\nb", b"a\ndone", b"a\nfailed: x", b"done\na\n"] {
            assert_eq!(answered(cut).unwrap_err(), (74, "the server's answer was cut short".into()), "{cut:?}");
        }
        assert_eq!(answered(b"a\nfailed: x\n").unwrap_err(), (69, "the server does not answer: x".into()));
    }

    #[test]
    fn a_question_is_a_short_line() {
        let told = |question: &[u8]| {
            let (mut client, server) = UnixStream::pair().unwrap();
            client.write_all(question).unwrap();
            drop(client);
            read_question(&server).map_err(|error| error.kind())
        };
        assert_eq!(told(b"count\r\nmore"), Ok("count".into()));
        assert_eq!(told(&[b'x'; 2000]), Err(io::ErrorKind::InvalidData));
        assert_eq!(told(b"count"), Err(io::ErrorKind::InvalidData));
    }

    #[test]
    fn patience_is_for_all_calls_together() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let dripper = thread::spawn(move || {
            while client.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        let mut patient = Patient { stream: &server, left: Duration::from_millis(50) };
        let mut octet = [0];
        // Each octet comes in time; all of them together do not.
        let error = (0..1000).find_map(|_| patient.read(&mut octet).err()).unwrap();
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        drop(server);
        dripper.join().unwrap();
    }

    #[test]
    fn only_a_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(bind(&path).unwrap());
        drop(bind(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "mail").unwrap();
        assert_eq!(bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read(&path).unwrap(), b"mail");
    }
}
