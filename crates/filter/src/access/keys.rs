//! The lookup keys of a subject, most specific first, as in Postfix's access(5). The first key
//! found decides.
//!
//! | subject | keys |
//! |---|---|
//! | 192.0.2.1 | `192.0.2.1`, `192.0.2`, `192.0`, `192` |
//! | 2001:db8::1 | `2001:db8::1`, `2001:db8:0:0:0:0:0`, ..., `2001:db8:0`, `2001:db8`, `2001` |
//! | host name mx.example.org | `mx.example.org`, `.example.org`, `.org` |
//! | the client's name | as a host name; then as the client's address, where the table may have both |
//! | bob@a.example.org | `bob@a.example.org`, `@a.example.org`, the keys of the domain, `bob@` |
//! | bob+x@a.example.org, tag `+x` | as above, with each local part: first with the tag, then without |
//! | the null sender | `<>` |
//!
//! A table of patterns is queried only with the whole subject as received, including its tag.
//!
//! A non-ASCII domain is looked up as received, followed by its other form: Unicode or A-labels.
//!
//! Postfix cuts an IPv6 address at the colons of its short form, so that `2001::1` also means all
//! addresses from `2001:0:0:1::` on. Here a network has all its groups, and no double colon.

use std::borrow::Cow;
use std::net::IpAddr;

use lookup::directory::other_idn_form;
use mail::Address;

use super::RuleSubject;
use crate::check::SessionInfo;

/// For names with more labels, only the shortest parent domains are looked up: those are registered
/// to an owner, who may add any number of labels in front.
const PARENTS_MAX: usize = 10;

/// The keys of a subject; empty if it is unknown.
pub(super) fn subject_keys(subject: RuleSubject, info: &SessionInfo<'_>) -> Vec<String> {
    match subject {
        RuleSubject::Client => info.client.map(network_keys).unwrap_or_default(),
        RuleSubject::Helo => info.helo.map(|helo| name_keys(&normalize_helo(helo))).unwrap_or_default(),
        RuleSubject::Sender => match info.sender {
            Some(Some(sender)) => address_keys(sender, info.sender_untagged),
            Some(None) => vec!["<>".into()],
            None => Vec::new(),
        },
        RuleSubject::Recipient => {
            info.recipient.map(|recipient| address_keys(recipient, info.recipient_untagged)).unwrap_or_default()
        }
        // No table has these.
        RuleSubject::RecipientCount | RuleSubject::Verdict => Vec::new(),
    }
}

/// The subject as a table of patterns is queried for it; None if it is unknown.
pub(super) fn subject_text(subject: RuleSubject, info: &SessionInfo<'_>) -> Option<String> {
    match subject {
        RuleSubject::Client => info.client.map(|client| client.to_string()),
        RuleSubject::Helo => info.helo.map(|helo| normalize_helo(helo).into_owned()),
        RuleSubject::Sender => info.sender.map(|sender| sender.map_or_else(|| "<>".into(), Address::to_string)),
        RuleSubject::Recipient => info.recipient.map(Address::to_string),
        RuleSubject::RecipientCount | RuleSubject::Verdict => None,
    }
}

/// The keys of a client's name, and then of its address if that is given; only the whole ones for a table
/// of patterns.
pub(super) fn client_name_keys(name: &str, client: Option<IpAddr>, whole_only: bool) -> Vec<String> {
    if whole_only {
        return std::iter::once(name.to_owned()).chain(client.map(|client| client.to_string())).collect();
    }
    name_keys(name).into_iter().chain(client.into_iter().flat_map(network_keys)).collect()
}

/// The HELO name as rules see it: in lower case and without a trailing dot (RFC 1034 section 3.1).
/// Otherwise a client could evade a rule by changing the spelling.
pub(super) fn normalize_helo(helo: &str) -> Cow<'_, str> {
    let name = helo.strip_suffix('.').filter(|name| !name.is_empty()).unwrap_or(helo);
    match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => name.to_ascii_lowercase().into(),
        false => name.into(),
    }
}

fn network_keys(client: IpAddr) -> Vec<String> {
    let (whole, mark) = match client {
        IpAddr::V4(v4) => (v4.to_string(), '.'),
        IpAddr::V6(v6) => (v6.segments().map(|group| format!("{group:x}")).join(":"), ':'),
    };
    let ends = whole.match_indices(mark).map(|(place, _)| whole[..place].to_owned());
    let mut keys: Vec<String> = ends.chain([client.to_string()]).collect();
    keys.reverse();
    keys
}

fn name_keys(name: &str) -> Vec<String> {
    let other = other_idn_form(name);
    let spellings = || std::iter::once(name).chain(other.as_deref());
    let mut keys: Vec<String> = spellings().map(str::to_owned).collect();
    // An address literal has no parent domains.
    if !name.starts_with('[') {
        let mut all: Vec<_> = spellings().map(parent_domains).collect();
        while let Some(parent) = all[0].next() {
            keys.push(parent.clone());
            let others: Vec<String> = all[1..].iter_mut().filter_map(Iterator::next).collect();
            keys.extend(others.into_iter().filter(|other| *other != parent));
        }
    }
    keys
}

fn address_keys(address: &Address, untagged: Option<&Address>) -> Vec<String> {
    let domain = address.domain();
    let other = other_idn_form(domain);
    let spellings = || std::iter::once(domain).chain(other.as_deref());
    let locals = || std::iter::once(address).chain(untagged).map(Address::local_part);
    let mut keys: Vec<String> =
        locals().flat_map(|local| spellings().map(move |domain| format!("{local}@{domain}"))).collect();
    keys.extend(spellings().map(|domain| format!("@{domain}")));
    keys.extend(name_keys(domain));
    keys.extend(locals().map(|local| format!("{local}@")));
    keys
}

fn parent_domains(name: &str) -> impl Iterator<Item = String> + '_ {
    let dots = name.match_indices('.').map(|(place, _)| place).filter(|place| *place > 0 && place + 1 < name.len());
    let beyond = dots.clone().count().saturating_sub(PARENTS_MAX);
    dots.skip(beyond).map(|place| name[place..].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(subject: RuleSubject, text: &str) -> String {
        let address: Option<Address> = text.parse().ok();
        let info = SessionInfo {
            client: text.parse().ok(),
            helo: Some(text),
            sender: Some(address.as_ref()),
            recipient: address.as_ref(),
            ..SessionInfo::default()
        };
        subject_keys(subject, &info).join(" ")
    }

    #[test]
    fn keys_go_from_the_special_to_the_general() {
        use RuleSubject::*;
        for (subject, text, expected) in [
            (Client, "192.0.2.1", "192.0.2.1 192.0.2 192.0 192"),
            (
                Client,
                "2001:db8::1",
                "2001:db8::1 2001:db8:0:0:0:0:0 2001:db8:0:0:0:0 2001:db8:0:0:0 2001:db8:0:0 2001:db8:0 2001:db8 2001",
            ),
            (Client, "::1", "::1 0:0:0:0:0:0:0 0:0:0:0:0:0 0:0:0:0:0 0:0:0:0 0:0:0 0:0 0"),
            (Helo, "mx.example.org", "mx.example.org .example.org .org"),
            (Helo, "[192.0.2.1]", "[192.0.2.1]"),
            (Helo, "localhost", "localhost"),
            (Helo, "MX.Example.ORG.", "mx.example.org .example.org .org"),
            (Helo, "a..b..", "a..b. ..b. .b."),
            (Helo, ".", "."),
            (Sender, "bob@a.example.org", "bob@a.example.org @a.example.org a.example.org .example.org .org bob@"),
            (Sender, "", "<>"),
            (Recipient, "bob@[192.0.2.1]", "bob@[192.0.2.1] @[192.0.2.1] [192.0.2.1] bob@"),
            (
                Recipient,
                "b@a.bücher.example",
                "b@a.bücher.example b@a.xn--bcher-kva.example @a.bücher.example @a.xn--bcher-kva.example \
                 a.bücher.example a.xn--bcher-kva.example .bücher.example .xn--bcher-kva.example .example b@",
            ),
            (
                Recipient,
                "b@xn--bcher-kva.example",
                "b@xn--bcher-kva.example b@bücher.example @xn--bcher-kva.example @bücher.example \
                 xn--bcher-kva.example bücher.example .example b@",
            ),
        ] {
            assert_eq!(keys(subject, text), expected, "{text}");
        }
        assert_eq!(subject_keys(RuleSubject::Client, &SessionInfo::default()), [""; 0]);
    }

    /// `2001::1` also matched `2001::1:a:b:c:d`, which is in another network.
    #[test]
    fn no_address_is_a_network_of_others() {
        for client in ["2001::1:a:b:c:d", "1::2:0:0:0", "1:2:3:4:5:6:7:8"] {
            let found = keys(RuleSubject::Client, client);
            assert!(found.split(' ').skip(1).all(|network| network.parse::<IpAddr>().is_err()), "{found}");
        }
    }

    /// `bob@example.org` did not match `bob+x@example.org`, which is delivered to the same mailbox.
    #[test]
    fn a_tag_hides_no_mailbox() {
        let (tagged, untagged) = ("bob+x@example.org".parse().unwrap(), "bob@example.org".parse().unwrap());
        let expected = "bob+x@example.org bob@example.org @example.org example.org .org bob+x@ bob@";
        let recipient =
            SessionInfo { recipient: Some(&tagged), recipient_untagged: Some(&untagged), ..SessionInfo::default() };
        assert_eq!(subject_keys(RuleSubject::Recipient, &recipient).join(" "), expected);
        let sender =
            SessionInfo { sender: Some(Some(&tagged)), sender_untagged: Some(&untagged), ..SessionInfo::default() };
        assert_eq!(subject_keys(RuleSubject::Sender, &sender).join(" "), expected);
    }

    /// `.bad.example` was not looked up if enough labels came before it.
    #[test]
    fn labels_in_front_hide_no_parent() {
        let found = keys(RuleSubject::Helo, "a.b.c.d.e.f.g.h.i.j.k.bad.example");
        let parents: Vec<&str> = found.split(' ').skip(1).collect();
        assert_eq!((parents.len(), parents[0]), (PARENTS_MAX, ".d.e.f.g.h.i.j.k.bad.example"));
        assert_eq!(parents[8..], [".bad.example", ".example"]);
    }
}
