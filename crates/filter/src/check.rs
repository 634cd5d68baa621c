//! What a check is, what it is told, and what it may answer.

use std::future::{Future, ready};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use mail::{Address, QueueId, Reply, TlsInfo};
use protocol::smtp::server::{MailRequest, RcptRequest};

use crate::edit::Edit;
use crate::stage::Stages;

/// The answer of a check that may have to wait for it.
pub type CheckFuture<'a> = Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;
/// Bytes of a message; empty at its end.
pub type ContentFuture<'a> = Pin<Box<dyn Future<Output = io::Result<&'a [u8]>> + Send + 'a>>;

/// When a check runs, relative to others. This order is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckOrder {
    /// Access rules: by client and envelope alone.
    AccessRules,
    /// Verification of the bytes as they were received.
    Verification,
    /// Access rules about what verification found.
    VerdictRules,
    /// Greylisting.
    Greylist,
    /// Limits over time.
    RateLimits,
    /// Programs that speak the milter or a policy protocol.
    ExternalFilters,
    /// Rules for content, and rewriting.
    ContentRules,
    /// Conversion to 7 bits.
    SevenBitConversion,
    /// Signing of the bytes as they will be sent.
    Signing,
}

impl CheckOrder {
    /// Whether it runs at RCPT once nothing else refuses the recipient.
    pub(crate) fn is_after_admission(self) -> bool {
        self >= CheckOrder::Greylist
    }
}

/// Where a message comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client on the network.
    Client,
    /// A program on this machine. There is no session: only [`Check::message`] is called. A check that
    /// needs the stages before it takes them from what the message says of itself.
    LocalProgram,
}

/// What gives a client the right to relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Submitter<'a> {
    /// Nothing: it may only send to local addresses. An alias may lead its mail outside.
    #[default]
    Stranger,
    /// Its address is in a relay network.
    RelayNetwork,
    /// It has logged in as this user.
    User(&'a str),
    /// It is a program on this machine.
    LocalProgram,
}

/// A check as configured, which makes the checks of sessions.
pub trait CheckFactory: Send + Sync {
    /// When it runs.
    fn order(&self) -> CheckOrder;

    /// The stages that it takes part in. It is not called at others.
    fn stages(&self, origin: Origin) -> Stages;

    /// Whether it is asked about commands that the server does not know.
    fn hears_unknown_commands(&self) -> bool {
        false
    }

    /// The check of one session.
    fn start(self: Arc<Self>) -> Box<dyn Check>;
}

/// A check of one session. The default answer of each stage is to continue.
///
/// `session` describes the session up to this stage. A check that waits must limit the time
/// itself, and answer with a temporary refusal when it has passed.
pub trait Check: Send {
    /// A client has connected, or a trusted peer has named another client (XCLIENT).
    fn connect<'a>(&'a mut self, _session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        nothing_to_say()
    }

    /// HELO, EHLO or LHLO; may come several times.
    fn helo<'a>(&'a mut self, _session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        nothing_to_say()
    }

    /// MAIL: a transaction begins. Whatever belongs to the last one is obsolete.
    fn mail<'a>(&'a mut self, _session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        nothing_to_say()
    }

    /// RCPT. Before [`CheckOrder::Greylist`], other reasons may still refuse the recipient; from there on
    /// it has been admitted.
    fn rcpt<'a>(&'a mut self, _session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        nothing_to_say()
    }

    /// RCPT was refused with this reply, by an earlier check or for another reason. Only checks from
    /// [`CheckOrder::Greylist`] on are told.
    fn recipient_refused<'a>(
        &'a mut self,
        _session: &'a SessionInfo<'a>,
        _reply: &'a Reply,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(ready(()))
    }

    /// A command line that the server does not know, at any point of the session. Only a refusal counts:
    /// its reply replaces that of the server. Only checks are asked whose factory
    /// [hears](CheckFactory::hears_unknown_commands) of such commands.
    fn unknown_command<'a>(&'a mut self, _session: &'a SessionInfo<'a>, _line: &'a [u8]) -> CheckFuture<'a> {
        nothing_to_say()
    }

    /// DATA: all recipients are known.
    fn data<'a>(&'a mut self, _session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        nothing_to_say()
    }

    /// The message is complete, with the edits of checks that ran before this one.
    fn message<'a>(
        &'a mut self,
        _session: &'a SessionInfo<'a>,
        _message: &'a mut dyn CheckedMessage,
    ) -> CheckFuture<'a> {
        nothing_to_say()
    }
}

fn nothing_to_say<'a>() -> CheckFuture<'a> {
    Box::pin(ready(Verdict::default()))
}

/// A complete message before it is stored.
pub trait CheckedMessage: Send {
    /// The reverse-path; None is the null sender.
    fn sender(&self) -> Option<&Address>;

    /// The addresses that will get the message, after alias expansion.
    fn recipients(&self) -> Vec<&Address>;

    /// The addresses that were given for the message, before alias expansion.
    fn named_recipients(&self) -> Vec<&Address> {
        self.recipients()
    }

    /// The fields before the content: trace fields, and those that checks and this server added.
    fn prefix(&self) -> &[u8];

    /// The size of the content in bytes, without the prefix.
    fn content_len(&self) -> u64;

    /// Whether the content has octets above 127.
    fn is_eight_bit(&self) -> bool;

    /// The next bytes of the content as it was received, from `position` on: as many as are at
    /// hand, empty at the end. Never waits for the client, but perhaps for the disk.
    fn read_content(&mut self, position: u64) -> ContentFuture<'_>;

    /// Reserves this much memory for a new content, until the message ends. False: there is too little now.
    fn reserve_memory(&mut self, _octets: usize) -> bool {
        true
    }

    /// Applies an edit.
    fn edit(&mut self, edit: Edit) -> Pin<Box<dyn Future<Output = Result<(), Reply>> + Send + '_>>;
}

/// What is known of a session at a stage.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionInfo<'a> {
    /// None if the address is unknown.
    pub client: Option<IpAddr>,
    /// The port that the client connected from; 0 if it is unknown.
    pub client_port: u16,
    /// The address of the listener, as configured. None: the message is of a local program.
    pub listener: Option<SocketAddr>,
    /// The address that the client connected to.
    pub local_address: Option<IpAddr>,
    /// None in clear text.
    pub security: Option<TlsInfo>,
    /// The protocol as in Received (RFC 3848): `ESMTPS`. Empty before HELO, `SMTP` for HELO.
    pub protocol: &'static str,
    /// The mechanism by which the client has logged in.
    pub login_mechanism: Option<&'static str>,
    /// The client talked before the greeting.
    pub is_early_talker: bool,
    /// The client is a user: it has authenticated, or has to before it sends anything.
    pub is_user: bool,
    /// Why the client may relay, if it may.
    pub submitter: Submitter<'a>,
    /// From HELO on, as the client sent it; access rules ignore its case and a trailing dot.
    pub helo: Option<&'a str>,
    /// From MAIL on; the inner None is the null sender.
    pub sender: Option<Option<&'a Address>>,
    /// The queue id; from MAIL on.
    pub id: Option<QueueId>,
    /// The parameters of MAIL; from there on.
    pub mail: Option<&'a MailRequest>,
    /// The number of recipients that have been admitted, before alias expansion; from DATA on.
    pub recipients: usize,
    /// The parameters of RCPT; only there.
    pub rcpt: Option<&'a RcptRequest>,
    /// At RCPT.
    pub recipient: Option<&'a Address>,
    /// At RCPT, once it has been admitted: whether all that it stands for are mailboxes here. None: it adds
    /// nobody, or is not admitted yet.
    pub is_recipient_local: Option<bool>,
    /// The sender without the address tag, if it has one; only for access rules.
    pub sender_untagged: Option<&'a Address>,
    /// The recipient without the address tag, if it has one; only for access rules.
    pub recipient_untagged: Option<&'a Address>,
    /// What the checks before this one found, in this session and transaction.
    pub findings: &'a [Finding],
}

impl<'a> SessionInfo<'a> {
    /// The author that a user names by MAIL AUTH= (RFC 4954 section 5). Others could name anybody.
    pub fn asserted_author(&self) -> Option<&'a str> {
        let mail = self.mail.filter(|_| matches!(self.submitter, Submitter::User(_)));
        mail.and_then(|mail| mail.auth.as_deref())
    }
}

/// The answer of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the session goes on.
    pub decision: Decision,
    /// A deferral that the client gets in place of a 5xx, if a later check, or the server, refuses at the
    /// same stage.
    pub deferral: Option<Refusal>,
    /// The mail is held, if it is accepted: all of a session from connect and HELO, else the message.
    pub held: bool,
    /// Changes to the message: to every message of a session from connect and HELO.
    pub edits: Vec<Edit>,
    /// What the check found out, for later checks.
    pub findings: Vec<Finding>,
}

/// Whether a session goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Decision {
    /// It does.
    #[default]
    Continue,
    /// It does, and this check is done: for the session at connect and HELO, for the recipient at
    /// RCPT, else for the transaction. Other checks still run.
    Accept,
    /// The client gets this reply, which may be temporary. It may try again.
    Refuse(Refusal),
    /// The message gets a positive reply, and is dropped.
    Discard {
        /// The name of the rule or check, for the log.
        by: Box<str>,
    },
}

/// A refusal by a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The name of the rule or check, for the log.
    pub by: Box<str>,
    /// The reply to the client, 4xx or 5xx.
    pub reply: Reply,
}

/// A result of a check, as in Authentication-Results (RFC 8601 section 2.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was checked, for example `spf`.
    pub method: &'static str,
    /// The result, for example `pass`.
    pub result: &'static str,
    /// The domain that the method has confirmed, in lower case, if it names one.
    pub domain: Option<Box<str>>,
}

impl Verdict {
    /// The answer of two parts of a check, of which the first did not decide.
    pub(crate) fn followed_by(mut self, later: Verdict) -> Verdict {
        self.held |= later.held;
        self.edits.extend(later.edits);
        self.findings.extend(later.findings);
        self.decision = match (later.decision, self.deferral.take()) {
            (Decision::Refuse(refusal), Some(deferral)) if refusal.reply.is_permanent() => Decision::Refuse(deferral),
            (decision, deferral) => {
                self.deferral = deferral.or(later.deferral);
                decision
            }
        };
        self
    }
}

impl From<Decision> for Verdict {
    fn from(decision: Decision) -> Verdict {
        Verdict { decision, ..Verdict::default() }
    }
}
