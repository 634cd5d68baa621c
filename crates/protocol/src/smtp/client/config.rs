//! The configuration shared by all sessions with one kind of server: identity, requirements,
//! timeouts. Text for command lines is validated when it is created, so that it cannot inject
//! another command.

use std::fmt;
use std::time::Duration;

use crate::sasl::Secret;
use crate::sasl::client::LoginMechanism;
use crate::smtp::MailProtocol;

/// Octets of a [`CommandArgument`]. The limit of RFC 3461 section 4.2 is the highest that applies.
pub const WORD_OCTETS_MAX: usize = 500;
/// Octets of a user name or password.
pub const CREDENTIAL_OCTETS_MAX: usize = 1024;
/// Octets of a token: its command keeps the limit of RFC 4954 section 4.
pub const TOKEN_OCTETS_MAX: usize = 8000;

/// The behaviour of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmtpClientConfig {
    /// SMTP or LMTP.
    pub flavor: MailProtocol,
    /// The name for EHLO, LHLO or HELO.
    pub helo: CommandArgument,
    /// Whether to use STARTTLS.
    pub tls: TlsPolicy,
    /// The user to log in as, if any.
    pub credentials: Option<SmtpCredentials>,
    /// Send commands in groups (RFC 2920) if the server offers it.
    pub pipelining: bool,
    /// Send messages by BDAT (RFC 3030) if the server offers it.
    pub chunking: bool,
    /// Tell the server of the client of each message, if it offers XFORWARD. For the driver, which gives
    /// the client with each transaction.
    pub xforward: bool,
    /// The timeouts.
    pub timeouts: Timeouts,
}

impl SmtpClientConfig {
    /// TLS if offered, no login, commands in groups, messages by DATA.
    pub fn new(flavor: MailProtocol, helo: CommandArgument) -> Self {
        let timeouts = Timeouts::default();
        SmtpClientConfig {
            flavor,
            helo,
            tls: TlsPolicy::Offered,
            credentials: None,
            pipelining: true,
            chunking: false,
            xforward: false,
            timeouts,
        }
    }
}

/// Whether to use STARTTLS (RFC 3207). A session over implicit TLS has it already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPolicy {
    /// Never.
    Never,
    /// If the server offers it; if it then refuses, the session continues in clear text.
    Offered,
    /// Always; without it, the session ends before anything else is sent.
    Required,
}

/// Text that forms a single word of a command: not empty, at most [`WORD_OCTETS_MAX`], no white
/// space, no control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandArgument(Box<str>);

/// The text is not a valid [`CommandArgument`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 1 to {WORD_OCTETS_MAX} octets without white space and control characters")]
pub struct InvalidCommandArgument;

impl CommandArgument {
    /// Validates the text.
    pub fn new(text: &str) -> Result<Self, InvalidCommandArgument> {
        let sound = (1..=WORD_OCTETS_MAX).contains(&text.len())
            && !text.chars().any(|letter| letter.is_control() || letter.is_whitespace());
        if sound { Ok(CommandArgument(text.into())) } else { Err(InvalidCommandArgument) }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The login at a server (RFC 4954): the user, the password or token, and how they may be sent.
#[derive(Clone, PartialEq, Eq)]
pub struct SmtpCredentials {
    user: Box<str>,
    secret: Secret,
    mechanisms: Box<[LoginMechanism]>,
    needs_tls: bool,
}

/// The user name, password or token is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedCredentials {
    /// A NUL would end one early (RFC 4616 section 2).
    #[error("user and password must have 1 to {CREDENTIAL_OCTETS_MAX} octets each, and no NUL")]
    Password,
    /// RFC 6750 section 2.1.
    #[error("a token must have 1 to {TOKEN_OCTETS_MAX} octets, without white space and control characters")]
    Token,
}

impl SmtpCredentials {
    /// A password, for PLAIN or LOGIN, which may be sent in clear text.
    pub fn new(user: &str, password: &str) -> Result<Self, MalformedCredentials> {
        let sound = |text: &str| (1..=CREDENTIAL_OCTETS_MAX).contains(&text.len()) && !text.contains('\0');
        if !sound(user) || !sound(password) {
            return Err(MalformedCredentials::Password);
        }
        let mechanisms = [LoginMechanism::Plain, LoginMechanism::Login].into();
        Ok(SmtpCredentials { user: user.into(), secret: Secret::new(password.into()), mechanisms, needs_tls: false })
    }

    /// An access token, for XOAUTH2, which is only sent over TLS.
    pub fn with_token(user: &str, token: &str) -> Result<Self, MalformedCredentials> {
        let is_sound =
            (1..=TOKEN_OCTETS_MAX).contains(&token.len()) && token.bytes().all(|octet| octet.is_ascii_graphic());
        // The response of XOAUTH2 separates its fields by control characters.
        if !is_sound || user.is_empty() || user.len() > CREDENTIAL_OCTETS_MAX || user.contains(char::is_control) {
            return Err(MalformedCredentials::Token);
        }
        let mechanisms = [LoginMechanism::XOAuth2].into();
        Ok(SmtpCredentials { user: user.into(), secret: Secret::new(token.into()), mechanisms, needs_tls: true })
    }

    /// Use the first of these mechanisms that the server offers. With `needs_tls`, nothing is sent in
    /// clear text.
    pub fn restricted(self, mechanisms: &[LoginMechanism], needs_tls: bool) -> Self {
        SmtpCredentials { mechanisms: mechanisms.into(), needs_tls, ..self }
    }

    /// The user name.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Whether the login needs TLS.
    pub fn needs_tls(&self) -> bool {
        self.needs_tls
    }

    pub(super) fn secret(&self) -> &Secret {
        &self.secret
    }

    pub(super) fn mechanisms(&self) -> &[LoginMechanism] {
        &self.mechanisms
    }
}

impl fmt::Debug for SmtpCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmtpCredentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// How long the server may be silent before the session is closed (RFC 5321 section 4.5.3.2). An
/// incomplete reply does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For the banner.
    pub banner: Duration,
    /// For the reply to a command, and for the TLS handshake.
    pub command: Duration,
    /// For 354.
    pub data: Duration,
    /// For any progress in sending the message.
    pub block: Duration,
    /// For the final reply, or for each if there are several.
    pub message: Duration,
}

impl Timeouts {
    /// The same time for each.
    pub fn uniform(span: Duration) -> Self {
        Timeouts { banner: span, command: span, data: span, block: span, message: span }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        Timeouts { banner: minutes(5), command: minutes(5), data: minutes(2), block: minutes(3), message: minutes(10) }
    }
}
