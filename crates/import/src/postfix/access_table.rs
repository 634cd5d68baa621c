//! Converts tables of access(5). Values are translated as follows:
//!
//! | Postfix                                                      | here                              |
//! |--------------------------------------------------------------|-----------------------------------|
//! | `OK`, `PERMIT`, digits                                       | `OK`                              |
//! | `REJECT`, `DEFER`, `4NN`, `5NN`, `HOLD`                      | the same                          |
//! | `DEFER_IF_PERMIT`                                            | `DEFER`                           |
//! | `DUNNO`                                                      | `DUNNO`                           |
//! | `DEFER_IF_REJECT`, `DISCARD`, `WARN`, `INFO`, `PREPEND`, `BCC`, `REDIRECT` | the same               |
//! | `FILTER`                                                     | the same, with a transport of ours |
//! | restrictions, a restriction class                            | the name of a class of rules      |
//! | anything else                                                | `DEFER`, so that no mail is accepted by mistake |
//!
//! A domain without a leading dot also matches its subdomains, unless
//! `parent_domain_matches_subdomains` says otherwise; here such a key is written twice. A table with names
//! of clients is asked by their names, which costs a query to the DNS; one with addresses alone is not.

use std::collections::HashSet;
use std::net::Ipv6Addr;

use mail::{Address, Reply};

use super::map_text::pattern_end;
use crate::ip_net::IpNet;

/// What a table is looked up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AccessSubject {
    Client,
    /// The client's name, confirmed or not.
    ReverseClient,
    Helo,
    Sender,
    Recipient,
}

impl AccessSubject {
    /// The subject of `check_SUBJECT_access`.
    pub(super) fn of_rule(rule: &str) -> Option<AccessSubject> {
        Some(match rule {
            "check_client_access" => AccessSubject::Client,
            "check_reverse_client_hostname_access" => AccessSubject::ReverseClient,
            "check_helo_access" => AccessSubject::Helo,
            "check_sender_access" => AccessSubject::Sender,
            "check_recipient_access" => AccessSubject::Recipient,
            _ => return None,
        })
    }

    /// The key of a rule that names such a table. `has_names`: it may have names of clients.
    pub(super) fn key(self, has_names: bool) -> &'static str {
        match self {
            AccessSubject::Client if has_names => "client_names_in",
            AccessSubject::Client => "clients_in",
            AccessSubject::ReverseClient => "reverse_names_in",
            AccessSubject::Helo => "helos_in",
            AccessSubject::Sender => "senders_in",
            AccessSubject::Recipient => "recipients_in",
        }
    }
}

/// The meaning of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AccessAction {
    Accept,
    /// `REJECT`, `DEFER`, or a reply code, with its text.
    Reject(String),
    Hold,
    /// Something that is done to the message, or a line in the log, as in our own tables.
    Message(String),
    /// `FILTER`: the destination as Postfix names it.
    Filter(String),
    /// No decision.
    Dunno,
    /// Restrictions, or the name of a restriction class.
    Restrictions(String),
    /// The same, as the name of a class of rules.
    Class(String),
    /// Not supported; why.
    Other(&'static str),
}

impl AccessAction {
    /// Whether Postfix may let mail pass by this value.
    fn may_accept(&self) -> bool {
        matches!(self, AccessAction::Accept | AccessAction::Restrictions(_) | AccessAction::Class(_))
            || self.is_discard()
    }

    /// Whether it drops mail. The rest of the list is then not evaluated.
    fn is_discard(&self) -> bool {
        matches!(self, AccessAction::Message(value) if value.starts_with("DISCARD"))
    }

    /// Whether it adds a header field.
    pub(super) fn is_field(&self) -> bool {
        matches!(self, AccessAction::Message(value) if value.starts_with("PREPEND"))
    }

    /// Parses a value.
    pub(super) fn parse(value: &str) -> AccessAction {
        let value = valid_reply(value);
        let (word, text) = value.split_once(' ').unwrap_or((&value, ""));
        let digits = word.bytes().all(|b| b.is_ascii_digit());
        let is_code = digits && word.len() == 3 && word.starts_with(['4', '5']);
        match &*word.to_ascii_uppercase() {
            "" | "DUNNO" => AccessAction::Dunno,
            "OK" | "PERMIT" => AccessAction::Accept,
            "REJECT" => AccessAction::Reject(value),
            "DEFER" | "DEFER_IF_PERMIT" => AccessAction::Reject(format!("DEFER {text}").trim_end().to_owned()),
            "HOLD" => AccessAction::Hold,
            word @ ("DISCARD" | "WARN" | "INFO" | "DEFER_IF_REJECT") => {
                AccessAction::Message(format!("{word} {text}").trim_end().to_owned())
            }
            word @ ("BCC" | "REDIRECT") => match text.trim_matches(['<', '>']).parse::<Address>() {
                Ok(address) => AccessAction::Message(format!("{word} {address}")),
                Err(_) => AccessAction::Other("it names no address"),
            },
            "PREPEND" if is_field(text) => AccessAction::Message(format!("PREPEND {text}")),
            "PREPEND" => AccessAction::Other("it is no header field"),
            "FILTER" => AccessAction::Filter(text.to_owned()),
            _ if is_code => AccessAction::Reject(value),
            _ if digits && text.is_empty() => AccessAction::Accept,
            _ => AccessAction::Restrictions(value),
        }
    }

    /// The value for a table of ours.
    fn description(&self) -> &str {
        match self {
            AccessAction::Accept => "OK",
            AccessAction::Reject(text) => text,
            AccessAction::Hold => "HOLD",
            AccessAction::Dunno => "DUNNO",
            AccessAction::Message(value) => value,
            AccessAction::Class(name) => name,
            AccessAction::Restrictions(_) | AccessAction::Filter(_) | AccessAction::Other(_) => "DEFER",
        }
    }

    /// The value in a table, for what a rule cannot say itself.
    pub(super) fn table_value(&self) -> Option<&str> {
        match self {
            AccessAction::Message(value) | AccessAction::Class(value) => Some(value),
            _ => None,
        }
    }

    /// Whether Postfix goes on after it with the rest of the list.
    fn decides_nothing(&self) -> bool {
        match self {
            AccessAction::Message(_) => !self.is_discard(),
            AccessAction::Dunno | AccessAction::Hold => true,
            _ => false,
        }
    }

    /// Whether it may keep mail from being delivered as it is.
    pub(super) fn may_refuse(&self) -> bool {
        !matches!(self, AccessAction::Accept | AccessAction::Dunno)
    }

    /// Whether it chooses a content filter.
    fn is_filter(&self) -> bool {
        matches!(self, AccessAction::Message(value) if value.starts_with("FILTER "))
    }

    /// What is lost.
    fn unsupported_reason(&self) -> Option<&'static str> {
        match self {
            AccessAction::Restrictions(_) => Some("restrictions are not supported here"),
            AccessAction::Filter(_) => Some("its filter is unknown"),
            AccessAction::Other(why) => Some(why),
            _ => None,
        }
    }

    /// `action` and `reply` of an equivalent rule; None if there is no decision.
    pub(super) fn action(&self) -> Option<(&'static str, Option<String>)> {
        match self {
            AccessAction::Accept => Some(("accept", None)),
            AccessAction::Hold => Some(("hold", None)),
            AccessAction::Dunno => None,
            AccessAction::Restrictions(_)
            | AccessAction::Class(_)
            | AccessAction::Message(_)
            | AccessAction::Filter(_)
            | AccessAction::Other(_) => Some(("defer", None)),
            AccessAction::Reject(value) => {
                let (word, text) = value.split_once(' ').unwrap_or((value, ""));
                let is_later = word.starts_with('4') || word == "DEFER";
                let action = if is_later { "defer" } else { "refuse" };
                let usual = if is_later { "450 4.7.1" } else { "554 5.7.1" };
                let own = format!("{word} {text}").parse::<Reply>().ok().filter(|reply| !reply.text.is_empty());
                let with = |line: String| line.parse::<Reply>().ok();
                let enhanced = || with(format!("{} {text}", &usual[..3])).filter(|reply| reply.enhanced.is_some());
                let worded = || enhanced().or_else(|| with(format!("{usual} {text}")));
                let reply = own.or_else(|| (!text.is_empty()).then(worded).flatten());
                Some((action, reply.map(|reply| reply.to_string())))
            }
        }
    }
}

/// Whether it begins with the name of a field.
pub(super) fn is_field(text: &str) -> bool {
    let name = text.split_once(':').map_or("", |(name, _)| name);
    !name.is_empty() && name.bytes().all(|octet| octet.is_ascii_graphic())
}

/// A valid value for a text table: without quotes and stray commas.
fn valid_reply(value: &str) -> String {
    let value = value.replace('"', "'");
    let parts = value.split(',').map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// The contents of a table, as far as they can be read.
#[derive(Clone, Debug)]
pub(super) enum AccessTableContent {
    /// Keys and their actions.
    Entries(Vec<(String, AccessAction)>),
    /// Lines of regular expressions.
    Patterns(PatternLines),
    /// Networks; the first match wins.
    Networks(Vec<(IpNet, AccessAction)>),
    /// A table of this name that is queried at run time.
    Unreadable(String),
}

impl AccessTableContent {
    /// Whether it may let clients pass.
    pub(super) fn can_accept(&self) -> bool {
        self.actions().is_none_or(|mut acts| acts.any(AccessAction::may_accept))
    }

    /// The actions of a table in which classes can be named.
    pub(super) fn actions_mut(&mut self) -> Box<dyn Iterator<Item = &mut AccessAction> + '_> {
        match self {
            AccessTableContent::Entries(entries) => Box::new(entries.iter_mut().map(|(_, act)| act)),
            AccessTableContent::Patterns(lines) => Box::new(lines.iter_mut().filter_map(|(_, act)| act.as_mut())),
            AccessTableContent::Networks(networks) => Box::new(networks.iter_mut().map(|(_, act)| act)),
            AccessTableContent::Unreadable(_) => Box::new(std::iter::empty()),
        }
    }

    /// Whether it may keep mail from being delivered as it is.
    pub(super) fn can_refuse(&self) -> bool {
        self.actions().is_none_or(|mut acts| acts.any(AccessAction::may_refuse))
    }

    /// Whether a value chooses a content filter. One in a table that is queried would name a transport of
    /// Postfix, so it defers the client.
    pub(super) fn chooses_filters(&self) -> bool {
        self.actions().is_some_and(|mut acts| acts.any(AccessAction::is_filter))
    }

    /// Whether it may have names of clients.
    pub(super) fn has_names(&self) -> bool {
        match self {
            AccessTableContent::Entries(entries) => entries.iter().any(|(key, _)| !is_address(key)),
            AccessTableContent::Patterns(lines) => lines.iter().any(|(head, _)| head != EVERYTHING),
            AccessTableContent::Networks(_) => false,
            AccessTableContent::Unreadable(_) => true,
        }
    }

    /// All actions; None: they are unknown.
    fn actions(&self) -> Option<Box<dyn Iterator<Item = &AccessAction> + '_>> {
        match self {
            AccessTableContent::Entries(entries) => Some(Box::new(entries.iter().map(|(_, act)| act))),
            AccessTableContent::Patterns(lines) => Some(Box::new(lines.iter().filter_map(|(_, act)| act.as_ref()))),
            AccessTableContent::Networks(networks) => Some(Box::new(networks.iter().map(|(_, act)| act))),
            AccessTableContent::Unreadable(_) => None,
        }
    }

    /// Whether Postfix lets mail to other domains pass by it. `passes`: whether restrictions do.
    pub(super) fn may_relay(
        &self,
        subject: AccessSubject,
        own: &[String],
        passes: &mut dyn FnMut(&str) -> bool,
    ) -> bool {
        let is_ours = |key: &str| {
            let domain = key.rsplit_once('@').map_or(key, |(_, domain)| domain);
            subject == AccessSubject::Recipient && own.iter().any(|it| it.eq_ignore_ascii_case(domain))
        };
        let mut lets = |act: &AccessAction| match act {
            AccessAction::Restrictions(text) => passes(text),
            act => act.may_accept() && !act.is_discard(),
        };
        match self {
            AccessTableContent::Entries(entries) => entries.iter().any(|(key, act)| !is_ours(key) && lets(act)),
            AccessTableContent::Patterns(lines) => lines.iter().any(|(_, act)| act.as_ref().is_some_and(&mut lets)),
            AccessTableContent::Networks(networks) => networks.iter().any(|(_, act)| lets(act)),
            AccessTableContent::Unreadable(_) => true,
        }
    }

    /// Whether it has an accepting entry that cannot be translated.
    pub(super) fn loses_accept(&self, subject: AccessSubject) -> bool {
        match self {
            AccessTableContent::Entries(entries) => {
                let is_lost = |key: &str| matches!(keys(key, subject, false), Err(UnusedKey(INVALID_KEY)));
                entries.iter().any(|(key, act)| *act == AccessAction::Accept && is_lost(key))
            }
            _ => false,
        }
    }
}

/// Lines of regular expressions: the text before the value, and the action. None: a line without a
/// value.
pub(super) type PatternLines = Vec<(String, Option<AccessAction>)>;

/// The pattern of a table with one value for everything.
pub(super) const EVERYTHING: &str = "/^/";

/// Groups consecutive networks with the same action, without those that an earlier entry exempts.
pub(super) fn group_by_action(entries: &[(IpNet, AccessAction)]) -> Vec<(Vec<IpNet>, AccessAction)> {
    let (mut runs, mut holes): (Vec<(Vec<IpNet>, AccessAction)>, Vec<IpNet>) = (Vec::new(), Vec::new());
    for (net, act) in entries {
        if matches!(act, AccessAction::Dunno) {
            holes.push(*net);
            continue;
        }
        let own_hole = act.decides_nothing().then_some(*net);
        let mut rest = vec![*net];
        for hole in &holes {
            rest = rest.into_iter().flat_map(|net| net.subtract(hole)).collect();
        }
        match runs.last_mut().filter(|(_, last)| last == act) {
            Some((nets, _)) => nets.extend(rest),
            None if rest.is_empty() => {}
            None => runs.push((rest, act.clone())),
        }
        // Only the first match of a table counts.
        holes.extend(own_hole);
    }
    runs
}

/// Parses lines of `/pattern/flags value`.
pub(super) fn patterns(lines: &[String]) -> PatternLines {
    let read = |line: &String| match pattern_end(line) {
        Some(end) => {
            let (head, act) = (line[..end].trim_end(), AccessAction::parse(&line[end..]));
            match (without_case(head), head.starts_with('!')) {
                (Some(head), false) if act.may_refuse() => (head, Some(AccessAction::Other(LOWER_CASE))),
                // With the flag it would accept all.
                (Some(head), true) if act == AccessAction::Accept => (head, Some(act)),
                _ => (head.to_owned(), Some(act)),
            }
        }
        None => (line.clone(), None),
    };
    lines.iter().map(read).collect()
}

const LOWER_CASE: &str = "keys are in lower case here, so the case of letters cannot be told apart";

/// A pattern with capital letters whose flags make case matter, without the flag: keys are in lower case, so it
/// would match nothing, and negated everything. None: another pattern.
fn without_case(head: &str) -> Option<String> {
    let mark = head.trim_start_matches(['!', ' ', '\t']).chars().next()?;
    let close = head.rfind(mark)? + mark.len_utf8();
    let (pattern, flags) = head.split_at(close);
    let mut escapes = false;
    let has_capitals = pattern.chars().any(|c| {
        let is_escaped = escapes;
        escapes = c == '\\' && !is_escaped;
        !is_escaped && c.is_ascii_uppercase()
    });
    let is_exact = flags.matches('i').count() % 2 == 1;
    (is_exact && has_capitals).then(|| format!("{pattern}{}", flags.replace('i', "")))
}

/// Formats the lines of a pattern table.
pub(super) fn pattern_text(lines: &[(String, Option<AccessAction>)]) -> String {
    let line = |(head, act): &(String, Option<AccessAction>)| match act {
        None => format!("{head}\n"),
        Some(act) => {
            let why = act.unsupported_reason().map(|why| format!("# not translated, the value below: {why}\n"));
            format!("{}{head} {}\n", why.unwrap_or_default(), act.description())
        }
    };
    lines.iter().map(line).collect()
}

/// A converted table, with counts of what was lost.
#[derive(Debug, Default)]
pub(super) struct ConvertedAccessTable {
    pub(super) text: String,
    /// Entries that act differently, or not at all.
    pub(super) unsupported: usize,
}

/// Formats entries as a text table. `parents`: a domain matches its subdomains.
pub(super) fn entry_text(
    entries: &[(String, AccessAction)],
    subject: AccessSubject,
    parents: bool,
) -> ConvertedAccessTable {
    let (mut written, mut seen) = (ConvertedAccessTable::default(), HashSet::new());
    for (key, act) in entries {
        let keys = match keys(key, subject, parents) {
            Ok(keys) => keys,
            Err(UnusedKey(why)) => {
                written.unsupported += usize::from(why == INVALID_KEY);
                let entry = format!("{key} {}", act.description()).split_whitespace().collect::<Vec<_>>().join(" ");
                written.text.push_str(&format!("# not translated: {entry}: {why}\n"));
                let domain = key.rsplit_once('@').map_or("", |(_, domain)| domain).to_lowercase();
                let is_lost = why == INVALID_KEY && act.may_refuse() && is_domain(&domain);
                if is_lost && seen.insert(domain.clone()) {
                    written.text.push_str(&format!("{domain:<31} DEFER\n"));
                }
                continue;
            }
        };
        if let Some(why) = act.unsupported_reason() {
            written.unsupported += 1;
            written.text.push_str(&format!("# not translated, the value below: {why}\n"));
        }
        for key in keys.into_iter().filter(|key| seen.insert(key.to_lowercase())) {
            written.text.push_str(&format!("{key:<31} {}\n", act.description()));
        }
    }
    written
}

/// A key that a text table cannot have.
const INVALID_KEY: &str = "this is not a valid key; all mail of its domain is deferred if it refused mail";

/// Why a key is left out. Unless it is [`INVALID_KEY`], nothing is lost.
struct UnusedKey(&'static str);

fn is_domain(name: &str) -> bool {
    Address::new("postmaster", name).is_ok()
}

/// The keys that one Postfix key becomes.
fn keys(key: &str, subject: AccessSubject, parents: bool) -> Result<Vec<String>, UnusedKey> {
    let is_sound = |c: char| !c.is_whitespace() && !c.is_control() && c != '"';
    if key.is_empty() || key.starts_with('#') || key.ends_with(':') || !key.chars().all(is_sound) {
        return Err(UnusedKey(INVALID_KEY));
    }
    let is_client = matches!(subject, AccessSubject::Client | AccessSubject::ReverseClient);
    if subject == AccessSubject::Client && is_address(key) {
        return Ok(vec![key.trim_end_matches('.').to_owned()]);
    }
    if is_client && (key.contains(['/', '@', '[', ':']) || key == "<>") {
        return Err(UnusedKey("Postfix never looks it up: it is neither an address nor a name"));
    }
    if key == "<>" && subject == AccessSubject::Sender || key.starts_with('[') {
        return Ok(vec![key.to_owned()]);
    }
    match key.split_once('@') {
        Some(_) if subject == AccessSubject::Helo => Err(UnusedKey("no client uses this HELO name")),
        Some(("", _)) => Err(UnusedKey("Postfix never looks it up: a domain has no @")),
        Some(_) => Ok(vec![key.to_owned()]),
        None if key.starts_with('.') && parents => {
            Err(UnusedKey("Postfix never looks it up: see parent_domain_matches_subdomains"))
        }
        None if parents => Ok(vec![key.to_owned(), format!(".{key}")]),
        None => Ok(vec![key.to_owned()]),
    }
}

/// Whether it is an IP address or a prefix of one: whole octets of IPv4, or groups of IPv6.
fn is_address(key: &str) -> bool {
    let octets: Vec<&str> = key.trim_end_matches('.').split('.').collect();
    let is_v4 = octets.len() <= 4 && octets.iter().all(|octet| octet.parse::<u8>().is_ok());
    let is_group = |group: &str| group.len() <= 4 && group.bytes().all(|b| b.is_ascii_hexdigit());
    let is_v6 = key.parse::<Ipv6Addr>().is_ok() || key.contains(':') && key.split(':').all(is_group);
    let begins_v6 = !key.contains('.') && key.len() == 4 && is_group(key) && key.starts_with(['2', '3', 'f']);
    is_v4 || is_v6 || begins_v6
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::postfix::map_text;

    fn entries(text: &str) -> Vec<(String, AccessAction)> {
        map_text::entries(text, false).into_iter().map(|(key, value)| (key, AccessAction::parse(&value))).collect()
    }

    #[test]
    fn values_say_the_same_or_put_off() {
        for (value, expected) in [
            ("OK", "OK"),
            ("permit", "OK"),
            ("12345", "OK"),
            ("reject", "reject"),
            ("REJECT \"no\",, way,", "REJECT 'no', way"),
            ("550 5.1.1 moved", "550 5.1.1 moved"),
            ("defer_if_permit later", "DEFER later"),
            ("warn of it", "WARN of it"),
            ("defer_if_reject later", "DEFER_IF_REJECT later"),
            ("PREPEND X-A: b", "PREPEND X-A: b"),
            ("PREPEND b", "DEFER"),
            ("Discard", "DISCARD"),
            ("redirect <a@b.example>", "REDIRECT a@b.example"),
            ("BCC nobody", "DEFER"),
            ("FILTER smtp:[127.0.0.1]", "DEFER"),
            ("permit_mynetworks, reject", "DEFER"),
            ("", "DUNNO"),
        ] {
            assert_eq!(AccessAction::parse(value).description(), expected, "{value}");
        }
    }

    #[test]
    fn a_rule_says_what_the_value_says() {
        for (value, action, reply) in [
            ("REJECT", "refuse", None),
            ("reject go away", "refuse", Some("554 5.7.1 go away")),
            ("REJECT 5.1.1 moved", "refuse", Some("554 5.1.1 moved")),
            ("521 5.3.2 no mail", "refuse", Some("521 5.3.2 no mail")),
            ("554", "refuse", None),
            ("DEFER in an hour", "defer", Some("450 4.7.1 in an hour")),
            ("450 later", "defer", Some("450 later")),
            ("554 4.7.1 of another class", "refuse", Some("554 5.7.1 4.7.1 of another class")),
        ] {
            assert_eq!(AccessAction::parse(value).action(), Some((action, reply.map(str::to_owned))), "{value}");
        }
    }

    #[test]
    fn keys_stand_for_what_postfix_asks_for() {
        let text = "example.org REJECT\n.dead.example OK\nbob@example.org OK\npostmaster@ OK\n<> DUNNO\n@x.example REJECT\n\
                    \"a b\"@x.example REJECT\n";
        insta::assert_snapshot!(entry_text(&entries(text), AccessSubject::Sender, true).text, @r#"
        example.org                     REJECT
        .example.org                    REJECT
        # not translated: .dead.example OK: Postfix never looks it up: see parent_domain_matches_subdomains
        bob@example.org                 OK
        postmaster@                     OK
        <>                              DUNNO
        # not translated: @x.example REJECT: Postfix never looks it up: a domain has no @
        # not translated: "a b"@x.example REJECT: this is not a valid key; all mail of its domain is deferred if it refused mail
        x.example                       DEFER
        "#);
        let clients = "192.0.2 OK\n192.0.2.1 REJECT\n2001:db8 HOLD\nbad.example REJECT\n10.0.0.0/8 REJECT\n";
        let written = entry_text(&entries(clients), AccessSubject::Client, true);
        assert_eq!(written.unsupported, 0);
        insta::assert_snapshot!(written.text, @r"
        192.0.2                         OK
        192.0.2.1                       REJECT
        2001:db8                        HOLD
        bad.example                     REJECT
        .bad.example                    REJECT
        # not translated: 10.0.0.0/8 REJECT: Postfix never looks it up: it is neither an address nor a name
        ");
    }

    #[test]
    fn patterns_keep_all_but_their_value() {
        let lines = ["/^a\\/b/i  OK", "if /x/", "!|y z| REDIRECT q", "endif", "/z/"].map(str::to_owned);
        insta::assert_snapshot!(pattern_text(&patterns(&lines)), @r"
        /^a\/b/i OK
        if /x/
        # not translated, the value below: it names no address
        !|y z| DEFER
        endif
        /z/ DUNNO
        ");
    }

    /// `/^Spam@/i` matched nothing, since keys are in lower case.
    #[test]
    fn a_pattern_whose_case_matters_defers_what_it_refused() {
        let lines =
            ["/^Spam@/i REJECT", "/^\\S+@x/i REJECT", "/^Good@/i OK", "!/^B/i 550 no", "! /^Bad@/i OK", "/^A/ REJECT"];
        insta::assert_snapshot!(pattern_text(&patterns(&lines.map(str::to_owned))), @r"
        # not translated, the value below: keys are in lower case here, so the case of letters cannot be told apart
        /^Spam@/ DEFER
        /^\S+@x/i REJECT
        /^Good@/i OK
        !/^B/i 550 no
        ! /^Bad@/ OK
        /^A/ REJECT
        ");
    }

    proptest! {
        #[test]
        fn any_text_becomes_a_text_table(text in "(?s)[1a.@:,\"#<> \n\t/\\[OKREJ45]{0,80}|(?s).{0,80}", parents: bool) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("table");
            for subject in [AccessSubject::Client, AccessSubject::Helo, AccessSubject::Sender, AccessSubject::Recipient] {
                std::fs::write(&path, entry_text(&entries(&text), subject, parents).text).unwrap();
                lookup::text::TextTable::load("table", &path).unwrap();
            }
        }
    }
}
