//! The directory of recipients: which addresses are ours, and who gets the mail for them in the end.
//!
//! An address is resolved in rounds. A round asks, for all addresses that are still open, the tables of their domains:
//! each table at most once for a step, with all keys together. Targets that lead on are the next round's addresses.
//!
//! | step                                  | for `Bob+List@Example.org`, keys folded to lower case         |
//! |---------------------------------------|---------------------------------------------------------------|
//! | 1. alias of the address               | `bob+list@example.org`, then `bob@example.org`                |
//! | 2. mailbox, where 1 found none        | `bob+list@example.org`, then `bob@example.org`                |
//! | 3. alias of the domain, where 2 did not | `@example.org`                                              |
//! | 4. the domain's catch-all             |                                                               |
//! | 5. the mailbox of the postmaster      | only for `postmaster`, who is never unknown (RFC 5321 4.5.1)  |
//!
//! An alias that names itself stands for its mailbox. One answer of Unavailable that matters makes the whole address
//! Unavailable: an outage never makes anyone unknown. That an address was no alias before an outage does not matter where
//! it is a mailbox. Lists may name each other: once anybody is found, no address is
//! opened twice. A circle that reaches nobody ends by the limits. Alias targets of ours that nobody is behind are dropped
//! while others remain; an address from which nothing remains is Unknown.
//!
//! A domain is ours since the configuration names it, or since a table of names has it.
//!
//! A mailbox of ours need not be here: where its domain has a table of hosts, that tells which machine stores it. Mail for
//! a domain that is only passed on keeps the name that it came with: folding and tags are for the keys of tables alone.

mod domains;

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use mail::Address;

pub use domains::{DomainTable, other_spelling};
use domains::{Domains, Known, in_ascii};

use crate::{Answer, Table, fold};

/// A domain of ours.
#[derive(Clone)]
pub struct Domain {
    /// Its name. Beyond ASCII it is the same in letters and in A-labels (RFC 5890); keys of tables and names of mailboxes
    /// have it as it is spelt here.
    pub name: Box<str>,
    /// Who exists, keyed by address. None: everyone; then a tag is cut off, so that it makes no mailbox of its own.
    pub mailboxes: Option<Arc<dyn Table>>,
    /// Who stands for whom, keyed by address, or by `@domain` for all who are neither in here nor a mailbox.
    pub aliases: Option<Arc<dyn Table>>,
    /// Who gets the mail for everyone who is not known.
    pub catch_all: Option<Address>,
    /// Which machine stores a mailbox, keyed by address: `host`, `host:port`, or the same with an address in brackets.
    /// None, or a mailbox that is not in it: this one.
    pub hosts: Option<Arc<dyn Table>>,
    /// What parts the name of a mailbox from a tag that its owner chose: `+` in `bob+list`.
    pub delimiter: Option<char>,
    /// How mail for its mailboxes is delivered, by the transport's name in the configuration.
    pub transport: Box<str>,
    /// Whether that is final delivery. Where it is not, what stands before the `@` is the next host's to understand, and
    /// goes there as it came (RFC 5321 section 2.4).
    pub is_final: bool,
}

/// How far an address may lead.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Aliases of aliases: more rounds than this are [`Resolution::TooDeep`].
    pub depth_max: usize,
    /// Addresses that one address stands for: more are [`Resolution::TooMany`].
    pub addresses_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { depth_max: 10, addresses_max: 1000 }
    }
}

/// All domains of ours.
pub struct Directory {
    domains: Domains,
    limits: Limits,
    hostname: Box<str>,
}

/// What an address is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Ours; these get the mail. Never empty, and nobody is in it twice.
    Local(Vec<Final>),
    /// Its domain is not ours.
    Remote(Address),
    /// Its domain is ours and nobody is behind it.
    Unknown,
    /// A table could not say; why, for the log.
    Unavailable(String),
    /// Aliases lead to aliases more often than the limit, as they do in a circle that reaches nobody.
    TooDeep,
    /// It stands for more addresses than the limit.
    TooMany,
}

/// Who gets the mail in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Final {
    /// The address: of a mailbox of ours in lower case and without a tag that led to it; as it was given where its domain
    /// is passed on; or any elsewhere.
    pub address: Address,
    /// The address that was asked for, where it is another one.
    pub original: Option<Address>,
    /// Whether it is a mailbox of ours.
    pub local: bool,
}

/// Where a mailbox is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// On this machine.
    Here,
    /// Wherever mail for its domain goes: that is not ours, or its mail is passed on.
    Onward,
    /// On another machine: `host`, `host:port`, or the same with an address in brackets.
    At(Box<str>),
    /// A table could not say; why, for the log.
    Unavailable(String),
}

/// A table could not say.
struct Unavailable(String);

/// A table could not say whether a key is there.
enum Untold {
    Unavailable(String),
    /// None was there before.
    Unconfirmed(String),
}

impl From<Untold> for Unavailable {
    fn from(untold: Untold) -> Self {
        let (Untold::Unavailable(why) | Untold::Unconfirmed(why)) = untold;
        Unavailable(why)
    }
}

impl Directory {
    /// The directory of these domains; of two with the same name the later one counts.
    pub fn new(domains: Vec<Domain>, limits: Limits) -> Self {
        Directory { domains: Domains::new(domains), limits, hostname: Box::default() }
    }

    /// The same with domains whose names are in tables. A name that the configuration has as well is asked of none.
    pub fn with_tables(mut self, tables: Vec<DomainTable>) -> Self {
        self.domains.add_tables(tables);
        self
    }

    /// The same on the machine of this name: mailboxes that are stored there are stored here.
    pub fn on_host(self, hostname: &str) -> Self {
        Directory { hostname: fold(hostname).into(), ..self }
    }

    /// The domain of ours with this name (in lower case, as an [`Address`] has it), in letters or in A-labels.
    ///
    /// # Errors
    ///
    /// A table of names could not say; why, for the log.
    pub async fn domain(&self, name: &str) -> Result<Option<Cow<'_, Domain>>, String> {
        let mut known = Known::new(&self.domains);
        match known.learn(std::iter::once(name)).await {
            Ok(()) => Ok(known.into_domain(name)),
            Err(Unavailable(why)) => Err(why),
        }
    }

    /// The address without the tag of its mailbox (`bob` for `bob+list`), where it has one by the rule of its domain. None
    /// too where nobody can say whether the domain is ours.
    pub async fn untagged(&self, address: &Address) -> Option<Address> {
        let domain = self.domain(address.domain()).await.ok()??;
        without_tag(address, domain.delimiter?)
    }

    /// Whether the configuration itself names the domain: of others only tables know.
    pub fn is_configured(&self, name: &str) -> bool {
        self.domains.configured(name).is_some()
    }

    /// Who gets the mail for `address`.
    pub async fn resolve(&self, address: &Address) -> Resolution {
        self.resolved(address).await.unwrap_or_else(|Unavailable(why)| Resolution::Unavailable(why))
    }

    async fn resolved(&self, address: &Address) -> Result<Resolution, Unavailable> {
        let mut known = Known::new(&self.domains);
        known.learn(std::iter::once(address.domain())).await?;
        if known.domain(address.domain()).is_none() {
            return Ok(Resolution::Remote(address.clone()));
        }
        let mut finals = Finals::new(address, kept(&known, address));
        let mut open = vec![finals.kept.clone()];
        let mut opened = HashSet::new();
        for _ in 0..=self.limits.depth_max {
            let targets = round(&known, open, &mut finals).await?;
            known.learn(targets.iter().map(Address::domain)).await?;
            open = sort_out(&known, targets, &mut finals, &mut opened);
            if finals.len() + open.len() > self.limits.addresses_max {
                return Ok(Resolution::TooMany);
            }
            if open.is_empty() {
                return Ok(finals.into_resolution());
            }
        }
        Ok(Resolution::TooDeep)
    }

    /// Where each of these mailboxes is; the answers are in their order. Each table of hosts is asked once, with all of
    /// its mailboxes together.
    pub async fn stores(&self, mailboxes: &[Address]) -> Vec<Store> {
        let mut known = Known::new(&self.domains);
        known.learn_most(mailboxes.iter().map(Address::domain)).await;
        let question = |mailbox: &Address| match known.domain(mailbox.domain()) {
            Some(domain) => Question::new(&domain.hosts, vec![folded(mailbox, domain).as_str().to_owned()]),
            None => Question { table: None, keys: Vec::new() },
        };
        let found = ask(mailboxes.iter().map(question).collect()).await;
        let is_final = |mailbox: &Address| known.domain(mailbox.domain()).is_some_and(|domain| domain.is_final);
        let store = |(mailbox, found): (&Address, _)| match known.trouble(mailbox.domain()) {
            Some(why) => Store::Unavailable(why.to_owned()),
            None => match self.store(mailbox, found) {
                Store::Here if !is_final(mailbox) => Store::Onward,
                store => store,
            },
        };
        mailboxes.iter().zip(found).map(store).collect()
    }

    /// Of several hosts the first counts, unless this machine is one of them: it then has a copy of its own.
    fn store(&self, mailbox: &Address, found: Result<Option<Hit<'_>>, Untold>) -> Store {
        let hit = match found {
            Ok(Some(hit)) => hit,
            Ok(None) => return Store::Here,
            Err(Untold::Unavailable(why) | Untold::Unconfirmed(why)) => return Store::Unavailable(why),
        };
        let hosts: Vec<String> = hit.values.iter().map(|value| fold(value)).collect();
        let wrong = |what: &str| Store::Unavailable(format!("table '{}': the host of {mailbox} {what}", hit.table));
        match hosts.iter().find(|host| !is_host(host)) {
            Some(host) => wrong(&format!("is '{host}'")),
            None if hosts.iter().any(|host| self.is_here(host)) => Store::Here,
            None => hosts.first().map_or_else(|| wrong("is left out"), |host| Store::At(host.as_str().into())),
        }
    }

    /// Whatever the port: mail that this machine sent to itself would come back here.
    fn is_here(&self, host: &str) -> bool {
        let name = host.split_once(':').map_or(host, |(name, _)| name);
        !self.hostname.is_empty() && name.trim_end_matches('.') == &*self.hostname
    }
}

/// One step of all open addresses: mailboxes go to `finals`, what aliases name is returned.
async fn round(known: &Known<'_>, open: Vec<Address>, finals: &mut Finals<'_>) -> Result<Vec<Address>, Unavailable> {
    let case = |address: Address| Some(Case::new(known.domain(address.domain())?, address));
    let mut cases: Vec<Case> = open.into_iter().filter_map(case).collect();
    ask_aliases(&mut cases).await?;
    ask_mailboxes(&mut cases).await?;
    ask_domain_aliases(&mut cases).await?;
    let mut targets = Vec::new();
    for case in cases {
        let (mailbox, named) = case.close();
        mailbox.into_iter().for_each(|address| finals.insert(address, true));
        targets.extend(named);
    }
    Ok(targets)
}

/// Targets elsewhere are final; those of ours are returned, each once. One that was `opened` before leads to nobody new;
/// only while there is nobody at all it is opened again, which tells a circle from addresses that nobody is behind.
fn sort_out(
    known: &Known<'_>,
    targets: Vec<Address>,
    finals: &mut Finals<'_>,
    opened: &mut HashSet<Address>,
) -> Vec<Address> {
    if targets.is_empty() {
        return Vec::new();
    }
    opened.insert(finals.kept.clone());
    let mut seen = HashSet::new();
    let (ours, elsewhere): (Vec<_>, Vec<_>) =
        targets.into_iter().partition(|target| known.domain(target.domain()).is_some());
    elsewhere.into_iter().for_each(|address| finals.insert(address, false));
    let mut is_open = |address: &Address| match opened.insert(address.clone()) {
        true => true,
        false => finals.len() == 0,
    };
    let ours = ours.iter().map(|target| kept(known, target)).filter(|address| seen.insert(address.clone()));
    ours.filter(|address| is_open(address)).collect()
}

/// The address as its mailbox has it: only where that is ours do we know that case makes no other.
fn kept(known: &Known<'_>, address: &Address) -> Address {
    match known.domain(address.domain()) {
        Some(domain) if domain.is_final => folded(address, domain),
        _ => address.clone(),
    }
}

/// Those who get the mail, in the order in which they were found.
struct Finals<'a> {
    asked: &'a Address,
    /// The same as its mailbox has it: to write a name in capitals is not to name someone else.
    kept: Address,
    found: Vec<Final>,
    seen: HashSet<Address>,
}

impl<'a> Finals<'a> {
    fn new(asked: &'a Address, kept: Address) -> Self {
        Finals { asked, kept, found: Vec::new(), seen: HashSet::new() }
    }

    fn len(&self) -> usize {
        self.found.len()
    }

    fn insert(&mut self, address: Address, local: bool) {
        if self.seen.insert(address.clone()) {
            let original = (address != self.kept).then(|| self.asked.clone());
            self.found.push(Final { address, original, local });
        }
    }

    fn into_resolution(mut self) -> Resolution {
        if self.found.is_empty() && is_postmaster(&self.kept) {
            self.insert(self.kept.clone(), true);
        }
        if self.found.is_empty() { Resolution::Unknown } else { Resolution::Local(self.found) }
    }
}

/// The place of the address without its tag among [`Case::addresses`], if it is there.
const UNTAGGED: usize = 1;

/// One address of ours on its way through the steps of a round.
struct Case<'a> {
    domain: &'a Domain,
    address: Address,
    /// The address without its tag, where it has one.
    untagged: Option<Address>,
    state: State,
    /// Whether it is an alias nobody can say now, and it was none before; why.
    doubt: Option<Unavailable>,
}

enum State {
    /// No alias and no mailbox so far.
    Unknown,
    /// An alias of these, and of its own mailbox where it names itself.
    Alias { targets: Vec<Address>, names_itself: bool },
    /// A mailbox, and what else its alias names.
    Mailbox { mailbox: Address, targets: Vec<Address> },
}

impl<'a> Case<'a> {
    fn new(domain: &'a Domain, address: Address) -> Self {
        let untagged = domain.delimiter.and_then(|delimiter| without_tag(&address, delimiter));
        Case { domain, address, untagged, state: State::Unknown, doubt: None }
    }

    fn addresses(&self) -> impl Iterator<Item = &Address> {
        std::iter::once(&self.address).chain(&self.untagged)
    }

    fn keys(&self) -> Vec<String> {
        self.addresses().map(|address| folded(address, self.domain).as_str().to_owned()).collect()
    }

    /// Whether the target of an alias is the address itself.
    fn is_itself(&self, target: &Address) -> bool {
        let here = |address: &Address| folded(address, self.domain);
        in_ascii(target.domain()) == in_ascii(self.address.domain()) && here(target) == here(&self.address)
    }

    fn needs_mailbox(&self) -> bool {
        matches!(self.state, State::Unknown | State::Alias { names_itself: true, .. })
    }

    fn set_targets(&mut self, values: &[String], table: &str) -> Result<(), Unavailable> {
        if values.is_empty() {
            return Err(Unavailable(format!("table '{table}': the alias for {} names nobody", self.address)));
        }
        let mut targets = Vec::with_capacity(values.len());
        for value in values {
            let target = value.parse::<Address>().map_err(|error| {
                Unavailable(format!("table '{table}': the alias for {} names '{value}': {error}", self.address))
            })?;
            targets.push(target);
        }
        self.set_addresses(targets);
        Ok(())
    }

    fn set_addresses(&mut self, mut targets: Vec<Address>) {
        let before = targets.len();
        targets.retain(|target| !self.is_itself(target));
        self.state = State::Alias { names_itself: targets.len() < before, targets };
    }

    /// The mailbox is that of the address with this place among [`Case::addresses`], or whatever the next host makes of it.
    fn set_mailbox(&mut self, place: usize) {
        let mailbox = match &self.untagged {
            Some(untagged) if place == UNTAGGED && self.domain.is_final => untagged.clone(),
            _ => self.address.clone(),
        };
        let targets = match std::mem::replace(&mut self.state, State::Unknown) {
            State::Alias { targets, .. } => targets,
            State::Unknown | State::Mailbox { .. } => Vec::new(),
        };
        self.state = State::Mailbox { mailbox, targets };
    }

    /// Where no table knew the address, what is left. Returns the mailbox, if it is one, and where it leads.
    fn close(mut self) -> (Option<Address>, Vec<Address>) {
        if let (State::Unknown, Some(target)) = (&self.state, &self.domain.catch_all) {
            self.set_addresses(vec![target.clone()]);
        }
        match self.state {
            State::Mailbox { mailbox, targets } => (Some(mailbox), targets),
            State::Alias { targets, .. } if !targets.is_empty() => (None, targets),
            _ => (Some(self.address).filter(is_postmaster), Vec::new()),
        }
    }
}

/// Step 1.
async fn ask_aliases(cases: &mut [Case<'_>]) -> Result<(), Unavailable> {
    let questions = cases.iter().map(|case| Question::new(&case.domain.aliases, case.keys())).collect();
    for (case, found) in cases.iter_mut().zip(ask(questions).await) {
        match found {
            Ok(Some(hit)) => case.set_targets(&hit.values, hit.table)?,
            Ok(None) => {}
            Err(Untold::Unconfirmed(why)) => case.doubt = Some(Unavailable(why)),
            Err(Untold::Unavailable(why)) => return Err(Unavailable(why)),
        }
    }
    Ok(())
}

/// Step 2.
async fn ask_mailboxes(cases: &mut [Case<'_>]) -> Result<(), Unavailable> {
    let mut wanting: Vec<_> = cases.iter_mut().filter(|case| case.needs_mailbox()).collect();
    let questions = wanting.iter().map(|case| Question::new(&case.domain.mailboxes, case.keys())).collect();
    for (case, found) in wanting.iter_mut().zip(ask(questions).await) {
        match (found?, &case.domain.mailboxes) {
            (Some(hit), _) => case.set_mailbox(hit.key),
            (None, None) => case.set_mailbox(UNTAGGED),
            (None, Some(_)) => case.doubt.take().map_or(Ok(()), Err)?,
        }
    }
    Ok(())
}

/// Step 3.
async fn ask_domain_aliases(cases: &mut [Case<'_>]) -> Result<(), Unavailable> {
    let mut wanting: Vec<_> = cases.iter_mut().filter(|case| matches!(case.state, State::Unknown)).collect();
    let key = |case: &Case<'_>| vec![format!("@{}", fold(&case.domain.name))];
    let questions = wanting.iter().map(|case| Question::new(&case.domain.aliases, key(case))).collect();
    for (case, found) in wanting.iter_mut().zip(ask(questions).await) {
        if let Some(hit) = found? {
            case.set_targets(&hit.values, hit.table)?;
        }
    }
    Ok(())
}

/// Keys for one table, of which the first that is there counts.
struct Question<'a> {
    table: Option<&'a dyn Table>,
    keys: Vec<String>,
}

/// The key that was there, by its place in the question, and what it has.
struct Hit<'a> {
    table: &'a str,
    key: usize,
    values: Vec<String>,
}

impl<'a> Question<'a> {
    fn new(table: &'a Option<Arc<dyn Table>>, keys: Vec<String>) -> Self {
        Question { table: table.as_deref(), keys }
    }

    /// The first key that was there. One that the table cannot speak for hides those behind it.
    fn decide(&self, answers: Vec<Answer>) -> Result<Option<Hit<'a>>, Untold> {
        let Some(table) = self.table.map(Table::name) else { return Ok(None) };
        if answers.len() != self.keys.len() {
            return Err(Untold::Unavailable(format!("table '{table}' left a question without an answer")));
        }
        let mut unconfirmed = None;
        for (key, answer) in answers.into_iter().enumerate() {
            match answer {
                Answer::Found(values) if unconfirmed.is_none() => return Ok(Some(Hit { table, key, values })),
                // What comes first hides what comes behind it, if it is there by now.
                Answer::Found(_) => return Err(Untold::Unavailable(unconfirmed.unwrap_or_default())),
                Answer::NotFound => {}
                Answer::Unconfirmed(why) => unconfirmed = Some(why),
                Answer::Unavailable(why) => return Err(Untold::Unavailable(why)),
            }
        }
        unconfirmed.map_or(Ok(None), |why| Err(Untold::Unconfirmed(why)))
    }
}

/// Puts the questions, those for one table in one lookup; the results are in their order.
async fn ask(questions: Vec<Question<'_>>) -> Vec<Result<Option<Hit<'_>>, Untold>> {
    let mut answers: Vec<Vec<Answer>> = questions.iter().map(|_| Vec::new()).collect();
    let mut open: Vec<usize> = (0..questions.len()).filter(|&place| questions[place].table.is_some()).collect();
    while let Some(table) = open.first().and_then(|&place| questions[place].table) {
        let (together, others): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|&place| questions[place].table.is_some_and(|other| is_same(table, other)));
        let keys: Vec<&str> = together.iter().flat_map(|&place| &questions[place].keys).map(String::as_str).collect();
        let mut given = table.lookup(&keys).await.into_iter();
        for place in together {
            answers[place] = given.by_ref().take(questions[place].keys.len()).collect();
        }
        open = others;
    }
    questions.iter().zip(answers).map(|(question, answers)| question.decide(answers)).collect()
}

fn is_same(one: &dyn Table, other: &dyn Table) -> bool {
    std::ptr::addr_eq(one, other)
}

/// The address, which is of this domain, as tables have it.
fn folded(address: &Address, domain: &Domain) -> Address {
    // Folding may make a name too long or change nothing that matters; then it stays.
    Address::new(&fold(&address.mailbox_name()), &domain.name).unwrap_or_else(|_| address.clone())
}

/// Whether a text can be a host and a port. What it is in truth shows where it is used; this keeps out what would be
/// taken for something else there.
fn is_host(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || ".-_:[]".contains(c))
}

fn is_postmaster(address: &Address) -> bool {
    address.local().eq_ignore_ascii_case("postmaster")
}

fn without_tag(address: &Address, delimiter: char) -> Option<Address> {
    let name = address.mailbox_name();
    let (name, _) = name.split_once(delimiter)?;
    Address::new(name, address.domain()).ok()
}
