//! Explanations as the command prints them: the one place where their findings become sentences for a terminal.
//! The server makes no such text, except for the reason of a verification.

use std::fmt::{self, Write};
use std::time::Duration;

use mailbox::quota::QuotaLimits;

use crate::explanation::{
    AccessExplanation, AccessRuleExplanation, AccessVerdict, AddressExplanation, ConditionResult,
    DestinationExplanation, DestinationSource, DirectoryFinding, DueTime, ExplainedState, ForwardedSender, LocalTarget,
    MailboxQuota, MessageExplanation, NextHopLimitsExplanation, NextHopLoad, Obstacle, QueueChoice, QueueRule,
    RateLimit, RecipientExplanation, RecipientRouteExplanation, RelayPermission, RouteExplanation, RouteHost,
    StageExplanation, StageResult, TransportLimits,
};
use crate::text::{plural, short_duration};

/// How mail for an address would be routed, in lines.
pub fn address_text(explanation: &AddressExplanation) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_address(explanation, &mut text);
    text
}

/// What a message waits for, in lines.
pub fn message_text(explanation: &MessageExplanation) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_message(explanation, &mut text);
    text
}

fn write_address(explanation: &AddressExplanation, out: &mut String) -> fmt::Result {
    let AddressExplanation { address, normalized, access, directory, forwarded_sender, recipients, omitted } =
        explanation;
    if let Some(access) = access {
        write_access(access, out)?;
    }
    if address != normalized {
        writeln!(out, "{address}: the postmaster of this host, {normalized}")?;
    }
    writeln!(out, "{normalized}: {}", directory_sentence(directory))?;
    if let Some(sender) = forwarded_sender {
        writeln!(out, "  sender in other domains: {}", sender_sentence(sender))?;
    }
    recipients.iter().try_for_each(|recipient| write_recipient_route(recipient, out))?;
    if *omitted > 0 {
        writeln!(out, "and {omitted} more addresses")?;
    }
    Ok(())
}

fn write_access(access: &AccessExplanation, out: &mut String) -> fmt::Result {
    if access.stages.is_empty() {
        writeln!(out, "access: no rules")?;
    }
    for StageExplanation { stage, rules, result } in &access.stages {
        rules.iter().try_for_each(|rule| writeln!(out, "{stage}: {}", rule_sentence(rule)))?;
        writeln!(out, "{stage}: {}", stage_sentence(*result))?;
    }
    match &access.relaying {
        None => Ok(()),
        Some(RelayPermission { client, refusal: None }) => {
            writeln!(out, "relay: a client at {client} may relay, by relay.networks")
        }
        Some(RelayPermission { client, refusal: Some(codes) }) => {
            writeln!(out, "relay: a client at {client} may not relay without login: {codes} at RCPT")
        }
    }
}

fn rule_sentence(AccessRuleExplanation { rule, conditions, verdict }: &AccessRuleExplanation) -> String {
    let conditions: Vec<_> =
        conditions.iter().map(|one| format!("{}: {}", one.condition, condition_phrase(&one.result))).collect();
    let conditions = if conditions.is_empty() { "always".to_owned() } else { conditions.join("; ") };
    let verdict = match verdict {
        AccessVerdict::NoMatch => "does not match".to_owned(),
        AccessVerdict::Accept => "accept".to_owned(),
        AccessVerdict::AcceptInList => "accept, for the rules of its list only".to_owned(),
        AccessVerdict::Hold => "hold".to_owned(),
        AccessVerdict::Discard => "discard".to_owned(),
        AccessVerdict::DiscardInList => "discard, for the rules of its list only".to_owned(),
        AccessVerdict::Prepend { field } => format!("prepend {field}"),
        AccessVerdict::Copy { address } => format!("copy to {address}"),
        AccessVerdict::Redirect { address } => format!("redirect to {address}"),
        AccessVerdict::Edit => "change the message".to_owned(),
        AccessVerdict::Log { text } => format!("log {text:?}"),
        AccessVerdict::EnterClass { class } => format!("the rules of class {class:?}"),
        AccessVerdict::Refuse { reply } => format!("refuse: {reply}"),
        AccessVerdict::DeferIfRefused { reply } => format!("defer, if something later refuses: {reply}"),
        AccessVerdict::Defer { reply } => format!("defer: {reply}"),
    };
    format!("{rule:?} ({conditions}): {verdict}")
}

fn condition_phrase(result: &ConditionResult) -> String {
    match result {
        ConditionResult::Holds => "yes".to_owned(),
        ConditionResult::Listed { name } => format!("yes, {name}"),
        ConditionResult::Value { value, is_known: true } => format!("yes, {value:?}"),
        ConditionResult::Value { value, is_known: false } => format!("yes, {value:?}, which is not a known action"),
        ConditionResult::Fails => "no".to_owned(),
        ConditionResult::TableUnavailable { reason } => format!("unknown: {reason}"),
        ConditionResult::ListUnavailable { reason } => format!("no, the list is unavailable: {reason}"),
        ConditionResult::NotAsked => "not asked".to_owned(),
    }
}

fn stage_sentence(result: StageResult) -> &'static str {
    match result {
        StageResult::NoRules => "no rules",
        StageResult::NeedsHelo => "not checked: give --helo",
        StageResult::NeedsMessage => "not checked: it depends on the verdicts on a message",
        StageResult::Accepted => "accepted; later stages are skipped",
        StageResult::Decided => "decided here",
        StageResult::Continues => "continues",
    }
}

/// What the directory says, as a sentence without a period.
pub(crate) fn directory_sentence(finding: &DirectoryFinding) -> String {
    match finding {
        DirectoryFinding::Mailbox => "a local mailbox".to_owned(),
        DirectoryFinding::Alias { addresses } => format!("local; expands to {}", addresses.join(", ")),
        DirectoryFinding::Remote => "remote: not one of our domains".to_owned(),
        DirectoryFinding::UnknownUser => "unknown user in one of our domains".to_owned(),
        DirectoryFinding::TooManySteps => "too many alias steps, possibly an alias loop".to_owned(),
        DirectoryFinding::TooManyAddresses => "it expands to too many addresses".to_owned(),
        DirectoryFinding::Unavailable { reason } => format!("cannot be looked up now: {reason}"),
        DirectoryFinding::ReturnPath => "the sender of forwarded mail (SRS), only for bounces".to_owned(),
        DirectoryFinding::ForgedReturnPath => "not an SRS address of this host".to_owned(),
        DirectoryFinding::ExpiredReturnPath => "an SRS address that has expired".to_owned(),
    }
}

fn sender_sentence(sender: &ForwardedSender) -> String {
    match sender {
        ForwardedSender::Rewritten { domain } => format!("an SRS address in {domain}, if a stranger sends it"),
        ForwardedSender::TooLong { sender } => format!("{sender}, which is too long for SRS"),
        ForwardedSender::Unknown { reason } => format!("unknown: {reason}"),
    }
}

fn write_recipient_route(recipient: &RecipientRouteExplanation, out: &mut String) -> fmt::Result {
    writeln!(out, "{}", recipient.address)?;
    writeln!(out, "  queue: {}, {}", recipient.queue.name, queue_rule(&recipient.queue))?;
    let source = match recipient.destination_source {
        DestinationSource::Domain => None,
        DestinationSource::Directory => Some("from the directory"),
        DestinationSource::Route => Some("by a route"),
    };
    if let Some(source) = source {
        writeln!(out, "  destination: {}, {source}", recipient.destination)?;
    }
    write_route(&recipient.route, out)?;
    if let Some(limits) = &recipient.limits {
        writeln!(out, "  limits: {}", limits_phrase(limits))?;
    }
    if let Some(limits) = &recipient.next_hop_limits {
        writeln!(out, "  limits for this next hop: {}", next_hop_limits_phrase(limits))?;
    }
    if let Some(quota) = &recipient.quota {
        writeln!(out, "  quota: {}", quota_phrase(quota))?;
    }
    if let Some(load) = &recipient.next_hop_load {
        writeln!(out, "  next hop now: {}", load_phrase(load))?;
    }
    let has_next_hop = matches!(recipient.route, RouteExplanation::Local { .. } | RouteExplanation::Hosts { .. });
    match has_next_hop || !recipient.obstacles.is_empty() {
        true => write_obstacles(&recipient.obstacles, out),
        false => Ok(()),
    }
}

/// The rule that chooses a queue, with those that may choose another one.
pub(crate) fn queue_rule(choice: &QueueChoice) -> String {
    let mut text = match &choice.rule {
        QueueRule::LocalMailbox => "because the mailbox is local".to_owned(),
        QueueRule::Sender { pattern } => format!("by sender {pattern}"),
        QueueRule::SenderTable { table } => format!("by sender table '{table}'"),
        QueueRule::Domain { pattern } => format!("by domain {pattern}"),
        QueueRule::Default => "because no rule matches".to_owned(),
    };
    for (kind, count) in [("client", choice.client_rules), ("header", choice.header_rules)] {
        if count > 0 {
            text += &format!("; unless a {kind} rule matches ({})", plural(count, "rule"));
        }
    }
    text
}

fn write_route(route: &RouteExplanation, out: &mut String) -> fmt::Result {
    match route {
        RouteExplanation::Local { transport, target } => {
            let target = match target {
                LocalTarget::Mailbox => "local mailbox",
                LocalTarget::Program => "a program",
                LocalTarget::Discard => "none, mail is discarded",
            };
            writeln!(out, "  route: {target}, transport {transport}")
        }
        RouteExplanation::Hosts { next_hop, transport, valid_for_seconds, hosts, tls_notes } => {
            let good_for = short_duration(Duration::from_secs(*valid_for_seconds));
            writeln!(out, "  route: to {next_hop}, transport {transport}; valid for {good_for}")?;
            for RouteHost { rank, name, endpoints, tls } in hosts {
                let tls = tls.as_ref().map(|tls| format!("; TLS: {tls}")).unwrap_or_default();
                writeln!(out, "    {rank}. {name}: {}{tls}", endpoints.join(", "))?;
            }
            tls_notes.iter().try_for_each(|note| writeln!(out, "  tls: {note}"))
        }
        RouteExplanation::Deferred { reply } => writeln!(out, "  route: unknown now, mail waits: {reply}"),
        RouteExplanation::Failed { reply } => writeln!(out, "  route: none, mail fails: {reply}"),
        RouteExplanation::Unknown { reason } => writeln!(out, "  route: unknown: {reason}"),
    }
}

fn rate_phrase(RateLimit { messages, per_seconds }: &RateLimit) -> String {
    format!("{} every {per_seconds}s", plural(*messages as usize, "message"))
}

fn limits_phrase(TransportLimits { attempts, recipients_per_attempt, rate }: &TransportLimits) -> String {
    let recipients =
        recipients_per_attempt.map(|most| format!(", {} each", plural(most, "recipient"))).unwrap_or_default();
    let rate = rate.as_ref().map_or_else(|| "no rate".to_owned(), rate_phrase);
    format!("at most {} concurrently{recipients}; {rate}", plural(*attempts, "attempt"))
}

fn next_hop_limits_phrase(limits: &NextHopLimitsExplanation) -> String {
    let phrases = [
        limits.connections.map(|most| plural(most, "connection")),
        limits.rate.as_ref().map(rate_phrase),
        limits.messages_per_connection.map(|most| plural(most as usize, "message") + " a connection"),
        limits.recipients_per_message.map(|most| plural(most, "recipient") + " a message"),
    ];
    phrases.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn quota_phrase(quota: &MailboxQuota) -> String {
    match quota {
        &MailboxQuota::Known { bytes_max, messages_max, bytes, messages } => {
            let limits = QuotaLimits { bytes: bytes_max, messages: messages_max };
            format!("{limits}; the mailbox holds {bytes} bytes in {messages} messages")
        }
        MailboxQuota::Unknown { reason } => format!("unknown now: {reason}"),
    }
}

fn load_phrase(&NextHopLoad { attempts, attempts_max, failures }: &NextHopLoad) -> String {
    let attempts = format!("{} in progress, limit {attempts_max} now", plural(attempts, "attempt"));
    match failures {
        0 => attempts,
        failures => format!("{attempts}, {} since it last answered", plural(failures as usize, "failure")),
    }
}

/// What mail waits for, one line each, or that nothing holds it. "Held" is only what the operator holds.
fn write_obstacles(obstacles: &[Obstacle], out: &mut String) -> fmt::Result {
    if obstacles.is_empty() {
        return writeln!(out, "  nothing holds this destination: mail leaves when it is due");
    }
    obstacles.iter().try_for_each(|obstacle| writeln!(out, "  waits: {}", obstacle_sentence(obstacle)))
}

/// An obstacle as a sentence without a period.
pub fn obstacle_sentence(obstacle: &Obstacle) -> String {
    match obstacle {
        Obstacle::Stopped => "deliveries are stopped because of high load (see `mailrace load`)".into(),
        Obstacle::Unrecorded { attempts, attempts_max } => {
            format!("{} ended but not recorded (limit {attempts_max}): the disk is slow", plural(*attempts, "attempt"))
        }
        Obstacle::QueuePaused { queue } => format!("the queue {queue} is paused, or its concurrency is 0"),
        Obstacle::NextHopPaused { until } => format!("the next hop is paused {}", pause_end(until.as_ref())),
        Obstacle::DestinationPaused { until } => format!("the destination is paused {}", pause_end(until.as_ref())),
        Obstacle::NoRoute => "the route is not resolved yet".into(),
        Obstacle::NextHopUnreachable { next_attempt, error } => {
            format!("the next hop is unreachable ({error}); next attempt {}", time_phrase(next_attempt))
        }
        Obstacle::NextHopInterrupts { messages, next_attempt, error } => format!(
            "the next hop interrupted {} in a row ({error}); trying one message at a time, the next {}",
            plural(*messages as usize, "message"),
            time_phrase(next_attempt)
        ),
        Obstacle::RateLimit { next_attempt } => {
            format!("the rate limit of the next hop is reached; next message {}", time_phrase(next_attempt))
        }
        Obstacle::NextHopFull { attempts, attempts_max } => {
            format!("the next hop has {}, its current limit ({attempts_max})", plural(*attempts, "attempt"))
        }
        Obstacle::SlotsElsewhere { attempts, attempts_max, cluster_max } => format!(
            "the next hop has {}, all that other nodes leave to this one now ({attempts_max} of {cluster_max})",
            plural(*attempts, "attempt")
        ),
        Obstacle::QueueFull { queue, attempts, attempts_max } => {
            format!("the queue {queue} has {}, its limit ({attempts_max})", plural(*attempts, "attempt"))
        }
        Obstacle::Adopted { queue, release_after_seconds, trouble_age_seconds } => format!(
            "the next hop failed or was slow {} ago and is served by the queue {queue}, with fewer attempts, until it \
             has worked well for {}",
            short_duration(Duration::from_secs(*trouble_age_seconds)),
            short_duration(Duration::from_secs(*release_after_seconds))
        ),
    }
}

fn pause_end(until: Option<&DueTime>) -> String {
    until.map_or_else(|| "until it is resumed".to_owned(), |until| format!("and resumes {}", time_phrase(until)))
}

/// A time, absolute and relative to now.
fn time_phrase(DueTime { at, in_ms }: &DueTime) -> String {
    match in_ms {
        0 => "now".into(),
        left => format!("at {at} (in {})", short_duration(Duration::from_millis(*left))),
    }
}

fn write_message(explanation: &MessageExplanation, out: &mut String) -> fmt::Result {
    let MessageExplanation { id, sender, size, accepted, age_seconds, recipient_count, recipients, destinations } =
        explanation;
    writeln!(out, "{id} from <{sender}> to {}", plural(*recipient_count, "recipient"))?;
    let age = short_duration(Duration::from_secs(*age_seconds));
    writeln!(out, "  {size} bytes, accepted {accepted} ({age} ago)")?;
    for recipient in recipients {
        let forwarded = if recipient.is_forwarded { "; forwarded, with a rewritten sender" } else { "" };
        writeln!(out, "  <{}>: {}{forwarded}", recipient.recipient, state_sentence(recipient))?;
    }
    let more = recipient_count.saturating_sub(recipients.len());
    if more > 0 {
        writeln!(out, "  and {} more", plural(more, "recipient"))?;
    }
    for DestinationExplanation { destination, queue, next_hop, recipients, obstacles } in destinations {
        let hop = next_hop.as_ref().map(|hop| format!(", next hop {hop}")).unwrap_or_default();
        let waiting = plural(*recipients, "recipient");
        writeln!(out, "destination {destination}, queue {queue}{hop}: {waiting}")?;
        write_obstacles(obstacles, out)?;
    }
    Ok(())
}

/// What a recipient waits for, or what has become of it.
fn state_sentence(recipient: &RecipientExplanation) -> String {
    let state = match (recipient.state, &recipient.due) {
        (ExplainedState::Waiting, Some(due)) if recipient.attempts == Some(0) => {
            format!("waiting for its first attempt {}", time_phrase(due))
        }
        (ExplainedState::Waiting, Some(due)) => format!("waiting for its next attempt {}", time_phrase(due)),
        (state, _) => state_phrase(state).to_owned(),
    };
    let Some(attempts) = recipient.attempts else { return state };
    let error = recipient.error.as_ref().map(|error| format!("; last error: {error}")).unwrap_or_default();
    format!("{state}; {} so far{error}", plural(usize::from(attempts), "attempt"))
}

fn state_phrase(state: ExplainedState) -> &'static str {
    match state {
        ExplainedState::Ready => "ready, waiting for its turn",
        ExplainedState::InFlight => "in flight",
        ExplainedState::Held => "held by the operator",
        ExplainedState::Waiting => "waiting",
        ExplainedState::Delivered => "delivered",
        ExplainedState::Failed => "failed, or removed by the operator",
        ExplainedState::SetAside => "set aside: the message is damaged",
        ExplainedState::Withdrawn => "withdrawn: the client was told that it was not accepted",
        ExplainedState::Moving => "entering or leaving the queue",
    }
}
