//! What the words of a server mean for a recipient, and the words for what no server said.
//!
//! | verdict                            | outcome                                                 |
//! |------------------------------------|---------------------------------------------------------|
//! | accepted                           | relayed, with the notifications if the server has DSN   |
//! | refused by 4xx                     | deferred                                                |
//! | refused by 5xx                     | failed                                                  |
//! | RCPT refused by 552, for number    | deferred (RFC 5321 section 4.5.3.1.10)                  |
//! | not sent: the session ended before | deferred, 451 4.4.2                                     |
//! | in doubt: it ended after           | deferred, 451 4.4.2: the message may come twice         |

use std::time::Duration;

use mail::{Enhanced, Outcome, Reply};
use protocol::smtp::client::{Closed, Stage, Unsendable, Verdict};

use super::dialogue::reason;
use super::{Contact, Peer};

/// What became of a message for one recipient, and why the session ended if it did.
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

/// What a transaction that ended with its session tells of the next hop.
pub(super) fn contact(closed: &Closed, verdicts: &[Verdict], slowest: Duration, peer: &Peer) -> Contact {
    let is_open = |verdict: &Verdict| matches!(verdict, Verdict::NotSent | Verdict::InDoubt);
    match closed {
        Closed::Shutdown(_) => Contact::Busy,
        _ if !verdicts.iter().any(is_open) => Contact::Answered { slowest },
        closed => Contact::Interrupted(lost(format!("connection to {peer}: {}", reason(closed)))),
    }
}

/// A message that this server, or no server, can be asked to take.
pub(super) fn unsendable(unsendable: Unsendable) -> Outcome {
    let failed = |code, enhanced| Outcome::Failed(Reply::new(code, enhanced, unsendable.to_string()));
    match unsendable {
        Unsendable::TooBig { .. } => failed(552, Enhanced(5, 3, 4)),
        Unsendable::EightBit => failed(554, Enhanced(5, 6, 3)),
        Unsendable::Smtputf8 => failed(553, Enhanced(5, 6, 7)),
        Unsendable::NotReady | Unsendable::NoRecipients => Outcome::Deferred(lost(unsendable.to_string())),
    }
}

/// RFC 3463 section 3.5: the connection was made, and is no more.
pub(super) fn lost(text: String) -> Reply {
    Reply::new(451, Enhanced(4, 4, 2), text)
}

/// RFC 3463 section 3.5: nobody answered.
pub(super) fn unreached(text: String) -> Reply {
    Reply::new(451, Enhanced(4, 4, 1), text)
}

/// RFC 3463 section 3.8: what must be secure cannot be made so.
pub(super) fn insecure(text: String) -> Reply {
    Reply::new(451, Enhanced(4, 7, 5), text)
}

/// RFC 3463 section 3.4: our own disk, or what else our own system lacks.
pub(super) fn ours(text: String) -> Reply {
    Reply::new(451, Enhanced(4, 3, 0), text)
}
