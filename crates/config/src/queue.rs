//! Queues: which mail each gets, how many attempts run at a time, when to retry, and which queue
//! takes over slow next hops.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use mail::{Address, Network};

use super::{DomainPattern, value_kind};

/// A queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueSettings {
    /// Its name.
    pub name: Box<str>,
    /// Concurrent attempts; 0 holds the queue.
    pub concurrency: usize,
    /// The mail that it gets.
    pub rules: QueueRules,
    /// When to retry deferred recipients.
    pub retry: RetrySettings,
    /// Which next hops it takes over.
    pub adopt: Option<AdoptSettings>,
}

impl QueueSettings {
    /// The queue of mail for Maildirs; always the first.
    pub const LOCAL: &str = "local";
    /// The queue of mail that matches no rule; always the second.
    pub const STANDARD: &str = "standard";
    /// The queue that adopts unless another one does; always the third.
    pub const LAME: &str = "lame";

    /// The queues that always exist, in their order.
    pub(super) fn built_in() -> [QueueSettings; 3] {
        let local = QueueSettings { concurrency: 2000, ..QueueSettings::new(QueueSettings::LOCAL) };
        let lame = QueueSettings { concurrency: 75, ..QueueSettings::new(QueueSettings::LAME) };
        [local, QueueSettings::new(QueueSettings::STANDARD), lame]
    }

    /// A queue with all defaults.
    pub(super) fn new(name: &str) -> QueueSettings {
        QueueSettings {
            name: name.into(),
            concurrency: 1000,
            rules: QueueRules::default(),
            retry: RetrySettings::default(),
            adopt: None,
        }
    }
}

/// Which mail goes into a queue. A message is compared with the headers of all queues, in their
/// order, then with all senders, then all clients, then each recipient with all domains. The first
/// match wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueRules {
    /// Mail with one of these header fields.
    pub headers: Vec<HeaderRule>,
    /// Mail from one of these senders.
    pub senders: Vec<SenderRule>,
    /// A table of senders, keyed by address or by `@domain`. It is used for senders that match no
    /// list.
    pub sender_table: Option<Box<str>>,
    /// Mail from clients in these networks.
    pub clients: Vec<Network>,
    /// Mail to these domains.
    pub domains: Vec<DomainPattern>,
}

impl QueueRules {
    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        let QueueRules { headers, senders, sender_table, clients, domains } = self;
        headers.is_empty() && senders.is_empty() && sender_table.is_none() && clients.is_empty() && domains.is_empty()
    }
}

/// A header field: `Precedence: bulk`, or `List-Id: *` for any value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderRule {
    /// The field's name.
    pub name: Box<str>,
    /// Its value without surrounding white space; None: any.
    pub value: Option<Box<str>>,
}

impl HeaderRule {
    /// Whether a header field matches. Case is ignored in both parts.
    pub fn matches(&self, name: &str, value: &str) -> bool {
        let value = value.trim();
        self.name.eq_ignore_ascii_case(name) && self.value.as_ref().is_none_or(|own| own.eq_ignore_ascii_case(value))
    }
}

/// The text is not a valid rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a rule")]
pub struct InvalidRule;

impl FromStr for HeaderRule {
    type Err = InvalidRule;

    /// RFC 5322 section 3.6.8 defines the characters of a field name.
    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        let (name, value) = text.split_once(':').ok_or(InvalidRule)?;
        let value = value.trim();
        let sound = !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic());
        let value = match value {
            "*" => None,
            "" => return Err(InvalidRule),
            value if value.contains(['*', '\r', '\n']) => return Err(InvalidRule),
            value => Some(value.into()),
        };
        sound.then(|| HeaderRule { name: name.into(), value }).ok_or(InvalidRule)
    }
}

impl fmt::Display for HeaderRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.value.as_deref().unwrap_or("*"))
    }
}

/// A pattern for envelope senders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SenderRule {
    /// `news@example.org`: this address.
    Address(Address),
    /// `@example.org`: the whole domain, in lower case.
    Domain(Box<str>),
}

impl SenderRule {
    /// Whether `sender` matches. Case is ignored.
    pub fn matches(&self, sender: &Address) -> bool {
        match self {
            SenderRule::Address(own) => own.as_str().eq_ignore_ascii_case(sender.as_str()),
            SenderRule::Domain(domain) => **domain == *sender.domain(),
        }
    }
}

impl FromStr for SenderRule {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        match text.strip_prefix('@') {
            Some(domain) => value_kind::host(domain).map(SenderRule::Domain).ok_or(InvalidRule),
            None => text.parse().map(SenderRule::Address).map_err(|_| InvalidRule),
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

/// When to retry a deferred recipient: after `first * factor^n`, at most `longest`, plus or minus
/// `jitter`.
#[derive(Clone, Debug, PartialEq)]
pub struct RetrySettings {
    /// The wait after the first attempt.
    pub first: Duration,
    /// Each wait is this many times the one before; at least 1.
    pub factor: f64,
    /// The longest wait.
    pub longest: Duration,
    /// The fraction by which a wait varies at random, from 0 to 1.
    pub jitter: f64,
    /// The time from acceptance to the bounce.
    pub lifetime: Duration,
}

impl Default for RetrySettings {
    fn default() -> Self {
        RetrySettings {
            first: Duration::from_secs(60),
            factor: 2.0,
            longest: Duration::from_secs(4 * 3600),
            jitter: 0.2,
            lifetime: Duration::from_secs(5 * 86_400),
        }
    }
}

/// Which next hops a queue takes over from the others, and when it releases them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptSettings {
    /// Next hops that this many connections in a row could not reach.
    pub failures: u32,
    /// Next hops that take longer to answer.
    pub slower_than: Duration,
    /// It releases a next hop after this time without a failure.
    pub release_after: Duration,
    /// Concurrent attempts to each next hop; at least 1.
    pub per_next_hop: usize,
}

impl Default for AdoptSettings {
    fn default() -> Self {
        AdoptSettings {
            failures: 3,
            slower_than: Duration::from_secs(10),
            release_after: Duration::from_secs(3600),
            per_next_hop: 2,
        }
    }
}

/// Settings of all queues together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerSettings {
    /// Attempts that have ended but whose outcomes are not recorded yet. At this limit, none start.
    pub unrecorded_max: usize,
    /// A message with more recipients is bulk; so is all mail of a sender with more recipients
    /// ready in a queue.
    pub bulk_above: usize,
    /// Turns of single mail for each turn of bulk mail.
    pub single_share: u32,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        SchedulerSettings { unrecorded_max: 10_000, bulk_above: 1000, single_share: 3 }
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
            assert_eq!(text.parse::<HeaderRule>(), Err(InvalidRule), "{text}");
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
            assert_eq!(text.parse::<SenderRule>(), Err(InvalidRule), "{text}");
        }
    }
}
