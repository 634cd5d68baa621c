//! The outcome for a recipient from the server's reply, and replies of our own if there is none.
//!
//! | verdict                        | outcome                                     |
//! |--------------------------------|---------------------------------------------|
//! | accepted                       | relayed, with DSN if the server supports it |
//! | refused with 4xx               | deferred                                    |
//! | refused with 5xx               | failed                                      |
//! | 530, and senders have logins   | deferred: this one has none (RFC 4954 section 6) |
//! | RCPT refused by 552: too many  | deferred (RFC 5321 section 4.5.3.1.10)      |
//! | not sent: session ended before | deferred, 451 4.4.2                         |
//! | in doubt: session ended after  | deferred, 451 4.4.2: may be delivered twice |

use std::time::Duration;

use mail::{EnhancedCode, Outcome, Reply};
use protocol::mime::PartLimitError;
use protocol::smtp::client::{BeginTransactionError, CloseReason, RecipientOutcome, SmtpStage};

use super::connection::close_reason;
use super::{NextHopFeedback, RemotePeer};

/// A login is required (RFC 4954 section 6).
const LOGIN_REQUIRED: u16 = 530;

/// What is known of a session beside its replies.
#[derive(Clone, Copy)]
pub(super) struct SessionFacts<'a> {
    /// The server supports DSN.
    pub(super) dsn: bool,
    /// The transport has logins, if not for every sender.
    pub(super) has_logins: bool,
    pub(super) peer: &'a RemotePeer,
}

/// The outcome for one recipient; `closed` says why the session ended, if it did.
pub(super) fn outcome(
    verdict: RecipientOutcome,
    SessionFacts { dsn, has_logins, peer }: SessionFacts<'_>,
    closed: Option<&CloseReason>,
) -> Outcome {
    let why = || closed.map_or_else(String::new, close_reason);
    match verdict {
        RecipientOutcome::Accepted(reply) => Outcome::Relayed { reply, dsn },
        RecipientOutcome::Refused { stage, reply }
            if reply.is_permanent()
                && !is_too_many_recipients(stage, &reply)
                && !(has_logins && reply.code == LOGIN_REQUIRED) =>
        {
            Outcome::Failed(reply)
        }
        RecipientOutcome::Refused { reply, .. } => Outcome::Deferred(reply),
        RecipientOutcome::NotSent => Outcome::Deferred(lost_reply(format!("connection to {peer}: {}", why()))),
        RecipientOutcome::InDoubt => {
            Outcome::Deferred(lost_reply(format!("connection to {peer}: {}; the message may have arrived", why())))
        }
    }
}

fn is_too_many_recipients(stage: SmtpStage, reply: &Reply) -> bool {
    let is_about_number = matches!(reply.enhanced, None | Some(EnhancedCode(_, 5, 3)));
    reply.code == 552 && matches!(stage, SmtpStage::Rcpt(_)) && is_about_number
}

/// What a transaction that ended with its session says about the next hop.
pub(super) fn next_hop_feedback(
    closed: &CloseReason,
    verdicts: &[RecipientOutcome],
    slowest: Duration,
    peer: &RemotePeer,
) -> NextHopFeedback {
    let is_open = |verdict: &RecipientOutcome| matches!(verdict, RecipientOutcome::NotSent | RecipientOutcome::InDoubt);
    match closed {
        CloseReason::Shutdown(_) => NextHopFeedback::Busy,
        _ if !verdicts.iter().any(is_open) => NextHopFeedback::Answered { slowest },
        closed => NextHopFeedback::Interrupted(lost_reply(format!("connection to {peer}: {}", close_reason(closed)))),
    }
}

/// The outcome for a message that this server, or any server, cannot accept.
pub(super) fn unsendable_outcome(unsendable: BeginTransactionError) -> Outcome {
    let failed = |code, enhanced| Outcome::Failed(Reply::new(code, enhanced, unsendable.to_string()));
    match unsendable {
        BeginTransactionError::TooBig { .. } => failed(552, EnhancedCode(5, 3, 4)),
        BeginTransactionError::EightBit => failed(554, EnhancedCode(5, 6, 3)),
        BeginTransactionError::Smtputf8 => failed(553, EnhancedCode(5, 6, 7)),
        BeginTransactionError::NotReady | BeginTransactionError::NoRecipients => {
            Outcome::Deferred(lost_reply(unsendable.to_string()))
        }
    }
}

/// RFC 3463 section 3.7: the message cannot be converted for a server without 8BITMIME.
pub(super) fn unconverted_outcome(error: PartLimitError) -> Outcome {
    let text = format!("the server does not accept 8-bit messages, and {error}");
    Outcome::Failed(Reply::new(554, EnhancedCode(5, 6, 3), text))
}

/// RFC 3463 section 3.5: the connection was lost.
pub(super) fn lost_reply(text: String) -> Reply {
    Reply::new(451, EnhancedCode(4, 4, 2), text)
}

/// RFC 3463 section 3.5: no answer from the host.
pub(super) fn unreachable_reply(text: String) -> Reply {
    Reply::new(451, EnhancedCode(4, 4, 1), text)
}

/// RFC 4954 section 6: a login failed, or its credentials are not available. That is no fault of the
/// message.
pub(super) fn login_failed_reply(text: String) -> Reply {
    Reply::new(454, EnhancedCode(4, 7, 0), text)
}

/// RFC 3463 section 3.8: the required security is not available.
pub(super) fn tls_failed_reply(text: String) -> Reply {
    Reply::new(451, EnhancedCode(4, 7, 5), text)
}

/// RFC 3463 section 3.4: an error of our own disk or system.
pub(super) fn local_error_reply(text: String) -> Reply {
    Reply::new(451, EnhancedCode(4, 3, 0), text)
}
