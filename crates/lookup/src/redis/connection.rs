//! A connection to Redis: connects to the first server that accepts us, logs in, and sends commands.

use std::io;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::RedisConfig;
use super::reply::{LINE_OCTETS_MAX, Reply, ReplyError, ReplyLine, push_command};
use super::url::{RedisUrl, server_url};
use crate::LookupAnswer;
use crate::backend::BackendFailure;
use crate::byte_stream::ByteStream;
use crate::connection_pool::{self, ServerConnection, first_address_that_accepts, first_that_accepts};
use crate::request_error::RequestError;
use crate::server_url::ServerAddress;

/// Maximum octets of the answers to one request.
const ANSWER_OCTETS_MAX: usize = 64 * 1024 * 1024;

/// Opens connections.
pub(super) struct Connector {
    url: RedisUrl,
    password: Option<Box<str>>,
    /// None: no TLS.
    tls: Option<TlsConnector>,
    /// Timeout for connecting and logging in, per address.
    timeout: Duration,
}

/// A connection.
pub(super) struct Connection {
    stream: BufReader<Box<dyn ByteStream>>,
    /// Octets that the current request may still read.
    octets_left: usize,
    /// The server as errors name it.
    at: Box<str>,
}

/// Why a connection cannot be opened, or a command fails.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error("no connection within {0:?}")]
    TimedOut(Duration),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Reply(#[from] ReplyError),
    /// An error of the server.
    #[error("{0}")]
    Server(String),
}

impl Connector {
    /// Connects as `config` says.
    pub(super) fn new(config: &RedisConfig, tls: Option<TlsConnector>) -> Self {
        let password = config.password.clone().or_else(|| config.url.password().map(Into::into));
        Connector { url: config.url.clone(), password, tls, timeout: config.connect_timeout }
    }

    async fn connect_to_server(&self, server: &ServerAddress) -> Result<Connection, String> {
        match server {
            ServerAddress::Unix(path) => {
                self.within_timeout(async { self.log_in(server, Box::new(UnixStream::connect(path).await?)).await })
                    .await
            }
            ServerAddress::Tcp { host, port } => {
                let connect = async |address| {
                    self.within_timeout(async {
                        let stream = TcpStream::connect((address, *port)).await?;
                        stream.set_nodelay(true)?;
                        self.log_in(server, self.with_tls(host, stream).await?).await
                    })
                    .await
                };
                first_address_that_accepts(host, *port, self.timeout, connect).await
            }
        }
    }

    async fn with_tls(&self, host: &str, stream: TcpStream) -> io::Result<Box<dyn ByteStream>> {
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Box::new(tls.connect(name, stream).await?))
    }

    async fn within_timeout(
        &self,
        opening: impl Future<Output = Result<Connection, CommandError>>,
    ) -> Result<Connection, String> {
        let opened = timeout(self.timeout, opening).await.unwrap_or(Err(CommandError::TimedOut(self.timeout)));
        opened.map_err(|error| error.to_string())
    }

    /// Logs in and chooses the database on a new connection to `server`.
    async fn log_in(&self, server: &ServerAddress, stream: Box<dyn ByteStream>) -> Result<Connection, CommandError> {
        let at = server_url(server).into();
        let mut connection = Connection { stream: BufReader::new(stream), octets_left: 0, at };
        if let Some(password) = &self.password {
            let words: Vec<&str> = ["AUTH"].into_iter().chain(self.url.user()).chain([&**password]).collect();
            connection.run(&words).await?;
        }
        if self.url.database() != 0 {
            connection.run(&["SELECT", &self.url.database().to_string()]).await?;
        }
        Ok(connection)
    }
}

impl connection_pool::Connector for Connector {
    type Connection = Connection;

    async fn connect(&self) -> Result<Connection, String> {
        first_that_accepts(self.url.servers(), async |server| self.connect_to_server(server).await).await
    }

    /// What Redis still computes is nothing that could be ended.
    fn cancel(&self, connection: Connection) {
        drop(connection);
    }
}

impl ServerConnection for Connection {
    fn at(&self) -> &str {
        &self.at
    }

    async fn probe(&mut self) -> Result<(), RequestError> {
        self.run(&["PING"]).await.map_err(|error| self.request_error(error))
    }
}

impl Connection {
    /// The answers to these commands, which are sent together.
    pub(super) async fn ask(&mut self, commands: &[&[String]]) -> Result<Vec<LookupAnswer>, RequestError> {
        let replies = self.replies(commands).await.map_err(|error| self.request_error(error))?;
        let answers = replies.into_iter().map(|reply| reply.into_answer(&self.at)).collect::<Result<_, _>>();
        // All replies have been read, so the connection is usable.
        answers.map_err(|what| RequestError::Refused(BackendFailure::new(self.at.clone(), what)))
    }

    /// Runs a command that succeeds with a word.
    async fn run(&mut self, words: &[&str]) -> Result<(), CommandError> {
        match self.replies(&[words]).await?.pop() {
            Some(Reply::Word) => Ok(()),
            Some(Reply::Error(text)) => Err(CommandError::Server(text.into())),
            _ => Err(ReplyError("not a word").into()),
        }
    }

    async fn replies<W: AsRef<str>>(&mut self, commands: &[&[W]]) -> Result<Vec<Reply>, CommandError> {
        let mut octets = Vec::new();
        commands.iter().for_each(|words| push_command(&mut octets, words));
        self.stream.write_all(&octets).await?;
        self.stream.flush().await?;
        self.octets_left = ANSWER_OCTETS_MAX;
        let mut replies = Vec::with_capacity(commands.len());
        for _ in commands {
            replies.push(self.reply().await?);
        }
        Ok(replies)
    }

    async fn reply(&mut self) -> Result<Reply, CommandError> {
        Ok(match self.line().await? {
            ReplyLine::Word => Reply::Word,
            ReplyLine::Error(text) => Reply::Error(text),
            ReplyLine::Number(number) => Reply::Number(number),
            ReplyLine::Nil => Reply::Nil,
            ReplyLine::Text(octets) => Reply::Text(self.text(octets).await?),
            ReplyLine::Array(count) => {
                let mut texts = Vec::new();
                for _ in 0..count {
                    let ReplyLine::Text(octets) = self.line().await? else {
                        return Err(ReplyError("a member that is not a text").into());
                    };
                    texts.push(self.text(octets).await?);
                }
                Reply::Texts(texts)
            }
        })
    }

    async fn line(&mut self) -> Result<ReplyLine, CommandError> {
        let mut line = Vec::new();
        let read = (&mut self.stream).take(LINE_OCTETS_MAX as u64).read_until(b'\n', &mut line).await?;
        self.count(read)?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(ReplyLine::read(line)?),
            None if read == LINE_OCTETS_MAX => Err(ReplyError("a line that does not end").into()),
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }

    /// A text of so many octets, and the line end after it.
    async fn text(&mut self, octets: usize) -> Result<Vec<u8>, CommandError> {
        self.count(octets)?;
        let mut text = Vec::new();
        let read = (&mut self.stream).take(octets as u64 + 2).read_to_end(&mut text).await?;
        if read < octets + 2 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        match text.split_off(octets) == b"\r\n" {
            true => Ok(text),
            false => Err(ReplyError("a text without its end").into()),
        }
    }

    fn count(&mut self, octets: usize) -> Result<(), ReplyError> {
        self.octets_left = self.octets_left.checked_sub(octets).ok_or(ReplyError("more than 64 MiB"))?;
        Ok(())
    }

    /// What an error means for the request.
    fn request_error(&self, error: CommandError) -> RequestError {
        let failure = BackendFailure::new(self.at.clone(), &error);
        match error {
            CommandError::Io(_) | CommandError::TimedOut(_) => RequestError::Connection(failure),
            CommandError::Reply(_) => RequestError::InvalidAnswer(failure),
            CommandError::Server(_) => RequestError::Refused(failure),
        }
    }
}
