//! The parts of an Exim configuration: main options, named lists, ACLs, and the drivers of routers,
//! transports and authenticators with their options. Any sequence of lines has parts: what is not
//! understood is kept as an oddity, which the new file tells of.

use super::source::ConfigLine;

/// A setting of the main section or of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EximOption {
    /// Its name, without `hide`.
    pub name: String,
    /// Its value without quotes; `true` or `false` for an option that is only named.
    pub value: String,
}

/// A router, a transport or an authenticator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    /// Its name.
    pub name: String,
    /// Its options.
    pub options: Vec<EximOption>,
}

impl Driver {
    /// The value of an option.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|option| option.name == name).map(|option| option.value.as_str())
    }

    /// Whether a Boolean option is set.
    pub fn is_set(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| matches!(value, "true" | "yes"))
    }

    /// The kind of driver.
    pub fn kind(&self) -> &str {
        self.value("driver").unwrap_or_default()
    }
}

/// A condition or modifier of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclItem {
    /// Whether `!` stands before it.
    pub negated: bool,
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// A statement of an ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclStatement {
    /// accept, deny, require, warn, defer, drop or discard.
    pub verb: String,
    /// Its conditions and modifiers.
    pub items: Vec<AclItem>,
}

impl AclStatement {
    /// The value of a modifier.
    pub fn modifier(&self, name: &str) -> Option<&str> {
        self.items.iter().find(|item| item.name == name).map(|item| item.value.as_str())
    }

    /// The statement in one line, for comments.
    pub fn summary(&self) -> String {
        let item = |item: &AclItem| format!("{}{} = {}", if item.negated { "!" } else { "" }, item.name, item.value);
        let conditions: Vec<String> =
            self.items.iter().filter(|it| !MODIFIERS.contains(&it.name.as_str())).map(item).collect();
        let text = format!("{} {}", self.verb, conditions.join(", "));
        let short: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(SUMMARY_MAX).collect();
        if short.len() < text.trim().len() && short.chars().count() == SUMMARY_MAX {
            format!("{short} ...")
        } else {
            short
        }
    }
}

/// An ACL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    /// Its name.
    pub name: String,
    /// Its statements.
    pub statements: Vec<AclStatement>,
}

/// A whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EximConfig {
    /// The main section.
    pub main: Driver,
    /// Named lists: `+name` and its value.
    pub lists: Vec<(String, String)>,
    /// The ACLs.
    pub acls: Vec<Acl>,
    /// The routers, in order.
    pub routers: Vec<Driver>,
    /// The transports.
    pub transports: Vec<Driver>,
    /// The authenticators.
    pub authenticators: Vec<Driver>,
    /// Lines of the section `retry`.
    pub retry: Vec<String>,
    /// Lines of the section `rewrite`.
    pub rewrite: Vec<String>,
    /// Lines that belong nowhere, and their places.
    pub oddities: Vec<String>,
}

const VERBS: [&str; 7] = ["accept", "defer", "deny", "discard", "drop", "require", "warn"];
/// Items of statements that do not decide whether it applies.
pub(super) const MODIFIERS: [&str; 13] = [
    "add_header",
    "continue",
    "control",
    "delay",
    "endpass",
    "log_message",
    "log_reject_target",
    "logwrite",
    "message",
    "queue",
    "remove_header",
    "set",
    "udpsend",
];
/// Characters of a statement in a comment.
const SUMMARY_MAX: usize = 120;
const LISTS: [&str; 4] = ["domainlist", "hostlist", "addresslist", "localpartlist"];

impl EximConfig {
    /// Sorts lines into parts.
    pub fn parse(lines: &[ConfigLine]) -> EximConfig {
        let mut config = EximConfig::default();
        let mut section = "";
        for line in lines {
            if let Some(name) = line.text.strip_prefix("begin ") {
                section = name.trim();
                continue;
            }
            let is_known = match section {
                "" => config.main_line(&line.text),
                "acl" => config.acl_line(&line.text),
                "routers" => driver_line(&mut config.routers, &line.text),
                "transports" => driver_line(&mut config.transports, &line.text),
                "authenticators" => driver_line(&mut config.authenticators, &line.text),
                "retry" => push_line(&mut config.retry, &line.text),
                "rewrite" => push_line(&mut config.rewrite, &line.text),
                _ => section == "local_scan",
            };
            if !is_known {
                config.oddities.push(format!("{}: {}", line.place, line.text));
            }
        }
        config
    }

    /// The value of a named list.
    pub fn list(&self, name: &str) -> Option<&str> {
        self.lists.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// An ACL.
    pub fn acl(&self, name: &str) -> Option<&Acl> {
        self.acls.iter().find(|acl| acl.name == name)
    }

    /// A transport.
    pub fn transport(&self, name: &str) -> Option<&Driver> {
        self.transports.iter().find(|driver| driver.name == name)
    }

    fn main_line(&mut self, text: &str) -> bool {
        let bare = text.strip_prefix("hide ").unwrap_or(text).trim();
        if let Some((kind, rest)) = bare.split_once(char::is_whitespace)
            && LISTS.contains(&kind.trim_end_matches("_cache"))
            && let Some((name, value)) = rest.split_once('=')
        {
            self.lists.push((name.trim().to_owned(), unquoted(value.trim())));
            return true;
        }
        option(text).map(|option| self.main.options.push(option)).is_some()
    }

    fn acl_line(&mut self, text: &str) -> bool {
        if let Some(name) = header(text) {
            self.acls.push(Acl { name: name.to_owned(), statements: Vec::new() });
            return true;
        }
        let Some(acl) = self.acls.last_mut() else { return false };
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let mut item = text;
        if VERBS.contains(&word) && !rest.trim_start().starts_with('=') {
            acl.statements.push(AclStatement { verb: word.to_owned(), items: Vec::new() });
            item = rest.trim();
        }
        let Some(statement) = acl.statements.last_mut() else { return false };
        if item.is_empty() {
            return true;
        }
        acl_item(item).map(|item| statement.items.push(item)).is_some()
    }
}

fn push_line(lines: &mut Vec<String>, text: &str) -> bool {
    lines.push(text.to_owned());
    true
}

fn driver_line(drivers: &mut Vec<Driver>, text: &str) -> bool {
    if let Some(name) = header(text) {
        drivers.push(Driver { name: name.to_owned(), options: Vec::new() });
        return true;
    }
    match (drivers.last_mut(), option(text)) {
        (Some(driver), Some(option)) => {
            driver.options.push(option);
            true
        }
        _ => false,
    }
}

/// The name in a line `name:`.
fn header(text: &str) -> Option<&str> {
    let name = text.strip_suffix(':')?.trim_end();
    (!name.is_empty() && name.chars().all(is_name)).then_some(name)
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// A line `name = value`, `name`, `no_name` or `not_name`.
fn option(text: &str) -> Option<EximOption> {
    let text = text.strip_prefix("hide ").unwrap_or(text).trim();
    let made = |name: &str, value: String| EximOption { name: name.to_owned(), value };
    if let Some((name, value)) = text.split_once('=')
        && name.trim().chars().all(is_name)
    {
        return (!name.trim().is_empty()).then(|| made(name.trim(), unquoted(value.trim())));
    }
    if text.is_empty() || !text.chars().all(is_name) {
        return None;
    }
    let negated = text.strip_prefix("no_").or_else(|| text.strip_prefix("not_"));
    Some(negated.map_or_else(|| made(text, "true".into()), |name| made(name, "false".into())))
}

/// A condition or modifier: `name = value`, `!name = value`, `set name = value`, or `endpass`.
fn acl_item(text: &str) -> Option<AclItem> {
    let bare = text.trim_start_matches(['!', ' ']);
    let negated = text[..text.len() - bare.len()].matches('!').count() % 2 == 1;
    let (name, value) = bare.split_once('=').unwrap_or((bare, ""));
    let name = name.trim();
    let name = if name.starts_with("set ") { "set" } else { name };
    let is_whole = !name.is_empty() && name.chars().all(is_name);
    is_whole.then(|| AclItem { negated, name: name.to_owned(), value: unquoted(value.trim()) })
}

/// The value of a string in quotes, with its escapes; any other value as it is.
fn unquoted(value: &str) -> String {
    let Some(inside) = value.strip_prefix('"') else { return value.to_owned() };
    let (mut made, mut chars) = (String::new(), inside.chars());
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => match chars.next() {
                Some('n') => made.push('\n'),
                Some('t') => made.push('\t'),
                Some('r') => made.push('\r'),
                other => made.extend(other),
            },
            _ => made.push(c),
        }
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> EximConfig {
        let line = |text: &str| ConfigLine { place: "x".into(), text: text.trim().into() };
        EximConfig::parse(&text.lines().map(line).collect::<Vec<_>>())
    }

    #[test]
    fn options_lists_statements_and_drivers_have_their_places() {
        let config = parsed(
            "hide mysql_servers = a/b\nno_local_from_check\ndomainlist ours = \"a : \\\"b\\\"\"\nbegin acl\ncheck:\n\
             accept hosts = :\n!verify = sender\nendpass\ndeny\nset acl_m0 = x\nbegin routers\nr:\ndriver = accept\nno_more\n\
             begin retry\n* * F,1h,5m\nbegin rewrite\n!!\nbegin authenticators\n?\n",
        );
        assert_eq!(config.main.value("mysql_servers"), Some("a/b"));
        assert_eq!(config.main.value("local_from_check"), Some("false"));
        assert_eq!(config.list("ours"), Some("a : \"b\""));
        let acl = config.acl("check").unwrap();
        assert_eq!((acl.statements.len(), acl.statements[0].items.len()), (2, 3));
        assert!(acl.statements[0].items[1].negated);
        assert_eq!((config.routers[0].kind(), config.routers[0].value("more")), ("accept", Some("false")));
        assert_eq!((config.retry.len(), config.rewrite.len(), config.oddities.len()), (1, 1, 1));
    }
}
