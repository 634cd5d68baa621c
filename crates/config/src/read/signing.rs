//! `[signing]` and `[[signing.key]]`.

use std::collections::HashMap;
use std::path::Path;

use sender_auth::signing::{KEYS_PER_DOMAIN_MAX, SignedSubmitters, SigningThreadsConfig, is_selector};
use toml::Spanned;

use super::{Unique, fill_path, take_reference};
use crate::section::Section;
use crate::value_kind::{self, ServerName, ValueKind};
use crate::{SigningKeySettings, SigningSettings};

/// A word in `sign`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signed {
    Users,
    RelayNetworks,
    LocalPrograms,
    Notices,
}

const SIGNED: ValueKind<Signed> = ValueKind {
    expected: "\"users\", \"relay_networks\", \"local_programs\" or \"notices\"",
    parse: |v| match v.as_str()? {
        "users" => Some(Signed::Users),
        "relay_networks" => Some(Signed::RelayNetworks),
        "local_programs" => Some(Signed::LocalPrograms),
        "notices" => Some(Signed::Notices),
        _ => None,
    },
};

const SELECTOR: ValueKind<Box<str>> = ValueKind {
    expected: "a selector such as \"mail\" or \"2026-11\": letters, digits and hyphens, at most 63",
    parse: |v| v.as_str().filter(|text| is_selector(text)).map(Into::into),
};

pub(super) fn signing(document: &mut Section<'_, '_>, table_names: &[String], data_dir: &Path) -> SigningSettings {
    let defaults = SigningSettings::default();
    let Some(mut section) = document.section("signing") else { return defaults };
    let keys = keys(&mut section, data_dir);
    let table = take_reference(&mut section, "table", "table", table_names).map(|name| name.into_inner().into());
    let signed = section.list("sign", &SIGNED);
    let signs = |word| signed.as_ref().is_none_or(|words| words.iter().any(|written| *written.get_ref() == word));
    SigningSettings {
        keys,
        table,
        submitters: SignedSubmitters {
            users: signs(Signed::Users),
            relay_networks: signs(Signed::RelayNetworks),
            local_programs: signs(Signed::LocalPrograms),
        },
        notices: signs(Signed::Notices),
        expires_after: section.take("expires_after", &value_kind::DURATION),
        seven_bit: section.take_or("seven_bit", &value_kind::FLAG, defaults.seven_bit),
        threads: threads(&mut section),
    }
}

fn threads(section: &mut Section<'_, '_>) -> SigningThreadsConfig {
    let defaults = SigningThreadsConfig::default();
    let threads = match section.take_or("threads", &ValueKind::COUNT_OR_ZERO, 0) {
        0 => defaults.threads,
        count => count,
    };
    let waiting_max = section.take_or("waiting", &ValueKind::COUNT, defaults.waiting_max);
    SigningThreadsConfig {
        threads,
        waiting_max,
        wait_max: section.take_or("wait", &value_kind::DURATION, defaults.wait_max),
    }
}

fn keys(section: &mut Section<'_, '_>, data_dir: &Path) -> Vec<SigningKeySettings> {
    let (mut unique, mut counts) = (Unique::default(), HashMap::new());
    let sections = section.sections("key").unwrap_or_default();
    sections.into_iter().filter_map(|section| key(section, data_dir, &mut unique, &mut counts)).collect()
}

fn key(
    mut section: Section<'_, '_>,
    data_dir: &Path,
    unique: &mut Unique,
    counts: &mut HashMap<Box<str>, usize>,
) -> Option<SigningKeySettings> {
    let domain = domain(&mut section);
    let selector = section.take_required("selector", &SELECTOR);
    let file = section.take_required("file", &value_kind::TEXT);
    let (domain, selector, file) = (domain?, selector?, file?);
    let name = format!("{}._domainkey.{}", selector.get_ref(), domain.get_ref());
    unique.insert(&section, "selector", &name, selector.span());
    let count = counts.entry(domain.get_ref().clone()).or_insert(0);
    *count += 1;
    if *count > KEYS_PER_DOMAIN_MAX {
        let label = format!("expected at most {KEYS_PER_DOMAIN_MAX}: one of type RSA, and one of type Ed25519");
        section.report(domain.span(), "domain", "has too many keys", label);
    }
    let path = fill_path(&section, "file", &file, data_dir)?;
    Some(SigningKeySettings {
        domain: domain.into_inner(),
        selector: selector.into_inner(),
        file: path,
        file_span: file.span(),
    })
}

/// A domain as signatures name it.
fn domain(section: &mut Section<'_, '_>) -> Option<Spanned<Box<str>>> {
    let name = section.take_required("domain", &value_kind::SERVER_NAME)?;
    let place = name.span();
    match name.into_inner() {
        ServerName::Host(name) if !name.starts_with("*.") => Some(Spanned::new(place, name)),
        ServerName::Host(_) | ServerName::Address => {
            let label = "expected a domain such as \"example.org\"; its key also signs for its subdomains".to_owned();
            section.report(place, "domain", "has an invalid value", label);
            None
        }
    }
}
