//! Lookups as tables. A file becomes a text table with whole addresses as keys; a query keeps its form, and its keys
//! are bound instead of written into it. What cannot become a table is an error that says why, and the caller
//! makes the mail wait that depends on it.

use std::collections::BTreeSet;
use std::path::Path;

use mail::Address;

use super::Conversion;
use super::alias_targets::{AllowedTargets, SpecialTarget, alias_words};
use super::domains::file_entries;
use super::expansion::{Lookup, list};
use crate::config_draft::{TomlSection, quoted, quoted_list};
use crate::mysql;
use crate::sql::Database;

/// What a table is looked up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableUse {
    Aliases(AllowedTargets),
    Mailboxes,
    Domains,
    /// `first_field`: what stands before the first colon of a value is the password.
    Passwords {
        first_field: bool,
    },
}

impl TableUse {
    fn is_aliases(self) -> bool {
        matches!(self, TableUse::Aliases(_))
    }
}

/// The table of addresses whose mail waits.
pub(super) const DEFERRED_TABLE: &str = "put-off";

impl Conversion<'_> {
    /// The table of the domains that a lookup has.
    pub(super) fn domain_table(&mut self, lookup: &Lookup) -> Result<String, String> {
        self.table(lookup, TableUse::Domains, &[])
    }

    /// The table for a lookup in these domains; a database needs no list of them.
    pub(super) fn table(&mut self, lookup: &Lookup, of_use: TableUse, domains: &[String]) -> Result<String, String> {
        if of_use.is_aliases() && !lookup.gives_value() {
            return Err("what it gives is made of what is found".into());
        }
        let is_same = |(known, its_use, its_domains, _): &&(Lookup, TableUse, Vec<String>, String)| {
            known == lookup && *its_use == of_use && its_domains == domains
        };
        if let Some((.., name)) = self.tables.iter().find(is_same) {
            return Ok(name.clone());
        }
        let name = match lookup.kind.as_str() {
            "lsearch" | "wildlsearch" | "nwildlsearch" => self.file_table(lookup, of_use, domains),
            "dsearch" => self.folder_table(lookup, domains),
            "cdb" => self.cdb_table(lookup, of_use),
            "mysql" | "pgsql" | "sqlite" => self.database_table(lookup, of_use),
            "ldap" | "ldapm" => self.ldap_table(lookup, of_use),
            kind => Err(format!("lookups of type {kind} have no counterpart")),
        }?;
        self.tables.push((lookup.clone(), of_use, domains.to_vec(), name.clone()));
        Ok(name)
    }

    fn file_table(&mut self, lookup: &Lookup, of_use: TableUse, domains: &[String]) -> Result<String, String> {
        let key = key_parts(&lookup.key)?;
        let pattern = self.expander.resolved(&lookup.source).trim().to_owned();
        let (mut lines, mut seen, mut is_closed) = (String::new(), BTreeSet::new(), false);
        let nowhere = [String::new()];
        for domain in if domains.is_empty() { &nowhere } else { domains } {
            let path = in_domain(&pattern, domain).ok_or("the name of its file depends on the message")?;
            let text = match self.files.text(Path::new(&path)) {
                Ok(text) => text,
                // One domain of many need not have a file.
                Err(error) if path != pattern && error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(format!("{path} cannot be read: {error}")),
            };
            for (entry, value) in file_entries(&text) {
                let address = entry_key(&entry, &key, domain, lookup, of_use);
                if address.as_deref().is_some_and(|it| it.starts_with('@')) && refuses(&value, of_use) {
                    is_closed = true;
                    continue;
                }
                if let Some(address) = address.filter(|address| seen.insert(address.clone())) {
                    self.add_entry(&mut lines, &entry, address, &value, of_use, &path);
                }
            }
        }
        let name = pattern.replace("/$domain", "").replace("/${domain}", "");
        let name = Path::new(&name).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let table = match of_use {
            TableUse::Passwords { .. } => self.secret_table(&name, lines),
            _ => self.add_text_table(&name, "text", lines, &format!("From {pattern}.")),
        };
        self.closed_tables.extend(is_closed.then(|| table.clone()));
        Ok(table)
    }

    /// A database of constant keys, which are whole addresses, names of logins or domains.
    fn cdb_table(&mut self, lookup: &Lookup, of_use: TableUse) -> Result<String, String> {
        let wanted = if of_use == TableUse::Domains { "%d" } else { "%s" };
        if key_parts(&lookup.key)? != wanted || !lookup.default.is_empty() || lookup.is_partial {
            return Err("lookups of type cdb need whole addresses as keys".into());
        }
        let path = self.expander.constant(&lookup.source).ok_or("the name of its file depends on the message")?;
        let name = self.unused_name(&Path::new(path.trim()).file_stem().unwrap_or_default().to_string_lossy());
        let block = TomlSection::new("[[table]]").key("name", quoted(&name), "").key("type", quoted("cdb"), "");
        self.draft.add(block.key("path", quoted(path.trim()), ""));
        Ok(name)
    }

    fn add_entry(&mut self, lines: &mut String, entry: &str, key: String, value: &str, of_use: TableUse, path: &str) {
        let special = match of_use {
            // What all other addresses get cannot be written as a reply to each.
            TableUse::Aliases(allowed) if !key.starts_with('@') => SpecialTarget::of(value, allowed),
            _ => None,
        };
        if let Some(line) = special.and_then(|special| self.special_entry(&key, special)) {
            lines.push_str(&format!("{line}\n"));
            return;
        }
        match self.entry_value(value, of_use) {
            Ok(value) => lines.push_str(format!("{key:<31} {value}").trim_end()),
            Err(why) => {
                let shown: String = value.chars().filter(|c| !c.is_control()).collect();
                lines.push_str(&format!("# not translated: {entry} {shown}: {why}"));
                self.defer_address(key, path);
            }
        }
        lines.push('\n');
    }

    /// The value of an entry of a file.
    fn entry_value(&self, value: &str, of_use: TableUse) -> Result<String, &'static str> {
        match of_use {
            TableUse::Aliases(_) => {
                let targets: Result<Vec<String>, _> = alias_words(value).iter().map(|word| self.target(word)).collect();
                let targets = targets?;
                if targets.is_empty() { Err("it has no target") } else { Ok(targets.join(", ")) }
            }
            // Further fields behind the password are the file's own.
            TableUse::Passwords { first_field: true } => Ok(value.split(':').next().unwrap_or_default().to_owned()),
            TableUse::Passwords { first_field: false } => Ok(value.to_owned()),
            TableUse::Mailboxes | TableUse::Domains => Ok(String::new()),
        }
    }

    /// A target of an alias as a complete address.
    pub(super) fn target(&self, word: &str) -> Result<String, &'static str> {
        match word.trim_start_matches('"').chars().next() {
            Some('|') => return Err("programs are not supported here; use a route to a transport of type pipe"),
            Some('/') => return Err("files are not supported"),
            Some(':') => return Err("this special item is not supported; remove the entry, or give an address"),
            _ => {}
        }
        let word = word.trim_start_matches('\\');
        let whole = if word.contains('@') { word.to_owned() } else { format!("{word}@{}", self.origin) };
        whole.parse::<Address>().map(|_| whole).map_err(|_| "a target is not an address")
    }

    fn secret_table(&mut self, wanted: &str, text: String) -> String {
        let name = self.unused_name(wanted);
        let path = self.add_file(&name, text, true);
        let block = TomlSection::new("[[table]]").key("name", quoted(&name), "").key("type", quoted("text"), "");
        self.draft.add(block.key("path", quoted(&path), ""));
        name
    }

    /// The files of a folder as mailboxes.
    fn folder_table(&mut self, lookup: &Lookup, domains: &[String]) -> Result<String, String> {
        let pattern = self.expander.resolved(&lookup.source).trim().to_owned();
        let mut text = String::new();
        for domain in domains {
            let path = in_domain(&pattern, domain).ok_or("the name of its folder depends on the message")?;
            let names = self.files.names(Path::new(&path));
            let mut names = names.map_err(|error| format!("{path} cannot be read: {error}"))?;
            names.sort();
            let address = |name: &String| Address::new(name, domain).is_ok().then(|| format!("{name}@{domain}\n"));
            text.extend(names.iter().filter_map(address));
        }
        Ok(self.add_text_table("folder", "text", text, &format!("From the names in {pattern}.")))
    }

    fn database_table(&mut self, lookup: &Lookup, of_use: TableUse) -> Result<String, String> {
        let (database, option) = match lookup.kind.as_str() {
            "mysql" => (Database::Mysql, "mysql_servers"),
            "pgsql" => (Database::Postgres, "pgsql_servers"),
            _ => (Database::Sqlite, "sqlite_dbfile"),
        };
        let (query, servers) = self.query_and_servers(lookup, option)?;
        let query = database.query(&bound(&query, of_use)?, false)?;
        let name = self.unused_name(&lookup.kind);
        let mut block = TomlSection::new("[[table]]")
            .key("name", quoted(&name), "")
            .key("type", quoted(database.table_type()), "")
            .key("query", quoted(&query), "");
        if database == Database::Sqlite {
            block.set("path", quoted(servers.first().ok_or("its file is not known")?), option);
        } else {
            let (url, password) = database_url(database, &servers)?;
            block.set("url", quoted(&url), option);
            if !password.is_empty() {
                let path = self.add_file(&format!("{name}.password"), format!("{password}\n"), true);
                block.set("password_file", quoted(&path), option);
            }
        }
        if of_use.is_aliases() {
            block.set("separator", quoted(","), "");
        }
        self.draft.mapped(option);
        self.draft.add(block);
        Ok(name)
    }

    /// A query, and the servers that the lookup or a main option names.
    fn query_and_servers(&self, lookup: &Lookup, option: &str) -> Result<(String, Vec<String>), String> {
        let mut query = self.expander.resolved(&lookup.source);
        let configured = self.config.main.value(option).unwrap_or_default();
        let mut servers = list(&self.expander.resolved(configured));
        if let Some((named, rest)) = query.strip_prefix("servers=").and_then(|rest| rest.split_once(';')) {
            servers = list(named);
            query = rest.to_owned();
        }
        if let Some(rest) = query.strip_prefix('/') {
            let (path, rest) = rest.split_once(' ').ok_or("it has no query")?;
            servers = vec![format!("/{path}")];
            query = rest.to_owned();
        }
        servers.retain(|server| !server.is_empty());
        if servers.is_empty() {
            return Err(format!("{option} is not set"));
        }
        Ok((query, servers))
    }

    fn ldap_table(&mut self, lookup: &Lookup, of_use: TableUse) -> Result<String, String> {
        let source = self.expander.resolved(&lookup.source);
        let start = source.find("ldap").ok_or("it has no LDAP URL")?;
        let (settings, url) = source.split_at(start);
        let (scheme, rest) = url.split_once("://").ok_or("it has no LDAP URL")?;
        let (host, rest) = rest.split_once('/').ok_or("its LDAP URL has no base")?;
        let mut parts = rest.trim().splitn(4, '?');
        let (base, attributes) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let (scope, filter) = (parts.next().unwrap_or_default(), parts.next().unwrap_or("(objectClass=*)"));
        if base.contains('$') {
            return Err("its base depends on the message".into());
        }
        let filter = placeholders_of_ours(filter, of_use)?;
        let option = "ldap_default_servers";
        let servers = match host {
            "" => list(self.config.main.value(option).unwrap_or("localhost")),
            host => vec![host.to_owned()],
        };
        let urls: Vec<String> = servers.iter().map(|server| format!("{scheme}://{server}")).collect();
        self.draft.mapped(option);
        let name = self.unused_name("ldap");
        let mut block = TomlSection::new("[[table]]")
            .key("name", quoted(&name), "")
            .key("type", quoted("ldap"), "")
            .key("url", quoted_list(urls.iter().map(String::as_str)), option)
            .key("base", quoted(&base.replace("%20", " ").replace("%2C", ",")), "")
            .key("scope", quoted(if scope.is_empty() { "base" } else { scope }), "")
            .key("filter", quoted(&filter), "");
        if matches!(of_use, TableUse::Aliases(_) | TableUse::Passwords { .. }) {
            let wanted: Vec<&str> = attributes.split(',').filter(|it| !it.is_empty()).collect();
            block.set("result", quoted_list(wanted), "");
        }
        if let Some(user) = setting(settings, "user") {
            block.set("bind_dn", quoted(&user), "");
            let password = setting(settings, "pass").unwrap_or_default();
            let path = self.add_file(&format!("{name}.password"), format!("{password}\n"), true);
            block.set("password_file", quoted(&path), "");
        }
        self.draft.add(block);
        Ok(name)
    }

    /// Makes the mail for an address wait.
    pub(super) fn defer_address(&mut self, address: String, from: &str) {
        if !self.deferred_addresses.contains(&address) {
            self.deferred_addresses.push(address);
        }
        self.draft.add_behavior_change(format!(
            "Mail to some addresses in {from} gets 451: their targets are not supported here; see the comments in the new table."
        ));
    }

    pub(super) fn write_deferred_table(&mut self) {
        if self.deferred_addresses.is_empty() {
            return;
        }
        let text: String = self.deferred_addresses.iter().map(|address| format!("{address}\n")).collect();
        let path = self.add_file(DEFERRED_TABLE, text, false);
        let block =
            TomlSection::new("[[table]]").comment("Addresses whose mail is deferred; see the top of this file.");
        let reason = "Exim's handling of this address is not translated";
        let block = block.key("name", quoted(DEFERRED_TABLE), "").key("type", quoted("unavailable"), "");
        self.draft.add(block.key("path", quoted(&path), "").key("reason", quoted(reason), ""));
    }
}

/// The name of a file for a domain.
fn in_domain(pattern: &str, domain: &str) -> Option<String> {
    let names = ["${lc:$domain}", "${domain_data}", "${domain}", "$domain_data", "$domain"];
    let path = match domain {
        "" => pattern.to_owned(),
        _ => names.iter().fold(pattern.to_owned(), |path, name| path.replace(name, domain)),
    };
    (!path.contains('$')).then_some(path)
}

/// The key in the new table; None for an entry that no lookup finds there.
fn entry_key(entry: &str, key: &str, domain: &str, lookup: &Lookup, of_use: TableUse) -> Option<String> {
    if matches!(of_use, TableUse::Passwords { .. }) {
        return (!entry.is_empty() && !entry.contains([' ', ',', '"', '#'])).then(|| entry.to_owned());
    }
    let is_default = entry == "*" || entry.starts_with("*@");
    if is_default {
        let is_meant = of_use.is_aliases() && lookup.default.contains('*') && !domain.is_empty();
        return (is_meant && (entry == "*" || entry[2..] == *domain)).then(|| format!("@{domain}"));
    }
    let whole = match key {
        "%u" if !domain.is_empty() => format!("{entry}@{domain}"),
        "%d" => return Some(entry.to_owned()).filter(|entry| Address::new("postmaster", entry).is_ok()),
        _ => entry.to_owned(),
    };
    whole.parse::<Address>().ok().map(|_| whole).filter(|whole| !whole.contains([' ', ',', '"', '#']))
}

/// Whether the entry for all other addresses refuses them.
fn refuses(value: &str, of_use: TableUse) -> bool {
    matches!(of_use, TableUse::Aliases(allowed) if allowed.fail && value.trim().starts_with(":fail:"))
}

/// A string with Postfix's placeholders in place of variables: `%u`, `%d`, and `%s` for the whole address.
///
/// # Errors
///
/// It needs something else of the message.
pub(super) fn key_parts(text: &str) -> Result<String, String> {
    let (mut made, mut rest) = (String::new(), text);
    while let Some(start) = rest.find(['$', '%']) {
        made.push_str(&rest[..start]);
        if rest[start..].starts_with('%') {
            made.push_str("%%");
            rest = &rest[start + 1..];
            continue;
        }
        let (part, behind) = variable(&rest[start..]).ok_or_else(|| format!("`{text}` has no counterpart"))?;
        made.push_str(part);
        rest = behind;
    }
    made.push_str(rest);
    Ok(made.replace("%u@%d", "%s"))
}

/// The placeholder of the variable that the text begins with, and what follows it.
fn variable(text: &str) -> Option<(&'static str, &str)> {
    if let Some(inside) = text.strip_prefix("${") {
        let (word, _) = inside.split_once(['}', ':'])?;
        if inside[word.len()..].starts_with('}') {
            return Some((part_of_name(word)?, &inside[word.len() + 1..]));
        }
        // ${quote_mysql:...}, ${lc:...}: keys are bound, and in lower case.
        if !(word.starts_with("quote") || word == "lc") {
            return None;
        }
        let behind = &inside[word.len() + 1..];
        let (whole, rest) = ["$local_part@$domain", "${local_part}@${domain}"]
            .iter()
            .find_map(|it| Some(("%s", behind.strip_prefix(it)?)))
            .or_else(|| variable(behind))?;
        return Some((whole, rest.strip_prefix('}')?));
    }
    let name = text.strip_prefix('$')?;
    let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
    Some((part_of_name(&name[..end])?, &name[end..]))
}

fn part_of_name(name: &str) -> Option<&'static str> {
    match name {
        "local_part" | "local_part_data" => Some("%u"),
        "domain" | "domain_data" => Some("%d"),
        // Of a login.
        "auth1" | "auth2" | "auth3" | "1" | "2" | "3" => Some("%s"),
        _ => None,
    }
}

/// A query with Postfix's placeholders.
fn bound(query: &str, of_use: TableUse) -> Result<String, String> {
    let query = key_parts(query)?;
    // The key of a table of domains is the domain.
    Ok(if of_use == TableUse::Domains { query.replace("%d", "%s") } else { query })
}

/// A filter with our placeholders.
fn placeholders_of_ours(filter: &str, of_use: TableUse) -> Result<String, String> {
    if filter.contains(['{', '}']) && !filter.contains("${") {
        return Err("its filter contains braces".into());
    }
    let domain = if of_use == TableUse::Domains { "{key}" } else { "{domain}" };
    let made = key_parts(filter)?.replace("%s", "{key}").replace("%u", "{local}").replace("%d", domain);
    Ok(made.replace("%%", "%"))
}

/// The URL of the servers, each `host/database/user/password`, and the password.
fn database_url(database: Database, servers: &[String]) -> Result<(String, String), String> {
    let mut hosts = Vec::new();
    let mut login = None;
    for server in servers {
        let (host, rest) = database_host(server).ok_or("its server is not host/database/user/password")?;
        hosts.push(host);
        login = login.or(Some(rest));
    }
    let parts: Vec<&str> = login.unwrap_or_default().splitn(3, '/').collect();
    let [name, user, password] = parts.as_slice() else {
        return Err("its server is not host/database/user/password".into());
    };
    let url = match database {
        Database::Mysql => mysql::url(|key| match key {
            "hosts" => Some(hosts.join(" ")),
            "user" => Some((*user).to_owned()),
            "dbname" => Some((*name).to_owned()),
            _ => None,
        }),
        _ => format!("postgres://{user}@{}/{name}", hosts.join(",")),
    };
    Ok((url, (*password).to_owned()))
}

/// The host, or its socket in parentheses, and what follows it.
fn database_host(text: &str) -> Option<(String, &str)> {
    if let Some((_, rest)) = text.split_once('(') {
        let (socket, rest) = rest.split_once(")/")?;
        return Some((format!("unix:{socket}"), rest));
    }
    let (host, rest) = text.split_once('/')?;
    Some((host.to_owned(), rest))
}

/// The value of `name=value` before an LDAP URL.
fn setting(text: &str, name: &str) -> Option<String> {
    let rest = text.split_once(&format!("{name}="))?.1;
    match rest.strip_prefix('"') {
        Some(rest) => rest.split_once('"').map(|(value, _)| value.to_owned()),
        None => rest.split_whitespace().next().map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_a_query_become_placeholders() {
        for (text, expected) in [
            ("a='${quote_mysql:$local_part}' and d='$domain'", "a='%u' and d='%d'"),
            ("'${quote_mysql:$local_part@$domain}' like '%'", "'%s' like '%%'"),
            ("'${lc:$local_part}@${quote_mysql:$domain}'", "'%s'"),
        ] {
            assert_eq!(key_parts(text).as_deref(), Ok(expected), "{text}");
        }
        for text in ["$sender_address", "${substr_2:$local_part}", "${", "$", "${lc:"] {
            assert!(key_parts(text).is_err(), "{text}");
        }
    }
}
