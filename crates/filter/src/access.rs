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
//! | `DEFER_IF_REJECT`, in a table | evaluation continues; a refusal becomes this deferral | |
//! | refuse, defer | the client gets the reply | evaluated again if the client tries again |
//! | hold | evaluation continues | the message, if accepted, is held |
//! | discard, in a table | as accept | the message, if accepted, is dropped |
//! | a change to the message, a line in the log, in a table | evaluation continues | it happens to the message |
//! | the name of a class, in a table | the later rules of this class at the stage are evaluated, too; without any, the client is deferred | |
//!
//! Rules about verdicts on the sender belong to the end of the message, and are evaluated after
//! verification ([`VerdictRules`]); all others before it.
//!
//! An accepted client may still not relay; that is decided elsewhere. Authenticated users skip
//! rules that are not meant for them: they send from any address, and are not responsible for what
//! other clients send from it.
//!
//! Tables and DNS lists are queried for all rules of a stage together. If a table is unavailable
//! and could have decided, the client is deferred (451). An unavailable DNS list lists nothing;
//! this is counted and logged.

mod check;
mod condition_result;
mod conditions;
mod explain;
mod helo_fault;
mod host_names;
mod keys;
mod rule_verdict;
mod sender_fault;
#[cfg(test)]
mod tests;
mod untagged;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lookup::Table;
use mail::{Address, Networks, OperatorLog, Reply};

use crate::check::SessionInfo;
use crate::edit::Edit;
use crate::stage::Stage;

pub(crate) use check::ACCESS_METHOD;
pub use check::{AccessCheck, VerdictRules};
use condition_result::ConditionResult;
pub use explain::{ConditionFinding, RuleExplanation, RuleFinding};
pub use helo_fault::{HeloFault, HeloFaults};
pub(crate) use host_names::LOCALHOST;
pub use host_names::{HostNameFuture, HostNames, ReverseName, ReverseNameState};
pub use sender_fault::{SenderFault, SenderFaults};
pub use untagged::UntaggedAddresses;

/// What a condition tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleSubject {
    /// The client's address.
    Client,
    /// The HELO name.
    Helo,
    /// The reverse-path.
    Sender,
    /// The forward-path.
    Recipient,
    /// How many recipients the message has.
    RecipientCount,
    /// What verification found.
    Verdict,
}

impl RuleSubject {
    /// The stage at which it becomes known.
    pub fn stage(self) -> Stage {
        match self {
            RuleSubject::Client => Stage::Connect,
            RuleSubject::Helo => Stage::Helo,
            RuleSubject::Sender => Stage::Mail,
            RuleSubject::Recipient => Stage::Rcpt,
            RuleSubject::RecipientCount => Stage::Data,
            RuleSubject::Verdict => Stage::Message,
        }
    }
}

/// Whether the configuration contains this name, which is in lower case and without a trailing dot.
pub type HeloNameMatcher = Arc<dyn Fn(&str) -> bool + Send + Sync>;
/// Whether the configuration contains this sender; None is the null sender.
pub type SenderMatcher = Arc<dyn Fn(Option<&Address>) -> bool + Send + Sync>;
/// Whether the configuration contains this domain, which is in lower case.
pub type DomainMatcher = Arc<dyn Fn(&str) -> bool + Send + Sync>;
/// Whether the configuration contains this recipient.
pub type RecipientMatcher = Arc<dyn Fn(&Address) -> bool + Send + Sync>;

/// One condition of a rule.
pub struct AccessCondition {
    /// The condition as text: `clients 192.0.2.0/24`.
    pub text: Box<str>,
    /// How the condition is evaluated.
    pub test: ConditionMatcher,
}

/// How a condition is evaluated.
pub enum ConditionMatcher {
    /// The listener, by its address in the configuration.
    Listener(Box<[SocketAddr]>),
    /// The client's address.
    Client(Networks),
    /// The HELO name.
    Helo(HeloNameMatcher),
    /// The reverse-path.
    Sender(SenderMatcher),
    /// The forward-path.
    Recipient(RecipientMatcher),
    /// The subject is in a table.
    Table(RuleSubject, Arc<dyn Table>),
    /// The client is in a table, by its name.
    ClientName(ClientNameTable),
    /// The message has at least this many recipients, before alias expansion.
    RecipientsMin(usize),
    /// The client's address is in a DNS list.
    Dnsbl(DnsblCheck),
    /// The sum of what DNS lists say of the client's address.
    DnsblScore(DnsblScore),
    /// A name is in a DNS list of domains.
    Rhsbl(RhsblCheck),
    /// The client's name in the DNS is in one of these states.
    ReverseName(Arc<dyn HostNames>, Box<[ReverseNameState]>),
    /// The HELO name has one of these faults.
    HeloFault(HeloFaults),
    /// The domain of the sender has one of these faults.
    SenderFault(SenderFaults),
    /// The client talked before the greeting.
    EarlyTalker,
    /// A method of verification has one of these results.
    Verdict {
        /// For example `dmarc`.
        method: &'static str,
        /// For example `fail`.
        results: Box<[&'static str]>,
    },
    /// A domain has signed the message, and the signature is valid.
    SignedBy(DomainMatcher),
}

impl ConditionMatcher {
    /// What it tests.
    pub fn subject(&self) -> RuleSubject {
        match self {
            ConditionMatcher::Listener(_)
            | ConditionMatcher::Client(_)
            | ConditionMatcher::ClientName(_)
            | ConditionMatcher::Dnsbl(_)
            | ConditionMatcher::DnsblScore(_)
            | ConditionMatcher::ReverseName(..)
            | ConditionMatcher::EarlyTalker => RuleSubject::Client,
            ConditionMatcher::RecipientsMin(_) => RuleSubject::RecipientCount,
            ConditionMatcher::Helo(_) | ConditionMatcher::HeloFault(_) => RuleSubject::Helo,
            ConditionMatcher::Rhsbl(list) => list.latest_subject(),
            ConditionMatcher::Sender(_) | ConditionMatcher::SenderFault(_) => RuleSubject::Sender,
            ConditionMatcher::Recipient(_) => RuleSubject::Recipient,
            ConditionMatcher::Table(subject, _) => *subject,
            ConditionMatcher::Verdict { .. } | ConditionMatcher::SignedBy(_) => RuleSubject::Verdict,
        }
    }
}

/// A DNS list of addresses (RFC 5782).
pub struct DnsblCheck {
    /// The name of the list, shown to clients that are on it.
    pub name: Box<str>,
    /// Queried with an address in text form; the values are the return codes.
    pub table: Arc<dyn Table>,
    /// The return codes that match; empty: all of 127.0.0.0/8.
    pub codes: Vec<RangeInclusive<Ipv4Addr>>,
}

/// DNS lists whose weights are added up.
pub struct DnsblScore {
    /// The lists, each with its weight, which may be negative.
    pub lists: Box<[(DnsblCheck, i32)]>,
    /// The sum from which on the condition holds.
    pub score_min: i32,
}

/// A table that has names of clients.
pub struct ClientNameTable {
    /// The table.
    pub table: Arc<dyn Table>,
    /// Which name is looked up.
    pub key: ClientNameKey,
    /// Finds the client's name.
    pub names: Arc<dyn HostNames>,
}

/// What a table of names of clients is asked for. A client without such a name is `unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientNameKey {
    /// The name that has the client's address, with its parent domains; then the address and its networks.
    ConfirmedNameOrAddress,
    /// The name of the client's address, whether it has this address or not, with its parent domains.
    ReverseName,
}

/// Which name is looked up in a DNS list of domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RhsblSubject {
    /// The domain of the sender.
    Sender,
    /// The domain of the recipient.
    Recipient,
    /// The HELO name.
    Helo,
    /// The name of the client, if it has its address.
    ClientName,
    /// The name of the client, whether it has its address or not.
    ReverseName,
}

impl RhsblSubject {
    /// All of them.
    pub const ALL: [RhsblSubject; 5] = [
        RhsblSubject::Sender,
        RhsblSubject::Recipient,
        RhsblSubject::Helo,
        RhsblSubject::ClientName,
        RhsblSubject::ReverseName,
    ];

    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            RhsblSubject::Sender => "sender",
            RhsblSubject::Recipient => "recipient",
            RhsblSubject::Helo => "helo",
            RhsblSubject::ClientName => "client_name",
            RhsblSubject::ReverseName => "reverse_name",
        }
    }

    /// What becomes known with it.
    pub fn subject(self) -> RuleSubject {
        match self {
            RhsblSubject::Sender => RuleSubject::Sender,
            RhsblSubject::Recipient => RuleSubject::Recipient,
            RhsblSubject::Helo => RuleSubject::Helo,
            RhsblSubject::ClientName | RhsblSubject::ReverseName => RuleSubject::Client,
        }
    }
}

/// A DNS list of domains.
pub struct RhsblCheck {
    /// The list, queried with a name.
    pub list: DnsblCheck,
    /// The names that are looked up; at least one.
    pub subjects: Box<[RhsblSubject]>,
    /// Finds the client's name.
    pub names: Arc<dyn HostNames>,
}

impl RhsblCheck {
    fn latest_subject(&self) -> RuleSubject {
        let subjects = self.subjects.iter().map(|subject| subject.subject());
        subjects.max_by_key(|subject| subject.stage()).unwrap_or(RuleSubject::Client)
    }

    fn needs_client_name(&self) -> bool {
        self.subjects.iter().any(|subject| subject.subject() == RuleSubject::Client)
    }
}

impl DnsblCheck {
    fn matches_code(&self, code: &str) -> bool {
        let Ok(code) = code.parse::<Ipv4Addr>() else { return false };
        self.codes.is_empty() || self.codes.iter().any(|codes| codes.contains(&code))
    }
}

/// What a matching rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleAction {
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
pub struct CompiledRule {
    /// The name of the rule, for counters and explanations.
    pub name: Box<str>,
    /// The list it belongs to. Accepting skips only the rest of this list. All rules of a list have
    /// the same stage.
    pub list: Option<Box<str>>,
    /// The class it belongs to. It is evaluated only after a table of an earlier rule has had the
    /// name of the class as its value, or where a policy service names it.
    pub class: Option<Box<str>>,
    /// When the rule is evaluated. Its conditions test only what is known by then.
    pub stage: Stage,
    /// The rule also applies to authenticated users; otherwise it is skipped for them.
    pub applies_to_users: bool,
    /// Its table may name content filters: the header of each message is read for them later.
    pub chooses_filters: bool,
    /// All of them must match.
    pub conditions: Vec<AccessCondition>,
    /// What the rule does if they match.
    pub action: RuleAction,
}

/// The text of a table for the log, which the operator has asked for.
fn log_match(rule: &CompiledRule, text: &str, info: &SessionInfo<'_>, log: &dyn OperatorLog) {
    let client = info.client.map_or_else(|| "unknown".into(), |client| client.to_string());
    let sender = info.sender.flatten().map_or("", Address::as_str);
    let recipient = info.recipient.map_or("", Address::as_str);
    log.log_line(format_args!(
        "access rule '{}': {text} (client {client}, from <{sender}>, to <{recipient}>)",
        rule.name
    ));
}

impl CompiledRule {
    fn applies_at(&self, stage: Stage, info: &SessionInfo<'_>) -> bool {
        self.stage == stage && (self.applies_to_users || !info.is_user)
    }

    fn dnsbl(&self) -> Option<&DnsblCheck> {
        self.conditions.iter().find_map(|condition| match &condition.test {
            ConditionMatcher::Dnsbl(list) | ConditionMatcher::Rhsbl(RhsblCheck { list, .. }) => Some(list),
            _ => None,
        })
    }
}

/// The result of the rules of a stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessStageResult {
    /// The message is held if it is accepted.
    pub held: bool,
    /// The rule that drops the message, unless it is refused.
    pub discarded_by: Option<Box<str>>,
    /// Changes to the message.
    pub edits: Vec<Edit>,
    /// The rule and the reply of a deferral that the client gets if it is refused at this stage after all.
    pub deferral: Option<(Box<str>, Reply)>,
    /// None: no rule decided.
    pub decision: Option<AccessDecision>,
}

/// The decision of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessDecision {
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
pub struct AccessRules {
    rules: Vec<CompiledRule>,
    counts: Vec<Arc<AtomicU64>>,
    /// Queries to DNS lists without an answer.
    unanswered: Arc<AtomicU64>,
    classes: Vec<ClassRule>,
}

/// Where a rule of a class stands.
struct ClassRule {
    class: Box<str>,
    stage: Stage,
    place: usize,
}

impl fmt::Debug for AccessRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.rules.iter().map(|rule| &rule.name)).finish()
    }
}

/// The lists in which a rule has accepted, and the classes that a table has named.
#[derive(Default)]
struct EvaluationState<'a> {
    accepted: Vec<&'a str>,
    entered: Vec<Box<str>>,
}

impl<'a> EvaluationState<'a> {
    /// Whether the list of a rule is done.
    fn has_accepted(&self, rule: &CompiledRule) -> bool {
        rule.list.as_deref().is_some_and(|list| self.accepted.contains(&list))
    }

    /// Whether a rule is not evaluated.
    fn skips(&self, rule: &CompiledRule) -> bool {
        self.has_accepted(rule) || rule.class.as_ref().is_some_and(|class| !self.entered.contains(class))
    }

    /// Records that a rule accepts. Returns whether that ends the evaluation.
    fn accept(&mut self, rule: &'a CompiledRule) -> bool {
        self.accepted.extend(rule.list.as_deref());
        rule.list.is_none()
    }
}

impl AccessRules {
    /// Takes the rules in order. None: there are no rules, and no evaluation is needed.
    pub fn new(rules: Vec<CompiledRule>) -> Option<AccessRules> {
        let counts = rules.iter().map(|_| Arc::default()).collect();
        let in_class = |(place, rule): (usize, &CompiledRule)| {
            Some(ClassRule { class: rule.class.clone()?, stage: rule.stage, place })
        };
        let classes = rules.iter().enumerate().filter_map(in_class).collect();
        (!rules.is_empty()).then_some(AccessRules { rules, counts, unanswered: Arc::default(), classes })
    }

    /// Continues the counters of the rules before a reload, by rule name. Sessions that still use
    /// the old rules count here too.
    pub fn with_counters_from(mut self, before: Option<&AccessRules>) -> AccessRules {
        let Some(before) = before else { return self };
        for (rule, count) in self.rules.iter().zip(&mut self.counts) {
            if let Some(place) = before.rules.iter().position(|old| old.name == rule.name) {
                *count = before.counts[place].clone();
            }
        }
        AccessRules { unanswered: before.unanswered.clone(), ..self }
    }

    /// Whether the stage has rules.
    pub fn has_rules_at(&self, stage: Stage) -> bool {
        self.rules.iter().any(|rule| rule.stage == stage)
    }

    /// How often each rule took effect, by name.
    pub fn match_counts(&self) -> impl Iterator<Item = (&str, u64)> {
        self.rules.iter().map(|rule| &*rule.name).zip(self.counts.iter().map(|count| count.load(Relaxed)))
    }

    /// How many queries to DNS lists had no answer.
    pub fn unanswered_dnsbl_queries(&self) -> u64 {
        self.unanswered.load(Relaxed)
    }

    /// Evaluates the rules of a stage. Unavailable tables and DNS lists are logged.
    pub async fn evaluate(&self, stage: Stage, info: &SessionInfo<'_>, log: &dyn OperatorLog) -> AccessStageResult {
        self.evaluate_from(None, stage, info, log).await
    }

    /// Whether a class has rules at this stage. Those of other stages decide nothing here.
    pub fn has_class(&self, class: &str, stage: Stage) -> bool {
        self.classes_at(stage).any(|rule| *rule.class == *class)
    }

    /// Evaluates the rules of a class at a stage, and of the classes that its tables name. A rule that accepts
    /// ends the evaluation, whatever its list.
    pub async fn evaluate_class(
        &self,
        class: &str,
        stage: Stage,
        info: &SessionInfo<'_>,
        log: &dyn OperatorLog,
    ) -> AccessStageResult {
        self.evaluate_from(Some(class), stage, info, log).await
    }

    fn classes_at(&self, stage: Stage) -> impl Iterator<Item = &ClassRule> {
        self.classes.iter().filter(move |rule| rule.stage == stage)
    }

    /// Whether the table of the rule at this place may name a class: one that has no later rules at the stage
    /// would let pass what they refuse.
    fn may_enter(&self, class: &str, stage: Stage, place: usize) -> bool {
        self.classes_at(stage).any(|rule| rule.place > place && *rule.class == *class)
    }

    /// `class`: None for all rules, with no class entered yet.
    async fn evaluate_from(
        &self,
        class: Option<&str>,
        stage: Stage,
        info: &SessionInfo<'_>,
        log: &dyn OperatorLog,
    ) -> AccessStageResult {
        let candidates = self.candidate_rules(class.is_some(), stage, info);
        let (candidates, known): (Vec<usize>, Vec<_>) = candidates.into_iter().unzip();
        let rules: Vec<&CompiledRule> = candidates.iter().map(|&place| &self.rules[place]).collect();
        let findings = conditions::evaluate_conditions(&rules, known, info).await;
        let (mut verdict, mut state) = (AccessStageResult::default(), EvaluationState::default());
        state.entered.extend(class.map(Into::into));
        for ((place, rule), findings) in candidates.into_iter().zip(rules).zip(&findings) {
            if state.skips(rule) {
                continue;
            }
            self.report(rule, findings, log);
            let may_enter = |class: &str| self.may_enter(class, stage, place);
            let Some(said) = rule_verdict::rule_verdict(rule, findings, info.client, &may_enter) else { continue };
            self.counts[place].fetch_add(1, Relaxed);
            match said {
                rule_verdict::RuleVerdict::Hold => verdict.held = true,
                // The client is told success, so it makes no difference what later rules would refuse.
                rule_verdict::RuleVerdict::Discard => {
                    verdict.discarded_by = Some(rule.name.clone());
                    if state.accept(rule) || class.is_some() {
                        verdict.decision = Some(AccessDecision::Accept);
                        break;
                    }
                }
                rule_verdict::RuleVerdict::Edit(edit) => verdict.edits.push(edit),
                rule_verdict::RuleVerdict::Log(text) => log_match(rule, &text, info, log),
                rule_verdict::RuleVerdict::Enter(class) => state.entered.push(class),
                rule_verdict::RuleVerdict::Accept if state.accept(rule) || class.is_some() => {
                    verdict.decision = Some(AccessDecision::Accept);
                    break;
                }
                rule_verdict::RuleVerdict::Accept => {}
                rule_verdict::RuleVerdict::DeferIfReject(reply) => {
                    verdict.deferral.get_or_insert((rule.name.clone(), reply));
                }
                rule_verdict::RuleVerdict::Reject(reply) => {
                    let refusal = (rule.name.clone(), reply);
                    let (rule, reply) = match verdict.deferral.take() {
                        Some(deferral) if refusal.1.is_permanent() => deferral,
                        _ => refusal,
                    };
                    verdict.decision = Some(AccessDecision::Refuse { rule, reply });
                    break;
                }
            }
        }
        verdict
    }

    /// The rules of a stage that may match, up to the first that certainly matches and ends the
    /// evaluation, with the results of their conditions so far.
    fn candidate_rules(
        &self,
        only_classes: bool,
        stage: Stage,
        info: &SessionInfo<'_>,
    ) -> Vec<(usize, Vec<ConditionResult>)> {
        let (mut candidates, mut state) = (Vec::new(), EvaluationState::default());
        let is_meant = |rule: &CompiledRule| rule.applies_at(stage, info) && (!only_classes || rule.class.is_some());
        for (place, rule) in self.rules.iter().enumerate().filter(|(_, rule)| is_meant(rule)) {
            if state.has_accepted(rule) {
                continue;
            }
            let known = conditions::check_in_memory(rule, info);
            if known.contains(&ConditionResult::Fails) {
                continue;
            }
            let is_certain = known.iter().all(|finding| *finding == ConditionResult::Holds);
            candidates.push((place, known));
            let ends = match rule.action {
                // Whether a class is entered is not known yet.
                _ if rule.class.is_some() => false,
                RuleAction::Accept => is_certain && state.accept(rule),
                RuleAction::Refuse(_) | RuleAction::Defer(_) => is_certain && !self.may_be_skipped(&candidates, rule),
                RuleAction::Hold | RuleAction::Table => false,
            };
            if ends {
                break;
            }
        }
        candidates
    }

    /// Whether a candidate before this rule, in the same list, may accept and so skip it.
    fn may_be_skipped(&self, candidates: &[(usize, Vec<ConditionResult>)], rule: &CompiledRule) -> bool {
        let accepts = |before: &CompiledRule| matches!(before.action, RuleAction::Accept | RuleAction::Table);
        let passes = |before: &CompiledRule| rule.list.is_some() && before.list == rule.list && accepts(before);
        candidates.iter().any(|(place, _)| passes(&self.rules[*place]))
    }

    fn report(&self, rule: &CompiledRule, findings: &[ConditionResult], log: &dyn OperatorLog) {
        for finding in findings {
            match finding {
                ConditionResult::DnsblUnavailable(why) => {
                    self.unanswered.fetch_add(1, Relaxed);
                    log.log_line(format_args!("access rule '{}' ignores an unavailable DNS list: {why}", rule.name));
                }
                ConditionResult::TableUnavailable(why) => {
                    log.log_line(format_args!("access rule '{}' cannot be evaluated: {why}", rule.name));
                }
                ConditionResult::Holds
                | ConditionResult::Listed(_)
                | ConditionResult::Value(_)
                | ConditionResult::Fails
                | ConditionResult::Pending => {}
            }
        }
    }
}
