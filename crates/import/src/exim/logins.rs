//! Authenticators of the server as `[auth]`. Users can log in only if the ACL lets every user relay, as every user may
//! here.

use super::Conversion;
use super::expansion::Lookup;
use super::sections::Driver;
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
        self.tell_of_advertising(&servers);
        let is_free =
            |it: &&Driver| it.kind() == "dovecot" && it.value("server_condition").is_none_or(|it| self.is_true(it));
        if let Some(socket) = servers.iter().find(is_free).and_then(|it| it.value("server_socket")) {
            let block = block.key("dovecot", quoted(&format!("unix:{socket}")), "server_socket");
            return self.draft.add(block);
        }
        let lookups: Vec<PasswordLookup> = servers.iter().filter_map(|it| self.password_lookup(it)).collect();
        let table = lookups.iter().find_map(|it| self.password_table(it)).unwrap_or_else(|| {
            self.draft.add_behavior_change(
                "Logins get 454: where the passwords are has no counterpart. Replace the table `logins`, see [auth].",
            );
            self.add_unavailable_table("logins", "the logins of Exim are not translated")
        });
        self.draft.add(block.key("passwords", quoted(&table), "server_condition"));
    }

    /// Exim takes no login where it offers none. Here a login needs TLS, and nothing else.
    fn tell_of_advertising(&mut self, servers: &[Driver]) {
        let hosts = "auth_advertise_hosts";
        if self.config.main.value(hosts).is_some_and(|value| !self.is_free_with_tls(value)) {
            self.draft.unsupported(hosts, "users can log in from everywhere");
            self.draft.add_behavior_change(
                "Users can log in from everywhere, not only where auth_advertise_hosts allows it: see [auth], or refuse \
                 other clients in [[access]].",
            );
        }
        for driver in servers {
            if driver.value("server_advertise_condition").is_some_and(|value| !self.is_free_with_tls(value)) {
                self.draft.add_behavior_change(format!(
                    "Users can log in wherever they have TLS: server_advertise_condition of {} has no counterpart, see [auth].",
                    driver.name
                ));
            }
        }
    }

    /// Whether a condition holds for all that have TLS.
    fn is_free_with_tls(&self, text: &str) -> bool {
        self.is_true(text) || is_true_with_tls(text)
    }

    /// The lookup that gives the password of a user, if nothing else decides about the login.
    fn password_lookup(&self, driver: &Driver) -> Option<PasswordLookup> {
        if let Some(secret) = driver.value("server_secret") {
            let lookup = Lookup::parse(&self.expander.resolved(secret)).filter(is_for_one_login)?;
            let is_free = driver.value("server_condition").is_none();
            return is_free.then_some(PasswordLookup { lookup, is_hashed: false, first_field: false });
        }
        if driver.kind() != "plaintext" {
            return None;
        }
        PasswordLookup::of_condition(&self.expander.resolved(driver.value("server_condition")?))
    }

    /// The table that a lookup looks into for the password of a user.
    fn password_table(&mut self, found: &PasswordLookup) -> Option<String> {
        let sections = self.draft.sections.len();
        let name = self.table(&found.lookup, TableUse::Passwords { first_field: found.first_field }, &[]).ok()?;
        if !found.is_hashed {
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

/// A lookup of a password by the name of a login.
struct PasswordLookup {
    lookup: Lookup,
    is_hashed: bool,
    /// Whether only the first field of what is found is the password.
    first_field: bool,
}

impl PasswordLookup {
    /// `${if crypteq{PASSWORD}{LOOKUP}}` or `eq`. A condition that asks for anything else has none, because a value
    /// that is not the password would become one.
    fn of_condition(text: &str) -> Option<PasswordLookup> {
        let inside = text.trim().strip_prefix("${if")?.trim_start();
        let (is_hashed, rest) = match inside.strip_prefix("crypteq") {
            Some(rest) => (true, rest),
            None => (false, inside.strip_prefix("eq")?),
        };
        let (one, rest) = leading_braces(rest)?;
        let (other, rest) = leading_braces(rest)?;
        let (yes, rest) = leading_braces(rest).unwrap_or(("true", rest));
        let (no, rest) = leading_braces(rest).unwrap_or(("", rest));
        let is_plain =
            matches!(yes.trim(), "yes" | "true" | "1") && matches!(no.trim(), "" | "no" | "false" | "0" | "fail");
        let (password, stored) = if is_hashed || !one.contains("${lookup") { (one, other) } else { (other, one) };
        let of_first_field = first_field(stored);
        let first_field = of_first_field.is_some();
        let lookup = of_first_field.or_else(|| Lookup::parse(stored)).filter(is_for_one_login)?;
        let name = login_variable(&lookup.key).or_else(|| login_variable(&lookup.source))?;
        let is_password = variables(password).as_slice() == [password.trim().trim_matches(['$', '{', '}'])]
            && login_variable(password) == Some(name + 1);
        (is_plain && rest.trim() == "}" && is_password).then_some(PasswordLookup { lookup, is_hashed, first_field })
    }
}

/// Whether a condition asks for TLS only, as in `${if eq{$tls_in_cipher}{}{}{*}}`.
fn is_true_with_tls(text: &str) -> bool {
    let text: String = text.split_whitespace().collect();
    ["$tls_cipher", "$tls_in_cipher"].iter().any(|name| {
        let (unset, set) = (format!("${{ifeq{{{name}}}{{}}"), format!("${{ifdef:{}", &name[1..]));
        let branches =
            text.strip_prefix(&unset).filter(|it| ["{}{*}}", "{no}{yes}}", "{0}{1}}", "{false}{true}}"].contains(it));
        let is_defined =
            text.strip_prefix(&set).is_some_and(|it| ["}", "{*}}", "{yes}}", "{*}{}}", "{yes}{no}}"].contains(&it));
        branches.is_some() || is_defined || text == *name
    })
}

/// The lookup in `${extract{1}{:}{LOOKUP}}`, which gives what a table of a file gives.
fn first_field(text: &str) -> Option<Lookup> {
    let rest = text.trim().strip_prefix("${extract")?;
    let (number, rest) = leading_braces(rest)?;
    let (separator, rest) = leading_braces(rest)?;
    let (lookup, rest) = leading_braces(rest)?;
    let is_first = number.trim() == "1" && separator == ":" && rest.trim() == "}";
    Lookup::parse(lookup).filter(|lookup| is_first && lookup.kind == "lsearch")
}

/// Whether a lookup finds a value by the name of a login and by nothing else.
fn is_for_one_login(lookup: &Lookup) -> bool {
    let names = [variables(&lookup.key), variables(&lookup.source)].concat();
    names.len() == 1 && lookup.gives_value() && lookup.default.is_empty() && !lookup.is_partial
}

/// The names of the variables and items in a text, without those that only quote.
fn variables(text: &str) -> Vec<&str> {
    let names = text.split('$').skip(1).map(|part| {
        let part = part.trim_start_matches('{');
        &part[..part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len())]
    });
    names.filter(|name| !name.starts_with("quote") && *name != "lc").collect()
}

/// The number of the only variable of a text, if that is one of a login.
fn login_variable(text: &str) -> Option<u32> {
    let names = variables(text);
    let [name] = names.as_slice() else { return None };
    name.strip_prefix("auth").unwrap_or(name).parse().ok()
}
