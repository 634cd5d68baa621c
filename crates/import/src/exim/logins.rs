//! Authenticators of the server as `[auth]`. Users can log in only if the ACL lets every user relay, as every user may
//! here.

use super::Conversion;
use super::expansion::Lookup;
use super::tables::TableUse;
use crate::config_draft::{TomlSection, quoted};
use crate::words::leading_braces;

impl Conversion<'_> {
    /// The first authenticator that can be translated.
    pub(super) fn logins(&mut self) {
        let is_server = |name: &str| name.starts_with("server_") && name != "server_advertise_condition";
        let drivers = self.config.authenticators.iter();
        let servers: Vec<_> =
            drivers.filter(|it| it.options.iter().any(|option| is_server(&option.name))).cloned().collect();
        if servers.is_empty() {
            if self.relay.users {
                self.draft.rules.push(("accept authenticated = *".into(), "no authenticator lets users log in".into()));
            }
            return;
        }
        if !self.relay.users {
            self.draft.add_behavior_change(
                "Users cannot log in: no statement of acl_smtp_rcpt lets all users relay, and here all may. See [auth].",
            );
            return;
        }
        self.has_users = true;
        let block = TomlSection::new("[auth]");
        if let Some(socket) = servers.iter().find(|it| it.kind() == "dovecot").and_then(|it| it.value("server_socket"))
        {
            let block = block.key("dovecot", quoted(&format!("unix:{socket}")), "server_socket");
            return self.draft.add(block);
        }
        let conditions: Vec<String> = servers
            .iter()
            .filter_map(|it| it.value("server_condition").or_else(|| it.value("server_secret")))
            .map(|value| self.expander.resolved(value))
            .collect();
        let table = conditions.iter().find_map(|text| self.password_table(text)).unwrap_or_else(|| {
            self.draft.add_behavior_change(
                "Logins get 454: where the passwords are has no counterpart. Replace the table `logins`, see [auth].",
            );
            self.add_unavailable_table("logins", "the logins of Exim are not translated")
        });
        self.draft.add(block.key("passwords", quoted(&table), "server_condition"));
    }

    /// The table that a condition looks into for the password of a user.
    fn password_table(&mut self, condition: &str) -> Option<String> {
        let start = condition.find("${lookup")?;
        let (inside, _) = leading_braces(&condition[start + 1..])?;
        let lookup = Lookup::parse(&format!("${{{inside}}}"))?;
        // Who is found by name and password together cannot be asked for by name.
        if lookup.source.matches("$auth").count() > 1 || lookup.key.matches('$').count() > 1 {
            return None;
        }
        let is_hashed = condition.contains("crypteq");
        let sections = self.draft.sections.len();
        let name = self.table(&lookup, TableUse::Passwords, &[]).ok()?;
        if !is_hashed {
            self.mark_as_plain(sections, &name);
        }
        Some(name)
    }

    /// Stored passwords that are not hashed need a prefix that says so.
    fn mark_as_plain(&mut self, first_section: usize, name: &str) {
        let path = self.folder.join(name);
        if let Some(file) = self.draft.files.iter_mut().find(|file| file.path == path) {
            let line = |line: &str| match line.split_once(' ') {
                Some((user, password)) => format!("{user} {{PLAIN}}{}\n", password.trim_start()),
                None => format!("{line}\n"),
            };
            file.text = file.text.lines().map(line).collect();
        } else if let Some(block) = self.draft.sections.get_mut(first_section) {
            block.set("result_format", quoted("{{PLAIN}}{value}"), "");
        }
    }
}
