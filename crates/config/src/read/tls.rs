//! `[[certificate]]`, `[tls]`, and `tls` of listeners.

use std::path::Path;

use acme::{AcmeSettings, CertificateNames};
use net::CertificateFiles;
use protocol::TlsMode;
use toml::Spanned;

use super::acme::AcmeSection;
use super::{Unique, fill_path, unspanned};
use crate::section::{Keywords, Section};
use crate::value_kind::{self, ServerName};
use crate::{CertificateSettings, ListenerProtocol, ServerTlsSettings, TlsVersion};

/// The valid certificates, and whether there is any section, valid or not.
pub(super) fn certificates(
    document: &mut Section<'_, '_>,
    data_dir: &Path,
    acme: Option<&AcmeSection>,
) -> (Vec<CertificateSettings>, bool) {
    let sections = document.sections("certificate").unwrap_or_default();
    let has_any = !sections.is_empty();
    let mut unique = Unique::default();
    let certificate = |section: Section<'_, '_>| match section.has("acme") {
        true => obtained_certificate(section, acme, &mut unique),
        false => certificate(section, data_dir, &mut unique),
    };
    (sections.into_iter().filter_map(certificate).collect(), has_any)
}

/// Names of a certificate; authorities accept no more.
const OBTAINED_NAMES_MAX: usize = 100;

/// A certificate that the server obtains itself.
fn obtained_certificate(
    mut section: Section<'_, '_>,
    acme: Option<&AcmeSection>,
    unique: &mut Unique,
) -> Option<CertificateSettings> {
    ["chain", "key", "names"].into_iter().for_each(|key| section.reject(key, "expected only without `acme`"));
    let span = section.span_of("acme");
    let names = obtained_names(&mut section)?;
    let Some(acme) = acme else {
        let label = "expected a section [acme], which says who issues it".to_owned();
        section.report(span, "acme", "needs [acme]", label);
        return None;
    };
    unique.insert(&section, "acme", &names[0], span.clone());
    let path = acme.settings.as_ref().map(|settings: &AcmeSettings| settings.certificate_file(&names))?;
    let files = CertificateFiles { chain: path.clone(), key: path, names: Vec::new() };
    Some(CertificateSettings { files, obtained_for: Some(names), chain_span: span.clone(), key_span: span })
}

fn obtained_names(section: &mut Section<'_, '_>) -> Option<CertificateNames> {
    let span = section.span_of("acme");
    let names = server_names(section, "acme", "expected a host name that other hosts can find")?;
    if let Some(wildcard) = names.iter().find(|name| name.get_ref().starts_with("*.")) {
        let label = "expected a host name; authorities want the challenge dns-01 for wildcards".to_owned();
        section.report(wildcard.span(), "acme", "has a wildcard", label);
        return None;
    }
    if names.is_empty() || names.len() > OBTAINED_NAMES_MAX {
        let matter = if names.is_empty() { "is empty" } else { "has too many names" };
        section.report(span, "acme", matter, format!("expected between 1 and {OBTAINED_NAMES_MAX} host names"));
        return None;
    }
    Some(unspanned(names).into())
}

fn certificate(mut section: Section<'_, '_>, data_dir: &Path, unique: &mut Unique) -> Option<CertificateSettings> {
    let chain = section.take_required("chain", &value_kind::TEXT);
    let key = section.take_required("key", &value_kind::TEXT);
    let names = names(&mut section);
    let (chain, key) = (chain?, key?);
    unique.insert(&section, "chain", chain.get_ref(), chain.span());
    let file = |name, template: &Spanned<String>| fill_path(&section, name, template, data_dir);
    let files = CertificateFiles { chain: file("chain", &chain)?, key: file("key", &key)?, names };
    Some(CertificateSettings { files, obtained_for: None, chain_span: chain.span(), key_span: key.span() })
}

fn names(section: &mut Section<'_, '_>) -> Vec<Box<str>> {
    let label = "expected a host name; clients that connect to an IP address get the first certificate";
    server_names(section, "names", label).map(unspanned).unwrap_or_default()
}

/// The host names of a list. `label` says what to write instead of an IP address.
fn server_names(section: &mut Section<'_, '_>, key: &'static str, label: &str) -> Option<Vec<Spanned<Box<str>>>> {
    let mut names = Vec::new();
    for name in section.list(key, &value_kind::SERVER_NAME)? {
        let place = name.span();
        match name.into_inner() {
            ServerName::Host(name) => names.push(Spanned::new(place, name)),
            ServerName::Address => {
                section.report(place, key, "has an IP address, which clients cannot request", label.to_owned());
            }
        }
    }
    Some(names)
}

const VERSION: Keywords<TlsVersion> =
    Keywords { supported: &[("1.2", TlsVersion::V1_2), ("1.3", TlsVersion::V1_3)], planned: &[] };

pub(super) fn server(document: &mut Section<'_, '_>) -> ServerTlsSettings {
    let defaults = ServerTlsSettings::default();
    let Some(mut section) = document.section("tls") else { return defaults };
    ServerTlsSettings {
        version_min: section.choice("min_version", &VERSION).unwrap_or(defaults.version_min),
        handshake_timeout: section.take_or("handshake_timeout", &value_kind::DURATION, defaults.handshake_timeout),
        reload_every: section.take_or("reload_every", &value_kind::DURATION, defaults.reload_every),
    }
}

const LISTENER_TLS: Keywords<TlsMode> = Keywords {
    supported: &[
        ("none", TlsMode::Never),
        ("starttls", TlsMode::Offered),
        ("required", TlsMode::Required),
        ("implicit", TlsMode::Implicit),
    ],
    planned: &[],
};

/// The TLS mode of a listener. By default it depends on whether there is a certificate.
pub(super) fn listener(
    section: &mut Section<'_, '_>,
    protocol: Option<ListenerProtocol>,
    has_certificate: bool,
) -> TlsMode {
    let place = section.span_of("tls");
    let has_upgrade = protocol != Some(ListenerProtocol::Http);
    let usual = if has_certificate && has_upgrade { TlsMode::Offered } else { TlsMode::Never };
    let tls = section.choice("tls", &LISTENER_TLS).unwrap_or(usual);
    if tls != TlsMode::Never && !has_certificate {
        section.report(place, "tls", "needs a certificate", "expected a [[certificate]], or tls = \"none\"".into());
    } else if !has_upgrade && matches!(tls, TlsMode::Offered | TlsMode::Required) {
        let label = "HTTP has no STARTTLS; expected \"none\" or \"implicit\"".to_owned();
        section.report(place, "tls", "has an invalid value", label);
    }
    tls
}
