//! Connections to programs that decide about mail, such as milters: their addresses, sockets, and a
//! pool that limits and keeps them.
//!
//! A pool has a number of permits, and every connection holds one while a session uses it. Idle
//! connections take the place of permits that are free, so there are never more connections than
//! permits. A session that gets no permit in time, or no connection, fails; others do not notice.
//! Idle connections belong to no runtime, so sessions of any thread can take them. While there are some, one
//! task closes those that are idle for too long.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

/// A connection that is idle for longer is closed: the program may be about to close it too.
const IDLE_TIME_MAX: Duration = Duration::from_secs(30);

/// Where a program listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceAddress {
    /// `host:port`; the host may be a name.
    Tcp {
        /// A name or an address, without brackets.
        host: Box<str>,
        /// The port.
        port: u16,
    },
    /// `unix:/path`.
    Unix(PathBuf),
}

/// The text is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address such as \"127.0.0.1:11332\" or \"unix:/run/filter.sock\"")]
pub struct InvalidServiceAddress;

impl FromStr for ServiceAddress {
    type Err = InvalidServiceAddress;

    fn from_str(text: &str) -> Result<Self, InvalidServiceAddress> {
        if let Some(path) = text.strip_prefix("unix:") {
            return path.starts_with('/').then(|| ServiceAddress::Unix(path.into())).ok_or(InvalidServiceAddress);
        }
        let (host, port) = text.rsplit_once(':').ok_or(InvalidServiceAddress)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host =
            |host: &str| !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b));
        let is_sound = bare.map_or_else(|| is_host(host), |bare| bare.parse::<std::net::Ipv6Addr>().is_ok());
        let port = port.parse().ok().filter(|port| *port > 0 && is_sound).ok_or(InvalidServiceAddress)?;
        Ok(ServiceAddress::Tcp { host: bare.unwrap_or(host).into(), port })
    }
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceAddress::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            ServiceAddress::Tcp { host, port } => write!(f, "{host}:{port}"),
            ServiceAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A socket in use.
pub(crate) enum ServiceStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl ServiceStream {
    async fn connect(address: &ServiceAddress) -> io::Result<ServiceStream> {
        match address {
            ServiceAddress::Tcp { host, port } => {
                let stream = TcpStream::connect((&**host, *port)).await?;
                stream.set_nodelay(true)?;
                Ok(ServiceStream::Tcp(stream))
            }
            ServiceAddress::Unix(path) => UnixStream::connect(path).await.map(ServiceStream::Unix),
        }
    }

    /// Appends what has arrived, as far as there is capacity; 0 at the end.
    pub(crate) async fn read(&mut self, input: &mut Vec<u8>) -> io::Result<usize> {
        // Unlike `try_read`, this takes a short read as a sign that nothing is left, and the next one waits
        // without asking the kernel first.
        match self {
            ServiceStream::Tcp(stream) => stream.read_buf(input).await,
            ServiceStream::Unix(stream) => stream.read_buf(input).await,
        }
    }

    /// Writes what there is room for, when the other sessions of the thread that have something to do have come
    /// as far: a service that gets many requests at once wakes up once for them.
    pub(crate) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        yield_now().await;
        loop {
            match self {
                ServiceStream::Tcp(stream) => stream.writable().await?,
                ServiceStream::Unix(stream) => stream.writable().await?,
            }
            match self.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return written,
            }
        }
    }

    /// Writes what there is room for now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ServiceStream::Tcp(stream) => stream.try_write(bytes),
            ServiceStream::Unix(stream) => stream.try_write(bytes),
        }
    }

    fn into_idle(self) -> io::Result<IdleStream> {
        Ok(match self {
            ServiceStream::Tcp(stream) => IdleStream::Tcp(stream.into_std()?),
            ServiceStream::Unix(stream) => IdleStream::Unix(stream.into_std()?),
        })
    }
}

/// A socket that belongs to no runtime.
enum IdleStream {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl IdleStream {
    /// None if the program has closed it or sent something.
    fn into_quiet(self) -> Option<ServiceStream> {
        use io::Read as _;
        let mut octet = [0];
        let read = match &self {
            IdleStream::Tcp(stream) => (&*stream).read(&mut octet),
            IdleStream::Unix(stream) => (&*stream).read(&mut octet),
        };
        read.err().filter(|error| error.kind() == io::ErrorKind::WouldBlock)?;
        match self {
            IdleStream::Tcp(stream) => TcpStream::from_std(stream).ok().map(ServiceStream::Tcp),
            IdleStream::Unix(stream) => UnixStream::from_std(stream).ok().map(ServiceStream::Unix),
        }
    }
}

/// The connections to one program. `S` is what is known of an idle one.
pub(crate) struct ConnectionPool<S> {
    address: ServiceAddress,
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<IdleConnections<S>>>,
}

struct IdleConnections<S> {
    /// The one that was used last is the last one.
    connections: Vec<IdleConnection<S>>,
    /// A task will close those that are idle for too long.
    are_watched: bool,
}

struct IdleConnection<S> {
    stream: IdleStream,
    state: S,
    since: Instant,
}

/// A connection of a pool.
pub(crate) struct PooledConnection<S> {
    pub(crate) stream: ServiceStream,
    /// None if it is new.
    pub(crate) state: Option<S>,
    pub(crate) permit: OwnedSemaphorePermit,
}

impl<S: Send + 'static> ConnectionPool<S> {
    /// A pool of at most this many connections, at least one.
    pub(crate) fn new(address: ServiceAddress, connections_max: usize) -> ConnectionPool<S> {
        let permits = Arc::new(Semaphore::new(connections_max.clamp(1, Semaphore::MAX_PERMITS)));
        let idle = IdleConnections { connections: Vec::new(), are_watched: false };
        ConnectionPool { address, permits, idle: Arc::new(Mutex::new(idle)) }
    }

    /// An idle connection, or a new one. The caller limits the time.
    pub(crate) async fn connect(&self) -> io::Result<PooledConnection<S>> {
        let closed = |_| io::Error::from(io::ErrorKind::NotConnected);
        let permit = self.permits.clone().acquire_owned().await.map_err(closed)?;
        if let Some((stream, state)) = self.take_idle() {
            return Ok(PooledConnection { stream, state: Some(state), permit });
        }
        let stream = ServiceStream::connect(&self.address).await?;
        Ok(PooledConnection { stream, state: None, permit })
    }

    /// The connection that was used last, if it is alive. Those that are not are closed.
    fn take_idle(&self) -> Option<(ServiceStream, S)> {
        loop {
            let IdleConnection { stream, state, since } = self.idle.lock().connections.pop()?;
            if since.elapsed() < IDLE_TIME_MAX
                && let Some(stream) = stream.into_quiet()
            {
                return Some((stream, state));
            }
        }
    }

    /// Keeps a connection for the next session.
    pub(crate) fn keep(&self, stream: ServiceStream, state: S, permit: OwnedSemaphorePermit) {
        // Without a runtime the server is about to end.
        if let (Ok(stream), Ok(runtime)) = (stream.into_idle(), Handle::try_current()) {
            let mut idle = self.idle.lock();
            idle.connections.push(IdleConnection { stream, state, since: Instant::now() });
            if !std::mem::replace(&mut idle.are_watched, true) {
                runtime.spawn(close_idle(Watch(Arc::downgrade(&self.idle))));
            }
        }
        drop(permit);
    }
}

/// Ends with the runtime of its task; the next connection that is kept begins another one.
struct Watch<S>(Weak<Mutex<IdleConnections<S>>>);

impl<S> Watch<S> {
    /// Closes the connections that are idle for too long, and returns when the next one will be. None: there
    /// is none.
    fn close_due(&self) -> Option<Instant> {
        let idle = self.0.upgrade()?;
        let mut idle = idle.lock();
        let due = idle.connections.iter().take_while(|idle| idle.since.elapsed() >= IDLE_TIME_MAX).count();
        idle.connections.drain(..due);
        let next = idle.connections.first().map(|oldest| oldest.since + IDLE_TIME_MAX);
        idle.are_watched = next.is_some();
        next
    }
}

impl<S> Drop for Watch<S> {
    fn drop(&mut self) {
        if let Some(idle) = self.0.upgrade() {
            idle.lock().are_watched = false;
        }
    }
}

async fn close_idle<S: Send>(watch: Watch<S>) {
    while let Some(due) = watch.close_due() {
        sleep_until(due).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_with_a_port_or_a_path() {
        for text in ["127.0.0.1:11332", "localhost:8891", "[::1]:25", "unix:/run/opendkim/opendkim.sock"] {
            assert_eq!(text.parse::<ServiceAddress>().unwrap().to_string(), text);
        }
        for text in
            ["", "localhost", "localhost:0", ":25", "::1:25", "unix:run/x", "unix:", "a b:25", "[x]:25", "a:99999"]
        {
            assert_eq!(text.parse::<ServiceAddress>(), Err(InvalidServiceAddress), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_idle_for_too_long_is_closed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let pool: ConnectionPool<u8> = ConnectionPool::new(address, 2);
        for _ in 0..2 {
            let (kept, begun) = (pool.connect().await.unwrap(), Instant::now());
            let (mut accepted, _) = listener.accept().await.unwrap();
            pool.keep(kept.stream, 7, kept.permit);
            assert_eq!(accepted.read_to_end(&mut Vec::new()).await.unwrap(), 0);
            assert!(begun.elapsed() >= IDLE_TIME_MAX, "closed after {:?}", begun.elapsed());
        }
    }

    #[tokio::test]
    async fn idle_connections_are_used_again_while_they_live() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let pool: ConnectionPool<u8> = ConnectionPool::new(address, 1);
        let first = pool.connect().await.unwrap();
        assert_eq!(first.state, None);
        let (accepted, _) = listener.accept().await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(20), pool.connect()).await.is_err(), "the only permit");
        pool.keep(first.stream, 7, first.permit);
        let second = pool.connect().await.unwrap();
        assert_eq!(second.state, Some(7));
        pool.keep(second.stream, 8, second.permit);
        drop(accepted);
        let third = loop {
            let connection = pool.connect().await.unwrap();
            // The kernel may need a moment to tell that the other side has closed.
            let Some(state) = connection.state else { break connection };
            pool.keep(connection.stream, state, connection.permit);
        };
        assert_eq!(third.state, None);
    }
}
