//! Chooses the queue and the destination of a message, by the rules of the configuration.
//!
//! | rule | precedence | needs |
//! |---|---|---|
//! | mailbox on this host: queue `local` | first | the envelope; the directory, if tables name domains |
//! | a content rule, by a field before the trace | second | the message's header, read from the spool |
//! | a header field | third | the message's header, read from the spool |
//! | the sender | fourth | the envelope |
//! | a table of senders | fifth | the table; if it fails, the next rule applies |
//! | the client's address | sixth | the envelope |
//! | the recipient's domain | seventh | the envelope |
//! | none: queue `standard` | last | the envelope |
//!
//! A destination is a recipient's domain; or `host!domain` if the directory names the host of the
//! mailbox; or `transport>next hop!domain` if a route by address or sender decides; or `?!domain` if
//! the directory or the table of a route does not answer: each attempt there asks it again.
//! The scheduler classifies by the envelope alone; a separate thread does the rest.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use lookup::{LookupAnswer, Table};
use mail::{Address, Envelope, SenderRewriter, Timestamp};
use queue::{AdmittedMessage, DestinationId, PendingRecipient, QueueNumber};
use spool::{LiveMessage, RecipientState};

use super::Queues;
use route::{DomainPattern, RouteKey};

use crate::message_route::{MessageRoutes, RoutedRecipient};
use crate::queue_rules::{HeaderRule, SenderRule};
use mail::Network;

/// Replaces the host of a mailbox whose host the directory does not tell. No real host has this
/// name.
pub(super) const UNKNOWN_HOST: &str = "?";

/// Stands for all domains in the destination of the content filter, which gets a message once for all
/// of its recipients.
const CONTENT_FILTER_DOMAIN: &str = "content-filter";

/// The rules that choose queues and destinations.
pub struct ClassifierRules {
    /// Queues that content rules choose, by name; before all header fields.
    pub chosen: Vec<(Box<str>, QueueNumber)>,
    /// Queues by header field; the first match wins.
    pub headers: Vec<(HeaderRule, QueueNumber)>,
    /// Queues by sender; the first match wins.
    pub senders: Vec<(SenderRule, QueueNumber)>,
    /// Queues by table of senders; the first table that has the sender wins.
    pub sender_tables: Vec<(Arc<dyn Table>, QueueNumber)>,
    /// Queues by client address; the first match wins.
    pub clients: Vec<(Network, QueueNumber)>,
    /// Queues by recipient domain; the first match wins.
    pub domains: Vec<(DomainPattern, QueueNumber)>,
    /// Domains with mailboxes on this host, and their queue.
    pub local: (HashSet<Box<str>>, QueueNumber),
    /// The queue when no rule matches.
    pub default_queue: QueueNumber,
    /// Our domains that the configuration names.
    pub configured_domains: HashSet<Box<str>>,
    /// Whether tables name more of our domains.
    pub has_domain_tables: bool,
    /// Domains whose mailboxes are spread over several hosts.
    pub shared_domains: Vec<DomainPattern>,
    /// Senders whose messages go out one recipient at a time, with the recipient in the return path
    /// (VERP).
    pub verp_senders: HashSet<Box<str>>,
    /// Rewrites the senders of forwarded mail; None: they stay.
    pub sender_rewriter: Option<Arc<dyn SenderRewriter>>,
    /// Routes by more than the recipient's domain.
    pub routes: MessageRoutes,
    /// The content filter, to which mail goes first.
    pub content_filter: Option<RouteKey>,
    /// Checks may send messages to another content filter, by a field before the trace.
    pub has_chosen_filters: bool,
}

impl ClassifierRules {
    /// Rules without any entry.
    #[cfg(test)]
    pub(super) fn plain() -> Self {
        ClassifierRules {
            chosen: Vec::new(),
            headers: Vec::new(),
            senders: Vec::new(),
            sender_tables: Vec::new(),
            clients: Vec::new(),
            domains: Vec::new(),
            local: (HashSet::new(), QueueNumber(0)),
            default_queue: QueueNumber(0),
            configured_domains: HashSet::new(),
            has_domain_tables: false,
            shared_domains: Vec::new(),
            verp_senders: HashSet::new(),
            sender_rewriter: None,
            routes: MessageRoutes::default(),
            content_filter: None,
            has_chosen_filters: false,
        }
    }

    /// Whether only the directory knows where the domain's mailboxes are: they are on several
    /// hosts, or a table may name the domain.
    pub fn needs_directory(&self, domain: &str) -> bool {
        self.has_domain_tables && !self.configured_domains.contains(domain)
            || self.shared_domains.iter().any(|pattern| pattern.matches(domain))
    }

    /// Whether [`ClassifierRules::needs_directory`] gives the same result for every domain, as far
    /// as the rules show.
    pub(super) fn has_same_lookups(&self, others: &ClassifierRules) -> bool {
        self.shared_domains == others.shared_domains
            && self.has_domain_tables == others.has_domain_tables
            && self.routes.is_same(&others.routes)
            && self.content_filter == others.content_filter
            && (!self.has_domain_tables || self.configured_domains == others.configured_domains)
    }

    /// The queue of a sender, by the configured lists.
    pub fn by_sender(&self, sender: &Address) -> Option<&(SenderRule, QueueNumber)> {
        self.senders.iter().find(|(rule, _)| rule.matches(sender))
    }

    /// The queue of a client address.
    pub fn by_client(&self, client: IpAddr) -> Option<&(Network, QueueNumber)> {
        self.clients.iter().find(|(network, _)| network.contains(client))
    }

    /// The queues of these senders, by the first table that has each; None also if an earlier table
    /// fails. Each table gets at most one query, for the senders that no earlier table had.
    pub async fn by_sender_tables(&self, senders: &[&Address]) -> Vec<Option<&(Arc<dyn Table>, QueueNumber)>> {
        // A sender that was not in the table before an outage is taken as absent.
        let is_none = |answer: &&LookupAnswer| matches!(answer, LookupAnswer::NotFound | LookupAnswer::Unconfirmed(_));
        let mut queues = vec![None; senders.len()];
        let mut unresolved: Vec<usize> = (0..senders.len()).collect();
        for named in &self.sender_tables {
            if unresolved.is_empty() {
                break;
            }
            let keys: Vec<[String; 2]> = unresolved.iter().map(|&index| sender_keys(senders[index])).collect();
            let keys: Vec<&str> = keys.iter().flatten().map(String::as_str).collect();
            let answers = named.0.lookup(&keys).await;
            let mut answers = answers.chunks(2);
            unresolved.retain(|&index| {
                match answers.next().and_then(|pair| pair.iter().find(|answer| !is_none(answer))) {
                    None => true,
                    Some(LookupAnswer::Found(_)) => {
                        queues[index] = Some(named);
                        false
                    }
                    Some(_) => false,
                }
            });
        }
        queues
    }

    /// The content filter, if the message has to go there first.
    fn filter_of(&self, envelope: &Envelope) -> Option<&RouteKey> {
        self.content_filter.as_ref().filter(|_| envelope.content_filter)
    }

    /// Whether a check may have chosen a content filter, which the message's header tells.
    pub(super) fn may_have_chosen_filter(&self, envelope: &Envelope) -> bool {
        self.has_chosen_filters && envelope.content_filter
    }

    /// Whether the sender's messages go out one recipient at a time.
    pub(super) fn is_verp(&self, sender: Option<&Address>) -> bool {
        !self.verp_senders.is_empty()
            && sender.is_some_and(|sender| self.verp_senders.contains(&*sender.as_str().to_lowercase()))
    }
}

/// A message with what its envelope does not tell.
pub(crate) struct ClassifiedMessage {
    pub(super) live: LiveMessage,
    /// By a header field or a table of senders.
    pub(super) queue: Option<QueueNumber>,
    /// By ordinal: where those go whose domain does not say it.
    pub(super) places: HashMap<u32, RecipientPlace>,
    /// All go to a content filter that a check chose, once for all recipients.
    pub(super) is_for_chosen_filter: bool,
}

/// Where a recipient's mail goes, as the directory or a route by address or sender says.
#[derive(Clone)]
pub(super) enum RecipientPlace {
    /// To a mailbox on this host.
    Here,
    /// To the host that stores the mailbox.
    Host(Box<str>),
    /// By a route.
    Route {
        key: RouteKey,
        /// To a mailbox on this host.
        is_maildir: bool,
    },
}

impl ClassifiedMessage {
    /// A message whose envelope is enough.
    pub(crate) fn by_envelope(live: LiveMessage) -> Self {
        ClassifiedMessage { live, queue: None, places: HashMap::new(), is_for_chosen_filter: false }
    }
}

/// Classifies by the envelope alone.
#[derive(Clone)]
pub(crate) struct Classifier(Arc<ClassifierRules>);

impl Classifier {
    pub(crate) fn new(rules: Arc<ClassifierRules>) -> Self {
        Classifier(rules)
    }

    /// The rules in use.
    pub(crate) fn rules(&self) -> &Arc<ClassifierRules> {
        &self.0
    }

    /// Whether the envelope of a message is enough.
    pub(crate) fn needs_only_envelope(&self, live: &LiveMessage) -> bool {
        let rules = &self.0;
        if rules.may_have_chosen_filter(&live.envelope) {
            return false;
        }
        if rules.filter_of(&live.envelope).is_some() {
            return true;
        }
        let sender_is_open = |sender: &Address| !rules.sender_tables.is_empty() && rules.by_sender(sender).is_none();
        let is_open = |recipient: &mail::Recipient| rules.needs_directory(recipient.address.domain());
        rules.chosen.is_empty()
            && rules.headers.is_empty()
            && !live.envelope.sender.as_ref().is_some_and(sender_is_open)
            && !routed_recipients(&live.envelope).any(|recipient| rules.routes.may_match(recipient))
            && ((rules.shared_domains.is_empty() && !rules.has_domain_tables)
                || !live.envelope.recipients.iter().any(is_open))
    }

    /// Adds a message to the queues. Recipients that were never tried are not due before
    /// `not_before`.
    pub(crate) fn enqueue(
        &self,
        queues: &mut Queues,
        classified: &ClassifiedMessage,
        now: Timestamp,
        not_before: Timestamp,
    ) {
        let ClassifiedMessage { live, places, is_for_chosen_filter, .. } = classified;
        let LiveMessage { id, envelope, states, recovered } = live;
        let by_sender = || Some(self.0.by_sender(envelope.sender.as_ref()?)?.1);
        let by_client = || Some(self.0.by_client(envelope.client.address?)?.1);
        let by_message = classified.queue.or_else(by_sender).or_else(by_client);
        let filter = self.0.filter_of(envelope).filter(|_| !is_for_chosen_filter);
        let filter = filter.map(|key| RecipientPlace::Route { key: key.clone(), is_maildir: false });
        let mut recipients = Vec::with_capacity(states.len());
        for (ordinal, state) in (0..).zip(states) {
            let (attempts, due, held) = match *state {
                RecipientState::Waiting { attempts: 0, until } => (0, until.max(not_before), false),
                RecipientState::Waiting { attempts, until } => (attempts, until, false),
                RecipientState::Held { attempts } => (attempts, now, true),
                RecipientState::Delivered
                | RecipientState::Failed
                | RecipientState::SetAside
                | RecipientState::Withdrawn => continue,
            };
            let domain = envelope.recipients[ordinal as usize].address.domain();
            let place = filter.as_ref().or_else(|| places.get(&ordinal));
            let domain = if filter.is_some() || *is_for_chosen_filter { CONTENT_FILTER_DOMAIN } else { domain };
            let destination = self.destination(queues, by_message, place, domain);
            recipients.push(PendingRecipient { ordinal, destination, attempts, due, held });
        }
        let admission = AdmittedMessage {
            id: *id,
            sender: envelope.sender.as_ref().map_or(0, fingerprint),
            accepted_at: envelope.accepted_at,
            recovered: *recovered,
            separate_attempts: self.0.is_verp(envelope.sender.as_ref()),
            recipients,
        };
        queues.admit(now, &admission);
    }

    fn destination(
        &self,
        queues: &mut Queues,
        by_message: Option<QueueNumber>,
        place: Option<&RecipientPlace>,
        domain: &str,
    ) -> DestinationId {
        let (local, local_queue) = &self.0.local;
        let is_here = match place {
            Some(RecipientPlace::Here) => true,
            Some(RecipientPlace::Host(_)) => false,
            Some(RecipientPlace::Route { is_maildir, .. }) => *is_maildir,
            None => local.contains(domain),
        };
        let queue = if is_here { *local_queue } else { by_message.unwrap_or_else(|| self.by_domain(domain)) };
        match place {
            Some(RecipientPlace::Host(host)) => queues.intern_destination(queue, &format!("{host}!{domain}")),
            Some(RecipientPlace::Route { key, .. }) => queues.intern_destination(queue, &key.destination(domain)),
            Some(RecipientPlace::Here) | None => queues.intern_destination(queue, domain),
        }
    }

    fn by_domain(&self, domain: &str) -> QueueNumber {
        let named = self.0.domains.iter().find(|(pattern, _)| pattern.matches(domain)).map(|(_, queue)| *queue);
        named.unwrap_or(self.0.default_queue)
    }
}

/// The recipients of a message, for its routes.
fn routed_recipients(envelope: &Envelope) -> impl Iterator<Item = RoutedRecipient<'_>> {
    let sender = envelope.sender.as_ref();
    envelope.recipients.iter().map(move |recipient| RoutedRecipient { sender, address: &recipient.address })
}

/// A table of senders may have the address or the domain.
fn sender_keys(sender: &Address) -> [String; 2] {
    [sender.as_str().to_owned(), format!("@{}", sender.domain())]
}

fn fingerprint(sender: &Address) -> u64 {
    let mut hasher = DefaultHasher::new();
    sender.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use lookup::LookupFuture;

    use super::*;

    /// Has some keys, and records its queries.
    struct ScriptedTable(&'static [&'static str], Mutex<Vec<String>>);

    impl Table for ScriptedTable {
        fn name(&self) -> &str {
            "script"
        }

        fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
            self.1.lock().expect("no test panicked with it").push(keys.join(" "));
            let answer = |key: &&str| match self.0.contains(key) {
                true => LookupAnswer::Found(Vec::new()),
                false if key.starts_with("down@") => LookupAnswer::Unavailable("it is down".into()),
                false if key.starts_with("gone@") => LookupAnswer::Unconfirmed("it is down".into()),
                false => LookupAnswer::NotFound,
            };
            Box::pin(std::future::ready(keys.iter().map(answer).collect()))
        }
    }

    /// Regression: each message used to query the tables by itself, one after the other.
    #[test]
    fn sender_tables_are_queried_once_and_in_order() {
        let script = |keys| Arc::new(ScriptedTable(keys, Mutex::default()));
        let (first, second) = (script(&["a@x.org", "@y.org"]), script(&["b@x.org", "down@x.org", "gone@x.org"]));
        let sender_tables: Vec<(Arc<dyn Table>, _)> =
            vec![(first.clone(), QueueNumber(1)), (second.clone(), QueueNumber(2))];
        let rules = ClassifierRules { sender_tables, ..ClassifierRules::plain() };
        let senders = ["a@x.org", "b@x.org", "c@x.org", "d@y.org", "down@x.org", "gone@x.org"];
        let senders = senders.map(|sender| sender.parse::<Address>().expect("an address"));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let found = runtime.block_on(rules.by_sender_tables(&senders.each_ref()));
        let queues: Vec<_> = found.into_iter().map(|found| found.map(|(_, queue)| queue.0)).collect();
        assert_eq!(queues, [Some(1), Some(2), None, Some(1), None, Some(2)]);
        let asked = |table: &ScriptedTable| table.1.lock().expect("no test panicked with it").clone();
        let all = "a@x.org @x.org b@x.org @x.org c@x.org @x.org d@y.org @y.org down@x.org @x.org gone@x.org @x.org";
        assert_eq!(asked(&first), [all]);
        assert_eq!(asked(&second), ["b@x.org @x.org c@x.org @x.org gone@x.org @x.org"]);
    }
}
