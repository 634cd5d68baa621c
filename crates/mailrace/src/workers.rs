//! The threads that run sessions, and their listeners. Each worker is one thread with one runtime,
//! so a session never leaves its thread, and wake-ups are cheap.
//!
//! New sessions use the current [`Shift`], which is replaced as a whole. A session keeps the one
//! that it was accepted with. A listener that is also in the next one keeps its socket: waiting
//! clients do not notice. A removed listener is closed, and its sessions continue; the change waits
//! until it is closed in all threads, so that its address can be bound again.

use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use intake::{Answers, Counter, Desk, Networks};
use net::{Acceptor, Inherited, Stop, Stopper};
use protocol::smtp::server as smtp;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::config::{Config, Listener, Protocol};
use crate::line::Level;
use crate::log::Log;
use crate::logins::Secret;
use crate::plan;
use crate::say::say;

/// Threads of each worker that may wait for a disk.
const BLOCKING_THREADS_MAX: usize = 16;
/// How long to wait for a busy thread to close a listener.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);

/// What new sessions use.
#[derive(Clone)]
pub struct Shift {
    /// The directory, the spool and the other parts that sessions use.
    pub desk: Arc<Desk>,
    /// The TLS acceptor, if any listener uses TLS.
    pub acceptor: Option<Arc<Acceptor>>,
    /// The listeners.
    pub doors: Vec<Door>,
}

/// A listening socket and its protocol.
#[derive(Clone)]
pub struct Door {
    socket: Arc<Socket>,
    /// The protocol's name in messages.
    protocol: &'static str,
    machine: Arc<smtp::Config>,
    /// Missing header fields are added, since the clients are users and not servers.
    completes: bool,
    /// The proxies that may tell the client's address (PROXY protocol).
    balancers: Option<Networks>,
}

/// A listening socket. It closes with the last listener that has it: a thread drops its own handle
/// before its listener.
struct Socket {
    /// The address in the configuration.
    wanted: SocketAddr,
    /// The address with the actual port.
    address: SocketAddr,
    listener: TcpListener,
    /// A handle for each worker that has not taken its own yet; creating them early lets failures
    /// happen before clients are served.
    handles: Mutex<Vec<TcpListener>>,
    /// Dropped last of all, which tells the waiting thread that the socket is closed.
    closing: Mutex<Option<Sender<Infallible>>>,
}

/// Opens listeners: each with the socket of an existing listener, an inherited socket, or a newly
/// bound one.
pub struct Doorman {
    /// Listeners whose sockets may be reused.
    pub before: Vec<Door>,
    /// Sockets passed to the process.
    pub inherited: Inherited,
    /// The number of workers.
    pub workers: usize,
}

/// The running threads.
pub struct Workers {
    shifts: watch::Sender<Arc<Shift>>,
    stopper: Stopper,
    ender: Stopper,
    threads: Vec<JoinHandle<()>>,
}

impl Doorman {
    /// The listeners of a configuration, in its order, without logins: see [`let_log_in`].
    ///
    /// # Errors
    ///
    /// An address cannot be bound, or an inherited socket belongs to no listener.
    pub fn open(mut self, config: &Config) -> anyhow::Result<Vec<Door>> {
        let doors = config.listeners.iter().map(|listener| self.door(config, listener));
        let doors = doors.collect::<anyhow::Result<_>>()?;
        self.inherited.none_left()?;
        Ok(doors)
    }

    fn door(&mut self, config: &Config, listener: &Listener) -> anyhow::Result<Door> {
        let (flavor, protocol) = match listener.protocol {
            Protocol::Smtp => (smtp::Flavor::Smtp, "smtp"),
            Protocol::Lmtp => (smtp::Flavor::Lmtp, "lmtp"),
            Protocol::Submission => (smtp::Flavor::Smtp, "submission"),
        };
        let machine = smtp::Config {
            hostname: config.hostname.clone(),
            flavor,
            tls: plan::session_tls(listener),
            auth: None,
            tolerance: plan::session_tolerance(config),
            limits: plan::session_limits(config),
        };
        let socket = self.socket(listener.address, config.limits.backlog);
        let socket = socket.with_context(|| format!("listening on {}", listener.address))?;
        let balancers = (!listener.proxies.is_empty()).then(|| plan::networks(&listener.proxies));
        let completes = listener.protocol == Protocol::Submission;
        Ok(Door { socket, protocol, machine: Arc::new(machine), completes, balancers })
    }

    fn socket(&mut self, wanted: SocketAddr, backlog: u32) -> io::Result<Arc<Socket>> {
        if let Some(place) = self.before.iter().position(|door| door.socket.wanted == wanted) {
            return Ok(self.before.swap_remove(place).socket);
        }
        let listener = match self.inherited.take(wanted) {
            Some(passed) => passed,
            None => net::bind(wanted, backlog)?,
        };
        let handles = (0..self.workers).map(|_| listener.try_clone()).collect::<io::Result<_>>()?;
        let (address, handles) = (listener.local_addr()?, Mutex::new(handles));
        Ok(Arc::new(Socket { wanted, address, listener, handles, closing: Mutex::default() }))
    }
}

/// Enables logins at the listeners of a configuration. The secret can be read only after privileges
/// are dropped.
pub fn let_log_in(doors: &mut [Door], config: &Config, secret: Option<Secret>) {
    for (door, listener) in doors.iter_mut().zip(&config.listeners) {
        let auth = secret.and_then(|secret| plan::session_auth(config, listener, secret));
        Arc::make_mut(&mut door.machine).auth = auth;
    }
}

impl Door {
    /// The address with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.socket.address
    }

    /// Prints to standard error that it is open.
    pub fn announce(&self) {
        say(format_args!("mailrace: listening protocol={} address={}", self.protocol, self.address()));
    }

    /// Changes the backlog.
    ///
    /// # Errors
    ///
    /// The system refuses; the old backlog stays.
    pub fn set_backlog(&self, backlog: u32) -> io::Result<()> {
        net::set_backlog(&self.socket.listener, backlog)
    }

    /// Whether both have the same socket.
    pub fn is_where(&self, other: &Door) -> bool {
        Arc::ptr_eq(&self.socket, &other.socket)
    }

    /// To wait for the close; the caller must not keep a listener with this socket.
    fn closed(&self) -> Closed {
        let (sender, closed) = mpsc::channel();
        // The lock guards one assignment.
        *self.socket.closing.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        Closed(closed)
    }
}

/// The end of a socket.
struct Closed(Receiver<Infallible>);

impl Closed {
    /// Waits until the socket is closed, or for this time.
    fn wait(self, longest: Duration) {
        // Nothing is ever sent: either the socket is closed, or the time is up.
        let _ = self.0.recv_timeout(longest);
    }
}

impl Workers {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// The system cannot create them.
    pub fn start(count: usize, shift: Shift, log: &Arc<Log>) -> io::Result<Workers> {
        let (shifts, watch) = watch::channel(Arc::new(shift));
        let (stopper, stop) = Stopper::new();
        let (ender, end) = Stopper::new();
        let start = |number| {
            let runtime = runtime()?;
            let (shifts, stop, log) = (watch.clone(), stop.clone(), log.clone());
            let worker = Worker { shifts, stop, answers: Answers::default(), log };
            let work = worker.work(end.clone());
            thread::Builder::new().name(format!("worker-{number}")).spawn(move || runtime.block_on(work))
        };
        let threads = (0..count).map(start).collect::<io::Result<_>>()?;
        Ok(Workers { shifts, stopper, ender, threads })
    }

    /// What new sessions use now.
    pub fn shift(&self) -> Arc<Shift> {
        self.shifts.borrow().clone()
    }

    /// New sessions use this from now on. Waits until removed listeners are closed, with a time
    /// limit, so that their addresses can be bound again.
    pub fn change(&self, shift: Shift) {
        let goes_on = |door: &Door| shift.doors.iter().any(|other| other.is_where(door));
        let gone: Vec<Closed> = self.shift().doors.iter().filter(|door| !goes_on(door)).map(Door::closed).collect();
        drop(self.shifts.send_replace(Arc::new(shift)));
        gone.into_iter().for_each(|closed| closed.wait(CLOSE_TIME_MAX));
    }

    /// Closes all listeners, so that later clients are refused, and asks sessions to end.
    pub fn close(&self) {
        self.shifts.send_modify(|shift| *shift = Arc::new(Shift { doors: Vec::new(), ..Shift::clone(shift) }));
        self.stopper.stop();
    }

    /// Waits for the end of all sessions.
    pub async fn all_gone(&self) {
        self.stopper.all_gone().await;
    }

    /// Cuts off the remaining sessions, and waits for the threads.
    pub fn end(self) {
        self.ender.stop();
        self.threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// What a worker thread needs.
struct Worker {
    shifts: watch::Receiver<Arc<Shift>>,
    stop: Stop,
    answers: Answers,
    log: Arc<Log>,
}

impl Worker {
    async fn work(mut self, mut end: Stop) {
        tokio::spawn(self.answers.clone().hand_on());
        // Dropping a stopper stops its listener.
        let mut open: Vec<(Door, Stopper)> = Vec::new();
        while !self.stop.is_requested() {
            let shift = self.shifts.borrow_and_update().clone();
            open.retain(|(door, _)| shift.doors.iter().any(|other| other.is_where(door)));
            for door in &shift.doors {
                if !open.iter().any(|(other, _)| other.is_where(door)) {
                    open.extend(self.accept(door).map(|stopper| (door.clone(), stopper)));
                }
            }
            drop(shift);
            tokio::select! {
                changed = self.shifts.changed() => if changed.is_err() { break },
                () = self.stop.requested() => {}
            }
        }
        drop((open, self));
        end.requested().await;
    }

    /// Accepts sessions until the stopper is dropped. None if another listener with this socket
    /// took the handle.
    fn accept(&self, door: &Door) -> Option<Stopper> {
        // Taking a handle cannot panic halfway.
        let handle = door.socket.handles.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        let (stopper, closed) = Stopper::new();
        let (own, shifts, answers, stop) = (door.clone(), self.shifts.clone(), self.answers.clone(), self.stop.clone());
        let session = move |stream, peer: SocketAddr| {
            let shift = shifts.borrow().clone();
            // A client accepted just when the listener closes is served with the old settings.
            let now = shift.doors.iter().find(|other| other.is_where(&own)).unwrap_or(&own);
            let counter = Counter {
                desk: shift.desk.clone(),
                machine: now.machine.clone(),
                answers: answers.clone(),
                acceptor: shift.acceptor.clone(),
                completes: now.completes,
                balancers: now.balancers.clone(),
            };
            intake::serve(counter, stream, peer.ip(), stop.clone())
        };
        let (address, log, accepting) = (door.address(), self.log.clone(), net::accept(handle, closed, session));
        tokio::spawn(async move {
            if let Err(error) = accepting.await {
                let fields: &[(&'static str, &dyn Display)] = &[("address", &address), ("error", &error)];
                log.event(Level::Error, "a worker cannot accept connections at a listener", fields);
            }
        });
        Some(stopper)
    }
}

/// A runtime with a single thread.
pub fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_THREADS_MAX).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: two reloads in quick succession, one removing a listener and the next restoring
    /// it, could find a thread that had not closed it yet: the address was in use.
    #[test]
    fn a_door_is_closed_with_the_last_handle_and_not_before() {
        let parse = |address: &str| {
            let text = format!("[[listener]]\nprotocol = \"smtp\"\naddress = \"{address}\"\n");
            Config::parse(&text, "text", "mx.here").unwrap_or_else(|faults| panic!("{faults}"))
        };
        let doorman = || Doorman { before: Vec::new(), inherited: Inherited::default(), workers: 2 };
        let mut doors = doorman().open(&parse("127.0.0.1:0")).unwrap();
        let door = doors.pop().unwrap();
        let again = parse(&door.address().to_string());
        let (worker, closed) = (door.clone(), door.closed());
        drop(door);
        assert!(closed.0.try_recv() == Err(mpsc::TryRecvError::Empty) && doorman().open(&again).is_err());
        let waiting = thread::spawn(move || closed.0.recv());
        drop(worker);
        assert!(waiting.join().unwrap().is_err());
        assert!(doorman().open(&again).is_ok());
    }
}
