//! Queues in their finished form: which mail goes into each, how much of it is under way at once, when it is tried
//! again, and which of them takes in the next hops that are slow.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use mail::Address;

use super::{Network, Pattern, key};

/// A queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    /// Its name.
    pub name: Box<str>,
    /// Attempts at once; 0 holds the queue.
    pub concurrency: usize,
    /// Which mail goes into it.
    pub rules: Rules,
    /// When a deferred recipient is tried again.
    pub retry: Retry,
    /// Which next hops it takes in.
    pub adopt: Option<Adopt>,
}

impl Queue {
    /// The queue of what goes into Maildirs; always the first.
    pub const LOCAL: &str = "local";
    /// The queue of all that no rule puts elsewhere; always the second.
    pub const STANDARD: &str = "standard";
    /// The queue that adopts, where no other one does; always the third.
    pub const LAME: &str = "lame";

    /// Those that every configuration has, in their order.
    pub(super) fn built_in() -> [Queue; 3] {
        let local = Queue { concurrency: 2000, ..Queue::new(Queue::LOCAL) };
        let lame = Queue { concurrency: 75, ..Queue::new(Queue::LAME) };
        [local, Queue::new(Queue::STANDARD), lame]
    }

    /// One with all defaults.
    pub(super) fn new(name: &str) -> Queue {
        Queue { name: name.into(), concurrency: 1000, rules: Rules::default(), retry: Retry::default(), adopt: None }
    }
}

/// Which mail goes into a queue. A message is held against the headers of all queues, in their order, then against
/// the senders of all, then the clients of all, then each recipient against the domains of all; the first that matches
/// counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Mail with one of these.
    pub headers: Vec<HeaderRule>,
    /// Mail from one of these.
    pub senders: Vec<SenderRule>,
    /// A table of senders, keyed by address, or by `@domain` for all of a domain: mail from one who is in it, if no
    /// list of senders has him.
    pub sender_table: Option<Box<str>>,
    /// Mail that came from clients of these networks.
    pub clients: Vec<Network>,
    /// Mail to one of these domains.
    pub domains: Vec<Pattern>,
}

impl Rules {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        let Rules { headers, senders, sender_table, clients, domains } = self;
        headers.is_empty() && senders.is_empty() && sender_table.is_none() && clients.is_empty() && domains.is_empty()
    }
}

/// A header field: `Precedence: bulk`, or `List-Id: *` for any value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderRule {
    /// The field's name.
    pub name: Box<str>,
    /// Its value without the space around it; None: any.
    pub value: Option<Box<str>>,
}

impl HeaderRule {
    /// Whether the field `name: value` is meant. Capital and small letters are the same, in both parts.
    pub fn matches(&self, name: &str, value: &str) -> bool {
        let value = value.trim();
        self.name.eq_ignore_ascii_case(name) && self.value.as_ref().is_none_or(|own| own.eq_ignore_ascii_case(value))
    }
}

/// The text is not a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a rule")]
pub struct NotARule;

impl FromStr for HeaderRule {
    type Err = NotARule;

    /// RFC 5322 section 3.6.8 says what a field's name is made of.
    fn from_str(text: &str) -> Result<Self, NotARule> {
        let (name, value) = text.split_once(':').ok_or(NotARule)?;
        let value = value.trim();
        let sound = !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic());
        let value = match value {
            "*" => None,
            "" => return Err(NotARule),
            value if value.contains(['*', '\r', '\n']) => return Err(NotARule),
            value => Some(value.into()),
        };
        sound.then(|| HeaderRule { name: name.into(), value }).ok_or(NotARule)
    }
}

impl fmt::Display for HeaderRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.value.as_deref().unwrap_or("*"))
    }
}

/// An envelope sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SenderRule {
    /// `news@example.org`: this one.
    Address(Address),
    /// `@example.org`: all of this domain, in lower case.
    Domain(Box<str>),
}

impl SenderRule {
    /// Whether `sender` is meant. Capital and small letters are the same.
    pub fn matches(&self, sender: &Address) -> bool {
        match self {
            SenderRule::Address(own) => own.as_str().eq_ignore_ascii_case(sender.as_str()),
            SenderRule::Domain(domain) => **domain == *sender.domain(),
        }
    }
}

impl FromStr for SenderRule {
    type Err = NotARule;

    fn from_str(text: &str) -> Result<Self, NotARule> {
        match text.strip_prefix('@') {
            Some(domain) => key::host(domain).map(SenderRule::Domain).ok_or(NotARule),
            None => text.parse().map(SenderRule::Address).map_err(|_| NotARule),
        }
    }
}

impl fmt::Display for SenderRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SenderRule::Address(address) => f.write_str(address.as_str()),
            SenderRule::Domain(domain) => write!(f, "@{domain}"),
        }
    }
}

/// When a deferred recipient is tried again: `first * factor^n`, at most `longest`, give or take `jitter`.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// The wait after the first attempt.
    pub first: Duration,
    /// How much longer each wait is than the one before; at least 1.
    pub factor: f64,
    /// The longest wait.
    pub longest: Duration,
    /// The share by which a wait is made longer or shorter at random; from 0 to 1.
    pub jitter: f64,
    /// From acceptance to the bounce.
    pub lifetime: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Retry {
            first: Duration::from_secs(60),
            factor: 2.0,
            longest: Duration::from_secs(4 * 3600),
            jitter: 0.2,
            lifetime: Duration::from_secs(5 * 86_400),
        }
    }
}

/// Which next hops a queue takes in from the others, and when it lets them go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopt {
    /// Those that so many connections in a row failed to reach.
    pub failures: u32,
    /// Those that are slower to answer.
    pub slower_than: Duration,
    /// They go back after so long without a failure.
    pub release_after: Duration,
    /// Attempts at once to each of them; at least 1.
    pub per_next_hop: usize,
}

impl Default for Adopt {
    fn default() -> Self {
        Adopt {
            failures: 3,
            slower_than: Duration::from_secs(10),
            release_after: Duration::from_secs(3600),
            per_next_hop: 2,
        }
    }
}

/// What all queues share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduler {
    /// Attempts that have ended and whose outcome is not yet recorded; beyond, none are begun.
    pub unrecorded_max: usize,
    /// A message to more recipients is a mailing, and so is all mail of a sender with more of them ready in a queue.
    pub mailing_above: usize,
    /// Turns that letters get for each turn of a mailing.
    pub letters_share: u32,
}

impl Default for Scheduler {
    fn default() -> Self {
        Scheduler { unrecorded_max: 10_000, mailing_above: 1000, letters_share: 3 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_rule_is_a_field_with_its_value_or_with_any() {
        for (rule, name, value, meant) in [
            ("Precedence: bulk", "precedence", " Bulk ", true),
            ("Precedence:bulk", "Precedence", "bulk", true),
            ("Precedence: bulk", "Precedence", "bulky", false),
            ("Precedence: bulk", "X-Precedence", "bulk", false),
            ("List-Id: *", "List-ID", "<news.example.org>", true),
            ("X-Time: 10:30", "X-Time", "10:30", true),
        ] {
            assert_eq!(rule.parse::<HeaderRule>().unwrap().matches(name, value), meant, "{rule}");
        }
        for text in ["", "Precedence", ": bulk", "Precedence:", "Pre cedence: bulk", "X: bulk*", "X: a\nb", "Ü: *"] {
            assert_eq!(text.parse::<HeaderRule>(), Err(NotARule), "{text}");
        }
    }

    #[test]
    fn a_sender_rule_is_an_address_or_a_domain() {
        let sender = "News@Lists.example.org".parse().unwrap();
        for (rule, meant) in [
            ("news@lists.example.org", true),
            ("old@lists.example.org", false),
            ("@LISTS.example.org", true),
            ("@example.org", false),
        ] {
            assert_eq!(rule.parse::<SenderRule>().unwrap().matches(&sender), meant, "{rule}");
        }
        for text in ["", "@", "news", "*@example.org@", "@*.example.org"] {
            assert_eq!(text.parse::<SenderRule>(), Err(NotARule), "{text}");
        }
    }
}
