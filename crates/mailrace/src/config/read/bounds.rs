//! `[limits]`, `[load]` and `[bounce]`.

use super::bare;
use crate::config::key::{self, Kind};
use crate::config::section::Section;
use crate::config::{Bounce, Limits, Load};

pub(super) fn limits(document: &mut Section<'_, '_>) -> Limits {
    let or = Limits::default();
    let Some(mut s) = document.section("limits") else { return or };
    let command_line = s.take("command_line", &key::COMMAND_LINE);
    Limits {
        command_line_octets_max: command_line.map_or(or.command_line_octets_max, |octets| octets as usize),
        commands_max: s.take_or("commands", &Kind::COUNT, or.commands_max),
        errors_max: s.take_or("errors", &Kind::COUNT, or.errors_max),
        failed_logins_max: s.take_or("failed_logins", &Kind::COUNT, or.failed_logins_max),
        recipients_max: s.take_or("recipients", &Kind::COUNT, or.recipients_max),
        expanded_recipients_max: s.take_or("expanded_recipients", &Kind::COUNT, or.expanded_recipients_max),
        message_octets_max: s.take_or("message", &key::SIZE, or.message_octets_max),
        header_octets_max: s.take_or("header", &key::SIZE, or.header_octets_max),
        received_max: s.take_or("received", &Kind::COUNT, or.received_max),
        session_time_max: s.take_or("session_time", &key::SPAN, or.session_time_max),
        idle_time_max: s.take_or("idle_time", &key::SPAN, or.idle_time_max),
        data_rate_min: s.take_or("data_rate_min", &key::SIZE, or.data_rate_min),
        data_rate_window: s.take_or("data_rate_window", &key::SPAN, or.data_rate_window),
        sessions_max: s.take_or("sessions", &Kind::COUNT, or.sessions_max),
        sessions_per_client_max: s.take_or("sessions_per_client", &Kind::COUNT, or.sessions_per_client_max),
        connections_per_client: s.take_or("connections_per_client", &key::RATE_OR_NONE, or.connections_per_client),
        messages_per_client: s.take_or("messages_per_client", &key::RATE_OR_NONE, or.messages_per_client),
        body_memory_max: s.take_or("body_memory", &key::SIZE, or.body_memory_max),
        spill_above: s.take_or("spill_above", &key::SPILL, or.spill_above),
        message_wait_max: s.take_or("message_wait", &key::SPAN_OR_ZERO, or.message_wait_max),
        backlog: s.take_or("backlog", &Kind::COUNT, or.backlog),
    }
}

pub(super) fn load(document: &mut Section<'_, '_>) -> Load {
    let or = Load::default();
    let Some(mut section) = document.section("load") else { return or };
    let no_delivery_above = section.take("no_delivery_above", &key::AVERAGE);
    let queue_only_above = section.placed("queue_only_above", &key::AVERAGE);
    if let (Some(sooner), Some(later)) = (&queue_only_above, no_delivery_above)
        && *sooner.get_ref() > later
    {
        let label = format!("expected no more than `no_delivery_above`, {later}");
        section.state(sooner.span(), "queue_only_above", "has an invalid value", label);
    }
    Load {
        queue_only_above: queue_only_above.map(|above| above.into_inner()),
        no_delivery_above,
        refuse_above: section.take("refuse_above", &key::AVERAGE),
        cpu_pressure_max: section.take("cpu_pressure", &key::PERCENT),
        io_pressure_max: section.take("io_pressure", &key::PERCENT),
        memory_pressure_max: section.take("memory_pressure", &key::PERCENT),
        memory_min: section.take("memory_min", &key::SIZE),
        margin: section.take_or("margin", &key::MARGIN, or.margin),
        every: section.take_or("every", &key::SPAN, or.every),
        reserve: section.list("reserve", &key::NETWORK).map_or(or.reserve, bare),
    }
}

pub(super) fn bounce(document: &mut Section<'_, '_>) -> Bounce {
    let or = Bounce::default();
    let Some(mut section) = document.section("bounce") else { return or };
    let delay_notice_after = section.take("delay_notice_after", &key::SPAN_OR_ZERO);
    Bounce {
        delay_notice_after: delay_notice_after
            .map_or(or.delay_notice_after, |span| Some(span).filter(|span| !span.is_zero())),
        double_bounces_to: section.take_or("double_bounces_to", &key::ADDRESS_OR_NONE, or.double_bounces_to),
        per_sender: section.take_or("per_sender", &key::RATE_OR_NONE, or.per_sender),
        verp: section.list("verp", &key::ADDRESS).map_or(or.verp, bare),
    }
}
