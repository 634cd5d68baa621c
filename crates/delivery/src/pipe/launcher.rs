//! The launcher: a process of its own that starts programs for the server. It is started by the server
//! before that drops its privileges, and keeps them, so it does as little as possible: it runs the
//! programs that were defined before `ready`, each as its user, which is never root, and believes
//! nothing that the server says after that but numbers and the values of macros.
//!
//! It ends when the server does, and kills what it has started.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use parking_lot::Mutex;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};

use super::arguments::{MacroSettings, expand};
use super::messages::{LauncherRequest, MESSAGE_OCTETS_MAX, ProgramDefinition, ProgramEnd, encode_end};
use super::run_request::RunRequest;

/// The search path of programs, and all of their environment.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Serves the server at the other end of `socket` until it ends.
///
/// # Errors
///
/// The socket fails, or the server does not keep to the messages.
pub fn serve(socket: OwnedFd) -> io::Result<()> {
    let socket = Arc::new(socket);
    let running = Arc::new(RunningPrograms::default());
    let served = serve_requests(&socket, &running);
    running.kill_all();
    served
}

fn serve_requests(socket: &Arc<OwnedFd>, running: &Arc<RunningPrograms>) -> io::Result<()> {
    let (mut programs, mut is_ready) = (HashMap::new(), false);
    while let Some((request, fds)) = receive(socket.as_fd())? {
        match request {
            LauncherRequest::Define(program) if !is_ready => {
                programs.insert(program.name.clone(), program);
            }
            LauncherRequest::Ready if !is_ready => is_ready = true,
            LauncherRequest::Run { number, request } if is_ready => {
                let program = programs.get(request.program.as_str());
                start(socket, running, number, program, &request, fds);
            }
            LauncherRequest::Kill { number } => running.kill(number),
            LauncherRequest::Define(_) | LauncherRequest::Ready | LauncherRequest::Run { .. } => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a message at the wrong time"));
            }
        }
    }
    Ok(())
}

/// The next message with its file descriptors. None: the server has ended.
fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<(LauncherRequest, Vec<OwnedFd>)>> {
    let mut buffer = vec![0; MESSAGE_OCTETS_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(socket, &mut [io::IoSliceMut::new(&mut buffer)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = fds.flatten().collect();
    let request = LauncherRequest::decode(&buffer[..received.bytes]);
    let request = request.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a message"))?;
    Ok(Some((request, fds)))
}

/// Starts a program, and a thread that reports its end.
fn start(
    socket: &Arc<OwnedFd>,
    running: &Arc<RunningPrograms>,
    number: u64,
    program: Option<&ProgramDefinition>,
    request: &RunRequest,
    fds: Vec<OwnedFd>,
) {
    let child = match spawn(program, request, fds) {
        Ok(child) => child,
        Err(end) => return report(socket, number, &end),
    };
    let group = Pid::from_raw(child.id().cast_signed());
    running.0.lock().insert(number, group);
    let (socket, running) = (socket.clone(), running.clone());
    let waits = thread::Builder::new().name("wait".into()).spawn({
        let running = running.clone();
        move || report(&socket, number, &running.wait(number, group, child))
    });
    if waits.is_err() {
        // Nobody would notice its end.
        running.kill(number);
    }
}

fn spawn(program: Option<&ProgramDefinition>, request: &RunRequest, fds: Vec<OwnedFd>) -> Result<Child, ProgramEnd> {
    let unstarted = |why: String| ProgramEnd::Unstarted(why);
    let restart = || unstarted("the transport was added after the server started: restart it".into());
    let program = program.ok_or_else(restart)?;
    let settings = MacroSettings { null_sender: &program.null_sender, delimiter: program.delimiter };
    let arguments = expand(&program.arguments, request, &settings).map_err(ProgramEnd::Refused)?;
    let (path, arguments) = arguments.split_first().ok_or_else(|| unstarted("no program".into()))?;
    let fds: Result<[OwnedFd; 2], _> = fds.try_into();
    let [input, output] = fds.map_err(|_| unstarted("no pipes".into()))?;
    let errors = output.try_clone().map_err(|error| unstarted(error.to_string()))?;
    let mut command = Command::new(path);
    command.args(arguments).env_clear().env("PATH", PATH).current_dir(&program.folder).process_group(0);
    command.stdin(Stdio::from(input)).stdout(Stdio::from(output)).stderr(Stdio::from(errors));
    run_as(&mut command, program.user);
    command.spawn().map_err(|error| unstarted(format!("{path}: {error}")))
}

/// The supplementary groups are dropped with the user, if the launcher is root.
fn run_as(command: &mut Command, (uid, gid): (u32, u32)) {
    if nix::unistd::geteuid().is_root() {
        command.gid(gid).uid(uid);
    }
}

fn report(socket: &OwnedFd, number: u64, end: &ProgramEnd) {
    let message = encode_end(number, end)
        .or_else(|| encode_end(number, &ProgramEnd::Unstarted("the reason is too long".into())))
        .unwrap_or_default();
    // If the server has ended, nobody waits for it.
    let _ = send(socket, &message, SendFlags::NOSIGNAL);
}

/// The process group of each run. A group is only killed while its leader is not yet reaped, so its
/// number belongs to no other group.
#[derive(Default)]
struct RunningPrograms(Mutex<HashMap<u64, Pid>>);

impl RunningPrograms {
    /// Waits for the end of a program. What it leaves in its process group is killed.
    fn wait(&self, number: u64, group: Pid, mut child: Child) -> ProgramEnd {
        while waitid(Id::Pid(group), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(nix::errno::Errno::EINTR) {}
        let mut running = self.0.lock();
        running.remove(&number);
        kill_group(group);
        match child.wait() {
            Ok(status) => match status.code() {
                Some(code) => ProgramEnd::Exited(code),
                None => ProgramEnd::Killed(status.signal().unwrap_or_default()),
            },
            Err(error) => ProgramEnd::Unstarted(error.to_string()),
        }
    }

    fn kill(&self, number: u64) {
        let running = self.0.lock();
        running.get(&number).copied().into_iter().for_each(kill_group);
    }

    fn kill_all(&self) {
        let running = self.0.lock();
        running.values().copied().for_each(kill_group);
    }
}

fn kill_group(group: Pid) {
    // Only fails if all of its processes have ended.
    let _ = killpg(group, Signal::SIGKILL);
}
