//! The TLS settings of a transport: `tls`, `tls_names`, `tls_ca_file` and `mta_sts`.

use std::path::{Path, PathBuf};

use protocol::smtp::MailProtocol;
use protocol::smtp::client::TlsPolicy;
use route::{DomainPattern, TlsDemand, TlsOptions};

use super::{fill_path, unspanned};
use crate::section::{Keywords, Section};
use crate::value_kind;

/// What `tls` means: for the session, and for the host.
type TlsChoice = (TlsPolicy, TlsDemand);

const OFFERED: TlsChoice = (TlsPolicy::Offered, TlsDemand::Nothing);
const DANE: TlsChoice = (TlsPolicy::Offered, TlsDemand::Dane);
const TLS: Keywords<TlsChoice> = Keywords {
    supported: &[
        ("never", (TlsPolicy::Never, TlsDemand::Nothing)),
        ("offered", OFFERED),
        ("dane", DANE),
        ("required", (TlsPolicy::Required, TlsDemand::Nothing)),
        ("verified", (TlsPolicy::Required, TlsDemand::Verified)),
    ],
    planned: &[],
};

/// The TLS settings of a transport.
pub(super) struct TransportTls {
    pub(super) policy: TlsPolicy,
    pub(super) options: TlsOptions,
    pub(super) ca_file: Option<PathBuf>,
}

/// `validating` says whether the name servers validate with DNSSEC.
pub(super) fn transport_tls(
    section: &mut Section<'_, '_>,
    flavor: MailProtocol,
    validating: bool,
    data_dir: &Path,
) -> TransportTls {
    let place = section.span_of("tls");
    let default = if validating && flavor == MailProtocol::Smtp { DANE } else { OFFERED };
    let (policy, demand) = section.choice("tls", &TLS).unwrap_or(default);
    if demand == TlsDemand::Dane && !validating {
        let label = "expected `validating = true` in [dns] too: only a validated answer can be trusted".to_owned();
        section.report(place, "tls", "cannot be \"dane\"", label);
    }
    let (names, ca_file) = match demand {
        TlsDemand::Verified => verification(section, data_dir),
        TlsDemand::Nothing | TlsDemand::Dane => {
            let label = "expected only with tls = \"verified\"";
            ["tls_names", "tls_ca_file"].into_iter().for_each(|key| section.reject(key, label));
            (Vec::new(), None)
        }
    };
    let has_policies = flavor == MailProtocol::Smtp && policy != TlsPolicy::Never && demand != TlsDemand::Verified;
    let mta_sts = section.take_spanned("mta_sts", &value_kind::FLAG);
    if let Some(wanted) = mta_sts.as_ref().filter(|wanted| *wanted.get_ref() && !has_policies) {
        let label = "expected only with type = \"smtp\", and not with tls = \"never\" or \"verified\"".to_owned();
        section.report(wanted.span(), "mta_sts", "has no effect", label);
    }
    let mta_sts = mta_sts.map_or(has_policies, |wanted| wanted.into_inner());
    TransportTls { policy, options: TlsOptions { demand, names, mta_sts }, ca_file }
}

/// The names and authorities of verified certificates.
fn verification(section: &mut Section<'_, '_>, data_dir: &Path) -> (Vec<DomainPattern>, Option<PathBuf>) {
    let names = section.list("tls_names", &value_kind::PATTERN).map_or(Vec::new(), unspanned);
    let file = section.take_spanned("tls_ca_file", &value_kind::TEXT);
    (names, file.and_then(|file| fill_path(section, "tls_ca_file", &file, data_dir)))
}
