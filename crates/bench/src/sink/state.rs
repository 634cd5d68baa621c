//! The shared state of a sink: one for all threads, and one for the sessions of each thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mail::Address;
use parking_lot::Mutex;
use protocol::TlsMode;
use protocol::smtp::server::{MailProtocol, SessionLimits, SmtpServerConfig, TolerancePolicy};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::SinkOptions;
use super::rule::{RuleAction, RuleStage, SinkRule, StallSchedule};
use super::tally::SinkTally;
use crate::StampCheckResult;
use crate::ledger::LineWriter;
use crate::verify::write_record_line;

/// The state that all threads share.
#[derive(Debug)]
pub(super) struct SinkState {
    protocol_config: Arc<SmtpServerConfig>,
    verifies: bool,
    rules: Vec<SinkRule>,
    stalls: Vec<StallSchedule>,
    record: Option<Arc<LineWriter>>,
    began: Instant,
    seed: u64,
    /// Ends the sink after this many messages.
    messages_max: Option<u64>,
    messages: AtomicU64,
    messages_max_reached: Notify,
    sessions_total: AtomicU64,
    sessions_open: AtomicU64,
    sessions_peak: AtomicU64,
}

/// The state of the sessions of one thread.
#[derive(Debug)]
pub(super) struct ThreadContext {
    pub(super) state: Arc<SinkState>,
    pub(super) tally: Mutex<SinkTally>,
}

impl SinkState {
    pub(super) fn new(options: &SinkOptions, record: Option<Arc<LineWriter>>) -> SinkState {
        let stall = |rule: &SinkRule| if let RuleAction::Stall(stall) = rule.action { Some(stall) } else { None };
        SinkState {
            protocol_config: Arc::new(build_protocol_config(options)),
            verifies: options.verify || options.ledger.is_some() || options.record.is_some(),
            rules: options.rules.clone(),
            stalls: options.rules.iter().filter_map(stall).collect(),
            record,
            began: Instant::now(),
            seed: options.seed,
            messages_max: options.messages,
            messages: AtomicU64::new(0),
            messages_max_reached: Notify::new(),
            sessions_total: AtomicU64::new(0),
            sessions_open: AtomicU64::new(0),
            sessions_peak: AtomicU64::new(0),
        }
    }

    /// The configuration of the SMTP server machine.
    pub(super) fn protocol_config(&self) -> Arc<SmtpServerConfig> {
        self.protocol_config.clone()
    }

    /// Whether messages are examined.
    pub(super) fn verifies(&self) -> bool {
        self.verifies
    }

    pub(super) fn rules(&self) -> &[SinkRule] {
        &self.rules
    }

    /// Waits until the requested number of messages has arrived.
    pub(super) async fn wait_for_messages_max(&self) {
        self.messages_max_reached.notified().await;
    }

    /// The highest number of concurrent sessions.
    pub(super) fn sessions_peak(&self) -> u64 {
        self.sessions_peak.load(Relaxed)
    }

    /// The rules of a stage, with their numbers.
    pub(super) fn rules_at(&self, stage: RuleStage) -> impl Iterator<Item = (usize, &SinkRule)> {
        self.rules.iter().enumerate().filter(move |(_, rule)| rule.stage == stage)
    }

    /// A bit for each rule of DATA or the end of the message that a recipient in this domain
    /// activates.
    pub(super) fn rules_matching(&self, domain: &str) -> u64 {
        let later = |rule: &SinkRule| matches!(rule.stage, RuleStage::Data | RuleStage::Message) && !rule.matches_all();
        let matching = self.rules.iter().enumerate().filter(|(_, rule)| later(rule) && rule.matches_domain(domain));
        matching.fold(0, |bits, (number, _)| bits | 1 << number)
    }

    /// Whether a session may have to be slowed down.
    pub(super) fn has_slow_rules(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.action, RuleAction::Slow { .. }))
    }

    /// Waits while the whole sink stalls.
    pub(super) async fn wait_out_stalls(&self) {
        while let Some(left) = self.stall_left() {
            sleep(left).await;
        }
    }

    fn stall_left(&self) -> Option<Duration> {
        self.stalls.iter().find_map(|stall| stall.time_left(self.began.elapsed()))
    }
}

impl ThreadContext {
    pub(super) fn new(state: Arc<SinkState>) -> ThreadContext {
        let tally = Mutex::new(SinkTally::new(state.rules.len()));
        ThreadContext { state, tally }
    }

    /// Counts a new session. Its random numbers depend only on the seed and its number.
    pub(super) fn session_started(&self) -> fastrand::Rng {
        self.tally.lock().record_connection(Instant::now());
        let sessions_open = self.state.sessions_open.fetch_add(1, Relaxed) + 1;
        self.state.sessions_peak.fetch_max(sessions_open, Relaxed);
        let number = self.state.sessions_total.fetch_add(1, Relaxed);
        fastrand::Rng::with_seed(self.state.seed.wrapping_add(number))
    }

    /// Counts the end of a session.
    pub(super) fn session_ended(&self) {
        self.state.sessions_open.fetch_sub(1, Relaxed);
    }

    /// Counts an accepted message.
    pub(super) fn message_accepted(&self, recipients: &[Address], octets: u64) {
        self.tally.lock().record_message(recipients, octets, Instant::now());
        let messages = self.state.messages.fetch_add(1, Relaxed) + 1;
        if Some(messages) == self.state.messages_max {
            self.state.messages_max_reached.notify_one();
        }
    }

    /// Records an examined message.
    pub(super) fn message_examined(&self, seen: Option<StampCheckResult>, recipients: &[Address]) {
        self.tally.lock().copies.record(seen, recipients);
        if let Some(record) = &self.state.record {
            record.append(|lines| {
                recipients.iter().for_each(|recipient| write_record_line(seen, recipient.as_str(), lines));
            });
        }
    }
}

/// The limits are so high that a sink never disconnects a load with many commands or long pauses.
fn build_protocol_config(options: &SinkOptions) -> SmtpServerConfig {
    const NEVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    let limits = SessionLimits {
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
        ..SessionLimits::default()
    };
    let flavor = if options.lmtp { MailProtocol::Lmtp } else { MailProtocol::Smtp };
    let (hostname, tolerance) = (options.hostname.as_str().into(), TolerancePolicy::default());
    SmtpServerConfig { hostname, flavor, tls: TlsMode::Never, auth: None, tolerance, limits }
}
