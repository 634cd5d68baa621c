//! Rules: for which domains mail takes another way than that of the MX.

use std::fmt;
use std::str::FromStr;

use crate::FixedHop;
use crate::destination::to_ascii;

/// Another way for some domains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Which domains.
    pub pattern: Pattern,
    /// By which transport.
    pub transport: Box<str>,
    /// To which host; None: the MX of the domain.
    pub next_hop: Option<FixedHop>,
}

/// Some domains: `example.com`, `*.example.com` (all below it, not itself) or `*`. In lower case and A-labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// This one, or this address literal.
    Exact(Box<str>),
    /// Those that end in a dot and this.
    Subdomains(Box<str>),
    /// All, address literals too.
    Any,
}

/// Not a pattern of domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a domain, '*.' and a domain, or '*'")]
pub struct PatternError;

impl Pattern {
    /// Whether a name is one of these. One that is not ASCII is first brought into A-labels.
    pub fn fits(&self, domain: &str) -> bool {
        if !domain.is_ascii() {
            return *self == Pattern::Any || to_ascii(domain).is_some_and(|domain| self.fits(&domain));
        }
        match self {
            Pattern::Exact(name) => name.eq_ignore_ascii_case(domain),
            Pattern::Subdomains(parent) => {
                domain.strip_suffix(&**parent).is_some_and(|front| front.len() > 1 && front.ends_with('.'))
            }
            Pattern::Any => true,
        }
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if text == "*" {
            return Ok(Pattern::Any);
        }
        if text.starts_with('[') && text.ends_with(']') {
            return Ok(Pattern::Exact(text.to_ascii_lowercase().into()));
        }
        match text.strip_prefix("*.") {
            Some(parent) => Ok(Pattern::Subdomains(to_ascii(parent).ok_or(PatternError)?)),
            None => Ok(Pattern::Exact(to_ascii(text).ok_or(PatternError)?)),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Exact(name) => f.write_str(name),
            Pattern::Subdomains(parent) => write!(f, "*.{parent}"),
            Pattern::Any => f.write_str("*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_fits_its_domains() {
        for (pattern, fits, fits_not) in [
            ("Example.com", &["example.com"][..], &["a.example.com", "xample.com"][..]),
            ("*.example.com", &["a.example.com", "b.a.example.com"], &["example.com", "anexample.com", ".example.com"]),
            ("*.müller.example", &["a.xn--mller-kva.example"], &["xn--mller-kva.example"]),
            ("[IPv6:::1]", &["[ipv6:::1]"], &["[ipv6:::2]"]),
            ("*", &["example.com", "[192.0.2.1]"], &[]),
        ] {
            let pattern: Pattern = pattern.parse().unwrap();
            fits.iter().for_each(|domain| assert!(pattern.fits(domain), "{pattern} {domain}"));
            fits_not.iter().for_each(|domain| assert!(!pattern.fits(domain), "{pattern} {domain}"));
        }
    }

    #[test]
    fn a_star_stands_for_whole_labels_in_front() {
        for text in ["", "*.", "*x.example", "a.*.example", "**", "a b"] {
            assert_eq!(text.parse::<Pattern>(), Err(PatternError), "{text}");
        }
    }
}
