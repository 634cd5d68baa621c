//! What a session and its driver say to each other: actions out, answers in.

use std::net::IpAddr;

use mail::{Address, BodyFlags, BodyType, Notify, Reply, Return};

use super::replies;
use crate::sasl::{Keys, Mechanism, Nonce, Outcome, Secret, Verdict};

/// Where decoded message bytes go: CRLF line ends, not dot-stuffed.
pub trait BodySink {
    /// Takes the next bytes of the message.
    fn append(&mut self, bytes: &[u8]);
}

impl BodySink for Vec<u8> {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// What the driver is to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Find the answer and bring it by `handle_answer`. Until then the session works on nothing.
    Ask(Question),
    /// The transaction that MAIL began is over without a message: drop its state and its bytes.
    Abandon,
    /// For the log: the peer was told 4xx or 5xx.
    Refused {
        /// The verb or the moment: `MAIL`, `RCPT`, `message`, `idle`...
        stage: &'static str,
        /// The address in question, where there is one.
        address: Option<Address>,
        /// What the peer was told.
        reply: Reply,
    },
    /// A try to log in has ended (RFC 4954). The peer was told so, and there is no [`Action::Refused`] beside it.
    Login {
        /// By what.
        mechanism: Mechanism,
        /// Who the peer said it is, or as much as is known of that: empty where it did not come so far.
        user: Box<str>,
        /// How.
        outcome: Outcome,
    },
}

/// What a session cannot know by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// May a peer that calls itself so come in? Asked only of a session that is to ask
    /// ([`asking_of_greetings`](super::Session::asking_of_greetings)).
    Hello(Box<str>),
    /// May the client come in for whom the peer speaks (XCLIENT)? If so, it takes the peer's place. If not, the session is
    /// over. Asked only of a peer that is trusted.
    Identity(Identity),
    /// May this transaction begin?
    Mail(MailRequest),
    /// May this recipient be added to it?
    Recipient(RcptRequest),
    /// May the message come? Asked before 354 goes out, or before the first byte of the first chunk is handed on.
    Data,
    /// The message is complete, all its bytes are in the sink: is it kept?
    Message(MessageEnd),
    /// Is this the user's password? Answered by [`Answer::Verdict`].
    Login(LoginRequest),
    /// What is stored of the user's password? Answered by [`Answer::Keys`]; of how the exchange went on tells
    /// [`Action::Login`], unless the session is over before.
    Keys(KeysRequest),
}

/// The driver's answer to the [`Question`] that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Yes. The session words the reply.
    Accept,
    /// No. After a 421 the session closes.
    Refuse(Reply),
    /// What became of a message: 2xx if it is kept. LMTP repeats it once for each accepted recipient.
    Done(Reply),
    /// What was found out about a password.
    Verdict(Verdict),
    /// What was found out about a user.
    Keys {
        /// What is stored.
        keys: Keys,
        /// Of randomness that was not used before.
        nonce: Nonce,
    },
}

impl Answer {
    /// The refusal, if it is one.
    pub(super) fn refusal(self) -> Option<Reply> {
        match self {
            Answer::Accept => None,
            Answer::Refuse(reply) => Some(reply),
            Answer::Done(reply) => (!reply.is_success()).then_some(reply),
            // An answer to another question says nothing.
            Answer::Verdict(_) | Answer::Keys { .. } => Some(replies::UNANSWERED),
        }
    }
}

/// XCLIENT: for whom the peer speaks. The outer None is what it did not tell, and stays; the inner one what it does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The client's address.
    pub address: Option<Option<IpAddr>>,
    /// Under which address of this host it came.
    pub own_address: Option<Option<IpAddr>>,
    /// What it calls itself.
    pub helo: Option<Option<Box<str>>>,
}

/// MAIL FROM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailRequest {
    /// The reverse-path; None is the null sender `<>`.
    pub sender: Option<Address>,
    /// SIZE= of RFC 1870, never beyond the limit.
    pub size: Option<u64>,
    /// BODY= of RFC 6152.
    pub body_type: BodyType,
    /// SMTPUTF8 of RFC 6531.
    pub smtputf8: bool,
    /// RET= of RFC 3461.
    pub ret: Option<Return>,
    /// ENVID= of RFC 3461, as it came: sound xtext that decodes to printable ASCII.
    pub envid: Option<Box<str>>,
}

/// A password that a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginRequest {
    /// Who the client says it is.
    pub user: Box<str>,
    /// What shows it.
    pub password: Secret,
}

/// A client that is going to prove that it knows a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeysRequest {
    /// Who the client says it is.
    pub user: Box<str>,
}

/// RCPT TO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RcptRequest {
    /// The forward-path; `<postmaster>` has become postmaster at the host name of the server.
    pub address: Address,
    /// NOTIFY= of RFC 3461.
    pub notify: Notify,
    /// ORCPT= of RFC 3461, as it came: a type, a semicolon, and sound xtext without control characters.
    pub orcpt: Option<Box<str>>,
}

/// The end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageEnd {
    /// What is known of the bytes that were appended.
    pub flags: BodyFlags,
    /// How many they are.
    pub octets: u64,
}
