//! Converts lookup tables to `[[table]]` sections and to files beside the new configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::draft::{Block, NewFile, quoted, quoted_list};
use super::main_cf::MainCf;
use super::text::{self, Use};
use super::words::{braced, list};
use super::{Conversion, ldap, sql};

/// Map types whose source is a text of keys and values.
const TEXTS: [&str; 6] = ["hash", "btree", "lmdb", "texthash", "dbm", "cdb"];

/// A table as a parameter names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Named {
    pub(super) kind: String,
    pub(super) name: String,
}

impl Named {
    /// Parses `type:name`; None for other list elements.
    pub(super) fn read(element: &str) -> Option<Named> {
        let element = element.strip_prefix("proxy:").or(element.strip_prefix("proxywrite:")).unwrap_or(element);
        let (kind, name) = element.split_once(':')?;
        let is_kind = !kind.is_empty() && kind.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        is_kind.then(|| Named { kind: kind.to_owned(), name: name.to_owned() })
    }

    /// As in main.cf, without `proxy:`.
    fn text(&self) -> String {
        format!("{}:{}", self.kind, self.name)
    }
}

/// The converted tables, by their source.
pub(super) type Made = BTreeMap<(Vec<Named>, Use), Option<String>>;

impl Conversion<'_> {
    /// The name of the table for those in a parameter; None if there is none.
    pub(super) fn tables(&mut self, value: &str, of_use: Use) -> Option<String> {
        let default = self.values.value("default_database_type");
        let read = |element: &String| {
            Named::read(element)
                .or_else(|| element.starts_with('/').then(|| Named { kind: default.clone(), name: element.clone() }))
        };
        let named: Vec<Named> = list(value).iter().filter_map(read).collect();
        self.chain(named, of_use)
    }

    /// One table, or a chain of several.
    pub(super) fn chain(&mut self, named: Vec<Named>, of_use: Use) -> Option<String> {
        let made: Vec<String> = named.into_iter().filter_map(|one| self.table(one, of_use)).collect();
        let mut names: Vec<String> = Vec::new();
        made.into_iter().for_each(|name| {
            if !names.contains(&name) {
                names.push(name)
            }
        });
        self.joined(names)
    }

    /// A chain of these tables.
    pub(super) fn joined(&mut self, names: Vec<String>) -> Option<String> {
        if names.len() < 2 {
            return names.into_iter().next();
        }
        let tables = quoted_list(names.iter().map(String::as_str));
        let known = self.draft.blocks.iter().find(|block| block.keys.iter().any(|(_, value, _)| *value == tables));
        if let Some((_, name, _)) = known.and_then(|block| block.keys.first()) {
            return toml::from_str::<BTreeMap<String, String>>(&format!("name = {name}")).ok()?.remove("name");
        }
        let name = self.free_name(&names.join("-or-"));
        let block = Block::new("[[table]]").key("name", quoted(&name), "").key("type", quoted("chain"), "");
        self.draft.add(block.key("tables", tables, ""));
        Some(name)
    }

    pub(super) fn table(&mut self, named: Named, of_use: Use) -> Option<String> {
        let key = (vec![named.clone()], of_use);
        if let Some(made) = self.made.get(&key) {
            return made.clone();
        }
        let made = match named.kind.as_str() {
            kind if TEXTS.contains(&kind) => match self.text_table(&named, of_use) {
                Some(name) => Some(name),
                None => self.unavailable(&named, of_use, "the file cannot be read"),
            },
            _ if of_use == Use::Transports => self.unavailable(&named, of_use, "its values are not translated"),
            "ldap" => self.ldap(&named, of_use),
            "pgsql" => self.sql(&named, of_use, true),
            "sqlite" => self.sql(&named, of_use, false),
            "regexp" | "pcre" => self.regexp(&named, of_use),
            "static" => self.fixed(&named, of_use),
            "inline" => {
                self.inline(&named, of_use).or_else(|| self.unavailable(&named, of_use, "its braces are not balanced"))
            }
            "unionmap" => {
                self.draft.look_at(format!(
                    "{}: converted to a chain, in which the first table with a key wins",
                    named.text()
                ));
                self.tables(braced(&named.name).unwrap_or(&named.name), of_use)
            }
            "unix" if named.name == "passwd.byname" => match self.users(of_use) {
                Some(name) => Some(name),
                None => self.unavailable(&named, of_use, "/etc/passwd cannot be read"),
            },
            kind => self.unavailable(&named, of_use, &format!("tables of type {kind} are not supported")),
        };
        self.made.insert(key, made.clone());
        made
    }

    /// The entries of a text map.
    pub(super) fn entries(&mut self, named: &Named, colon: bool) -> Option<Vec<(String, String)>> {
        if named.kind == "inline" {
            let pair = |element: String| {
                let (key, value) = super::main_cf::definition(braced(&element).unwrap_or(&element))?;
                Some((key.to_owned(), value.to_owned()))
            };
            return Some(list(braced(&named.name)?).into_iter().filter_map(pair).collect());
        }
        if !TEXTS.contains(&named.kind.as_str()) {
            return None;
        }
        self.read(Path::new(&named.name)).map(|text| text::entries(&text, colon))
    }

    fn text_table(&mut self, named: &Named, of_use: Use) -> Option<String> {
        let entries = self.entries(named, of_use == Use::LocalAliases)?;
        self.write_text(named, &entries, of_use)
    }

    fn inline(&mut self, named: &Named, of_use: Use) -> Option<String> {
        let entries = self.entries(named, false)?;
        self.write_text(&Named { kind: "inline".into(), name: "inline".into() }, &entries, of_use)
    }

    fn write_text(&mut self, named: &Named, entries: &[(String, String)], of_use: Use) -> Option<String> {
        let written = text::table(entries, of_use, &self.site);
        let path = self.add_file(&named.name, "", written.text, false);
        let name = file_name(&path);
        if let Some(first) = written.put_off.first() {
            self.draft.alarm(format!(
                "Mail to {first}{} gets 451: the action in {} is not supported here; see the comments in {}.",
                more(written.put_off.len()),
                named.text(),
                path.display()
            ));
            written.put_off.iter().for_each(|key| self.put_off(key));
        }
        if written.unread > 0 {
            self.draft.alarm(format!(
                "Mail to the addresses of {} entries of {} gets 550 unless another table has them: their keys cannot \
                 be translated; see the comments in {}.",
                written.unread,
                named.text(),
                path.display()
            ));
        }
        let block = Block::new("[[table]]").comment(format!("From {}.", named.text()));
        let block = block.key("name", quoted(&name), "").key("type", quoted("text"), "");
        self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        Some(name)
    }

    /// The accounts of this machine.
    fn users(&mut self, of_use: Use) -> Option<String> {
        let text = self.read(Path::new("/etc/passwd"))?;
        let names =
            text.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| (name.to_owned(), String::new()));
        let named = Named { kind: "unix".into(), name: "users".into() };
        self.draft.look_at(
            "the accounts of this machine became a text table (users). It is not updated with the accounts: keep it \
             up to date, or use another table",
        );
        self.write_text(&named, &names.collect::<Vec<_>>(), of_use)
    }

    fn fixed(&mut self, named: &Named, of_use: Use) -> Option<String> {
        let values: Vec<String> = list(braced(&named.name).unwrap_or(&named.name));
        let values: Vec<String> = match of_use {
            Use::Aliases | Use::LocalAliases => {
                values.iter().filter_map(|it| text::target(it, &self.site).ok()).collect()
            }
            _ => values,
        };
        if values.is_empty() {
            return self.unavailable(named, of_use, "it contains no address that can get mail here");
        }
        let name = self.free_name("everyone");
        let block = Block::new("[[table]]").key("name", quoted(&name), "").key("type", quoted("static"), "");
        self.draft.add(block.key("values", quoted_list(values.iter().map(String::as_str)), ""));
        Some(name)
    }

    fn regexp(&mut self, named: &Named, of_use: Use) -> Option<String> {
        if matches!(of_use, Use::LocalAliases | Use::LocalUsers) {
            return self.unavailable(
                named,
                of_use,
                "its patterns are for names without a domain, but keys have a domain here",
            );
        }
        let Some(text) = self.read(Path::new(&named.name)) else {
            return self.unavailable(named, of_use, "the file cannot be read");
        };
        let lines = super::main_cf::logical_lines(&text);
        let text = match text::patterns(&lines, of_use, &self.site) {
            Ok(text) => text,
            Err(why) => return self.unavailable(named, of_use, why),
        };
        let path = self.add_file(&named.name, "", text, false);
        let name = file_name(&path);
        self.draft.look_at(format!(
            "{}: patterns do not support back-references and look-around; `mailrace check` reports those that use them",
            path.display()
        ));
        let block = Block::new("[[table]]").comment(format!("From {}.", named.text()));
        let block = block.key("name", quoted(&name), "").key("type", quoted("regexp"), "");
        self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        Some(name)
    }

    /// The settings of a map: in its file, or in main.cf with its name as a prefix.
    fn settings(&mut self, named: &Named) -> Option<MainCf> {
        if named.name.starts_with('/') {
            return self.read(Path::new(&named.name)).map(|text| MainCf::parse(&text));
        }
        let prefix = format!("{}_", named.name);
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

    fn ldap(&mut self, named: &Named, of_use: Use) -> Option<String> {
        let Some(settings) = self.settings(named) else {
            return self.unavailable(named, of_use, "the file cannot be read");
        };
        let given = |name: &str| settings.value(name).map(str::to_owned);
        let names: Vec<String> = settings.settings().map(|(name, _)| name.to_owned()).collect();
        let local = matches!(of_use, Use::LocalAliases | Use::LocalUsers);
        let made = match ldap::directory(&names, given, local, of_use.asks_values()) {
            Ok(made) => made,
            Err(why) => return self.unavailable(named, of_use, &why),
        };
        let name = self.free_name(&file_name(Path::new(&named.name)));
        let mut block = made.block.comment(format!("From {}.", named.text()));
        block.keys.insert(0, ("name".into(), quoted(&name), String::new()));
        if let Some(password) = made.password {
            let path = self.add_file(&name, ".password", format!("{password}\n"), true);
            block.set("password_file", quoted(&path.to_string_lossy()), "bind_pw");
        }
        self.draft.add(block);
        made.alarms.into_iter().for_each(|what| self.draft.alarm(format!("{}: {what}", named.text())));
        made.losses.into_iter().for_each(|(what, why)| self.draft.loss(format!("{}: {what}", named.text()), why));
        Some(name)
    }

    fn sql(&mut self, named: &Named, of_use: Use, postgres: bool) -> Option<String> {
        let Some(settings) = self.settings(named) else {
            return self.unavailable(named, of_use, "the file cannot be read");
        };
        let given = |name: &str| settings.value(name).map(str::to_owned);
        let local = matches!(of_use, Use::LocalAliases | Use::LocalUsers);
        let changes_values = given("result_format").is_some_and(|format| format != "%s");
        if changes_values && of_use.asks_values() {
            return self.unavailable(named, of_use, "result_format must be part of the query here");
        }
        let query = given("query").or_else(|| sql::pieced(given)).unwrap_or_default();
        let made = if postgres { sql::postgres(&query, local) } else { sql::sqlite(&query, local) };
        let query = match made {
            Ok(query) => query,
            Err(why) => return self.unavailable(named, of_use, &why),
        };
        let name = self.free_name(&file_name(Path::new(&named.name)));
        let mut block = Block::new("[[table]]").comment(format!("From {}.", named.text()));
        block.set("name", quoted(&name), "");
        block.set("type", quoted(if postgres { "postgres" } else { "sqlite" }), "");
        match postgres {
            true => {
                block.set("url", quoted(&postgres_url(given)), "hosts, user, dbname");
                if let Some(password) = given("password").filter(|it| !it.is_empty()) {
                    let path = self.add_file(&name, ".password", format!("{password}\n"), true);
                    block.set("password_file", quoted(&path.to_string_lossy()), "password");
                }
            }
            false => block.set("path", quoted(&given("dbpath").unwrap_or_default()), "dbpath"),
        }
        block.set("query", quoted(&query), "query");
        self.draft.add(block);
        for (setting, value) in settings.settings().filter(|(setting, _)| SQL_LOST.contains(setting)) {
            self.draft.loss(format!("{}: {setting} = {value}", named.text()), SQL_LOST_WHY);
        }
        Some(name)
    }

    /// A table that defers mail, in place of one that cannot be converted: nobody is refused or
    /// accepted because of it.
    pub(super) fn unavailable(&mut self, named: &Named, of_use: Use, why: &str) -> Option<String> {
        let name = self.free_name(&file_name(Path::new(&named.name)));
        self.draft.alarm(format!(
            "{} until the table \"{name}\" is set up here: Postfix uses {}, but {why}.",
            of_use.outage(),
            named.text()
        ));
        let reason = format!("{} of Postfix is not translated: {why}", named.text());
        let block = Block::new("[[table]]").comment(format!("A placeholder for {}.", named.text()));
        let block = block.key("name", quoted(&name), "").key("type", quoted("unavailable"), "");
        self.draft.add(block.key("reason", quoted(&reason), ""));
        Some(name)
    }

    /// Makes mail to this address get 451.
    pub(super) fn put_off(&mut self, key: &str) {
        if !self.put_off.iter().any(|known| known.eq_ignore_ascii_case(key)) {
            self.put_off.push(key.to_owned());
        }
    }

    /// The table of deferred addresses, if there are any; its file is written at the end.
    pub(super) fn put_off_table(&mut self) -> Option<String> {
        if self.put_off.is_empty() {
            return None;
        }
        if !self.names.contains(PUT_OFF) {
            self.names.insert(PUT_OFF.to_owned());
            let path = self.folder.join(PUT_OFF);
            let block = Block::new("[[table]]").comment("Addresses whose mail is deferred; see the top of this file.");
            let block = block.key("name", quoted(PUT_OFF), "").key("type", quoted("unavailable"), "");
            let block = block.key("path", quoted(&path.to_string_lossy()), "");
            self.draft.add(block.key("reason", quoted("Postfix's handling of this address is not translated"), ""));
        }
        Some(PUT_OFF.to_owned())
    }

    /// Writes its file.
    pub(super) fn write_put_off(&mut self) {
        if self.names.contains(PUT_OFF) {
            let text: String = self.put_off.iter().map(|key| format!("{key}\n")).collect();
            self.draft.files.push(NewFile { path: self.folder.join(PUT_OFF), text, secret: false });
        }
    }

    /// The text of a file; a failure is reported.
    pub(super) fn read(&mut self, path: &Path) -> Option<String> {
        match self.files.text(path) {
            Ok(text) => {
                self.draft.sources.insert(file_name(path));
                Some(text)
            }
            Err(error) => {
                self.draft.look_at(format!("{} cannot be read: {error}", path.display()));
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

/// Settings of SQL maps that must be part of the query here.
const SQL_LOST: [&str; 3] = ["result_format", "domain", "expansion_limit"];
const SQL_LOST_WHY: &str = "it must be part of the query if it matters";
/// The name of the table of deferred addresses, and of its file.
const PUT_OFF: &str = "put-off";

/// The number of items besides the first.
fn more(number: usize) -> String {
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
    let name = if is_table { name.strip_suffix(".cf").unwrap_or(&name) } else { &name };
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    name.chars().map(plain).collect()
}
