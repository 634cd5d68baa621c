//! Chooses the queue and the destination of a message, by the rules of the configuration.
//!
//! | rule | precedence | needs |
//! |---|---|---|
//! | mailbox on this host: queue `local` | first | the envelope; the directory, if tables name domains |
//! | a header field | second | the message's header, read from the spool |
//! | the sender | third | the envelope |
//! | a table of senders | fourth | the table; if it fails, the next rule applies |
//! | the client's address | fifth | the envelope |
//! | the recipient's domain | sixth | the envelope |
//! | none: queue `standard` | last | the envelope |
//!
//! A destination is a recipient's domain, or `host!domain` if the directory names the host of the
//! mailbox, or `?!domain` if it should and does not: each attempt there asks the directory again.
//! The scheduler classifies by the envelope alone; a separate thread does the rest.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use lookup::{Answer, Table};
use mail::{Address, Timestamp};
use queue::{Admission, Destination, Pending, QueueNumber};
use spool::{Live, State};

use super::Queues;
use crate::config::{HeaderRule, Network, Pattern, SenderRule};

/// Replaces the host of a mailbox whose host the directory does not tell. No real host has this
/// name.
pub(super) const UNKNOWN_HOST: &str = "?";

/// The rules that choose queues and destinations.
pub struct Rules {
    /// Queues by header field; the first match wins.
    pub headers: Vec<(HeaderRule, QueueNumber)>,
    /// Queues by sender; the first match wins.
    pub senders: Vec<(SenderRule, QueueNumber)>,
    /// Queues by table of senders; the first table that has the sender wins.
    pub sender_tables: Vec<(Arc<dyn Table>, QueueNumber)>,
    /// Queues by client address; the first match wins.
    pub clients: Vec<(Network, QueueNumber)>,
    /// Queues by recipient domain; the first match wins.
    pub domains: Vec<(Pattern, QueueNumber)>,
    /// Domains with mailboxes on this host, and their queue.
    pub local: (HashSet<Box<str>>, QueueNumber),
    /// The queue when no rule matches.
    pub standard: QueueNumber,
    /// Our domains that the configuration names.
    pub configured: HashSet<Box<str>>,
    /// Whether tables name more of our domains.
    pub tabled: bool,
    /// Domains whose mailboxes are spread over several hosts.
    pub shared: Vec<Pattern>,
    /// Senders whose messages go out one recipient at a time, with the recipient in the return path
    /// (VERP).
    pub verp: HashSet<Box<str>>,
}

impl Rules {
    /// Rules without any entry.
    #[cfg(test)]
    pub(super) fn plain() -> Self {
        Rules {
            headers: Vec::new(),
            senders: Vec::new(),
            sender_tables: Vec::new(),
            clients: Vec::new(),
            domains: Vec::new(),
            local: (HashSet::new(), QueueNumber(0)),
            standard: QueueNumber(0),
            configured: HashSet::new(),
            tabled: false,
            shared: Vec::new(),
            verp: HashSet::new(),
        }
    }

    /// Whether only the directory knows where the domain's mailboxes are: they are on several
    /// hosts, or a table may name the domain.
    pub(crate) fn is_open(&self, domain: &str) -> bool {
        self.tabled && !self.configured.contains(domain) || self.shared.iter().any(|pattern| pattern.fits(domain))
    }

    /// Whether [`Rules::is_open`] gives the same result for every domain, as far as the rules show.
    pub(super) fn asks_of_the_same(&self, others: &Rules) -> bool {
        self.shared == others.shared
            && self.tabled == others.tabled
            && (!self.tabled || self.configured == others.configured)
    }

    /// The queue of a sender, by the configured lists.
    pub(crate) fn by_sender(&self, sender: &Address) -> Option<&(SenderRule, QueueNumber)> {
        self.senders.iter().find(|(rule, _)| rule.matches(sender))
    }

    /// The queue of a client address.
    pub(crate) fn by_client(&self, client: IpAddr) -> Option<&(Network, QueueNumber)> {
        self.clients.iter().find(|(network, _)| network.contains(client))
    }

    /// The queues of these senders, by the first table that has each; None also if an earlier table
    /// fails. Each table gets at most one query, for the senders that no earlier table had.
    pub(crate) async fn by_sender_tables(&self, senders: &[&Address]) -> Vec<Option<&(Arc<dyn Table>, QueueNumber)>> {
        // A sender that was not in the table before an outage is taken as absent.
        let is_none = |answer: &&Answer| matches!(answer, Answer::NotFound | Answer::Unconfirmed(_));
        let mut queues = vec![None; senders.len()];
        let mut open: Vec<usize> = (0..senders.len()).collect();
        for named in &self.sender_tables {
            if open.is_empty() {
                break;
            }
            let keys: Vec<[String; 2]> = open.iter().map(|&place| sender_keys(senders[place])).collect();
            let keys: Vec<&str> = keys.iter().flatten().map(String::as_str).collect();
            let answers = named.0.lookup(&keys).await;
            let mut answers = answers.chunks(2);
            open.retain(|&place| match answers.next().and_then(|pair| pair.iter().find(|answer| !is_none(answer))) {
                None => true,
                Some(Answer::Found(_)) => {
                    queues[place] = Some(named);
                    false
                }
                Some(_) => false,
            });
        }
        queues
    }

    /// Whether the sender's messages go out one recipient at a time.
    pub(super) fn is_verp(&self, sender: Option<&Address>) -> bool {
        !self.verp.is_empty() && sender.is_some_and(|sender| self.verp.contains(&*sender.as_str().to_lowercase()))
    }
}

/// A message with what its envelope does not tell.
pub(crate) struct Sorted {
    pub(super) live: Live,
    /// By a header field or a table of senders.
    pub(super) queue: Option<QueueNumber>,
    /// By ordinal: the host of the mailbox, for those that were looked up.
    pub(super) places: HashMap<u32, Place>,
}

/// The host of a mailbox, as the directory says.
pub(super) enum Place {
    /// This host.
    Here,
    /// Another host.
    Host(Box<str>),
}

impl Sorted {
    /// A message whose envelope is enough.
    pub(crate) fn by_envelope(live: Live) -> Self {
        Sorted { live, queue: None, places: HashMap::new() }
    }
}

/// Classifies by the envelope alone.
#[derive(Clone)]
pub(crate) struct Sorter(Arc<Rules>);

impl Sorter {
    pub(crate) fn new(rules: Arc<Rules>) -> Self {
        Sorter(rules)
    }

    /// The rules in use.
    pub(crate) fn rules(&self) -> &Arc<Rules> {
        &self.0
    }

    /// Whether the envelope of a message is enough.
    pub(crate) fn knows(&self, live: &Live) -> bool {
        let rules = &self.0;
        let sender_is_open = |sender: &Address| !rules.sender_tables.is_empty() && rules.by_sender(sender).is_none();
        let is_open = |recipient: &mail::Recipient| rules.is_open(recipient.address.domain());
        rules.headers.is_empty()
            && !live.envelope.sender.as_ref().is_some_and(sender_is_open)
            && ((rules.shared.is_empty() && !rules.tabled) || !live.envelope.recipients.iter().any(is_open))
    }

    /// Adds a message to the queues. Recipients that were never tried are not due before
    /// `not_before`.
    pub(crate) fn enter(&self, queues: &mut Queues, sorted: &Sorted, now: Timestamp, not_before: Timestamp) {
        let Live { id, envelope, states, recovered } = &sorted.live;
        let by_sender = || Some(self.0.by_sender(envelope.sender.as_ref()?)?.1);
        let by_client = || Some(self.0.by_client(envelope.client.address?)?.1);
        let by_message = sorted.queue.or_else(by_sender).or_else(by_client);
        let mut recipients = Vec::with_capacity(states.len());
        for (ordinal, state) in (0..).zip(states) {
            let (attempts, due, held) = match *state {
                State::Waiting { attempts: 0, until } => (0, until.max(not_before), false),
                State::Waiting { attempts, until } => (attempts, until, false),
                State::Held { attempts } => (attempts, now, true),
                State::Delivered | State::Failed | State::SetAside => continue,
            };
            let domain = envelope.recipients[ordinal as usize].address.domain();
            let destination = self.destination(queues, by_message, sorted.places.get(&ordinal), domain);
            recipients.push(Pending { ordinal, destination, attempts, due, held });
        }
        let admission = Admission {
            id: *id,
            sender: envelope.sender.as_ref().map_or(0, fingerprint),
            accepted_at: envelope.accepted_at,
            recovered: *recovered,
            alone: self.0.is_verp(envelope.sender.as_ref()),
            recipients,
        };
        queues.admit(now, &admission);
    }

    fn destination(
        &self,
        queues: &mut Queues,
        by_message: Option<QueueNumber>,
        place: Option<&Place>,
        domain: &str,
    ) -> Destination {
        let (local, local_queue) = &self.0.local;
        let is_here = match place {
            Some(Place::Here) => true,
            Some(Place::Host(_)) => false,
            None => local.contains(domain),
        };
        let queue = if is_here { *local_queue } else { by_message.unwrap_or_else(|| self.by_domain(domain)) };
        match place {
            Some(Place::Host(host)) => queues.destination(queue, &format!("{host}!{domain}")),
            Some(Place::Here) | None => queues.destination(queue, domain),
        }
    }

    fn by_domain(&self, domain: &str) -> QueueNumber {
        let named = self.0.domains.iter().find(|(pattern, _)| pattern.fits(domain)).map(|(_, queue)| *queue);
        named.unwrap_or(self.0.standard)
    }
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

    use lookup::Answers;

    use super::*;

    /// Has some keys, and records its queries.
    struct Script(&'static [&'static str], Mutex<Vec<String>>);

    impl Table for Script {
        fn name(&self) -> &str {
            "script"
        }

        fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> Answers<'a> {
            self.1.lock().expect("no test panicked with it").push(keys.join(" "));
            let answer = |key: &&str| match self.0.contains(key) {
                true => Answer::Found(Vec::new()),
                false if key.starts_with("down@") => Answer::Unavailable("it is down".into()),
                false if key.starts_with("gone@") => Answer::Unconfirmed("it is down".into()),
                false => Answer::NotFound,
            };
            Box::pin(std::future::ready(keys.iter().map(answer).collect()))
        }
    }

    /// Regression: each message used to query the tables by itself, one after the other.
    #[test]
    fn a_table_of_senders_is_asked_once_for_all_whom_none_before_it_had() {
        let script = |keys| Arc::new(Script(keys, Mutex::default()));
        let (first, second) = (script(&["a@x.org", "@y.org"]), script(&["b@x.org", "down@x.org", "gone@x.org"]));
        let sender_tables: Vec<(Arc<dyn Table>, _)> =
            vec![(first.clone(), QueueNumber(1)), (second.clone(), QueueNumber(2))];
        let rules = Rules { sender_tables, ..Rules::plain() };
        let senders = ["a@x.org", "b@x.org", "c@x.org", "d@y.org", "down@x.org", "gone@x.org"];
        let senders = senders.map(|sender| sender.parse::<Address>().expect("an address"));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let found = runtime.block_on(rules.by_sender_tables(&senders.each_ref()));
        let queues: Vec<_> = found.into_iter().map(|found| found.map(|(_, queue)| queue.0)).collect();
        assert_eq!(queues, [Some(1), Some(2), None, Some(1), None, Some(2)]);
        let asked = |table: &Script| table.1.lock().expect("no test panicked with it").clone();
        let all = "a@x.org @x.org b@x.org @x.org c@x.org @x.org d@y.org @y.org down@x.org @x.org gone@x.org @x.org";
        assert_eq!(asked(&first), [all]);
        assert_eq!(asked(&second), ["b@x.org @x.org c@x.org @x.org gone@x.org @x.org"]);
    }
}
