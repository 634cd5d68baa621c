//! `[limits]`, `[load]` and `[bounce]`.

use load::LoadLimits;
use net::ConnectionLimits;
use protocol::smtp::server::SessionLimits;

use super::{networks, unspanned};
use crate::section::Section;
use crate::value_kind::{self, ValueKind};
use crate::{BounceConfig, ClientLimits, LoadSettings};

pub(super) fn limits(document: &mut Section<'_, '_>) -> ClientLimits {
    let defaults = ClientLimits::default();
    let Some(mut s) = document.section("limits") else { return defaults };
    ClientLimits {
        session: session(&mut s, defaults.session),
        connections: connections(&mut s, defaults.connections),
        delayed_greetings_max: s.take_or("delayed_greetings", &ValueKind::COUNT, defaults.delayed_greetings_max),
        reading_sessions_max: s.take_or("reading_sessions", &ValueKind::COUNT, defaults.reading_sessions_max),
        expanded_recipients_max: s.take_or("expanded_recipients", &ValueKind::COUNT, defaults.expanded_recipients_max),
        body_memory_max: s.take_or("body_memory", &value_kind::SIZE, defaults.body_memory_max),
        spill_above: s.take_or("spill_above", &value_kind::SPILL_SIZE, defaults.spill_above),
        message_wait_max: s.take_or("message_wait", &value_kind::DURATION_OR_ZERO, defaults.message_wait_max),
        content_body_octets_max: s.take_or("content_body", &value_kind::SIZE, defaults.content_body_octets_max),
        content_body_lookup_octets_max: s.take_or(
            "content_body_lookups",
            &value_kind::SIZE,
            defaults.content_body_lookup_octets_max,
        ),
        backlog: s.take_or("backlog", &ValueKind::COUNT, defaults.backlog),
    }
}

fn session(s: &mut Section<'_, '_>, defaults: SessionLimits) -> SessionLimits {
    let command_line = s.take("command_line", &value_kind::COMMAND_LINE_SIZE);
    SessionLimits {
        command_line_octets_max: command_line.map_or(defaults.command_line_octets_max, |octets| octets as usize),
        commands_max: s.take_or("commands", &ValueKind::COUNT, defaults.commands_max),
        errors_max: s.take_or("errors", &ValueKind::COUNT, defaults.errors_max),
        failed_logins_max: s.take_or("failed_logins", &ValueKind::COUNT, defaults.failed_logins_max),
        recipients_max: s.take_or("recipients", &ValueKind::COUNT, defaults.recipients_max),
        message_octets_max: s.take_or("message", &value_kind::SIZE, defaults.message_octets_max),
        header_octets_max: s.take_or("header", &value_kind::SIZE, defaults.header_octets_max),
        received_max: s.take_or("received", &ValueKind::COUNT, defaults.received_max),
        session_time_max: s.take_or("session_time", &value_kind::DURATION, defaults.session_time_max),
        idle_time_max: s.take_or("idle_time", &value_kind::DURATION, defaults.idle_time_max),
        data_rate_min: s.take_or("data_rate_min", &value_kind::SIZE, defaults.data_rate_min),
        data_rate_window: s.take_or("data_rate_window", &value_kind::DURATION, defaults.data_rate_window),
    }
}

fn connections(s: &mut Section<'_, '_>, defaults: ConnectionLimits) -> ConnectionLimits {
    ConnectionLimits {
        sessions_max: s.take_or("sessions", &ValueKind::COUNT, defaults.sessions_max),
        sessions_per_client_max: s.take_or("sessions_per_client", &ValueKind::COUNT, defaults.sessions_per_client_max),
        connections_per_client: s.take_or(
            "connections_per_client",
            &value_kind::RATE_OR_NONE,
            defaults.connections_per_client,
        ),
        messages_per_client: s.take_or("messages_per_client", &value_kind::RATE_OR_NONE, defaults.messages_per_client),
        ..defaults
    }
}

pub(super) fn load(document: &mut Section<'_, '_>) -> LoadSettings {
    let defaults = LoadSettings::default();
    let Some(mut section) = document.section("load") else { return defaults };
    let no_delivery_above = section.take("no_delivery_above", &value_kind::LOAD_AVERAGE);
    let queue_only_above = section.take_spanned("queue_only_above", &value_kind::LOAD_AVERAGE);
    if let (Some(sooner), Some(later)) = (&queue_only_above, no_delivery_above)
        && *sooner.get_ref() > later
    {
        let label = format!("expected no more than `no_delivery_above`, {later}");
        section.report(sooner.span(), "queue_only_above", "has an invalid value", label);
    }
    let limits = LoadLimits {
        queue_only_above: queue_only_above.map(|above| above.into_inner()),
        no_delivery_above,
        refuse_above: section.take("refuse_above", &value_kind::LOAD_AVERAGE),
        cpu_pressure_max: section.take("cpu_pressure", &value_kind::PERCENT),
        io_pressure_max: section.take("io_pressure", &value_kind::PERCENT),
        memory_pressure_max: section.take("memory_pressure", &value_kind::PERCENT),
        memory_min: section.take("memory_min", &value_kind::SIZE),
        margin: section.take_or("margin", &value_kind::HYSTERESIS, defaults.limits.margin),
        ..defaults.limits
    };
    LoadSettings {
        limits,
        every: section.take_or("every", &value_kind::DURATION, defaults.every),
        reserve: networks(&mut section, "reserve").unwrap_or(defaults.reserve),
    }
}

pub(super) fn bounce(document: &mut Section<'_, '_>) -> BounceConfig {
    let defaults = BounceConfig::default();
    let Some(mut section) = document.section("bounce") else { return defaults };
    let delay_notice_after = section.take("delay_notice_after", &value_kind::DURATION_OR_ZERO);
    BounceConfig {
        delay_notice_after: delay_notice_after
            .map_or(defaults.delay_notice_after, |span| Some(span).filter(|span| !span.is_zero())),
        double_bounces_to: section.take_or(
            "double_bounces_to",
            &value_kind::ADDRESS_OR_NONE,
            defaults.double_bounces_to,
        ),
        per_sender: section.take_or("per_sender", &value_kind::RATE_OR_NONE, defaults.per_sender),
        verp: section.list("verp", &value_kind::ADDRESS).map_or(defaults.verp, unspanned),
    }
}
