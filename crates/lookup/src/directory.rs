//! Recipient lookup: which addresses are local, and who finally gets their mail.
//!
//! Addresses are resolved in rounds. A round looks up all open addresses in the tables of their
//! domains, asking each table at most once per step with all keys together. Targets of aliases are
//! the open addresses of the next round.
//!
//! | step                                   | keys for `Bob+List@Example.org`, folded to lower case        |
//! |----------------------------------------|--------------------------------------------------------------|
//! | 1. alias of the address                | `bob+list@example.org`, then `bob@example.org`               |
//! | 2. mailbox, if 1 found nothing         | `bob+list@example.org`, then `bob@example.org`               |
//! | 3. alias of the domain, if 2 found nothing | `@example.org`                                           |
//! | 4. mailbox of the domain, if 3 found nothing | `@example.org`, only for a domain with a wildcard mailbox |
//! | 5. the domain's catch-all              |                                                              |
//! | 6. the postmaster's mailbox            | only for `postmaster`, which always exists (RFC 5321 section 4.5.1) |
//!
//! An alias that names itself keeps its own mailbox. If a needed answer is Unavailable the whole
//! address is Unavailable, so an outage never makes an address unknown. An unconfirmed NotFound for
//! the alias is enough if the address is a mailbox. Alias loops with at least one recipient are
//! resolved, opening each address once; loops without one end at the depth limit. Unknown local
//! targets are dropped; if none remain the address is Unknown.
//!
//! Before all that, an address that we made of the sender of a forwarded message (SRS) stands for that
//! sender.
//!
//! A domain is local if the configuration or a table of domain names lists it. A domain's table of
//! hosts, if any, says which host stores a mailbox. Addresses in relayed domains keep their
//! spelling: folding and tag removal only affect table keys.

mod domains;

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use mail::{Address, ReturnRefusal, SenderRewriter};

use domains::{DomainLookup, LocalDomains, to_a_labels};
pub use domains::{LocalDomainTable, other_idn_form};

use crate::{LookupAnswer, Table, fold_key};

/// A local domain.
#[derive(Clone)]
pub struct LocalDomain {
    /// The domain's name. Unicode and A-label forms (RFC 5890) are equal; table keys and mailbox
    /// names use the form given here.
    pub name: Box<str>,
    /// Mailboxes, keyed by address. None: every address exists, and tags are removed so that they
    /// create no mailboxes.
    pub mailboxes: Option<Arc<dyn Table>>,
    /// Whether `@domain` in the table of mailboxes stands for all addresses that nothing else is known of.
    /// False saves a lookup for each unknown address.
    pub wildcard_mailbox: bool,
    /// Aliases, keyed by address, or by `@domain` for addresses that are neither alias nor mailbox.
    pub aliases: Option<Arc<dyn Table>>,
    /// The recipient for unknown addresses.
    pub catch_all: Option<Address>,
    /// The host that stores a mailbox, keyed by address: `host`, `host:port`, or the same with an
    /// address in brackets. None, or no entry: this host.
    pub hosts: Option<Arc<dyn Table>>,
    /// Separates a mailbox name from its tag: `+` in `bob+list`.
    pub delimiter: Option<char>,
    /// The transport for the domain's mailboxes, by its name in the configuration.
    pub transport: Box<str>,
    /// Whether the transport makes final delivery. If not, the local part is for the next host to
    /// interpret and stays unchanged (RFC 5321 section 2.4).
    pub is_final: bool,
}

/// Limits of alias expansion.
#[derive(Clone, Copy, Debug)]
pub struct AliasLimits {
    /// Nested aliases; beyond it, [`AddressResolution::TooDeep`].
    pub depth_max: usize,
    /// Recipients of one address; beyond it, [`AddressResolution::TooMany`].
    pub addresses_max: usize,
}

impl Default for AliasLimits {
    fn default() -> Self {
        AliasLimits { depth_max: 10, addresses_max: 1000 }
    }
}

/// All local domains.
pub struct RecipientDirectory {
    domains: LocalDomains,
    limits: AliasLimits,
    hostname: Box<str>,
    /// Finds the senders of forwarded mail; None: no sender is rewritten.
    sender_rewriter: Option<Arc<dyn SenderRewriter>>,
}

/// The result of resolving an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressResolution {
    /// A local address with these recipients: at least one, each once.
    Local(Vec<ResolvedRecipient>),
    /// The domain is not local.
    Remote(Address),
    /// The rewritten sender of mail that we forwarded (SRS), with the recipients of a notice to it: at
    /// least one. Only notices may go there.
    Returned(Vec<ResolvedRecipient>),
    /// It looks like such a sender, but leads nowhere.
    NotReturned(ReturnRefusal),
    /// The domain is local, but the address has no recipient.
    Unknown,
    /// A table is unavailable. Holds the reason, for the log.
    Unavailable(String),
    /// Too many nested aliases, as in an alias loop without recipients.
    TooDeep,
    /// Too many recipients.
    TooMany,
}

/// A recipient after alias expansion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedRecipient {
    /// The recipient's address: for a local mailbox in lower case and without the tag; otherwise as
    /// given.
    pub address: Address,
    /// The address that was resolved, if it is different.
    pub original: Option<Address>,
    /// Whether it is a mailbox in a local domain.
    pub local: bool,
}

/// Where a mailbox is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MailboxLocation {
    /// On this host.
    ThisHost,
    /// Beyond the next hop: the domain is not local, or its mail is relayed.
    NextHop,
    /// On another host: `host`, `host:port`, or the same with an address in brackets.
    OtherHost(Box<str>),
    /// A table is unavailable. Holds the reason, for the log.
    Unavailable(String),
}

/// A table is unavailable; the reason.
struct TableUnavailable(String);

/// Why a table does not say whether a key exists.
enum TableFailure {
    Unavailable(String),
    /// The key did not exist before the outage.
    Unconfirmed(String),
}

impl From<TableFailure> for TableUnavailable {
    fn from(untold: TableFailure) -> Self {
        let (TableFailure::Unavailable(why) | TableFailure::Unconfirmed(why)) = untold;
        TableUnavailable(why)
    }
}

impl RecipientDirectory {
    /// Creates the directory of these domains. Of two domains with the same name the later one
    /// applies.
    pub fn new(domains: Vec<LocalDomain>, limits: AliasLimits) -> Self {
        RecipientDirectory {
            domains: LocalDomains::new(domains),
            limits,
            hostname: Box::default(),
            sender_rewriter: None,
        }
    }

    /// Adds domains whose names are in tables. Names in the configuration have precedence.
    pub fn with_domain_tables(mut self, tables: Vec<LocalDomainTable>) -> Self {
        self.domains.add_tables(tables);
        self
    }

    /// Sets this host's name, so that mailboxes stored on it are recognized as local.
    pub fn with_hostname(self, hostname: &str) -> Self {
        RecipientDirectory { hostname: fold_key(hostname).into(), ..self }
    }

    /// Resolves the rewritten senders of forwarded mail. These addresses have precedence over tables.
    pub fn with_sender_rewriter(self, sender_rewriter: Option<Arc<dyn SenderRewriter>>) -> Self {
        RecipientDirectory { sender_rewriter, ..self }
    }

    /// The local domain with this name, in lower case as in an [`Address`], as Unicode or A-labels.
    ///
    /// # Errors
    ///
    /// The reason, for the log, if a table of domain names is unavailable.
    pub async fn domain(&self, name: &str) -> Result<Option<Cow<'_, LocalDomain>>, String> {
        let mut domains = DomainLookup::new(&self.domains);
        match domains.look_up(std::iter::once(name)).await {
            Ok(()) => Ok(domains.into_domain(name)),
            Err(TableUnavailable(why)) => Err(why),
        }
    }

    /// The address without its tag (`bob` for `bob+list`), if it has one. None also if the domain
    /// is not local or cannot be looked up.
    pub async fn strip_tag(&self, address: &Address) -> Option<Address> {
        let domain = self.domain(address.domain()).await.ok()??;
        without_tag(address, domain.delimiter?)
    }

    /// Whether the configuration itself names the domain, rather than a table.
    pub fn is_configured_domain(&self, name: &str) -> bool {
        self.domains.configured(name).is_some()
    }

    /// Resolves `address` to its recipients.
    pub async fn resolve(&self, address: &Address) -> AddressResolution {
        match self.sender_rewriter.as_ref().and_then(|rewriter| rewriter.reverse(address)) {
            None => self.resolve_by_tables(address).await,
            Some(Err(refusal)) => AddressResolution::NotReturned(refusal),
            Some(Ok(sender)) => returned(address, self.resolve_by_tables(&sender).await),
        }
    }

    async fn resolve_by_tables(&self, address: &Address) -> AddressResolution {
        self.try_resolve(address).await.unwrap_or_else(|TableUnavailable(why)| AddressResolution::Unavailable(why))
    }

    async fn try_resolve(&self, address: &Address) -> Result<AddressResolution, TableUnavailable> {
        let mut domains = DomainLookup::new(&self.domains);
        domains.look_up(std::iter::once(address.domain())).await?;
        if domains.domain(address.domain()).is_none() {
            return Ok(AddressResolution::Remote(address.clone()));
        }
        let mut recipients = ResolvedRecipients::new(address, canonical(&domains, address));
        let mut open = vec![recipients.canonical.clone()];
        let mut opened = HashSet::new();
        for _ in 0..=self.limits.depth_max {
            let targets = resolve_round(&domains, open, &mut recipients).await?;
            domains.look_up(targets.iter().map(Address::domain)).await?;
            open = split_targets(&domains, targets, &mut recipients, &mut opened);
            if recipients.len() + open.len() > self.limits.addresses_max {
                return Ok(AddressResolution::TooMany);
            }
            if open.is_empty() {
                return Ok(recipients.into_resolution());
            }
        }
        Ok(AddressResolution::TooDeep)
    }

    /// Where each of these mailboxes is stored, in their order. Asks each table of hosts once.
    pub async fn mailbox_locations(&self, mailboxes: &[Address]) -> Vec<MailboxLocation> {
        let mut domains = DomainLookup::new(&self.domains);
        domains.look_up_available(mailboxes.iter().map(Address::domain)).await;
        let query = |mailbox: &Address| match domains.domain(mailbox.domain()) {
            Some(domain) => TableQuery::new(&domain.hosts, vec![folded(mailbox, domain).as_str().to_owned()]),
            None => TableQuery { table: None, keys: Vec::new() },
        };
        let found = run_queries(mailboxes.iter().map(query).collect()).await;
        let is_final = |mailbox: &Address| domains.domain(mailbox.domain()).is_some_and(|domain| domain.is_final);
        let store = |(mailbox, found): (&Address, _)| match domains.error_for(mailbox.domain()) {
            Some(why) => MailboxLocation::Unavailable(why.to_owned()),
            None => match self.mailbox_location(mailbox, found) {
                MailboxLocation::ThisHost if !is_final(mailbox) => MailboxLocation::NextHop,
                store => store,
            },
        };
        mailboxes.iter().zip(found).map(store).collect()
    }

    /// Uses the first host, unless this host is among them and therefore has a copy.
    fn mailbox_location(
        &self,
        mailbox: &Address,
        found: Result<Option<TableHit<'_>>, TableFailure>,
    ) -> MailboxLocation {
        let hit = match found {
            Ok(Some(hit)) => hit,
            Ok(None) => return MailboxLocation::ThisHost,
            Err(TableFailure::Unavailable(why) | TableFailure::Unconfirmed(why)) => {
                return MailboxLocation::Unavailable(why);
            }
        };
        let hosts: Vec<String> = hit.values.iter().map(|value| fold_key(value)).collect();
        let wrong =
            |what: &str| MailboxLocation::Unavailable(format!("table '{}': host of {mailbox}: {what}", hit.table));
        match hosts.iter().find(|host| !is_host(host)) {
            Some(host) => wrong(&format!("invalid host '{host}'")),
            None if hosts.iter().any(|host| self.is_this_host(host)) => MailboxLocation::ThisHost,
            None => {
                hosts.first().map_or_else(|| wrong("no value"), |host| MailboxLocation::OtherHost(host.as_str().into()))
            }
        }
    }

    /// Ignores the port: relaying to this host would loop.
    fn is_this_host(&self, host: &str) -> bool {
        let name = host.split_once(':').map_or(host, |(name, _)| name);
        !self.hostname.is_empty() && name.trim_end_matches('.') == &*self.hostname
    }
}

/// What the rewritten sender `address` resolves to: the same as its original.
fn returned(address: &Address, original: AddressResolution) -> AddressResolution {
    let recipient =
        |address_found, local| ResolvedRecipient { address: address_found, original: Some(address.clone()), local };
    match original {
        AddressResolution::Local(found) => {
            let found = found.into_iter().map(|one| recipient(one.address, one.local));
            AddressResolution::Returned(found.collect())
        }
        AddressResolution::Remote(sender) => AddressResolution::Returned(vec![recipient(sender, false)]),
        other => other,
    }
}

/// Looks up all open addresses. Adds mailboxes to `recipients` and returns the targets of aliases.
async fn resolve_round(
    domains: &DomainLookup<'_>,
    open: Vec<Address>,
    recipients: &mut ResolvedRecipients<'_>,
) -> Result<Vec<Address>, TableUnavailable> {
    let case = |address: Address| Some(AddressLookup::new(domains.domain(address.domain())?, address));
    let mut cases: Vec<AddressLookup> = open.into_iter().filter_map(case).collect();
    ask_aliases(&mut cases).await?;
    ask_mailboxes(&mut cases).await?;
    ask_domain_aliases(&mut cases).await?;
    ask_wildcard_mailboxes(&mut cases).await?;
    let mut targets = Vec::new();
    for case in cases {
        let (mailbox, named) = case.finish();
        mailbox.into_iter().for_each(|address| recipients.insert(address, true));
        targets.extend(named);
    }
    Ok(targets)
}

/// Adds remote targets to `recipients` and returns the local ones, each once. An address in
/// `opened` adds no recipients, so it is returned again only while there are no recipients at all.
/// This tells an alias loop from unknown addresses.
fn split_targets(
    domains: &DomainLookup<'_>,
    targets: Vec<Address>,
    recipients: &mut ResolvedRecipients<'_>,
    opened: &mut HashSet<Address>,
) -> Vec<Address> {
    if targets.is_empty() {
        return Vec::new();
    }
    opened.insert(recipients.canonical.clone());
    let mut seen = HashSet::new();
    let (ours, elsewhere): (Vec<_>, Vec<_>) =
        targets.into_iter().partition(|target| domains.domain(target.domain()).is_some());
    elsewhere.into_iter().for_each(|address| recipients.insert(address, false));
    let mut is_open = |address: &Address| match opened.insert(address.clone()) {
        true => true,
        false => recipients.len() == 0,
    };
    let ours = ours.iter().map(|target| canonical(domains, target)).filter(|address| seen.insert(address.clone()));
    ours.filter(|address| is_open(address)).collect()
}

/// The canonical form of an address: folded if the domain is local, otherwise unchanged, because
/// only the next host knows whether case matters.
fn canonical(domains: &DomainLookup<'_>, address: &Address) -> Address {
    match domains.domain(address.domain()) {
        Some(domain) if domain.is_final => folded(address, domain),
        _ => address.clone(),
    }
}

/// The recipients in the order in which they were found.
struct ResolvedRecipients<'a> {
    requested: &'a Address,
    /// The canonical form of `requested`, so that a difference in case does not count as another
    /// address.
    canonical: Address,
    recipients: Vec<ResolvedRecipient>,
    seen: HashSet<Address>,
}

impl<'a> ResolvedRecipients<'a> {
    fn new(requested: &'a Address, canonical: Address) -> Self {
        ResolvedRecipients { requested, canonical, recipients: Vec::new(), seen: HashSet::new() }
    }

    fn len(&self) -> usize {
        self.recipients.len()
    }

    fn insert(&mut self, address: Address, local: bool) {
        if self.seen.insert(address.clone()) {
            let original = (address != self.canonical).then(|| self.requested.clone());
            self.recipients.push(ResolvedRecipient { address, original, local });
        }
    }

    fn into_resolution(mut self) -> AddressResolution {
        if self.recipients.is_empty() && is_postmaster(&self.canonical) {
            self.insert(self.canonical.clone(), true);
        }
        if self.recipients.is_empty() { AddressResolution::Unknown } else { AddressResolution::Local(self.recipients) }
    }
}

/// The index of the address without its tag in [`AddressLookup::addresses`].
const UNTAGGED: usize = 1;

/// An address during one round.
struct AddressLookup<'a> {
    domain: &'a LocalDomain,
    address: Address,
    /// The address without its tag, if it has one.
    untagged: Option<Address>,
    state: AddressState,
    /// Set if the alias table only gave an unconfirmed NotFound; the reason.
    unconfirmed: Option<TableUnavailable>,
}

enum AddressState {
    /// Neither alias nor mailbox so far.
    Unknown,
    /// An alias with these targets; `names_itself` if its own mailbox is one of them.
    Alias { targets: Vec<Address>, names_itself: bool },
    /// A mailbox, and the other targets of its alias.
    Mailbox { mailbox: Address, targets: Vec<Address> },
}

impl<'a> AddressLookup<'a> {
    fn new(domain: &'a LocalDomain, address: Address) -> Self {
        let untagged = domain.delimiter.and_then(|delimiter| without_tag(&address, delimiter));
        AddressLookup { domain, address, untagged, state: AddressState::Unknown, unconfirmed: None }
    }

    fn addresses(&self) -> impl Iterator<Item = &Address> {
        std::iter::once(&self.address).chain(&self.untagged)
    }

    fn keys(&self) -> Vec<String> {
        self.addresses().map(|address| folded(address, self.domain).as_str().to_owned()).collect()
    }

    /// The key for all addresses of the domain.
    fn domain_key(&self) -> Vec<String> {
        vec![format!("@{}", fold_key(&self.domain.name))]
    }

    /// Whether an alias target is the address itself.
    fn is_itself(&self, target: &Address) -> bool {
        let here = |address: &Address| folded(address, self.domain);
        to_a_labels(target.domain()) == to_a_labels(self.address.domain()) && here(target) == here(&self.address)
    }

    fn needs_mailbox(&self) -> bool {
        matches!(self.state, AddressState::Unknown | AddressState::Alias { names_itself: true, .. })
    }

    fn set_targets(&mut self, values: &[String], table: &str) -> Result<(), TableUnavailable> {
        if values.is_empty() {
            return Err(TableUnavailable(format!("table '{table}': the alias for {} has no targets", self.address)));
        }
        let mut targets = Vec::with_capacity(values.len());
        for value in values {
            let target = value.parse::<Address>().map_err(|error| {
                TableUnavailable(format!("table '{table}': the alias for {} names '{value}': {error}", self.address))
            })?;
            targets.push(target);
        }
        self.set_addresses(targets);
        Ok(())
    }

    fn set_addresses(&mut self, mut targets: Vec<Address>) {
        let before = targets.len();
        targets.retain(|target| !self.is_itself(target));
        self.state = AddressState::Alias { names_itself: targets.len() < before, targets };
    }

    /// Sets the mailbox to the address at this index of [`AddressLookup::addresses`], or to the
    /// unchanged address if the domain is relayed.
    fn set_mailbox(&mut self, place: usize) {
        let mailbox = match &self.untagged {
            Some(untagged) if place == UNTAGGED && self.domain.is_final => untagged.clone(),
            _ => self.address.clone(),
        };
        let targets = match std::mem::replace(&mut self.state, AddressState::Unknown) {
            AddressState::Alias { targets, .. } => targets,
            AddressState::Unknown | AddressState::Mailbox { .. } => Vec::new(),
        };
        self.state = AddressState::Mailbox { mailbox, targets };
    }

    /// Applies the catch-all and the postmaster rule. Returns the mailbox, if any, and the targets.
    fn finish(mut self) -> (Option<Address>, Vec<Address>) {
        if let (AddressState::Unknown, Some(target)) = (&self.state, &self.domain.catch_all) {
            self.set_addresses(vec![target.clone()]);
        }
        match self.state {
            AddressState::Mailbox { mailbox, targets } => (Some(mailbox), targets),
            AddressState::Alias { targets, .. } if !targets.is_empty() => (None, targets),
            _ => (Some(self.address).filter(is_postmaster), Vec::new()),
        }
    }
}

/// Step 1: aliases.
async fn ask_aliases(cases: &mut [AddressLookup<'_>]) -> Result<(), TableUnavailable> {
    let queries = cases.iter().map(|case| TableQuery::new(&case.domain.aliases, case.keys())).collect();
    for (case, found) in cases.iter_mut().zip(run_queries(queries).await) {
        match found {
            Ok(Some(hit)) => case.set_targets(&hit.values, hit.table)?,
            Ok(None) => {}
            Err(TableFailure::Unconfirmed(why)) => case.unconfirmed = Some(TableUnavailable(why)),
            Err(TableFailure::Unavailable(why)) => return Err(TableUnavailable(why)),
        }
    }
    Ok(())
}

/// Step 2: mailboxes.
async fn ask_mailboxes(cases: &mut [AddressLookup<'_>]) -> Result<(), TableUnavailable> {
    let mut wanting: Vec<_> = cases.iter_mut().filter(|case| case.needs_mailbox()).collect();
    let queries = wanting.iter().map(|case| TableQuery::new(&case.domain.mailboxes, case.keys())).collect();
    for (case, found) in wanting.iter_mut().zip(run_queries(queries).await) {
        match (found?, &case.domain.mailboxes) {
            (Some(hit), _) => case.set_mailbox(hit.key),
            (None, None) => case.set_mailbox(UNTAGGED),
            (None, Some(_)) => case.unconfirmed.take().map_or(Ok(()), Err)?,
        }
    }
    Ok(())
}

/// Step 3: domain aliases.
async fn ask_domain_aliases(cases: &mut [AddressLookup<'_>]) -> Result<(), TableUnavailable> {
    let mut wanting: Vec<_> = cases.iter_mut().filter(|case| matches!(case.state, AddressState::Unknown)).collect();
    let queries = wanting.iter().map(|case| TableQuery::new(&case.domain.aliases, case.domain_key())).collect();
    for (case, found) in wanting.iter_mut().zip(run_queries(queries).await) {
        if let Some(hit) = found? {
            case.set_targets(&hit.values, hit.table)?;
        }
    }
    Ok(())
}

/// Step 4: wildcard mailboxes.
async fn ask_wildcard_mailboxes(cases: &mut [AddressLookup<'_>]) -> Result<(), TableUnavailable> {
    let mut wanting: Vec<_> =
        cases.iter_mut().filter(|case| case.domain.wildcard_mailbox && case.needs_mailbox()).collect();
    let queries = wanting.iter().map(|case| TableQuery::new(&case.domain.mailboxes, case.domain_key())).collect();
    for (case, found) in wanting.iter_mut().zip(run_queries(queries).await) {
        if found?.is_some() {
            case.set_mailbox(UNTAGGED);
        }
    }
    Ok(())
}

/// Keys for one table, in order of precedence.
struct TableQuery<'a> {
    table: Option<&'a dyn Table>,
    keys: Vec<String>,
}

/// The first key found, by its index, and its values.
struct TableHit<'a> {
    table: &'a str,
    key: usize,
    values: Vec<String>,
}

impl<'a> TableQuery<'a> {
    fn new(table: &'a Option<Arc<dyn Table>>, keys: Vec<String>) -> Self {
        TableQuery { table: table.as_deref(), keys }
    }

    /// The first key that exists. An unavailable key hides those after it.
    fn first_hit(&self, answers: Vec<LookupAnswer>) -> Result<Option<TableHit<'a>>, TableFailure> {
        let Some(table) = self.table.map(Table::name) else { return Ok(None) };
        if answers.len() != self.keys.len() {
            return Err(TableFailure::Unavailable(format!("table '{table}' returned no answer for a key")));
        }
        let mut unconfirmed = None;
        for (key, answer) in answers.into_iter().enumerate() {
            match answer {
                LookupAnswer::Found(values) if unconfirmed.is_none() => {
                    return Ok(Some(TableHit { table, key, values }));
                }
                // The earlier key may exist by now and would take precedence.
                LookupAnswer::Found(_) => return Err(TableFailure::Unavailable(unconfirmed.unwrap_or_default())),
                LookupAnswer::NotFound => {}
                LookupAnswer::Unconfirmed(why) => unconfirmed = Some(why),
                LookupAnswer::Unavailable(why) => return Err(TableFailure::Unavailable(why)),
            }
        }
        unconfirmed.map_or(Ok(None), |why| Err(TableFailure::Unconfirmed(why)))
    }
}

/// Runs the queries, one lookup per table, and returns the results in order.
async fn run_queries(queries: Vec<TableQuery<'_>>) -> Vec<Result<Option<TableHit<'_>>, TableFailure>> {
    let mut answers: Vec<Vec<LookupAnswer>> = queries.iter().map(|_| Vec::new()).collect();
    let mut open: Vec<usize> = (0..queries.len()).filter(|&place| queries[place].table.is_some()).collect();
    while let Some(table) = open.first().and_then(|&place| queries[place].table) {
        let (together, others): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|&place| queries[place].table.is_some_and(|other| is_same_table(table, other)));
        let keys: Vec<&str> = together.iter().flat_map(|&place| &queries[place].keys).map(String::as_str).collect();
        let mut given = table.lookup(&keys).await.into_iter();
        for place in together {
            answers[place] = given.by_ref().take(queries[place].keys.len()).collect();
        }
        open = others;
    }
    queries.iter().zip(answers).map(|(query, answers)| query.first_hit(answers)).collect()
}

fn is_same_table(one: &dyn Table, other: &dyn Table) -> bool {
    std::ptr::addr_eq(one, other)
}

/// The address as a table key of this domain.
fn folded(address: &Address, domain: &LocalDomain) -> Address {
    // Folding may make the address too long; then it stays unchanged.
    Address::new(&fold_key(&address.unquoted_local_part()), &domain.name).unwrap_or_else(|_| address.clone())
}

/// Whether a text looks like a host with optional port. Full parsing happens where it is used; this
/// rejects text that could be mistaken for something else there.
fn is_host(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || ".-_:[]".contains(c))
}

fn is_postmaster(address: &Address) -> bool {
    address.local_part().eq_ignore_ascii_case("postmaster")
}

fn without_tag(address: &Address, delimiter: char) -> Option<Address> {
    let name = address.unquoted_local_part();
    let (name, _) = name.split_once(delimiter)?;
    Address::new(name, address.domain()).ok()
}
