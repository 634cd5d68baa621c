//! The server side of SASL (RFC 4422): authenticates clients, for protocols that have an AUTH
//! command. [`client`] is the other side.
//!
//! An [`SaslExchange`] is one attempt of a client with one mechanism. Input from the client,
//! decoded from base64, comes in by [`handle_response`](SaslExchange::handle_response);
//! [`poll_action`](SaslExchange::poll_action) returns challenges, questions and finally one
//! outcome. Nothing is looked up and no randomness is generated here: the nonce, the server's
//! secret and the answers are arguments.
//!
//! | mechanism     | defined by             | question                  | then                                          |
//! |---------------|------------------------|---------------------------|-----------------------------------------------|
//! | PLAIN         | RFC 4616               | [`CredentialQuestion::Verify`]      | the verdict is the outcome                    |
//! | LOGIN         | draft-murchison-sasl-login | [`CredentialQuestion::Verify`]  | the verdict is the outcome                    |
//! | SCRAM-SHA-256 | RFC 5802, RFC 7677     | [`CredentialQuestion::Credentials`] | the client's proof decides                    |
//!
//! # States
//!
//! | state    | waits for                      | then                                                            |
//! |----------|--------------------------------|-----------------------------------------------------------------|
//! | First    | the client's first message     | PLAIN: Verdict. LOGIN: Secret. SCRAM: Keys                      |
//! | Secret   | the password of LOGIN          | Verdict                                                         |
//! | Verdict  | [`SaslExchange::handle_password_verdict`]   | Ended                                                           |
//! | Keys     | [`SaslExchange::handle_scram_keys`]      | Proof                                                           |
//! | Proof    | the client's proof             | right: FinalResponse. Wrong: Ended                                     |
//! | FinalResponse   | an empty response              | Ended: accepted (RFC 5802 section 3, by RFC 4954 section 4)     |
//! | Ended    | nothing                        | input is ignored                                                |
//!
//! User names are prepared by SASLprep (RFC 4013), which unifies different spellings of a name and
//! rejects control characters. Passwords are left as received, since most password hashes are
//! computed from the octets that were typed; only empty passwords, those with control characters
//! and those over the limit are rejected. Passwords are wiped from memory when dropped, and `Debug`
//! does not show them; the complete lines exist only in the buffers of the connection's owner,
//! which are not wiped. An authorization identity is rejected unless it is the user's own name.
//!
//! Token mechanisms (XOAUTH2, OAUTHBEARER) are not supported, and are refused like unknown
//! mechanisms.

pub mod client;
mod encoding;
mod mechanism;
mod message;
mod outcome;
mod scram;
mod secret;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;

use mail::ScramKeys;

pub use encoding::{DecodeError, LINE_OCTETS_MAX, decode, decode_initial, encode};
pub use mechanism::Mechanism;
pub use outcome::{SaslOutcome, SaslRefusal};
pub use scram::Nonce;
pub use secret::Secret;

pub(crate) use message::{parse_password, prepare_user};

use message::LoginPrompts;
use scram::{ClientFirst, ScramExchange};

/// Octets of a user name; enough for an address (RFC 5321 section 4.5.3.1).
pub const USER_OCTETS_MAX: usize = 320;
/// Octets of a password. The cost of some hashes grows with the length.
pub const PASSWORD_OCTETS_MAX: usize = 512;

/// Settings shared by all exchanges of a server.
#[derive(Clone)]
pub struct SaslConfig {
    /// Derives the salts for unknown users, which must be stable like those of known users. 32
    /// random octets, preferably the same after a restart and on all servers with the same name.
    pub secret: [u8; 32],
}

impl fmt::Debug for SaslConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").finish_non_exhaustive()
    }
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaslAction {
    /// Send this challenge to the client, in base64 (`334` in SMTP), and pass in the response.
    Challenge(Box<[u8]>),
    /// Find the answer and pass it in. Until then, nothing is expected from the client.
    Ask(CredentialQuestion),
    /// The exchange is over.
    Done(SaslOutcome),
}

/// A question to the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialQuestion {
    /// Is this the user's password? Answer with [`SaslExchange::handle_password_verdict`].
    Verify {
        /// The user name that the client gave.
        user: Box<str>,
        /// The password.
        password: Secret,
    },
    /// Which keys are stored for this user? Answer with [`SaslExchange::handle_scram_keys`].
    Credentials {
        /// The user name that the client gave.
        user: Box<str>,
    },
}

/// The result of a password check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PasswordVerdict {
    /// The password is correct.
    Accepted {
        /// The user name in the spelling of the lookup table.
        user: Box<str>,
    },
    /// The password is wrong, or the user is unknown.
    Refused,
    /// Not checked, because of too many failures before.
    Throttled,
    /// The password cannot be checked at present.
    Unavailable,
}

/// The result of a SCRAM key lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScramKeysAnswer {
    /// The user has keys.
    Found {
        /// The user name in the spelling of the lookup table.
        user: Box<str>,
        /// The stored keys.
        keys: ScramKeys,
    },
    /// The user is unknown or has no SCRAM keys. The client is not told before it has sent its
    /// proof.
    Unknown {
        /// The iteration count to pretend: one that other users have, always the same for a name.
        iterations: u32,
    },
    /// Refused, because of too many failures before.
    Throttled,
    /// The keys cannot be looked up at present.
    Unavailable,
}

/// One authentication attempt.
///
/// Events come in by the `handle_*` methods, actions go out by
/// [`poll_action`](SaslExchange::poll_action): call it after each event until it returns nothing.
/// Answers to questions that are not pending, and responses without a challenge, are ignored.
pub struct SaslExchange {
    mechanism: Mechanism,
    config: SaslConfig,
    state: State,
    actions: VecDeque<SaslAction>,
}

enum State {
    First,
    Secret { user: Box<str> },
    Verdict,
    Keys(ClientFirst),
    Proof(Box<ScramExchange>),
    FinalResponse { user: Box<str> },
    Ended,
}

impl SaslExchange {
    /// Begins an exchange. `initial` is the client's initial response (RFC 4954 section 4), if any,
    /// decoded by [`decode_initial`].
    pub fn begin(mechanism: Mechanism, initial: Option<&[u8]>, config: &SaslConfig) -> SaslExchange {
        let mut exchange = SaslExchange::new(mechanism, config);
        match (initial, mechanism) {
            (Some(initial), _) => exchange.handle_response(initial),
            (None, Mechanism::Login) => exchange.challenge(LoginPrompts::USER),
            // The client goes first: an empty challenge invites it (RFC 4954 section 4).
            (None, _) => exchange.challenge(b""),
        }
        exchange
    }

    /// Begins an exchange with a user name and a password that the client has sent one by one, as
    /// by USER and PASS of POP3 (RFC 1939 section 7). It continues like one of PLAIN, and has the
    /// same rules for both.
    pub fn begin_with_password(user: &[u8], password: &[u8], config: &SaslConfig) -> SaslExchange {
        let mut exchange = SaslExchange::new(Mechanism::Plain, config);
        let prepared = message::prepare_user(user);
        match prepared.and_then(|user| message::parse_password(password).map(|password| (user, password))) {
            Ok((user, password)) => exchange.verify(user, password),
            Err(refusal) => exchange.end(SaslOutcome::Refused(refusal)),
        }
        exchange
    }

    fn new(mechanism: Mechanism, config: &SaslConfig) -> SaslExchange {
        SaslExchange { mechanism, config: config.clone(), state: State::First, actions: VecDeque::new() }
    }

    /// The mechanism.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// The client's response to the last challenge, decoded by [`decode`].
    pub fn handle_response(&mut self, response: &[u8]) {
        let handled = match std::mem::replace(&mut self.state, State::Ended) {
            State::First => self.handle_first_message(response),
            State::Secret { user } => self.handle_login_password(user, response),
            State::Proof(scram) => self.handle_proof(*scram, response),
            // A client that sends more disagrees about the mechanism.
            State::FinalResponse { .. } if !response.is_empty() => Err(SaslRefusal::Malformed),
            State::FinalResponse { user } => {
                self.end(SaslOutcome::Accepted { user });
                Ok(())
            }
            waiting @ (State::Verdict | State::Keys(_) | State::Ended) => {
                self.state = waiting;
                Ok(())
            }
        };
        if let Err(refusal) = handled {
            self.end(SaslOutcome::Refused(refusal));
        }
    }

    /// The client cancelled, or its response is invalid.
    pub fn handle_cancel(&mut self, refusal: SaslRefusal) {
        if !matches!(self.state, State::Ended) {
            self.actions.clear();
            self.end(SaslOutcome::Refused(refusal));
        }
    }

    /// The answer to [`CredentialQuestion::Verify`].
    pub fn handle_password_verdict(&mut self, verdict: PasswordVerdict) {
        if !matches!(self.state, State::Verdict) {
            return;
        }
        self.end(match verdict {
            PasswordVerdict::Accepted { user } => SaslOutcome::Accepted { user },
            PasswordVerdict::Refused => SaslOutcome::Refused(SaslRefusal::Credentials),
            PasswordVerdict::Throttled => SaslOutcome::Refused(SaslRefusal::Throttled),
            PasswordVerdict::Unavailable => SaslOutcome::Refused(SaslRefusal::Unavailable),
        });
    }

    /// The answer to [`CredentialQuestion::Credentials`], and a nonce of this server that was never
    /// used before.
    pub fn handle_scram_keys(&mut self, keys: ScramKeysAnswer, nonce: &Nonce) {
        let first = match std::mem::replace(&mut self.state, State::Ended) {
            State::Keys(first) => first,
            other => {
                self.state = other;
                return;
            }
        };
        let scram = match keys {
            ScramKeysAnswer::Found { user, keys } => ScramExchange::known(first, nonce, user, keys),
            ScramKeysAnswer::Unknown { iterations } => ScramExchange::unknown(first, nonce, &self.config, iterations),
            ScramKeysAnswer::Throttled => return self.end(SaslOutcome::Refused(SaslRefusal::Throttled)),
            ScramKeysAnswer::Unavailable => return self.end(SaslOutcome::Refused(SaslRefusal::Unavailable)),
        };
        self.challenge(scram.challenge());
        self.state = State::Proof(Box::new(scram));
    }

    /// The next action; None until the next event.
    pub fn poll_action(&mut self) -> Option<SaslAction> {
        self.actions.pop_front()
    }

    fn handle_first_message(&mut self, response: &[u8]) -> Result<(), SaslRefusal> {
        match self.mechanism {
            Mechanism::Plain => {
                let message::PlainMessage { user, password } = message::PlainMessage::read(response)?;
                self.verify(user, password);
            }
            Mechanism::Login => {
                self.state = State::Secret { user: message::prepare_user(response)? };
                self.challenge(LoginPrompts::PASSWORD);
            }
            Mechanism::ScramSha256 => {
                let first = ClientFirst::read(response)?;
                self.actions.push_back(SaslAction::Ask(CredentialQuestion::Credentials { user: first.user.clone() }));
                self.state = State::Keys(first);
            }
        }
        Ok(())
    }

    fn handle_login_password(&mut self, user: Box<str>, response: &[u8]) -> Result<(), SaslRefusal> {
        let password = message::parse_password(response)?;
        self.verify(user, password);
        Ok(())
    }

    fn verify(&mut self, user: Box<str>, password: Secret) {
        self.state = State::Verdict;
        self.actions.push_back(SaslAction::Ask(CredentialQuestion::Verify { user, password }));
    }

    fn handle_proof(&mut self, scram: ScramExchange, response: &[u8]) -> Result<(), SaslRefusal> {
        let (signature, user) = scram.prove(response)?;
        self.challenge(&signature);
        self.state = State::FinalResponse { user };
        Ok(())
    }

    fn challenge(&mut self, octets: &[u8]) {
        self.actions.push_back(SaslAction::Challenge(octets.into()));
    }

    fn end(&mut self, outcome: SaslOutcome) {
        self.state = State::Ended;
        self.actions.push_back(SaslAction::Done(outcome));
    }
}

impl fmt::Debug for SaslExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SaslExchange").field("mechanism", &self.mechanism).finish_non_exhaustive()
    }
}
