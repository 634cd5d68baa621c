//! A connection to MySQL: connects to the first server that accepts us, prepares the query for
//! different numbers of keys, and runs it.

use std::io;
use std::time::Duration;

use rustls::CertificateError;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::MysqlConfig;
use super::handshake::{AuthStep, Greeting, HandshakeError, next_step};
use super::packet::{ProtocolError, ServerError, push_string};
use super::query::MysqlQuery;
use super::result::{AnswerError, Column, Prepared, ResultStart, RowCollector, RowOrEnd, row_or_end};
use super::stream::{PacketStream, StreamError};
use super::url::{MysqlUrl, TlsMode, server_url};
use crate::LookupAnswer;
use crate::backend::BackendFailure;
use crate::byte_stream::ByteStream;
use crate::connection_pool::{self, ServerConnection, first_address_that_accepts, first_that_accepts};
use crate::request_error::RequestError;
use crate::server_url::ServerAddress;

/// Keys in one statement, a power of two.
const KEYS_PER_STATEMENT: usize = 64;
/// Statements for 1, 2, 4 ... keys.
const STATEMENTS: usize = KEYS_PER_STATEMENT.ilog2() as usize + 1;
/// Steps of a login; servers need at most three.
const LOGIN_STEPS_MAX: usize = 5;

const QUERY: u8 = 0x03;
const PING: u8 = 0x0e;
const PREPARE: u8 = 0x16;
const EXECUTE: u8 = 0x17;
/// The type of all parameters.
const TEXT_PARAMETER: [u8; 2] = [0xfd, 0];

/// Server errors after which another connection may work: the server shuts down (1053), the
/// connection was killed (1927, 3169) or idle for too long (4031), the statement is unknown or must
/// be prepared again (1243, 1615).
const CONNECTION_ERRORS: [u16; 6] = [1053, 1243, 1615, 1927, 3169, 4031];
/// Server errors that a key causes: a character that the column's character set lacks (1267, 1270,
/// 1271, 1300, 1366, 3854, 3988), or a failed conversion (1292).
const KEY_ERRORS: [u16; 8] = [1267, 1270, 1271, 1292, 1300, 1366, 3854, 3988];

/// Opens connections.
#[derive(Clone)]
pub(super) struct Connector {
    url: MysqlUrl,
    password: Box<str>,
    /// None: never TLS.
    tls: Option<TlsConnector>,
    /// Timeout for connecting and logging in, per address.
    timeout: Duration,
}

/// A connection.
pub(super) struct Connection {
    stream: PacketStream,
    /// The server's number for it.
    number: u32,
    /// The server it is connected to.
    server: ServerAddress,
    /// The statement for one key, for two, for four, and so on.
    statements: [Option<Prepared>; STATEMENTS],
    /// Whether the database refuses to combine the query for several keys.
    one_by_one: bool,
    /// The server as errors name it.
    at: Box<str>,
}

/// Why a connection cannot be opened.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("no connection within {0:?}")]
    TimedOut(Duration),
    #[error("the server does not support TLS")]
    NoTls,
    #[error("{0} is not a name that a certificate can have")]
    Name(Box<str>),
    #[error("{0}; set ca_file to trust its CA, or ssl-mode=disabled to connect without TLS")]
    UnknownIssuer(io::Error),
    #[error(transparent)]
    Stream(StreamError),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("the server does not end the login")]
    Endless,
}

impl From<StreamError> for OpenError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Io(error) if is_unknown_issuer(&error) => OpenError::UnknownIssuer(error),
            error => OpenError::Stream(error),
        }
    }
}

/// Whether the server's certificate is from an unknown CA.
fn is_unknown_issuer(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)))
}

impl Connector {
    /// Connects as `config` says.
    pub(super) fn new(config: &MysqlConfig, tls: Option<TlsConnector>) -> Self {
        let password = config.password.as_deref().or(config.url.password()).unwrap_or_default().into();
        Connector { url: config.url.clone(), password, tls, timeout: config.connect_timeout }
    }

    async fn connect_to_server(&self, server: &ServerAddress) -> Result<Connection, String> {
        match server {
            ServerAddress::Unix(path) => {
                self.within_timeout(async {
                    let stream = UnixStream::connect(path).await.map_err(StreamError::from)?;
                    self.log_in(server, Box::new(stream)).await
                })
                .await
            }
            ServerAddress::Tcp { host, port } => {
                let connect = async |address| {
                    self.within_timeout(async {
                        let stream = TcpStream::connect((address, *port)).await.map_err(StreamError::from)?;
                        stream.set_nodelay(true).map_err(StreamError::from)?;
                        self.log_in(server, Box::new(stream)).await
                    })
                    .await
                };
                first_address_that_accepts(host, *port, self.timeout, connect).await
            }
        }
    }

    async fn within_timeout(
        &self,
        opening: impl Future<Output = Result<Connection, OpenError>>,
    ) -> Result<Connection, String> {
        let opened = timeout(self.timeout, opening).await.unwrap_or(Err(OpenError::TimedOut(self.timeout)));
        opened.map_err(|error| error.to_string())
    }

    /// Logs in on a new connection to `server`.
    async fn log_in(&self, server: &ServerAddress, stream: Box<dyn ByteStream>) -> Result<Connection, OpenError> {
        let mut stream = PacketStream::new(stream);
        let greeting = Greeting::read(stream.read().await?)?;
        let tls_name = self.tls_name(server, &greeting)?;
        let has_tls = tls_name.is_some();
        if let (Some(name), Some(tls)) = (tls_name, &self.tls) {
            stream.write(&greeting.tls_request(self.url.database().is_some())).await?;
            stream = stream.into_tls(tls, name).await?;
        }
        let user = self.url.user().unwrap_or_default();
        stream.write(&greeting.response(has_tls, user, &self.password, self.url.database())).await?;
        let is_private = has_tls || matches!(server, ServerAddress::Unix(_));
        self.finish_login(&mut stream, is_private).await?;
        Ok(Connection {
            stream,
            number: greeting.connection,
            server: server.clone(),
            statements: [None; STATEMENTS],
            one_by_one: false,
            at: server_url(server).into(),
        })
    }

    /// The name to verify if TLS is to be used. A Unix socket needs none.
    fn tls_name(&self, server: &ServerAddress, greeting: &Greeting) -> Result<Option<ServerName<'static>>, OpenError> {
        let ServerAddress::Tcp { host, .. } = server else { return Ok(None) };
        match (self.url.tls(), greeting.has_tls) {
            (TlsMode::Disabled, _) | (TlsMode::Preferred, false) => Ok(None),
            (TlsMode::Required, false) => Err(OpenError::NoTls),
            (TlsMode::Preferred | TlsMode::Required, true) => {
                let name = ServerName::try_from(host.to_string()).map_err(|_| OpenError::Name(host.clone()))?;
                Ok(Some(name))
            }
        }
    }

    async fn finish_login(&self, stream: &mut PacketStream, is_private: bool) -> Result<(), OpenError> {
        for _ in 0..LOGIN_STEPS_MAX {
            match next_step(stream.read().await?, is_private)? {
                AuthStep::Done => return Ok(()),
                AuthStep::Wait => {}
                AuthStep::Prove(method, challenge) => stream.write(&method.proof(&self.password, &challenge)).await?,
                AuthStep::SendPassword => stream.write(&[self.password.as_bytes(), &[0]].concat()).await?,
            }
        }
        Err(OpenError::Endless)
    }
}

impl connection_pool::Connector for Connector {
    type Connection = Connection;

    async fn connect(&self) -> Result<Connection, String> {
        first_that_accepts(self.url.servers(), async |server| self.connect_to_server(server).await).await
    }

    /// MySQL goes on with a query whose client has gone, so it is killed from another connection.
    fn cancel(&self, connection: Connection) {
        let (connector, number, server) = (self.clone(), connection.number, connection.server.clone());
        drop(connection);
        tokio::task::spawn_local(async move {
            if let Ok(mut other) = connector.connect_to_server(&server).await {
                let kill = format!("KILL {number}");
                drop(timeout(connector.timeout, other.run(QUERY, kill.as_bytes())).await);
            }
        });
    }
}

impl ServerConnection for Connection {
    fn at(&self) -> &str {
        &self.at
    }

    async fn probe(&mut self) -> Result<(), RequestError> {
        self.run(PING, &[]).await.map_err(|error| self.request_error(error))
    }
}

impl Connection {
    /// Runs the query for these keys, which have all parts that it needs.
    pub(super) async fn ask(&mut self, query: &MysqlQuery, keys: &[&str]) -> Result<Vec<LookupAnswer>, RequestError> {
        let mut answers = Vec::with_capacity(keys.len());
        while answers.len() < keys.len() {
            let open = &keys[answers.len()..];
            let (statement, together) = self.statement(query, open.len()).await?;
            let asked = self.execute(statement, &query.parameters(&open[..together]), together).await;
            answers.extend(asked.map_err(|error| self.request_error(error))?);
        }
        Ok(answers)
    }

    /// A statement and the number of keys that it takes, of so many that are left.
    async fn statement(&mut self, query: &MysqlQuery, left: usize) -> Result<(Prepared, usize), RequestError> {
        // The plain query comes first: its errors are those of the operator.
        let plain = self.prepared(query, 0).await?;
        let size = left.min(KEYS_PER_STATEMENT).ilog2() as usize;
        if size == 0 || self.one_by_one {
            return Ok((plain, 1));
        }
        match self.prepared(query, size).await {
            Ok(combined) => Ok((combined, 1 << size)),
            Err(RequestError::Refused(_)) => {
                self.one_by_one = true;
                Ok((plain, 1))
            }
            Err(error) => Err(error),
        }
    }

    /// The statement for two to the power of `size` keys.
    async fn prepared(&mut self, query: &MysqlQuery, size: usize) -> Result<Prepared, RequestError> {
        if let Some(prepared) = self.statements[size] {
            return Ok(prepared);
        }
        let keys = 1 << size;
        let text = if size == 0 { query.statement().to_owned() } else { query.statement_for(keys) };
        let prepared = self.prepare(&text).await.map_err(|error| self.request_error(error))?;
        let (found, expected) = (prepared.parameters, query.parameter_count() * keys);
        if found != expected {
            let what = format!("the query has {found} parameters, of which {expected} are parts of the key");
            return Err(RequestError::Refused(BackendFailure::new(self.at.clone(), what)));
        }
        Ok(*self.statements[size].insert(prepared))
    }

    async fn prepare(&mut self, statement: &str) -> Result<Prepared, RunError> {
        self.stream.command(&[&[PREPARE], statement.as_bytes()].concat()).await?;
        let prepared = Prepared::read(self.stream.read().await?)?;
        // What is known before an execution is described again with its result.
        for described in [prepared.parameters, prepared.columns] {
            let with_end = if described == 0 { 0 } else { described + 1 };
            for _ in 0..with_end {
                self.stream.read().await?;
            }
        }
        Ok(prepared)
    }

    async fn execute(
        &mut self,
        statement: Prepared,
        values: &[&str],
        keys: usize,
    ) -> Result<Vec<LookupAnswer>, RunError> {
        self.stream.command(&execution(statement, values)).await?;
        let mut rows = RowCollector::new(keys);
        while self.read_result(&mut rows).await? {}
        Ok(rows.into_answers())
    }

    /// Reads one result. Returns whether another one follows, as after a CALL.
    async fn read_result(&mut self, rows: &mut RowCollector) -> Result<bool, RunError> {
        let count = match ResultStart::read(self.stream.read().await?)? {
            ResultStart::Columns(count) => count,
            ResultStart::NoRows { more } => return Ok(more),
        };
        let mut columns = Vec::new();
        for _ in 0..count {
            columns.push(Column::read(self.stream.read().await?)?);
        }
        let RowOrEnd::End { .. } = row_or_end(self.stream.read().await?)? else {
            return Err(ProtocolError("more columns than announced").into());
        };
        loop {
            match row_or_end(self.stream.read().await?)? {
                RowOrEnd::Row(row) => rows.add(&columns, row)?,
                RowOrEnd::End { more } => return Ok(more),
            }
        }
    }

    /// Runs a command that has no rows.
    async fn run(&mut self, command: u8, text: &[u8]) -> Result<(), RunError> {
        self.stream.command(&[&[command], text].concat()).await?;
        match ResultStart::read(self.stream.read().await?)? {
            ResultStart::NoRows { .. } => Ok(()),
            ResultStart::Columns(_) => Err(ProtocolError("rows that were not asked for").into()),
        }
    }

    /// What an error means for the request.
    fn request_error(&self, error: RunError) -> RequestError {
        let failure = BackendFailure::new(self.at.clone(), &error);
        match error {
            RunError::Stream(StreamError::Io(_)) => RequestError::Connection(failure),
            RunError::Answer(AnswerError::Server(error)) if is_key_error(&error) => RequestError::Keys(failure),
            RunError::Answer(AnswerError::Server(error)) if is_connection_error(&error) => {
                RequestError::Connection(failure)
            }
            RunError::Answer(AnswerError::Server(_)) => RequestError::Refused(failure),
            RunError::Stream(StreamError::Protocol(_)) | RunError::Answer(_) => RequestError::InvalidAnswer(failure),
        }
    }
}

/// Why a command fails.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Answer(#[from] AnswerError),
}

impl From<ProtocolError> for RunError {
    fn from(error: ProtocolError) -> Self {
        RunError::Stream(error.into())
    }
}

fn is_connection_error(error: &ServerError) -> bool {
    CONNECTION_ERRORS.contains(&error.code) || error.state.starts_with("08")
}

/// By code, or by its class (22, data exception).
fn is_key_error(error: &ServerError) -> bool {
    KEY_ERRORS.contains(&error.code) || error.state.starts_with("22")
}

/// The command to execute a statement with these values.
fn execution(statement: Prepared, values: &[&str]) -> Vec<u8> {
    let mut command = vec![EXECUTE];
    command.extend_from_slice(&statement.statement.to_le_bytes());
    // No cursor, and one execution.
    command.extend_from_slice(&[0, 1, 0, 0, 0]);
    // No value is NULL, and their types follow.
    command.resize(command.len() + values.len().div_ceil(8), 0);
    command.push(1);
    values.iter().for_each(|_| command.extend_from_slice(&TEXT_PARAMETER));
    values.iter().for_each(|value| push_string(&mut command, value.as_bytes()));
    command
}
