//! `[srs]`.

use std::path::Path;

use sender_auth::srs::DAYS_MAX;
use toml::Spanned;

use super::{fill_path, unspanned};
use crate::section::Section;
use crate::value_kind::{self, ValueKind};
use crate::{SrsSecretFile, SrsSettings};

const DAYS: ValueKind<u16> = ValueKind {
    expected: "a number of days between 1 and 366",
    parse: |v| (ValueKind::COUNT.parse)(v).filter(|days| *days <= DAYS_MAX),
};

pub(super) fn srs(document: &mut Section<'_, '_>, hostname: &str, data_dir: &Path) -> Option<SrsSettings> {
    let mut section = document.section("srs")?;
    let domain = domain(&mut section, hostname);
    let secrets = secrets(&mut section, data_dir);
    let days = section.take_or("days", &DAYS, SrsSettings::DAYS);
    let exempt = section.list("exempt", &value_kind::PATTERN).map(unspanned).unwrap_or_default();
    Some(SrsSettings { domain: domain?, secrets, days, exempt })
}

/// The domain of the rewritten addresses: other hosts send notices there.
fn domain(section: &mut Section<'_, '_>, hostname: &str) -> Option<Box<str>> {
    let place = section.span_of("domain");
    let domain = match section.take_spanned("domain", &value_kind::DOMAIN) {
        Some(domain) => domain.into_inner(),
        None => hostname.into(),
    };
    if !domain.contains('.') {
        let label = format!("found {domain:?}, expected a domain whose MX is this server, such as \"srs.example.org\"");
        section.report(place, "domain", "is not a domain that other hosts can find", label);
        return None;
    }
    Some(domain)
}

fn secrets(section: &mut Section<'_, '_>, data_dir: &Path) -> Vec<SrsSecretFile> {
    let place = section.span_of("secret_file");
    let files = section.one_or_list("secret_file", &value_kind::TEXT).unwrap_or_default();
    if files.is_empty() {
        let label = "expected the path of a file with a secret, or a list: the first one signs, all verify".to_owned();
        section.report(place, "secret_file", "is missing", label);
    }
    let secret = |file: &Spanned<String>| {
        Some(SrsSecretFile { path: fill_path(section, "secret_file", file, data_dir)?, span: file.span() })
    };
    files.iter().filter_map(secret).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn parse(text: &str) -> Result<Option<SrsSettings>, String> {
        Config::parse(text, "text", "mx.here").map(|config| config.srs).map_err(|faults| faults.to_string())
    }

    #[test]
    fn without_the_section_nothing_is_rewritten_and_a_secret_is_enough() {
        assert_eq!(parse(""), Ok(None));
        let srs = parse("[srs]\nsecret_file = \"{data_dir}/srs\"\n").unwrap().unwrap();
        assert_eq!((&*srs.domain, srs.days, srs.exempt.len()), ("mx.here", 21, 0));
        assert_eq!(srs.secrets[0].path, Path::new("./mailrace-data/srs"));
    }

    #[test]
    fn what_cannot_work_is_told() {
        for (text, expected) in [
            ("", "`srs.secret_file` is missing"),
            ("secret_file = []", "`srs.secret_file` is missing"),
            ("domain = \"*.a.example\"", "`srs.domain` has an invalid value"),
            ("domain = \"here\"", "`srs.domain` is not a domain that other hosts can find"),
            ("days = 0", "`srs.days` has an invalid value"),
            ("days = 367", "`srs.days` has an invalid value"),
            ("exempt = \"a.example\"", "`srs.exempt` is not a list"),
        ] {
            let faults = parse(&format!("[srs]\n{text}\n")).unwrap_err();
            assert!(faults.contains(expected), "{text}: {faults}");
        }
    }
}
