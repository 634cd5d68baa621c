//! Hints for wrong values: a word of another server that has a different name here, a missing unit,
//! Postfix's brackets around a host. A value is only suggested if it would be valid.

use std::borrow::Cow;
use std::net::IpAddr;

use toml::de::DeValue;

use super::value_kind::ValueKind;

/// Words of other servers, the word used here, and a remark about the difference.
const FOREIGN_WORDS: &[(&[&str], &str, &str)] = &[
    (&["reject", "deny", "block", "drop", "fail"], "refuse", ""),
    (&["permit", "allow", "ok", "pass"], "accept", ""),
    (&["tempfail", "greylist", "defer_if_permit", "defer_if_reject", "try_again"], "defer", ""),
    (&["quarantine"], "hold", ""),
    (
        &["hash", "btree", "lmdb", "dbm", "sdbm", "texthash"],
        "text",
        "it reads the source file itself, without postmap; for large tables, use \"cdb\"",
    ),
    (&["pcre", "regex", "regexps"], "regexp", ""),
    (&["inline", "list"], "static", ""),
    (&["union", "pipemap", "unionmap"], "chain", ""),
    (&["pgsql", "postgresql", "psql"], "postgres", ""),
    (&["mariadb"], "mysql", ""),
    (&["valkey", "keydb"], "redis", ""),
    (&["sqlite3"], "sqlite", ""),
    (&["ldaps", "ldapi", "ad"], "ldap", "the scheme of `url` selects the connection"),
    (
        &["smtps", "submissions", "ssmtp", "smtp-tls"],
        "submission",
        "with tls = \"implicit\" it is the protocol of port 465",
    ),
    (&["smtpd", "esmtp"], "smtp", ""),
    (&["may", "opportunistic", "optional"], "offered", ""),
    (&["may", "opportunistic", "optional"], "starttls", ""),
    (&["encrypt", "mandatory", "always", "enforce", "verify"], "required", ""),
    (&["wrappermode", "smtps", "ssl", "tls"], "implicit", ""),
    (&["off", "no", "disabled"], "none", ""),
    (&["off", "no", "none", "disabled"], "never", ""),
    (&["subtree"], "sub", ""),
    (&["onelevel", "one-level"], "one", ""),
    (&["client", "connection"], "connect", ""),
    (&["ehlo"], "helo", ""),
    (&["sender", "mailfrom", "mail_from"], "mail", ""),
    (&["recipient", "rcpt_to"], "rcpt", ""),
];

/// A hint for an unknown word.
pub(super) fn suggest_word<'a>(found: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<String> {
    let found = found.trim().to_ascii_lowercase();
    let other = FOREIGN_WORDS
        .iter()
        .find(|(words, ours, _)| words.contains(&&*found) && known.clone().any(|known| known == *ours));
    match other {
        Some((_, ours, "")) => Some(format!("use {ours:?}")),
        Some((_, ours, more)) => Some(format!("use {ours:?}: {more}")),
        None => did_you_mean(&found, known),
    }
}

/// A hint for an invalid value that would be valid in another spelling.
pub(super) fn suggest_value<T>(value: &DeValue<'_>, kind: &ValueKind<T>) -> Option<String> {
    let taken = |other: &DeValue<'_>| (kind.parse)(other).is_some();
    match value {
        DeValue::String(text) => {
            let flag = as_flag(text).filter(|flag| taken(&DeValue::Boolean(*flag)));
            let other =
                alternatives(text.trim()).into_iter().find(|other| taken(&DeValue::String(Cow::Borrowed(other))));
            flag.map(|flag| format!("did you mean `{flag}`, without quotes?"))
                .or_else(|| other.map(|other| format!("did you mean {other:?}?")))
        }
        DeValue::Integer(number) => {
            // A plain number is valid as a size; a time always has a unit. A kind that accepts any
            // text is not a time.
            let other = format!("{}s", number.as_str());
            let is_time = [&*other, "s"].map(|text| taken(&DeValue::String(Cow::Borrowed(text)))) == [true, false];
            is_time.then(|| format!("did you mean {other:?}?"))
        }
        _ => None,
    }
}

fn as_flag(text: &str) -> Option<bool> {
    match &*text.to_ascii_lowercase() {
        "yes" | "true" | "on" | "1" => Some(true),
        "no" | "false" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// Possible meanings, the likeliest first.
fn alternatives(text: &str) -> Vec<String> {
    let united = with_unit(text).into_iter().flatten().chain(as_rate(text));
    let hops = drop_transport(text).into_iter().chain(drop_brackets(text)).chain(add_brackets(text));
    united.chain(hops).chain(as_network(text)).collect()
}

/// The number with similar units: `50M` may be `50MiB`, `5 min` is `5m`.
fn with_unit(text: &str) -> Option<impl Iterator<Item = String>> {
    let end = text.find(|c: char| !c.is_ascii_digit()).filter(|end| *end > 0)?;
    let (number, unit) = text.split_at(end);
    let units: &[&str] = match &*unit.trim().to_ascii_lowercase() {
        "b" | "byte" | "bytes" => &["B"],
        "k" | "ki" | "kib" => &["KiB"],
        "kb" => &["KB"],
        "m" | "mi" | "mib" => &["MiB", "m"],
        "mb" => &["MB"],
        "g" | "gi" | "gib" => &["GiB"],
        "gb" => &["GB"],
        "t" | "ti" | "tib" => &["TiB"],
        "tb" => &["TB"],
        "msec" | "msecs" | "millis" | "milliseconds" => &["ms"],
        "s" | "sec" | "secs" | "second" | "seconds" => &["s"],
        "min" | "mins" | "minute" | "minutes" => &["m"],
        "h" | "hr" | "hrs" | "hour" | "hours" => &["h"],
        "d" | "day" | "days" => &["d"],
        "w" | "week" | "weeks" => return weeks_as_days(number).map(|days| vec![days].into_iter()),
        _ => return None,
    };
    Some(units.iter().map(|unit| format!("{number}{unit}")).collect::<Vec<_>>().into_iter())
}

fn weeks_as_days(number: &str) -> Option<String> {
    let days = number.parse::<u64>().ok()?.checked_mul(7)?;
    Some(format!("{days}d"))
}

/// `30/min` is `30/m`.
fn as_rate(text: &str) -> Option<String> {
    let (count, per) = text.split_once('/')?;
    let unit = match per.trim().trim_start_matches('1').to_ascii_lowercase().as_str() {
        "sec" | "second" => "s",
        "min" | "minute" => "m",
        "hour" | "hr" => "h",
        _ => return None,
    };
    Some(format!("{}/{unit}", count.trim()))
}

/// `smtp:[host]:25` and `lmtp:unix:/path`: here the transport has its own key.
fn drop_transport(text: &str) -> Vec<String> {
    let Some((transport, rest)) = text.split_once(':') else { return Vec::new() };
    let is_transport = ["smtp", "lmtp", "relay", "inet"].contains(&transport) && rest.contains([':', '[']);
    match is_transport {
        true => std::iter::once(rest.to_owned()).chain(drop_brackets(rest)).collect(),
        false => Vec::new(),
    }
}

/// `[host]:587`: Postfix's brackets turn off MX lookups, which hosts do not have here anyway.
fn drop_brackets(text: &str) -> Option<String> {
    let (host, port) = text.strip_prefix('[')?.split_once(']')?;
    Some(format!("{host}{port}"))
}

/// An IPv6 address needs brackets to separate it from its port.
fn add_brackets(text: &str) -> Option<String> {
    text.parse::<IpAddr>().ok().map(|address| format!("[{address}]"))
}

/// The network of an address with bits set beyond the prefix.
fn as_network(text: &str) -> Option<String> {
    let (address, prefix) = text.split_once('/')?;
    let (address, prefix) = (address.parse::<IpAddr>().ok()?, prefix.parse::<u32>().ok()?);
    Some(match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32u32.checked_sub(prefix)?).unwrap_or(0);
            format!("{}/{prefix}", std::net::Ipv4Addr::from_bits(v4.to_bits() & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128u32.checked_sub(prefix)?).unwrap_or(0);
            format!("{}/{prefix}", std::net::Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    })
}

/// `did you mean ...?`, if a known word is similar enough.
pub(super) fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let far = word.chars().count().min(24) / 3 + 1;
    let (distance, nearest) = known.map(|known| (edit_distance(word, known), known)).min()?;
    (distance <= far && distance < nearest.chars().count()).then(|| format!("did you mean `{nearest}`?"))
}

/// The number of characters to insert, delete or replace to turn one word into the other
/// (Levenshtein). Longer words than any key are simply far away.
fn edit_distance(from: &str, to: &str) -> usize {
    const OCTETS_MAX: usize = 64;
    if from.len() > OCTETS_MAX || to.len() > OCTETS_MAX {
        return usize::MAX;
    }
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (line, a) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], line + 1);
        for (column, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::super::value_kind;
    use super::*;

    fn advice<T>(text: &str, kind: &ValueKind<T>) -> Option<String> {
        suggest_value(&DeValue::String(text.into()), kind)
    }

    #[test]
    fn another_spelling_is_proposed_where_it_would_be_taken() {
        let proposed = |advice: Option<String>| advice.unwrap_or_default();
        for (text, other) in [("50M", "50MiB"), ("10mb", "10MB"), ("64 k", "64KiB"), ("5 Bytes", "5B")] {
            assert_eq!(proposed(advice(text, &value_kind::SIZE)), format!("did you mean {other:?}?"));
        }
        for (text, other) in [("5min", "5m"), ("30 sec", "30s"), ("2 hours", "2h"), ("1w", "7d"), ("5M", "5m")] {
            assert_eq!(proposed(advice(text, &value_kind::DURATION)), format!("did you mean {other:?}?"));
        }
        for (text, other) in [
            ("[relay.example]:587", "relay.example:587"),
            ("[relay.example]", "relay.example"),
            ("smtp:[relay.example]:587", "relay.example:587"),
            ("lmtp:unix:/run/lmtp", "unix:/run/lmtp"),
            ("relay:[192.0.2.1]:25", "[192.0.2.1]:25"),
            ("::1", "[::1]"),
        ] {
            assert_eq!(proposed(advice(text, &value_kind::NEXT_HOP)), format!("did you mean {other:?}?"));
        }
        for (text, other) in [("10.1.2.3/8", "10.0.0.0/8"), ("2001:db8::1/32", "2001:db8::/32")] {
            assert_eq!(proposed(advice(text, &value_kind::NETWORK)), format!("did you mean {other:?}?"));
        }
        assert_eq!(proposed(advice("100/min", &value_kind::RATE)), "did you mean \"100/m\"?");
        assert_eq!(proposed(advice("yes", &value_kind::FLAG)), "did you mean `true`, without quotes?");
        assert_eq!(advice("relay:port", &value_kind::NEXT_HOP), None);
        for text in ["", "half", "-5M", "10/8", "[", "99999999999999999999M", "10.0.0.1/33"] {
            assert_eq!(advice(text, &value_kind::SIZE), None, "{text}");
            assert_eq!(advice(text, &value_kind::NETWORK), None, "{text}");
        }
    }

    #[test]
    fn a_word_of_another_server_is_told_with_ours() {
        let types = ["text", "cdb", "regexp", "static", "postgres"];
        let of_types = |found| suggest_word(found, types.into_iter());
        assert!(of_types("hash").unwrap().starts_with("use \"text\": it reads the source"));
        assert_eq!(of_types("PCRE").as_deref(), Some("use \"regexp\""));
        assert_eq!(of_types("colour"), None);
        assert_eq!(of_types("tex").as_deref(), Some("did you mean `text`?"));
        assert_eq!(suggest_word("reject", ["accept", "refuse"].into_iter()).as_deref(), Some("use \"refuse\""));
    }

    #[test]
    fn advice_is_given_only_where_a_word_is_near() {
        let known = ["hostname", "user", "threads"];
        let advice = |word| did_you_mean(word, known.into_iter());
        assert_eq!(advice("hostnam").as_deref(), Some("did you mean `hostname`?"));
        assert_eq!(advice("host_name").as_deref(), Some("did you mean `hostname`?"));
        assert_eq!(advice("thraeds").as_deref(), Some("did you mean `threads`?"));
        assert_eq!(advice("colour"), None);
        assert_eq!(advice(&"x".repeat(10_000)), None);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
    }
}
