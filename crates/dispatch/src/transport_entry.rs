//! An entry of a table of routes, as in Postfix's transport(5): `transport:nexthop`. Both parts may be
//! empty, and without a colon all is the transport.
//!
//! | entry | meaning |
//! |---|---|
//! | `:` | nothing changes |
//! | `:nexthop` | the transport `smtp` with this next hop |
//! | `lists:[192.0.2.1]:24` | the transport `lists`; brackets: no MX lookup |
//! | `smtp:example.net` | the MX hosts of this domain, over transports of type smtp; else the host |
//! | `lists:unix:/run/lmtp` | a unix socket |
//! | `error:5.1.1 text`, `retry:text` | a reply, permanent or temporary |
//!
//! Names that Postfix always has mean the same here unless they are configured: `relay` is `smtp`, and
//! `local` and `virtual` are `maildir`. Of several next hops the first counts.

use std::collections::HashMap;
use std::net::IpAddr;

use mail::{EnhancedCode, Reply};
use route::{FixedHop, RouteKey};

/// The transport of entries that name none, and of replies.
const SMTP: &str = "smtp";
const MAILDIR: &str = "maildir";
/// Characters of the text of `error:` that the reply has at most.
const REPLY_CHARS_MAX: usize = 300;
/// The reply of `error:` without a text.
const UNDELIVERABLE: &str = "Address is undeliverable";

/// What an entry means depends on its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportTraits {
    /// A next hop without brackets is a domain, whose MX hosts are meant.
    pub by_mx: bool,
    /// It delivers to Maildirs.
    pub is_maildir: bool,
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TransportEntry {
    /// The route is as without the entry.
    Unchanged,
    /// This transport.
    Route(RouteKey),
}

/// Reads an entry.
///
/// # Errors
///
/// Its transport is unknown, or its next hop is invalid.
pub(crate) fn parse(
    entry: &str,
    transports: &HashMap<Box<str>, TransportTraits>,
) -> Result<TransportEntry, &'static str> {
    let (name, next_hop) = entry.trim().split_once(':').unwrap_or((entry.trim(), ""));
    let (name, next_hop) = (name.trim(), next_hop.trim());
    let (name, traits) = match (name, transports.get(name)) {
        ("", _) if next_hop.is_empty() => return Ok(TransportEntry::Unchanged),
        (name, Some(traits)) => (name, Some(traits)),
        ("error", None) => return Ok(reply_entry(550, next_hop)),
        ("retry", None) => return Ok(reply_entry(450, next_hop)),
        ("" | "relay", None) => (SMTP, transports.get(SMTP)),
        ("local" | "virtual", None) => (MAILDIR, transports.get(MAILDIR)),
        (_, None) => return Err("unknown transport"),
    };
    let traits = traits.ok_or("unknown transport")?;
    let first = next_hop.split([',', ' ', '\t']).find(|hop| !hop.is_empty());
    let next_hop = first.map(|hop| parse_next_hop(hop, traits.by_mx).ok_or("invalid next hop")).transpose()?;
    Ok(TransportEntry::Route(RouteKey::new(name, next_hop.as_ref())))
}

/// A next hop in Postfix's notation.
fn parse_next_hop(text: &str, by_mx: bool) -> Option<FixedHop> {
    let text = text.strip_prefix("inet:").unwrap_or(text);
    if text.starts_with("unix:") {
        return text.parse().ok();
    }
    let Some((host, port)) = text.strip_prefix('[').and_then(|text| text.split_once(']')) else {
        let is_address = text.split(':').next().is_some_and(|host| host.parse::<IpAddr>().is_ok());
        return if by_mx && !is_address { format!("mx:{text}").parse().ok() } else { text.parse().ok() };
    };
    match host.parse::<IpAddr>() {
        Ok(_) => text.parse().ok(),
        Err(_) => format!("{host}{port}").parse().ok(),
    }
}

/// The text may start with an enhanced status code; the class is that of the reply.
fn reply_entry(code: u16, text: &str) -> TransportEntry {
    let class = if code < 500 { 4 } else { 5 };
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let (enhanced, text) = match word.parse::<EnhancedCode>() {
        Ok(EnhancedCode(_, subject, detail)) => (EnhancedCode(class, subject, detail), rest.trim()),
        Err(_) => (EnhancedCode(class, 0, 0), text),
    };
    let sound = |c: char| if (' '..='~').contains(&c) { c } else { '?' };
    let text: String = text.chars().map(sound).take(REPLY_CHARS_MAX).collect();
    let text = if text.is_empty() { UNDELIVERABLE.to_owned() } else { text };
    TransportEntry::Route(RouteKey::new(SMTP, Some(&FixedHop::Reply(Reply::new(code, enhanced, text)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entry as the front of a destination; `None`: unchanged.
    fn read(entry: &str) -> Result<Option<String>, &'static str> {
        let traits = |by_mx, is_maildir| TransportTraits { by_mx, is_maildir };
        let transports = [
            ("smtp".into(), traits(true, false)),
            ("lists".into(), traits(false, false)),
            ("maildir".into(), traits(false, true)),
        ];
        Ok(match parse(entry, &transports.into())? {
            TransportEntry::Unchanged => None,
            TransportEntry::Route(key) => Some(key.to_string()),
        })
    }

    #[test]
    fn an_entry_names_a_transport_and_a_next_hop() {
        for (entry, expected) in [
            (":", None),
            ("", None),
            ("smtp", Some("smtp>")),
            ("smtp:", Some("smtp>")),
            (":[relay.example]:587", Some("smtp>relay.example:587")),
            ("smtp:example.net", Some("smtp>mx:example.net")),
            ("smtp:example.net:587", Some("smtp>mx:example.net:587")),
            ("relay:[192.0.2.1]", Some("smtp>[192.0.2.1]")),
            ("smtp:192.0.2.1:25", Some("smtp>[192.0.2.1]:25")),
            ("smtp:[2001:db8::1]:25", Some("smtp>[2001:db8::1]:25")),
            ("lists:host.example:24", Some("lists>host.example:24")),
            ("lists:inet:127.0.0.1:8024", Some("lists>[127.0.0.1]:8024")),
            ("lists:unix:/run/lmtp", Some("lists>unix:/run/lmtp")),
            ("smtp:[a.example], [b.example]", Some("smtp>a.example")),
            ("virtual:", Some("maildir>")),
            ("error:5.1.1 gone: away", Some("smtp>550 5.1.1 gone: away")),
            ("retry:b\u{e4}d", Some("smtp>450 4.0.0 b?d")),
            ("error:", Some("smtp>550 5.0.0 Address is undeliverable")),
        ] {
            assert_eq!(read(entry), Ok(expected.map(str::to_owned)), "{entry}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error_for_the_log() {
        assert_eq!(read("uucp:gate"), Err("unknown transport"));
        for entry in ["smtp:a b..c:", "smtp:[a b]", "smtp:host:port", "lists:unix:run/lmtp"] {
            match read(entry) {
                Err("invalid next hop") => {}
                // White space separates next hops.
                other => assert!(entry.contains(' '), "{entry}: {other:?}"),
            }
        }
    }
}
