//! Masquerading: a domain takes the place of its subdomains, so that addresses do not show the names of
//! hosts.

use mail::Address;

use super::AddressClass;

/// Which addresses are masqueraded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MasqueradeSettings {
    /// The first one that an address is in decides.
    pub domains: Vec<MasqueradeDomain>,
    /// Local parts, in lower case, whose addresses stay as they are.
    pub exceptions: Vec<Box<str>>,
    /// The addresses that change.
    pub classes: Vec<AddressClass>,
}

/// A domain that takes the place of its subdomains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasqueradeDomain {
    /// In lower case.
    pub name: Box<str>,
    /// Addresses in it and in its subdomains stay as they are instead: `!example.org`.
    pub is_kept: bool,
}

impl MasqueradeSettings {
    /// The address with the shorter domain; None: it stays as it is.
    pub(super) fn apply(&self, address: &Address, class: AddressClass) -> Option<Address> {
        if !self.classes.contains(&class) {
            return None;
        }
        let local = address.unquoted_local_part();
        if self.exceptions.iter().any(|name| local.eq_ignore_ascii_case(name)) {
            return None;
        }
        let found = self.domains.iter().find(|domain| is_in(address.domain(), &domain.name))?;
        let is_changed = !found.is_kept && address.domain() != &*found.name;
        is_changed.then(|| Address::new(&local, &found.name).ok()).flatten()
    }
}

/// Whether a domain is this one or a subdomain of it.
fn is_in(domain: &str, parent: &str) -> bool {
    domain.strip_suffix(parent).is_some_and(|host| host.is_empty() || host.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_takes_the_place_of_its_subdomains() {
        let domain = |name: &str, is_kept| MasqueradeDomain { name: name.into(), is_kept };
        let settings = MasqueradeSettings {
            domains: vec![domain("lab.example.org", true), domain("example.org", false)],
            exceptions: vec!["root".into()],
            classes: vec![AddressClass::HeaderSender],
        };
        for (address, expected) in [
            ("bob@host.example.org", "bob@example.org"),
            ("bob@a.b.example.org", "bob@example.org"),
            ("bob@example.org", ""),
            ("bob@myexample.org", ""),
            ("bob@x.lab.example.org", ""),
            ("ROOT@host.example.org", ""),
        ] {
            let address: Address = address.parse().unwrap();
            let masked = settings.apply(&address, AddressClass::HeaderSender);
            assert_eq!(masked.map_or_else(String::new, |masked| masked.to_string()), expected, "{address}");
            assert_eq!(settings.apply(&address, AddressClass::EnvelopeRecipient), None);
        }
    }
}
