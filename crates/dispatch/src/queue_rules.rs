//! Rules that choose the queue of a message by its header or its sender.

use std::fmt;
use std::str::FromStr;

use mail::Address;

/// A header field: `Precedence: bulk`, or `List-Id: *` for any value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderRule {
    /// The field's name.
    pub name: Box<str>,
    /// Its value without surrounding white space; None: any.
    pub value: Option<Box<str>>,
}

impl HeaderRule {
    /// Whether a header field matches. Case is ignored in both parts.
    pub fn matches(&self, name: &str, value: &str) -> bool {
        let value = value.trim();
        self.name.eq_ignore_ascii_case(name) && self.value.as_ref().is_none_or(|own| own.eq_ignore_ascii_case(value))
    }
}

/// The text is not a valid rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a rule")]
pub struct InvalidQueueRule;

impl FromStr for HeaderRule {
    type Err = InvalidQueueRule;

    /// RFC 5322 section 3.6.8 defines the characters of a field name.
    fn from_str(text: &str) -> Result<Self, InvalidQueueRule> {
        let (name, value) = text.split_once(':').ok_or(InvalidQueueRule)?;
        let value = value.trim();
        let sound = !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic());
        let value = match value {
            "*" => None,
            "" => return Err(InvalidQueueRule),
            value if value.contains(['*', '\r', '\n']) => return Err(InvalidQueueRule),
            value => Some(value.into()),
        };
        sound.then(|| HeaderRule { name: name.into(), value }).ok_or(InvalidQueueRule)
    }
}

impl fmt::Display for HeaderRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.value.as_deref().unwrap_or("*"))
    }
}

/// A pattern for envelope senders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SenderRule {
    /// `news@example.org`: this address.
    Address(Address),
    /// `@example.org`: the whole domain, in lower case.
    Domain(Box<str>),
}

impl SenderRule {
    /// Whether `sender` matches. Case is ignored.
    pub fn matches(&self, sender: &Address) -> bool {
        match self {
            SenderRule::Address(own) => own.as_str().eq_ignore_ascii_case(sender.as_str()),
            SenderRule::Domain(domain) => **domain == *sender.domain(),
        }
    }
}

impl FromStr for SenderRule {
    type Err = InvalidQueueRule;

    fn from_str(text: &str) -> Result<Self, InvalidQueueRule> {
        match text.strip_prefix('@') {
            Some(domain) => {
                let address = Address::new("postmaster", domain).map_err(|_| InvalidQueueRule)?;
                Ok(SenderRule::Domain(address.domain().into()))
            }
            None => text.parse().map(SenderRule::Address).map_err(|_| InvalidQueueRule),
        }
    }
}

impl fmt::Display for SenderRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SenderRule::Address(address) => f.write_str(address.as_str()),
            SenderRule::Domain(domain) => write!(f, "@{domain}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_rule_is_a_field_with_its_value_or_with_any() {
        for (rule, name, value, meant) in [
            ("Precedence: bulk", "precedence", " Bulk ", true),
            ("Precedence:bulk", "Precedence", "bulk", true),
            ("Precedence: bulk", "Precedence", "bulky", false),
            ("Precedence: bulk", "X-Precedence", "bulk", false),
            ("List-Id: *", "List-ID", "<news.example.org>", true),
            ("X-Time: 10:30", "X-Time", "10:30", true),
        ] {
            assert_eq!(rule.parse::<HeaderRule>().unwrap().matches(name, value), meant, "{rule}");
        }
        for text in ["", "Precedence", ": bulk", "Precedence:", "Pre cedence: bulk", "X: bulk*", "X: a\nb", "Ü: *"] {
            assert_eq!(text.parse::<HeaderRule>(), Err(InvalidQueueRule), "{text}");
        }
    }

    #[test]
    fn a_sender_rule_is_an_address_or_a_domain() {
        let sender = "News@Lists.example.org".parse().unwrap();
        for (rule, meant) in [
            ("news@lists.example.org", true),
            ("old@lists.example.org", false),
            ("@LISTS.example.org", true),
            ("@example.org", false),
        ] {
            assert_eq!(rule.parse::<SenderRule>().unwrap().matches(&sender), meant, "{rule}");
        }
        for text in ["", "@", "news", "*@example.org@", "@*.example.org"] {
            assert_eq!(text.parse::<SenderRule>(), Err(InvalidQueueRule), "{text}");
        }
    }
}
