//! A server that this process starts and terminates.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use compare::{Descendants, ProcessIdentity, send_signal};
use rustix::process::Signal;

use crate::BenchError;
use crate::signals::StopSignal;

/// How often to check whether the server is ready or gone.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long one attempt waits for the greeting.
const GREETING_TIME_MAX: Duration = Duration::from_secs(2);
/// How much of the greeting is read.
const GREETING_OCTETS_MAX: usize = 1024;
/// How long the system may take to close the port of a dead server.
const CLOSING_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a process may take to die after SIGKILL.
const KILL_TIME_MAX: Duration = Duration::from_secs(30);
/// How long the server may take to end after SIGTERM.
const TERMINATE_TIME_MAX: Duration = Duration::from_secs(10);

/// How to start a server, and where it must greet. The port must be closed before the start and
/// after the kill: otherwise another process answers there, and its 250s prove nothing.
#[derive(Debug)]
pub(super) struct ServerStart<'a> {
    /// A shell command.
    pub(super) command: &'a str,
    /// Where its output goes; None is standard error.
    pub(super) log: Option<&'a Path>,
    pub(super) ready: SocketAddr,
    /// How long it may take to greet.
    pub(super) ready_within: Duration,
    /// All of them belong to the server, however often it forks.
    pub(super) server_processes: &'a Descendants,
    pub(super) stop_signal: &'a StopSignal,
}

/// All server processes. They are killed on drop.
#[derive(Debug)]
pub(super) struct TrialServer<'a> {
    start: ServerStart<'a>,
    is_gone: bool,
}

impl<'a> TrialServer<'a> {
    /// Starts the server in its own process group and waits for its greeting.
    pub(super) fn start(start: ServerStart<'a>) -> Result<TrialServer<'a>, BenchError> {
        let ServerStart { ready, ready_within: within, .. } = start;
        if is_listening(ready) {
            return Err(nothing_proved(format_args!("{ready} is in use before the server is started")));
        }
        let output = output(start.log)?;
        let errors = output.try_clone().map_err(BenchError::system("sharing the server's log"))?;
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(start.command).process_group(0);
        shell.stdin(Stdio::null()).stdout(output).stderr(errors);
        // The end of the shell is seen in /proc, as that of all other processes.
        let started = shell.spawn().map(drop);
        started.map_err(BenchError::system("starting a shell for the server"))?;
        let server = TrialServer { start, is_gone: false };
        let mut greets = false;
        server.start.stop_signal.wait(within, || {
            greets = greeting_code(ready).is_ok_and(|code| code == *b"220");
            greets
        })?;
        if !greets {
            return Err(BenchError::Unavailable(format!("the server did not greet at {ready} within {within:?}")));
        }
        if running(server.start.server_processes)?.is_empty() {
            return Err(nothing_proved(format_args!("the process that greets at {ready} was not started by --start")));
        }
        Ok(server)
    }

    /// Sends SIGKILL to all processes until none is left and the port is closed.
    pub(super) fn kill(mut self) -> Result<(), BenchError> {
        let killed = kill_all(self.start.server_processes);
        self.is_gone = killed.is_ok();
        killed.and_then(|()| wait_until_closed(self.start.ready))
    }

    /// Sends SIGTERM to the topmost process, and to its children once they are orphans. Sends
    /// SIGKILL to whatever is left after [`TERMINATE_TIME_MAX`].
    pub(super) fn terminate(self) -> Result<(), BenchError> {
        let until = Instant::now() + TERMINATE_TIME_MAX;
        let mut terminated = HashSet::new();
        while Instant::now() < until {
            let Some(&first) = running(self.start.server_processes)?.first() else { break };
            if terminated.insert(first) {
                send_signal(first, Signal::TERM).map_err(BenchError::system("ending the server"))?;
            }
            self.start.stop_signal.wait(POLL_INTERVAL, || false)?;
        }
        self.kill()
    }
}

impl Drop for TrialServer<'_> {
    fn drop(&mut self) {
        if !self.is_gone {
            // Only reached after another fault, which is reported.
            let _ = kill_all(self.start.server_processes);
        }
    }
}

fn nothing_proved(why: impl std::fmt::Display) -> BenchError {
    BenchError::Unavailable(format!("{why}, so nothing was proved"))
}

/// Opens the server's log for appending, or duplicates standard error.
fn output(log: Option<&Path>) -> Result<OwnedFd, BenchError> {
    let Some(path) = log else {
        return io::stderr().as_fd().try_clone_to_owned().map_err(BenchError::system("sharing standard error"));
    };
    let file = OpenOptions::new().append(true).create(true).open(path);
    file.map(OwnedFd::from).map_err(BenchError::system(format_args!("opening the server's log {}", path.display())))
}

fn running(server_processes: &Descendants) -> Result<Vec<ProcessIdentity>, BenchError> {
    server_processes.running().map_err(BenchError::system("looking for the server's processes in /proc"))
}

fn kill_all(server_processes: &Descendants) -> Result<(), BenchError> {
    let until = Instant::now() + KILL_TIME_MAX;
    loop {
        let alive = running(server_processes)?;
        if alive.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(BenchError::Unavailable(format!("{} processes of the server survive SIGKILL", alive.len())));
        }
        for process in alive {
            send_signal(process, Signal::KILL).map_err(BenchError::system("killing the server"))?;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// The last threads of a process may keep its sockets open for a moment after it is dead.
fn wait_until_closed(ready: SocketAddr) -> Result<(), BenchError> {
    let until = Instant::now() + CLOSING_TIME_MAX;
    while is_listening(ready) {
        if Instant::now() > until {
            return Err(nothing_proved(format_args!("{ready} is still open after all started processes are dead")));
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// A connection to a closed local port can connect to itself; that does not count.
fn is_listening(ready: SocketAddr) -> bool {
    let stream = TcpStream::connect_timeout(&ready, GREETING_TIME_MAX);
    stream.is_ok_and(|stream| stream.local_addr().is_ok_and(|local| local != ready))
}

/// The first three bytes of the greeting.
fn greeting_code(ready: SocketAddr) -> io::Result<[u8; 3]> {
    let until = Instant::now() + GREETING_TIME_MAX;
    let mut stream = TcpStream::connect_timeout(&ready, GREETING_TIME_MAX)?;
    let mut line = [0; GREETING_OCTETS_MAX];
    let mut filled = 0;
    while filled < line.len() && !line[..filled].contains(&b'\n') {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut line[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    line[..filled].first_chunk().copied().ok_or(io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_slow_greeting_has_one_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ready = listener.local_addr().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(b"2").unwrap();
                thread::sleep(GREETING_TIME_MAX.mul_f64(0.7));
                stream.write_all(b"2").unwrap();
                // Until the client disconnects.
                let _ = stream.read(&mut [0]);
            });
            let begun = Instant::now();
            assert!(greeting_code(ready).is_err());
            assert!(begun.elapsed() < GREETING_TIME_MAX.mul_f64(1.5), "{:?}", begun.elapsed());
        });
    }
}
