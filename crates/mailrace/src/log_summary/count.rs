//! The counters of a log summary, all bounded: names by [`Top`], messages tracked from `received`
//! to their last recipient by [`FOLLOWED_MAX`], hours by [`HOURS_MAX`].

use std::collections::{BTreeMap, HashMap, VecDeque};

use hdrhistogram::Histogram;

use super::line::{Line, What};
use super::top::Top;
use crate::line::events::Event;

/// Messages tracked at a time. The size of older ones is unknown when they are delivered.
const FOLLOWED_MAX: usize = 100_000;
/// Hours counted separately: more than a year. Later hours count only in the other lists.
const HOURS_MAX: usize = 10_000;
/// Longer delays count as this, in milliseconds: 30 days.
const DELAY_MS_MAX: u64 = 30 * 24 * 3600 * 1000;
/// `2026-11-20T17`.
const HOUR_OCTETS: usize = 13;

/// All counters.
#[derive(Default)]
pub(super) struct Summary {
    /// The time of the first and of the last line.
    pub(super) span: Option<(String, String)>,
    pub(super) lines: u64,
    pub(super) unreadable: u64,
    pub(super) events: BTreeMap<&'static str, u64>,
    pub(super) received: Received,
    pub(super) delivered: Delivered,
    pub(super) deferred: Top<()>,
    pub(super) bounced: Top<()>,
    pub(super) refused: Refused,
    pub(super) logins: Top<()>,
    pub(super) login_failures: Top<()>,
    /// By recipient domain.
    pub(super) domains: Top<Fate>,
    /// By the host that replied, or by transport for local mailboxes.
    pub(super) next_hops: Top<Fate>,
    pub(super) warnings: Top<()>,
    pub(super) hours: BTreeMap<Box<str>, Hour>,
    followed: Followed,
}

/// Received messages.
#[derive(Default)]
pub(super) struct Received {
    pub(super) octets: u64,
    pub(super) recipients: u64,
    /// With bytes.
    pub(super) senders: Top<u64>,
    /// With bytes.
    pub(super) clients: Top<u64>,
    /// With bytes.
    pub(super) users: Top<u64>,
}

/// Delivered recipients.
#[derive(Default)]
pub(super) struct Delivered {
    /// Bytes of messages whose size is known.
    pub(super) octets: u64,
    /// Deliveries of messages of unknown size, received before this log or long ago.
    pub(super) unsized_: u64,
    /// To local mailboxes.
    pub(super) local: Delays,
    /// To other hosts.
    pub(super) relayed: Delays,
}

/// Refused commands and connections.
#[derive(Default)]
pub(super) struct Refused {
    pub(super) temporarily: u64,
    pub(super) permanently: u64,
    /// By stage and reply.
    pub(super) reasons: Top<()>,
    pub(super) clients: Top<()>,
    pub(super) rules: Top<()>,
}

/// The outcomes of recipients.
#[derive(Default)]
pub(super) struct Fate {
    pub(super) delivered: u64,
    pub(super) octets: u64,
    pub(super) deferred: u64,
    pub(super) bounced: u64,
    /// The sum over all deliveries.
    pub(super) delay_ms: u64,
}

/// The events of an hour.
#[derive(Clone, Copy, Default)]
pub(super) struct Hour {
    pub(super) received: u64,
    pub(super) delivered: u64,
    pub(super) deferred: u64,
    pub(super) bounced: u64,
    pub(super) refused: u64,
}

/// Delivery delays in milliseconds.
pub(super) struct Delays {
    counts: Histogram<u64>,
    max: u64,
}

impl Default for Delays {
    fn default() -> Self {
        let counts = Histogram::new_with_bounds(1, DELAY_MS_MAX, 3).expect("the bounds and three digits are in range");
        Delays { counts, max: 0 }
    }
}

impl Delays {
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
struct Followed {
    by_id: HashMap<Box<str>, Message>,
    /// In the order of arrival; may contain messages without open recipients.
    order: VecDeque<Box<str>>,
    /// Open recipients of messages that are no longer tracked.
    given_up: u64,
}

struct Message {
    size: u64,
    open: u64,
}

impl Followed {
    fn begin(&mut self, id: &str, size: u64, open: u64) {
        if self.order.len() >= FOLLOWED_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some(message) = self.by_id.remove(&oldest)
        {
            self.given_up += message.open;
        }
        self.order.push_back(id.into());
        self.by_id.insert(id.into(), Message { size, open });
    }

    fn size(&self, id: &str) -> Option<u64> {
        self.by_id.get(id).map(|message| message.size)
    }

    fn end(&mut self, id: &str) {
        let Some(message) = self.by_id.get_mut(id) else { return };
        message.open = message.open.saturating_sub(1);
        if message.open == 0 {
            self.by_id.remove(id);
        }
    }
}

impl Hour {
    pub(super) fn add(&mut self, other: &Hour) {
        self.received += other.received;
        self.delivered += other.delivered;
        self.deferred += other.deferred;
        self.bounced += other.bounced;
        self.refused += other.refused;
    }
}

impl Summary {
    /// Recipients that this log received and that have no final outcome in it; and recipients that
    /// are unknown because too many messages were tracked.
    pub(super) fn open(&self) -> (u64, u64) {
        (self.followed.by_id.values().map(|message| message.open).sum(), self.followed.given_up)
    }

    pub(super) fn event(&self, event: Event) -> u64 {
        self.events.get(event.name()).copied().unwrap_or(0)
    }

    pub(super) fn count_unreadable(&mut self) {
        self.unreadable += 1;
    }

    pub(super) fn count(&mut self, line: &Line<'_>) {
        self.lines += 1;
        self.count_time(&line.time);
        match line.what {
            What::Info => {}
            What::Warning => drop(self.warnings.count(&format!("warning: {}", line.text("message")))),
            What::Error => drop(self.warnings.count(&format!("error: {}", line.text("message")))),
            What::Mail(event) => {
                *self.events.entry(event.name()).or_default() += 1;
                self.count_hour(event, &line.time);
                self.count_event(event, line);
            }
        }
    }

    fn count_event(&mut self, event: Event, line: &Line<'_>) {
        match event {
            Event::Received => self.count_received(line),
            Event::Delivered => self.count_delivered(line),
            Event::Deferred => self.count_failure(line, |fate| fate.deferred += 1),
            Event::Bounced => {
                self.count_failure(line, |fate| fate.bounced += 1);
                self.followed.end(line.text("id"));
            }
            Event::Removed => self.followed.end(line.text("id")),
            Event::Refused => self.count_refused(line),
            Event::Login => {
                self.logins.count(line.text("result"));
                if matches!(line.text("result"), "refused" | "throttled") {
                    self.login_failures.count(line.text("client"));
                }
            }
            Event::Held | Event::Released | Event::Insecure | Event::SetAside => {}
        }
    }

    fn count_received(&mut self, line: &Line<'_>) {
        let (size, recipients) = (line.number("size"), line.number("recipients"));
        self.received.octets += size;
        self.received.recipients += recipients;
        self.followed.begin(line.text("id"), size, recipients);
        let sender = line.address("from");
        *self.received.senders.count(if sender.is_empty() { "<>" } else { sender }) += size;
        let client = line.text("client");
        *self.received.clients.count(if client.is_empty() { "this machine" } else { client }) += size;
        if !line.text("user").is_empty() {
            *self.received.users.count(line.text("user")) += size;
        }
    }

    fn count_delivered(&mut self, line: &Line<'_>) {
        let (id, delay) = (line.text("id"), line.number("delay_ms"));
        let size = self.followed.size(id);
        self.followed.end(id);
        self.delivered.octets += size.unwrap_or(0);
        self.delivered.unsized_ += u64::from(size.is_none());
        let delays =
            if line.text("relay").is_empty() { &mut self.delivered.local } else { &mut self.delivered.relayed };
        delays.record(delay);
        self.count_fate(line, |fate| {
            fate.delivered += 1;
            fate.octets += size.unwrap_or(0);
            fate.delay_ms += delay;
        });
    }

    fn count_failure(&mut self, line: &Line<'_>, counted: impl Fn(&mut Fate)) {
        let reasons = if line.what == What::Mail(Event::Deferred) { &mut self.deferred } else { &mut self.bounced };
        reasons.count(&in_general(line.text("reason")));
        self.count_fate(line, counted);
    }

    fn count_fate(&mut self, line: &Line<'_>, counted: impl Fn(&mut Fate)) {
        let to = line.address("to");
        counted(self.domains.count(to.rsplit_once('@').map_or(to, |(_, domain)| domain)));
        let is_here = line.what == What::Mail(Event::Delivered) && line.text("relay").is_empty();
        let relay = if is_here { line.text("transport") } else { line.text("relay") };
        // If no host replied, there is none to count; the reason names the host.
        if !relay.is_empty() {
            counted(self.next_hops.count(relay.split_once('[').map_or(relay, |(host, _)| host)));
        }
    }

    fn count_refused(&mut self, line: &Line<'_>) {
        let reply = line.text("reply");
        let class = if reply.starts_with('5') { &mut self.refused.permanently } else { &mut self.refused.temporarily };
        *class += 1;
        self.refused.reasons.count(&format!("{} {}", line.text("stage"), in_general(reply)));
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

    fn count_hour(&mut self, event: Event, time: &str) {
        let hour = &time[..HOUR_OCTETS];
        if !self.hours.contains_key(hour) {
            if self.hours.len() >= HOURS_MAX {
                return;
            }
            self.hours.insert(hour.into(), Hour::default());
        }
        let Some(hour) = self.hours.get_mut(hour) else { return };
        match event {
            Event::Received => hour.received += 1,
            Event::Delivered => hour.delivered += 1,
            Event::Deferred => hour.deferred += 1,
            Event::Bounced => hour.bounced += 1,
            Event::Refused => hour.refused += 1,
            Event::Held | Event::Released | Event::Removed | Event::Login | Event::Insecure | Event::SetAside => {}
        }
    }
}

/// A reply without its variable parts: text in angle brackets becomes `<>`, and numbers become `N`,
/// except reply codes and numbers with dots such as IP addresses.
fn in_general(reply: &str) -> String {
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
    use crate::log_summary::line::parse;

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
            assert_eq!(in_general(reply), general, "{reply}");
        }
    }

    #[test]
    fn so_many_messages_are_followed_and_no_more() {
        let mut summary = Summary::default();
        for n in 0..FOLLOWED_MAX + 10 {
            let line = format!("2026-11-20T17:46:16.123Z received id={n} from=<a@b> recipients=2 size=10");
            summary.count(&parse(&line).unwrap());
        }
        assert_eq!(summary.followed.by_id.len(), FOLLOWED_MAX);
        assert_eq!(summary.open(), (2 * FOLLOWED_MAX as u64, 20));
        for n in [3, 100, 100] {
            let line = format!("2026-11-20T17:46:16.123Z delivered id={n} to=<a@b> transport=x delay_ms=1");
            summary.count(&parse(&line).unwrap());
        }
        assert_eq!((summary.delivered.octets, summary.delivered.unsized_), (20, 1));
        assert_eq!(summary.open().0, 2 * FOLLOWED_MAX as u64 - 2);
    }
}
