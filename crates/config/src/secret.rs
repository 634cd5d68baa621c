//! Finds passwords in a configuration text. Errors show the lines that they are about, and logs
//! keep them for years, so secrets are masked first.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::mask_secrets;
use super::hint::did_you_mean;

/// A configuration text for the screen: an asterisk for each byte of what looks like a secret. Lines and their number
/// stay the same.
pub fn without_secrets(text: &str) -> String {
    mask_secrets(text, &likely_secret_spans(text))
}

/// The spans of all values that look secret, under known keys and misspelled ones.
pub(super) fn secret_spans(document: &DeTable<'_>) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    for (name, value) in document {
        if is_password(name.get_ref()) {
            places.push(value.span());
        } else {
            collect_secrets(value, &mut places);
        }
    }
    places
}

fn collect_secrets(value: &Spanned<DeValue<'_>>, found: &mut Vec<Range<usize>>) {
    match value.get_ref() {
        DeValue::Table(table) => found.extend(secret_spans(table)),
        DeValue::Array(elements) => elements.iter().for_each(|element| collect_secrets(element, found)),
        DeValue::String(text) if has_password(text) => found.push(value.span()),
        _ => {}
    }
}

/// The name of a password file is not secret.
fn is_password(key: &str) -> bool {
    let key = key.to_lowercase();
    !key.ends_with("file")
        && (key.contains("pass")
            || key.ends_with("pw")
            || key.contains("secret")
            || key.contains("credential")
            || did_you_mean(&key, ["password"].into_iter()).is_some())
}

/// Whether this is a URL with a password (`scheme://user:password@host`, `?password=`), or libpq
/// settings with one. Passwords may contain any character, so an `@` later in the URL hides more
/// than needed.
pub(super) fn has_password(text: &str) -> bool {
    let url = text.split_once("://").map_or("", |(_, rest)| rest);
    let mut settings = text.split("password").skip(1);
    url.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
        || settings.any(|behind| behind.trim_start().starts_with('='))
}

/// Likely secrets in a text that is not TOML: after the equals sign of a password, and in URLs, up
/// to the end of the line or of the multi-line string that starts there.
pub(super) fn likely_secret_spans(text: &str) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    let mut start = 0;
    let mut open = None;
    for line in text.split_inclusive('\n') {
        if let Some(first) = open.map_or_else(|| likely_secret_start(line), |_| Some(0)) {
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

/// Where a secret may start in a line.
fn likely_secret_start(line: &str) -> Option<usize> {
    let lower = line.to_ascii_lowercase();
    let behind = |mark: &str, from: usize| lower[from..].find(mark).map(|at| from + at + mark.len());
    let password = behind("pass", 0).and_then(|from| behind("=", from));
    let (key, _) = lower.split_once('=').unwrap_or_default();
    let other = is_password(key.trim()).then_some(key.len() + 1);
    [password, other, behind("://", 0)].into_iter().flatten().min()
}

/// The delimiters of multi-line strings.
const QUOTES: [&str; 2] = ["\"\"\"", "'''"];
