//! The process that starts programs for transports of type pipe ([`delivery::pipe::launcher`]): how the
//! server starts it, before it drops its privileges, and what it does when it starts.
//!
//! | the server was started as | `user` of the transport | the program runs as |
//! |---|---|---|
//! | root | named | that user; root is refused |
//! | root | - | the user of the server, unless that is root |
//! | other | - or itself | that user |
//! | other | another | not at all: the server does not start |

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use config::{Config, PipeTransportSettings};
use delivery::pipe::{LauncherSocket, ProgramDefinition, launcher};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Gid, Group, Uid, User, geteuid};
use tokio::signal::unix::{SignalKind, signal};

use crate::privileges::ProcessUser;

/// The name by which this program knows that it is the launcher.
pub const PROGRAM_NAME: &str = "mailrace-launcher";
/// Programs may open this many files, as they expect: some close all that they could have.
const PROGRAM_FILES_MAX: u64 = 1024;
/// At shutdown, the launcher may take this long to kill its programs and to end.
const STOP_TIME_MAX: Duration = Duration::from_secs(2);
/// How often it is asked meanwhile.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The running launcher.
pub struct LauncherProcess(Child);

/// Starts the launcher, if any transport has a program.
///
/// # Errors
///
/// A program cannot have its user, or the process cannot be started.
pub fn start(config: &Config, server: &ProcessUser) -> anyhow::Result<Option<(LauncherProcess, LauncherSocket)>> {
    let pipes = config.transports.iter().filter_map(|transport| Some((&transport.name, transport.pipe()?)));
    let programs = pipes.map(|(name, pipe)| {
        let user = program_user(pipe, server).with_context(|| format!("[transport.{name}] user"))?;
        Ok(definition(name, pipe, user))
    });
    let programs = programs.collect::<anyhow::Result<Vec<_>>>()?;
    if programs.is_empty() {
        return Ok(None);
    }
    let (ours, theirs) = LauncherSocket::pair().context("starting the launcher of programs")?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0(PROGRAM_NAME).stdin(Stdio::from(theirs)).stdout(Stdio::null());
    let child = command.spawn().context("starting the launcher of programs")?;
    // The command has the launcher's end of the socket. With it open here, the end of the launcher would
    // not be noticed.
    drop(command);
    ours.define(&programs).context("telling the launcher its programs")?;
    Ok(Some((LauncherProcess(child), ours)))
}

/// What the launcher has to know of a program. If it changes, the server has to be restarted.
pub fn definition(name: &str, pipe: &PipeTransportSettings, user: (u32, u32)) -> ProgramDefinition {
    ProgramDefinition {
        name: name.into(),
        user,
        folder: pipe.directory.clone(),
        null_sender: pipe.null_sender.clone(),
        delimiter: pipe.delimiter,
        arguments: pipe.command.clone(),
    }
}

fn program_user(pipe: &PipeTransportSettings, server: &ProcessUser) -> anyhow::Result<(u32, u32)> {
    let (uid, gid) = match &pipe.user {
        Some(user) => find_user(user)?,
        None => server.ids(),
    };
    let us = geteuid();
    if uid.is_root() {
        anyhow::bail!("programs never run as root: name another user");
    }
    if !us.is_root() && uid != us {
        anyhow::bail!("cannot run a program as user {uid}: the server is started as user {us}, not as root");
    }
    Ok((uid.as_raw(), gid.as_raw()))
}

/// `user` or `user:group`.
fn find_user(text: &str) -> anyhow::Result<(Uid, Gid)> {
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let user = User::from_name(user)?.with_context(|| format!("user {user:?} does not exist"))?;
    let gid = match group {
        Some(group) => Group::from_name(group)?.with_context(|| format!("group {group:?} does not exist"))?.gid,
        None => user.gid,
    };
    Ok((user.uid, gid))
}

impl LauncherProcess {
    /// Waits until it has ended. It does when the server's socket is closed, and kills its programs.
    pub fn wait(mut self) {
        let deadline = Instant::now() + STOP_TIME_MAX;
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(STOP_POLL_INTERVAL);
        }
    }
}

/// Runs the launcher: the socket is its standard input.
///
/// # Errors
///
/// Standard input is no socket of a server.
pub fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _entered = runtime.enter();
    // The server decides when the launcher ends. The signals are not ignored, which programs would inherit.
    let signals = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let _handlers = signals.map(signal).into_iter().collect::<Result<Vec<_>, _>>()?;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, PROGRAM_FILES_MAX.min(hard), hard)?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    launcher::serve(socket).context("the launcher of programs")
}
