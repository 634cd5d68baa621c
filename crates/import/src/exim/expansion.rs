//! The strings that Exim expands, as far as an import can: names that do not change, and conditions about
//! files that exist. A lookup is taken apart, so that it can become a table. Everything else that
//! depends on the message has no value here.

use std::path::Path;

use crate::FileReader;
use crate::words::leading_braces;

/// Conditions within each other that are resolved.
const DEPTH_MAX: usize = 20;

/// What strings are expanded with.
pub(super) struct Expander<'a> {
    pub(super) files: &'a dyn FileReader,
    /// Names that do not change, without `$`.
    pub(super) constants: Vec<(&'static str, String)>,
}

impl Expander<'_> {
    /// The text with what is known here in place.
    pub(super) fn resolved(&self, text: &str) -> String {
        self.resolve(text, 0)
    }

    /// The text, if nothing in it depends on the message.
    pub(super) fn constant(&self, text: &str) -> Option<String> {
        let text = self.resolved(text);
        (!text.contains('$')).then(|| unescaped(&text))
    }

    fn resolve(&self, text: &str, depth: usize) -> String {
        let (mut made, mut rest) = (String::new(), text);
        while let Some(start) = rest.find('$') {
            made.push_str(&rest[..start]);
            rest = &rest[start..];
            let known = if depth < DEPTH_MAX { self.leading(rest, depth) } else { None };
            match known {
                Some((value, behind)) => {
                    made.push_str(&value);
                    rest = behind;
                }
                // Once more for each condition within it would take twice the time for each level.
                None if is_file_condition(rest) => {
                    let end = leading_braces(&rest[1..]).map_or(0, |(_, behind)| behind.len());
                    made.push_str(&rest[..rest.len() - end]);
                    rest = &rest[rest.len() - end..];
                }
                None => {
                    made.push('$');
                    rest = &rest[1..];
                }
            }
        }
        made + rest
    }

    /// The value of the item that `text` begins with, and what follows it.
    fn leading<'t>(&self, text: &'t str, depth: usize) -> Option<(String, &'t str)> {
        if let Some(behind) = text.strip_prefix("${if") {
            return self.condition(behind.trim_start(), depth);
        }
        self.constants.iter().find_map(|(name, value)| {
            let braced =
                text.strip_prefix("${").and_then(|it| it.strip_prefix(name)).and_then(|it| it.strip_prefix('}'));
            let bare = || {
                let behind = text[1..].strip_prefix(name)?;
                (!behind.starts_with(|c: char| c.is_alphanumeric() || c == '_')).then_some(behind)
            };
            braced.or_else(bare).map(|behind| (value.clone(), behind))
        })
    }

    /// `exists{FILE}{YES}{NO}}`, with `!` in front or not.
    fn condition<'t>(&self, text: &'t str, depth: usize) -> Option<(String, &'t str)> {
        let bare = text.trim_start_matches(['!', ' ']);
        let is_negated = text[..text.len() - bare.len()].contains('!');
        let (path, rest) = leading_braces(bare.strip_prefix("exists")?)?;
        let path = self.resolve(path, depth + 1);
        if path.contains('$') {
            return None;
        }
        let exists = match self.files.text(Path::new(path.trim())) {
            Ok(_) => true,
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        };
        let (yes, rest) = leading_braces(rest)?;
        let (no, rest) = leading_braces(rest).unwrap_or(("", rest));
        let rest = rest.trim_start();
        let behind = rest.strip_prefix("fail").unwrap_or(rest).trim_start().strip_prefix('}')?;
        let branch = if exists == is_negated { no } else { yes };
        Some((self.resolve(branch, depth + 1), behind))
    }
}

/// Whether the text begins with a condition about a file.
fn is_file_condition(text: &str) -> bool {
    text.strip_prefix("${if").is_some_and(|rest| rest.trim_start_matches(['!', ' ', '\t', '\n']).starts_with("exists"))
}

/// A lookup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Lookup {
    /// The key, if it is not part of the query.
    pub(super) key: String,
    /// The type, such as `lsearch` or `mysql`, without what stands before and behind it.
    pub(super) kind: String,
    /// `partial-` before the type.
    pub(super) is_partial: bool,
    /// `*` or `*@` behind the type.
    pub(super) default: String,
    /// The file or the query.
    pub(super) source: String,
    /// The string for a key that is found.
    pub(super) found: Option<String>,
}

impl Lookup {
    /// The lookup that a whole string consists of.
    pub(super) fn parse(text: &str) -> Option<Lookup> {
        let rest = text.trim().strip_prefix("${lookup")?.trim_start();
        let (key, rest) = if rest.starts_with('{') { leading_braces(rest)? } else { ("", rest) };
        let rest = rest.trim_start();
        let (kind, rest) = rest.split_at(rest.find('{')?);
        let (source, rest) = leading_braces(rest)?;
        let (found, rest) = leading_braces(rest).map_or((None, rest), |(found, rest)| (Some(found.to_owned()), rest));
        let (_, rest) = leading_braces(rest).unwrap_or(("", rest));
        let rest = rest.trim_start();
        let end = rest.strip_prefix("fail").unwrap_or(rest).trim_start();
        let lookup = Lookup { key: key.trim().to_owned(), source: source.to_owned(), found, ..Lookup::of_type(kind)? };
        (end == "}").then_some(lookup)
    }

    /// A lookup as an element of a list: `type;file or query`.
    pub(super) fn of_list_item(text: &str, key: &str) -> Option<Lookup> {
        let (kind, source) = text.split_once(';')?;
        let made = Lookup::of_type(kind.trim())?;
        Some(Lookup { key: key.to_owned(), source: source.trim().to_owned(), ..made })
    }

    /// The lookup of a condition that holds if the lookup finds something, in the forms that are in use.
    pub(super) fn of_condition(text: &str) -> Option<Lookup> {
        let text = text.trim();
        if let Some(lookup) = Lookup::parse(text) {
            let found =
                lookup.found.as_deref().is_none_or(|found| matches!(found.trim(), "yes" | "true" | "1" | "$value"));
            return found.then_some(lookup);
        }
        let rest = text.strip_prefix("${if")?.trim_start();
        let bare = rest.trim_start_matches(['!', ' ']);
        let is_negated = rest[..rest.len() - bare.len()].contains('!');
        let (one, rest) = leading_braces(bare.strip_prefix("eq")?)?;
        let (other, rest) = leading_braces(rest)?;
        let inner = if one.trim().is_empty() {
            other
        } else if other.trim().is_empty() {
            one
        } else {
            return None;
        };
        let (yes, rest) = leading_braces(rest).map_or(("true", rest), |(yes, rest)| (yes.trim(), rest));
        let (_, rest) = leading_braces(rest).unwrap_or(("", rest));
        let is_true = matches!(yes, "yes" | "true" | "1");
        let is_whole = rest.trim() == "}" && (is_true || matches!(yes, "no" | "false" | "0"));
        (is_whole && is_true == is_negated).then(|| Lookup::parse(inner)).flatten()
    }

    fn of_type(text: &str) -> Option<Lookup> {
        let text = text.trim();
        let (is_partial, text) = match text.strip_prefix("partial") {
            Some(rest) => (true, &rest[rest.find('-')? + 1..]),
            None => (false, text),
        };
        let end = text.find(['*', ',']).unwrap_or(text.len());
        let (kind, default) = text.split_at(end);
        let is_kind = !kind.is_empty() && kind.chars().all(|c| c.is_ascii_lowercase());
        is_kind.then(|| Lookup { kind: kind.to_owned(), is_partial, default: default.to_owned(), ..Lookup::default() })
    }

    /// Whether what is found is the value itself.
    pub(super) fn gives_value(&self) -> bool {
        self.found.as_deref().is_none_or(|found| matches!(found.trim(), "$value" | "${value}"))
    }
}

/// The text without the backslashes that protect characters from expansion.
fn unescaped(text: &str) -> String {
    let text = text.replace("\\N", "");
    let (mut made, mut chars) = (String::new(), text.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => made.push(chars.next().unwrap_or('\\')),
            _ => made.push(c),
        }
    }
    made
}

/// The elements of a list: at colons, or at the character that `<` names. A doubled separator stands for
/// itself. Inside of what is not expanded yet it separates nothing.
pub(super) fn list(text: &str) -> Vec<String> {
    let text = text.trim();
    let mut chars = text.chars();
    let (separator, text) = match (chars.next(), chars.next()) {
        (Some('<'), Some(c)) if c.is_ascii_punctuation() => (c, &text[2..]),
        _ => (':', text),
    };
    let (mut items, mut item, mut depth) = (Vec::new(), String::new(), 0_usize);
    let has_expansions = text.contains("${");
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '{' if has_expansions => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if c != separator || depth > 0 {
            item.push(c);
        } else if chars.next_if_eq(&separator).is_some() {
            item.push(separator);
        } else {
            items.push(std::mem::take(&mut item).trim().to_owned());
        }
    }
    // A separator at the end does not begin another element.
    items.extend((!item.trim().is_empty()).then(|| item.trim().to_owned()));
    items
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    struct OneFile;

    impl FileReader for OneFile {
        fn text(&self, path: &Path) -> io::Result<String> {
            if path == Path::new("/there") { Ok(String::new()) } else { Err(io::ErrorKind::NotFound.into()) }
        }
    }

    #[test]
    fn what_does_not_depend_on_the_message_is_known() {
        let constants = vec![("primary_hostname", "mx.example.org".to_owned())];
        let expander = Expander { files: &OneFile, constants };
        for (text, expected) in [
            ("$primary_hostname and ${primary_hostname}", Some("mx.example.org and mx.example.org")),
            ("${if exists{/there}{a}{b}} ${if !exists {/there} {a} {b}}", Some("a b")),
            ("${if exists{/none}{a}fail}x", Some("x")),
            ("\\N^a$\\N", None),
            ("a\\\\.b", Some("a\\.b")),
            ("$primary_hostnames", None),
            ("${if eq{a}{a}{b}}", None),
            ("${if exists{/there", None),
            (&"${if exists{/there}{".repeat(1000), None),
            (&format!("{}x{}", "${if exists{/there}{".repeat(1000), "}$y}".repeat(1000)), None),
        ] {
            assert_eq!(expander.constant(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_condition_that_is_not_known_stays_as_it_is() {
        let expander = Expander { files: &OneFile, constants: vec![("qualify_domain", "example.org".into())] };
        let text = "${if exists{/home/$local_part}{a}{b}}";
        assert_eq!(expander.resolved(&format!("x {text} $qualify_domain")), format!("x {text} example.org"));
    }

    #[test]
    fn lists_are_split_as_by_exim() {
        assert_eq!(list("a : b::c :"), ["a", "b:c"]);
        assert_eq!(list("<; 0.0.0.0 ; ::1"), ["0.0.0.0", "::1"]);
        assert_eq!(list(":"), [""]);
        assert_eq!(list("@ : ${lookup mysql{a:b}} : c"), ["@", "${lookup mysql{a:b}}", "c"]);
        assert!(list("  ").is_empty());
    }

    #[test]
    fn lookups_are_taken_apart() {
        let lookup = Lookup::parse("${lookup{$local_part}partial-lsearch*@{/etc/x}{$value}fail}").unwrap();
        assert_eq!(
            (&*lookup.kind, lookup.is_partial, &*lookup.default, lookup.gives_value()),
            ("lsearch", true, "*@", true)
        );
        let lookup = Lookup::parse("${lookup mysql {select a from b where c='$domain'}}").unwrap();
        assert_eq!((&*lookup.kind, &*lookup.source), ("mysql", "select a from b where c='$domain'"));
        let condition = "${if eq{}{${lookup mysql{select 1}{$value}}}{no}{yes}}";
        assert!(Lookup::of_condition(condition).is_some());
        assert!(Lookup::of_condition(&condition.replace("{no}{yes}", "{yes}{no}")).is_none());
        assert!(Lookup::parse("${lookup mysql{a}} b").is_none());
        assert!(Lookup::parse("${lookup{").is_none());
    }
}
