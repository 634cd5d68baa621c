//! Connections to a database server, shared by the requests of one table, and how a request uses
//! them.
//!
//! | a request ends with | the connection                                    | the request               |
//! |---------------------|---------------------------------------------------|---------------------------|
//! | answers             | is kept                                           | is answered               |
//! | a broken connection | is closed, with all idle ones                     | is repeated once on a new one, if the broken one was idle before |
//! | a rejected key      | is kept                                           | is repeated in halves until that key is alone |
//! | another refusal     | is kept                                           | fails                     |
//! | an invalid answer   | is closed                                         | fails                     |
//! | a timeout           | is closed, and the request cancelled on the server | fails                    |

use std::cell::RefCell;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::LookupAnswer;
use crate::backend::BackendFailure;
use crate::request_error::RequestError;

/// Opens connections, and gives them up.
pub(crate) trait Connector {
    /// A connection.
    type Connection: ServerConnection;

    /// Connects to the first host that accepts us. Otherwise returns the errors of all hosts.
    async fn connect(&self) -> Result<Self::Connection, String>;

    /// Closes a connection whose request takes too long, and ends that request on the server.
    fn cancel(&self, connection: Self::Connection);
}

/// What the pool asks of a connection.
pub(crate) trait ServerConnection {
    /// The host it is connected to, for errors.
    fn at(&self) -> &str;

    /// Whether it is known to be closed. If not, that shows in the next request, which is repeated.
    fn is_closed(&self) -> bool {
        false
    }

    /// Sends a cheap request, which shows whether the server serves.
    async fn probe(&mut self) -> Result<(), RequestError>;
}

/// The connections of one table.
pub(crate) struct ConnectionPool<C: Connector> {
    connector: C,
    /// The URL, for errors that concern no single host.
    url: Box<str>,
    /// Timeout of one request.
    timeout: Duration,
    /// Idle connections, the most recently used one last.
    idle: RefCell<Vec<C::Connection>>,
    /// One permit per connection.
    permits: Semaphore,
}

impl<C: Connector> ConnectionPool<C> {
    /// A pool of up to `connections` connections, at least 1. Nothing is opened yet.
    pub(crate) fn new(connector: C, url: String, timeout: Duration, connections: usize) -> Self {
        let permits = Semaphore::new(connections.max(1));
        ConnectionPool { connector, url: url.into(), timeout, idle: RefCell::default(), permits }
    }

    /// The answers that `ask` gets for these keys. A key that cannot exist is not asked for, and is not found.
    pub(crate) async fn answers(
        &self,
        keys: &[Box<str>],
        can_exist: impl Fn(&str) -> bool,
        ask: impl AsyncFn(&mut C::Connection, &[&str]) -> Result<Vec<LookupAnswer>, RequestError>,
    ) -> Result<Vec<LookupAnswer>, BackendFailure> {
        let can_exist = |key: &&str| can_exist(key);
        let keys = || keys.iter().map(|key| &**key);
        let asked: Vec<&str> = keys().filter(can_exist).collect();
        let mut found = self.asked_answers(&asked, ask).await?.into_iter();
        let found = keys().map(|key| Some(key).filter(can_exist).and_then(|_| found.next()));
        Ok(found.map(|answer| answer.unwrap_or(LookupAnswer::NotFound)).collect())
    }

    /// Whether the server serves.
    pub(crate) async fn probe(&self) -> Result<(), BackendFailure> {
        let probed = self.with_connection(async |connection| connection.probe().await).await;
        probed.map_err(RequestError::into_failure)
    }

    /// The answers for keys that may exist. If a key makes a request fail, the keys are split in halves until that key
    /// is alone.
    async fn asked_answers(
        &self,
        keys: &[&str],
        ask: impl AsyncFn(&mut C::Connection, &[&str]) -> Result<Vec<LookupAnswer>, RequestError>,
    ) -> Result<Vec<LookupAnswer>, BackendFailure> {
        let deadline = Instant::now() + self.timeout;
        let mut answers = vec![LookupAnswer::NotFound; keys.len()];
        let mut open = Vec::from_iter((!keys.is_empty()).then_some(0..keys.len()));
        while let Some(range) = open.pop() {
            let asked = &keys[range.clone()];
            match self.with_connection(async |connection| ask(connection, asked).await).await {
                Ok(found) => answers[range].clone_from_slice(&found),
                Err(RequestError::Keys(failure)) if range.len() == 1 => {
                    answers[range.start] = LookupAnswer::Unavailable(failure.to_string());
                }
                Err(RequestError::Keys(_)) if Instant::now() < deadline => {
                    let middle = range.start + range.len() / 2;
                    open.extend([range.start..middle, middle..range.end]);
                }
                Err(trouble) => return Err(trouble.into_failure()),
            }
        }
        Ok(answers)
    }

    /// Runs `ask` on an idle connection, or on a new one if there is none or it turns out to be
    /// closed.
    pub(crate) async fn with_connection<T>(
        &self,
        ask: impl AsyncFn(&mut C::Connection) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        let Ok(Ok(_turn)) = timeout(self.timeout, self.permits.acquire()).await else {
            return Err(RequestError::Refused(self.failure(format!("no connection free within {:?}", self.timeout))));
        };
        if let Some(connection) = self.take_idle() {
            match self.ask_on(connection, &ask).await {
                Err(RequestError::Connection(_)) => {}
                other => return other,
            }
        }
        let connection = self.connector.connect().await.map_err(|what| RequestError::Refused(self.failure(what)))?;
        self.ask_on(connection, &ask).await
    }

    /// Takes an idle connection.
    fn take_idle(&self) -> Option<C::Connection> {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|connection| !connection.is_closed());
        idle.pop()
    }

    /// Runs `ask` on this connection and keeps the connection if it is still usable.
    async fn ask_on<T>(
        &self,
        mut connection: C::Connection,
        ask: &impl AsyncFn(&mut C::Connection) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        let time = self.timeout;
        let Ok(result) = timeout(time, ask(&mut connection)).await else {
            // If the server is gone the idle connections are too; if it is slow, losing them costs
            // little.
            self.idle.borrow_mut().clear();
            let failure = BackendFailure::new(connection.at(), format!("no answer within {time:?}"));
            self.connector.cancel(connection);
            return Err(RequestError::Refused(failure));
        };
        match result {
            Err(RequestError::Connection(_)) => self.idle.borrow_mut().clear(),
            Err(RequestError::InvalidAnswer(_)) => {}
            Ok(_) | Err(RequestError::Keys(_) | RequestError::Refused(_)) => self.idle.borrow_mut().push(connection),
        }
        result
    }

    fn failure(&self, what: String) -> BackendFailure {
        BackendFailure::new(self.url.clone(), what)
    }
}

/// Connects to the first of these hosts that accepts us. Otherwise returns the errors of all.
pub(crate) async fn first_that_accepts<H: Display, T>(
    hosts: &[H],
    connect: impl AsyncFn(&H) -> Result<T, String>,
) -> Result<T, String> {
    let mut errors = Vec::new();
    for host in hosts {
        match connect(host).await {
            Ok(connection) => return Ok(connection),
            Err(error) if hosts.len() == 1 => return Err(error),
            Err(error) => errors.push(format!("{host}: {error}")),
        }
    }
    Err(errors.join("; "))
}

/// Connects to the first address of a name that accepts us. Otherwise returns the last error.
pub(crate) async fn first_address_that_accepts<T>(
    name: &str,
    port: u16,
    time: Duration,
    connect: impl AsyncFn(IpAddr) -> Result<T, String>,
) -> Result<T, String> {
    let found = timeout(time, lookup_host((name, port))).await;
    let found = found.map_err(|_| format!("the name was not resolved within {time:?}"))?;
    let mut last_error = "the name has no address".to_owned();
    for address in found.map_err(|error| error.to_string())? {
        match connect(SocketAddr::ip(&address)).await {
            Ok(connection) => return Ok(connection),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}
