//! Access rules: who is let in, by the client's address, what it calls itself, the sender, the recipient, tables and
//! lists in the DNS. This owns the order in which rules are asked and what comes of them; it holds no session.
//!
//! Each rule is asked at one stage of the session. Those of a stage are asked in their order:
//!
//! | the first that matches says | then, at this stage | later |
//! |---|---|---|
//! | accept, in a list | the other rules of its list are passed over | |
//! | accept | no other rule is asked | nor at any later stage: of the session (connect, helo), the transaction (mail), the recipient (rcpt) |
//! | refuse, defer | the client is told | the rules are asked anew where it tries again |
//! | hold | the rules behind it are asked | the message, if it is taken, waits for the operator |
//!
//! To accept is not to relay: who may send to other people's domains is said elsewhere. Users, who log in, are not asked
//! of by rules that are not for them: they write from wherever they are, and what strangers do from there is not theirs.
//!
//! What only a table or the DNS can say is asked for all rules of a stage at once. A table that cannot say puts the
//! client off (451) where what it did not say could decide; a list in the DNS that cannot say lists nobody, is counted,
//! and told to the operator.

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

/// A moment of a session at which rules are asked.
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
    /// All of them, in the order of a session.
    pub const ALL: [Stage; 4] = [Stage::Connect, Stage::Helo, Stage::Mail, Stage::Rcpt];

    /// As the configuration has it.
    pub fn word(self) -> &'static str {
        match self {
            Stage::Connect => "connect",
            Stage::Helo => "helo",
            Stage::Mail => "mail",
            Stage::Rcpt => "rcpt",
        }
    }

    /// What a client is told that is refused without words of the operator's (RFC 5321 sections 3.1 and 4.2.2).
    pub fn refusal(self) -> Reply {
        if self == Stage::Connect { replies::CLIENT_DENIED } else { replies::DENIED }
    }

    /// What one is told that is to come back.
    pub fn deferral(self) -> Reply {
        match self {
            Stage::Connect => replies::CLIENT_DEFERRED,
            Stage::Helo | Stage::Mail => replies::DEFERRED,
            Stage::Rcpt => replies::RECIPIENT_DEFERRED,
        }
    }
}

/// What a condition is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The client's address.
    Client,
    /// What it calls itself.
    Helo,
    /// The reverse-path.
    Sender,
    /// The forward-path.
    Recipient,
}

impl Subject {
    /// The stage at which it is known.
    pub fn stage(self) -> Stage {
        match self {
            Subject::Client => Stage::Connect,
            Subject::Helo => Stage::Helo,
            Subject::Sender => Stage::Mail,
            Subject::Recipient => Stage::Rcpt,
        }
    }
}

/// Tells whether a name, in lower case and without a dot at its end, is one of those that the configuration has.
pub type Names = Arc<dyn Fn(&str) -> bool + Send + Sync>;
/// The same for a sender; None is the null sender.
pub type Senders = Arc<dyn Fn(Option<&Address>) -> bool + Send + Sync>;
/// The same for a recipient.
pub type Recipients = Arc<dyn Fn(&Address) -> bool + Send + Sync>;

/// One thing that must hold for a rule to match.
pub struct Condition {
    /// The same for people: `clients 192.0.2.0/24`.
    pub text: Box<str>,
    /// How it is found out.
    pub test: Test,
}

/// How a condition is found out.
pub enum Test {
    /// The client's address.
    Client(Networks),
    /// What it calls itself.
    Helo(Names),
    /// The reverse-path.
    Sender(Senders),
    /// The forward-path.
    Recipient(Recipients),
    /// The subject is in a table.
    Table(Subject, Arc<dyn Table>),
    /// The client's address is listed in a zone of the DNS.
    Listed(Zone),
}

impl Test {
    /// What it is about.
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

/// A list of addresses in the DNS (RFC 5782).
pub struct Zone {
    /// What it is called, for those who are told that they are on it.
    pub name: Box<str>,
    /// Asked with an address in its text form; the values are the codes.
    pub table: Arc<dyn Table>,
    /// The codes that count, from each first to its last; none: any of 127.0.0.0/8.
    pub codes: Vec<(Ipv4Addr, Ipv4Addr)>,
}

impl Zone {
    fn counts(&self, code: &str) -> bool {
        let Ok(code) = code.parse::<Ipv4Addr>() else { return false };
        self.codes.is_empty() || self.codes.iter().any(|(first, last)| (first..=last).contains(&&code))
    }
}

/// What a rule says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Let it pass.
    Accept,
    /// 5xx. None: in words of the stage, or of the list that the client is on.
    Refuse(Option<Reply>),
    /// 4xx.
    Defer(Option<Reply>),
    /// Take it and hold it.
    Hold,
    /// What the value in the table says, in the words of Postfix's access(5). Such a rule has one condition of that
    /// kind.
    Table,
}

/// One rule.
pub struct Rule {
    /// What it is called, in counts and explanations.
    pub name: Box<str>,
    /// The list that it belongs to. To accept ends the asking of this list alone; all rules of a list are asked at one stage.
    pub list: Option<Box<str>>,
    /// When it is asked. No condition is about what is not known by then.
    pub stage: Stage,
    /// It is asked of users too; else they pass it as if it was not there.
    pub asks_users: bool,
    /// All of them have to hold.
    pub conditions: Vec<Condition>,
    /// What it says then.
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

/// What is known of a session when rules are asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Visit<'a> {
    /// None where nobody knows it.
    pub client: Option<IpAddr>,
    /// The client is a user: it has logged in, or it has to before it sends anything.
    pub is_user: bool,
    /// From HELO on, as the client spells it; for rules that has neither case nor a dot at the end.
    pub helo: Option<&'a str>,
    /// From MAIL on; the inner None is the null sender.
    pub sender: Option<Option<&'a Address>>,
    /// At RCPT.
    pub recipient: Option<&'a Address>,
    /// The sender without the tag of its mailbox, where it has one.
    pub sender_untagged: Option<&'a Address>,
    /// The same of the recipient.
    pub recipient_untagged: Option<&'a Address>,
}

/// What the rules of a stage say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The message is to be held, if it is taken.
    pub held: bool,
    /// None: no rule decides.
    pub decision: Option<Decision>,
}

/// What ends the asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It passes.
    Accept,
    /// It does not.
    Refuse {
        /// The name of the rule that says so.
        rule: Box<str>,
        /// What the client is told.
        reply: Reply,
    },
}

/// All rules, and how often each decided.
pub struct Access {
    rules: Vec<Rule>,
    counts: Vec<Arc<AtomicU64>>,
    /// Questions to lists in the DNS that had no answer.
    unanswered: Arc<AtomicU64>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.rules.iter().map(|rule| &rule.name)).finish()
    }
}

/// The lists of rules that have accepted a visit.
#[derive(Default)]
struct Passed<'a>(Vec<&'a str>);

impl<'a> Passed<'a> {
    fn has(&self, rule: &Rule) -> bool {
        rule.list.as_deref().is_some_and(|list| self.0.contains(&list))
    }

    /// A rule accepts. Returns whether that ends the asking of all rules.
    fn pass(&mut self, rule: &'a Rule) -> bool {
        self.0.extend(rule.list.as_deref());
        rule.list.is_none()
    }
}

impl Access {
    /// Rules in their order; None where there are none, so that nobody asks.
    pub fn new(rules: Vec<Rule>) -> Option<Access> {
        let counts = rules.iter().map(|_| Arc::default()).collect();
        (!rules.is_empty()).then_some(Access { rules, counts, unanswered: Arc::default() })
    }

    /// The same rules, which go on with the counts of those that they replace: each with that of the one of its name.
    /// Whoever still asks the others counts here too.
    pub fn counting_on(mut self, before: Option<&Access>) -> Access {
        let Some(before) = before else { return self };
        for (rule, count) in self.rules.iter().zip(&mut self.counts) {
            if let Some(place) = before.rules.iter().position(|old| old.name == rule.name) {
                *count = before.counts[place].clone();
            }
        }
        Access { unanswered: before.unanswered.clone(), ..self }
    }

    /// Whether any rule is asked at a stage.
    pub fn asks_at(&self, stage: Stage) -> bool {
        self.rules.iter().any(|rule| rule.stage == stage)
    }

    /// How often each rule matched and decided, by name.
    pub fn counted(&self) -> impl Iterator<Item = (&str, u64)> {
        self.rules.iter().map(|rule| &*rule.name).zip(self.counts.iter().map(|count| count.load(Relaxed)))
    }

    /// How many questions to lists in the DNS had no answer.
    pub fn unanswered(&self) -> u64 {
        self.unanswered.load(Relaxed)
    }

    /// What the rules of a stage say of a visit. What tables and lists could not say is reported.
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

    /// The rules of a stage that may match, up to the first that matches for certain and leaves nothing to say; with what is
    /// at hand of each.
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

    /// Whether a rule of the same list, of those that are open, may accept and so pass this one.
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
