//! Access rules: which clients may send, by client address, HELO name, sender, recipient, tables
//! and DNS lists. This module owns the order of evaluation and its result; it holds no session
//! state.
//!
//! Each rule belongs to one stage of the session. The rules of a stage are evaluated in order:
//!
//! | first match | at this stage | later |
//! |---|---|---|
//! | accept, in a list | the rest of this list is skipped | |
//! | accept | evaluation ends | skipped, for the session, transaction or recipient |
//! | refuse, defer | the client gets the reply | evaluated again if the client tries again |
//! | hold | evaluation continues | the message, if accepted, is held |
//!
//! An accepted client may still not relay; that is decided elsewhere. Authenticated users skip
//! rules that are not meant for them: they send from any address, and are not responsible for what
//! other clients send from it.
//!
//! Tables and DNS lists are queried for all rules of a stage together. If a table is unavailable
//! and could have decided, the client is deferred (451). An unavailable DNS list lists nothing;
//! this is counted and logged.

mod action;
mod explain;
mod find;
mod keys;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lookup::Table;
use mail::{Address, Reply};

use crate::{Networks, Troubles, replies};

pub use explain::Told;
use find::Finding;

/// The point in a session at which a rule is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Before the banner.
    Connect,
    /// HELO, EHLO or LHLO.
    Helo,
    /// MAIL.
    Mail,
    /// RCPT.
    Rcpt,
}

impl Stage {
    /// All stages, in the order of a session.
    pub const ALL: [Stage; 4] = [Stage::Connect, Stage::Helo, Stage::Mail, Stage::Rcpt];

    /// The name in the configuration.
    pub fn word(self) -> &'static str {
        match self {
            Stage::Connect => "connect",
            Stage::Helo => "helo",
            Stage::Mail => "mail",
            Stage::Rcpt => "rcpt",
        }
    }

    /// The reply of a refusal without a text of its own (RFC 5321 sections 3.1 and 4.2.2).
    pub fn refusal(self) -> Reply {
        if self == Stage::Connect { replies::CLIENT_DENIED } else { replies::DENIED }
    }

    /// The reply of a deferral without a text of its own.
    pub fn deferral(self) -> Reply {
        match self {
            Stage::Connect => replies::CLIENT_DEFERRED,
            Stage::Helo | Stage::Mail => replies::DEFERRED,
            Stage::Rcpt => replies::RECIPIENT_DEFERRED,
        }
    }
}

/// What a condition tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The client's address.
    Client,
    /// The HELO name.
    Helo,
    /// The reverse-path.
    Sender,
    /// The forward-path.
    Recipient,
}

impl Subject {
    /// The stage at which it becomes known.
    pub fn stage(self) -> Stage {
        match self {
            Subject::Client => Stage::Connect,
            Subject::Helo => Stage::Helo,
            Subject::Sender => Stage::Mail,
            Subject::Recipient => Stage::Rcpt,
        }
    }
}

/// Whether the configuration contains this name, which is in lower case and without a trailing dot.
pub type Names = Arc<dyn Fn(&str) -> bool + Send + Sync>;
/// Whether the configuration contains this sender; None is the null sender.
pub type Senders = Arc<dyn Fn(Option<&Address>) -> bool + Send + Sync>;
/// Whether the configuration contains this recipient.
pub type Recipients = Arc<dyn Fn(&Address) -> bool + Send + Sync>;

/// One condition of a rule.
pub struct Condition {
    /// The condition as text: `clients 192.0.2.0/24`.
    pub text: Box<str>,
    /// How the condition is evaluated.
    pub test: Test,
}

/// How a condition is evaluated.
pub enum Test {
    /// The client's address.
    Client(Networks),
    /// The HELO name.
    Helo(Names),
    /// The reverse-path.
    Sender(Senders),
    /// The forward-path.
    Recipient(Recipients),
    /// The subject is in a table.
    Table(Subject, Arc<dyn Table>),
    /// The client's address is in a DNS list.
    Listed(Zone),
}

impl Test {
    /// What it tests.
    pub fn subject(&self) -> Subject {
        match self {
            Test::Client(_) | Test::Listed(_) => Subject::Client,
            Test::Helo(_) => Subject::Helo,
            Test::Sender(_) => Subject::Sender,
            Test::Recipient(_) => Subject::Recipient,
            Test::Table(subject, _) => *subject,
        }
    }
}

/// A DNS list of addresses (RFC 5782).
pub struct Zone {
    /// The name of the list, shown to clients that are on it.
    pub name: Box<str>,
    /// Queried with an address in text form; the values are the return codes.
    pub table: Arc<dyn Table>,
    /// The return codes that match, as ranges including both ends; empty: all of 127.0.0.0/8.
    pub codes: Vec<(Ipv4Addr, Ipv4Addr)>,
}

impl Zone {
    fn counts(&self, code: &str) -> bool {
        let Ok(code) = code.parse::<Ipv4Addr>() else { return false };
        self.codes.is_empty() || self.codes.iter().any(|(first, last)| (first..=last).contains(&&code))
    }
}

/// What a matching rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Accepts.
    Accept,
    /// 5xx. None: the default reply of the stage, or of the DNS list that matched.
    Refuse(Option<Reply>),
    /// 4xx.
    Defer(Option<Reply>),
    /// Accepts the message and holds it.
    Hold,
    /// As the value in the table says, in the syntax of Postfix's access(5). Such a rule has
    /// exactly one table condition.
    Table,
}

/// A rule.
pub struct Rule {
    /// The name of the rule, for counters and explanations.
    pub name: Box<str>,
    /// The list it belongs to. Accepting skips only the rest of this list. All rules of a list have
    /// the same stage.
    pub list: Option<Box<str>>,
    /// When the rule is evaluated. Its conditions test only what is known by then.
    pub stage: Stage,
    /// The rule also applies to authenticated users; otherwise it is skipped for them.
    pub asks_users: bool,
    /// All of them must match.
    pub conditions: Vec<Condition>,
    /// What the rule does if they match.
    pub action: Action,
}

impl Rule {
    fn is_asked_at(&self, stage: Stage, visit: &Visit<'_>) -> bool {
        self.stage == stage && (self.asks_users || !visit.is_user)
    }

    fn zone(&self) -> Option<&Zone> {
        self.conditions.iter().find_map(|condition| match &condition.test {
            Test::Listed(zone) => Some(zone),
            _ => None,
        })
    }
}

/// What is known of a session when rules are evaluated.
#[derive(Clone, Copy, Debug, Default)]
pub struct Visit<'a> {
    /// None if the address is unknown.
    pub client: Option<IpAddr>,
    /// The client is a user: it has authenticated, or has to before it sends anything.
    pub is_user: bool,
    /// From HELO on, as the client sent it; rules ignore its case and a trailing dot.
    pub helo: Option<&'a str>,
    /// From MAIL on; the inner None is the null sender.
    pub sender: Option<Option<&'a Address>>,
    /// At RCPT.
    pub recipient: Option<&'a Address>,
    /// The sender without the address tag, if it has one.
    pub sender_untagged: Option<&'a Address>,
    /// The recipient without the address tag, if it has one.
    pub recipient_untagged: Option<&'a Address>,
}

/// The result of the rules of a stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The message is held if it is accepted.
    pub held: bool,
    /// None: no rule decided.
    pub decision: Option<Decision>,
}

/// The decision of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Accepted.
    Accept,
    /// Refused or deferred.
    Refuse {
        /// The name of the rule.
        rule: Box<str>,
        /// The reply to the client.
        reply: Reply,
    },
}

/// All rules, and how often each took effect.
pub struct Access {
    rules: Vec<Rule>,
    counts: Vec<Arc<AtomicU64>>,
    /// Queries to DNS lists without an answer.
    unanswered: Arc<AtomicU64>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.rules.iter().map(|rule| &rule.name)).finish()
    }
}

/// The lists in which a rule has accepted.
#[derive(Default)]
struct Passed<'a>(Vec<&'a str>);

impl<'a> Passed<'a> {
    fn has(&self, rule: &Rule) -> bool {
        rule.list.as_deref().is_some_and(|list| self.0.contains(&list))
    }

    /// Records that a rule accepts. Returns whether that ends the evaluation.
    fn pass(&mut self, rule: &'a Rule) -> bool {
        self.0.extend(rule.list.as_deref());
        rule.list.is_none()
    }
}

impl Access {
    /// Takes the rules in order. None: there are no rules, and no evaluation is needed.
    pub fn new(rules: Vec<Rule>) -> Option<Access> {
        let counts = rules.iter().map(|_| Arc::default()).collect();
        (!rules.is_empty()).then_some(Access { rules, counts, unanswered: Arc::default() })
    }

    /// Continues the counters of the rules before a reload, by rule name. Sessions that still use
    /// the old rules count here too.
    pub fn counting_on(mut self, before: Option<&Access>) -> Access {
        let Some(before) = before else { return self };
        for (rule, count) in self.rules.iter().zip(&mut self.counts) {
            if let Some(place) = before.rules.iter().position(|old| old.name == rule.name) {
                *count = before.counts[place].clone();
            }
        }
        Access { unanswered: before.unanswered.clone(), ..self }
    }

    /// Whether the stage has rules.
    pub fn asks_at(&self, stage: Stage) -> bool {
        self.rules.iter().any(|rule| rule.stage == stage)
    }

    /// How often each rule took effect, by name.
    pub fn counted(&self) -> impl Iterator<Item = (&str, u64)> {
        self.rules.iter().map(|rule| &*rule.name).zip(self.counts.iter().map(|count| count.load(Relaxed)))
    }

    /// How many queries to DNS lists had no answer.
    pub fn unanswered(&self) -> u64 {
        self.unanswered.load(Relaxed)
    }

    /// Evaluates the rules of a stage. Unavailable tables and DNS lists are logged.
    pub async fn judge(&self, stage: Stage, visit: &Visit<'_>, troubles: &Troubles) -> Verdict {
        let (open, at_hand): (Vec<usize>, Vec<_>) = self.open(stage, visit).into_iter().unzip();
        let rules: Vec<&Rule> = open.iter().map(|&place| &self.rules[place]).collect();
        let findings = find::find(&rules, at_hand, visit).await;
        let (mut verdict, mut passed) = (Verdict::default(), Passed::default());
        for ((place, rule), findings) in open.into_iter().zip(rules).zip(&findings) {
            if passed.has(rule) {
                continue;
            }
            self.report(rule, findings, troubles);
            let Some(said) = action::said(rule, findings, visit.client) else { continue };
            self.counts[place].fetch_add(1, Relaxed);
            match said {
                action::Said::Hold => verdict.held = true,
                action::Said::Pass if passed.pass(rule) => {
                    verdict.decision = Some(Decision::Accept);
                    break;
                }
                action::Said::Pass => {}
                action::Said::No(reply) => {
                    verdict.decision = Some(Decision::Refuse { rule: rule.name.clone(), reply });
                    break;
                }
            }
        }
        verdict
    }

    /// The rules of a stage that may match, up to the first that certainly matches and ends the
    /// evaluation, with the results of their conditions so far.
    fn open(&self, stage: Stage, visit: &Visit<'_>) -> Vec<(usize, Vec<Finding>)> {
        let (mut open, mut passed) = (Vec::new(), Passed::default());
        for (place, rule) in self.rules.iter().enumerate().filter(|(_, rule)| rule.is_asked_at(stage, visit)) {
            if passed.has(rule) {
                continue;
            }
            let at_hand = find::at_hand(rule, visit);
            if at_hand.contains(&Finding::Not) {
                continue;
            }
            let is_certain = at_hand.iter().all(|finding| *finding == Finding::Holds);
            open.push((place, at_hand));
            let ends = match rule.action {
                Action::Accept => is_certain && passed.pass(rule),
                Action::Refuse(_) | Action::Defer(_) => is_certain && !self.may_be_passed(&open, rule),
                Action::Hold | Action::Table => false,
            };
            if ends {
                break;
            }
        }
        open
    }

    /// Whether a candidate before this rule, in the same list, may accept and so skip it.
    fn may_be_passed(&self, open: &[(usize, Vec<Finding>)], rule: &Rule) -> bool {
        let accepts = |before: &Rule| matches!(before.action, Action::Accept | Action::Table);
        let passes = |before: &Rule| rule.list.is_some() && before.list == rule.list && accepts(before);
        open.iter().any(|(place, _)| passes(&self.rules[*place]))
    }

    fn report(&self, rule: &Rule, findings: &[Finding], troubles: &Troubles) {
        for finding in findings {
            match finding {
                Finding::Unlisted(why) => {
                    self.unanswered.fetch_add(1, Relaxed);
                    troubles.report(format_args!("access rule '{}' ignores an unavailable DNS list: {why}", rule.name));
                }
                Finding::Unknown(why) => {
                    troubles.report(format_args!("access rule '{}' cannot be evaluated: {why}", rule.name));
                }
                Finding::Holds | Finding::Says(_) | Finding::Not | Finding::Asked => {}
            }
        }
    }
}
