//! The threads that run sessions, and what they listen on. Each worker is one thread with one
//! runtime, so a session never leaves its thread, and wake-ups are cheap.
//!
//! The listeners are replaced as a whole, each with the service for its connections. A session
//! keeps the service that it was accepted with. A listener that is also in the next set keeps its
//! socket: waiting clients do not notice. A removed listener is closed, and its sessions continue;
//! the change waits until it is closed in all threads, so that its address can be bound again.

use std::fmt::Display;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mail::{LogLevel, ServerLog};
use tokio::net::TcpStream;
use tokio::runtime::{self, Runtime};
use tokio::sync::watch;

use crate::listen::{ListenerSocket, SocketClosed, accept_connections};
use crate::{DISK_READS_MAX, Service, StopReceiver, StopSender, serve_connection};

/// How long to wait for a busy thread to close a listener.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);

/// A listening socket, and on each worker the service for its connections.
#[derive(Clone)]
pub struct BoundListener {
    socket: Arc<ListenerSocket>,
    protocol: &'static str,
    services: Arc<[Box<dyn SpawnSession>]>,
}

/// Any [`Service`].
trait SpawnSession: Send + Sync {
    /// Serves a connection in a task of its own.
    fn spawn_session(&self, stream: TcpStream, client: SocketAddr, stop: StopReceiver);
}

impl<S: Service + Clone> SpawnSession for S {
    fn spawn_session(&self, stream: TcpStream, client: SocketAddr, stop: StopReceiver) {
        drop(tokio::spawn(serve_connection(self.clone(), stream, client, stop)));
    }
}

impl BoundListener {
    /// The listener of a protocol, whose name is for messages. `services` has one for each worker.
    pub fn new<S: Service + Clone>(
        socket: Arc<ListenerSocket>,
        protocol: &'static str,
        services: impl IntoIterator<Item = S>,
    ) -> BoundListener {
        let services = services.into_iter().map(|service| Box::new(service) as Box<dyn SpawnSession>).collect();
        BoundListener { socket, protocol, services }
    }

    /// The name of the protocol.
    pub fn protocol(&self) -> &'static str {
        self.protocol
    }

    /// The socket.
    pub fn socket(&self) -> &Arc<ListenerSocket> {
        &self.socket
    }

    /// Whether both have the same socket.
    pub fn shares_socket(&self, other: &BoundListener) -> bool {
        self.has_socket(&other.socket)
    }

    fn has_socket(&self, socket: &Arc<ListenerSocket>) -> bool {
        Arc::ptr_eq(&self.socket, socket)
    }
}

/// The running threads.
pub struct SessionWorkers {
    listeners: watch::Sender<Arc<[BoundListener]>>,
    stopper: StopSender,
    ender: StopSender,
    threads: Vec<JoinHandle<()>>,
}

impl SessionWorkers {
    /// Starts a thread for each of `tasks`, which run beside the sessions of their thread until
    /// [`SessionWorkers::abort`]. Errors of listeners go to the log.
    ///
    /// # Errors
    ///
    /// A listener cannot listen, or the system cannot create the threads.
    pub fn start<T: Future<Output = ()> + Send + 'static>(
        listeners: Vec<BoundListener>,
        tasks: impl IntoIterator<Item = T>,
        log: &Arc<impl ServerLog + ?Sized + 'static>,
    ) -> io::Result<SessionWorkers> {
        listeners.iter().try_for_each(|listener| listener.socket.listen())?;
        let (listeners, watch) = watch::channel(Arc::from(listeners));
        let (stopper, stop) = StopSender::new();
        let (ender, end) = StopSender::new();
        let start = |(number, task)| {
            let runtime = session_runtime()?;
            let (listeners, stop, log) = (watch.clone(), stop.clone(), log.clone());
            let work = SessionWorker { number, listeners, stop, log }.run(task, end.clone());
            thread::Builder::new().name(format!("worker-{number}")).spawn(move || runtime.block_on(work))
        };
        let threads = tasks.into_iter().enumerate().map(start).collect::<io::Result<_>>()?;
        Ok(SessionWorkers { listeners, stopper, ender, threads })
    }

    /// The listeners in force.
    pub fn listeners(&self) -> Arc<[BoundListener]> {
        self.listeners.borrow().clone()
    }

    /// New connections are served by these listeners from now on. Waits until removed listeners are
    /// closed, with a time limit, so that their addresses can be bound again: the caller must not
    /// keep any of them.
    pub fn set_listeners(&self, listeners: Vec<BoundListener>) {
        let stays = |listener: &&BoundListener| listeners.iter().any(|other| other.shares_socket(listener));
        let closing: Vec<SocketClosed> = self
            .listeners()
            .iter()
            .filter(|listener| !stays(listener))
            .map(|listener| listener.socket.on_close())
            .collect();
        drop(self.listeners.send_replace(listeners.into()));
        closing.into_iter().for_each(|closed| closed.wait(CLOSE_TIME_MAX));
    }

    /// Closes all listeners, so that later clients are refused, asks sessions to end, and waits for
    /// the end of all, at most for this time. Returns whether all have ended.
    pub async fn drain(&self, time_max: Duration) -> bool {
        drop(self.listeners.send_replace(Arc::default()));
        self.stopper.stop();
        tokio::time::timeout(time_max, self.stopper.wait_receivers_dropped()).await.is_ok()
    }

    /// Cuts off the remaining sessions, and waits for the threads.
    pub fn abort(self) {
        self.ender.stop();
        self.threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// What a worker thread needs.
struct SessionWorker<L: ?Sized> {
    number: usize,
    listeners: watch::Receiver<Arc<[BoundListener]>>,
    stop: StopReceiver,
    log: Arc<L>,
}

impl<L: ServerLog + ?Sized + 'static> SessionWorker<L> {
    async fn run(mut self, task: impl Future<Output = ()> + Send + 'static, mut end: StopReceiver) {
        tokio::spawn(task);
        // Sockets without their services: those in force may be newer. Dropping a stopper stops its
        // listener.
        let mut open: Vec<(Arc<ListenerSocket>, StopSender)> = Vec::new();
        while !self.stop.is_requested() {
            let listeners = self.listeners.borrow_and_update().clone();
            open.retain(|(socket, _)| listeners.iter().any(|listener| listener.has_socket(socket)));
            for listener in listeners.iter() {
                if !open.iter().any(|(socket, _)| listener.has_socket(socket)) {
                    open.extend(self.accept(&listener.socket).map(|stopper| (listener.socket.clone(), stopper)));
                }
            }
            drop(listeners);
            tokio::select! {
                changed = self.listeners.changed() => if changed.is_err() { break },
                () = self.stop.wait_for_stop() => {}
            }
        }
        drop((open, self));
        end.wait_for_stop().await;
    }

    /// Accepts connections until the stopper is dropped. None if another listener with this socket
    /// took the handle.
    fn accept(&self, socket: &Arc<ListenerSocket>) -> Option<StopSender> {
        let handle = socket.take_handle()?;
        let (stopper, closed) = StopSender::new();
        let (number, listeners, stop) = (self.number, self.listeners.clone(), self.stop.clone());
        let own = socket.clone();
        let session = move |stream, client: SocketAddr| {
            // Without a listener the socket is about to close, and the connection ends like those
            // that are not accepted yet.
            if let Some(listener) = listeners.borrow().iter().find(|listener| listener.has_socket(&own))
                && let Some(service) = listener.services.get(number)
            {
                service.spawn_session(stream, client, stop.clone());
            }
        };
        let (address, log, accepting) =
            (socket.address(), self.log.clone(), accept_connections(handle, closed, session));
        tokio::spawn(async move {
            if let Err(error) = accepting.await {
                let fields: &[(&'static str, &dyn Display)] = &[("address", &address), ("error", &error)];
                log.event(LogLevel::Error, "a worker cannot accept connections at a listener", fields);
            }
        });
        Some(stopper)
    }
}

/// A runtime with a single thread, for sessions. Only its blocking threads wait for a disk.
///
/// # Errors
///
/// The system cannot create it.
pub fn session_runtime() -> io::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().max_blocking_threads(DISK_READS_MAX).build()
}
