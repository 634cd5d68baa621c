//! The outcome for a recipient from the server's reply, and replies of our own if there is none.
//!
//! | verdict                        | outcome                                     |
//! |--------------------------------|---------------------------------------------|
//! | accepted                       | relayed, with DSN if the server supports it |
//! | refused with 4xx               | deferred                                    |
//! | refused with 5xx               | failed                                      |
//! | RCPT refused by 552: too many  | deferred (RFC 5321 section 4.5.3.1.10)      |
//! | not sent: session ended before | deferred, 451 4.4.2                         |
//! | in doubt: session ended after  | deferred, 451 4.4.2: may be delivered twice |

use std::time::Duration;

use mail::{Enhanced, Outcome, Reply};
use protocol::smtp::client::{Closed, Stage, Unsendable, Verdict};

use super::dialogue::reason;
use super::{Contact, Peer};

/// The outcome for one recipient; `closed` says why the session ended, if it did.
pub(super) fn outcome(verdict: Verdict, dsn: bool, closed: Option<&Closed>, peer: &Peer) -> Outcome {
    let why = || closed.map_or_else(String::new, reason);
    match verdict {
        Verdict::Accepted(reply) => Outcome::Relayed { reply, dsn },
        Verdict::Refused { stage, reply } if reply.is_permanent() && !means_later(stage, &reply) => {
            Outcome::Failed(reply)
        }
        Verdict::Refused { reply, .. } => Outcome::Deferred(reply),
        Verdict::NotSent => Outcome::Deferred(lost(format!("connection to {peer}: {}", why()))),
        Verdict::InDoubt => {
            Outcome::Deferred(lost(format!("connection to {peer}: {}; the message may have arrived", why())))
        }
    }
}

fn means_later(stage: Stage, reply: &Reply) -> bool {
    let is_about_number = matches!(reply.enhanced, None | Some(Enhanced(_, 5, 3)));
    reply.code == 552 && matches!(stage, Stage::Rcpt(_)) && is_about_number
}

/// What a transaction that ended with its session says about the next hop.
pub(super) fn contact(closed: &Closed, verdicts: &[Verdict], slowest: Duration, peer: &Peer) -> Contact {
    let is_open = |verdict: &Verdict| matches!(verdict, Verdict::NotSent | Verdict::InDoubt);
    match closed {
        Closed::Shutdown(_) => Contact::Busy,
        _ if !verdicts.iter().any(is_open) => Contact::Answered { slowest },
        closed => Contact::Interrupted(lost(format!("connection to {peer}: {}", reason(closed)))),
    }
}

/// The outcome for a message that this server, or any server, cannot accept.
pub(super) fn unsendable(unsendable: Unsendable) -> Outcome {
    let failed = |code, enhanced| Outcome::Failed(Reply::new(code, enhanced, unsendable.to_string()));
    match unsendable {
        Unsendable::TooBig { .. } => failed(552, Enhanced(5, 3, 4)),
        Unsendable::EightBit => failed(554, Enhanced(5, 6, 3)),
        Unsendable::Smtputf8 => failed(553, Enhanced(5, 6, 7)),
        Unsendable::NotReady | Unsendable::NoRecipients => Outcome::Deferred(lost(unsendable.to_string())),
    }
}

/// RFC 3463 section 3.5: the connection was lost.
pub(super) fn lost(text: String) -> Reply {
    Reply::new(451, Enhanced(4, 4, 2), text)
}

/// RFC 3463 section 3.5: no answer from the host.
pub(super) fn unreached(text: String) -> Reply {
    Reply::new(451, Enhanced(4, 4, 1), text)
}

/// RFC 3463 section 3.8: the required security is not available.
pub(super) fn insecure(text: String) -> Reply {
    Reply::new(451, Enhanced(4, 7, 5), text)
}

/// RFC 3463 section 3.4: an error of our own disk or system.
pub(super) fn ours(text: String) -> Reply {
    Reply::new(451, Enhanced(4, 3, 0), text)
}
