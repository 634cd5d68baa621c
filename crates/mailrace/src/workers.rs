//! The threads that drive sessions, and the doors at which they take them: one thread and one runtime a worker, so that
//! a session never leaves its thread, and its wake-ups are cheap.
//!
//! What new sessions go by is a [`Shift`], which is exchanged as a whole. A session keeps that of the moment at which
//! it was accepted. A door that the next shift has as well goes on with its socket: who waits there to be accepted does
//! not notice. One that it has not is closed, and its sessions go on; the exchange is over when it is closed in all
//! threads, so that its address can be bound again.

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
/// A thread that is so busy that it has not closed a door after so long is not waited for.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);

/// What new sessions go by.
#[derive(Clone)]
pub struct Shift {
    /// Whom they ask.
    pub desk: Arc<Desk>,
    /// Who makes them secure, where that is done.
    pub acceptor: Option<Arc<Acceptor>>,
    /// Where they come in.
    pub doors: Vec<Door>,
}

/// A listening socket and what is spoken there.
#[derive(Clone)]
pub struct Door {
    socket: Arc<Socket>,
    /// What it is called in lines for people.
    protocol: &'static str,
    machine: Arc<smtp::Config>,
    /// What comes in there is from users, and no other server.
    completes: bool,
    /// Who says there for whom it has connected.
    balancers: Option<Networks>,
}

/// A listening socket. It is closed when the last door with it is gone: a thread drops its own handle before its door.
struct Socket {
    /// As the configuration has it.
    wanted: SocketAddr,
    /// With the port that it got.
    address: SocketAddr,
    listener: TcpListener,
    /// A handle for each worker that has not taken its own: whatever fails, fails before anybody is served.
    handles: Mutex<Vec<TcpListener>>,
    /// Who waits until it is closed hears by the end of this, which is last of all.
    closing: Mutex<Option<Sender<Infallible>>>,
}

/// Opens doors: each with the socket of a door that is there, with one that was passed, or with one that it binds.
pub struct Doorman {
    /// Sockets that may be used again.
    pub before: Vec<Door>,
    /// Sockets that were passed to the process.
    pub inherited: Inherited,
    /// So many will take sessions from each.
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
    /// The doors of a configuration, in its order. Nobody may log in there yet: see [`let_log_in`].
    ///
    /// # Errors
    ///
    /// An address cannot be bound, or a socket was passed that nobody asked for.
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

/// Lets users log in at the doors of a configuration. The secret can be read only by who the server becomes after it has
/// bound.
pub fn let_log_in(doors: &mut [Door], config: &Config, secret: Option<Secret>) {
    for (door, listener) in doors.iter_mut().zip(&config.listeners) {
        let auth = secret.and_then(|secret| plan::session_auth(config, listener, secret));
        Arc::make_mut(&mut door.machine).auth = auth;
    }
}

impl Door {
    /// Where it is, with the port that it got.
    pub fn address(&self) -> SocketAddr {
        self.socket.address
    }

    /// Says on standard error that it is open.
    pub fn announce(&self) {
        say(format_args!("mailrace: listening protocol={} address={}", self.protocol, self.address()));
    }

    /// Lets so many wait there from now on.
    ///
    /// # Errors
    ///
    /// The system will not; as many wait as before.
    pub fn set_backlog(&self, backlog: u32) -> io::Result<()> {
        net::set_backlog(&self.socket.listener, backlog)
    }

    /// Whether both have the same socket.
    pub fn is_where(&self, other: &Door) -> bool {
        Arc::ptr_eq(&self.socket, &other.socket)
    }

    /// To be waited for by somebody who keeps no door with this socket.
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
    /// Waits for it, but not for ever.
    fn wait(self, longest: Duration) {
        // Nothing is ever sent: either the socket is gone, or it took too long.
        let _ = self.0.recv_timeout(longest);
    }
}

impl Workers {
    /// Starts so many threads with their first shift.
    ///
    /// # Errors
    ///
    /// The system has no room for them.
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

    /// What new sessions go by now.
    pub fn shift(&self) -> Arc<Shift> {
        self.shifts.borrow().clone()
    }

    /// New sessions go by this from now on. Waits until the doors that it has not are closed, unless that takes too long:
    /// somebody may want to listen there again.
    pub fn change(&self, shift: Shift) {
        let goes_on = |door: &Door| shift.doors.iter().any(|other| other.is_where(door));
        let gone: Vec<Closed> = self.shift().doors.iter().filter(|door| !goes_on(door)).map(Door::closed).collect();
        drop(self.shifts.send_replace(Arc::new(shift)));
        gone.into_iter().for_each(|closed| closed.wait(CLOSE_TIME_MAX));
    }

    /// Closes all doors: who comes after this is not left waiting. Sessions hear that they are to end.
    pub fn close(&self) {
        self.shifts.send_modify(|shift| *shift = Arc::new(Shift { doors: Vec::new(), ..Shift::clone(shift) }));
        self.stopper.stop();
    }

    /// Waits for the end of all sessions.
    pub async fn all_gone(&self) {
        self.stopper.all_gone().await;
    }

    /// Cuts off what is left, and waits for the threads.
    pub fn end(self) {
        self.ender.stop();
        self.threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// What a thread works with.
struct Worker {
    shifts: watch::Receiver<Arc<Shift>>,
    stop: Stop,
    answers: Answers,
    log: Arc<Log>,
}

impl Worker {
    async fn work(mut self, mut end: Stop) {
        tokio::spawn(self.answers.clone().hand_on());
        // Whoever drops a stopper says stop.
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

    /// Takes sessions at a door until the stopper is dropped. None where another door with this socket took the handle.
    fn accept(&self, door: &Door) -> Option<Stopper> {
        // Taking one out cannot panic half-way.
        let handle = door.socket.handles.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        let (stopper, closed) = Stopper::new();
        let (own, shifts, answers, stop) = (door.clone(), self.shifts.clone(), self.answers.clone(), self.stop.clone());
        let session = move |stream, peer: SocketAddr| {
            let shift = shifts.borrow().clone();
            // Who was accepted at the moment at which the door was closed is served as he was to be.
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
                log.event(Level::Error, "a thread takes no sessions at a listener", fields);
            }
        });
        Some(stopper)
    }
}

/// A runtime of one thread.
pub fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_THREADS_MAX).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two reloads in quick succession, of which one took a listener away and the next brought it back, could meet a
    /// thread that had not closed it yet: the address was in use.
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
