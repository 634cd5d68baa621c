//! Normalises an address before the directory is asked, and resolves it. Sessions, locally
//! submitted mail and `mailrace explain` all use these two functions.
//!
//! | address | normalised to |
//! |---|---|
//! | `postmaster@` our host name, if that is not a local domain | the postmaster of this host |
//! | any mailbox at the literal of our own address | the same mailbox at the postmaster's domain |
//! | anything else | unchanged |
//!
//! A recipient is then rewritten by the operator's tables, if there are some (`[rewrite]`).
//!
//! A host recognises the literals of its own addresses (RFC 1123 section 5.2.17); here that is the
//! one the client connected to.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use filter::rewrite::AddressClass;
use lookup::directory::{AddressResolution, ResolvedRecipient};
use mail::Address;

use crate::IntakeContext;

impl IntakeContext {
    /// Normalises an address given by a client that connected to `own_address`.
    pub async fn normalize_address<'a>(
        &'a self,
        address: &'a Address,
        own_address: Option<IpAddr>,
    ) -> Cow<'a, Address> {
        if self.is_own_postmaster(address).await {
            return Cow::Borrowed(&self.postmaster);
        }
        match parse_literal(address.domain()) {
            Some(named) if Some(named) == own_address => at_domain(address, self.postmaster.domain()),
            _ => Cow::Borrowed(address),
        }
    }

    /// Resolves an address that [`IntakeContext::normalize_address`] returned. Mail to the
    /// postmaster is always accepted (RFC 5321 section 4.5.1): if the postmaster's aliases loop, it
    /// is delivered to the postmaster's own mailbox.
    pub async fn resolve_recipient(&self, address: &Address) -> AddressResolution {
        let Some(rewriter) = &self.rewriter else { return self.resolve_rewritten(address).await };
        // Boxed, to keep sessions small.
        match Box::pin(rewriter.rewrite(address, AddressClass::EnvelopeRecipient)).await {
            Err(why) => AddressResolution::Unavailable(why),
            Ok(rewritten) if rewritten == *address => self.resolve_rewritten(address).await,
            Ok(rewritten) => self.resolve_in_place_of(address, &rewritten).await,
        }
    }

    /// Resolves what a recipient was rewritten to. An address in a local domain that is rewritten to a remote
    /// one is like an alias: it needs no right to relay.
    async fn resolve_in_place_of(&self, given: &Address, rewritten: &Address) -> AddressResolution {
        let name = |found: ResolvedRecipient| ResolvedRecipient {
            original: Some(found.original.filter(|original| original != rewritten).unwrap_or_else(|| given.clone())),
            ..found
        };
        match self.resolve_rewritten(rewritten).await {
            AddressResolution::Local(found) => AddressResolution::Local(found.into_iter().map(name).collect()),
            AddressResolution::Remote(address) => match self.directory.domain(given.domain()).await {
                Ok(Some(_)) => {
                    AddressResolution::Local(vec![name(ResolvedRecipient { address, original: None, local: false })])
                }
                Ok(None) => AddressResolution::Remote(address),
                Err(why) => AddressResolution::Unavailable(why),
            },
            other => other,
        }
    }

    async fn resolve_rewritten(&self, address: &Address) -> AddressResolution {
        match self.directory.resolve(address).await {
            AddressResolution::TooDeep | AddressResolution::TooMany if is_postmaster(address) => {
                AddressResolution::Local(vec![postmaster_mailbox(address)])
            }
            other => other,
        }
    }

    /// The resolution of an address that was resolved before: itself.
    pub(crate) async fn take_as_resolved(&self, address: &Address) -> AddressResolution {
        match self.directory.domain(address.domain()).await {
            Ok(domain) => AddressResolution::Local(vec![ResolvedRecipient {
                address: address.clone(),
                original: None,
                local: domain.is_some(),
            }]),
            Err(why) => AddressResolution::Unavailable(why),
        }
    }

    /// `<postmaster>` arrives here as the postmaster of this host, whose name need not be a local
    /// domain. While the directory is unavailable, it is treated as not local.
    async fn is_own_postmaster(&self, address: &Address) -> bool {
        is_postmaster(address)
            && address.domain().eq_ignore_ascii_case(&self.hostname)
            && !self.directory.domain(address.domain()).await.is_ok_and(|domain| domain.is_some())
    }
}

fn is_postmaster(address: &Address) -> bool {
    address.local_part().eq_ignore_ascii_case("postmaster")
}

/// The postmaster's mailbox, in lower case like all mailbox names.
fn postmaster_mailbox(postmaster: &Address) -> ResolvedRecipient {
    let address = Address::new("postmaster", postmaster.domain()).unwrap_or_else(|_| postmaster.clone());
    ResolvedRecipient { address, original: None, local: true }
}

/// Whether the domain is a single label; no Internet host has such a name (RFC 5321 section 2.3.5,
/// RFC 7085).
pub(crate) fn is_dotless(address: &Address) -> bool {
    let domain = address.domain();
    !domain.starts_with('[') && !domain.contains('.')
}

/// The address in an address literal (RFC 5321 section 4.1.3).
fn parse_literal(domain: &str) -> Option<IpAddr> {
    let inner = domain.strip_prefix('[')?.strip_suffix(']')?;
    let address = match inner.split_at_checked(5) {
        Some((tag, v6)) if tag.eq_ignore_ascii_case("IPv6:") => v6.parse::<Ipv6Addr>().ok()?.into(),
        _ => inner.parse::<Ipv4Addr>().ok()?.into(),
    };
    Some(IpAddr::to_canonical(&address))
}

/// The same mailbox at another domain; the address unchanged if that would be too long.
fn at_domain<'a>(address: &'a Address, domain: &str) -> Cow<'a, Address> {
    match format!("{}@{domain}", address.local_part()).parse() {
        Ok(moved) => Cow::Owned(moved),
        Err(_) => Cow::Borrowed(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_addresses() {
        assert_eq!(parse_literal("[192.0.2.1]"), Some(IpAddr::from([192, 0, 2, 1])));
        assert_eq!(parse_literal("[ipv6:2001:db8::1]"), "2001:db8::1".parse().ok());
        assert_eq!(parse_literal("[ipv6:::ffff:192.0.2.1]"), Some(IpAddr::from([192, 0, 2, 1])));
        for domain in ["192.0.2.1", "[192.0.2.1", "[ipv6:]", "[]", "[例子例子]", "example.org"] {
            assert_eq!(parse_literal(domain), None, "{domain}");
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
