//! A server that we started, and that we see to the end of.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::processes::{descendants, send};
use super::word::Word;
use crate::Fault;

/// Between two looks whether it is ready, or gone.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long one look waits for the greeting.
const GREETING_TIME_MAX: Duration = Duration::from_secs(2);
/// How much of it is read.
const GREETING_OCTETS_MAX: u64 = 1024;
/// How long a process may take to die of SIGKILL.
const KILL_TIME_MAX: Duration = Duration::from_secs(30);
/// How long it may take to end by itself when it is told.
const END_TIME_MAX: Duration = Duration::from_secs(10);

/// All processes that descend from this one. When it is dropped they are killed.
#[derive(Debug)]
pub(super) struct Server {
    is_gone: bool,
}

impl Server {
    /// Starts it in a process group of its own, and waits until it greets.
    pub(super) fn start(
        command: &str,
        output: OwnedFd,
        ready: SocketAddr,
        within: Duration,
        word: &Word,
    ) -> Result<Server, Fault> {
        let mut shell = Command::new("sh");
        let errors = output.try_clone().map_err(Fault::system("lending out the server's log"))?;
        shell.arg("-c").arg(command).process_group(0);
        shell.stdin(Stdio::null()).stdout(output).stderr(errors);
        // Its end is seen in /proc, with that of all the others.
        let started = shell.spawn().map(drop);
        started.map_err(Fault::system("starting a shell for the server"))?;
        let server = Server { is_gone: false };
        let mut greets = false;
        word.pass(within, || {
            greets = greeting_of(ready).is_ok_and(|code| code == *b"220");
            greets
        })?;
        match greets {
            true => Ok(server),
            false => Err(Fault::Unavailable(format!("the server did not greet at {ready} within {within:?}"))),
        }
    }

    /// SIGKILL to all, until none is left.
    pub(super) fn kill(mut self) -> Result<(), Fault> {
        let killed = kill_all();
        self.is_gone = killed.is_ok();
        killed
    }

    /// SIGTERM to those that nobody else of it looks after, and to the others when they are orphans; after a while,
    /// SIGKILL to all.
    pub(super) fn end(self) -> Result<(), Fault> {
        let until = Instant::now() + END_TIME_MAX;
        let mut told = HashSet::new();
        while Instant::now() < until {
            let Some(&first) = looked_for()?.first() else { break };
            if told.insert(first) {
                send(Signal::TERM, first).map_err(Fault::system("ending the server"))?;
            }
            thread::sleep(LOOK_EVERY);
        }
        self.kill()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.is_gone {
            // There is a fault already, and it says more.
            let _ = kill_all();
        }
    }
}

/// Where it may write: the end of a log, or standard error.
pub(super) fn output(log: Option<&Path>) -> Result<OwnedFd, Fault> {
    let Some(path) = log else {
        return io::stderr().as_fd().try_clone_to_owned().map_err(Fault::system("lending out standard error"));
    };
    let file = OpenOptions::new().append(true).create(true).open(path);
    file.map(OwnedFd::from).map_err(Fault::system(format_args!("opening the server's log {}", path.display())))
}

fn kill_all() -> Result<(), Fault> {
    let until = Instant::now() + KILL_TIME_MAX;
    loop {
        let living = looked_for()?;
        if living.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(Fault::Unavailable(format!("{} processes of the server do not die", living.len())));
        }
        for process in living {
            send(Signal::KILL, process).map_err(Fault::system("killing the server"))?;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn looked_for() -> Result<Vec<rustix::process::Pid>, Fault> {
    descendants().map_err(Fault::system("looking for the server's processes in /proc"))
}

/// The first three bytes of what it says.
fn greeting_of(ready: SocketAddr) -> io::Result<[u8; 3]> {
    let stream = TcpStream::connect_timeout(&ready, GREETING_TIME_MAX)?;
    stream.set_read_timeout(Some(GREETING_TIME_MAX))?;
    let mut line = Vec::new();
    BufReader::new(stream.take(GREETING_OCTETS_MAX)).read_until(b'\n', &mut line)?;
    line.first_chunk().copied().ok_or(io::ErrorKind::UnexpectedEof.into())
}
