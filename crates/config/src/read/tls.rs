//! `[[certificate]]`, `[tls]`, and `tls` of listeners.

use std::path::Path;

use net::CertificateFiles;
use protocol::TlsMode;
use toml::Spanned;

use super::{Unique, fill_path};
use crate::section::{Keywords, Section};
use crate::value_kind::{self, ServerName};
use crate::{CertificateSettings, ListenerProtocol, ServerTlsSettings, TlsVersion};

/// The valid certificates, and whether there is any section, valid or not.
pub(super) fn certificates(document: &mut Section<'_, '_>, data_dir: &Path) -> (Vec<CertificateSettings>, bool) {
    let sections = document.sections("certificate").unwrap_or_default();
    let has_any = !sections.is_empty();
    let mut unique = Unique::default();
    (sections.into_iter().filter_map(|section| certificate(section, data_dir, &mut unique)).collect(), has_any)
}

fn certificate(mut section: Section<'_, '_>, data_dir: &Path, unique: &mut Unique) -> Option<CertificateSettings> {
    let chain = section.take_required("chain", &value_kind::TEXT);
    let key = section.take_required("key", &value_kind::TEXT);
    let names = names(&mut section);
    let (chain, key) = (chain?, key?);
    unique.insert(&section, "chain", chain.get_ref(), chain.span());
    let file = |name, template: &Spanned<String>| fill_path(&section, name, template, data_dir);
    let files = CertificateFiles { chain: file("chain", &chain)?, key: file("key", &key)?, names };
    Some(CertificateSettings { files, chain_span: chain.span(), key_span: key.span() })
}

fn names(section: &mut Section<'_, '_>) -> Vec<Box<str>> {
    let mut names = Vec::new();
    for name in section.list("names", &value_kind::SERVER_NAME).unwrap_or_default() {
        let place = name.span();
        match name.into_inner() {
            ServerName::Host(name) => names.push(name),
            ServerName::Address => {
                let label =
                    "expected a host name; clients that connect to an IP address get the first certificate".to_owned();
                section.report(place, "names", "has an IP address, which clients cannot request", label);
            }
        }
    }
    names
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
