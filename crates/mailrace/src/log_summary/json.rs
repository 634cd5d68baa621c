//! The summary as a JSON object. Sizes are in bytes, delays in milliseconds, times in UTC.

use serde_json::{Value, json};

use super::count::{DelayHistogram, DestinationCounts, LogSummary};
use super::top::TopCounter;
use server_log::MailEventKind;

/// The whole summary, with at most `top` lines per list.
pub(super) fn render(summary: &LogSummary, top: usize) -> Value {
    let (received, delivered, refused) = (&summary.received, &summary.delivered, &summary.refused);
    let (open, unfollowed) = summary.open();
    let hours = summary.hours.iter().map(|(hour, it)| {
        json!({
            "hour": hour, "received": it.received, "delivered": it.delivered, "deferred": it.deferred,
            "bounced": it.bounced, "refused": it.refused,
        })
    });
    json!({
        "first": summary.span.as_ref().map(|(first, _)| first),
        "last": summary.span.as_ref().map(|(_, last)| last),
        "lines": summary.lines,
        "unreadable_lines": summary.unreadable,
        "events": summary.events,
        "received": {
            "messages": summary.event(MailEventKind::Received), "octets": received.octets, "recipients": received.recipients,
            "senders": amounts(&received.senders, top), "clients": amounts(&received.clients, top),
            "users": amounts(&received.users, top),
        },
        "delivered": {
            "recipients": summary.event(MailEventKind::Delivered), "octets": delivered.octets,
            "of_unknown_size": delivered.without_size,
            "local": delays(&delivered.local), "relayed": delays(&delivered.relayed),
        },
        "open": { "recipients": open, "not_followed": unfollowed },
        "deferred": { "attempts": summary.event(MailEventKind::Deferred), "reasons": counts(&summary.deferred, top) },
        "bounced": { "recipients": summary.event(MailEventKind::Bounced), "reasons": counts(&summary.bounced, top) },
        "refused": {
            "temporarily": refused.temporarily, "permanently": refused.permanently,
            "reasons": counts(&refused.reasons, top), "clients": counts(&refused.clients, top),
            "rules": counts(&refused.rules, top),
        },
        "logins": { "results": counts(&summary.logins, top), "failing_clients": counts(&summary.login_failures, top) },
        "domains": destinations(&summary.domains, top),
        "next_hops": destinations(&summary.next_hops, top),
        "warnings": counts(&summary.warnings, top),
        "by_hour": hours.collect::<Value>(),
    })
}

fn counts(list: &TopCounter<()>, top: usize) -> Value {
    let row =
        |(name, row): (&str, &super::top::TopEntry<()>)| json!({"name": name, "count": row.count, "error": row.error});
    list.top(top).into_iter().map(row).collect()
}

fn amounts(list: &TopCounter<u64>, top: usize) -> Value {
    let rows = list.top(top).into_iter();
    rows.map(|(name, row)| json!({"name": name, "messages": row.count, "error": row.error, "octets": row.detail}))
        .collect()
}

fn destinations(list: &TopCounter<DestinationCounts>, top: usize) -> Value {
    let rows = list.top(top).into_iter().map(|(name, row)| {
        let DestinationCounts { delivered, octets, deferred, bounced, delay_ms } = &row.detail;
        json!({
            "name": name, "delivered": delivered, "octets": octets, "deferred": deferred, "bounced": bounced,
            "delay_ms_mean": delay_ms.checked_div(*delivered), "error": row.error,
        })
    });
    rows.collect()
}

fn delays(delays: &DelayHistogram) -> Value {
    json!({
        "recipients": delays.count(), "delay_ms_p50": delays.percentile(50.0), "delay_ms_p90": delays.percentile(90.0),
        "delay_ms_p99": delays.percentile(99.0), "delay_ms_max": delays.max(),
    })
}
