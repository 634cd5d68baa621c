//! The keys under which a table is asked for a subject, the most special first, as Postfix's access(5) has them. The
//! first key that is there speaks for the subject.
//!
//! | subject | keys |
//! |---|---|
//! | 192.0.2.1 | `192.0.2.1`, `192.0.2`, `192.0`, `192` |
//! | 2001:db8::1 | `2001:db8::1`, `2001:db8`, `2001` |
//! | the name mx.example.org | `mx.example.org`, `.example.org`, `.org` |
//! | bob@a.example.org | `bob@a.example.org`, `@a.example.org`, `a.example.org`, `.example.org`, `.org`, `bob@` |
//! | the null sender | `<>` |

use std::net::IpAddr;

use mail::Address;

use super::{Subject, Visit};

/// Labels of a name beyond these are no reason to ask more.
const PARENTS_MAX: usize = 10;

/// The keys of a subject; none where it is not known.
pub(super) fn of(subject: Subject, visit: &Visit<'_>) -> Vec<String> {
    match subject {
        Subject::Client => visit.client.map(networks).unwrap_or_default(),
        Subject::Helo => visit.helo.map(names).unwrap_or_default(),
        Subject::Sender => match visit.sender {
            Some(Some(sender)) => addresses(sender),
            Some(None) => vec!["<>".into()],
            None => Vec::new(),
        },
        Subject::Recipient => visit.recipient.map(addresses).unwrap_or_default(),
    }
}

fn networks(client: IpAddr) -> Vec<String> {
    let mark = if client.is_ipv4() { '.' } else { ':' };
    let text = client.to_string();
    let mut keys = vec![text.clone()];
    let mut rest = &*text;
    while let Some((shorter, _)) = rest.rsplit_once(mark) {
        if !shorter.is_empty() && !shorter.ends_with(mark) {
            keys.push(shorter.to_owned());
        }
        rest = shorter;
    }
    keys
}

fn names(name: &str) -> Vec<String> {
    let mut keys = vec![name.to_owned()];
    // An address literal has no parents.
    if !name.starts_with('[') {
        keys.extend(parents(name));
    }
    keys
}

fn addresses(address: &Address) -> Vec<String> {
    let (local, domain) = (address.local(), address.domain());
    let mut keys = vec![address.as_str().to_owned(), format!("@{domain}")];
    keys.extend(names(domain));
    keys.push(format!("{local}@"));
    keys
}

fn parents(name: &str) -> impl Iterator<Item = String> {
    let dots = name.match_indices('.').map(|(place, _)| place).filter(|place| *place > 0 && place + 1 < name.len());
    dots.map(|place| name[place..].to_owned()).take(PARENTS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(subject: Subject, text: &str) -> String {
        let address: Option<Address> = text.parse().ok();
        let visit = Visit {
            client: text.parse().ok(),
            helo: Some(text),
            sender: Some(address.as_ref()),
            recipient: address.as_ref(),
            ..Visit::default()
        };
        of(subject, &visit).join(" ")
    }

    #[test]
    fn keys_go_from_the_special_to_the_general() {
        use Subject::*;
        for (subject, text, expected) in [
            (Client, "192.0.2.1", "192.0.2.1 192.0.2 192.0 192"),
            (Client, "2001:db8::1", "2001:db8::1 2001:db8 2001"),
            (Client, "::1", "::1"),
            (Helo, "mx.example.org", "mx.example.org .example.org .org"),
            (Helo, "[192.0.2.1]", "[192.0.2.1]"),
            (Helo, "localhost", "localhost"),
            (Helo, "a..b.", "a..b. ..b. .b."),
            (Sender, "bob@a.example.org", "bob@a.example.org @a.example.org a.example.org .example.org .org bob@"),
            (Sender, "", "<>"),
            (Recipient, "bob@[192.0.2.1]", "bob@[192.0.2.1] @[192.0.2.1] [192.0.2.1] bob@"),
        ] {
            assert_eq!(keys(subject, text), expected, "{text}");
        }
        assert_eq!(of(Subject::Client, &Visit::default()), [""; 0]);
    }
}
