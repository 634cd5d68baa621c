//! The server's end of the socket to the launcher.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, send, sendmsg,
    socketpair,
};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::oneshot;
use tokio::task::spawn_local;

use super::messages::{LauncherRequest, MESSAGE_OCTETS_MAX, ProgramDefinition, ProgramEnd, decode_end};
use super::run_request::RunRequest;

/// A socket to a launcher that knows its programs.
#[derive(Debug)]
pub struct LauncherSocket(OwnedFd);

impl LauncherSocket {
    /// The two ends: the server's, and the one for the standard input of the launcher.
    ///
    /// # Errors
    ///
    /// The system has no sockets left.
    pub fn pair() -> io::Result<(LauncherSocket, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((LauncherSocket(ours), theirs))
    }

    /// Tells the launcher all programs, once.
    ///
    /// # Errors
    ///
    /// The launcher has ended, or a definition is too long.
    pub fn define(&self, programs: &[ProgramDefinition]) -> io::Result<()> {
        let definitions = programs.iter().cloned().map(LauncherRequest::Define);
        for request in definitions.chain([LauncherRequest::Ready]) {
            let message = request.encode().ok_or_else(|| io::Error::other("the arguments are too long"))?;
            send(&self.0, &message, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }
}

/// Runs programs, and learns how they end.
#[derive(Clone)]
pub(super) struct LauncherHandle {
    socket: Rc<UnixDatagram>,
    next_number: Rc<Cell<u64>>,
    waiting: WaitingRuns,
}

/// Those that wait for the end of a run, by its number.
type WaitingRuns = Rc<RefCell<HashMap<u64, oneshot::Sender<ProgramEnd>>>>;

/// A program that was started.
pub(super) struct StartedProgram {
    pub(super) number: u64,
    /// Closed if the launcher ends before the program.
    pub(super) ended: oneshot::Receiver<ProgramEnd>,
}

impl LauncherHandle {
    pub(super) fn new(socket: LauncherSocket) -> io::Result<Self> {
        // The type of a socket of packets that has a connection is missing; the calls are the same.
        let socket = std::os::unix::net::UnixDatagram::from(socket.0);
        socket.set_nonblocking(true)?;
        let socket = Rc::new(UnixDatagram::from_std(socket)?);
        let waiting = WaitingRuns::default();
        spawn_local(receive_ends(socket.clone(), waiting.clone()));
        Ok(LauncherHandle { socket, next_number: Rc::default(), waiting })
    }

    /// Sends a request with the input and the output of the program.
    pub(super) async fn run(&self, request: RunRequest, fds: [OwnedFd; 2]) -> io::Result<StartedProgram> {
        let number = self.next_number.replace(self.next_number.get() + 1);
        let request = LauncherRequest::Run { number, request };
        let message = request.encode().ok_or_else(|| io::Error::other("the addresses are too long"))?;
        let (sender, ended) = oneshot::channel();
        self.waiting.borrow_mut().insert(number, sender);
        self.send(&message, &fds).await.inspect_err(|_| drop(self.waiting.borrow_mut().remove(&number)))?;
        Ok(StartedProgram { number, ended })
    }

    /// Kills a program and its process group, if it still runs.
    pub(super) async fn kill(&self, number: u64) {
        let message = LauncherRequest::Kill { number }.encode().unwrap_or_default();
        // If the launcher has ended, it has killed all programs.
        drop(self.send(&message, &[]).await);
    }

    async fn send(&self, message: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let send = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(&fds));
            }
            let parts = [io::IoSlice::new(message)];
            Ok(sendmsg(&*self.socket, &parts, &mut control, SendFlags::NOSIGNAL)?)
        };
        self.socket.async_io(Interest::WRITABLE, send).await.map(drop)
    }
}

/// Tells each waiting run how it ended, until the launcher ends.
async fn receive_ends(socket: Rc<UnixDatagram>, waiting: WaitingRuns) {
    let mut buffer = vec![0; MESSAGE_OCTETS_MAX];
    while let Ok(octets @ 1..) = socket.recv(&mut buffer).await {
        let ended = decode_end(&buffer[..octets]);
        let told = ended.and_then(|(number, end)| Some((waiting.borrow_mut().remove(&number)?, end)));
        // The run may have been given up.
        told.into_iter().for_each(|(sender, end)| drop(sender.send(end)));
    }
    waiting.borrow_mut().clear();
}
