//! Transports. What a transport of ours has no key for is listed at the end of the new file; a kind of transport that
//! does not exist becomes one whose mail waits.

use super::Conversion;
use super::expansion::list;
use super::general::{port_number, size};
use super::sections::Driver;
use crate::config_draft::{TomlSection, quoted, quoted_list, transport_header};

/// Options without an effect on what mail is delivered where.
const NOT_NEEDED: [&str; 24] = [
    "body_only",
    "check_string",
    "create_directory",
    "current_directory",
    "debug_print",
    "delivery_date_add",
    "directory_mode",
    "dkim_canon",
    "dkim_strict",
    "driver",
    "envelope_to_add",
    "escape_string",
    "group",
    "maildir_format",
    "maildir_tag",
    "message_prefix",
    "message_suffix",
    "mode",
    "mode_fail_narrower",
    "multi_domain",
    "return_path_add",
    "tls_dh_min_bits",
    "user",
    "hosts_try_fastopen",
];

/// Where mail goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Target {
    /// The name of the transport.
    pub(super) name: String,
    /// Whether mail files of users are elsewhere than here.
    pub(super) moves_mailboxes: bool,
}

impl Conversion<'_> {
    /// The transport of ours for a transport of Exim's, to a next hop if it is a remote one.
    pub(super) fn transport(&mut self, name: &str, next_hop: Option<&str>) -> Target {
        let Some(driver) = self.config.transport(name.trim()).cloned() else {
            return self.waiting_transport("no-transport", &format!("its transport {name} is not known"));
        };
        match driver.kind() {
            "appendfile" => self.mailbox_transport(&driver),
            "smtp" | "lmtp" => {
                let hosts = driver.value("hosts").map(|value| self.expander.resolved(value));
                let hop = next_hop.map(str::to_owned).or_else(|| hosts.as_deref().and_then(|it| self.next_hop(it)));
                let hop = driver.value("socket").map(|path| format!("unix:{path}")).or(hop);
                match hop.filter(|hop| !hop.contains('$')) {
                    Some(hop) => self.remote_transport(&driver, &hop),
                    None => {
                        self.waiting_transport(name, &format!("the host of transport {name} depends on the message"))
                    }
                }
            }
            "pipe" => self.pipe_transport(&driver),
            kind => self.waiting_transport(name, &format!("transports of type {kind} ({name}) have no counterpart")),
        }
    }

    /// A transport whose mail waits.
    pub(super) fn waiting_transport(&mut self, wanted: &str, why: &str) -> Target {
        let name = self.unused_name(wanted);
        self.draft.add_behavior_change(format!("Mail waits in the queue: {why}. See [transport.{name}]."));
        let block = TomlSection::new(&transport_header(&name)).key("type", quoted("error"), "");
        self.draft.add(block.key("reply", quoted("451 4.3.5 This transport is not translated"), ""));
        Target { name, moves_mailboxes: false }
    }

    fn mailbox_transport(&mut self, driver: &Driver) -> Target {
        let folder = driver.value("directory").map(|value| self.expander.resolved(value));
        let path = folder.filter(|_| driver.is_set("maildir_format")).and_then(|text| maildir_path(&text));
        let Some(path) = path else {
            return Target { name: "maildir".into(), moves_mailboxes: true };
        };
        let name = self.unused_name(&driver.name);
        let block = TomlSection::new(&transport_header(&name)).key("type", quoted("maildir"), "driver");
        let mut block = block.key("path", quoted(&path), "directory").key("line_ends", quoted("lf"), "");
        let quota = driver.value("quota").and_then(|value| self.expander.constant(value));
        if let Some(bytes) = quota.as_deref().and_then(size).filter(|bytes| *bytes > 0) {
            block.set("quota", format!("{{ bytes = {bytes} }}"), "quota");
        } else if driver.value("quota").is_some() {
            self.draft.add_unsupported(format!("{} quota", driver.name), "it depends on the user: see `quota_table`");
        }
        self.draft.add(block);
        self.unused_options(driver, &["directory", "quota"]);
        Target { name, moves_mailboxes: false }
    }

    fn remote_transport(&mut self, driver: &Driver, hop: &str) -> Target {
        let is_lmtp = driver.kind() == "lmtp" || driver.value("protocol").is_some_and(|it| it == "lmtp");
        let name = self.unused_name(&driver.name);
        let header = transport_header(&name);
        let kind = if is_lmtp { "lmtp" } else { "smtp" };
        let block = TomlSection::new(&header).key("type", quoted(kind), "driver").key("next_hop", quoted(hop), "");
        self.draft.add(block);
        self.smtp_options(driver, &header, hop);
        Target { name, moves_mailboxes: false }
    }

    /// The options of a transport of type smtp or lmtp.
    pub(super) fn smtp_options(&mut self, driver: &Driver, header: &str, hop: &str) {
        let constant = |name: &str| driver.value(name).and_then(|value| self.expander.constant(value));
        let mut keys: Vec<(&str, String, &str)> = Vec::new();
        let port = constant("port").and_then(|port| port_number(&port));
        keys.extend(port.map(|port| ("port", port.to_string(), "port")));
        if constant("protocol").is_some_and(|it| it == "smtps") {
            keys.push(("implicit_tls", "true".into(), "protocol"));
        }
        let is_all = |name: &str| constant(name).is_some_and(|value| value.trim() == "*");
        let tls = match (is_all("hosts_require_tls"), is_all("tls_verify_hosts"), is_all("hosts_avoid_tls")) {
            (true, true, _) => Some(("verified", "hosts_require_tls, tls_verify_hosts")),
            (true, false, _) => Some(("required", "hosts_require_tls")),
            (_, _, true) => Some(("never", "hosts_avoid_tls")),
            _ => None,
        };
        // What some hosts need, all get.
        let tls = tls.or_else(|| {
            constant("hosts_require_tls").filter(|it| !it.trim().is_empty()).map(|_| ("required", "hosts_require_tls"))
        });
        keys.extend(tls.map(|(level, from)| ("tls", quoted(level), from)));
        let number =
            |name: &'static str| constant(name).and_then(|value| value.parse::<u32>().ok()).filter(|it| *it > 0);
        keys.extend(
            number("connection_max_messages")
                .map(|it| ("messages_per_connection", it.to_string(), "connection_max_messages")),
        );
        keys.extend(number("max_rcpt").map(|it| ("recipients_per_message", it.to_string(), "max_rcpt")));
        let source = constant("interface").map(|it| list(&it)).filter(|them| {
            !them.is_empty() && them.len() < 3 && them.iter().all(|it| it.parse::<std::net::IpAddr>().is_ok())
        });
        keys.extend(source.map(|them| ("source", quoted_list(them.iter().map(String::as_str)), "interface")));
        let helo = constant("helo_data").filter(|name| mail::Address::new("x", name).is_ok());
        keys.extend(helo.map(|name| ("helo", quoted(&name), "helo_data")));
        for (key, value, from) in keys {
            self.draft.section(header).set(key, value, from);
        }
        self.signing(driver);
        self.client_login(driver, header, hop);
        self.unused_options(driver, &SMTP_OPTIONS);
    }

    /// `dkim_domain`, `dkim_selector` and `dkim_private_key`, if they are the same for all mail.
    fn signing(&mut self, driver: &Driver) {
        let options = ["dkim_domain", "dkim_selector", "dkim_private_key"];
        if options.iter().all(|name| driver.value(name).is_none()) {
            return;
        }
        let value = |name: &str| driver.value(name).and_then(|value| self.expander.constant(value));
        match options.map(value) {
            [Some(domain), Some(selector), Some(file)] if file.starts_with('/') && !domain.contains(':') => {
                let block = TomlSection::new("[[signing.key]]").key("domain", quoted(&domain), options[0]);
                let block = block.key("selector", quoted(&selector), options[1]).key("file", quoted(&file), options[2]);
                let is_known = self.draft.sections.iter().any(|known| known.keys == block.keys);
                if !is_known {
                    self.draft.add(block);
                }
            }
            _ => self.draft.add_behavior_change(format!(
                "Mail by {} is not signed: its DKIM keys depend on the message, see [[signing.key]].",
                driver.name
            )),
        }
    }

    fn pipe_transport(&mut self, driver: &Driver) -> Target {
        let command = self.expander.resolved(driver.value("command").unwrap_or_default());
        let words: Option<Vec<String>> = command.split_whitespace().map(pipe_argument).collect();
        let is_plain = !command.contains(['"', '\'', '|', '>']) && command.starts_with('/');
        let Some(words) = words.filter(|_| is_plain) else {
            return self.waiting_transport(
                &driver.name,
                &format!("the command of transport {} has no counterpart", driver.name),
            );
        };
        let name = self.unused_name(&driver.name);
        let block = TomlSection::new(&transport_header(&name)).key("type", quoted("pipe"), "driver");
        let mut block = block.key("command", quoted_list(words.iter().map(String::as_str)), "command");
        if let Some(user) = driver.value("user").filter(|user| !user.contains('$') && *user != "root") {
            block.set("user", quoted(user), "user");
        }
        if driver.is_set("return_path_add") {
            block.set("fields", quoted_list(["Return-Path"]), "return_path_add");
        }
        self.draft.add(block);
        self.unused_options(driver, &["command"]);
        Target { name, moves_mailboxes: false }
    }

    fn unused_options(&mut self, driver: &Driver, used: &[&str]) {
        for option in &driver.options {
            if !used.contains(&option.name.as_str()) && !NOT_NEEDED.contains(&option.name.as_str()) {
                let what = format!("transport {}: {} = {}", driver.name, option.name, option.value);
                self.draft.add_unsupported(what, "transports have no such key");
            }
        }
    }
}

/// Options that `smtp_options` reads, or that are the default here.
const SMTP_OPTIONS: [&str; 24] = [
    "allow_localhost",
    "connection_max_messages",
    "dkim_domain",
    "dkim_private_key",
    "dkim_selector",
    "fallback_hosts",
    "headers_rewrite",
    "helo_data",
    "hosts",
    "hosts_avoid_tls",
    "hosts_override",
    "hosts_randomize",
    "hosts_require_auth",
    "hosts_require_tls",
    "hosts_try_auth",
    "hosts_try_dane",
    "interface",
    "max_rcpt",
    "port",
    "protocol",
    "return_path",
    "socket",
    "tls_verify_certificates",
    "tls_verify_hosts",
];

/// The path of a Maildir with our placeholders.
fn maildir_path(text: &str) -> Option<String> {
    if text.contains(['{', '}']) && !text.contains("${") {
        return None;
    }
    let names = ["local_part_data", "local_part", "domain_data", "domain"];
    let text = text.replace("${lc:", "${");
    let made = names.iter().fold(text, |text, name| {
        let ours = if name.starts_with("local") { "\u{1}" } else { "\u{2}" };
        text.replace(&format!("${{${name}}}"), ours)
            .replace(&format!("${{{name}}}"), ours)
            .replace(&format!("${name}"), ours)
    });
    let has_user = made.contains('\u{1}');
    let is_known = !made.contains(['$', '{', '}']) && made.starts_with('/') && !made.contains("/../");
    (is_known && has_user).then(|| made.replace('\u{1}', "{local}").replace('\u{2}', "{domain}"))
}

/// An argument of a program in our notation.
fn pipe_argument(word: &str) -> Option<String> {
    let text = super::tables::key_parts(word).ok()?;
    Some(text.replace("%s", "${recipient}").replace("%u", "${user}").replace("%d", "${domain}").replace("%%", "%"))
}
