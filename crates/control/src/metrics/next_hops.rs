//! The metrics of single next hops: those with the most recipients, and no more of them than the
//! configuration allows, so that strangers cannot make the metrics long.

use queue::{ConcurrencyReason, Queues};

use super::families::{MetricFamilies, MetricKind};

/// A next hop. Its name may come from the DNS or from a recipient's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NextHopSample {
    name: Box<str>,
    /// Queued or in an attempt.
    recipients: usize,
    attempts: usize,
    concurrency: usize,
    states: [(&'static str, bool); 4],
    /// The code of its last error; 0: none.
    error_code: u16,
}

/// The next hops with the most recipients.
pub(super) fn largest<R: Clone>(queues: &Queues<R>, next_hops_max: usize) -> Vec<NextHopSample> {
    let sample = |(hop, recipients): (queue::NextHopView<'_>, usize)| NextHopSample {
        name: hop.name.into(),
        recipients,
        attempts: hop.attempts,
        concurrency: hop.concurrency,
        states: [
            ("dead", hop.probe_at.is_some()),
            ("suspect", hop.concurrency_reason == ConcurrencyReason::Suspect),
            ("adopted", hop.adopted_by.is_some()),
            ("paused", hop.pause.is_some()),
        ],
        error_code: hop.error.map_or(0, |error| error.code),
    };
    queues.largest_next_hops(next_hops_max).into_iter().map(sample).collect()
}

pub(super) fn write_largest(next_hops: &[NextHopSample], out: &mut MetricFamilies) {
    if next_hops.is_empty() {
        return;
    }
    let mut family = |name, help, value: fn(&NextHopSample) -> usize| {
        out.family(name, help, MetricKind::Gauge);
        next_hops.iter().for_each(|hop| out.sample(&[("next_hop", &hop.name)], value(hop)));
    };
    let help = "Recipients queued or in flight, of the next hops with the most";
    family("mailrace_next_hop_recipients", help, |hop| hop.recipients);
    family("mailrace_next_hop_attempts", "Attempts in progress at each of them", |hop| hop.attempts);
    let help = "Limit on the attempts at each of them, which adapts to its replies";
    family("mailrace_next_hop_attempts_limit", help, |hop| hop.concurrency);
    let help = "The reply code of the last error of each of them since it became known; 0 without one";
    family("mailrace_next_hop_error_code", help, |hop| usize::from(hop.error_code));
    let help = "Whether each of them is dead (cannot be reached), suspect (interrupted sessions), adopted by the queue \
                for lame next hops, or paused by the operator";
    out.family("mailrace_next_hop_state", help, MetricKind::Gauge);
    for hop in next_hops {
        hop.states.iter().for_each(|(state, is_so)| {
            out.sample(&[("next_hop", &hop.name), ("state", state)], u8::from(*is_so));
        });
    }
}
