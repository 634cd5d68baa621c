//! Whom an address means, before the directory is asked, and who is meant when it has no good answer. Sessions, mail from
//! programs here and `mailrace explain` all resolve addresses by these two functions.
//!
//! | address | means |
//! |---|---|
//! | `postmaster@` the name of this host, where that is no domain of ours | the host's postmaster |
//! | anybody at a literal of an address of this host | the same mailbox at the postmaster's domain |
//! | anything else | itself |
//!
//! A host recognises the literals of its own addresses (RFC 1123 section 5.2.17); of these the one counts under which the
//! client came.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lookup::directory::{Final, Resolution};
use mail::Address;

use crate::Desk;

impl Desk {
    /// Whom the address means for a client that came under `own_address`.
    pub async fn meant<'a>(&'a self, address: &'a Address, own_address: Option<IpAddr>) -> Cow<'a, Address> {
        if self.is_own_postmaster(address).await {
            return Cow::Borrowed(&self.postmaster);
        }
        match literal(address.domain()) {
            Some(named) if Some(named) == own_address => at_domain(address, self.postmaster.domain()),
            _ => Cow::Borrowed(address),
        }
    }

    /// Who gets the mail for an address that [`Desk::meant`] returned. The postmaster's mail is always taken (RFC 5321
    /// section 4.5.1): if his aliases lead nowhere, it stays in his own mailbox.
    pub async fn resolve(&self, asked: &Address) -> Resolution {
        match self.directory.resolve(asked).await {
            Resolution::TooDeep | Resolution::TooMany if is_postmaster(asked) => {
                Resolution::Local(vec![own_mailbox(asked)])
            }
            other => other,
        }
    }

    /// The machine makes `<postmaster>` the postmaster of this host, whose name need not be a domain of ours. While nobody
    /// can say whether it is one, he is reached by the other way.
    async fn is_own_postmaster(&self, address: &Address) -> bool {
        is_postmaster(address)
            && address.domain().eq_ignore_ascii_case(&self.hostname)
            && !self.directory.domain(address.domain()).await.is_ok_and(|domain| domain.is_some())
    }
}

fn is_postmaster(address: &Address) -> bool {
    address.local().eq_ignore_ascii_case("postmaster")
}

/// The postmaster's mailbox, whose name is in lower case like that of every mailbox.
fn own_mailbox(postmaster: &Address) -> Final {
    let address = Address::new("postmaster", postmaster.domain()).unwrap_or_else(|_| postmaster.clone());
    Final { address, original: None, local: true }
}

/// Whether the domain is one label, which no host of the Internet is called (RFC 5321 section 2.3.5, RFC 7085).
pub(crate) fn is_dotless(address: &Address) -> bool {
    let domain = address.domain();
    !domain.starts_with('[') && !domain.contains('.')
}

/// The address in a domain literal (RFC 5321 section 4.1.3).
fn literal(domain: &str) -> Option<IpAddr> {
    let inner = domain.strip_prefix('[')?.strip_suffix(']')?;
    let address = match inner.split_at_checked(5) {
        Some((tag, v6)) if tag.eq_ignore_ascii_case("IPv6:") => v6.parse::<Ipv6Addr>().ok()?.into(),
        _ => inner.parse::<Ipv4Addr>().ok()?.into(),
    };
    Some(IpAddr::to_canonical(&address))
}

/// The same mailbox at another domain; the address as it is where that would be too long.
fn at_domain<'a>(address: &'a Address, domain: &str) -> Cow<'a, Address> {
    match format!("{}@{domain}", address.local()).parse() {
        Ok(moved) => Cow::Owned(moved),
        Err(_) => Cow::Borrowed(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_addresses() {
        assert_eq!(literal("[192.0.2.1]"), Some(IpAddr::from([192, 0, 2, 1])));
        assert_eq!(literal("[ipv6:2001:db8::1]"), "2001:db8::1".parse().ok());
        assert_eq!(literal("[ipv6:::ffff:192.0.2.1]"), Some(IpAddr::from([192, 0, 2, 1])));
        for domain in ["192.0.2.1", "[192.0.2.1", "[ipv6:]", "[]", "[例子例子]", "example.org"] {
            assert_eq!(literal(domain), None, "{domain}");
        }
    }

    #[test]
    fn a_mailbox_keeps_its_quotes_when_it_moves() {
        let address: Address = "\"a b\"@[192.0.2.1]".parse().unwrap();
        assert_eq!(at_domain(&address, "example.org").as_str(), "\"a b\"@example.org");
    }

    #[test]
    fn one_label_is_told_from_names_and_literals() {
        for (address, expected) in [("a@backup", true), ("a@example.org", false), ("a@[IPv6:2001:db8::1]", false)] {
            assert_eq!(is_dotless(&address.parse().unwrap()), expected, "{address}");
        }
    }
}
