//! Listeners, certificates, and the limits and times of the main section.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::Conversion;
use super::expansion::list;
use crate::config_draft::{TomlSection, quoted};

/// Main options that change nothing about what mail is accepted or where it goes.
const NOT_NEEDED: [&str; 66] = [
    "accept_8bitmime",
    "add_environment",
    "admin_groups",
    "allow_domain_literals",
    "auth_advertise_hosts",
    "auto_thaw",
    "bounce_return_size_limit",
    "check_rfc2047_length",
    "check_spool_inodes",
    "check_spool_space",
    "chunking_advertise_hosts",
    "daemon_smtp_port",
    "daemon_smtp_ports",
    "disable_ipv6",
    "dns_dnssec_ok",
    "dsn_advertise_hosts",
    "exim_group",
    "exim_path",
    "exim_user",
    "freeze_tell",
    "gecos_name",
    "gecos_pattern",
    "helo_accept_junk_hosts",
    "helo_allow_chars",
    "helo_try_verify_hosts",
    "host_lookup",
    "host_lookup_order",
    "ignore_bounce_errors_after",
    "keep_environment",
    "keep_malformed",
    "ldap_default_servers",
    "ldap_version",
    "local_from_check",
    "local_interfaces",
    "local_sender_retain",
    "log_file_path",
    "log_selector",
    "log_timezone",
    "message_logs",
    "mysql_servers",
    "never_users",
    "no_write_rejectlog",
    "perl_startup",
    "pgsql_servers",
    "pid_file_path",
    "pipelining_advertise_hosts",
    "prdr_enable",
    "preserve_message_logs",
    "print_topbitchars",
    "process_log_path",
    "queue_only",
    "queue_run_in_order",
    "queue_run_max",
    "qualify_recipient",
    "remote_max_parallel",
    "rfc1413_hosts",
    "rfc1413_query_timeout",
    "smtp_accept_max_nonmail_hosts",
    "smtp_accept_queue_per_connection",
    "smtp_banner",
    "smtp_connect_backlog",
    "smtputf8_advertise_hosts",
    "split_spool_directory",
    "spool_directory",
    "syslog_timestamp",
    "write_rejectlog",
];
/// More of them.
const NOT_NEEDED_TOO: [&str; 20] = [
    "av_scanner",
    "deliver_drop_privilege",
    "message_body_newlines",
    "message_body_visible",
    "openssl_options",
    "smtp_enforce_sync",
    "smtp_return_error_details",
    "spamd_address",
    "sqlite_dbfile",
    "syslog_duplication",
    "timeout_frozen_after",
    "timezone",
    "tls_advertise_hosts",
    "tls_dhparam",
    "tls_require_ciphers",
    "tls_try_verify_hosts",
    "tls_verify_certificates",
    "trusted_groups",
    "trusted_users",
    "untrusted_set_sender",
];
/// Larger sizes are no limit.
const SIZE_MAX: u64 = 1 << 40;
/// Numbers of the main section and their keys.
const NUMBERS: [(&str, &str, &str); 7] = [
    ("smtp_accept_max", "[limits]", "sessions"),
    ("smtp_accept_max_per_host", "[limits]", "sessions_per_client"),
    ("recipients_max", "[limits]", "recipients"),
    ("received_headers_max", "[limits]", "received"),
    ("smtp_max_unknown_commands", "[limits]", "errors"),
    ("queue_only_load", "[load]", "queue_only_above"),
    ("deliver_queue_load_max", "[load]", "no_delivery_above"),
];

impl Conversion<'_> {
    fn main_constant(&self, name: &str) -> Option<String> {
        self.config.main.value(name).and_then(|value| self.expander.constant(value))
    }

    /// `tls_certificate` and `tls_privatekey`.
    pub(super) fn certificates(&mut self) {
        let (chain, key) = ("tls_certificate", "tls_privatekey");
        if self.config.main.value(chain).is_none() {
            return;
        }
        let file = self.main_constant(chain).filter(|path| path.starts_with('/') && !path.contains(['{', '}', ':']));
        let key_file = match self.config.main.value(key) {
            Some(_) => self.main_constant(key).filter(|path| path.starts_with('/') && !path.contains(['{', '}', ':'])),
            None => file.clone(),
        };
        match (file, key_file) {
            (Some(file), Some(key_file)) => {
                self.draft.mapped(chain);
                self.draft.mapped(key);
                let block = TomlSection::new("[[certificate]]").key("chain", quoted(&file), chain);
                self.draft.add(block.key("key", quoted(&key_file), key));
            }
            _ => {
                self.draft.unsupported(chain, "the file depends on the session; name each in a [[certificate]]");
                self.draft.add_behavior_change(
                    "Mail comes in without TLS: the file of the certificate depends on the session, see [[certificate]].",
                );
            }
        }
    }

    fn has_certificates(&self) -> bool {
        self.draft.sections.iter().any(|block| block.header == "[[certificate]]")
    }

    /// A listener for each address and port.
    pub(super) fn listeners(&mut self) {
        let ports = self.main_constant("daemon_smtp_ports").or_else(|| self.main_constant("daemon_smtp_port"));
        let ports: Vec<u16> = list(ports.as_deref().unwrap_or("25")).iter().filter_map(|it| port_number(it)).collect();
        let implicit = self.main_constant("tls_on_connect_ports").unwrap_or_default();
        let implicit: BTreeSet<u16> = list(&implicit).iter().filter_map(|it| port_number(it)).collect();
        if self.config.main.value("tls_on_connect_ports").is_some() {
            self.draft.mapped("tls_on_connect_ports");
        }
        if self.has_users && !self.has_certificates() {
            self.has_users = false;
            self.draft.sections.retain(|block| block.header != "[auth]");
            self.draft.add_behavior_change(
                "Users cannot log in: this needs a certificate, see tls_certificate or [[certificate]], and [auth].",
            );
        }
        let is_v4_only = self.config.main.is_set("disable_ipv6");
        let interfaces = self.main_constant("local_interfaces").unwrap_or_else(|| "<; 0.0.0.0 ; ::".into());
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for item in list(&interfaces) {
            let found = interface(&item, &ports);
            if found.is_empty() {
                self.draft.add_behavior_change(format!(
                    "No mail comes in at {item} (local_interfaces): this is not an address."
                ));
            }
            let is_fit = |it: &SocketAddr| !(addresses.contains(it) || is_v4_only && it.is_ipv6());
            let new: Vec<SocketAddr> = found.into_iter().filter(is_fit).collect();
            addresses.extend(new);
        }
        for address in addresses {
            self.listener(address, implicit.contains(&address.port()));
        }
    }

    fn listener(&mut self, address: SocketAddr, is_implicit: bool) {
        if is_implicit && !self.has_certificates() {
            self.draft.add_behavior_change(format!(
                "No mail comes in at port {}: it needs a certificate, see [[certificate]].",
                address.port()
            ));
            return;
        }
        let block = TomlSection::new("[[listener]]").key("protocol", quoted("smtp"), "");
        let mut block = block.key("address", quoted(&address.to_string()), "local_interfaces, daemon_smtp_ports");
        if is_implicit {
            block.set("tls", quoted("implicit"), "tls_on_connect_ports");
        }
        if self.has_users {
            block.set("auth", "true".into(), "");
        }
        self.draft.add(block);
    }

    /// Limits and times.
    pub(super) fn numbers(&mut self) {
        for (option, section, key) in NUMBERS {
            let Some(value) = self.main_constant(option) else { continue };
            let is_load = section == "[load]";
            let number = value.parse::<f64>().ok().filter(|number| *number > 0.0 && *number < 1e6);
            match number {
                Some(number) if is_load => self.draft.set(section, key, format!("{number:?}"), option),
                Some(number) => self.draft.set(section, key, format!("{number:.0}"), option),
                None => self.draft.not_needed(option, "no limit"),
            }
        }
        if let Some(bytes) = self.main_constant("message_size_limit").and_then(|text| size(&text)).filter(|it| *it > 0)
        {
            self.draft.set("[limits]", "message", bytes.to_string(), "message_size_limit");
        }
        let option = "smtp_receive_timeout";
        if let Some(seconds) = self.main_constant(option).and_then(|text| seconds(&text)).filter(|it| *it > 0) {
            self.draft.set("[limits]", "idle_time", quoted(&format!("{seconds}s")), option);
        }
        let option = "delay_warning";
        let first = self.main_constant(option).and_then(|text| seconds(list(&text).first()?)).unwrap_or(24 * 60 * 60);
        self.draft.set("[bounce]", "delay_notice_after", quoted(&format!("{first}s")), option);
    }

    /// What has become of all other main options.
    pub(super) fn other_options(&mut self) {
        for option in &self.config.main.options {
            let name = option.name.as_str();
            if self.draft.outcomes.contains_key(name) {
                continue;
            }
            match NOT_NEEDED.contains(&name) || NOT_NEEDED_TOO.contains(&name) {
                true => self.draft.not_needed(name, "changes nothing about what mail is accepted and where it goes"),
                false => self.draft.unsupported(name, "no key for it; mail is handled without it"),
            }
        }
    }
}

/// A size such as 50M.
pub(super) fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, factor) = match text.chars().last()?.to_ascii_uppercase() {
        'K' => (&text[..text.len() - 1], 1 << 10),
        'M' => (&text[..text.len() - 1], 1 << 20),
        'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor).filter(|size| *size <= SIZE_MAX)
}

/// An address, or an address and a port, as `local_interfaces` has them.
fn interface(text: &str, ports: &[u16]) -> Vec<SocketAddr> {
    if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return ports.iter().map(|port| SocketAddr::new(address, *port)).collect();
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return vec![address];
    }
    // 192.0.2.1.25 and [::1].25
    let parts = text.rsplit_once('.').and_then(|(address, port)| {
        Some(SocketAddr::new(address.trim_matches(['[', ']']).parse().ok()?, port.parse().ok()?))
    });
    parts.into_iter().collect()
}

/// A port, by number or by name.
pub(super) fn port_number(text: &str) -> Option<u16> {
    match text.trim() {
        "smtp" => Some(25),
        "smtps" | "ssmtp" | "submissions" => Some(465),
        "submission" => Some(587),
        "lmtp" => Some(24),
        number => number.parse().ok().filter(|port| *port > 0),
    }
}

/// A time such as 1h30m.
pub(super) fn seconds(text: &str) -> Option<u64> {
    let (mut total, mut number) = (0_u64, String::new());
    for c in text.trim().chars() {
        let unit = match c {
            '0'..='9' => {
                number.push(c);
                continue;
            }
            's' => 1,
            'm' => 60,
            'h' => 60 * 60,
            'd' => 24 * 60 * 60,
            'w' => 7 * 24 * 60 * 60,
            _ => return None,
        };
        total = total.checked_add(std::mem::take(&mut number).parse::<u64>().ok()?.checked_mul(unit)?)?;
    }
    number.is_empty().then_some(total).filter(|total| *total < 100 * 365 * 24 * 60 * 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_interfaces_are_those_of_exim() {
        assert_eq!(seconds("1h30m"), Some(5400));
        assert_eq!(seconds("4w"), Some(4 * 7 * 86400));
        assert_eq!((seconds("1"), seconds("x"), seconds("99999999999999999999d")), (None, None, None));
        let shown = |text: &str| interface(text, &[25, 587]).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown("127.0.0.1"), ["127.0.0.1:25", "127.0.0.1:587"]);
        assert_eq!(shown("192.0.2.1.26"), ["192.0.2.1:26"]);
        assert_eq!(shown("[::1]:26"), ["[::1]:26"]);
        assert_eq!(shown("eth0"), [""; 0]);
    }
}
