//! The client's side of Dovecot's authentication protocol, version 1.2: asks a server that shares one
//! connection for all logins whether passwords are right.
//!
//! ```text
//! C: VERSION 1 2          both sides begin without waiting for each other
//! C: CPID 4711
//! S: VERSION 1 2          another major version ends the connection
//! S: MECH PLAIN plaintext and further lines
//! S: DONE                 from here on, logins may be sent
//! C: AUTH 1 PLAIN service=smtp nologin secured rip=192.0.2.1 resp=AGFsaWNlAHNlY3JldA==
//! S: OK 1 user=alice      or FAIL 1 user=alice temp; in any order, each with the number of its login
//! ```
//!
//! The parts of a line are separated by tabs. Bytes of the server are untrusted: a line has a limit, and
//! anything that is not in the protocol ends the connection. Lines with unknown commands are ignored, as
//! the protocol wants.

use std::net::IpAddr;

use zeroize::Zeroizing;

use crate::sasl::encode;

/// The longest line of the server that is read, in octets.
pub const LINE_OCTETS_MAX: usize = 8192;
/// Lines before DONE.
const HANDSHAKE_LINES_MAX: usize = 1000;

/// The protocol with the server: what comes in, and what is to be sent.
#[derive(Debug)]
pub struct AuthClient {
    state: State,
    input: Vec<u8>,
    next_number: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Lines so far, and what they said.
    Handshake {
        lines: usize,
        has_version: bool,
        has_plain: bool,
    },
    Ready,
}

/// What a server says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthEvent {
    /// Logins may be sent.
    Ready,
    /// The result of the login with this number.
    Verdict(u32, AuthVerdict),
}

/// The result of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthVerdict {
    /// The password is right.
    Accepted {
        /// The user's name, which may differ from the one in the login: a default realm, or another
        /// rule of the server. None if the server returns none.
        user: Option<Box<str>>,
    },
    /// It is wrong, or the user is unknown or may not log in.
    Refused,
    /// The server cannot say at the moment; its reason.
    Temporary(Box<str>),
}

/// Why the connection has to end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthProtocolError {
    /// A line is longer than [`LINE_OCTETS_MAX`], or there are too many before DONE.
    #[error("sends too much")]
    TooMuch,
    /// The server has another version of the protocol.
    #[error("speaks another version of the protocol, expected 1")]
    Version,
    /// The server does not offer PLAIN, the only mechanism that is used.
    #[error("does not offer the mechanism PLAIN")]
    NoPlain,
    /// A line is not in the protocol.
    #[error("sends a line that is not in the protocol")]
    Unexpected,
}

impl AuthClient {
    /// A new connection of the process `pid`, and what to send first.
    pub fn begin(pid: u32) -> (AuthClient, String) {
        let state = State::Handshake { lines: 0, has_version: false, has_plain: false };
        (AuthClient { state, input: Vec::new(), next_number: 1 }, format!("VERSION\t1\t2\nCPID\t{pid}\n"))
    }

    /// Bytes of the server: what they say.
    ///
    /// # Errors
    ///
    /// The connection has to end.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<Vec<AuthEvent>, AuthProtocolError> {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let (mut events, mut rest) = (Vec::new(), &input[..]);
        while let Some(end) = memchr::memchr(b'\n', rest) {
            if end > LINE_OCTETS_MAX {
                return Err(AuthProtocolError::TooMuch);
            }
            let line = String::from_utf8_lossy(&rest[..end]);
            events.extend(self.handle_line(&line)?);
            rest = &rest[end + 1..];
        }
        if rest.len() > LINE_OCTETS_MAX {
            return Err(AuthProtocolError::TooMuch);
        }
        self.input = rest.to_vec();
        Ok(events)
    }

    /// A login: its number and what to send. Only once the server is ready.
    pub fn login(
        &mut self,
        service: &str,
        user: &str,
        password: &str,
        client: Option<IpAddr>,
    ) -> (u32, Zeroizing<String>) {
        let number = self.next_number;
        self.next_number = number.wrapping_add(1).max(1);
        let response = Zeroizing::new(format!("\0{user}\0{password}"));
        let response = Zeroizing::new(encode(response.as_bytes()));
        let client = client.map(|client| format!("\trip={client}")).unwrap_or_default();
        // Whether a login needs TLS has been decided before: for the server it is always secured.
        let line = format!("AUTH\t{number}\tPLAIN\tservice={service}\tnologin\tsecured{client}\tresp={}\n", *response);
        (number, Zeroizing::new(line))
    }

    fn handle_line(&mut self, line: &str) -> Result<Option<AuthEvent>, AuthProtocolError> {
        let mut parts = line.split('\t');
        let command = parts.next().unwrap_or_default();
        let State::Handshake { lines, has_version, has_plain } = &mut self.state else {
            return verdict(command, parts).map(|found| found.map(|(number, it)| AuthEvent::Verdict(number, it)));
        };
        *lines += 1;
        match command {
            _ if *lines > HANDSHAKE_LINES_MAX => return Err(AuthProtocolError::TooMuch),
            "VERSION" if parts.next() != Some("1") => return Err(AuthProtocolError::Version),
            "VERSION" => *has_version = true,
            "MECH" => *has_plain |= parts.next().is_some_and(|name| name.eq_ignore_ascii_case("PLAIN")),
            "DONE" if !*has_version => return Err(AuthProtocolError::Version),
            "DONE" if !*has_plain => return Err(AuthProtocolError::NoPlain),
            "DONE" => {
                self.state = State::Ready;
                return Ok(Some(AuthEvent::Ready));
            }
            _ => {}
        }
        Ok(None)
    }
}

/// The verdict in a line; None if the line has none.
fn verdict<'a>(
    command: &str,
    mut parts: impl Iterator<Item = &'a str>,
) -> Result<Option<(u32, AuthVerdict)>, AuthProtocolError> {
    if !matches!(command, "OK" | "FAIL" | "CONT") {
        return Ok(None);
    }
    let number = parts.next().and_then(|number| number.parse().ok()).ok_or(AuthProtocolError::Unexpected)?;
    match command {
        "OK" => Ok(Some((number, AuthVerdict::Accepted { user: user(parts) }))),
        "FAIL" => Ok(Some((number, failure(parts)))),
        // PLAIN has no challenges.
        _ => Err(AuthProtocolError::Unexpected),
    }
}

/// The name in an accepted login.
fn user<'a>(mut parts: impl Iterator<Item = &'a str>) -> Option<Box<str>> {
    parts.find_map(|part| part.strip_prefix("user=")).map(Into::into)
}

/// `temp` and `code=temp_fail` mean that the server itself has failed.
fn failure<'a>(parts: impl Iterator<Item = &'a str>) -> AuthVerdict {
    let (mut is_temporary, mut reason) = (false, "");
    for part in parts {
        match part.split_once('=') {
            None if part == "temp" => is_temporary = true,
            Some(("code", "temp_fail")) => is_temporary = true,
            Some(("reason", text)) => reason = text,
            _ => {}
        }
    }
    let reason = if reason.is_empty() { "temporary failure" } else { reason };
    if is_temporary { AuthVerdict::Temporary(reason.into()) } else { AuthVerdict::Refused }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GREETING: &str = "VERSION\t1\t2\nMECH\tPLAIN\tplaintext\nMECH\tLOGIN\tplaintext\nSPID\t77\nCUID\t1\n\
                            COOKIE\t00ff\nDONE\n";

    fn ready() -> AuthClient {
        let (mut client, hello) = AuthClient::begin(42);
        assert_eq!(hello, "VERSION\t1\t2\nCPID\t42\n");
        assert_eq!(client.handle_input(GREETING.as_bytes()), Ok(vec![AuthEvent::Ready]));
        client
    }

    #[test]
    fn a_login_is_answered_by_its_number() {
        let mut client = ready();
        let address = "192.0.2.1".parse().ok();
        let (first, line) = client.login("smtp", "alice", "secret", address);
        let expected = "AUTH\t1\tPLAIN\tservice=smtp\tnologin\tsecured\trip=192.0.2.1\tresp=AGFsaWNlAHNlY3JldA==\n";
        assert_eq!((first, line.as_str()), (1, expected));
        let (second, _) = client.login("smtp", "bob", "x", None);
        let answers = "FAIL\t2\tuser=bob\treason=no\nUNKNOWN\tx\nOK\t1\tnologin\tuser=alice@example.org\nFAIL\t3\ttemp\nFAIL\t4\tcode=temp_fail\treason=db\n";
        let verdict = |number, it| AuthEvent::Verdict(number, it);
        let expected = vec![
            verdict(second, AuthVerdict::Refused),
            verdict(first, AuthVerdict::Accepted { user: Some("alice@example.org".into()) }),
            verdict(3, AuthVerdict::Temporary("temporary failure".into())),
            verdict(4, AuthVerdict::Temporary("db".into())),
        ];
        assert_eq!(client.handle_input(answers.as_bytes()), Ok(expected));
    }

    #[test]
    fn input_may_be_split_anywhere() {
        let whole = format!("{GREETING}OK\t1\n");
        for place in 0..whole.len() {
            let (mut client, _) = AuthClient::begin(1);
            let (front, back) = whole.as_bytes().split_at(place);
            let mut events = client.handle_input(front).unwrap();
            events.extend(client.handle_input(back).unwrap());
            assert_eq!(
                events,
                [AuthEvent::Ready, AuthEvent::Verdict(1, AuthVerdict::Accepted { user: None })],
                "{place}"
            );
        }
    }

    #[test]
    fn what_is_not_in_the_protocol_ends_the_connection() {
        for (input, error) in [
            ("VERSION\t2\t0\n", AuthProtocolError::Version),
            ("DONE\n", AuthProtocolError::Version),
            ("VERSION\t1\t0\nMECH\tCRAM-MD5\nDONE\n", AuthProtocolError::NoPlain),
        ] {
            assert_eq!(AuthClient::begin(1).0.handle_input(input.as_bytes()), Err(error), "{input}");
        }
        for input in ["OK\n", "FAIL\tx\n", "CONT\t1\tabcd\n"] {
            assert_eq!(ready().handle_input(input.as_bytes()), Err(AuthProtocolError::Unexpected), "{input}");
        }
        let endless = vec![b'x'; LINE_OCTETS_MAX + 1];
        assert_eq!(ready().handle_input(&endless), Err(AuthProtocolError::TooMuch));
        let lines = "MECH\tX\n".repeat(HANDSHAKE_LINES_MAX + 1);
        assert_eq!(AuthClient::begin(1).0.handle_input(lines.as_bytes()), Err(AuthProtocolError::TooMuch));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(input in "((OK|FAIL|CONT|VERSION|MECH|DONE)?[\t0-9=a-z]{0,9}\n?){0,9}") {
            drop(AuthClient::begin(1).0.handle_input(input.as_bytes()));
            drop(ready().handle_input(input.as_bytes()));
        }
    }
}
