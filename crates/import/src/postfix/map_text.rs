//! Converts Postfix's text maps to our text tables.
//!
//! Postfix's keys can be names without a domain, which apply to all local domains; our keys are
//! addresses. Its entries continue on lines that start with white space, its values may be
//! separated by white space, and aliases can run programs. What cannot be converted becomes a
//! comment in the new file.

use mail::Address;

use super::main_cf::logical_lines;

/// The purpose of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TableUse {
    /// Domain names.
    Domains,
    /// Existing addresses; the value may be the mailbox folder.
    Mailboxes,
    /// Existing addresses; values are ignored.
    Recipients,
    /// Addresses and their targets (virtual(5)).
    Aliases,
    /// Names at local domains and their targets (aliases(5)).
    LocalAliases,
    /// Addresses and the one address that each becomes or that gets a copy (canonical(5), sender_bcc_maps).
    Canonical,
    /// The same for addresses on the way out (generic(5)).
    Generic,
    /// Existing names at local domains.
    LocalUsers,
    /// Actions of access(5) for clients, names or addresses; only for tables that are queried at
    /// run time.
    Access,
    /// Lines of the body; only for tables that are queried at run time.
    BodyLines,
    /// Transports (transport(5)).
    Transports,
    /// Transports of senders; only in place of tables that cannot be read.
    SenderTransports,
}

impl TableUse {
    /// What happens to mail while the table is unavailable.
    pub(super) fn unavailable_effect(self) -> &'static str {
        match self {
            TableUse::Domains => "Mail to every domain that is not in this file gets 451",
            TableUse::Mailboxes | TableUse::Recipients => {
                "Mail to addresses that are not in another table of their domain gets 451"
            }
            TableUse::LocalUsers => "Mail to users of this machine that are not in another table gets 451",
            TableUse::Aliases | TableUse::LocalAliases => "Mail to all addresses of the domains that use it gets 451",
            TableUse::Canonical => "All mail whose addresses it would be asked for gets 451",
            TableUse::Generic => "Mail that its transports send waits in the queue",
            TableUse::Access | TableUse::BodyLines => "All mail that its rule applies to gets 451",
            TableUse::Transports => "All mail waits in the queue",
            TableUse::SenderTransports => "Mail to other domains waits in the queue",
        }
    }
}

/// Domains for names without one.
#[derive(Clone, Debug, Default)]
pub(super) struct SiteDomains {
    /// Keys without a domain apply to these domains.
    pub(super) domains: Vec<String>,
    /// Targets without a domain are at this domain.
    pub(super) origin: String,
}

/// The entries in a file: lines of `key value`, or of `key: value` as in aliases(5).
pub(super) fn entries(text: &str, colon: bool) -> Vec<(String, String)> {
    let entry = |line: &String| {
        let end = key_end(line, colon);
        let (key, value) = line.split_at(end);
        let value = value.strip_prefix(':').filter(|_| colon).unwrap_or(value);
        (key.trim().trim_matches(|c| colon && c == '"').to_owned(), value.trim().to_owned())
    };
    logical_lines(text).iter().map(entry).collect()
}

fn key_end(line: &str, colon: bool) -> usize {
    let mut quoted = false;
    let ends = |(_, c): &(usize, char)| {
        quoted ^= *c == '"';
        !quoted && if colon { *c == ':' } else { c.is_whitespace() }
    };
    line.char_indices().find(ends).map_or(line.len(), |(place, _)| place)
}

/// The mailbox that gets mail for all other addresses at a domain.
pub(super) const CATCH_ALL: &str = "catch-all";

/// A converted table.
#[derive(Debug, Default)]
pub(super) struct ConvertedText {
    pub(super) text: String,
    /// Keys whose values cannot be converted.
    pub(super) deferred: Vec<String>,
    /// Entries whose keys cannot be converted.
    pub(super) unreadable: usize,
}

/// Formats entries as a text table. What cannot be converted becomes a comment.
pub(super) fn convert_entries(entries: &[(String, String)], of_use: TableUse, site: &SiteDomains) -> ConvertedText {
    let (mut written, mut seen) = (ConvertedText::default(), std::collections::HashSet::new());
    for (key, value) in entries {
        let keys = keys(key, of_use, site);
        let said = keys.clone().and_then(|keys| values(value, of_use, site).map(|said| (keys, said)));
        let mut is_new = |key: &String| seen.insert(key.to_lowercase());
        match (said, keys) {
            (Ok((keys, said)), _) => {
                for key in keys.into_iter().filter(is_new) {
                    written.text.push_str(format!("{key:<31} {said}").trim_end());
                    written.text.push('\n');
                }
            }
            (Err(why), keys) => {
                match keys {
                    Ok(keys) => written.deferred.extend(keys.into_iter().filter(|key| is_new(key))),
                    Err(_) => written.unreadable += 1,
                }
                let entry = format!("{key} {value}").split_whitespace().collect::<Vec<_>>().join(" ");
                written.text.push_str(&format!("# not translated: {entry}: {why}\n"));
            }
        }
    }
    written
}

/// Converts the lines of a pattern table. One line that cannot be converted is an error, since
/// later lines depend on it.
pub(super) fn convert_patterns(lines: &[String], of_use: TableUse, site: &SiteDomains) -> Result<String, &'static str> {
    let mut text = String::new();
    for line in lines {
        let line = match pattern_end(line) {
            Some(end) => format!("{} {}", line[..end].trim_end(), pattern_values(line[end..].trim(), of_use, site)?),
            None => line.clone(),
        };
        text.push_str(line.trim_end());
        text.push('\n');
    }
    Ok(text)
}

fn pattern_values(value: &str, of_use: TableUse, site: &SiteDomains) -> Result<String, &'static str> {
    // A target with groups of a match is not an address yet.
    let target = |word: &String| match word.contains('$') && word.contains('@') && !word.starts_with(['|', '/', ':']) {
        true => Ok(word.clone()),
        false => target(word, site),
    };
    match of_use {
        TableUse::Aliases => {
            let targets: Vec<String> = words(value).iter().map(target).collect::<Result<_, _>>()?;
            if targets.is_empty() { Err("a line has no target") } else { Ok(targets.join(", ")) }
        }
        TableUse::Canonical | TableUse::Generic => target(&value.to_owned()),
        TableUse::Mailboxes if value.contains([',', '"']) => Err("a mailbox folder contains a comma or a quote"),
        TableUse::Mailboxes | TableUse::Transports => Ok(value.to_owned()),
        _ => Ok(String::new()),
    }
}

/// The keys that one Postfix key becomes.
pub(super) fn keys(key: &str, of_use: TableUse, site: &SiteDomains) -> Result<Vec<String>, &'static str> {
    let is_plain =
        !key.is_empty() && !key.ends_with(':') && !key.starts_with('#') && !key.contains(char::is_whitespace);
    let whole = |key: String| match key.strip_prefix('@') {
        Some(domain) => Address::new("postmaster", domain).is_ok(),
        None => key.parse::<Address>().is_ok(),
    };
    match (of_use, key.contains('@')) {
        _ if !is_plain => Err("this is not a valid key"),
        // The section of the domain covers it.
        (TableUse::Recipients, true) if key.starts_with('@') => Ok(Vec::new()),
        (TableUse::Mailboxes, true) if key.starts_with('@') && whole(key.to_owned()) => {
            Ok(vec![format!("{CATCH_ALL}{key}")])
        }
        (TableUse::Domains, true) => Ok(Vec::new()),
        (TableUse::Domains, false) if key.starts_with('.') => Err("subdomains are not supported here"),
        (TableUse::Domains, false) if Address::new("postmaster", key).is_err() => Err("this is not a domain name"),
        (TableUse::Domains, false) => Ok(vec![key.to_owned()]),
        (TableUse::Access | TableUse::BodyLines | TableUse::Transports | TableUse::SenderTransports, _) => {
            Ok(vec![key.to_owned()])
        }
        (_, true) if whole(key.to_owned()) => Ok(vec![key.to_owned()]),
        (_, true) => Err("the key is not an address"),
        // A local domain, which is in `Domains`.
        (TableUse::Aliases | TableUse::Mailboxes | TableUse::Recipients, false)
            if key.contains('.') && !site.domains.iter().any(|d| d == key) =>
        {
            Ok(Vec::new())
        }
        (_, false) => {
            let at = |domain: &String| format!("{key}@{domain}");
            // virtual(5): a name also applies at the origin.
            let has_origin = matches!(of_use, TableUse::Aliases | TableUse::Canonical | TableUse::Generic);
            let origin = Some(&site.origin).filter(|it| has_origin && !site.domains.contains(it));
            let keys: Vec<String> =
                site.domains.iter().chain(origin).map(at).filter(|key| whole(key.clone())).collect();
            if keys.is_empty() { Err("a name without a domain, and there is no local domain") } else { Ok(keys) }
        }
    }
}

/// The values of an entry, separated by commas.
fn values(value: &str, of_use: TableUse, site: &SiteDomains) -> Result<String, &'static str> {
    match of_use {
        TableUse::Domains | TableUse::LocalUsers | TableUse::Recipients => Ok(String::new()),
        TableUse::Mailboxes if value.contains([',', '"']) => Err("the mailbox folder contains a comma or a quote"),
        TableUse::Mailboxes
        | TableUse::Access
        | TableUse::BodyLines
        | TableUse::Transports
        | TableUse::SenderTransports => Ok(value.to_owned()),
        TableUse::Canonical | TableUse::Generic => match value.strip_prefix('@') {
            Some(domain) if Address::new("postmaster", domain).is_ok() => Ok(value.to_owned()),
            _ if words(value).len() == 1 => target(value, site),
            _ => Err("it is not one address"),
        },
        TableUse::Aliases | TableUse::LocalAliases => {
            let targets: Result<Vec<String>, _> = words(value).iter().map(|word| target(word, site)).collect();
            let targets = targets?;
            if targets.is_empty() { Err("it has no target") } else { Ok(targets.join(", ")) }
        }
    }
}

/// Words separated by commas and white space outside quotes.
pub(super) fn words(value: &str) -> Vec<String> {
    let (mut quoted, mut words) = (false, vec![String::new()]);
    for c in value.chars() {
        quoted ^= c == '"';
        match !quoted && (c == ',' || c.is_whitespace()) {
            true => words.push(String::new()),
            false => words.last_mut().into_iter().for_each(|word| word.push(c)),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// A target as a complete address.
pub(super) fn target(word: &str, site: &SiteDomains) -> Result<String, &'static str> {
    let bare = word.trim_start_matches(['\\', '"']);
    match bare.chars().next() {
        Some('|') => return Err("programs are not supported; use an LMTP server"),
        Some('/') => return Err("files are not supported"),
        Some('@') => return Err("only single addresses can be aliases, not whole domains"),
        _ if bare.starts_with(":include:") => return Err(":include: is not supported; add the addresses here"),
        _ => {}
    }
    let word = word.trim_start_matches('\\');
    let whole = if word.contains('@') { word.to_owned() } else { format!("{word}@{}", site.origin) };
    whole.parse::<Address>().map(|_| whole).map_err(|_| "a target is not an address")
}

/// The start of the value; None without one, as in `if` and `endif`.
pub(super) fn pattern_end(line: &str) -> Option<usize> {
    let start = line.len() - line.trim_start_matches(['!', ' ', '\t']).len();
    let mark = line[start..].chars().next().filter(|c| !c.is_alphanumeric())?;
    let mut is_escaped = false;
    let closes = |(_, c): &(usize, char)| {
        let found = *c == mark && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        found
    };
    let begin = start + mark.len_utf8();
    let close = begin + line[begin..].char_indices().find(closes)?.0;
    Some(line[close..].find(char::is_whitespace).map_or(line.len(), |behind| close + behind))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn site() -> SiteDomains {
        SiteDomains { domains: vec!["a.example".into(), "b.example".into()], origin: "a.example".into() }
    }

    #[test]
    fn aliases_are_meant_at_every_domain_of_ours() {
        let text =
            "# c\npostmaster: root\nroot:\tbob,\n  carol@x.example\nlog: |/bin/log\n\"two\": bob\npostmaster: eve\n";
        let ConvertedText { text: table, deferred: put_off, .. } =
            convert_entries(&entries(text, true), TableUse::LocalAliases, &site());
        insta::assert_snapshot!(table, @r"
        postmaster@a.example            root@a.example
        postmaster@b.example            root@a.example
        root@a.example                  bob@a.example, carol@x.example
        root@b.example                  bob@a.example, carol@x.example
        # not translated: log |/bin/log: programs are not supported; use an LMTP server
        two@a.example                   bob@a.example
        two@b.example                   bob@a.example
        ");
        assert_eq!(put_off, ["log@a.example", "log@b.example"]);
    }

    #[test]
    fn virtual_aliases_keep_their_domains() {
        let text = "v.example anything\ninfo@v.example  bob carol@x.example\n@v.example all\n@w.example @v.example\n";
        let ConvertedText { text: table, deferred: put_off, .. } =
            convert_entries(&entries(text, false), TableUse::Aliases, &site());
        insta::assert_snapshot!(table, @r"
        info@v.example                  bob@a.example, carol@x.example
        @v.example                      all@a.example
        # not translated: @w.example @v.example: only single addresses can be aliases, not whole domains
        ");
        assert_eq!(put_off, ["@w.example"]);
    }

    proptest! {
        #[test]
        fn any_text_becomes_a_text_table(text in "(?s)[ab.@:,\"#\\\\ \n\t|/]{0,80}|(?s).{0,80}", colon: bool) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("table");
            for of_use in [TableUse::Domains, TableUse::Mailboxes, TableUse::Recipients, TableUse::Aliases, TableUse::LocalAliases, TableUse::LocalUsers] {
                std::fs::write(&path, convert_entries(&entries(&text, colon), of_use, &site()).text).unwrap();
                lookup::text::TextTable::load("table", &path).unwrap();
            }
        }
    }
}
