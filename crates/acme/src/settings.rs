//! What an operator configures: which authority, which account, which challenge, and where the files are.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use hyper::Uri;
use instant_acme::ChallengeType;

/// How certificates are obtained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeSettings {
    /// The directory of the authority (RFC 8555 section 7.1.1).
    pub directory: DirectoryUrl,
    /// Mail addresses that the authority may write to.
    pub contacts: Vec<String>,
    /// How the server proves that it controls a name.
    pub challenge: ChallengeMethod,
    /// CA certificates in PEM that vouch for the authority's own server. None: those of the system.
    pub ca_file: Option<PathBuf>,
    /// Where account and certificates are kept.
    pub folder: PathBuf,
    /// How long before its end a certificate is renewed. None: a third of its life.
    pub renew_before: Option<Duration>,
    /// Whether a renewed certificate has the key of the one before it, so that TLSA records of the key
    /// stay true (RFC 7671 section 5.1).
    pub reuses_key: bool,
    /// The account elsewhere that a new account belongs to (RFC 8555 section 7.3.4), if the authority
    /// wants one.
    pub external_account: Option<ExternalAccountSettings>,
}

/// The names of a certificate: at least one, in lower case and as A-labels, without wildcards.
pub type CertificateNames = Box<[Box<str>]>;

/// How the server proves that it controls a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChallengeMethod {
    /// RFC 8555 section 8.3: the authority asks by HTTP at port 80.
    Http01,
    /// RFC 8737: the authority asks by TLS at port 443.
    TlsAlpn01,
}

/// An account at the authority that was made by other means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAccountSettings {
    /// The id of its key.
    pub key_id: String,
    /// The file with the key, in base64url.
    pub key_file: PathBuf,
}

/// The URL of a directory: with https.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryUrl(Uri);

/// Not the URL of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a URL with https")]
pub struct InvalidUrl;

impl AcmeSettings {
    /// The file with the chain and the key of a certificate.
    pub fn certificate_file(&self, names: &CertificateNames) -> PathBuf {
        self.file_named(names, "pem")
    }

    /// A file about a certificate.
    pub(crate) fn file_named(&self, names: &CertificateNames, extension: &str) -> PathBuf {
        file_named(&self.folder, names, extension)
    }
}

/// A host name is a name of a file as it is; it has no slash, and does not begin with a dot.
fn file_named(folder: &Path, names: &CertificateNames, extension: &str) -> PathBuf {
    let first = names.first().map_or("", |name| &**name);
    folder.join(format!("{first}.{extension}"))
}

impl ChallengeMethod {
    /// The name in the configuration, which is that of the RFCs.
    pub fn name(self) -> &'static str {
        match self {
            ChallengeMethod::Http01 => "http-01",
            ChallengeMethod::TlsAlpn01 => "tls-alpn-01",
        }
    }

    pub(crate) fn challenge_type(self) -> ChallengeType {
        match self {
            ChallengeMethod::Http01 => ChallengeType::Http01,
            ChallengeMethod::TlsAlpn01 => ChallengeType::TlsAlpn01,
        }
    }
}

impl DirectoryUrl {
    /// The directory of Let's Encrypt.
    pub fn lets_encrypt() -> DirectoryUrl {
        DirectoryUrl(Uri::from_static("https://acme-v02.api.letsencrypt.org/directory"))
    }

    /// The host of the authority.
    pub fn host(&self) -> &str {
        self.0.host().unwrap_or_default()
    }
}

impl FromStr for DirectoryUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<DirectoryUrl, InvalidUrl> {
        let url: Uri = text.parse().map_err(|_| InvalidUrl)?;
        let is_valid = url.scheme_str() == Some("https") && url.host().is_some_and(|host| !host.is_empty());
        is_valid.then_some(DirectoryUrl(url)).ok_or(InvalidUrl)
    }
}

impl fmt::Display for DirectoryUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_https_and_a_host() {
        let url: DirectoryUrl = "https://localhost:14000/dir".parse().unwrap();
        assert_eq!((url.host(), &*url.to_string()), ("localhost", "https://localhost:14000/dir"));
        assert_eq!(DirectoryUrl::lets_encrypt().host(), "acme-v02.api.letsencrypt.org");
        for text in ["http://ca.example/dir", "ca.example", "/dir", "", "https://", "https:///dir", "https://a b/"] {
            assert_eq!(text.parse::<DirectoryUrl>(), Err(InvalidUrl), "{text}");
        }
    }
}
