//! Logins at next hops: `smtp_sasl_password_maps` as `auth` of a transport.
//!
//! Postfix looks up the sender, if `smtp_sender_dependent_authentication` is set, and then the next
//! hop. Passwords go into files that only the server may read.

use super::Conversion;
use super::config_draft::{TomlSection, quoted};
use super::delivery_methods::TransportSetting;
use super::expand::ExpandedParameters;
use super::lookups::{MapRef, file_name};
use super::transport_target::TransportTarget;
use super::words::list;

const PASSWORDS: &str = "smtp_sasl_password_maps";

/// The logins for a next hop.
#[derive(Debug, Default)]
struct HopLogins {
    /// `user:password` of all senders.
    common: Option<String>,
    /// The same by sender.
    by_sender: Vec<(String, String)>,
}

impl Conversion<'_> {
    /// `auth` of the transport for a next hop, if Postfix logs in there.
    ///
    /// # Errors
    ///
    /// Why mail for it must wait: it needs a login that cannot be read.
    pub(super) fn login_setting(&mut self, target: &TransportTarget) -> Result<Option<TransportSetting>, String> {
        let service = self.unix_service(&target.channel).cloned();
        let main = self.main.with_overrides(service.as_ref().map_or(&[], |service| &service.overrides));
        let values = self.values.with_main_cf(&main);
        let logs_in = values.value("smtp_sasl_auth_enable").eq_ignore_ascii_case("yes");
        let Some(hop) = target.next_hop.as_deref().filter(|_| logs_in) else { return Ok(None) };
        let by_sender = values.value("smtp_sender_dependent_authentication").eq_ignore_ascii_case("yes");
        let logins = self.hop_logins(&values.value(PASSWORDS), hop, by_sender)?;
        if logins.common.is_none() && logins.by_sender.is_empty() {
            return Ok(None);
        }
        ["smtp_sasl_auth_enable", PASSWORDS, "smtp_sender_dependent_authentication", "smtp_sasl_security_options"]
            .iter()
            .for_each(|name| self.draft.mapped(name));
        let mut keys = Vec::new();
        if let Some((user, password)) = logins.common.as_deref().and_then(|login| login.split_once(':')) {
            let file = self.password_file(hop, password);
            keys.push(format!("user = {}, password_file = {}", quoted(user), quoted(&file)));
        }
        if !logins.by_sender.is_empty() {
            self.draft.add_behavior_change(
                "Mail of senders with a login waits at next hops that offer none; Postfix sends it without a login.",
            );
            keys.push(format!("senders = {}", quoted(&self.sender_logins(&logins.by_sender))));
        }
        keys.push(format!("tls = {}", quoted(login_security(&values))));
        Ok(Some(("auth".into(), format!("{{ {} }}", keys.join(", ")), PASSWORDS.into())))
    }

    fn hop_logins(&mut self, maps: &str, hop: &str, by_sender: bool) -> Result<HopLogins, String> {
        let host = hop.trim_start_matches('[').split([']', ':']).next().unwrap_or(hop);
        let names = [hop.to_owned(), host.to_owned(), format!("[{host}]")];
        let mut logins = HopLogins::default();
        for map_ref in list(maps).iter().filter_map(|it| MapRef::parse(it)) {
            let Some(entries) = self.entries(&map_ref, false) else {
                return Err(format!(
                    "the relay host {hop} may require a password, and {PASSWORDS} cannot be read: set `auth` of this \
                     transport"
                ));
            };
            for (key, login) in entries.into_iter().filter(|(_, login)| login.contains(':')) {
                if by_sender && key.contains('@') {
                    logins.by_sender.push((key, login));
                } else if logins.common.is_none() && names.contains(&key) {
                    logins.common = Some(login);
                }
            }
        }
        Ok(logins)
    }

    /// The file of a password, one for each next hop.
    fn password_file(&mut self, hop: &str, password: &str) -> String {
        let text = format!("{password}\n");
        let is_sound = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        let like: String = hop.chars().filter(|c| is_sound(*c)).collect();
        let known = self.draft.files.iter().find(|file| {
            file.secret && file.text == text && file_name(&file.path).starts_with(&format!("{like}.password"))
        });
        let path = match known {
            Some(file) => file.path.clone(),
            None => self.add_file(&format!("{like}.password"), "", text, true),
        };
        path.to_string_lossy().into_owned()
    }

    /// The table of logins by sender, made once.
    fn sender_logins(&mut self, logins: &[(String, String)]) -> String {
        let line = |(sender, login): &(String, String)| match login.contains([',', '"']) {
            true => format!("# not translated: {sender}: commas and quotes in a password need `user` of `auth`\n"),
            false => format!("{:<31} {login}\n", sender.trim_start_matches('@')),
        };
        let text: String = logins.iter().map(line).collect();
        if let Some(known) = self.draft.files.iter().find(|file| file.secret && file.text == text) {
            return file_name(&known.path);
        }
        let path = self.add_file("sender-logins", "", text, true);
        let name = file_name(&path);
        let block = TomlSection::new("[[table]]").comment(format!("Logins by sender. From {PASSWORDS}."));
        let block = block.key("name", quoted(&name), "").key("type", quoted("text"), "");
        self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        name
    }
}

/// What must protect a login, as Postfix sends it.
fn login_security(values: &ExpandedParameters<'_>) -> &'static str {
    let options = values.explicit_value("smtp_sasl_security_options");
    let may_be_clear = options.is_some_and(|options| !list(&options).iter().any(|it| it == "noplaintext"));
    match values.value("smtp_tls_security_level").as_str() {
        "verify" | "secure" => "verified",
        "none" => "offered",
        "" | "may" if may_be_clear => "offered",
        _ => "required",
    }
}
