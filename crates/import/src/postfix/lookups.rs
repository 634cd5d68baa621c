//! Converts lookup tables to `[[table]]` sections and to files beside the new configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::config_draft::{NewFile, TomlSection, quoted, quoted_list};
use super::main_cf::MainCf;
use super::map_text::{self, ConvertedText, TableUse};
use super::pattern_flags::pattern_lines;
use super::sql::Database;
use super::words::{braced, list};
use super::{Conversion, ldap, mysql, sql};

/// Map types whose source is a text of keys and values.
const TEXT_MAP_TYPES: [&str; 6] = ["hash", "btree", "lmdb", "texthash", "dbm", "cdb"];

/// A table as a parameter names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MapRef {
    pub(super) kind: String,
    pub(super) name: String,
}

impl MapRef {
    /// Parses `type:name`; None for other list elements.
    pub(super) fn parse(element: &str) -> Option<MapRef> {
        let element = element.strip_prefix("proxy:").or(element.strip_prefix("proxywrite:")).unwrap_or(element);
        let (kind, name) = element.split_once(':')?;
        let is_kind = !kind.is_empty() && kind.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        is_kind.then(|| MapRef { kind: kind.to_owned(), name: name.to_owned() })
    }

    /// As in main.cf, without `proxy:`.
    pub(super) fn text(&self) -> String {
        format!("{}:{}", self.kind, self.name)
    }
}

/// The beginning of a target that is a list in a file.
const INCLUDE: &str = ":include:";

/// The converted tables, by their source.
pub(super) type ConvertedTables = BTreeMap<(Vec<MapRef>, TableUse), Option<String>>;

impl Conversion<'_> {
    /// The name of the table for those in a parameter; None if there is none.
    pub(super) fn convert_maps(&mut self, value: &str, of_use: TableUse) -> Option<String> {
        let default = self.values.value("default_database_type");
        let read = |element: &String| {
            MapRef::parse(element)
                .or_else(|| element.starts_with('/').then(|| MapRef { kind: default.clone(), name: element.clone() }))
        };
        let map_ref: Vec<MapRef> = list(value).iter().filter_map(read).collect();
        self.convert_chain(map_ref, of_use)
    }

    /// One table, or a chain of several.
    pub(super) fn convert_chain(&mut self, map_ref: Vec<MapRef>, of_use: TableUse) -> Option<String> {
        let made: Vec<String> = map_ref.into_iter().filter_map(|one| self.convert_map(one, of_use)).collect();
        let mut names: Vec<String> = Vec::new();
        made.into_iter().for_each(|name| {
            if !names.contains(&name) {
                names.push(name)
            }
        });
        self.add_chain_table(names)
    }

    /// A chain of these tables.
    pub(super) fn add_chain_table(&mut self, names: Vec<String>) -> Option<String> {
        if names.len() < 2 {
            return names.into_iter().next();
        }
        let tables = quoted_list(names.iter().map(String::as_str));
        let known = self.draft.sections.iter().find(|block| block.keys.iter().any(|(_, value, _)| *value == tables));
        if let Some((_, name, _)) = known.and_then(|block| block.keys.first()) {
            return toml::from_str::<BTreeMap<String, String>>(&format!("name = {name}")).ok()?.remove("name");
        }
        let name = self.free_name(&names.join("-or-"));
        let block = TomlSection::new("[[table]]").key("name", quoted(&name), "").key("type", quoted("chain"), "");
        self.draft.add(block.key("tables", tables, ""));
        Some(name)
    }

    pub(super) fn convert_map(&mut self, map_ref: MapRef, of_use: TableUse) -> Option<String> {
        let key = (vec![map_ref.clone()], of_use);
        if let Some(made) = self.converted_tables.get(&key) {
            return made.clone();
        }
        let made = match map_ref.kind.as_str() {
            kind if TEXT_MAP_TYPES.contains(&kind) => match self.text_table(&map_ref, of_use) {
                Some(name) => Some(name),
                None => self.unavailable_table(&map_ref, of_use, "the file cannot be read"),
            },
            _ if of_use == TableUse::SenderTransports => {
                self.unavailable_table(&map_ref, of_use, "its values are not translated")
            }
            "ldap" => self.ldap_table(&map_ref, of_use),
            kind if Database::of_map_type(kind).is_some() => self.sql_table(&map_ref, of_use),
            "regexp" | "pcre" => self.regexp_table(&map_ref, of_use),
            "static" => self.static_table(&map_ref, of_use),
            "inline" => self
                .inline_table(&map_ref, of_use)
                .or_else(|| self.unavailable_table(&map_ref, of_use, "its braces are not balanced")),
            "unionmap" => {
                self.draft.add_review_note(format!(
                    "{}: converted to a chain, in which the first table with a key wins",
                    map_ref.text()
                ));
                self.convert_maps(braced(&map_ref.name).unwrap_or(&map_ref.name), of_use)
            }
            "unix" if map_ref.name == "passwd.byname" => match self.users_table(of_use) {
                Some(name) => Some(name),
                None => self.unavailable_table(&map_ref, of_use, "/etc/passwd cannot be read"),
            },
            kind => self.unavailable_table(&map_ref, of_use, &format!("tables of type {kind} are not supported")),
        };
        self.converted_tables.insert(key, made.clone());
        made
    }

    /// The entries of a text map.
    pub(super) fn entries(&mut self, map_ref: &MapRef, colon: bool) -> Option<Vec<(String, String)>> {
        if map_ref.kind == "inline" {
            let pair = |element: String| {
                let (key, value) = super::main_cf::definition(braced(&element).unwrap_or(&element))?;
                Some((key.to_owned(), value.to_owned()))
            };
            return Some(list(braced(&map_ref.name)?).into_iter().filter_map(pair).collect());
        }
        if !TEXT_MAP_TYPES.contains(&map_ref.kind.as_str()) {
            return None;
        }
        self.read_file(Path::new(&map_ref.name)).map(|text| map_text::entries(&text, colon))
    }

    fn text_table(&mut self, map_ref: &MapRef, of_use: TableUse) -> Option<String> {
        let mut entries = self.entries(map_ref, of_use == TableUse::LocalAliases)?;
        if of_use == TableUse::LocalAliases {
            entries.iter_mut().for_each(|(_, value)| self.include_lists(value));
        }
        self.write_text(map_ref, &entries, of_use)
    }

    /// Replaces `:include:/path` among the targets of an alias by what the file has.
    fn include_lists(&mut self, value: &mut String) {
        if !value.contains(INCLUDE) {
            return;
        }
        let mut targets = Vec::new();
        for word in map_text::words(value) {
            let path = word.trim_matches('"').strip_prefix(INCLUDE).map(ToOwned::to_owned);
            let listed = path.and_then(|path| Some((self.read_file(Path::new(&path))?, path)));
            match listed {
                Some((text, path)) => {
                    self.draft.add_review_note(format!(
                        "the addresses in {path} are in the new table: later changes of this file have no effect"
                    ));
                    targets.extend(super::main_cf::logical_lines(&text));
                }
                None => targets.push(word),
            }
        }
        *value = targets.join(", ");
    }

    fn inline_table(&mut self, map_ref: &MapRef, of_use: TableUse) -> Option<String> {
        let entries = self.entries(map_ref, false)?;
        self.write_text(&MapRef { kind: "inline".into(), name: "inline".into() }, &entries, of_use)
    }

    fn write_text(&mut self, map_ref: &MapRef, entries: &[(String, String)], of_use: TableUse) -> Option<String> {
        let mut written = map_text::convert_entries(entries, of_use, &self.site);
        if of_use == TableUse::Generic {
            // No address: mail that has the key waits, and does not leave with it.
            written.deferred.iter().for_each(|key| written.text.push_str(&format!("{key:<31} @\n")));
        }
        let path = self.add_file(&map_ref.name, "", std::mem::take(&mut written.text), false);
        let name = file_name(&path);
        match of_use {
            TableUse::Generic => self.report_generic_entries(&written, map_ref, &path),
            _ => self.report_deferred_entries(&written, map_ref, &path),
        }
        let block = TomlSection::new("[[table]]").comment(format!("From {}.", map_ref.text()));
        let block = block.key("name", quoted(&name), "").key("type", quoted("text"), "");
        self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        Some(name)
    }

    fn report_deferred_entries(&mut self, written: &ConvertedText, map_ref: &MapRef, path: &Path) {
        if let Some(first) = written.deferred.first() {
            self.draft.add_behavior_change(format!(
                "Mail to {first}{} gets 451: the action in {} is not supported here; see the comments in {}.",
                and_more(written.deferred.len()),
                map_ref.text(),
                path.display()
            ));
            written.deferred.iter().for_each(|key| self.defer_address(key));
        }
        if written.unreadable > 0 {
            self.draft.add_behavior_change(format!(
                "Mail to the addresses of {} entries of {} gets 550 unless another table has them: their keys cannot \
                 be translated; see the comments in {}.",
                written.unreadable,
                map_ref.text(),
                path.display()
            ));
        }
    }

    fn report_generic_entries(&mut self, written: &ConvertedText, map_ref: &MapRef, path: &Path) {
        if let Some(first) = written.deferred.first() {
            self.draft.add_behavior_change(format!(
                "Mail with {first}{} waits in the queue when it leaves: the value in {} is not supported here; see the \
                 comments in {}.",
                and_more(written.deferred.len()),
                map_ref.text(),
                path.display()
            ));
        }
        if written.unreadable > 0 {
            self.draft.add_behavior_change(format!(
                "Mail leaves with the addresses of {} entries of {}: their keys cannot be translated; see the comments \
                 in {}.",
                written.unreadable,
                map_ref.text(),
                path.display()
            ));
        }
    }

    /// The accounts of this machine.
    fn users_table(&mut self, of_use: TableUse) -> Option<String> {
        let text = self.read_file(Path::new("/etc/passwd"))?;
        let names =
            text.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| (name.to_owned(), String::new()));
        let map_ref = MapRef { kind: "unix".into(), name: "users".into() };
        self.draft.add_review_note(
            "the accounts of this machine became a text table (users). It is not updated with the accounts: keep it \
             up to date, or use another table",
        );
        self.write_text(&map_ref, &names.collect::<Vec<_>>(), of_use)
    }

    fn static_table(&mut self, map_ref: &MapRef, of_use: TableUse) -> Option<String> {
        let values: Vec<String> = list(braced(&map_ref.name).unwrap_or(&map_ref.name));
        let values: Vec<String> = match of_use {
            TableUse::Aliases | TableUse::LocalAliases => {
                values.iter().filter_map(|it| map_text::target(it, &self.site).ok()).collect()
            }
            _ => values,
        };
        if values.is_empty() {
            return self.unavailable_table(map_ref, of_use, "it contains no address that can get mail here");
        }
        let name = self.free_name("everyone");
        let block = TomlSection::new("[[table]]").key("name", quoted(&name), "").key("type", quoted("static"), "");
        self.draft.add(block.key("values", quoted_list(values.iter().map(String::as_str)), ""));
        Some(name)
    }

    fn regexp_table(&mut self, map_ref: &MapRef, of_use: TableUse) -> Option<String> {
        if matches!(of_use, TableUse::LocalAliases | TableUse::LocalUsers) {
            return self.unavailable_table(
                map_ref,
                of_use,
                "its patterns are for names without a domain, but keys have a domain here",
            );
        }
        let Some(text) = self.read_file(Path::new(&map_ref.name)) else {
            return self.unavailable_table(map_ref, of_use, "the file cannot be read");
        };
        let lines = pattern_lines(&text, &map_ref.kind);
        let text = match lines.and_then(|lines| map_text::convert_patterns(&lines, of_use, &self.site)) {
            Ok(text) => text,
            Err(why) => return self.unavailable_table(map_ref, of_use, why),
        };
        let path = self.add_file(&map_ref.name, "", text, false);
        let name = file_name(&path);
        self.draft.add_review_note(format!(
            "{}: patterns do not support back-references and look-around; `mailrace check` reports those that use them",
            path.display()
        ));
        let block = TomlSection::new("[[table]]").comment(format!("From {}.", map_ref.text()));
        let block = block.key("name", quoted(&name), "").key("type", quoted("regexp"), "");
        self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        Some(name)
    }

    /// The settings of a map: in its file, or in main.cf with its name as a prefix.
    fn map_settings(&mut self, map_ref: &MapRef) -> Option<MainCf> {
        if map_ref.name.starts_with('/') {
            return self.read_file(Path::new(&map_ref.name)).map(|text| MainCf::parse(&text));
        }
        let prefix = format!("{}_", map_ref.name);
        let of_table = |(name, _): &(&str, &str)| name.starts_with(&prefix);
        let settings: Vec<(String, String)> =
            self.main.settings().filter(of_table).map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        settings.iter().for_each(|(name, _)| self.draft.mapped(name));
        let text: String = settings
            .iter()
            .map(|(name, value)| format!("{} = {}\n", &name[prefix.len()..], self.values.expand(value)))
            .collect();
        Some(MainCf::parse(&text))
    }

    fn ldap_table(&mut self, map_ref: &MapRef, of_use: TableUse) -> Option<String> {
        let Some(settings) = self.map_settings(map_ref) else {
            return self.unavailable_table(map_ref, of_use, "the file cannot be read");
        };
        let given = |name: &str| settings.value(name).map(str::to_owned);
        let names: Vec<String> = settings.settings().map(|(name, _)| name.to_owned()).collect();
        let local = matches!(of_use, TableUse::LocalAliases | TableUse::LocalUsers);
        let mut made = match ldap::directory(&names, given, local) {
            Ok(made) => made,
            Err(why) => return self.unavailable_table(map_ref, of_use, &why),
        };
        if let Err(why) = self.add_table_rules(&mut made.block, map_ref, of_use, &given) {
            return self.unavailable_table(map_ref, of_use, &why);
        }
        let name = self.free_name(&file_name(Path::new(&map_ref.name)));
        let mut block = made.block.comment(format!("From {}.", map_ref.text()));
        block.keys.insert(0, ("name".into(), quoted(&name), String::new()));
        if let Some(password) = made.password {
            let path = self.add_file(&name, ".password", format!("{password}\n"), true);
            block.set("password_file", quoted(&path.to_string_lossy()), "bind_pw");
        }
        self.draft.add(block);
        made.alarms.into_iter().for_each(|what| self.draft.add_behavior_change(format!("{}: {what}", map_ref.text())));
        made.losses
            .into_iter()
            .for_each(|(what, why)| self.draft.add_unsupported(format!("{}: {what}", map_ref.text()), why));
        Some(name)
    }

    fn sql_table(&mut self, map_ref: &MapRef, of_use: TableUse) -> Option<String> {
        let Some(settings) = self.map_settings(map_ref) else {
            return self.unavailable_table(map_ref, of_use, "the file cannot be read");
        };
        let database = Database::of_map_type(&map_ref.kind)?;
        let given = |name: &str| settings.value(name).map(str::to_owned);
        let local = matches!(of_use, TableUse::LocalAliases | TableUse::LocalUsers);
        let query = given("query").or_else(|| sql::legacy_query(given)).unwrap_or_default();
        let query = match database.query(&query, local) {
            Ok(query) => query,
            Err(why) => return self.unavailable_table(map_ref, of_use, &why),
        };
        let name = self.free_name(&file_name(Path::new(&map_ref.name)));
        let mut block = TomlSection::new("[[table]]").comment(format!("From {}.", map_ref.text()));
        block.set("name", quoted(&name), "");
        block.set("type", quoted(database.table_type()), "");
        let servers = match database {
            Database::Postgres => Some(postgres_url(given)),
            Database::Mysql => Some(mysql::url(given)),
            Database::Sqlite => None,
        };
        match servers {
            Some(url) => block.set("url", quoted(&url), "hosts, user, dbname"),
            None => block.set("path", quoted(&given("dbpath").unwrap_or_default()), "dbpath"),
        }
        if let Some(file) = given("tls_CAfile").filter(|_| database == Database::Mysql) {
            block.set("ca_file", quoted(&file), "tls_CAfile");
        }
        block.set("query", quoted(&query), "query");
        if let Err(why) = self.add_table_rules(&mut block, map_ref, of_use, &given) {
            return self.unavailable_table(map_ref, of_use, &why);
        }
        if let Some(password) = given("password").filter(|it| !it.is_empty() && database != Database::Sqlite) {
            let path = self.add_file(&name, ".password", format!("{password}\n"), true);
            block.set("password_file", quoted(&path.to_string_lossy()), "password");
        }
        self.draft.add(block);
        for (setting, _) in settings.settings().filter(|(setting, _)| mysql::UNSUPPORTED.contains(setting)) {
            self.draft.add_unsupported(format!("{}: {setting}", map_ref.text()), mysql::UNSUPPORTED_WHY);
        }
        Some(name)
    }

    /// A table that defers mail, in place of one that cannot be converted: nobody is refused or
    /// accepted because of it.
    pub(super) fn unavailable_table(&mut self, map_ref: &MapRef, of_use: TableUse, why: &str) -> Option<String> {
        let name = self.free_name(&file_name(Path::new(&map_ref.name)));
        self.draft.add_behavior_change(format!(
            "{} until the table \"{name}\" is set up here: Postfix uses {}, but {why}.",
            of_use.unavailable_effect(),
            map_ref.text()
        ));
        let reason = format!("{} of Postfix is not translated: {why}", map_ref.text());
        let block = TomlSection::new("[[table]]").comment(format!("A placeholder for {}.", map_ref.text()));
        let block = block.key("name", quoted(&name), "").key("type", quoted("unavailable"), "");
        self.draft.add(block.key("reason", quoted(&reason), ""));
        Some(name)
    }

    /// Makes mail to this address get 451.
    pub(super) fn defer_address(&mut self, key: &str) {
        if !self.deferred_addresses.iter().any(|known| known.eq_ignore_ascii_case(key)) {
            self.deferred_addresses.push(key.to_owned());
        }
    }

    /// The table of deferred addresses, if there are any; its file is written at the end.
    pub(super) fn deferred_table(&mut self) -> Option<String> {
        if self.deferred_addresses.is_empty() {
            return None;
        }
        if !self.names.contains(DEFERRED_TABLE) {
            self.names.insert(DEFERRED_TABLE.to_owned());
            let path = self.folder.join(DEFERRED_TABLE);
            let block =
                TomlSection::new("[[table]]").comment("Addresses whose mail is deferred; see the top of this file.");
            let block = block.key("name", quoted(DEFERRED_TABLE), "").key("type", quoted("unavailable"), "");
            let block = block.key("path", quoted(&path.to_string_lossy()), "");
            self.draft.add(block.key("reason", quoted("Postfix's handling of this address is not translated"), ""));
        }
        Some(DEFERRED_TABLE.to_owned())
    }

    /// Writes its file.
    pub(super) fn write_deferred_table(&mut self) {
        if self.names.contains(DEFERRED_TABLE) {
            let text: String = self.deferred_addresses.iter().map(|key| format!("{key}\n")).collect();
            self.draft.files.push(NewFile { path: self.folder.join(DEFERRED_TABLE), text, secret: false });
        }
    }

    /// The text of a file; a failure is reported.
    pub(super) fn read_file(&mut self, path: &Path) -> Option<String> {
        match self.files.text(path) {
            Ok(text) => {
                self.draft.sources.insert(file_name(path));
                Some(text)
            }
            Err(error) => {
                self.draft.add_review_note(format!("{} cannot be read: {error}", path.display()));
                None
            }
        }
    }

    /// Adds a file with a unique name.
    pub(super) fn add_file(&mut self, like: &str, ending: &str, text: String, secret: bool) -> PathBuf {
        let name = match ending {
            "" => self.free_name(&file_name(Path::new(like))),
            ending => format!("{like}{ending}"),
        };
        let path = self.folder.join(name);
        self.draft.files.push(NewFile { path: path.clone(), text, secret });
        path
    }

    /// A unique name for a table.
    pub(super) fn free_name(&mut self, like: &str) -> String {
        let name = std::iter::once(like.to_owned())
            .chain((2..).map(|number| format!("{like}-{number}")))
            .find(|name| !self.names.contains(name))
            .unwrap_or_default();
        self.names.insert(name.clone());
        name
    }
}

/// The name of the table of deferred addresses, and of its file.
const DEFERRED_TABLE: &str = "put-off";

/// The number of items besides the first.
fn and_more(number: usize) -> String {
    match number {
        0 | 1 => String::new(),
        2 => " and 1 other".to_owned(),
        more => format!(" and {} others", more - 1),
    }
}

/// Hosts, user and database in libpq's notation.
fn postgres_url(value: impl Fn(&str) -> Option<String>) -> String {
    let all: Vec<String> = list(&value("hosts").unwrap_or_else(|| "localhost".into()));
    if let Some(url) = all.first().filter(|host| host.starts_with("postgres")) {
        return url.clone();
    }
    let part = |host: &String| match host.strip_prefix("unix:") {
        // Postfix names the folder of the socket, or the socket.
        Some(path) => (path.split("/.s.PGSQL").next().unwrap_or(path).to_owned(), "5432".to_owned()),
        None => {
            let host = host.strip_prefix("inet:").unwrap_or(host);
            host.split_once(':')
                .map_or((host.to_owned(), "5432".to_owned()), |(host, port)| (host.to_owned(), port.to_owned()))
        }
    };
    let (hosts, ports): (Vec<String>, Vec<String>) = all.iter().map(part).unzip();
    let setting = |name: &str, value: String| format!("{name}='{}'", value.replace('\\', "\\\\").replace('\'', "\\'"));
    let mut settings = vec![setting("host", hosts.join(",")), setting("port", ports.join(","))];
    settings.extend(value("user").map(|user| setting("user", user)));
    settings.extend(value("dbname").map(|name| setting("dbname", name)));
    settings.join(" ")
}

/// The last part of a path, without the suffix of a Postfix file.
pub(super) fn file_name(path: &Path) -> String {
    let name = path.file_name().map_or_else(|| "table".into(), |name| name.to_string_lossy().into_owned());
    let is_table = name != "main.cf" && name != "master.cf";
    let stem = name.strip_suffix(".cf").filter(|stem| is_table && !stem.is_empty());
    let name = stem.unwrap_or(&name);
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    name.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table without a name could not be read.
    #[test]
    fn every_table_has_a_name() {
        for (path, name) in [("/a/users.cf", "users"), ("/a/.cf", ".cf"), ("/a/main.cf", "main.cf"), ("/", "table")] {
            assert_eq!(file_name(Path::new(path)), name);
        }
    }
}
