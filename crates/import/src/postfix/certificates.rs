//! Converts server certificates and TLS versions.

use super::Conversion;
use super::config_draft::{TomlSection, quoted};
use super::inbound_services::TlsLevel;
use super::words::list;

impl Conversion<'_> {
    /// `smtpd_tls_chain_files`, or pairs of certificate and key files.
    pub(super) fn certificates(&mut self) {
        if !self.inbound_services.iter().any(|inbound| inbound.tls_level != TlsLevel::Never || inbound.implicit_tls) {
            return;
        }
        self.draft.mapped("smtpd_tls_security_level");
        let given = |name: &str| self.values.explicit_value(name).filter(|value| !value.is_empty() && value != "none");
        let chains = list(&given("smtpd_tls_chain_files").unwrap_or_default());
        let mut pairs: Vec<(String, String, [&str; 2])> = Vec::new();
        if chains.is_empty() {
            for [chain, key] in PAIRS {
                let Some(file) = given(chain) else { continue };
                let key_file = given(key).filter(|it| it != "$smtpd_tls_cert_file").unwrap_or_else(|| file.clone());
                pairs.push((file, key_file, [chain, key]));
            }
        } else {
            // A chain file contains the key first and then the certificates; both keys of the
            // section name it.
            pairs.extend(chains.into_iter().map(|file| (file.clone(), file, ["smtpd_tls_chain_files"; 2])));
        }
        for (chain, key, from) in pairs {
            // Braces are placeholders in our paths.
            let is_odd = |c: char| c == '{' || c == '}' || c.is_control();
            if chain.contains(is_odd) || key.contains(is_odd) {
                from.iter().for_each(|name| self.draft.unsupported(name, "expected a path without braces"));
                continue;
            }
            from.iter().for_each(|name| self.draft.mapped(name));
            let block = TomlSection::new("[[certificate]]").key("chain", quoted(&chain), from[0]);
            self.draft.add(block.key("key", quoted(&key), from[1]));
        }
        self.has_certificates = self.draft.sections.iter().any(|block| block.header == "[[certificate]]");
        self.versions();
    }

    fn versions(&mut self) {
        let name = "smtpd_tls_protocols";
        let Some(value) = self.values.explicit_value(name) else { return };
        let demands_13 = value == ">=TLSv1.3" || value == "TLSv1.3" || list(&value).iter().any(|it| it == "!TLSv1.2");
        match demands_13 {
            true => self.draft.set("[tls]", "min_version", quoted("1.3"), name),
            false => self.draft.not_needed(name, "TLS 1.2 and 1.3 are supported, nothing older"),
        }
    }
}

/// Parameters of a certificate and its key.
const PAIRS: [[&str; 2]; 3] = [
    ["smtpd_tls_cert_file", "smtpd_tls_key_file"],
    ["smtpd_tls_eccert_file", "smtpd_tls_eckey_file"],
    ["smtpd_tls_dcert_file", "smtpd_tls_dkey_file"],
];
