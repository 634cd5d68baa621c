//! What all sessions with one kind of server share: who we are, what we insist on, how long we wait. Whatever of it
//! goes into a command line was looked at when it was made, so that no command can carry another one.

use std::fmt;
use std::time::Duration;

use crate::smtp::Flavor;

/// Octets of a [`Word`]. RFC 3461 section 4.2 has the longest that is ours to send.
pub const WORD_OCTETS_MAX: usize = 500;
/// Octets of a user's name or password.
pub const CREDENTIAL_OCTETS_MAX: usize = 1024;

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// The protocol.
    pub flavor: Flavor,
    /// The name that the client gives itself in EHLO, LHLO or HELO.
    pub helo: Word,
    /// Whether it asks for TLS.
    pub tls: Tls,
    /// It logs in as this user, or not at all. Without [`Tls::Required`] the password may go out in clear text.
    pub credentials: Option<Credentials>,
    /// Commands go out in groups (RFC 2920) where the server offers it.
    pub pipelining: bool,
    /// Messages go out by BDAT (RFC 3030) where the server offers it.
    pub chunking: bool,
    /// How long it waits.
    pub timeouts: Timeouts,
}

impl Config {
    /// TLS where offered, nobody logs in, commands in groups, messages by DATA.
    pub fn new(flavor: Flavor, helo: Word) -> Self {
        let timeouts = Timeouts::default();
        Config { flavor, helo, tls: Tls::Offered, credentials: None, pipelining: true, chunking: false, timeouts }
    }
}

/// Whether STARTTLS (RFC 3207) is asked for. A session that stands on TLS from its first byte says [`Tls::Never`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// Not at all.
    Never,
    /// Where the server offers it; if it then refuses, the session goes on in clear text.
    Offered,
    /// Always; without it the session ends before anything else was said.
    Required,
}

/// Text that stands in a command as one word: neither empty nor over [`WORD_OCTETS_MAX`], no white space, no control
/// characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word(Box<str>);

/// Why a text is no [`Word`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 1 to {WORD_OCTETS_MAX} octets without white space and control characters")]
pub struct NoWord;

impl Word {
    /// Takes a text that is one.
    pub fn new(text: &str) -> Result<Self, NoWord> {
        let sound = (1..=WORD_OCTETS_MAX).contains(&text.len())
            && !text.chars().any(|letter| letter.is_control() || letter.is_whitespace());
        if sound { Ok(Word(text.into())) } else { Err(NoWord) }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Who logs in (RFC 4954).
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: Box<str>,
    password: Box<str>,
}

/// Why nobody can log in so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("user and password must have 1 to {CREDENTIAL_OCTETS_MAX} octets each, and no NUL")]
pub struct BadCredentials;

impl Credentials {
    /// RFC 4616 section 2: a NUL would end the name, or the password, early.
    pub fn new(user: &str, password: &str) -> Result<Self, BadCredentials> {
        let sound = |text: &str| (1..=CREDENTIAL_OCTETS_MAX).contains(&text.len()) && !text.contains('\0');
        if !sound(user) || !sound(password) {
            return Err(BadCredentials);
        }
        Ok(Credentials { user: user.into(), password: password.into() })
    }

    /// The name.
    pub fn user(&self) -> &str {
        &self.user
    }

    pub(super) fn password(&self) -> &str {
        &self.password
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// How long the server may be silent before the session is given up (RFC 5321 section 4.5.3.2). A reply that is not
/// complete does not count as a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For the banner.
    pub banner: Duration,
    /// For the reply to a command, and for the TLS handshake.
    pub command: Duration,
    /// For 354.
    pub data: Duration,
    /// For any of the message's bytes to go out.
    pub block: Duration,
    /// For the final reply, or the next one where there are several.
    pub message: Duration,
}

impl Timeouts {
    /// The same time for everything.
    pub fn all(span: Duration) -> Self {
        Timeouts { banner: span, command: span, data: span, block: span, message: span }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        Timeouts { banner: minutes(5), command: minutes(5), data: minutes(2), block: minutes(3), message: minutes(10) }
    }
}
