//! `[acme]`, and what it needs of listeners.

use std::ops::Range;
use std::path::{Path, PathBuf};

use acme::{AcmeSettings, ChallengeMethod, DirectoryUrl, ExternalAccountSettings};
use protocol::TlsMode;

use super::{fill_path, unspanned};
use crate::section::{Keywords, Section};
use crate::value_kind::{self, ValueKind};
use crate::{CertificateSettings, ListenerProtocol, ListenerSettings};

const DIRECTORY: ValueKind<DirectoryUrl> = ValueKind {
    expected: "a URL with https, such as \"https://acme-v02.api.letsencrypt.org/directory\"",
    parse: |v| v.as_str()?.parse().ok(),
};

const CHALLENGE: Keywords<ChallengeMethod> = Keywords {
    supported: &[("http-01", ChallengeMethod::Http01), ("tls-alpn-01", ChallengeMethod::TlsAlpn01)],
    planned: &["dns-01"],
};

/// `[acme]`, valid or not.
pub(super) struct AcmeSection {
    /// None: it has errors.
    pub(super) settings: Option<AcmeSettings>,
    of_challenge: Range<usize>,
}

/// The section, if there is one.
pub(super) fn acme(document: &mut Section<'_, '_>, data_dir: &Path) -> Option<AcmeSection> {
    let mut section = document.section("acme")?;
    let of_challenge = section.span_of("challenge");
    let accepts = accepts_terms(&mut section);
    let directory = section.take_or("directory", &DIRECTORY, DirectoryUrl::lets_encrypt());
    let contacts = section.list("contact", &value_kind::ADDRESS).map(unspanned).unwrap_or_default();
    let settings = AcmeSettings {
        directory,
        contacts: contacts.iter().map(ToString::to_string).collect(),
        challenge: section.choice("challenge", &CHALLENGE).unwrap_or(ChallengeMethod::Http01),
        ca_file: path(&mut section, "ca_file", data_dir),
        folder: path(&mut section, "folder", data_dir).unwrap_or_else(|| data_dir.join("acme")),
        renew_before: section.take("renew_before", &value_kind::DURATION),
        reuses_key: section.take_or("reuse_key", &value_kind::FLAG, true),
        external_account: external_account(&mut section, data_dir),
    };
    Some(AcmeSection { settings: accepts.then_some(settings), of_challenge })
}

/// The operator must have read the terms; no default can say so.
fn accepts_terms(section: &mut Section<'_, '_>) -> bool {
    let accepted = section.take_required("accept_terms", &value_kind::FLAG);
    if let Some(refused) = accepted.as_ref().filter(|accepted| !accepted.get_ref()) {
        let label = "expected true, once you have read the terms of the authority".to_owned();
        section.report(refused.span(), "accept_terms", "is false, so no authority issues anything", label);
    }
    accepted.is_some_and(|accepted| *accepted.get_ref())
}

fn external_account(section: &mut Section<'_, '_>, data_dir: &Path) -> Option<ExternalAccountSettings> {
    let (of_id, of_file) = (section.span_of("external_key_id"), section.span_of("external_key_file"));
    let key_id = section.take("external_key_id", &value_kind::TEXT);
    let key_file = path(section, "external_key_file", data_dir);
    match (key_id, key_file) {
        (Some(key_id), Some(key_file)) => Some(ExternalAccountSettings { key_id, key_file }),
        (Some(_), None) => {
            section.report(of_id, "external_key_id", "needs its key", "expected `external_key_file` too".into());
            None
        }
        (None, Some(_)) => {
            section.report(of_file, "external_key_file", "needs its id", "expected `external_key_id` too".into());
            None
        }
        (None, None) => None,
    }
}

fn path(section: &mut Section<'_, '_>, key: &'static str, data_dir: &Path) -> Option<PathBuf> {
    let template = section.take_spanned(key, &value_kind::TEXT)?;
    fill_path(section, key, &template, data_dir)
}

/// The authority asks one of our listeners, directly or through a proxy.
pub(super) fn check_listeners(
    document: &Section<'_, '_>,
    section: &AcmeSection,
    certificates: &[CertificateSettings],
    listeners: &[ListenerSettings],
) {
    let Some(settings) = &section.settings else { return };
    let answers = |listener: &ListenerSettings| match settings.challenge {
        ChallengeMethod::Http01 => {
            listener.protocol == ListenerProtocol::Http && !listener.api && listener.tls == TlsMode::Never
        }
        ChallengeMethod::TlsAlpn01 => listener.tls == TlsMode::Implicit,
    };
    let is_used = certificates.iter().any(|certificate| certificate.obtained_for.is_some());
    if is_used && !listeners.iter().any(answers) {
        let label = match settings.challenge {
            ChallengeMethod::Http01 => {
                "expected a [[listener]] with protocol = \"http\" and tls = \"none\", which the authority reaches at \
                 port 80"
            }
            ChallengeMethod::TlsAlpn01 => {
                "expected a [[listener]] with tls = \"implicit\", which the authority reaches at port 443"
            }
        };
        document.report(
            section.of_challenge.clone(),
            "acme.challenge",
            "has no listener that answers it",
            label.into(),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::Config;

    const HTTP: &str = "[[listener]]\nprotocol = \"http\"\naddress = \"0.0.0.0:80\"\n";

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, "text", "mx.here").map_err(|faults| faults.to_string())
    }

    #[test]
    fn two_lines_are_enough() {
        let config =
            parse(&format!("{HTTP}[acme]\naccept_terms = true\n[[certificate]]\nacme = [\"MX.example.org\"]\n"));
        let config = config.unwrap();
        let acme = config.acme.unwrap();
        assert_eq!(acme.directory.host(), "acme-v02.api.letsencrypt.org");
        assert_eq!((acme.challenge.name(), acme.renew_before), ("http-01", None));
        assert_eq!(config.certificates[0].obtained_for.as_deref(), Some(&["mx.example.org".into()][..]));
        let path = &config.certificates[0].files.chain;
        assert_eq!(path.to_str(), Some("./mailrace-data/acme/mx.example.org.pem"));
    }

    #[test]
    fn all_settings_arrive() {
        let listener = "[[listener]]\nprotocol = \"smtp\"\naddress = \"0.0.0.0:465\"\ntls = \"implicit\"\n";
        let acme = "[acme]\naccept_terms = true\ndirectory = \"https://ca.example:1/dir\"\ncontact = [\"a@b.example\"]\n\
            challenge = \"tls-alpn-01\"\nca_file = \"/ca\"\nfolder = \"{data_dir}/x\"\nrenew_before = \"20d\"\n\
            external_key_id = \"1\"\nexternal_key_file = \"/key\"\n";
        let certificates =
            "[[certificate]]\nacme = [\"a.example\", \"b.example\"]\n[[certificate]]\nacme = [\"c.example\"]\n";
        let config = parse(&format!("{listener}{acme}{certificates}")).unwrap();
        let acme = config.acme.unwrap();
        assert_eq!(acme.contacts, ["a@b.example"]);
        assert_eq!((acme.directory.host(), acme.challenge.name()), ("ca.example", "tls-alpn-01"));
        assert_eq!(acme.renew_before, Some(Duration::from_secs(20 * 24 * 3600)));
        assert_eq!(acme.folder.to_str(), Some("./mailrace-data/x"));
        assert_eq!(acme.external_account.unwrap().key_id, "1");
        assert_eq!(config.certificates.len(), 2);
    }

    #[test]
    fn what_is_wrong_is_told() {
        let with = |section: &str, certificate: &str| {
            parse(&format!("{HTTP}files = \"/srv\"\n{section}[[certificate]]\n{certificate}\n")).unwrap_err()
        };
        let acme = "[acme]\naccept_terms = true\n";
        let names = "acme = [\"a.example\"]";
        for (told, section, certificate) in [
            ("`certificate.acme` needs [acme]", "", names),
            ("`acme.accept_terms` is missing", "[acme]\n", names),
            ("`acme.accept_terms` is false", "[acme]\naccept_terms = false\n", names),
            (
                "`acme.directory` has an invalid value",
                "[acme]\naccept_terms = true\ndirectory = \"http://a/\"\n",
                names,
            ),
            ("`acme.external_key_id` needs its key", "[acme]\naccept_terms = true\nexternal_key_id = \"1\"\n", names),
            ("`certificate.key` is not allowed here", acme, "acme = [\"a.example\"]\nkey = \"/key\""),
            ("`certificate.acme` has a wildcard", acme, "acme = [\"*.a.example\"]"),
            ("`certificate.acme` has an IP address", acme, "acme = [\"192.0.2.1\"]"),
            ("`certificate.acme` is empty", acme, "acme = []"),
            ("\"a.example\" appears twice", acme, "acme = [\"a.example\"]\n[[certificate]]\nacme = [\"a.example\"]"),
            ("not supported yet", "[acme]\naccept_terms = true\nchallenge = \"dns-01\"\n", names),
            (
                "`acme.challenge` has no listener that answers it",
                "[acme]\naccept_terms = true\nchallenge = \"tls-alpn-01\"\n",
                names,
            ),
        ] {
            let shown = with(section, certificate);
            assert!(shown.contains(told), "{told}: {shown}");
        }
    }

    #[test]
    fn without_the_section_a_listener_of_http_needs_something_to_serve() {
        assert!(parse(HTTP).unwrap_err().contains("`listener.files` is missing"));
        assert!(parse(&format!("{HTTP}[acme]\naccept_terms = true\n")).is_ok());
    }
}
