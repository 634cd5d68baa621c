//! The text of a policy (RFC 8461 section 3.2), and which hosts it names.

use std::fmt;
use std::time::Duration;

use dns::to_ascii;

/// How long a policy may be kept (RFC 8461 section 3.2: about a year).
pub const MAX_AGE_MAX: Duration = Duration::from_secs(31_557_600);
/// Patterns of MX hosts in one policy.
pub const MX_PATTERNS_MAX: usize = 1000;
/// Those that a report shows: each count of a report has the policy.
pub const REPORTED_PATTERNS_MAX: usize = 30;

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What happens to mail that cannot be delivered by it.
    pub mode: PolicyMode,
    /// How long it may be kept.
    pub max_age: Duration,
    mx: Vec<MxPattern>,
}

/// What happens to mail that cannot be delivered by a policy (RFC 8461 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyMode {
    /// It waits.
    Enforce,
    /// It is delivered nevertheless.
    Testing,
    /// There is no policy, and the domain had one.
    None,
}

impl PolicyMode {
    /// The word in the policy.
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyMode::Enforce => "enforce",
            PolicyMode::Testing => "testing",
            PolicyMode::None => "none",
        }
    }
}

/// Names of MX hosts, in lower case and with A-labels.
#[derive(Clone, Debug, PartialEq, Eq)]
enum MxPattern {
    /// This host.
    Host(Box<str>),
    /// The hosts with one more label (`*.example.com`).
    OneLabelMore(Box<str>),
}

/// Why a text is not a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Not UTF-8.
    #[error("the policy is not text")]
    NotText,
    /// A line has no colon.
    #[error("a line of the policy has no colon")]
    NoColon,
    /// The version is missing or another one.
    #[error("the policy does not have `version: STSv1`")]
    Version,
    /// The mode is missing or unknown.
    #[error("the policy has no valid `mode`")]
    Mode,
    /// The time is missing or invalid.
    #[error("the policy has no valid `max_age`")]
    MaxAge,
    /// Not the name of a host.
    #[error("the policy has an invalid `mx`")]
    Mx,
    /// No MX host.
    #[error("the policy names no MX host")]
    NoMx,
    /// Too many MX hosts.
    #[error("the policy has more than {MX_PATTERNS_MAX} `mx`")]
    TooManyMx,
}

impl Policy {
    /// Parses a policy. Unknown fields are ignored, and of a field that may appear once the first
    /// counts (RFC 8461 section 3.2).
    pub fn parse(text: &[u8]) -> Result<Policy, PolicyError> {
        let text = std::str::from_utf8(text).map_err(|_| PolicyError::NotText)?;
        let (mut version, mut mode, mut max_age, mut mx) = (None, None, None, Vec::new());
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let (key, value) = line.split_once(':').ok_or(PolicyError::NoColon)?;
            let value = value.trim();
            match key.trim() {
                "version" => drop(version.get_or_insert(value)),
                "mode" => drop(mode.get_or_insert(value)),
                "max_age" => drop(max_age.get_or_insert(value)),
                "mx" if mx.len() == MX_PATTERNS_MAX => return Err(PolicyError::TooManyMx),
                "mx" => mx.push(MxPattern::parse(value)?),
                _ => {}
            }
        }
        if version != Some("STSv1") {
            return Err(PolicyError::Version);
        }
        let mode = parse_mode(mode.unwrap_or_default()).ok_or(PolicyError::Mode)?;
        let max_age = parse_max_age(max_age.unwrap_or_default()).ok_or(PolicyError::MaxAge)?;
        if mx.is_empty() && mode != PolicyMode::None {
            return Err(PolicyError::NoMx);
        }
        Ok(Policy { mode, max_age, mx })
    }

    /// Its lines, for reports (RFC 8460 section 4.4), with at most [`REPORTED_PATTERNS_MAX`] of its hosts.
    pub fn reported_lines(&self) -> Vec<Box<str>> {
        let shown = Policy { mx: self.mx.iter().take(REPORTED_PATTERNS_MAX).cloned().collect(), ..*self };
        shown.to_string().lines().map(Into::into).collect()
    }

    /// Whether it names this MX host, which is in lower case and has A-labels (RFC 8461 section
    /// 4.1).
    pub fn names(&self, host: &str) -> bool {
        self.mx.iter().any(|pattern| match pattern {
            MxPattern::Host(name) => **name == *host,
            MxPattern::OneLabelMore(parent) => host.split_once('.').is_some_and(|(_, rest)| *rest == **parent),
        })
    }
}

/// The text of the policy, which [`Policy::parse`] reads.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "version: STSv1\nmode: {}", self.mode.as_str())?;
        self.mx.iter().try_for_each(|pattern| match pattern {
            MxPattern::Host(name) => writeln!(f, "mx: {name}"),
            MxPattern::OneLabelMore(parent) => writeln!(f, "mx: *.{parent}"),
        })?;
        // At the end, so that a text that is cut short names no wrong host.
        writeln!(f, "max_age: {}", self.max_age.as_secs())
    }
}

impl MxPattern {
    fn parse(text: &str) -> Result<MxPattern, PolicyError> {
        let pattern = match text.strip_prefix("*.") {
            Some(parent) => to_ascii(parent).map(MxPattern::OneLabelMore),
            None => to_ascii(text).map(MxPattern::Host),
        };
        pattern.filter(|_| !text.contains(char::is_whitespace)).ok_or(PolicyError::Mx)
    }
}

fn parse_mode(text: &str) -> Option<PolicyMode> {
    [PolicyMode::Enforce, PolicyMode::Testing, PolicyMode::None].into_iter().find(|mode| mode.as_str() == text)
}

/// One to ten digits; more than a year counts as a year.
fn parse_max_age(text: &str) -> Option<Duration> {
    let is_number = (1..=10).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = text.parse().ok().filter(|_| is_number)?;
    Some(Duration::from_secs(seconds).min(MAX_AGE_MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EXAMPLE: &str =
        "version: STSv1\r\nmode: enforce\r\nmx: mail.example.com\r\nmx: *.example.net\r\nmax_age: 604800\r\n";

    #[test]
    fn a_policy_is_parsed_and_names_its_hosts() {
        let policy = Policy::parse(EXAMPLE.as_bytes()).unwrap();
        assert_eq!((policy.mode, policy.max_age), (PolicyMode::Enforce, Duration::from_secs(604_800)));
        for host in ["mail.example.com", "a.example.net", "x--1.example.net"] {
            assert!(policy.names(host), "{host}");
        }
        for host in
            ["example.com", "a.mail.example.com", "example.net", "a.b.example.net", "mail.example.com.evil.example", ""]
        {
            assert!(!policy.names(host), "{host}");
        }
    }

    #[test]
    fn texts_are_judged_as_the_rfc_says() {
        let policy = |lines: &str| Policy::parse(lines.as_bytes());
        let (version, mode, age, mx) = ("version:STSv1\n", "mode:testing\n", "max_age:1\n", "mx:a.example\n");
        for (text, mode) in [
            (format!("{version}{mode}{age}{mx}"), PolicyMode::Testing),
            (format!("{mx}{age}{mode}{version}"), PolicyMode::Testing),
            (format!("{version}{mode}{age}{mx}mode: enforce\n"), PolicyMode::Testing),
            (format!("{version}mode : none \n{age}"), PolicyMode::None),
            (format!("{version}{mode}{age}{mx}\n\nunknown: thing:s\n"), PolicyMode::Testing),
        ] {
            assert_eq!(policy(&text).map(|policy| policy.mode), Ok(mode), "{text}");
        }
        for (text, error) in [
            (String::new(), PolicyError::Version),
            ("<html>".into(), PolicyError::NoColon),
            (format!("{mode}{age}{mx}"), PolicyError::Version),
            (format!("version: STSv2\n{mode}{age}{mx}"), PolicyError::Version),
            (format!("{version}{age}{mx}"), PolicyError::Mode),
            (format!("{version}mode: Enforce\n{age}{mx}"), PolicyError::Mode),
            (format!("{version}{mode}{mx}"), PolicyError::MaxAge),
            (format!("{version}{mode}{mx}max_age: -1"), PolicyError::MaxAge),
            (format!("{version}{mode}{mx}max_age: 12345678901"), PolicyError::MaxAge),
            (format!("{version}{mode}{age}"), PolicyError::NoMx),
            (format!("{version}{mode}{age}mx: \n"), PolicyError::Mx),
            (format!("{version}{mode}{age}mx: *.\n"), PolicyError::Mx),
            (format!("{version}{mode}{age}mx: a b\n"), PolicyError::Mx),
            (format!("{version}{mode}{age}{}", mx.repeat(MX_PATTERNS_MAX + 1)), PolicyError::TooManyMx),
        ] {
            assert_eq!(policy(&text), Err(error), "{}", &text[..text.len().min(80)]);
        }
        assert_eq!(Policy::parse(b"\xff"), Err(PolicyError::NotText));
        let long = format!("{version}{mode}{mx}max_age: 9999999999");
        assert_eq!(policy(&long).unwrap().max_age, MAX_AGE_MAX);
    }

    #[test]
    fn a_report_shows_the_policy_with_its_first_hosts() {
        let lines = Policy::parse(EXAMPLE.as_bytes()).unwrap().reported_lines();
        let expected =
            ["version: STSv1", "mode: enforce", "mx: mail.example.com", "mx: *.example.net", "max_age: 604800"];
        assert!(lines.iter().map(|line| &**line).eq(expected), "{lines:?}");
        let many: String = (0..MX_PATTERNS_MAX).map(|number| format!("mx: mx{number}.example\n")).collect();
        let policy = Policy::parse(format!("version: STSv1\nmode: testing\nmax_age: 1\n{many}").as_bytes()).unwrap();
        assert_eq!(policy.reported_lines().len(), 3 + REPORTED_PATTERNS_MAX);
    }

    proptest! {
        #[test]
        fn whatever_is_parsed_is_written_so_that_it_is_parsed_alike(
            noise in "\\PC{0,40}", hosts in prop::collection::vec("(\\*\\.)?[a-z]{1,8}(\\.[a-z0-9-]{1,8}){0,3}", 0..5),
            age in 0_u64..99_999_999,
        ) {
            let mx: String = hosts.iter().map(|host| format!("mx: {host}\n")).collect();
            let text = format!("{noise}\nversion: STSv1\nmode: enforce\n{mx}max_age: {age}\n");
            if let Ok(policy) = Policy::parse(text.as_bytes()) {
                prop_assert_eq!(Policy::parse(policy.to_string().as_bytes()), Ok(policy));
            }
        }
    }
}
