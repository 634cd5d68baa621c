//! The counters of a log summary, all bounded: names by [`TopCounter`], messages tracked from
//! `received` to their last recipient by [`TRACKED_MESSAGES_MAX`], hours by [`HOURS_MAX`].

use std::collections::{BTreeMap, HashMap, VecDeque};

use hdrhistogram::Histogram;

use super::top::TopCounter;
use server_log::{LineKind, LogLine, MailEventKind};

/// Messages tracked at a time. The size of older ones is unknown when they are delivered.
const TRACKED_MESSAGES_MAX: usize = 100_000;
/// Hours counted separately: more than a year. Later hours count only in the other lists.
const HOURS_MAX: usize = 10_000;
/// Longer delays count as this, in milliseconds: 30 days.
const DELAY_MS_MAX: u64 = 30 * 24 * 3600 * 1000;
/// `2026-11-20T17`.
const HOUR_OCTETS: usize = 13;

/// All counters.
#[derive(Default)]
pub(super) struct LogSummary {
    /// The time of the first and of the last line.
    pub(super) span: Option<(String, String)>,
    pub(super) lines: u64,
    pub(super) unreadable: u64,
    pub(super) events: BTreeMap<&'static str, u64>,
    pub(super) received: ReceivedCounts,
    pub(super) delivered: DeliveredCounts,
    pub(super) deferred: TopCounter<()>,
    pub(super) bounced: TopCounter<()>,
    pub(super) refused: RefusedCounts,
    pub(super) logins: TopCounter<()>,
    pub(super) login_failures: TopCounter<()>,
    /// By recipient domain.
    pub(super) domains: TopCounter<DestinationCounts>,
    /// By the host that replied, or by transport for local mailboxes.
    pub(super) next_hops: TopCounter<DestinationCounts>,
    pub(super) warnings: TopCounter<()>,
    pub(super) hours: BTreeMap<Box<str>, HourCounts>,
    tracked: TrackedMessages,
}

/// Received messages.
#[derive(Default)]
pub(super) struct ReceivedCounts {
    pub(super) octets: u64,
    pub(super) recipients: u64,
    /// With bytes.
    pub(super) senders: TopCounter<u64>,
    /// With bytes.
    pub(super) clients: TopCounter<u64>,
    /// With bytes.
    pub(super) users: TopCounter<u64>,
}

/// Delivered recipients.
#[derive(Default)]
pub(super) struct DeliveredCounts {
    /// Bytes of messages whose size is known.
    pub(super) octets: u64,
    /// Deliveries of messages of unknown size, received before this log or long ago.
    pub(super) without_size: u64,
    /// To local mailboxes.
    pub(super) local: DelayHistogram,
    /// To other hosts.
    pub(super) relayed: DelayHistogram,
}

/// Refused commands and connections.
#[derive(Default)]
pub(super) struct RefusedCounts {
    pub(super) temporarily: u64,
    pub(super) permanently: u64,
    /// By stage and reply.
    pub(super) reasons: TopCounter<()>,
    pub(super) clients: TopCounter<()>,
    pub(super) rules: TopCounter<()>,
}

/// The outcomes of recipients.
#[derive(Default)]
pub(super) struct DestinationCounts {
    pub(super) delivered: u64,
    pub(super) octets: u64,
    pub(super) deferred: u64,
    pub(super) bounced: u64,
    /// The sum over all deliveries.
    pub(super) delay_ms: u64,
}

/// The events of an hour.
#[derive(Clone, Copy, Default)]
pub(super) struct HourCounts {
    pub(super) received: u64,
    pub(super) delivered: u64,
    pub(super) deferred: u64,
    pub(super) bounced: u64,
    pub(super) refused: u64,
}

/// Delivery delays in milliseconds.
pub(super) struct DelayHistogram {
    counts: Histogram<u64>,
    max: u64,
}

impl Default for DelayHistogram {
    fn default() -> Self {
        let counts = Histogram::new_with_bounds(1, DELAY_MS_MAX, 3).expect("the bounds and three digits are in range");
        DelayHistogram { counts, max: 0 }
    }
}

impl DelayHistogram {
    fn record(&mut self, delay_ms: u64) {
        self.counts.saturating_record(delay_ms);
        self.max = self.max.max(delay_ms);
    }

    pub(super) fn count(&self) -> u64 {
        self.counts.len()
    }

    /// The delay that `percent` of deliveries did not exceed.
    pub(super) fn percentile(&self, percent: f64) -> u64 {
        self.counts.value_at_quantile(percent / 100.0).min(self.max)
    }

    pub(super) fn max(&self) -> u64 {
        self.max
    }
}

/// Messages with open recipients.
#[derive(Default)]
struct TrackedMessages {
    by_id: HashMap<Box<str>, TrackedMessage>,
    /// In the order of arrival; may contain messages without open recipients.
    order: VecDeque<Box<str>>,
    /// Open recipients of messages that are no longer tracked.
    evicted: u64,
}

struct TrackedMessage {
    size: u64,
    recipients_open: u64,
}

impl TrackedMessages {
    fn start(&mut self, id: &str, size: u64, open: u64) {
        if self.order.len() >= TRACKED_MESSAGES_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some(message) = self.by_id.remove(&oldest)
        {
            self.evicted += message.recipients_open;
        }
        self.order.push_back(id.into());
        self.by_id.insert(id.into(), TrackedMessage { size, recipients_open: open });
    }

    fn size(&self, id: &str) -> Option<u64> {
        self.by_id.get(id).map(|message| message.size)
    }

    fn end(&mut self, id: &str) {
        let Some(message) = self.by_id.get_mut(id) else { return };
        message.recipients_open = message.recipients_open.saturating_sub(1);
        if message.recipients_open == 0 {
            self.by_id.remove(id);
        }
    }
}

impl HourCounts {
    pub(super) fn add(&mut self, other: &HourCounts) {
        self.received += other.received;
        self.delivered += other.delivered;
        self.deferred += other.deferred;
        self.bounced += other.bounced;
        self.refused += other.refused;
    }
}

impl LogSummary {
    /// Recipients that this log received and that have no final outcome in it; and recipients that
    /// are unknown because too many messages were tracked.
    pub(super) fn open(&self) -> (u64, u64) {
        (self.tracked.by_id.values().map(|message| message.recipients_open).sum(), self.tracked.evicted)
    }

    pub(super) fn event(&self, event: MailEventKind) -> u64 {
        self.events.get(event.name()).copied().unwrap_or(0)
    }

    pub(super) fn count_unreadable(&mut self) {
        self.unreadable += 1;
    }

    pub(super) fn count(&mut self, line: &LogLine<'_>) {
        self.lines += 1;
        self.count_time(&line.time);
        match line.kind {
            LineKind::Info => {}
            LineKind::Warning => drop(self.warnings.count(&format!("warning: {}", line.text("message")))),
            LineKind::Error => drop(self.warnings.count(&format!("error: {}", line.text("message")))),
            LineKind::Mail(event) => {
                *self.events.entry(event.name()).or_default() += 1;
                self.count_hour(event, &line.time);
                self.count_event(event, line);
            }
        }
    }

    fn count_event(&mut self, event: MailEventKind, line: &LogLine<'_>) {
        match event {
            MailEventKind::Received => self.count_received(line),
            MailEventKind::Delivered => self.count_delivered(line),
            MailEventKind::Deferred => self.count_failure(line, |fate| fate.deferred += 1),
            MailEventKind::Bounced => {
                self.count_failure(line, |fate| fate.bounced += 1);
                self.tracked.end(line.text("id"));
            }
            MailEventKind::Removed => self.tracked.end(line.text("id")),
            MailEventKind::Refused => self.count_refused(line),
            MailEventKind::Login => {
                self.logins.count(line.text("result"));
                if matches!(line.text("result"), "refused" | "throttled") {
                    self.login_failures.count(line.text("client"));
                }
            }
            MailEventKind::Discarded
            | MailEventKind::Held
            | MailEventKind::Released
            | MailEventKind::Insecure
            | MailEventKind::SetAside => {}
        }
    }

    fn count_received(&mut self, line: &LogLine<'_>) {
        let (size, recipients) = (line.number("size"), line.number("recipients"));
        self.received.octets += size;
        self.received.recipients += recipients;
        self.tracked.start(line.text("id"), size, recipients);
        let sender = line.address("from");
        *self.received.senders.count(if sender.is_empty() { "<>" } else { sender }) += size;
        let client = line.text("client");
        *self.received.clients.count(if client.is_empty() { "this machine" } else { client }) += size;
        if !line.text("user").is_empty() {
            *self.received.users.count(line.text("user")) += size;
        }
    }

    fn count_delivered(&mut self, line: &LogLine<'_>) {
        let (id, delay) = (line.text("id"), line.number("delay_ms"));
        let size = self.tracked.size(id);
        self.tracked.end(id);
        self.delivered.octets += size.unwrap_or(0);
        self.delivered.without_size += u64::from(size.is_none());
        let delays =
            if line.text("relay").is_empty() { &mut self.delivered.local } else { &mut self.delivered.relayed };
        delays.record(delay);
        self.count_outcome(line, |fate| {
            fate.delivered += 1;
            fate.octets += size.unwrap_or(0);
            fate.delay_ms += delay;
        });
    }

    fn count_failure(&mut self, line: &LogLine<'_>, counted: impl Fn(&mut DestinationCounts)) {
        let reasons =
            if line.kind == LineKind::Mail(MailEventKind::Deferred) { &mut self.deferred } else { &mut self.bounced };
        reasons.count(&generalize_reply(line.text("reason")));
        self.count_outcome(line, counted);
    }

    fn count_outcome(&mut self, line: &LogLine<'_>, counted: impl Fn(&mut DestinationCounts)) {
        let to = line.address("to");
        counted(self.domains.count(to.rsplit_once('@').map_or(to, |(_, domain)| domain)));
        let is_here = line.kind == LineKind::Mail(MailEventKind::Delivered) && line.text("relay").is_empty();
        let relay = if is_here { line.text("transport") } else { line.text("relay") };
        // If no host replied, there is none to count; the reason names the host.
        if !relay.is_empty() {
            counted(self.next_hops.count(relay.split_once('[').map_or(relay, |(host, _)| host)));
        }
    }

    fn count_refused(&mut self, line: &LogLine<'_>) {
        let reply = line.text("reply");
        let class = if reply.starts_with('5') { &mut self.refused.permanently } else { &mut self.refused.temporarily };
        *class += 1;
        self.refused.reasons.count(&format!("{} {}", line.text("stage"), generalize_reply(reply)));
        self.refused.clients.count(line.text("client"));
        if !line.text("rule").is_empty() {
            self.refused.rules.count(line.text("rule"));
        }
    }

    fn count_time(&mut self, time: &str) {
        match &mut self.span {
            None => self.span = Some((time.to_owned(), time.to_owned())),
            Some((first, _)) if time < first.as_str() => time.clone_into(first),
            Some((_, last)) if time > last.as_str() => time.clone_into(last),
            Some(_) => {}
        }
    }

    fn count_hour(&mut self, event: MailEventKind, time: &str) {
        let hour = &time[..HOUR_OCTETS];
        if !self.hours.contains_key(hour) {
            if self.hours.len() >= HOURS_MAX {
                return;
            }
            self.hours.insert(hour.into(), HourCounts::default());
        }
        let Some(hour) = self.hours.get_mut(hour) else { return };
        match event {
            MailEventKind::Received => hour.received += 1,
            MailEventKind::Delivered => hour.delivered += 1,
            MailEventKind::Deferred => hour.deferred += 1,
            MailEventKind::Bounced => hour.bounced += 1,
            MailEventKind::Refused => hour.refused += 1,
            MailEventKind::Discarded
            | MailEventKind::Held
            | MailEventKind::Released
            | MailEventKind::Removed
            | MailEventKind::Login
            | MailEventKind::Insecure
            | MailEventKind::SetAside => {}
        }
    }
}

/// A reply without its variable parts: text in angle brackets becomes `<>`, and numbers become `N`,
/// except reply codes and numbers with dots such as IP addresses.
fn generalize_reply(reply: &str) -> String {
    let (code, mut rest) = reply.split_at(reply.find(' ').unwrap_or(reply.len()));
    let mut general = code.to_owned();
    while let Some(at) = rest.find(|c: char| c == '<' || c.is_ascii_digit()) {
        general.push_str(&rest[..at]);
        let found = &rest[at..];
        let length = |is_over: &dyn Fn(char) -> bool| found.find(is_over).unwrap_or(found.len());
        let dotted = length(&|c| !c.is_ascii_digit() && c != '.');
        let (shown, end) = match found.as_bytes()[0] {
            b'<' => ("<>", found.find('>').map_or(found.len(), |end| end + 1)),
            _ if found[..dotted].trim_end_matches('.').contains('.') => (&found[..dotted], dotted),
            _ => ("N", length(&|c| !c.is_ascii_digit())),
        };
        general.push_str(shown);
        rest = &found[end..];
    }
    general + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use server_log::parse_line;

    #[test]
    fn replies_that_differ_in_an_address_or_a_number_are_one_reason() {
        for (reply, general) in [
            ("550 5.1.1 <bob@example.org>: no such user", "550 5.1.1 <>: no such user"),
            ("450 4.2.0 192.0.2.1 waits 300 s, or 17.", "450 4.2.0 192.0.2.1 waits N s, or N."),
            ("250", "250"),
            ("451 4.4.1 mx.example[::1]:25: refused", "451 4.4.1 mx.example[::N]:N: refused"),
            ("550 <open", "550 <>"),
            ("", ""),
        ] {
            assert_eq!(generalize_reply(reply), general, "{reply}");
        }
    }

    #[test]
    fn so_many_messages_are_followed_and_no_more() {
        let mut summary = LogSummary::default();
        for n in 0..TRACKED_MESSAGES_MAX + 10 {
            let line = format!("2026-11-20T17:46:16.123Z received id={n} from=<a@b> recipients=2 size=10");
            summary.count(&parse_line(&line).unwrap());
        }
        assert_eq!(summary.tracked.by_id.len(), TRACKED_MESSAGES_MAX);
        assert_eq!(summary.open(), (2 * TRACKED_MESSAGES_MAX as u64, 20));
        for n in [3, 100, 100] {
            let line = format!("2026-11-20T17:46:16.123Z delivered id={n} to=<a@b> transport=x delay_ms=1");
            summary.count(&parse_line(&line).unwrap());
        }
        assert_eq!((summary.delivered.octets, summary.delivered.without_size), (20, 1));
        assert_eq!(summary.open().0, 2 * TRACKED_MESSAGES_MAX as u64 - 2);
    }
}
