//! The shared state of a sink: one for all threads, and one for the sessions of each thread.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mail::Address;
use protocol::smtp::server::{Config, Flavor, Limits, Tls, Tolerance};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::Options;
use super::rule::{Action, Rule, Stage, Stall};
use super::tally::Tally;
use crate::Seen;
use crate::ledger::Scribe;
use crate::verify::write_record_line;

/// The state that all threads share.
#[derive(Debug)]
pub(super) struct House {
    machine: Arc<Config>,
    verifies: bool,
    rules: Vec<Rule>,
    stalls: Vec<Stall>,
    record: Option<Arc<Scribe>>,
    began: Instant,
    seed: u64,
    /// Ends the sink after this many messages.
    messages_max: Option<u64>,
    messages: AtomicU64,
    enough: Notify,
    guests_so_far: AtomicU64,
    guests: AtomicU64,
    guests_peak: AtomicU64,
}

/// The state of the sessions of one thread.
#[derive(Debug)]
pub(super) struct Counter {
    pub(super) house: Arc<House>,
    tally: Mutex<Tally>,
}

impl House {
    pub(super) fn new(options: &Options, record: Option<Arc<Scribe>>) -> House {
        let stall = |rule: &Rule| if let Action::Stall(stall) = rule.action { Some(stall) } else { None };
        House {
            machine: Arc::new(machine(options)),
            verifies: options.verify || options.ledger.is_some() || options.record.is_some(),
            rules: options.rules.clone(),
            stalls: options.rules.iter().filter_map(stall).collect(),
            record,
            began: Instant::now(),
            seed: options.seed,
            messages_max: options.messages,
            messages: AtomicU64::new(0),
            enough: Notify::new(),
            guests_so_far: AtomicU64::new(0),
            guests: AtomicU64::new(0),
            guests_peak: AtomicU64::new(0),
        }
    }

    /// The configuration of the SMTP server machine.
    pub(super) fn machine(&self) -> Arc<Config> {
        self.machine.clone()
    }

    /// Whether messages are examined.
    pub(super) fn verifies(&self) -> bool {
        self.verifies
    }

    pub(super) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Waits until the requested number of messages has arrived.
    pub(super) async fn enough(&self) {
        self.enough.notified().await;
    }

    /// The highest number of concurrent sessions.
    pub(super) fn guests_peak(&self) -> u64 {
        self.guests_peak.load(Relaxed)
    }

    /// The rules of a stage, with their numbers.
    pub(super) fn rules_at(&self, stage: Stage) -> impl Iterator<Item = (usize, &Rule)> {
        self.rules.iter().enumerate().filter(move |(_, rule)| rule.stage == stage)
    }

    /// A bit for each rule of DATA or the end of the message that a recipient in this domain
    /// activates.
    pub(super) fn rules_touched(&self, domain: &str) -> u64 {
        let later = |rule: &Rule| matches!(rule.stage, Stage::Data | Stage::Message) && !rule.is_for_all();
        let touched = self.rules.iter().enumerate().filter(|(_, rule)| later(rule) && rule.names(domain));
        touched.fold(0, |bits, (number, _)| bits | 1 << number)
    }

    /// Whether a session may have to be slowed down.
    pub(super) fn has_slow_rules(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.action, Action::Slow { .. }))
    }

    /// Waits while the whole sink stalls.
    pub(super) async fn pass_stalls(&self) {
        while let Some(left) = self.stall_left() {
            sleep(left).await;
        }
    }

    fn stall_left(&self) -> Option<Duration> {
        self.stalls.iter().find_map(|stall| stall.left(self.began.elapsed()))
    }
}

impl Counter {
    pub(super) fn new(house: Arc<House>) -> Counter {
        let tally = Mutex::new(Tally::new(house.rules.len()));
        Counter { house, tally }
    }

    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        // Counting does not panic, so the data is consistent.
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a new session. Its random numbers depend only on the seed and its number.
    pub(super) fn enter(&self) -> fastrand::Rng {
        self.tally().connected(Instant::now());
        let guests = self.house.guests.fetch_add(1, Relaxed) + 1;
        self.house.guests_peak.fetch_max(guests, Relaxed);
        let number = self.house.guests_so_far.fetch_add(1, Relaxed);
        fastrand::Rng::with_seed(self.house.seed.wrapping_add(number))
    }

    /// Counts the end of a session.
    pub(super) fn leave(&self) {
        self.house.guests.fetch_sub(1, Relaxed);
    }

    /// Counts an accepted message.
    pub(super) fn receive(&self, recipients: &[Address], octets: u64) {
        self.tally().received(recipients, octets, Instant::now());
        let messages = self.house.messages.fetch_add(1, Relaxed) + 1;
        if Some(messages) == self.house.messages_max {
            self.house.enough.notify_one();
        }
    }

    /// Records an examined message.
    pub(super) fn see(&self, seen: Option<Seen>, recipients: &[Address]) {
        self.tally().copies.saw(seen, recipients);
        if let Some(record) = &self.house.record {
            record.note(|lines| {
                recipients.iter().for_each(|recipient| write_record_line(seen, recipient.as_str(), lines));
            });
        }
    }
}

/// The limits are so high that a sink never disconnects a load with many commands or long pauses.
fn machine(options: &Options) -> Config {
    const NEVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    let limits = Limits {
        command_line_octets_max: 64 << 10,
        commands_max: u32::MAX,
        errors_max: u32::MAX,
        failed_logins_max: u32::MAX,
        recipients_max: options.recipients_max,
        message_octets_max: options.message_size_max,
        header_octets_max: options.message_size_max,
        received_max: 1000,
        session_time_max: NEVER,
        idle_time_max: options.idle_time_max,
        ..Limits::default()
    };
    let flavor = if options.lmtp { Flavor::Lmtp } else { Flavor::Smtp };
    let (hostname, tolerance) = (options.hostname.as_str().into(), Tolerance::default());
    Config { hostname, flavor, tls: Tls::Never, auth: None, tolerance, limits }
}
