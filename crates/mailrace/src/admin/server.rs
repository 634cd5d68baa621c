//! The server side of the control socket: binds it, accepts connections, and handles each on a
//! thread of its own. The socket has mode 0600. No client delays another one, nor the shutdown.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::QUESTION_OCTETS_MAX;
use super::clerk::{Clerk, Unanswered};
use crate::line::Level;

/// How long the server waits for a client in total: for the request, and again while it reads the
/// answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Concurrent requests.
const CLERKS_MAX: usize = 8;
/// The delay after a failed accept, perhaps for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// The running control socket.
pub struct Server {
    socket: PathBuf,
    listener: UnixListener,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    clerk: Arc<Mutex<Arc<Clerk>>>,
}

impl Server {
    /// Binds the socket, replacing one left by a dead server, and handles requests on its own
    /// threads.
    pub(super) fn open(socket: &Path, clerk: Clerk) -> anyhow::Result<Server> {
        let listener = bind(socket).with_context(|| format!("the control socket {}", socket.display()))?;
        let stopping = clerk.stopping();
        let clerk = Arc::new(Mutex::new(Arc::new(clerk)));
        let office = Office {
            listener: listener.try_clone()?,
            stopping: stopping.clone(),
            clerk: clerk.clone(),
            busy: Vec::new(),
        };
        let thread = thread::Builder::new().name("admin".into()).spawn(move || office.work())?;
        Ok(Server { socket: socket.into(), listener, stopping, thread, clerk })
    }

    /// New requests use this handler; requests in progress keep the old one.
    pub fn change(&self, clerk: Clerk) {
        // The lock guards one assignment.
        *self.clerk.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(clerk);
    }

    /// Disconnects the clients, removes the socket, and returns once nothing here uses the intake
    /// context.
    pub fn stop(self) {
        self.stopping.store(true, Relaxed);
        // This makes `accept` fail (unix(7) does not say so, but Linux has always done it).
        if rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).is_ok() {
            // A panic has already been reported.
            drop(self.thread.join());
        }
        // A leftover socket is replaced at the next start.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// The lanes are locked by now, so an existing socket belongs to a dead server. Other files are not
/// replaced.
pub(super) fn bind(socket: &Path) -> io::Result<UnixListener> {
    if socket.symlink_metadata().is_ok_and(|there| there.file_type().is_socket()) {
        std::fs::remove_file(socket)?;
    }
    let bound = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, PermissionsExt::from_mode(0o600))?;
    Ok(bound)
}

/// Accepts connections, and starts a thread for each.
struct Office {
    listener: UnixListener,
    stopping: Arc<AtomicBool>,
    clerk: Arc<Mutex<Arc<Clerk>>>,
    /// The threads, with a handle to shut each connection down.
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
                complain(&self.clerk(), &error);
                thread::sleep(PAUSE);
            }
        }
        for (thread, stream) in self.busy {
            // The connection may have ended already.
            let _ = stream.shutdown(Shutdown::Both);
            drop(thread.join());
        }
    }

    fn clerk(&self) -> Arc<Clerk> {
        self.clerk.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn hand_on(&mut self, stream: UnixStream) -> io::Result<()> {
        self.busy.retain(|(thread, _)| !thread.is_finished());
        if self.busy.len() >= CLERKS_MAX {
            // A few bytes fit into an empty socket buffer without waiting.
            return writeln!(&stream, "failed: too many requests in progress ({CLERKS_MAX})");
        }
        let (clerk, rope) = (self.clerk(), stream.try_clone()?);
        let thread = thread::Builder::new().name("clerk".into()).spawn(move || serve(&clerk, &stream))?;
        self.busy.push((thread, rope));
        Ok(())
    }
}

fn serve(clerk: &Clerk, stream: &UnixStream) {
    let answered = read_question(stream).and_then(|question| {
        let mut out = BufWriter::new(Patient::new(stream));
        match clerk.answer(&question, &mut out) {
            Ok(()) => writeln!(out, "done")?,
            Err(Unanswered::Broken(error)) => return Err(error),
            Err(Unanswered::No(why)) => writeln!(out, "no: {}", printable(&why))?,
            Err(why) => writeln!(out, "failed: {}", printable(&why.to_string()))?,
        }
        out.flush()
    });
    if let Err(error) = answered {
        complain(clerk, &error);
    }
    // The listener holds a handle too, so dropping this one does not close the connection. The
    // client may be gone.
    let _ = stream.shutdown(Shutdown::Both);
}

/// Keeps the answer on one line, whatever the request contained.
fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}

fn complain(clerk: &Clerk, error: &io::Error) {
    clerk.log.event(Level::Warning, "a request on the control socket failed", &[("error", error)]);
}

pub(super) fn read_question(stream: &UnixStream) -> io::Result<String> {
    let mut question = String::new();
    BufReader::new(Patient::new(stream)).take(QUESTION_OCTETS_MAX).read_line(&mut question)?;
    match question.strip_suffix('\n') {
        Some(line) => Ok(line.trim_end().to_owned()),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "the request is not a line, or too long")),
    }
}

/// A stream with a total time limit of [`PATIENCE`].
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_a_line_of_a_bounded_length() {
        let told = |question: &[u8]| {
            let (mut client, server) = UnixStream::pair().unwrap();
            let question = question.to_vec();
            let asking = thread::spawn(move || client.write_all(&question));
            let read = read_question(&server).map_err(|error| error.kind());
            drop(server);
            // The server closes the connection if a request is too long.
            let _ = asking.join().unwrap();
            read
        };
        assert_eq!(told(b"count\r\nmore"), Ok("count".into()));
        let long = [&[b'x'; QUESTION_OCTETS_MAX as usize - 1][..], b"\n"].concat();
        assert_eq!(told(&long).map(|question| question.len()), Ok(long.len() - 1));
        assert_eq!(told(&[b"x", &long[..]].concat()), Err(io::ErrorKind::InvalidData));
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
        // Each octet arrives in time, but not all of them together.
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
