//! Queues with five recipients in them, for tests: one in each state and one that has never been
//! tried.
//!
//! | number | message | from | to | queue | size | age | state |
//! |---|---|---|---|---|---|---|---|
//! | 0 | 7-0-1 | news@lists.example | bob@a.example | standard | 2000 | 2 h | held |
//! | 1 | | | amy@a.example | standard | | | waits, greylisted |
//! | 2 | | | joe@b.example | standard | | | waits, greylisted |
//! | 3 | 7-0-2 | carol@c.example | bob@a.example | lists | 1000 | 1 h | ready |
//! | 4 | 7-0-3 | <> | eve@d.example at mx.here | standard | 1000 | 1 h | in flight |

use std::collections::HashMap;
use std::time::Duration;

use clap::{Args, FromArgMatches};
use mail::{
    Address, BodyType, ClientInfo, DsnNotify, EnhancedCode, Envelope, Outcome, QueueId, Recipient, Reply, SpoolId,
    Timestamp,
};
use queue::{
    AdmittedMessage, Attempt, ContactResult, HopAdoptionPolicy, NextHopLimits, NextHopRoute, PendingRecipient,
    QueueConfig, QueueNumber, Queues, RecipientView, SchedulerConfig,
};

use super::recipient_filter::RecipientFilter;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// 2026-11-20T17:46:16.123Z.
pub(crate) const NOW: Timestamp = Timestamp(1_795_196_776_123);

/// The queues, and the messages with their sizes.
pub(crate) struct Sample {
    pub(crate) queues: Queues<()>,
    pub(crate) messages: HashMap<QueueId, (Envelope, u64)>,
    /// The attempt that is in flight.
    pub(crate) attempt: Attempt<()>,
}

impl Sample {
    /// The number of an entry in the table above.
    pub(crate) fn number(&self, entry: &RecipientView) -> u32 {
        match entry.id.sequence() {
            1 => entry.ordinal,
            other => other as u32 + 1,
        }
    }
}

/// Parses a filter from command line options.
pub(crate) fn filter(options: &[&str]) -> RecipientFilter {
    let command = RecipientFilter::augment_args(clap::Command::new("filter").no_binary_name(true));
    RecipientFilter::from_arg_matches(&command.try_get_matches_from(options).unwrap()).unwrap()
}

pub(crate) fn queues() -> Sample {
    let mut queues = Queues::new(config(), 0);
    let mut messages = HashMap::new();
    let (standard, lists) = (QueueNumber(0), QueueNumber(1));
    let mut attempt = None;
    for (sequence, sender, to, queue, size, age) in [
        (1, Some("news@lists.example"), &["bob@a.example", "amy@a.example", "joe@b.example"][..], standard, 2000, 2),
        (3, None, &["eve@d.example"], standard, 1000, 1),
        (2, Some("carol@c.example"), &["bob@a.example"], lists, 1000, 1),
    ] {
        let (id, accepted_at) = (QueueId::new(SpoolId::new(7), 0, sequence), NOW - HOUR * age);
        messages.insert(id, (envelope(sender, to, accepted_at), size));
        let pending = |(ordinal, to): (u32, &&str)| {
            let domain = to.split_once('@').unwrap().1;
            let name = if domain == "d.example" { format!("mx.here!{domain}") } else { domain.into() };
            let (destination, held) = (queues.intern_destination(queue, &name), sequence == 1 && ordinal == 0);
            PendingRecipient { ordinal, destination, attempts: 0, due: accepted_at, held }
        };
        let recipients: Vec<_> = (0..).zip(to).map(pending).collect();
        let admission = AdmittedMessage {
            id,
            sender: sequence,
            accepted_at,
            recovered: false,
            separate_attempts: false,
            recipients,
        };
        queues.admit(accepted_at, &admission);
        route_all(&mut queues, accepted_at);
        match sequence {
            1 => defer_all(&mut queues),
            3 => attempt = queues.next_attempt(accepted_at),
            _ => {}
        }
    }
    Sample { queues, messages, attempt: attempt.unwrap() }
}

/// Answers all route requests.
fn route_all(queues: &mut Queues<()>, now: Timestamp) {
    while let Some(destination) = queues.next_unrouted() {
        let next_hop = format!("smtp:{}", queues.destination_name(destination)).into();
        let routed = NextHopRoute {
            next_hop,
            route: (),
            limits: NextHopLimits::default(),
            until: NOW + HOUR * 24,
            transient: false,
        };
        queues.set_route(now, destination, routed);
    }
}

/// Defers every recipient.
fn defer_all(queues: &mut Queues<()>) {
    while let Some(mut attempt) = queues.next_attempt(NOW - HOUR) {
        queues.finish_contact(NOW - HOUR, &mut attempt, ContactResult::Answered { slowest: Duration::ZERO });
        let outcome = Outcome::Deferred(Reply::new(450, EnhancedCode(4, 7, 1), "Greylisted, come again"));
        let verdict = queues.compute_verdict(NOW - HOUR, &attempt, outcome);
        queues.report_verdicts(NOW - HOUR, attempt, &[verdict]);
    }
}

fn config() -> SchedulerConfig {
    let queue = |name: &str| QueueConfig {
        name: name.into(),
        retry: queue::RetryPolicy { first: HOUR * 2, jitter: 0.0, ..queue::RetryPolicy::default() },
        ..QueueConfig::default()
    };
    let adopts = HopAdoptionPolicy { failures: 3, slower_than: HOUR, release_after: HOUR, per_next_hop: 2 };
    let lame = QueueConfig { adopts: Some(adopts), ..queue("lame") };
    SchedulerConfig { queues: vec![queue("standard"), queue("lists"), lame], ..SchedulerConfig::default() }
}

fn envelope(sender: Option<&str>, to: &[&str], accepted_at: Timestamp) -> Envelope {
    let recipient = |text: &&str| Recipient {
        address: text.parse::<Address>().unwrap(),
        original: None,
        notify: DsnNotify::default(),
        orcpt: None,
        is_forwarded: false,
    };
    Envelope {
        sender: sender.map(|sender| sender.parse().unwrap()),
        recipients: to.iter().map(recipient).collect(),
        accepted_at,
        client: ClientInfo { address: None, helo: "".into(), trusted: true },
        body_type: BodyType::default(),
        smtputf8: false,
        ret: None,
        envid: None,
        content_filter: false,
    }
}
