//! `[[certificate]]`, `[tls]`, and `tls` of listeners.

use std::path::Path;

use toml::Spanned;

use super::{Unique, filled};
use crate::config::key::{self, ServerName};
use crate::config::section::{Choice, Section};
use crate::config::{Certificate, ListenerTls, ServerTls, TlsVersion};

/// The valid certificates, and whether there is any section, valid or not.
pub(super) fn certificates(document: &mut Section<'_, '_>, data_dir: &Path) -> (Vec<Certificate>, bool) {
    let sections = document.sections("certificate").unwrap_or_default();
    let has_any = !sections.is_empty();
    let mut unique = Unique::default();
    (sections.into_iter().filter_map(|section| certificate(section, data_dir, &mut unique)).collect(), has_any)
}

fn certificate(mut section: Section<'_, '_>, data_dir: &Path, unique: &mut Unique) -> Option<Certificate> {
    let chain = section.required("chain", &key::TEXT);
    let key = section.required("key", &key::TEXT);
    let names = names(&mut section);
    let (chain, key) = (chain?, key?);
    unique.claim(&section, "chain", chain.get_ref(), chain.span());
    let file = |name, template: &Spanned<String>| filled(&section, name, template, data_dir);
    Some(Certificate {
        chain: file("chain", &chain)?,
        key: file("key", &key)?,
        names,
        chain_place: chain.span(),
        key_place: key.span(),
    })
}

fn names(section: &mut Section<'_, '_>) -> Vec<Box<str>> {
    let mut names = Vec::new();
    for name in section.list("names", &key::SERVER_NAME).unwrap_or_default() {
        let place = name.span();
        match name.into_inner() {
            ServerName::Host(name) => names.push(name),
            ServerName::Address => {
                let label =
                    "expected a host name; clients that connect to an IP address get the first certificate".to_owned();
                section.state(place, "names", "has an IP address, which clients cannot request", label);
            }
        }
    }
    names
}

const VERSION: Choice<TlsVersion> =
    Choice { built: &[("1.2", TlsVersion::V1_2), ("1.3", TlsVersion::V1_3)], later: &[] };

pub(super) fn server(document: &mut Section<'_, '_>) -> ServerTls {
    let or = ServerTls::default();
    let Some(mut section) = document.section("tls") else { return or };
    ServerTls {
        version_min: section.choice("min_version", &VERSION).unwrap_or(or.version_min),
        handshake_time_max: section.take_or("handshake_timeout", &key::SPAN, or.handshake_time_max),
        reload_every: section.take_or("reload_every", &key::SPAN, or.reload_every),
    }
}

const LISTENER_TLS: Choice<ListenerTls> = Choice {
    built: &[
        ("none", ListenerTls::None),
        ("starttls", ListenerTls::Starttls),
        ("required", ListenerTls::Required),
        ("implicit", ListenerTls::Implicit),
    ],
    later: &[],
};

/// The TLS mode of a listener. By default it depends on whether there is a certificate.
pub(super) fn listener(section: &mut Section<'_, '_>, has_certificate: bool) -> ListenerTls {
    let place = section.place_of("tls");
    let usual = if has_certificate { ListenerTls::Starttls } else { ListenerTls::None };
    let tls = section.choice("tls", &LISTENER_TLS).unwrap_or(usual);
    if tls != ListenerTls::None && !has_certificate {
        section.state(place, "tls", "needs a certificate", "expected a [[certificate]], or tls = \"none\"".into());
    }
    tls
}
