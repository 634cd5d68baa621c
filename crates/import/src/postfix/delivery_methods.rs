//! Converts transports and next hops: `lmtp:unix:private/dovecot`, `[relay.example.net]:587`,
//! `error:text`, and services of master.cf that pass mail to programs.

use super::Conversion;
use super::config_draft::{TomlSection, quoted};
use super::limits;
use super::master_cf::Service;
use super::pipes;
use super::transport_target::TransportTarget;
use super::words::list;
use config::FixedHop;

/// Named ports.
const PORTS: [(&str, u16); 5] = [("smtp", 25), ("submission", 587), ("smtps", 465), ("submissions", 465), ("lmtp", 24)];
/// Recipients of one run of a program.
const PIPE_RECIPIENTS_MAX: u32 = 100;
/// Settings of client services without an effect on where mail goes.
const CLIENT_NOT_NEEDED: [&str; 8] = [
    "syslog_name",
    "max_use",
    "max_idle",
    "disable_dns_lookups",
    "smtp_dns_support_level",
    "smtp_send_xforward_command",
    "smtp_tls_note_starttls_offer",
    "lmtp_send_xforward_command",
];
/// Length limit of a reply's text.
const REPLY_OCTETS_MAX: usize = 300;

/// The number of a port.
pub(super) fn port(text: &str) -> Option<u16> {
    PORTS.iter().find(|(name, _)| *name == text).map(|(_, port)| *port).or_else(|| text.parse().ok()).filter(|n| *n > 0)
}

/// A key of a transport, its value in TOML, and the parameter that it comes from.
pub(super) type TransportSetting = (String, String, String);

/// How mail is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DeliveryMethod {
    /// To Maildirs.
    Maildirs,
    /// To another server.
    Network {
        /// `smtp` or `lmtp`.
        kind: &'static str,
        /// In our notation; None: the MX of the recipient's domain.
        next_hop: Option<String>,
        /// The port for `mx:`, which has none of its own.
        port: Option<u16>,
        /// Settings that not all transports of this kind have.
        settings: Vec<TransportSetting>,
    },
    /// To a program: the keys of its transport.
    Program(Vec<(&'static str, String)>),
    /// Nowhere.
    Discard,
    /// Not at all: a reply.
    Reply(String),
}

/// The part of a text that is valid in a reply.
pub(super) fn reply_text(text: &str) -> String {
    let sound = |c: char| if (' '..='~').contains(&c) { c } else { '?' };
    text.chars().map(sound).take(REPLY_OCTETS_MAX).collect::<String>().trim().to_owned()
}

/// The reply of error(8) or `retry`: their next hop is a text, optionally with an enhanced status
/// code.
fn parse_reply(code: u16, text: &str) -> String {
    let class = code / 100;
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let numbers: Vec<&str> = word.split('.').collect();
    let is_number = |text: &&str| text.len() <= 3 && text.parse::<u16>().is_ok();
    let (detail, text) = match numbers[..] {
        [first, subject, detail] if first.len() == 1 && numbers.iter().all(is_number) => {
            (format!("{class}.{subject}.{detail}"), rest)
        }
        _ => (format!("{class}.0.0"), text),
    };
    format!("{code} {detail} {}", reply_text(text)).trim_end().to_owned()
}

/// A next hop in our notation, and its port if the notation cannot contain one.
pub(super) fn next_hop(text: &str, kind: &str, queue_directory: &str) -> Option<(String, Option<u16>)> {
    let text = text.strip_prefix("inet:").unwrap_or(text);
    if let Some(path) = text.strip_prefix("unix:") {
        let path = if path.starts_with('/') { path.to_owned() } else { format!("{queue_directory}/{path}") };
        return checked_hop(format!("unix:{path}"), None);
    }
    let (host, behind) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((host, behind)) => (host, behind.strip_prefix(':')),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let number = match behind {
        Some(text) => Some(port(text)?),
        None => None,
    };
    let literal = host.parse::<std::net::IpAddr>().is_ok();
    let host = match literal {
        true => format!("[{host}]"),
        false => host.to_owned(),
    };
    // Without brackets, and for SMTP, Postfix looks up the MX.
    if !literal && !text.starts_with('[') && kind == "smtp" {
        return checked_hop(format!("mx:{host}"), number);
    }
    checked_hop(number.map_or(host.clone(), |number| format!("{host}:{number}")), None)
}

fn checked_hop(hop: String, port: Option<u16>) -> Option<(String, Option<u16>)> {
    hop.parse::<FixedHop>().ok().map(|_| (hop, port))
}

impl Conversion<'_> {
    /// The delivery method for a transport and its next hop. If there is none, mail to `who` waits,
    /// which is reported.
    pub(super) fn delivery_method(&mut self, target: &TransportTarget, who: &str) -> DeliveryMethod {
        self.used_services.insert(target.channel.clone());
        if let Some(method) = self.reply_method(target) {
            return method;
        }
        let from = target.from;
        match self.command(&target.channel).as_str() {
            "local" | "virtual" => DeliveryMethod::Maildirs,
            "smtp" => match self.login_setting(target) {
                Err(why) => self.deferring_method(who, &why),
                Ok(login) => self.network_method(target, "smtp", who, login),
            },
            "lmtp" => self.network_method(target, "lmtp", who, None),
            "discard" => DeliveryMethod::Discard,
            "pipe" => self.program_method(target, who),
            _ => {
                self.deferring_method(who, &format!("{from} names the transport {}, which is unknown", target.channel))
            }
        }
    }

    /// The service of master.cf behind a transport's name.
    pub(super) fn unix_service(&self, channel: &str) -> Option<&Service> {
        self.master.services.iter().find(|it| it.name == channel && it.kind == "unix")
    }

    fn program_method(&mut self, target: &TransportTarget, who: &str) -> DeliveryMethod {
        let from = target.from;
        let Some(service) = self.unix_service(&target.channel).cloned() else {
            return self.deferring_method(
                who,
                &format!(
                    "{from} runs a command as the user that the mail is for, and programs here run as one user: \
                     set a transport of type pipe, or use an LMTP server"
                ),
            );
        };
        let program = match pipes::program(&service, target.next_hop.as_deref()) {
            Ok(program) => program,
            Err(why) => {
                let why = format!("{from} passes it to the program of {}, but {why}", service.name);
                return self.deferring_method(who, &why);
            }
        };
        if !program.lost_flags.is_empty() {
            let what = format!("{} unix pipe (master.cf): flags={}", service.name, program.lost_flags);
            self.draft.add_unsupported(what, "its program gets the message without these changes");
        }
        let mut keys = program.keys;
        keys.extend(self.named_limits(&target.channel, "programs", "recipients_max").into_iter().filter_map(
            |(key, value, _)| {
                match key.as_str() {
                    "programs" => Some(("programs", value)),
                    // Each run gets at most as many here.
                    _ => value
                        .parse::<u32>()
                        .ok()
                        .map(|count| ("recipients_max", count.min(PIPE_RECIPIENTS_MAX).to_string())),
                }
            },
        ));
        let is_of_one = keys.iter().any(|(key, value)| *key == "fields" && value.contains("-To"));
        keys.retain(|(key, _)| !(is_of_one && *key == "recipients_max"));
        DeliveryMethod::Program(keys)
    }

    /// The limits that main.cf sets for a transport by its name, under these keys.
    fn named_limits(&mut self, channel: &str, concurrency: &str, recipients: &str) -> Vec<TransportSetting> {
        let mut settings = Vec::new();
        for (ending, key) in
            [("_destination_concurrency_limit", concurrency), ("_destination_recipient_limit", recipients)]
        {
            let name = format!("{channel}{ending}");
            let Some(value) = self.values.explicit_value(&name).filter(|_| channel != "smtp") else { continue };
            match value.parse::<u32>() {
                Ok(count) if count > 0 => {
                    self.draft.mapped(&name);
                    settings.push((key.to_owned(), count.to_string(), name));
                }
                _ => self.draft.unsupported(&name, "0 means no limit; here there is always a limit"),
            }
        }
        settings
    }

    /// Settings that only the transport of this name has: in main.cf by its name, and in master.cf.
    fn own_settings(&mut self, channel: &str) -> Vec<TransportSetting> {
        let mut settings = self.named_limits(channel, "connections", "recipients_per_message");
        let Some(service) = self.unix_service(channel).cloned() else { return settings };
        let from = format!("{} in master.cf", service.name);
        if let Some(limit) = service.process_limit
            && !settings.iter().any(|(key, ..)| key == "connections")
        {
            settings.push(("connections".into(), limit.to_string(), from.clone()));
        }
        for (name, value) in &service.overrides {
            let value = self.values.expand(value);
            if let Some((key, value)) = self.own_generic_maps(&service.command, name, &value) {
                settings.push((key, value, from.clone()));
                continue;
            }
            match limits::client_setting(name, &value) {
                Some((key, value)) => settings.push((key.into(), value, from.clone())),
                None if CLIENT_NOT_NEEDED.contains(&name.as_str()) => {}
                None => self.report_override(&service, name, &value),
            }
        }
        settings
    }

    /// The delivery method of `error` and `retry`.
    pub(super) fn reply_method(&self, target: &TransportTarget) -> Option<DeliveryMethod> {
        let text = target.next_hop.as_deref().unwrap_or("Address is undeliverable");
        match (self.command(&target.channel).as_str(), target.channel.as_str()) {
            ("error", "retry") => Some(DeliveryMethod::Reply(parse_reply(450, text))),
            ("error", _) => Some(DeliveryMethod::Reply(parse_reply(550, text))),
            _ => None,
        }
    }

    /// The program of a transport, from master.cf or from Postfix's default names.
    fn command(&self, channel: &str) -> String {
        match (self.unix_service(channel), channel) {
            (Some(service), _) => service.command.clone(),
            (None, "relay") => "smtp".into(),
            (None, "retry") => "error".into(),
            (None, channel) => channel.to_owned(),
        }
    }

    /// Defers mail until the operator configures its delivery, and reports that.
    pub(super) fn deferring_method(&mut self, who: &str, why: &str) -> DeliveryMethod {
        self.draft.add_behavior_change(format!(
            "Mail to {who} waits in the queue (451) and bounces after `lifetime`: {why}."
        ));
        DeliveryMethod::Reply(format!("451 4.3.5 {}", reply_text(why)))
    }

    fn network_method(
        &mut self,
        target: &TransportTarget,
        kind: &'static str,
        who: &str,
        login: Option<TransportSetting>,
    ) -> DeliveryMethod {
        let mut settings = self.own_settings(&target.channel);
        settings.extend(login);
        let hops = list(target.next_hop.as_deref().unwrap_or_default());
        let Some(first) = hops.first() else {
            return match kind {
                "smtp" => DeliveryMethod::Network { kind, next_hop: None, port: None, settings },
                _ => self.deferring_method(who, &format!("{} names no next hop for LMTP", target.from)),
            };
        };
        if hops.len() > 1 {
            self.draft.add_unsupported(
                hops.join(", "),
                "only the first of these next hops is used; mail waits while it is down",
            );
        }
        let directory = self.values.value("queue_directory");
        match next_hop(first, kind, &directory) {
            Some((hop, port)) => DeliveryMethod::Network { kind, next_hop: Some(hop), port, settings },
            None => self
                .deferring_method(who, &format!("{} names {first}, which is not a valid next hop here", target.from)),
        }
    }

    /// The name of a transport for this delivery method, created if necessary.
    pub(super) fn transport(&mut self, like: &str, method: &DeliveryMethod, from: &str) -> String {
        let mut keys = Vec::new();
        match method {
            DeliveryMethod::Maildirs => return "maildir".to_owned(),
            DeliveryMethod::Reply(reply) => {
                keys.push(("type".to_owned(), quoted("smtp")));
                keys.push(("next_hop".to_owned(), quoted(reply)));
            }
            DeliveryMethod::Network { kind, next_hop, port, settings } => {
                keys.push(("type".to_owned(), quoted(kind)));
                keys.extend(next_hop.as_ref().map(|hop| ("next_hop".to_owned(), quoted(hop))));
                keys.extend(port.map(|port| ("port".to_owned(), port.to_string())));
                keys.extend(settings.iter().map(|(key, value, _)| (key.clone(), value.clone())));
            }
            DeliveryMethod::Program(program) => {
                keys.extend(program.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
            }
            DeliveryMethod::Discard => keys.push(("type".to_owned(), quoted("discard"))),
        }
        let pairs = |block: &TomlSection| -> Vec<_> {
            block.keys.iter().map(|(key, value, _)| (key.clone(), value.clone())).collect()
        };
        let made =
            self.draft.sections.iter().find(|block| block.header.starts_with("[transport.") && pairs(block) == keys);
        if let Some(name) = made.and_then(|block| block.header.strip_prefix("[transport.")?.strip_suffix(']')) {
            return name.to_owned();
        }
        let name = self.free_name(like);
        let mut block = TomlSection::new(&format!("[transport.{name}]"));
        keys.into_iter().for_each(|(key, value)| block.set(&key, value, from));
        self.draft.add(block);
        name
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn brackets_mean_no_mx() {
        for (text, kind, expected) in [
            ("[relay.example.net]:587", "smtp", Some(("relay.example.net:587", None))),
            ("relay.example.net", "smtp", Some(("mx:relay.example.net", None))),
            ("relay.example.net:submission", "smtp", Some(("mx:relay.example.net", Some(587)))),
            ("[192.0.2.1]", "smtp", Some(("[192.0.2.1]", None))),
            ("[2001:db8::1]:25", "smtp", Some(("[2001:db8::1]:25", None))),
            ("unix:private/dovecot-lmtp", "lmtp", Some(("unix:/var/spool/postfix/private/dovecot-lmtp", None))),
            ("inet:127.0.0.1:24", "lmtp", Some(("[127.0.0.1]:24", None))),
            ("host.example", "lmtp", Some(("host.example", None))),
            ("[a b]", "smtp", None),
            ("host:port", "smtp", None),
        ] {
            let expected = expected.map(|(hop, port)| (hop.to_owned(), port));
            assert_eq!(next_hop(text, kind, "/var/spool/postfix"), expected, "{text}");
        }
    }

    #[test]
    fn the_text_of_error_is_a_reply() {
        for (text, expected) in [
            ("5.1.2 no such domain", "550 5.1.2 no such domain"),
            ("User unknown", "550 5.0.0 User unknown"),
            ("4.2.1 b\u{e4}d", "550 5.2.1 b?d"),
        ] {
            assert_eq!(parse_reply(550, text), expected);
            assert!(expected.parse::<FixedHop>().is_ok());
        }
        assert_eq!(parse_reply(450, "later, please"), "450 4.0.0 later, please");
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "[\\[\\]a1.:/unix ]{0,20}|(?s).{0,30}") {
            next_hop(&text, "smtp", "/q");
        }
    }
}
