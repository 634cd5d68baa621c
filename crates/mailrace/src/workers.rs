//! The threads that run sessions, and their listeners. Each worker is one thread with one runtime,
//! so a session never leaves its thread, and wake-ups are cheap.
//!
//! New sessions use the current [`ConfigGeneration`], which is replaced as a whole. A session keeps
//! the one that it was accepted with. A listener that is also in the next one keeps its socket:
//! waiting clients do not notice. A removed listener is closed, and its sessions continue; the
//! change waits until it is closed in all threads, so that its address can be bound again.

use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use intake::{CommitNotifier, IntakeContext, ListenerContext};
use mail::Networks;
use net::{InheritedSockets, StopReceiver, StopSender, TlsServer};
use parking_lot::Mutex;
use protocol::smtp::server as smtp;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::from_config;
use crate::logins::ServerSecret;
use crate::stderr::print_stderr;
use config::{Config, ListenerProtocol, ListenerSettings};
use mail::{LogLevel, ServerLog};
use server_log::Log;

/// Threads of each worker that may wait for a disk.
const BLOCKING_THREADS_MAX: usize = 16;
/// How long to wait for a busy thread to close a listener.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);

/// What new sessions use.
#[derive(Clone)]
pub struct ConfigGeneration {
    /// The directory, the spool and the other parts that sessions use.
    pub intake: Arc<IntakeContext>,
    /// The TLS acceptor, if any listener uses TLS.
    pub acceptor: Option<Arc<TlsServer>>,
    /// The listeners.
    pub listeners: Vec<BoundListener>,
}

/// A listening socket and its protocol.
#[derive(Clone)]
pub struct BoundListener {
    socket: Arc<ListenerSocket>,
    /// The protocol's name in messages.
    protocol: &'static str,
    protocol_config: Arc<smtp::SmtpServerConfig>,
    /// Missing header fields are added, since the clients are users and not servers.
    completes_headers: bool,
    /// The proxies that may tell the client's address (PROXY protocol).
    trusted_proxies: Networks,
}

/// A listening socket. It closes with the last listener that has it: a thread drops its own handle
/// before its listener.
struct ListenerSocket {
    /// The address in the configuration.
    configured: SocketAddr,
    /// The address with the actual port.
    address: SocketAddr,
    listener: TcpListener,
    /// A handle for each worker that has not taken its own yet; creating them early lets failures
    /// happen before clients are served.
    handles: Mutex<Vec<TcpListener>>,
    /// Dropped last of all, which tells the waiting thread that the socket is closed.
    close_sender: Mutex<Option<Sender<Infallible>>>,
}

/// Opens listeners: each with the socket of an existing listener, an inherited socket, or a newly
/// bound one.
pub struct ListenerOpener {
    /// Listeners whose sockets may be reused.
    pub previous: Vec<BoundListener>,
    /// Sockets passed to the process.
    pub inherited: InheritedSockets,
    /// The number of workers.
    pub workers: usize,
    /// No listener is opened: the server only drains its queue.
    pub drain_only: bool,
}

/// The running threads.
pub struct SessionWorkers {
    generations: watch::Sender<Arc<ConfigGeneration>>,
    stopper: StopSender,
    ender: StopSender,
    threads: Vec<JoinHandle<()>>,
}

impl ListenerOpener {
    /// The listeners of a configuration, in its order, without logins: see [`enable_auth`]. A
    /// server that only drains its queue has none, and closes the inherited sockets.
    ///
    /// # Errors
    ///
    /// An address cannot be bound, or an inherited socket belongs to no listener.
    pub fn open(mut self, config: &Config) -> anyhow::Result<Vec<BoundListener>> {
        if self.drain_only {
            return Ok(Vec::new());
        }
        let listeners = config.listeners.iter().map(|listener| self.listener(config, listener));
        let listeners = listeners.collect::<anyhow::Result<_>>()?;
        self.inherited.check_all_taken()?;
        Ok(listeners)
    }

    fn listener(&mut self, config: &Config, listener: &ListenerSettings) -> anyhow::Result<BoundListener> {
        let (flavor, protocol) = match listener.protocol {
            ListenerProtocol::Smtp => (smtp::MailProtocol::Smtp, "smtp"),
            ListenerProtocol::Lmtp => (smtp::MailProtocol::Lmtp, "lmtp"),
            ListenerProtocol::Submission => (smtp::MailProtocol::Smtp, "submission"),
        };
        let machine = smtp::SmtpServerConfig {
            hostname: config.hostname.clone(),
            flavor,
            tls: listener.tls,
            auth: None,
            tolerance: from_config::session_tolerance(config),
            limits: config.limits.session.clone(),
        };
        let socket = self.socket(listener.address, config.limits.backlog);
        let socket = socket.with_context(|| format!("listening on {}", listener.address))?;
        let completes = listener.protocol == ListenerProtocol::Submission;
        Ok(BoundListener {
            socket,
            protocol,
            protocol_config: Arc::new(machine),
            completes_headers: completes,
            trusted_proxies: listener.proxies.clone(),
        })
    }

    fn socket(&mut self, wanted: SocketAddr, backlog: u32) -> io::Result<Arc<ListenerSocket>> {
        if let Some(place) = self.previous.iter().position(|bound_listener| bound_listener.socket.configured == wanted)
        {
            return Ok(self.previous.swap_remove(place).socket);
        }
        let listener = match self.inherited.take(wanted) {
            Some(passed) => passed,
            None => net::bind(wanted, backlog)?,
        };
        let handles = (0..self.workers).map(|_| listener.try_clone()).collect::<io::Result<_>>()?;
        let (address, handles) = (listener.local_addr()?, Mutex::new(handles));
        Ok(Arc::new(ListenerSocket { configured: wanted, address, listener, handles, close_sender: Mutex::default() }))
    }
}

/// Enables logins at the listeners of a configuration. The secret can be read only after privileges
/// are dropped.
pub fn enable_auth(listeners: &mut [BoundListener], config: &Config, secret: Option<ServerSecret>) {
    for (bound_listener, listener) in listeners.iter_mut().zip(&config.listeners) {
        let auth = secret.and_then(|secret| from_config::session_auth(config, listener, secret));
        Arc::make_mut(&mut bound_listener.protocol_config).auth = auth;
    }
}

impl BoundListener {
    /// The address with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.socket.address
    }

    /// Prints to standard error that it is open.
    pub fn announce(&self) {
        print_stderr(format_args!("mailrace: listening protocol={} address={}", self.protocol, self.address()));
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
    pub fn shares_socket(&self, other: &BoundListener) -> bool {
        Arc::ptr_eq(&self.socket, &other.socket)
    }

    /// To wait for the close; the caller must not keep a listener with this socket.
    fn on_close(&self) -> SocketClosed {
        let (sender, closed) = mpsc::channel();
        *self.socket.close_sender.lock() = Some(sender);
        SocketClosed(closed)
    }
}

/// The end of a socket.
struct SocketClosed(Receiver<Infallible>);

impl SocketClosed {
    /// Waits until the socket is closed, or for this time.
    fn wait(self, longest: Duration) {
        // Nothing is ever sent: either the socket is closed, or the time is up.
        let _ = self.0.recv_timeout(longest);
    }
}

impl SessionWorkers {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// The system cannot create them.
    pub fn start(count: usize, generation: ConfigGeneration, log: &Arc<Log>) -> io::Result<SessionWorkers> {
        let (generations, watch) = watch::channel(Arc::new(generation));
        let (stopper, stop) = StopSender::new();
        let (ender, end) = StopSender::new();
        let start = |number| {
            let runtime = runtime()?;
            let (generations, stop, log) = (watch.clone(), stop.clone(), log.clone());
            let worker = SessionWorker { generations, stop, answers: CommitNotifier::default(), log };
            let work = worker.run(end.clone());
            thread::Builder::new().name(format!("worker-{number}")).spawn(move || runtime.block_on(work))
        };
        let threads = (0..count).map(start).collect::<io::Result<_>>()?;
        Ok(SessionWorkers { generations, stopper, ender, threads })
    }

    /// What new sessions use now.
    pub fn current_generation(&self) -> Arc<ConfigGeneration> {
        self.generations.borrow().clone()
    }

    /// New sessions use this from now on. Waits until removed listeners are closed, with a time
    /// limit, so that their addresses can be bound again.
    pub fn set_generation(&self, generation: ConfigGeneration) {
        let stays = |bound_listener: &BoundListener| {
            generation.listeners.iter().any(|other| other.shares_socket(bound_listener))
        };
        let closing: Vec<SocketClosed> = self
            .current_generation()
            .listeners
            .iter()
            .filter(|bound_listener| !stays(bound_listener))
            .map(BoundListener::on_close)
            .collect();
        drop(self.generations.send_replace(Arc::new(generation)));
        closing.into_iter().for_each(|closed| closed.wait(CLOSE_TIME_MAX));
    }

    /// Closes all listeners, so that later clients are refused, and asks sessions to end.
    pub fn close(&self) {
        self.generations.send_modify(|generation| {
            *generation = Arc::new(ConfigGeneration { listeners: Vec::new(), ..ConfigGeneration::clone(generation) })
        });
        self.stopper.stop();
    }

    /// Waits for the end of all sessions.
    pub async fn wait_for_sessions(&self) {
        self.stopper.wait_receivers_dropped().await;
    }

    /// Cuts off the remaining sessions, and waits for the threads.
    pub fn abort(self) {
        self.ender.stop();
        self.threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// What a worker thread needs.
struct SessionWorker {
    generations: watch::Receiver<Arc<ConfigGeneration>>,
    stop: StopReceiver,
    answers: CommitNotifier,
    log: Arc<Log>,
}

impl SessionWorker {
    async fn run(mut self, mut end: StopReceiver) {
        tokio::spawn(self.answers.clone().run());
        // Dropping a stopper stops its listener.
        let mut open: Vec<(BoundListener, StopSender)> = Vec::new();
        while !self.stop.is_requested() {
            let generation = self.generations.borrow_and_update().clone();
            open.retain(|(bound_listener, _)| {
                generation.listeners.iter().any(|other| other.shares_socket(bound_listener))
            });
            for bound_listener in &generation.listeners {
                if !open.iter().any(|(other, _)| other.shares_socket(bound_listener)) {
                    open.extend(self.accept(bound_listener).map(|stopper| (bound_listener.clone(), stopper)));
                }
            }
            drop(generation);
            tokio::select! {
                changed = self.generations.changed() => if changed.is_err() { break },
                () = self.stop.wait_for_stop() => {}
            }
        }
        drop((open, self));
        end.wait_for_stop().await;
    }

    /// Accepts sessions until the stopper is dropped. None if another listener with this socket
    /// took the handle.
    fn accept(&self, bound_listener: &BoundListener) -> Option<StopSender> {
        let handle = bound_listener.socket.handles.lock().pop()?;
        let (stopper, closed) = StopSender::new();
        let (own, generations, answers, stop) =
            (bound_listener.clone(), self.generations.clone(), self.answers.clone(), self.stop.clone());
        let session = move |stream, peer: SocketAddr| {
            let generation = generations.borrow().clone();
            // A client accepted just when the listener closes is served with the old settings.
            let now = generation.listeners.iter().find(|other| other.shares_socket(&own)).unwrap_or(&own);
            let context = ListenerContext {
                intake: generation.intake.clone(),
                smtp_config: now.protocol_config.clone(),
                commit_notifier: answers.clone(),
                acceptor: generation.acceptor.clone(),
                adds_missing_headers: now.completes_headers,
                proxy_protocol_networks: now.trusted_proxies.clone(),
            };
            intake::serve_session(context, stream, peer.ip(), stop.clone())
        };
        let (address, log, accepting) =
            (bound_listener.address(), self.log.clone(), net::accept_connections(handle, closed, session));
        tokio::spawn(async move {
            if let Err(error) = accepting.await {
                let fields: &[(&'static str, &dyn Display)] = &[("address", &address), ("error", &error)];
                log.event(LogLevel::Error, "a worker cannot accept connections at a listener", fields);
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
    fn a_listener_closes_with_its_last_handle() {
        let parse = |address: &str| {
            let text = format!("[[listener]]\nprotocol = \"smtp\"\naddress = \"{address}\"\n");
            Config::parse(&text, "text", "mx.here").unwrap_or_else(|faults| panic!("{faults}"))
        };
        let listener_set = || ListenerOpener {
            previous: Vec::new(),
            inherited: InheritedSockets::default(),
            workers: 2,
            drain_only: false,
        };
        let mut listeners = listener_set().open(&parse("127.0.0.1:0")).unwrap();
        let bound_listener = listeners.pop().unwrap();
        let again = parse(&bound_listener.address().to_string());
        let (worker, closed) = (bound_listener.clone(), bound_listener.on_close());
        drop(bound_listener);
        assert!(closed.0.try_recv() == Err(mpsc::TryRecvError::Empty) && listener_set().open(&again).is_err());
        let waiting = thread::spawn(move || closed.0.recv());
        drop(worker);
        assert!(waiting.join().unwrap().is_err());
        assert!(listener_set().open(&again).is_ok());
    }
}
