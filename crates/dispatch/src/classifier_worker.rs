//! The thread that classifies messages whose envelope is not enough. It may wait for the disk, for the
//! directory and for the tables of routes, and does one lookup for all messages of a batch: a lookup costs a round trip.
//!
//! Recipients whose mailbox host or route is unknown wait at `?!domain`. Each attempt there comes to this
//! thread:
//!
//! | the directory and the tables know | then |
//! |---|---|
//! | none of the attempt's recipients | all are deferred, as by a host |
//! | some | these are requeued at their hosts; the others return at once as a new attempt |
//! | all | all are requeued at their hosts |

use std::collections::{HashMap, HashSet};
use std::io;
use std::iter;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use delivery::DeliveryResult;
use lookup::directory::{MailboxLocation, RecipientDirectory};
use mail::{Address, EnhancedCode, Envelope, FILTER_FIELD, Outcome, QUEUE_FIELD, Reply, Timestamp};
use queue::{ContactResult, QueueNumber};
use spool::{LiveMessage, ReadError, RecipientState, SpooledMessage};
use tokio::runtime::Runtime;

use super::classifier::{ClassifiedMessage, ClassifierRules, RecipientPlace, UNKNOWN_HOST};
use super::message_cache::{CachedMessage, MessageCache};
use super::message_route::{RouteChoice, RoutedRecipient};
use super::{Attempt, EndedAttempt, SchedulerHandle, SchedulerMsg};
use crate::queue_rules::HeaderRule;

/// Messages in one batch.
const BATCH_MESSAGES_MAX: usize = 1000;
/// A batch takes no more messages once their envelopes have this many recipients: each envelope is
/// copied.
const BATCH_RECIPIENTS_MAX: usize = 10_000;
/// How much of a message is searched for its header.
const HEADER_OCTETS_MAX: usize = 64 << 10;

/// A request to the thread.
pub(super) enum ClassifyJob {
    /// A message whose envelope is not enough.
    New(LiveMessage),
    /// Recipients whose mailbox host was unknown when they were last classified.
    HostUnknown(Attempt),
    /// Recipients whose queue is retired or whose rules have changed; they keep their state in the
    /// spool.
    Moved(Attempt),
    /// Switches to these rules.
    Reconfigure(Arc<ClassifierRules>, Arc<RecipientDirectory>),
}

/// What the thread works with.
pub(super) struct ClassifierWorker {
    rules: Arc<ClassifierRules>,
    messages: MessageCache,
    directory: Arc<RecipientDirectory>,
    runtime: Runtime,
    scheduler: SchedulerHandle,
}

/// A message to classify: the recipients that are not final.
struct ClassifyCase {
    live: LiveMessage,
    origin: CaseOrigin,
}

/// Where the message comes from.
enum CaseOrigin {
    New,
    /// From an attempt at an unknown host.
    HostUnknown(Attempt, Arc<CachedMessage>),
    /// From a retired queue, or classified by other rules.
    Moved(Attempt),
}

impl ClassifierWorker {
    /// Starts the thread; it ends when the sender is dropped.
    pub(super) fn start(
        rules: Arc<ClassifierRules>,
        messages: MessageCache,
        directory: Arc<RecipientDirectory>,
        scheduler: SchedulerHandle,
        alive: Sender<()>,
    ) -> io::Result<Sender<ClassifyJob>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut worker = ClassifierWorker { rules, messages, directory, runtime, scheduler };
        let (sender, jobs) = mpsc::channel();
        thread::Builder::new().name("classifier".into()).spawn(move || {
            while let Ok(first) = jobs.recv() {
                let batch = take_batch(iter::once(first).chain(jobs.try_iter()).filter_map(|job| worker.case(job)));
                worker.classify(batch);
            }
            // The spool reference goes first: the spool is closed when `alive` ends.
            drop((worker, alive));
        })?;
        Ok(sender)
    }

    fn case(&mut self, job: ClassifyJob) -> Option<ClassifyCase> {
        match job {
            ClassifyJob::New(live) => Some(ClassifyCase { live, origin: CaseOrigin::New }),
            ClassifyJob::HostUnknown(attempt) => match self.messages.message(attempt.id) {
                Ok(message) => Some(ClassifyCase::host_unknown(attempt, message)),
                Err(error) => self.send_read_failure(attempt, error),
            },
            ClassifyJob::Moved(attempt) => match self.messages.stored(attempt.id) {
                Ok(stored) => Some(ClassifyCase::moved(attempt, stored)),
                Err(error) => self.send_read_failure(attempt, error),
            },
            ClassifyJob::Reconfigure(rules, directory) => {
                (self.rules, self.directory) = (rules, directory);
                None
            }
        }
    }

    fn send_read_failure(&self, attempt: Attempt, error: ReadError) -> Option<ClassifyCase> {
        self.scheduler.send(SchedulerMsg::read_failed(attempt, error));
        None
    }

    fn classify(&self, batch: Vec<ClassifyCase>) {
        let places = self.runtime.block_on(recipient_places(&self.rules, &self.directory, &batch));
        let headers: Vec<_> = batch.iter().map(|case| self.header_fields(&case.live)).collect();
        let queues = self.queues(&batch, &headers);
        for (((case, places), queue), fields) in batch.into_iter().zip(places).zip(queues).zip(headers) {
            let chosen = chosen_filter(&self.rules, &case.live.envelope, &fields);
            let is_for_chosen_filter = chosen.is_some();
            let places = chosen.map_or(places, |filter| case.all_at(&filter));
            self.scheduler.send(case.into_msg(&self.rules, Classification { places, queue, is_for_chosen_filter }));
        }
    }

    /// By a header field, else by a table of senders unless a configured list has the sender.
    fn queues(&self, batch: &[ClassifyCase], headers: &[Vec<HeaderField>]) -> Vec<Option<QueueNumber>> {
        let mut queues: Vec<_> = headers.iter().map(|fields| queue_by_header(&self.rules, fields)).collect();
        let is_listed = |sender: &&Address| self.rules.by_sender(sender).is_some();
        let sender = |case: &'_ ClassifyCase| case.live.envelope.sender.clone().filter(|sender| !is_listed(&sender));
        let open = queues.iter_mut().zip(batch).filter(|(queue, _)| queue.is_none());
        let (places, senders): (Vec<_>, Vec<_>) = open.filter_map(|(queue, case)| Some((queue, sender(case)?))).unzip();
        let senders: Vec<&Address> = senders.iter().collect();
        let found = self.runtime.block_on(self.rules.by_sender_tables(&senders));
        for (queue, found) in places.into_iter().zip(found) {
            *queue = found.map(|(_, queue)| *queue);
        }
        queues
    }

    /// The fields of the message's header, if a rule needs them. A message that cannot be read goes by
    /// its envelope; the attempt will report the error.
    fn header_fields(&self, live: &LiveMessage) -> Vec<HeaderField> {
        let rules = &self.rules;
        let is_needed =
            !rules.headers.is_empty() || !rules.chosen.is_empty() || rules.may_have_chosen_filter(&live.envelope);
        let Some(message) = is_needed.then(|| self.messages.message(live.id).ok()).flatten() else { return Vec::new() };
        let body = &message.body;
        let mut bytes = vec![0; HEADER_OCTETS_MAX.min(usize::try_from(body.len()).unwrap_or(usize::MAX))];
        body.read_at(&mut bytes, 0).map_or_else(|_| Vec::new(), |read| fields(&bytes[..read]))
    }
}

impl ClassifyCase {
    /// Only the attempt's recipients are open, and this attempt does not count.
    fn host_unknown(attempt: Attempt, message: Arc<CachedMessage>) -> Self {
        let mut states = vec![RecipientState::Delivered; message.envelope.recipients.len()];
        for ordinal in &attempt.recipients {
            states[*ordinal as usize] =
                RecipientState::Waiting { attempts: attempt.number - 1, until: Timestamp::default() };
        }
        let envelope = Envelope::clone(&message.envelope);
        let live = LiveMessage { id: attempt.id, envelope, states, recovered: attempt.recovered };
        ClassifyCase { live, origin: CaseOrigin::HostUnknown(attempt, message) }
    }

    /// Only the attempt's recipients are open, with their state in the spool.
    fn moved(attempt: Attempt, stored: SpooledMessage) -> Self {
        let SpooledMessage { envelope, states, .. } = stored;
        let is_in_attempt: HashSet<u32> = attempt.recipients.iter().copied().collect();
        let state = |(ordinal, state): (u32, RecipientState)| {
            if is_in_attempt.contains(&ordinal) { state } else { RecipientState::Delivered }
        };
        let states = (0..).zip(states).map(state).collect();
        let live = LiveMessage { id: attempt.id, envelope, states, recovered: attempt.recovered };
        ClassifyCase { live, origin: CaseOrigin::Moved(attempt) }
    }

    /// The recipients that are not final.
    fn open_recipients(&self) -> impl Iterator<Item = (u32, RoutedRecipient<'_>)> {
        let LiveMessage { envelope, states, .. } = &self.live;
        let sender = envelope.sender.as_ref();
        let open = (0..).zip(&envelope.recipients).zip(states).filter(|(_, state)| !state.is_final());
        open.map(move |((ordinal, recipient), _)| (ordinal, RoutedRecipient { sender, address: &recipient.address }))
    }

    /// This place for all recipients that are not final.
    fn all_at(&self, place: &FoundPlace) -> Vec<(u32, FoundPlace)> {
        self.open_recipients().map(|(ordinal, _)| (ordinal, place.clone())).collect()
    }

    fn into_msg(self, rules: &Arc<ClassifierRules>, classification: Classification) -> SchedulerMsg {
        let ClassifyCase { live, origin } = self;
        let (attempt, message) = match origin {
            CaseOrigin::New => return SchedulerMsg::Classified(rules.clone(), classification.of(live)),
            CaseOrigin::Moved(attempt) => {
                return SchedulerMsg::Reclassified(rules.clone(), attempt, classification.of(live));
            }
            CaseOrigin::HostUnknown(attempt, message) => (attempt, message),
        };
        match outcomes_if_all_unknown(&attempt.recipients, &classification.places) {
            None => SchedulerMsg::Reclassified(rules.clone(), attempt, classification.of(live)),
            Some(outcomes) => SchedulerMsg::Ended(vec![EndedAttempt {
                attempt,
                message: Some(message),
                ending: DeliveryResult::Outcomes(outcomes),
                contact: ContactResult::Answered { slowest: Duration::ZERO },
                peer: None,
                proof: None,
            }]),
        }
    }
}

/// Takes messages up to the size of a batch; the rest stays in the iterator.
fn take_batch(cases: impl Iterator<Item = ClassifyCase>) -> Vec<ClassifyCase> {
    let (mut batch, mut recipients) = (Vec::new(), 0);
    for case in cases {
        recipients += case.live.envelope.recipients.len();
        batch.push(case);
        if batch.len() >= BATCH_MESSAGES_MAX || recipients >= BATCH_RECIPIENTS_MAX {
            break;
        }
    }
    batch
}

/// Where a recipient's mail goes; Err: unknown, and why.
type FoundPlace = Result<RecipientPlace, String>;

/// For each message, the places of the recipients whose domain does not say it. A route comes before
/// what the directory says.
async fn recipient_places(
    rules: &ClassifierRules,
    directory: &RecipientDirectory,
    batch: &[ClassifyCase],
) -> Vec<Vec<(u32, FoundPlace)>> {
    let recipients: Vec<RoutedRecipient<'_>> =
        batch.iter().flat_map(ClassifyCase::open_recipients).map(|(_, recipient)| recipient).collect();
    let choices = rules.routes.choose(&recipients, directory).await;
    let is_stored = |(recipient, choice): &(&RoutedRecipient<'_>, &RouteChoice)| {
        **choice == RouteChoice::ByDomain && rules.needs_directory(recipient.address.domain())
    };
    let stored = recipients.iter().zip(&choices).filter(is_stored);
    let stored: Vec<Address> = stored.map(|(recipient, _)| recipient.address.clone()).collect();
    let mut stores = directory.mailbox_locations(&stored).await.into_iter();
    let mut choices = choices.into_iter();
    let mut place = |(ordinal, recipient): (u32, RoutedRecipient<'_>)| {
        let found = match choices.next()? {
            RouteChoice::Route { key, is_maildir } => Ok(RecipientPlace::Route { key, is_maildir }),
            RouteChoice::Unavailable(why) => Err(format!("route unknown: {why}")),
            RouteChoice::ByDomain if rules.needs_directory(recipient.address.domain()) => stored_at(stores.next()?)?,
            RouteChoice::ByDomain => return None,
        };
        Some((ordinal, found))
    };
    batch.iter().map(|case| case.open_recipients().filter_map(&mut place).collect()).collect()
}

/// None: the domain's route decides.
fn stored_at(location: MailboxLocation) -> Option<FoundPlace> {
    match location {
        MailboxLocation::ThisHost => Some(Ok(RecipientPlace::Here)),
        MailboxLocation::NextHop => None,
        MailboxLocation::OtherHost(host) => Some(Ok(RecipientPlace::Host(host))),
        MailboxLocation::Unavailable(why) => Some(Err(format!("mailbox host unknown: {why}"))),
    }
}

/// What was found for a message.
struct Classification {
    places: Vec<(u32, FoundPlace)>,
    queue: Option<QueueNumber>,
    is_for_chosen_filter: bool,
}

impl Classification {
    /// Recipients whose place is unknown go to a destination whose attempts ask again.
    fn of(self, live: LiveMessage) -> ClassifiedMessage {
        let Classification { places, queue, is_for_chosen_filter } = self;
        let known = |found: FoundPlace| found.unwrap_or_else(|_| RecipientPlace::Host(UNKNOWN_HOST.into()));
        let places = places.into_iter().map(|(ordinal, found)| (ordinal, known(found))).collect();
        ClassifiedMessage { live, queue, places, is_for_chosen_filter }
    }
}

/// If no recipient's place is known: the outcomes of the attempt. None if any is.
fn outcomes_if_all_unknown(recipients: &[u32], places: &[(u32, FoundPlace)]) -> Option<Vec<Outcome>> {
    let whys: HashMap<u32, &String> =
        places.iter().filter_map(|(ordinal, found)| Some((*ordinal, found.as_ref().err()?))).collect();
    recipients.iter().map(|ordinal| whys.get(ordinal).map(|why| place_unknown_outcome(why))).collect()
}

fn place_unknown_outcome(why: &str) -> Outcome {
    Outcome::Deferred(Reply::new(451, EnhancedCode(4, 3, 5), why.to_owned()))
}

fn queue_by_header(rules: &ClassifierRules, fields: &[HeaderField]) -> Option<QueueNumber> {
    let matches = |pattern: &HeaderRule| fields.iter().any(|(name, value)| pattern.matches(name, value));
    let by_field = || rules.headers.iter().find(|(pattern, _)| matches(pattern)).map(|(_, queue)| *queue);
    chosen_queue(rules, fields).or_else(by_field)
}

/// The queue that a content rule chose.
fn chosen_queue(rules: &ClassifierRules, fields: &[HeaderField]) -> Option<QueueNumber> {
    let chosen = own_field(fields, QUEUE_FIELD)?;
    rules.chosen.iter().find(|(name, _)| **name == *chosen).map(|(_, queue)| *queue)
}

/// The content filter that a check chose. If several did, the last one counts.
fn chosen_filter(rules: &ClassifierRules, envelope: &Envelope, fields: &[HeaderField]) -> Option<FoundPlace> {
    if !rules.may_have_chosen_filter(envelope) {
        return None;
    }
    let chosen = own_field(fields, FILTER_FIELD)?;
    Some(match rules.routes.named(chosen) {
        Ok(RouteChoice::Route { key, is_maildir: false }) => Ok(RecipientPlace::Route { key, is_maildir: false }),
        Ok(_) => Err(format!("content filter {chosen:?}: not the transport of a filter")),
        Err(why) => Err(format!("content filter {chosen:?}: {why}")),
    })
}

/// A field before the first Received field: what stands there, this server has put there. The last one
/// that was added is the first.
fn own_field<'a>(fields: &'a [HeaderField], name: &str) -> Option<&'a str> {
    let ours = fields.iter().take_while(|(name, _)| !name.eq_ignore_ascii_case("Received"));
    ours.into_iter().find(|(own, _)| own == name).map(|(_, value)| value.trim_end())
}

/// The name and the value, unfolded.
type HeaderField = (String, String);

/// The fields of a header (RFC 5322 section 2.2.3).
fn fields(message: &[u8]) -> Vec<HeaderField> {
    let text = String::from_utf8_lossy(message);
    let mut fields: Vec<HeaderField> = Vec::new();
    for line in text.split("\r\n").take_while(|line| !line.is_empty()) {
        if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim_end().to_owned(), value.trim_start().to_owned()));
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use lookup::directory::{AliasLimits, LocalDomain};
    use lookup::{LookupAnswer, LookupFuture, Table};
    use mail::{BodyType, ClientInfo, DsnNotify, QueueId, Recipient, SpoolId};

    use super::super::message_route::{MessageRoutes, TransportTraits};
    use super::*;

    #[test]
    fn a_header_is_read_unfolded_and_ends_at_the_empty_line() {
        let found =
            fields(b"Subject: a\r\n\tlong one\r\nList-Id :  <l.example>\r\nnonsense\r\n\r\nPrecedence: bulk\r\n");
        let expected = [("Subject", "a\tlong one"), ("List-Id", "<l.example>")];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn only_this_server_chooses_a_queue_by_field() {
        let rules = ClassifierRules { chosen: vec![("slow".into(), QueueNumber(7))], ..ClassifierRules::plain() };
        let chosen = |message: &str| chosen_queue(&rules, &fields(message.as_bytes()));
        let trace = "Received: x\r\n";
        assert_eq!(chosen(&format!("X-A: b\r\n{QUEUE_FIELD}: slow\r\n{trace}\r\n")), Some(QueueNumber(7)));
        assert_eq!(chosen(&format!("{trace}{QUEUE_FIELD}: slow\r\n\r\n")), None);
        assert_eq!(chosen(&format!("{QUEUE_FIELD}: gone\r\n{trace}\r\n")), None);
    }

    #[test]
    fn a_check_chooses_a_content_filter_by_field() {
        let traits = |is_maildir: bool| TransportTraits { by_mx: !is_maildir, is_maildir };
        let transports = [("smtp".into(), traits(false)), ("maildir".into(), traits(true))].into();
        let routes = MessageRoutes { transports, ..MessageRoutes::default() };
        let rules = ClassifierRules { has_chosen_filters: true, routes, ..ClassifierRules::plain() };
        let mut envelope = case(&["a@x.org"]).live.envelope;
        envelope.content_filter = true;
        let chosen = |envelope: &Envelope, message: &str| {
            chosen_filter(&rules, envelope, &fields(message.as_bytes())).map(|found| match found {
                Ok(RecipientPlace::Route { key, .. }) => key.to_string(),
                Ok(_) => "elsewhere".to_owned(),
                Err(why) => why,
            })
        };
        let trace = "Received: x\r\n";
        let filter = |value: &str| format!("{FILTER_FIELD}: {value}\r\n{trace}\r\n");
        let named = filter("smtp:[127.0.0.1]:10024");
        assert_eq!(chosen(&envelope, &named).as_deref(), Some("smtp>[127.0.0.1]:10024"));
        let last = format!("{FILTER_FIELD}: smtp:[127.0.0.2]\r\n{named}");
        assert_eq!(chosen(&envelope, &last).as_deref(), Some("smtp>[127.0.0.2]"));
        assert!(chosen(&envelope, &filter("gone:")).is_some_and(|why| why.ends_with("unknown transport")));
        assert!(chosen(&envelope, &filter("maildir:")).is_some_and(|why| why.contains("not the transport")));
        assert_eq!(chosen(&envelope, &format!("{trace}{named}")), None);
        envelope.content_filter = false;
        assert_eq!(chosen(&envelope, &named), None, "it comes from the filter");
    }

    /// Regression: one unknown mailbox host deferred the whole attempt.
    #[test]
    fn an_unknown_host_does_not_delay_known_ones() {
        let unknown = |why: &str| Err(why.to_owned());
        let stores = [(2, unknown("odd")), (5, unknown("down"))];
        assert_eq!(
            outcomes_if_all_unknown(&[5, 2], &stores),
            Some(vec![place_unknown_outcome("down"), place_unknown_outcome("odd")])
        );
        assert_eq!(
            outcomes_if_all_unknown(&[5, 2], &[(2, unknown("odd")), (5, Ok(RecipientPlace::Host("a.x.org".into())))]),
            None
        );
        // The second recipient is classified by its envelope.
        assert_eq!(outcomes_if_all_unknown(&[5, 2], &stores[..1]), None);
    }

    fn case(recipients: &[&str]) -> ClassifyCase {
        let recipient = |text: &&str| Recipient {
            address: text.parse().expect("an address"),
            original: None,
            notify: DsnNotify::UNSET,
            orcpt: None,
            is_forwarded: false,
        };
        let envelope = Envelope {
            sender: None,
            recipients: recipients.iter().map(recipient).collect(),
            accepted_at: Timestamp::default(),
            client: ClientInfo { address: None, helo: "client.test".into(), trusted: true },
            body_type: BodyType::default(),
            smtputf8: false,
            ret: None,
            envid: None,
            content_filter: false,
        };
        let states = vec![RecipientState::NEW; recipients.len()];
        let id = QueueId::new(SpoolId::new(1), 0, 1);
        ClassifyCase { live: LiveMessage { id, envelope, states, recovered: false }, origin: CaseOrigin::New }
    }

    #[test]
    fn a_batch_is_bounded_and_leaves_the_rest() {
        let mut many = iter::repeat_with(|| case(&["a@x.org"])).take(BATCH_MESSAGES_MAX + 1);
        assert_eq!((take_batch(&mut many).len(), many.count()), (BATCH_MESSAGES_MAX, 1));
        let all = vec!["a@x.org"; BATCH_RECIPIENTS_MAX / 2];
        let mut large = iter::repeat_with(|| case(&all)).take(3);
        assert_eq!((take_batch(&mut large).len(), large.count()), (2, 1));
    }

    /// Answers every key with `store`, and records its queries.
    #[derive(Default)]
    struct HostTable(Mutex<Vec<String>>);

    impl Table for HostTable {
        fn name(&self) -> &str {
            "hosts"
        }

        fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
            self.0.lock().expect("no test panicked with it").push(keys.join(" "));
            Box::pin(std::future::ready(keys.iter().map(|_| LookupAnswer::Found(vec!["store".into()])).collect()))
        }
    }

    /// Regression: each message used to cost a round trip to the table of hosts.
    #[test]
    fn the_host_table_is_queried_once_per_batch() {
        let hosts = Arc::new(HostTable::default());
        let domain = LocalDomain {
            name: "x.org".into(),
            mailboxes: None,
            aliases: None,
            catch_all: None,
            wildcard_mailbox: false,
            hosts: Some(hosts.clone()),
            delimiter: None,
            transport: "maildir".into(),
            is_final: true,
        };
        let directory = RecipientDirectory::new(vec![domain], AliasLimits::default());
        let rules = ClassifierRules { has_domain_tables: true, ..ClassifierRules::plain() };
        let mut done = case(&["a@x.org", "b@x.org"]);
        done.live.states[0] = RecipientState::Delivered;
        let batch = [done, case(&["c@y.org"]), case(&["d@y.org", "e@x.org"])];
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let found = runtime.block_on(recipient_places(&rules, &directory, &batch));
        let is_at_store = |place: &FoundPlace| matches!(place, Ok(RecipientPlace::Host(host)) if &**host == "store");
        assert!(found.iter().flatten().all(|(_, place)| is_at_store(place)));
        let ordinals = |places: &Vec<(u32, FoundPlace)>| places.iter().map(|(ordinal, _)| *ordinal).collect::<Vec<_>>();
        assert_eq!(found.iter().map(ordinals).collect::<Vec<_>>(), [vec![1], vec![], vec![1]]);
        assert_eq!(*hosts.0.lock().expect("no test panicked with it"), ["b@x.org e@x.org"]);
    }
}
