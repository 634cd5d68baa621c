//! The server's side of SASL (RFC 4422): who a client is, for protocols that have an AUTH command.
//!
//! An [`Exchange`] is one try of one client by one mechanism. What the client sends comes in by
//! [`handle_response`](Exchange::handle_response), decoded from base64; [`poll_action`](Exchange::poll_action) gives out
//! challenges, questions and in the end one outcome. Nothing is looked up and nothing random is made here: the nonce, the
//! server's secret and the answers are arguments.
//!
//! | mechanism     | defined by             | what is asked             | what then                                     |
//! |---------------|------------------------|---------------------------|-----------------------------------------------|
//! | PLAIN         | RFC 4616               | [`Question::Verify`]      | the verdict is the outcome                    |
//! | LOGIN         | draft-murchison-sasl-login | [`Question::Verify`]  | the verdict is the outcome                    |
//! | SCRAM-SHA-256 | RFC 5802, RFC 7677     | [`Question::Credentials`] | the client's proof decides                    |
//! | XOAUTH2       | Google's own           | nothing                   | refused, with the challenge that clients wait for |
//! | OAUTHBEARER   | RFC 7628               | nothing                   | refused, with the challenge that clients wait for |
//!
//! # States
//!
//! | state    | waits for                      | then                                                            |
//! |----------|--------------------------------|-----------------------------------------------------------------|
//! | First    | the client's first message     | PLAIN: Verdict. LOGIN: Secret. SCRAM: Keys. OAuth: Farewell     |
//! | Secret   | the password of LOGIN          | Verdict                                                         |
//! | Verdict  | [`Exchange::handle_verdict`]   | Ended                                                           |
//! | Keys     | [`Exchange::handle_keys`]      | Proof                                                           |
//! | Proof    | the client's proof             | right: Thanks. Wrong: Ended                                     |
//! | Thanks   | an empty response              | Ended: accepted (RFC 5802 section 3, by RFC 4954 section 4)     |
//! | Farewell | anything                       | Ended: refused (RFC 7628 section 3.2.3)                         |
//! | Ended    | nothing                        | what comes is ignored                                           |
//!
//! Names of users are prepared by SASLprep (RFC 4013), which makes different spellings of a name one, and refuses control
//! characters. Passwords are left as they came, since the hashes of most systems are of the octets that were typed; only
//! those with control characters, empty ones and those beyond a limit are refused. Passwords are wiped from memory when
//! they are dropped, and `Debug` shows none. An authorization identity is refused unless it is the user's own name.

mod mechanism;
mod message;
mod oauth;
mod outcome;
mod scram;
mod secret;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::VecDeque;
use std::fmt;

use mail::ScramKeys;

pub use mechanism::Mechanism;
pub use outcome::{Outcome, Refusal};
pub use scram::Nonce;
pub use secret::Secret;
pub use wire::{DecodeError, LINE_OCTETS_MAX, decode, decode_initial, encode};

use message::Login;
use oauth::Token;
use scram::{ClientFirst, Scram};

/// The longest name of a user, in octets: an address (RFC 5321 section 4.5.3.1) fits.
pub const USER_OCTETS_MAX: usize = 320;
/// The longest password, in octets. The work of some hashes grows with the length.
pub const PASSWORD_OCTETS_MAX: usize = 512;

/// What all exchanges of a server share.
#[derive(Clone)]
pub struct Config {
    /// Makes the salts of users whom nobody knows: the same one each time, as those of others are. Random, 32 octets,
    /// and best the same one after a restart, and on all servers that share a name.
    pub secret: [u8; 32],
    /// The iterations that such users seem to have: those that the table's users have, 4096 at least (RFC 7677 section 4).
    pub iterations: u32,
}

impl Config {
    /// Iterations, unless the configuration says otherwise (RFC 7677 section 4).
    pub const ITERATIONS: u32 = 4096;
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this to the client, in base64 (`334` in SMTP), and hand in its response.
    Challenge(Box<[u8]>),
    /// Find out, and hand in the answer. Until then the client has nothing to say.
    Ask(Question),
    /// It is over.
    Done(Outcome),
}

/// What only others know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Is this the user's password? Answered by [`Exchange::handle_verdict`].
    Verify {
        /// As whom the client wants to act: none, or the user's own name in the spelling of the client.
        authzid: Option<Box<str>>,
        /// Who the client says it is.
        user: Box<str>,
        /// What shows it.
        password: Secret,
    },
    /// What is stored for this user? Answered by [`Exchange::handle_keys`].
    Credentials {
        /// Who the client says it is.
        user: Box<str>,
    },
}

/// What was found out about a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is right.
    Accepted {
        /// Who that is, in the spelling of the table.
        user: Box<str>,
    },
    /// It is wrong, or the user unknown.
    Refused,
    /// Too many were wrong: this one was not looked at.
    Throttled,
    /// It cannot be said now.
    Unavailable,
}

/// What was found out about a user of SCRAM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// What is stored.
    Found {
        /// Who that is, in the spelling of the table.
        user: Box<str>,
        /// What is stored of the password.
        keys: ScramKeys,
    },
    /// There is no such user, or nothing that SCRAM could use. The client is not told before its proof is there.
    Unknown,
    /// Too many proofs were wrong: this one is not waited for.
    Throttled,
    /// It cannot be said now.
    Unavailable,
}

/// One try of one client.
///
/// What happens comes in by the `handle_*` methods, what is to be done goes out by [`poll_action`](Exchange::poll_action):
/// after each event, until it gives nothing. Answers to questions that were not asked, and responses to challenges that
/// were not sent, are ignored.
pub struct Exchange {
    mechanism: Mechanism,
    config: Config,
    state: State,
    actions: VecDeque<Action>,
}

enum State {
    First,
    Secret { user: Box<str> },
    Verdict,
    Keys(ClientFirst),
    Proof(Box<Scram>),
    Thanks { user: Box<str> },
    Farewell,
    Ended,
}

impl Exchange {
    /// Begins. `initial` is the initial response, if the client sent one (RFC 4954 section 4), decoded: see
    /// [`decode_initial`].
    pub fn begin(mechanism: Mechanism, initial: Option<&[u8]>, config: &Config) -> Exchange {
        let actions = VecDeque::new();
        let mut exchange = Exchange { mechanism, config: config.clone(), state: State::First, actions };
        match (initial, mechanism) {
            (Some(initial), _) => exchange.handle_response(initial),
            (None, Mechanism::Login) => exchange.challenge(Login::USER),
            // The client speaks first: an empty challenge lets it (RFC 4954 section 4).
            (None, _) => exchange.challenge(b""),
        }
        exchange
    }

    /// The mechanism.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// What the client responds to the last challenge, decoded: see [`decode`].
    pub fn handle_response(&mut self, response: &[u8]) {
        let handled = match std::mem::replace(&mut self.state, State::Ended) {
            State::First => self.first(response),
            State::Secret { user } => self.secret(user, response),
            State::Proof(scram) => self.proof(*scram, response),
            // A client that says more has another idea of the mechanism.
            State::Thanks { .. } if !response.is_empty() => Err(Refusal::Malformed),
            State::Thanks { user } => {
                self.end(Outcome::Accepted { user });
                Ok(())
            }
            State::Farewell => Err(Refusal::Token),
            waiting @ (State::Verdict | State::Keys(_) | State::Ended) => {
                self.state = waiting;
                Ok(())
            }
        };
        self.refuse_if_failed(handled);
    }

    /// The client gave up, or its response cannot be decoded.
    pub fn handle_cancel(&mut self, refusal: Refusal) {
        if !matches!(self.state, State::Ended) {
            self.actions.clear();
            self.end(Outcome::Refused(refusal));
        }
    }

    /// The answer to [`Question::Verify`].
    pub fn handle_verdict(&mut self, verdict: Verdict) {
        if !matches!(self.state, State::Verdict) {
            return;
        }
        self.end(match verdict {
            Verdict::Accepted { user } => Outcome::Accepted { user },
            Verdict::Refused => Outcome::Refused(Refusal::Credentials),
            Verdict::Throttled => Outcome::Refused(Refusal::Throttled),
            Verdict::Unavailable => Outcome::Refused(Refusal::Unavailable),
        });
    }

    /// The answer to [`Question::Credentials`], and this server's part of the nonce, which no exchange had before.
    pub fn handle_keys(&mut self, keys: Keys, nonce: &Nonce) {
        let first = match std::mem::replace(&mut self.state, State::Ended) {
            State::Keys(first) => first,
            other => {
                self.state = other;
                return;
            }
        };
        let scram = match keys {
            Keys::Found { user, keys } => Scram::known(first, nonce, user, keys),
            Keys::Unknown => Scram::unknown(first, nonce, &self.config),
            Keys::Throttled => return self.end(Outcome::Refused(Refusal::Throttled)),
            Keys::Unavailable => return self.end(Outcome::Refused(Refusal::Unavailable)),
        };
        self.challenge(scram.challenge());
        self.state = State::Proof(Box::new(scram));
    }

    /// What to do next; None until something comes in.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn first(&mut self, response: &[u8]) -> Result<(), Refusal> {
        match self.mechanism {
            Mechanism::Plain => {
                let message::Plain { authzid, user, password } = message::Plain::read(response)?;
                self.verify(authzid, user, password);
            }
            Mechanism::Login => {
                self.state = State::Secret { user: message::name(response)? };
                self.challenge(Login::PASSWORD);
            }
            Mechanism::ScramSha256 => {
                let first = ClientFirst::read(response)?;
                self.actions.push_back(Action::Ask(Question::Credentials { user: first.user.clone() }));
                self.state = State::Keys(first);
            }
            Mechanism::XOAuth2 | Mechanism::OAuthBearer => {
                Token::check(self.mechanism, response)?;
                self.state = State::Farewell;
                self.challenge(Token::failure(self.mechanism));
            }
        }
        Ok(())
    }

    fn secret(&mut self, user: Box<str>, response: &[u8]) -> Result<(), Refusal> {
        let password = message::password_from(response)?;
        self.verify(None, user, password);
        Ok(())
    }

    fn verify(&mut self, authzid: Option<Box<str>>, user: Box<str>, password: Secret) {
        self.state = State::Verdict;
        self.actions.push_back(Action::Ask(Question::Verify { authzid, user, password }));
    }

    fn proof(&mut self, scram: Scram, response: &[u8]) -> Result<(), Refusal> {
        let (signature, user) = scram.prove(response)?;
        self.challenge(&signature);
        self.state = State::Thanks { user };
        Ok(())
    }

    fn challenge(&mut self, octets: &[u8]) {
        self.actions.push_back(Action::Challenge(octets.into()));
    }

    fn refuse_if_failed(&mut self, handled: Result<(), Refusal>) {
        if let Err(refusal) = handled {
            self.end(Outcome::Refused(refusal));
        }
    }

    fn end(&mut self, outcome: Outcome) {
        self.state = State::Ended;
        self.actions.push_back(Action::Done(outcome));
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("mechanism", &self.mechanism).finish_non_exhaustive()
    }
}
