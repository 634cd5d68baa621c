//! Converts parameters that are numbers or times here too.

use mail::Address;

use super::Conversion;
use super::config_draft::{TomlSection, quoted};
use super::words::duration_seconds;
use crate::ip_net::quoted_networks;

/// The kind of a parameter's value.
#[derive(Clone, Copy)]
enum NumberKind {
    /// Bytes.
    Size,
    Count,
    /// A time, with this default unit.
    Span(char),
    /// Events per `anvil_rate_time_unit`; zero for no limit.
    Rate,
}

/// Parameter, section, key.
const NUMBERS: [(&str, &str, &str, NumberKind); 22] = [
    ("message_size_limit", "[limits]", "message", NumberKind::Size),
    ("header_size_limit", "[limits]", "header", NumberKind::Size),
    ("smtpd_recipient_limit", "[limits]", "recipients", NumberKind::Count),
    ("smtpd_hard_error_limit", "[limits]", "errors", NumberKind::Count),
    ("smtpd_junk_command_limit", "[limits]", "commands", NumberKind::Count),
    ("hopcount_limit", "[limits]", "received", NumberKind::Count),
    ("smtpd_timeout", "[limits]", "idle_time", NumberKind::Span('s')),
    ("smtpd_client_connection_count_limit", "[limits]", "sessions_per_client", NumberKind::Count),
    ("smtpd_client_connection_rate_limit", "[limits]", "connections_per_client", NumberKind::Rate),
    ("smtpd_client_message_rate_limit", "[limits]", "messages_per_client", NumberKind::Rate),
    ("queue_minfree", "[spool]", "space_min", NumberKind::Size),
    ("delay_warning_time", "[bounce]", "delay_notice_after", NumberKind::Span('h')),
    ("default_destination_concurrency_limit", "[transport.smtp]", "connections", NumberKind::Count),
    ("smtp_destination_concurrency_limit", "[transport.smtp]", "connections", NumberKind::Count),
    ("default_destination_recipient_limit", "[transport.smtp]", "recipients_per_message", NumberKind::Count),
    ("smtp_destination_recipient_limit", "[transport.smtp]", "recipients_per_message", NumberKind::Count),
    ("smtp_mx_address_limit", "[transport.smtp]", "addresses_tried", NumberKind::Count),
    ("smtp_connection_reuse_count_limit", "[transport.smtp]", "messages_per_connection", NumberKind::Count),
    ("smtp_helo_name", "[transport.smtp]", "helo", NumberKind::Size),
    ("smtp_connect_timeout", "[transport.smtp]", "timeouts.connect", NumberKind::Span('s')),
    ("smtp_helo_timeout", "[transport.smtp]", "timeouts.banner", NumberKind::Span('s')),
    ("smtp_data_done_timeout", "[transport.smtp]", "timeouts.message", NumberKind::Span('s')),
];
/// Settings of a client service in master.cf, besides those above, and the key of the transport.
const CLIENT_SPANS: [(&str, &str); 3] = [
    ("lmtp_data_done_timeout", "timeouts.message"),
    ("lmtp_connect_timeout", "timeouts.connect"),
    ("smtp_data_init_timeout", "timeouts.data"),
];
/// The longest time in which a limit refills: 31 days.
const RATE_SECONDS_MAX: u64 = 31 * 86_400;
/// Why zero is not supported.
const NO_ZERO: &str = "0 means no limit; here there is always a limit";

impl Conversion<'_> {
    pub(super) fn numbers(&mut self) {
        let unit =
            self.values.explicit_value("anvil_rate_time_unit").map_or(Some(60), |text| duration_seconds(&text, 's'));
        for (name, header, key, kind) in NUMBERS {
            let Some(value) = self.values.explicit_value(name) else { continue };
            match convert(&value, kind, unit.unwrap_or_default()) {
                _ if name == "smtp_helo_name" && Address::new("postmaster", &value).is_err() => {
                    self.draft.unsupported(name, "this is not a host name");
                }
                _ if name == "smtp_helo_name" => self.draft.set(header, key, quoted(&value), name),
                Ok(value) => self.draft.set(header, key, value, name),
                // Postfix sends no notice by default; Mailrace does after some hours.
                Err(NO_ZERO) if name == "delay_warning_time" => self.draft.set(header, key, quoted("0s"), name),
                Err(why) => {
                    if name == "message_size_limit" {
                        self.draft.add_behavior_change(format!(
                            "Mail larger than `message` of [limits] gets 552: message_size_limit = {value}."
                        ));
                    }
                    self.draft.unsupported(name, why);
                }
            }
        }
        if self.values.explicit_value("delay_warning_time").is_none() {
            self.draft.section("[bounce]").set("delay_notice_after", quoted("0s"), "delay_warning_time by default");
        }
        self.recipient_rate(unit.unwrap_or_default());
        self.retries();
    }

    /// The limit on recipients of a client, from which mynetworks are exempt.
    fn recipient_rate(&mut self, seconds: u64) {
        let name = "smtpd_client_recipient_rate_limit";
        let Some(value) = self.values.explicit_value(name) else { return };
        let most = match (value.parse::<u32>(), seconds) {
            (Ok(0), _) => return self.draft.not_needed(name, "no limit"),
            (Ok(most), 1..=RATE_SECONDS_MAX) => most,
            _ => return self.draft.unsupported(name, "this is not a valid rate"),
        };
        let mut block = TomlSection::new("[[limit]]").key("name", quoted("recipients"), "");
        block.set("by", quoted("client"), "");
        block.set("recipients", quoted(&format!("{most}/{seconds}s")), name);
        let exempt = self.main_inbound_service().map(|front| front.networks.clone()).unwrap_or_default();
        if !exempt.is_empty() {
            block.set("exempt", quoted_networks(&exempt), "mynetworks");
        }
        self.draft.mapped(name);
        self.draft.add(block);
    }

    /// The retry schedule, which is the same in all queues.
    fn retries(&mut self) {
        let keys = [
            ("minimal_backoff_time", "first", 's', "300s"),
            ("maximal_backoff_time", "longest", 's', "4000s"),
            ("maximal_queue_lifetime", "lifetime", 'd', "5d"),
        ];
        let (mut parts, mut from, mut octets) = (Vec::new(), Vec::new(), Vec::new());
        for (name, key, unit, default) in keys {
            let given = self.values.explicit_value(name);
            let span = duration_seconds(given.as_deref().unwrap_or(default), unit);
            match span.filter(|span| *span > 0) {
                Some(seconds) => {
                    octets.push(seconds);
                    parts.push(format!("{key} = {}", quoted(&format!("{seconds}s"))));
                    if given.is_some() {
                        self.draft.mapped(name);
                        from.push(name);
                    }
                }
                None => {
                    octets.extend(duration_seconds(default, unit));
                    self.draft.unsupported(name, "0 means one attempt; here mail is always retried");
                }
            }
        }
        if from.is_empty() {
            return;
        }
        if let [first, longest, ..] = octets[..]
            && first > longest
        {
            from.iter().for_each(|name| self.draft.unsupported(name, "the first wait is longer than the longest wait"));
            return;
        }
        for queue in ["local", "standard", "lame"] {
            let block = TomlSection::new("[[queue]]").key("name", quoted(queue), "");
            self.draft.add(block.key("retry", format!("{{ {} }}", parts.join(", ")), &from.join(", ")));
        }
    }
}

/// A setting of one client service as a key of its transport.
pub(super) fn client_setting(name: &str, value: &str) -> Option<(&'static str, String)> {
    let number = NUMBERS.iter().find(|(known, header, ..)| *known == name && *header == "[transport.smtp]");
    let span = CLIENT_SPANS.iter().find(|(known, _)| *known == name);
    let (key, kind) = match (number, span) {
        (Some((.., key, kind)), _) => (*key, *kind),
        (None, Some((_, key))) => (*key, NumberKind::Span('s')),
        (None, None) => return None,
    };
    convert(value, kind, 0).ok().filter(|_| name != "smtp_helo_name").map(|value| (key, value))
}

/// A value of this kind in TOML, or why it is invalid.
fn convert(value: &str, kind: NumberKind, rate_seconds: u64) -> Result<String, &'static str> {
    match kind {
        NumberKind::Span(unit) => match duration_seconds(value, unit) {
            Some(0) => Err(NO_ZERO),
            Some(seconds) => Ok(quoted(&format!("{seconds}s"))),
            None => Err("this is not a time"),
        },
        _ => match (value.parse::<u32>(), kind) {
            (Ok(0), NumberKind::Rate) => Ok(quoted("0")),
            (Ok(0), _) => Err(NO_ZERO),
            (Ok(number), NumberKind::Rate) => rate(number.into(), rate_seconds),
            (Ok(number), _) => Ok(number.to_string()),
            (Err(_), _) => Err("this number is not valid here"),
        },
    }
}

/// A number of events per second, minute or hour.
fn rate(number: u64, seconds: u64) -> Result<String, &'static str> {
    let (number, unit) = match seconds {
        0 => return Err("anvil_rate_time_unit is not a time"),
        1 => (number, 's'),
        60 => (number, 'm'),
        // Rounded up: zero would mean no limit.
        seconds => ((number * 3600).div_ceil(seconds), 'h'),
    };
    u32::try_from(number).map(|number| quoted(&format!("{number}/{unit}"))).map_err(|_| "this is not a valid rate")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_of_their_own() {
        for (value, unit, expected) in
            [("5", 'd', Some(432_000)), ("4h", 's', Some(14_400)), ("0", 'h', Some(0)), ("x", 's', None)]
        {
            assert_eq!(duration_seconds(value, unit), expected, "{value}");
        }
    }

    #[test]
    fn zero_is_no_bound_only_where_it_can_be_said() {
        assert_eq!(convert("0", NumberKind::Rate, 60), Ok("\"0\"".to_owned()));
        assert_eq!(convert("30", NumberKind::Rate, 60), Ok("\"30/m\"".to_owned()));
        assert_eq!(convert("30", NumberKind::Rate, 600), Ok("\"180/h\"".to_owned()));
        assert_eq!(convert("0", NumberKind::Size, 60), Err(NO_ZERO));
        assert_eq!(convert("-1", NumberKind::Count, 60), Err("this number is not valid here"));
    }
}
