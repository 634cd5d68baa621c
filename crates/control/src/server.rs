//! The server side of the control socket: binds it, accepts connections, and handles each on a
//! thread of its own. The socket has mode 0600. No client delays another one, nor the shutdown.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::REQUEST_OCTETS_MAX;
use super::current_handler::CurrentHandler;
use super::handler::{ControlError, ControlHandler};
use super::live::Sampler;
use mail::LogLevel;

/// How long the server waits for a client in total: for the request, and again while it reads the
/// answer.
const CLIENT_TIME_MAX: Duration = Duration::from_secs(10);
/// Concurrent requests.
const HANDLERS_MAX: usize = 8;
/// The delay after a failed accept, perhaps for lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// The running control socket.
pub struct ControlServer {
    socket: PathBuf,
    listener: UnixListener,
    /// Stops the handlers.
    stopping: Arc<AtomicBool>,
    /// Ends the thread that accepts connections.
    closing: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    sampler: Sampler,
    handler: CurrentHandler,
}

impl ControlServer {
    /// Binds the socket, replacing one left by a dead server, and handles requests on its own
    /// threads.
    ///
    /// # Errors
    ///
    /// The socket cannot be bound, or the system cannot create a thread.
    pub fn start(socket: &Path, handler: ControlHandler) -> io::Result<ControlServer> {
        let listener = bind(socket)?;
        let (stopping, live) = (handler.stopping(), handler.shared.live.clone());
        let handler = CurrentHandler::new(handler);
        let closing = Arc::<AtomicBool>::default();
        let acceptor = ControlListener {
            listener: listener.try_clone()?,
            closing: closing.clone(),
            handler: handler.clone(),
            busy: Vec::new(),
        };
        let thread = thread::Builder::new().name("admin".into()).spawn(move || acceptor.run())?;
        let sampler = Sampler::start(handler.clone(), live)?;
        Ok(ControlServer { socket: socket.into(), listener, stopping, closing, thread, sampler, handler })
    }

    /// New requests use this handler; requests in progress keep the old one.
    pub fn set_handler(&self, handler: ControlHandler) {
        self.handler.replace(handler);
    }

    /// The handler in force, also after the next ones were set.
    pub fn handler(&self) -> CurrentHandler {
        self.handler.clone()
    }

    /// Long requests end early from now on, also those of the HTTP API, and say that the server stops.
    pub fn stop_handlers(&self) {
        self.stopping.store(true, Relaxed);
    }

    /// Disconnects the clients, removes the socket, and returns once nothing here uses the intake
    /// context.
    pub fn stop(self) {
        self.stop_handlers();
        self.closing.store(true, Relaxed);
        // This makes `accept` fail (unix(7) does not say so, but Linux has always done it).
        if rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).is_ok() {
            // A panic has already been reported.
            drop(self.thread.join());
        }
        self.sampler.stop();
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
struct ControlListener {
    listener: UnixListener,
    closing: Arc<AtomicBool>,
    handler: CurrentHandler,
    /// The threads, with a handle to shut each connection down.
    busy: Vec<(JoinHandle<()>, UnixStream)>,
}

impl ControlListener {
    fn run(mut self) {
        loop {
            let accepted = self.listener.accept().and_then(|(stream, _)| self.spawn_handler(stream));
            if self.closing.load(Relaxed) {
                break;
            }
            if let Err(error) = accepted {
                log_error(&self.handler.current(), &error);
                thread::sleep(ACCEPT_RETRY_DELAY);
            }
        }
        for (thread, stream) in self.busy {
            // The connection may have ended already.
            let _ = stream.shutdown(Shutdown::Both);
            drop(thread.join());
        }
    }

    fn spawn_handler(&mut self, stream: UnixStream) -> io::Result<()> {
        self.busy.retain(|(thread, _)| !thread.is_finished());
        if self.busy.len() >= HANDLERS_MAX {
            // A few bytes fit into an empty socket buffer without waiting.
            return writeln!(&stream, "failed: too many requests in progress ({HANDLERS_MAX})");
        }
        let (handler, shutdown_handle) = (self.handler.current(), stream.try_clone()?);
        let thread =
            thread::Builder::new().name("admin-request".into()).spawn(move || serve_client(&handler, &stream))?;
        self.busy.push((thread, shutdown_handle));
        Ok(())
    }
}

fn serve_client(handler: &ControlHandler, stream: &UnixStream) {
    let result = read_request(stream).and_then(|request| {
        let mut out = BufWriter::new(DeadlineStream::new(stream));
        match handler.handle(&request, &caller(stream), &mut out) {
            Ok(()) => writeln!(out, "done")?,
            Err(ControlError::Io(error)) => return Err(error),
            Err(ControlError::Refused(why) | ControlError::NotFound(why)) => writeln!(out, "no: {}", printable(&why))?,
            Err(why) => writeln!(out, "failed: {}", printable(&why.to_string()))?,
        }
        out.flush()
    });
    if let Err(error) = result {
        log_error(handler, &error);
    }
    // The listener holds a handle too, so dropping this one does not close the connection. The
    // client may be gone.
    let _ = stream.shutdown(Shutdown::Both);
}

/// Who is at the other end, for the log.
fn caller(stream: &UnixStream) -> String {
    match rustix::net::sockopt::socket_peercred(stream) {
        Ok(peer) => format!("uid {}", peer.uid.as_raw()),
        Err(_) => "an unknown user".to_owned(),
    }
}

/// Keeps the answer on one line, whatever the request contained.
fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}

fn log_error(handler: &ControlHandler, error: &io::Error) {
    handler.shared.log.event(LogLevel::Warning, "a request on the control socket failed", &[("error", error)]);
}

pub(super) fn read_request(stream: &UnixStream) -> io::Result<String> {
    let mut request = String::new();
    BufReader::new(DeadlineStream::new(stream)).take(REQUEST_OCTETS_MAX).read_line(&mut request)?;
    match request.strip_suffix('\n') {
        Some(line) => Ok(line.trim_end().to_owned()),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "the request is not a line, or too long")),
    }
}

/// A stream with a total time limit of [`CLIENT_TIME_MAX`].
struct DeadlineStream<'a> {
    stream: &'a UnixStream,
    remaining: Duration,
}

impl<'a> DeadlineStream<'a> {
    fn new(stream: &'a UnixStream) -> Self {
        DeadlineStream { stream, remaining: CLIENT_TIME_MAX }
    }

    fn with_timeout<T>(&mut self, work: impl FnOnce(&UnixStream) -> io::Result<T>) -> io::Result<T> {
        if self.remaining.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(self.remaining))?;
        self.stream.set_write_timeout(Some(self.remaining))?;
        let begin = Instant::now();
        let done = work(self.stream);
        self.remaining = self.remaining.saturating_sub(begin.elapsed());
        done
    }
}

impl Read for DeadlineStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.with_timeout(|mut stream| stream.read(buffer))
    }
}

impl Write for DeadlineStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.with_timeout(|mut stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_lines_of_bounded_length() {
        let told = |request: &[u8]| {
            let (mut client, server) = UnixStream::pair().unwrap();
            let request = request.to_vec();
            let asking = thread::spawn(move || client.write_all(&request));
            let read = read_request(&server).map_err(|error| error.kind());
            drop(server);
            // The server closes the connection if a request is too long.
            let _ = asking.join().unwrap();
            read
        };
        assert_eq!(told(b"count\r\nmore"), Ok("count".into()));
        let long = [&[b'x'; REQUEST_OCTETS_MAX as usize - 1][..], b"\n"].concat();
        assert_eq!(told(&long).map(|request| request.len()), Ok(long.len() - 1));
        assert_eq!(told(&[b"x", &long[..]].concat()), Err(io::ErrorKind::InvalidData));
        assert_eq!(told(b"count"), Err(io::ErrorKind::InvalidData));
    }

    #[test]
    fn the_timeout_covers_all_calls() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let dripper = thread::spawn(move || {
            while client.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        let mut patient = DeadlineStream { stream: &server, remaining: Duration::from_millis(50) };
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
