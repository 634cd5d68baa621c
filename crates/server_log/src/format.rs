//! Writes a log line for a mail event or a server event, as text or JSON.
//!
//! ```text
//! 2026-11-20T17:46:16.123Z received id=0-0-1 client=192.0.2.1 helo=mx.example from=<a@example.org> ...
//! {"time":"2026-11-20T17:46:16.123Z","event":"received","id":"0-0-1","client":"192.0.2.1", ...}
//! ```
//!
//! A line is always a single line. Control characters, characters that change the writing direction
//! or end a line in Unicode, and invisible characters are escaped ([`mail::push_escaped`]), so that a
//! client can neither forge lines nor harm the operator's terminal.

use std::fmt::{Display, Write};
use std::net::IpAddr;

use mail::{Address, LogLevel, MailEvent, QueueId, Timestamp};

use crate::events::MailEventKind;
use crate::settings::LogFormat;
use mail::{must_escape, push_escaped};

/// The content of a line.
pub enum LogEntry {
    /// An event about mail.
    Mail(MailEvent),
    /// An event of the server itself.
    Server {
        /// How serious it is.
        level: LogLevel,
        /// What happened.
        text: String,
        /// Names and values.
        fields: Vec<(&'static str, String)>,
    },
}

/// Appends the line with its line end.
pub fn write_line(out: &mut String, format: LogFormat, time: Timestamp, line: &LogEntry) {
    let mut writer = LogLineWriter { out, format, kind: None };
    match line {
        LogEntry::Mail(fact) => {
            writer.kind = Some(mail_event_kind(fact));
            writer.begin(time, mail_event_kind(fact).name());
            write_fields(&mut writer, fact);
        }
        LogEntry::Server { level, text, fields } => {
            writer.begin(time, level_name(*level));
            writer.text("message", text);
            fields.iter().for_each(|(name, value)| writer.text(name, value));
        }
    }
    writer.end();
}

fn level_name(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Info => "info",
        LogLevel::Warning => "warning",
        LogLevel::Error => "error",
    }
}

fn mail_event_kind(event: &MailEvent) -> MailEventKind {
    match event {
        MailEvent::Received { .. } => MailEventKind::Received,
        MailEvent::Delivered { .. } => MailEventKind::Delivered,
        MailEvent::Discarded { .. } => MailEventKind::Discarded,
        MailEvent::Held { .. } => MailEventKind::Held,
        MailEvent::Released { .. } => MailEventKind::Released,
        MailEvent::Removed { .. } => MailEventKind::Removed,
        MailEvent::Deferred { .. } => MailEventKind::Deferred,
        MailEvent::Bounced { .. } => MailEventKind::Bounced,
        MailEvent::Refused { .. } => MailEventKind::Refused,
        MailEvent::TlsFailed { .. } => MailEventKind::Insecure,
        MailEvent::Login { .. } => MailEventKind::Login,
        MailEvent::SetAside { .. } => MailEventKind::SetAside,
    }
}

/// Writes an accepted message and its client.
fn write_received(writer: &mut LogLineWriter<'_>, event: &MailEvent) {
    let MailEvent::Received { id, client, helo, sender, recipients, size, protocol, security, user, header, auth } =
        event
    else {
        return;
    };
    writer.unescaped("id", id);
    writer.client(client.as_ref(), helo);
    writer.address("from", sender.as_ref());
    writer.number("recipients", *recipients as u64);
    writer.number("size", *size);
    writer.unescaped("protocol", protocol);
    if let Some(security) = security {
        writer.unescaped("tls", &security.version);
        writer.unescaped("cipher", &security.cipher);
    }
    let said = [("user", user), ("auth", auth), ("message_id", &header.message_id), ("subject", &header.subject)];
    said.into_iter().for_each(|(name, text)| writer.optional_text(name, text.as_deref()));
}

fn write_fields(writer: &mut LogLineWriter<'_>, event: &MailEvent) {
    match event {
        MailEvent::Received { .. } => write_received(writer, event),
        MailEvent::Login { client, helo, user, mechanism, result } => {
            writer.unescaped("result", result);
            writer.client(client.as_ref(), helo);
            writer.unescaped("mechanism", mechanism);
            writer.text("user", user);
        }
        MailEvent::TlsFailed { client, helo, reason } => {
            writer.client(client.as_ref(), helo);
            writer.text("reason", reason);
        }
        MailEvent::Delivered { id, sender, recipient, transport, relay, delay } => {
            writer.recipient(id, sender.as_ref(), recipient);
            writer.text("transport", transport);
            if let Some((host, reply)) = relay {
                writer.text("relay", host);
                writer.text("reply", &reply.to_string());
            }
            writer.number("delay_ms", u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        }
        MailEvent::Deferred { id, sender, recipient, transport, relay, reason, until } => {
            writer.recipient(id, sender.as_ref(), recipient);
            writer.text("transport", transport);
            writer.optional_text("relay", relay.as_deref());
            writer.unescaped("until", &until.to_rfc3339());
            writer.text("reason", &reason.to_string());
        }
        MailEvent::Discarded { id, client, helo, sender, check } => {
            writer.unescaped("id", id);
            writer.client(client.as_ref(), helo);
            writer.address("from", sender.as_ref());
            writer.text("check", check);
        }
        MailEvent::Held { id, recipient }
        | MailEvent::Released { id, recipient }
        | MailEvent::Removed { id, recipient } => {
            writer.unescaped("id", id);
            writer.address("to", Some(recipient));
        }
        MailEvent::Bounced { id, sender, recipient, transport, relay, reason, bounce } => {
            writer.recipient(id, sender.as_ref(), recipient);
            writer.text("transport", transport);
            writer.optional_text("relay", relay.as_deref());
            writer.optional("bounce", bounce.as_ref());
            writer.text("reason", &reason.to_string());
        }
        MailEvent::Refused { client, helo, stage, address, rule, reply } => {
            writer.client(client.as_ref(), helo);
            writer.unescaped("stage", stage);
            if let Some(address) = address {
                writer.address("address", Some(address));
            }
            writer.optional_text("rule", rule.as_deref());
            writer.text("reply", &reply.to_string());
        }
        MailEvent::SetAside { id, detail: what } => {
            writer.optional("id", id.as_ref());
            writer.text("what", what);
        }
    }
}

/// Writes the fields of one line.
struct LogLineWriter<'a> {
    out: &'a mut String,
    format: LogFormat,
    /// Limits the fields to those of this event; None: any.
    kind: Option<MailEventKind>,
}

impl LogLineWriter<'_> {
    fn begin(&mut self, time: Timestamp, name: &str) {
        let time = time.to_rfc3339();
        match self.format {
            LogFormat::Text => self.push(format_args!("{time} {name}")),
            LogFormat::Json => self.push(format_args!("{{\"time\":\"{time}\",\"event\":\"{name}\"")),
        }
    }

    fn end(&mut self) {
        self.out.push_str(match self.format {
            LogFormat::Text => "\n",
            LogFormat::Json => "}\n",
        });
    }

    fn number(&mut self, name: &str, value: u64) {
        self.key(name);
        self.push(format_args!("{value}"));
    }

    /// Writes a value of our own that needs no escapes.
    fn unescaped(&mut self, name: &str, value: &dyn Display) {
        self.key(name);
        match self.format {
            LogFormat::Text => self.push(format_args!("{value}")),
            LogFormat::Json => self.push(format_args!("\"{value}\"")),
        }
    }

    fn optional<T: Display>(&mut self, name: &str, value: Option<&T>) {
        if let Some(value) = value {
            self.unescaped(name, value);
        }
    }

    /// Writes the message id, the sender and the recipient.
    fn recipient(&mut self, id: &QueueId, sender: Option<&Address>, recipient: &Address) {
        self.unescaped("id", id);
        self.address("from", sender);
        self.address("to", Some(recipient));
    }

    /// Writes the client's address and HELO name.
    fn client(&mut self, client: Option<&IpAddr>, helo: &str) {
        self.optional("client", client);
        self.text("helo", helo);
    }

    /// Writes an address as in SMTP; `<>` is the null sender.
    fn address(&mut self, name: &str, address: Option<&Address>) {
        let text = address.map_or("", Address::as_str);
        match self.format {
            LogFormat::Text if !text.contains(|c| c == '"' || must_escape(c)) => {
                self.key(name);
                self.push(format_args!("<{text}>"));
            }
            LogFormat::Text => self.text(name, &format!("<{text}>")),
            LogFormat::Json => self.text(name, text),
        }
    }

    fn optional_text(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    fn text(&mut self, name: &str, value: &str) {
        self.key(name);
        match self.format {
            LogFormat::Text if is_word(value) => self.out.push_str(value),
            LogFormat::Text | LogFormat::Json => self.push_quoted(value),
        }
    }

    fn push_quoted(&mut self, value: &str) {
        self.out.push('"');
        for c in value.chars() {
            match c {
                '"' | '\\' => self.out.extend(['\\', c]),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                c if must_escape(c) => push_escaped(self.out, c),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn key(&mut self, name: &str) {
        debug_assert!(self.kind.is_none_or(|event| event.fields().contains(&name)), "{name} of {:?}", self.kind);
        match self.format {
            LogFormat::Text => self.out.extend([" ", name, "="]),
            LogFormat::Json => self.out.extend([",\"", name, "\":"]),
        }
    }

    fn push(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.out.write_fmt(text);
    }
}

/// Whether a value needs no quotes in a text line.
fn is_word(value: &str) -> bool {
    let wants_quotes = |c: char| matches!(c, '"' | '\\' | '=') || c.is_whitespace() || must_escape(c);
    !value.is_empty() && !value.contains(wants_quotes)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mail::{EnhancedCode, LoggedHeader, Reply, SpoolId, TlsInfo};
    use proptest::prelude::*;

    use super::*;

    const TIME: Timestamp = Timestamp(1_795_196_776_123);

    fn every_kind_of_line() -> Vec<LogEntry> {
        let id = QueueId::new(SpoolId::new(77), 1, 4096);
        let bob: Address = "bob@example.org".parse().unwrap();
        let spaced: Address = "\"b b\"@example.org".parse().unwrap();
        let client = Some("192.0.2.1".parse().unwrap());
        let gone = Reply::new(550, EnhancedCode(5, 1, 1), "no such user\nat \"example.org\"");
        let full = Reply::new(452, EnhancedCode(4, 3, 1), "the disk is full");
        let received = |client, helo: &str, sender| MailEvent::Received {
            id,
            client,
            helo: helo.into(),
            sender,
            recipients: 3,
            size: 6000,
            protocol: "ESMTP",
            security: None,
            user: None,
            header: LoggedHeader { message_id: Some("<1@mx.example.net>".into()), subject: None },
            auth: None,
        };
        let refused = |helo: &str, address, rule: Option<&str>, reply: &Reply| MailEvent::Refused {
            client,
            helo: helo.into(),
            stage: "RCPT",
            address,
            rule: rule.map(Into::into),
            reply: reply.clone(),
        };
        let facts = [
            received(client, "mx.example.net", Some(bob.clone())),
            received(None, "", None),
            secured(id, client),
            login("bob", "ok"),
            login("evil\r\n2026 received", "refused"),
            login("", "cancelled"),
            MailEvent::TlsFailed {
                client,
                helo: "mx.example.net".into(),
                reason: "received fatal alert: \"X\"".into(),
            },
        ];
        let others = [
            refused("", None, None, &full),
            refused("evil\r\n2026 received\u{1b}[2J\u{9b}\u{202e}é", Some(spaced), Some("rule 2"), &gone),
            MailEvent::SetAside { id: Some(id), detail: "a record is damaged".into() },
            MailEvent::SetAside { id: None, detail: "segment 7, record at 4096: checksum".into() },
        ];
        let facts = facts.into_iter().chain(outcomes(id, &gone, &full)).chain(others);
        let mut lines: Vec<LogEntry> = facts.map(LogEntry::Mail).collect();
        let fields = vec![("address", "127.0.0.1:2525".into()), ("note", "a=b".into())];
        lines.push(LogEntry::Server { level: LogLevel::Warning, text: "listening".into(), fields });
        lines
    }

    /// The outcomes of recipients.
    fn outcomes(id: QueueId, gone: &Reply, full: &Reply) -> Vec<MailEvent> {
        let bob: Address = "bob@example.org".parse().unwrap();
        let (sender, transport) = (Some(bob.clone()), Box::<str>::from("smtp"));
        let host = || Some("mx.example.net[192.0.2.25]:25".into());
        vec![
            MailEvent::Delivered {
                id,
                sender: None,
                recipient: "\"b b\"@example.org".parse().unwrap(),
                transport: "maildir".into(),
                relay: None,
                delay: Duration::from_millis(1234),
            },
            MailEvent::Delivered {
                id,
                sender: sender.clone(),
                recipient: bob.clone(),
                transport: transport.clone(),
                relay: host().map(|host| (host, Reply::without_enhanced_code(250, "ok \u{1b}[2J"))),
                delay: Duration::from_millis(56),
            },
            MailEvent::Deferred {
                id,
                sender: sender.clone(),
                recipient: bob.clone(),
                transport: transport.clone(),
                relay: host(),
                reason: full.clone(),
                until: Timestamp(1_795_196_836_000),
            },
            MailEvent::Bounced {
                id,
                sender: sender.clone(),
                recipient: bob.clone(),
                transport: transport.clone(),
                relay: host(),
                reason: gone.clone(),
                bounce: Some(id),
            },
            MailEvent::Bounced {
                id,
                sender: None,
                recipient: bob.clone(),
                transport: "none".into(),
                relay: None,
                reason: gone.clone(),
                bounce: None,
            },
            MailEvent::Discarded {
                id,
                client: Some([192, 0, 2, 1].into()),
                helo: "mx.example.net".into(),
                sender: None,
                check: "a rule".into(),
            },
            MailEvent::Held { id, recipient: bob.clone() },
            MailEvent::Released { id, recipient: bob.clone() },
            MailEvent::Removed { id, recipient: bob.clone() },
        ]
    }

    fn secured(id: QueueId, client: Option<IpAddr>) -> MailEvent {
        MailEvent::Received {
            id,
            client,
            helo: "mx.example.net".into(),
            sender: None,
            recipients: 1,
            size: 60,
            protocol: "ESMTPSA",
            security: Some(TlsInfo { version: "TLSv1.3", cipher: "TLS_AES_256_GCM_SHA384" }),
            user: Some("bob".into()),
            header: LoggedHeader {
                message_id: Some("forged\r\n2026 received".into()),
                subject: Some("caf\u{e9} \u{202e}x\u{61c}\u{7f} \"=?utf-8?q?y?=\"".into()),
            },
            auth: Some("spf=pass dkim=none".into()),
        }
    }

    fn login(user: &str, result: &'static str) -> MailEvent {
        MailEvent::Login {
            client: Some("192.0.2.1".parse().unwrap()),
            helo: "mx.example.net".into(),
            user: user.into(),
            mechanism: "SCRAM-SHA-256",
            result,
        }
    }

    fn written(format: LogFormat) -> String {
        let mut out = String::new();
        every_kind_of_line().iter().for_each(|line| write_line(&mut out, format, TIME, line));
        out
    }

    #[test]
    fn each_fact_is_a_line_of_text() {
        insta::assert_snapshot!(written(LogFormat::Text));
    }

    #[test]
    fn each_fact_is_a_json_object() {
        insta::assert_snapshot!(written(LogFormat::Json));
    }

    #[test]
    fn every_field_of_every_event_is_written_in_its_order() {
        let written = written(LogFormat::Text);
        for event in MailEventKind::ALL {
            let name = format!(" {} ", event.name());
            let lines = || written.lines().filter_map(|line| line.split_once(&name)).map(|(_, fields)| fields);
            let whole =
                |line: &&str| event.fields().iter().all(|field| format!(" {line}").contains(&format!(" {field}=")));
            let whole = lines().find(whole).unwrap_or_else(|| panic!("no line has all fields of {}", event.name()));
            let places = event.fields().iter().map(|field| format!(" {whole}").find(&format!(" {field}=")));
            assert!(places.is_sorted(), "{whole}");
        }
    }

    #[test]
    fn json_reads_back_as_what_was_said() {
        for (line, said) in written(LogFormat::Json).lines().zip(every_kind_of_line()) {
            let read: serde_json::Value = serde_json::from_str(line).unwrap();
            if let LogEntry::Mail(MailEvent::Refused { helo, .. }) = said {
                assert_eq!(read["helo"], *helo);
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_a_client_says_is_one_line_without_controls(helo in any::<String>(), what in any::<String>()) {
            for format in [LogFormat::Text, LogFormat::Json] {
                let mut out = String::new();
                let fields = vec![("helo", helo.clone())];
                write_line(&mut out, format, TIME, &LogEntry::Server { level: LogLevel::Info, text: what.clone(), fields });
                let line = out.strip_suffix('\n').unwrap();
                prop_assert!(!line.contains(must_escape), "{line:?}");
                if format == LogFormat::Json {
                    let read: serde_json::Value = serde_json::from_str(line).unwrap();
                    prop_assert_eq!(read["helo"].as_str(), Some(&*helo));
                    prop_assert_eq!(read["message"].as_str(), Some(&*what));
                }
            }
        }
    }
}
