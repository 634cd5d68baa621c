//! The thread that sends delivery status notices. It reads the message if that has not been done,
//! asks the directory where the sender's mail goes, composes the notice, and submits it together
//! with the outcome that causes it: never one without the other.
//!
//! A notice goes to the mailboxes that the sender's address resolves to, or to that address at
//! another host. Notices that cannot be sent are logged. Nothing here is fatal; while the directory
//! does not answer, attempts go back to be recorded later.
//!
//! | the message came from | and its sender | notices |
//! |---|---|---|
//! | a user, a relay network, a local program | any | all are sent |
//! | anyone else | is in `bounce.verp` | all are sent |
//! | anyone else | any other | limited by `bounce.per_sender`; the rest is logged and counted |

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use delivery::bounce::{Cap, Fate, Finding, ORIGINAL_OCTETS_MAX, Occasion, Report};
use delivery::verp;
use lookup::directory::{Directory, Resolution};
use mail::{Address, Notify, QueueId, Recipient, Timestamp};
use queue::{Purpose, QueueNumber, Verdict};
use spool::{CommitError, Content, Entry, ReadError};
use tokio::runtime::Runtime;

use super::registrar::Registrar;
use super::shelf::{Message, Shelf};
use super::sorter::Rules;
use super::{Attempt, Judged, Note, Telling, Told};
use crate::line::Level;
use crate::log::Log;
use crate::metrics::Attempts;

/// A delay notice is not sent before this share of its time has passed, whatever the number of
/// attempts.
const LATE_SHARE_MIN: f64 = 0.75;

/// How long the sender's address is looked up while the directory fails. After that the outcome is
/// recorded without a notice, and logged.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(300);

/// When senders get notices.
pub struct Notices {
    /// After this time, one delay notice is sent; None: never.
    pub delay_after: Option<Duration>,
    /// The recipient of bounces that themselves fail; None: they are dropped.
    pub double_bounces_to: Option<Address>,
    /// Limits the notices for mail with a possibly forged sender; None: no limit.
    pub cap: Option<Cap>,
}

/// When to send a delay notice: at the attempt that the retry schedule makes after this time.
/// Counting attempts needs no record of sent notices, and survives a restart.
pub(super) struct Patience {
    after: Option<Duration>,
    /// By queue number: the attempt whose deferral triggers the notice, and the queue's lifetime.
    queues: Vec<(u16, Duration)>,
}

impl Notices {
    pub(super) fn patience(&self, queues: &queue::Config) -> Patience {
        let after = self.delay_after.unwrap_or_default();
        let of = |queue: &queue::QueueConfig| (attempt_after(after, &queue.retry), queue.retry.lifetime);
        Patience { after: self.delay_after, queues: queues.queues.iter().map(of).collect() }
    }

    /// Whether this notice is sent. Only notices to a possibly forged sender count towards the
    /// limit.
    fn allow(&mut self, now: Timestamp, report: &Report<'_>, is_verp: bool) -> bool {
        let is_limited = !report.is_of_trusted_client() && !is_verp;
        !is_limited || self.cap.as_mut().is_none_or(|cap| cap.allows(now, report.to()))
    }
}

impl Patience {
    /// If a delay notice is due for this deferral: when we stop retrying.
    pub(super) fn ends_with(&self, queue: QueueNumber, attempt: &Attempt, now: Timestamp) -> Option<Timestamp> {
        let (after, (number, lifetime)) = (self.after?, self.queues.get(usize::from(queue.0))?);
        let is_late = attempt.number == *number
            && !matches!(attempt.purpose, Purpose::Act(_))
            && now.since(attempt.accepted_at) >= after.mul_f64(LATE_SHARE_MIN);
        is_late.then(|| attempt.accepted_at + *lifetime)
    }
}

/// The first attempt that the schedule, without jitter, makes after `span`.
fn attempt_after(span: Duration, retry: &queue::Retry) -> u16 {
    let mut wait = retry.first.min(retry.longest);
    let (mut elapsed, mut number) = (Duration::ZERO, 1);
    while elapsed < span && number < u16::MAX {
        elapsed += wait.max(Duration::from_millis(1));
        let longer = wait.as_secs_f64() * retry.factor.max(1.0);
        wait = Duration::try_from_secs_f64(longer).unwrap_or(retry.longest).min(retry.longest);
        number += 1;
    }
    number
}

/// A request to the thread.
pub(super) enum Commission {
    /// Records outcomes that may need a notice.
    Record(Vec<Judged>),
    /// Sets aside the damaged message of this attempt; the text says what is wrong.
    SetAside(Attempt, String),
    /// Switches to this configuration.
    Change(Box<Terms>),
}

/// The part of the configuration that can change.
pub(super) struct Terms {
    pub(super) notices: Notices,
    /// The limit is unchanged: notices already sent still count.
    pub(super) keeps_cap: bool,
    pub(super) rules: Arc<Rules>,
    pub(super) directory: Arc<Directory>,
    pub(super) hostname: Box<str>,
}

/// What the thread works with.
pub(super) struct Office {
    pub(super) registrar: Registrar,
    pub(super) shelf: Shelf,
    pub(super) directory: Arc<Directory>,
    /// Names the senders whose messages use VERP.
    pub(super) rules: Arc<Rules>,
    /// Counts the notices that are not sent.
    pub(super) attempts: Arc<Attempts>,
}

struct Notary {
    office: Office,
    notices: Notices,
    /// Runs lookups; the thread waits for them.
    runtime: Runtime,
    hostname: Box<str>,
    log: Arc<Log>,
}

/// The directory cannot say now where the sender's mail goes.
struct Unaddressed;

impl Office {
    /// Starts the thread; it ends when the sender is dropped.
    pub(super) fn open(
        self,
        notices: Notices,
        hostname: Box<str>,
        log: Arc<Log>,
        alive: Sender<()>,
    ) -> io::Result<Sender<Commission>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut notary = Notary { office: self, notices, runtime, hostname, log };
        let (sender, commissions) = mpsc::channel();
        thread::Builder::new().name("notary".into()).spawn(move || {
            notary.run(&commissions);
            // The spool reference goes first: the spool is closed when `alive` ends.
            drop((notary, alive));
        })?;
        Ok(sender)
    }
}

impl Notary {
    fn run(&mut self, commissions: &Receiver<Commission>) {
        while let Ok(commission) = commissions.recv() {
            match commission {
                Commission::Record(crowd) => self.record(crowd),
                Commission::SetAside(attempt, what) => self.set_aside(attempt, &what),
                Commission::Change(terms) => self.change(*terms),
            }
        }
    }

    fn change(&mut self, terms: Terms) {
        let Terms { mut notices, keeps_cap, rules, directory, hostname } = terms;
        if keeps_cap {
            notices.cap = self.notices.cap.take();
        }
        (self.notices, self.office.directory, self.hostname) = (notices, directory, hostname);
        self.office.rules = rules;
    }

    fn record(&mut self, crowd: Vec<Judged>) {
        let (mut done, mut rest) = (Vec::new(), Vec::new());
        for judged in crowd {
            let Some((mut judged, message)) = self.read(judged) else { continue };
            let mut telling = std::mem::take(&mut judged.telling);
            let made = self.notice(&judged, &message, &mut telling);
            judged.telling = telling;
            match made {
                Ok(None) => done.push((Judged { notice: None, ..judged }, None)),
                Ok(Some((told, entry))) => done.push((Judged { notice: Some(told), ..judged }, Some(entry))),
                Err(Unaddressed) => rest.push(judged),
            }
        }
        self.office.registrar.submit(done.into_iter());
        if !rest.is_empty() {
            self.hand_back(rest, "cannot look up the recipient of the notice");
        }
    }

    fn hand_back(&self, judged: Vec<Judged>, why: &'static str) {
        self.office.registrar.mailbag.tell(Note::Unrecorded(judged, why));
    }

    /// The message of an attempt, read if necessary. If it cannot be read now, the attempt goes
    /// back.
    fn read(&self, judged: Judged) -> Option<(Judged, Arc<Message>)> {
        if let Some(message) = judged.message.clone() {
            return Some((judged, message));
        }
        match self.office.shelf.message(judged.attempt.id) {
            Ok(message) => Some((Judged { message: Some(message.clone()), ..judged }, message)),
            Err(ReadError::Unavailable(_)) => {
                self.hand_back(vec![judged], "cannot read the message now");
                None
            }
            Err(error) => {
                self.office.registrar.mailbag.tell(Note::unread(judged.attempt, error));
                None
            }
        }
    }

    /// Sets a damaged message aside. If that fails, the queue drops it anyway, and the next start
    /// finds it again.
    fn set_aside(&self, attempt: Attempt, what: &str) {
        let Registrar { spool, mailbag } = self.office.registrar.clone();
        let (log, id) = (self.log.clone(), attempt.id);
        let done = move |result: Result<(), CommitError>| {
            if let Err(error) = result {
                log.event(Level::Error, "cannot set aside a damaged message", &[("id", &id), ("error", &error)]);
            }
            mailbag.tell(Note::Void(attempt));
        };
        spool.set_aside(id, what, Box::new(done));
    }

    /// The notice for those recipients that need one, if it can be sent.
    fn notice(
        &mut self,
        judged: &Judged,
        message: &Message,
        telling: &mut Telling,
    ) -> Result<Option<(Told, Entry)>, Unaddressed> {
        let postmaster = self.notices.double_bounces_to.clone();
        let Some(report) = Report::of(&message.envelope, postmaster.as_ref(), findings(judged)) else {
            return Ok(None);
        };
        let is_verp = self.office.rules.is_verp(message.envelope.sender.as_ref());
        let own_path = report.only_failure().filter(|_| is_verp).and_then(|to| verp::address(report.to(), to));
        let (report, recipients) = self.address_report(report, own_path.as_ref(), telling)?;
        let now = SystemTime::now().into();
        if recipients.is_empty() || !self.may_tell(now, judged.attempt.id, &report, is_verp, telling) {
            return Ok(None);
        }
        let id = self.office.registrar.spool.begin_beside(judged.attempt.id);
        let letter = report.compose(&Occasion {
            hostname: &self.hostname,
            id,
            now,
            original_id: judged.attempt.id,
            attempted_at: Some(now),
            octets: message.body.len(),
            original: &original(message),
        });
        let ordinals = judged.attempt.recipients.iter().copied().filter(|ordinal| report.tells_of(*ordinal)).collect();
        let envelope = letter.envelope(&self.hostname, now, recipients);
        let told = Told::by(&letter, id, ordinals, &envelope);
        let (content, flags) = (Content::Memory(letter.content), letter.flags);
        Ok(Some((told, Entry::Message { id, envelope, content, flags })))
    }

    /// The report and its recipients: the sender's VERP address for the recipient if that resolves,
    /// else the sender's address.
    fn address_report<'a>(
        &self,
        report: Report<'a>,
        own_path: Option<&'a Address>,
        telling: &mut Telling,
    ) -> Result<(Report<'a>, Vec<Recipient>), Unaddressed> {
        let mut unavailable = None;
        if let Some(own_path) = own_path {
            let recipients = self.address(own_path, telling, &mut unavailable)?;
            if !recipients.is_empty() {
                return Ok((report.sent_to(own_path), recipients));
            }
        }
        let recipients = self.address(report.to(), telling, &mut unavailable)?;
        if let Some(why) = unavailable.filter(|_| recipients.is_empty()) {
            let text = "no notice sent: cannot look up the sender's address";
            self.log.event(Level::Warning, text, &[("sender", report.to()), ("error", &why)]);
        }
        Ok((report, recipients))
    }

    /// Whether a notice is sent. The decision holds when the same attempt is recorded again.
    fn may_tell(
        &mut self,
        now: Timestamp,
        id: QueueId,
        report: &Report<'_>,
        is_verp: bool,
        telling: &mut Telling,
    ) -> bool {
        *telling.decision.get_or_insert_with(|| {
            let is_sent = self.notices.allow(now, report, is_verp);
            if !is_sent {
                self.office.attempts.count_dropped_notice();
                let text = "no notice sent: too many to this sender for mail from untrusted clients";
                let facts: [(&str, &dyn Display); 3] =
                    [("id", &id), ("sender", report.to()), ("recipients", &report.recipients())];
                self.log.event(Level::Warning, text, &facts);
            }
            is_sent
        })
    }

    /// The recipients of a notice, as RCPT would resolve the sender. None if there is no such user,
    /// or after the directory has failed for too long; `unavailable` then says why.
    fn address(
        &self,
        sender: &Address,
        telling: &mut Telling,
        unavailable: &mut Option<String>,
    ) -> Result<Vec<Recipient>, Unaddressed> {
        let recipient = |address, original| Recipient { address, original, notify: Notify::NEVER, orcpt: None };
        match self.runtime.block_on(self.office.directory.resolve(sender)) {
            Resolution::Local(finals) => {
                Ok(finals.into_iter().map(|found| recipient(found.address, found.original)).collect())
            }
            Resolution::Remote(address) => Ok(vec![recipient(address, None)]),
            Resolution::Unavailable(why) => {
                let since = *telling.unaddressed_since.get_or_insert_with(Instant::now);
                if since.elapsed() < ADDRESS_PATIENCE {
                    return Err(Unaddressed);
                }
                *unavailable = Some(why);
                Ok(Vec::new())
            }
            Resolution::Unknown | Resolution::TooDeep | Resolution::TooMany => Ok(Vec::new()),
        }
    }
}

/// The results of an attempt to report.
fn findings(judged: &Judged) -> impl Iterator<Item = Finding<'_>> {
    let peer = judged.peer.as_deref();
    judged.attempt.recipients.iter().zip(&judged.verdicts).filter_map(move |(ordinal, verdict)| {
        let fate = match verdict {
            Verdict::Delivered => Fate::Delivered,
            Verdict::Relayed { reply, dsn } => Fate::Relayed { reply, dsn: *dsn },
            Verdict::Deferred { reason, .. } => Fate::Delayed { reply: reason, until: judged.late_until? },
            Verdict::Failed { reason } => Fate::Failed(reason),
            Verdict::Held | Verdict::Removed => return None,
        };
        Some(Finding { ordinal: *ordinal, fate, peer })
    })
}

/// The part of the message that a notice returns. A message that cannot be read is left out; the
/// notice is sent anyway.
fn original(message: &Message) -> Vec<u8> {
    let mut bytes = vec![0; message.body.len().min(ORIGINAL_OCTETS_MAX) as usize];
    let read = message.body.read_at(&mut bytes, 0).unwrap_or(0);
    bytes.truncate(read);
    bytes
}

#[cfg(test)]
mod tests {
    use delivery::bounce::CapLimits;
    use mail::{BodyType, Client, Enhanced, Envelope, Reply};

    use super::*;

    /// Regression: of 1,022 refused recipients of one sender, 922 were never reported.
    #[test]
    fn only_notices_to_a_sender_who_may_be_forged_are_limited() {
        for (trusted, is_verp, sent) in
            [(true, false, 1022), (false, true, 1022), (true, true, 1022), (false, false, 100)]
        {
            let recipient = |address: &str| Recipient {
                address: address.parse().expect("an address"),
                original: None,
                notify: Notify::UNSET,
                orcpt: None,
            };
            let envelope = Envelope {
                sender: Some("alice@example.org".parse().expect("an address")),
                recipients: vec![recipient("bob@example.net")],
                accepted_at: Timestamp::default(),
                client: Client { address: None, helo: "client.example".into(), trusted },
                body_type: BodyType::default(),
                smtputf8: false,
                ret: None,
                envid: None,
            };
            let reason = Reply::new(550, Enhanced(5, 1, 1), "who is that");
            let finding = Finding { ordinal: 0, fate: Fate::Failed(&reason), peer: None };
            let report = Report::of(&envelope, None, [finding]).expect("a failed recipient is reported");
            let cap = Some(Cap::new(CapLimits::default(), 7));
            let mut notices = Notices { delay_after: None, double_bounces_to: None, cap };
            let allowed = (0..1022).filter(|_| notices.allow(Timestamp(1_700_000_000_000), &report, is_verp)).count();
            assert_eq!(allowed, sent, "trusted {trusted}, VERP {is_verp}");
        }
    }
}
