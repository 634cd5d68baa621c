//! Where a text has passwords. Faults show the lines that they are about, and a log may keep them for years, so a text is
//! searched for what must not be seen before anything is said of it.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::hint::did_you_mean;

/// The places of all values that a document seems to keep secret, known keys and misspelt ones.
pub(super) fn places(document: &DeTable<'_>) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    for (name, value) in document {
        if is_password(name.get_ref()) {
            places.push(value.span());
        } else {
            search(value, &mut places);
        }
    }
    places
}

fn search(value: &Spanned<DeValue<'_>>, found: &mut Vec<Range<usize>>) {
    match value.get_ref() {
        DeValue::Table(table) => found.extend(places(table)),
        DeValue::Array(elements) => elements.iter().for_each(|element| search(element, found)),
        DeValue::String(text) if has_password(text) => found.push(value.span()),
        _ => {}
    }
}

/// A file's name is no secret.
fn is_password(key: &str) -> bool {
    let key = key.to_lowercase();
    !key.ends_with("file")
        && (key.contains("pass")
            || key.ends_with("pw")
            || key.contains("secret")
            || key.contains("credential")
            || did_you_mean(&key, ["password"].into_iter()).is_some())
}

/// Whether it is a URL with a password (`scheme://user:password@host`, `?password=`), or a list of settings with one. A
/// password is taken for one whatever is in it: where an `@` stands elsewhere in a URL, it hides what need not be hidden.
pub(super) fn has_password(text: &str) -> bool {
    let url = text.split_once("://").map_or("", |(_, rest)| rest);
    let mut settings = text.split("password").skip(1);
    url.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
        || settings.any(|behind| behind.trim_start().starts_with('='))
}

/// Where a text that is not TOML seems to have secrets: behind the equals sign of a password, and in URLs; to the end of
/// the line, or of the text in three quotes that begins there.
pub(super) fn likely_places(text: &str) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    let mut start = 0;
    let mut open = None;
    for line in text.split_inclusive('\n') {
        if let Some(first) = open.map_or_else(|| likely_place(line), |_| Some(0)) {
            places.push(start + first..start + line.len());
            let behind = &line[first..];
            open = match open {
                Some(quotes) => (!behind.contains(quotes)).then_some(quotes),
                None => QUOTES.into_iter().find(|quotes| behind.matches(quotes).count() == 1),
            };
        }
        start += line.len();
    }
    places
}

/// Where in a line something secret seems to begin.
fn likely_place(line: &str) -> Option<usize> {
    let lower = line.to_ascii_lowercase();
    let behind = |mark: &str, from: usize| lower[from..].find(mark).map(|at| from + at + mark.len());
    let password = behind("pass", 0).and_then(|from| behind("=", from));
    let (key, _) = lower.split_once('=').unwrap_or_default();
    let other = is_password(key.trim()).then_some(key.len() + 1);
    [password, other, behind("://", 0)].into_iter().flatten().min()
}

/// What texts of several lines begin and end with.
const QUOTES: [&str; 2] = ["\"\"\"", "'''"];
