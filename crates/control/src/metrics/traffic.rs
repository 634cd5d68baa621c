//! The metrics of what goes in and out: what each listener answers, and what becomes of the attempts of
//! each transport.

use dispatch::TransportCounts;
use intake::ListenerCounts;

use super::families::{MetricFamilies, MetricKind};

pub(super) fn write_listeners(listeners: &[ListenerCounts], out: &mut MetricFamilies) {
    let mut family = |name, help, kind, value: fn(&ListenerCounts) -> u64| {
        out.family(name, help, kind);
        for listener in listeners {
            let address = listener.address.to_string();
            out.sample(&[("protocol", listener.protocol), ("address", &address)], value(listener));
        }
    };
    let help = "Sessions since the start, by listener of SMTP, LMTP or submission";
    family("mailrace_listener_connections_total", help, MetricKind::Counter, |listener| listener.connections);
    family("mailrace_listener_sessions", "Open sessions, by listener", MetricKind::Gauge, |listener| listener.sessions);
    let help = "Recipients that clients gave, by the reply: accepted, deferred (4xx) or refused (5xx)";
    write_verdicts("mailrace_listener_recipients_total", help, listeners, |listener| &listener.recipients, out);
    let help = "Messages that clients sent, by the reply: accepted, deferred (4xx) or refused (5xx)";
    write_verdicts("mailrace_listener_messages_total", help, listeners, |listener| &listener.messages, out);
}

fn write_verdicts(
    name: &'static str,
    help: &str,
    listeners: &[ListenerCounts],
    counts: fn(&ListenerCounts) -> &[(&'static str, u64); 3],
    out: &mut MetricFamilies,
) {
    out.family(name, help, MetricKind::Counter);
    for listener in listeners {
        let address = listener.address.to_string();
        for (verdict, count) in counts(listener) {
            out.sample(&[("protocol", listener.protocol), ("address", &address), ("verdict", verdict)], count);
        }
    }
}

pub(super) fn write_transports(transports: &[(Box<str>, TransportCounts)], out: &mut MetricFamilies) {
    out.family("mailrace_transport_attempts_total", "Attempts by transport", MetricKind::Counter);
    for (transport, counts) in transports {
        out.sample(&[("transport", transport)], counts.attempts);
    }
    let help = "Recipients by transport and outcome; `none`: there was no route";
    out.family("mailrace_transport_recipients_total", help, MetricKind::Counter);
    for (transport, counts) in transports {
        let outcomes = [("delivered", counts.delivered), ("deferred", counts.deferred), ("failed", counts.failed)];
        for (outcome, count) in outcomes {
            out.sample(&[("transport", transport), ("outcome", outcome)], count);
        }
    }
}
