//! Asks Dovecot's authentication server whether passwords are right ([`protocol::dovecot_auth`]), on a
//! thread of its own with one connection, over which many logins wait at the same time.
//!
//! | the server | the login |
//! |---|---|
//! | answers OK or FAIL | is right, for the user that OK names, or wrong |
//! | answers FAIL with `temp`, ends the connection, or takes longer than [`ANSWER_TIME_MAX`] | has no result, and counts as a failure: a server that gives no result must not make guesses free |
//! | cannot be reached | is not checked |
//!
//! A login is never sent twice. After a failed connection the next login tries another one.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use protocol::dovecot_auth::{AuthClient, AuthEvent, AuthVerdict};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use zeroize::Zeroizing;

use super::CheckerStartError;
use super::binder::PasswordCheck;

/// Connecting, until the server is ready, may take this long.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// A login may take this long. Dovecot delays refusals by some seconds.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// The name of the service that the server's rules may use.
const SERVICE: &str = "smtp";
/// The size of one read.
const READ_OCTETS: usize = 8 << 10;

/// A handle to the thread.
pub(super) struct DovecotChecker {
    requests: mpsc::Sender<LoginRequest>,
}

struct LoginRequest {
    user: Box<str>,
    password: Zeroizing<String>,
    client: IpAddr,
    answer: oneshot::Sender<PasswordCheck>,
}

impl DovecotChecker {
    /// Starts the thread, which ends with this handle. Does not connect yet.
    pub(super) fn start(socket: PathBuf, waiting_max: usize) -> Result<DovecotChecker, CheckerStartError> {
        let (requests, asked) = mpsc::channel(waiting_max.max(1));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("dovecot-auth".to_owned()).spawn(move || {
            runtime.block_on(run(&socket, asked, waiting_max.max(1)));
        })?;
        Ok(DovecotChecker { requests })
    }

    /// Checks the user's password.
    pub(super) async fn verify(&self, user: &str, password: &str, client: IpAddr) -> PasswordCheck {
        let (answer, answered) = oneshot::channel();
        let password = Zeroizing::new(password.to_owned());
        if self.requests.try_send(LoginRequest { user: user.into(), password, client, answer }).is_err() {
            return PasswordCheck::NotChecked("too many passwords are waiting to be checked".to_owned());
        }
        answered.await.unwrap_or_else(|_| PasswordCheck::NotChecked("the thread for logins has ended".to_owned()))
    }
}

async fn run(socket: &Path, mut asked: mpsc::Receiver<LoginRequest>, waiting_max: usize) {
    let mut connection: Option<AuthConnection> = None;
    loop {
        let has_room = connection.as_ref().is_none_or(|open| open.waiting.len() < waiting_max);
        let request = tokio::select! {
            // First, so that no login is sent over a connection that the server has closed.
            biased;
            ended = handle_next(&mut connection), if connection.is_some() => {
                if let Err(error) = ended {
                    end(&mut connection, socket, &error);
                }
                continue;
            }
            request = asked.recv(), if has_room => match request {
                Some(request) => request,
                None => return,
            },
        };
        // The caller has gone away.
        if request.answer.is_closed() {
            continue;
        }
        if connection.is_none() {
            match AuthConnection::open(socket).await {
                Ok(opened) => connection = Some(opened),
                Err(error) => {
                    drop(request.answer.send(PasswordCheck::NotChecked(failure(socket, &error))));
                    continue;
                }
            }
        }
        if let Some(open) = &mut connection
            && let Err(error) = open.send(request).await
        {
            end(&mut connection, socket, &error);
        }
    }
}

async fn handle_next(connection: &mut Option<AuthConnection>) -> io::Result<()> {
    match connection {
        Some(open) => open.handle_next().await,
        None => Ok(()),
    }
}

/// Whatever waits may have been checked or not.
fn end(connection: &mut Option<AuthConnection>, socket: &Path, error: &io::Error) {
    let waiting = connection.take().map(|open| open.waiting).unwrap_or_default();
    for waiting in waiting.into_values() {
        drop(waiting.answer.send(PasswordCheck::Inconclusive(failure(socket, error))));
    }
}

fn failure(socket: &Path, error: &io::Error) -> String {
    format!("Dovecot's authentication server {}: {error}", socket.display())
}

/// A connection whose server is ready.
struct AuthConnection {
    stream: UnixStream,
    protocol: AuthClient,
    /// By the number of the login.
    waiting: HashMap<u32, WaitingLogin>,
    buffer: Vec<u8>,
}

struct WaitingLogin {
    answer: oneshot::Sender<PasswordCheck>,
    until: Instant,
}

impl AuthConnection {
    async fn open(socket: &Path) -> io::Result<AuthConnection> {
        let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
        timeout(CONNECT_TIME_MAX, AuthConnection::open_unlimited(socket)).await.map_err(timed_out)?
    }

    async fn open_unlimited(socket: &Path) -> io::Result<AuthConnection> {
        let mut stream = UnixStream::connect(socket).await?;
        let (protocol, hello) = AuthClient::begin(std::process::id());
        stream.write_all(hello.as_bytes()).await?;
        let buffer = vec![0; READ_OCTETS];
        let mut connection = AuthConnection { stream, protocol, waiting: HashMap::new(), buffer };
        loop {
            if connection.read().await?.contains(&AuthEvent::Ready) {
                return Ok(connection);
            }
        }
    }

    async fn read(&mut self) -> io::Result<Vec<AuthEvent>> {
        match self.stream.read(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => self.protocol.handle_input(&self.buffer[..read]).map_err(io::Error::other),
        }
    }

    async fn send(&mut self, request: LoginRequest) -> io::Result<()> {
        let LoginRequest { user, password, client, answer } = request;
        let (number, line) = self.protocol.login(SERVICE, &user, &password, Some(client));
        let until = Instant::now() + ANSWER_TIME_MAX;
        self.waiting.insert(number, WaitingLogin { answer, until });
        let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
        timeout(CONNECT_TIME_MAX, self.stream.write_all(line.as_bytes())).await.map_err(timed_out)?
    }

    /// Reads once, or gives up the connection when a login waits too long. Cancel safe.
    async fn handle_next(&mut self) -> io::Result<()> {
        let deadline = self.waiting.values().map(|waiting| waiting.until).min();
        let deadline = deadline.unwrap_or_else(|| Instant::now() + ANSWER_TIME_MAX);
        let is_waiting = !self.waiting.is_empty();
        let events = tokio::select! {
            events = self.read() => events?,
            () = sleep_until(deadline), if is_waiting => return Err(io::ErrorKind::TimedOut.into()),
        };
        for event in events {
            let AuthEvent::Verdict(number, verdict) = event else { continue };
            let Some(waiting) = self.waiting.remove(&number) else { continue };
            drop(waiting.answer.send(match verdict {
                AuthVerdict::Accepted { user: None } => PasswordCheck::Right,
                AuthVerdict::Accepted { user: Some(user) } => PasswordCheck::RightFor(user),
                AuthVerdict::Refused => PasswordCheck::Wrong,
                AuthVerdict::Temporary(why) => PasswordCheck::Inconclusive(format!("Dovecot: {why}")),
            }));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, BufReader};
    use tokio::net::UnixListener;

    use super::*;
    use crate::{
        CredentialChecker, CredentialCheckerSettings, CredentialSource, LoginResult, ThrottleLimit, ThrottleSettings,
    };

    const GREETING: &str = "VERSION\t1\t2\nMECH\tPLAIN\tplaintext\nDONE\n";
    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// A server that answers the logins of each connection in turn with these lines; `#` is the number of the
    /// login. It ends the connection after the last one.
    fn server(listener: UnixListener, connections: &'static [&'static [&'static str]]) {
        tokio::spawn(async move {
            for answers in connections {
                let (stream, _) = listener.accept().await.unwrap();
                let (reader, mut writer) = stream.into_split();
                writer.write_all(GREETING.as_bytes()).await.unwrap();
                let mut lines = BufReader::new(reader).lines();
                for answer in *answers {
                    let login = loop {
                        let line = lines.next_line().await.unwrap().unwrap();
                        if line.starts_with("AUTH\t") {
                            break line;
                        }
                    };
                    let number = login.split('\t').nth(1).unwrap();
                    writer.write_all(answer.replace('#', number).as_bytes()).await.unwrap();
                }
            }
        });
    }

    #[tokio::test]
    async fn logins_are_right_wrong_or_without_a_result() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("auth");
        let checker = DovecotChecker::start(socket.clone(), 4).unwrap();
        let check = || checker.verify("alice", "secret", CLIENT);
        assert!(matches!(check().await, PasswordCheck::NotChecked(why) if why.contains("No such file")));
        let first: &[&str] = &["OK\t#\tuser=alice\n", "FAIL\t#\n", "FAIL\t#\ttemp\n", ""];
        server(UnixListener::bind(&socket).unwrap(), Box::leak(Box::new([first, &["OK\t#\n"]])));
        assert_eq!(check().await, PasswordCheck::RightFor("alice".into()));
        assert_eq!(check().await, PasswordCheck::Wrong);
        assert!(matches!(check().await, PasswordCheck::Inconclusive(why) if why.contains("temporary")));
        // The server ends the connection without an answer.
        assert!(matches!(check().await, PasswordCheck::Inconclusive(_)));
        assert_eq!(check().await, PasswordCheck::Right);
    }

    #[tokio::test]
    async fn the_user_is_who_the_server_says_and_is_remembered_as_such() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("auth");
        server(
            UnixListener::bind(&socket).unwrap(),
            &[&["OK\t#\tuser=Alice@Example.ORG\n", "OK\t#\tuser=two  spaces\n", "OK\t#\tuser=\n", "OK\t#\n"]],
        );
        let source = CredentialSource::Dovecot(socket);
        let checker = CredentialChecker::new(source, CredentialCheckerSettings::default(), [7; 32]).unwrap();
        let check = async |user: &str| checker.verify_password(user, "secret", CLIENT).await;
        let accepted = |user: &str| LoginResult::Accepted { user: user.into() };
        assert_eq!(check("alice").await, accepted("alice@example.org"));
        assert_eq!(check("ALICE").await, accepted("alice@example.org"));
        assert_eq!(checker.stats().remembered, 1, "the second login did not ask the server");
        for user in ["bob", "carol"] {
            let result = check(user).await;
            assert!(matches!(&result, LoginResult::Unusable(why) if why.contains("invalid user name")), "{result:?}");
        }
        assert_eq!(check("dora").await, accepted("dora"));
    }

    #[tokio::test]
    async fn failures_count_for_the_name_that_the_client_gave() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("auth");
        server(
            UnixListener::bind(&socket).unwrap(),
            &[&["FAIL\t#\tuser=alice@example.org\n", "OK\t#\tuser=alice@example.org\n"]],
        );
        let source = CredentialSource::Dovecot(socket);
        let throttle = ThrottleSettings {
            user: ThrottleLimit { failures: 1, ..ThrottleSettings::default().user },
            ..ThrottleSettings::default()
        };
        let settings = CredentialCheckerSettings { throttle, ..CredentialCheckerSettings::default() };
        let checker = CredentialChecker::new(source, settings, [7; 32]).unwrap();
        let check = async |user: &str, password: &str| checker.verify_password(user, password, CLIENT).await;
        assert_eq!(check("alice", "wrong").await, LoginResult::Refused);
        assert_eq!(check("alice", "secret").await, LoginResult::Throttled);
        assert_eq!(
            check("alice@example.org", "secret").await,
            LoginResult::Accepted { user: "alice@example.org".into() }
        );
    }

    #[tokio::test]
    async fn a_server_that_is_no_dovecot_checks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("auth");
        let listener = UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"220 mx.example.org ESMTP\r\nDONE\n").await.unwrap();
            stream.read_exact(&mut [0; 1]).await.unwrap();
        });
        let checker = DovecotChecker::start(socket, 4).unwrap();
        let check = checker.verify("alice", "secret", CLIENT).await;
        assert!(matches!(check, PasswordCheck::NotChecked(why) if why.contains("another version")));
    }
}
