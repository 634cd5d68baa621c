//! `auth` of `[transport.NAME]`: the logins at its next hops.

use std::path::Path;

use delivery::remote::LoginSecurity;
use protocol::sasl::client::LoginMechanism;
use protocol::smtp::client::{CREDENTIAL_OCTETS_MAX, TlsPolicy};
use route::TlsDemand;
use toml::Spanned;

use super::transport_tls::TransportTls;
use super::{fill_path, take_reference};
use crate::section::{Keywords, Section};
use crate::value_kind::{self, ValueKind};
use crate::{RelayAuthSettings, RelayLoginSettings, RelaySecretFile};

const MECHANISM: ValueKind<LoginMechanism> = ValueKind {
    expected: "\"SCRAM-SHA-256\", \"PLAIN\" or \"LOGIN\"",
    parse: |v| {
        let name = v.as_str()?;
        LoginMechanism::WITH_PASSWORD.into_iter().find(|known| known.name().eq_ignore_ascii_case(name))
    },
};
const USER: ValueKind<String> = ValueKind {
    expected: "a user name without control characters",
    parse: |v| {
        let user = v.as_str()?;
        let is_sound = (1..=CREDENTIAL_OCTETS_MAX).contains(&user.len()) && !user.contains(char::is_control);
        is_sound.then(|| user.to_owned())
    },
};
const SECURITY: Keywords<LoginSecurity> = Keywords {
    supported: &[
        ("verified", LoginSecurity::Verified),
        ("required", LoginSecurity::Encrypted),
        ("offered", LoginSecurity::ClearText),
    ],
    planned: &[],
};

/// The logins of a transport with these settings for TLS.
pub(super) fn relay_auth(
    transport: &mut Section<'_, '_>,
    tls: &TransportTls,
    tables: &[String],
    data_dir: &Path,
) -> Option<RelayAuthSettings> {
    let mut section = transport.section("auth")?;
    let senders = take_reference(&mut section, "senders", "[[table]]", tables).map(|table| table.into_inner().into());
    if senders.is_none() {
        section.report_if_missing("user", "a user name, or `senders` with a table of logins");
    }
    let login = login(&mut section, data_dir);
    let is_token = matches!(&login, Some(RelayLoginSettings { secret: RelaySecretFile::Token(_), .. }));
    let has_passwords = senders.is_some() || !is_token;
    let mechanisms = mechanisms(&mut section, has_passwords);
    let security_span = section.span_of("tls");
    let security = section.choice("tls", &SECURITY).unwrap_or_default();
    if let Some(remedy) = missing_security(security, tls) {
        let label = format!("the login is never sent over the connections of this transport; expected {remedy}");
        section.report(security_span, "tls", "cannot be satisfied", label);
    }
    Some(RelayAuthSettings { login, senders, mechanisms, security })
}

/// What to change if no connection can be safe enough for a login.
fn missing_security(security: LoginSecurity, tls: &TransportTls) -> Option<&'static str> {
    match security {
        LoginSecurity::Verified if tls.options.demand == TlsDemand::Nothing => {
            Some("tls = \"verified\" in the transport, or tls = \"required\" here: any certificate")
        }
        LoginSecurity::Encrypted if tls.policy == TlsPolicy::Never => {
            Some("tls = \"required\" in the transport, or tls = \"offered\" here: clear text too")
        }
        LoginSecurity::Verified | LoginSecurity::Encrypted | LoginSecurity::ClearText => None,
    }
}

fn login(section: &mut Section<'_, '_>, data_dir: &Path) -> Option<RelayLoginSettings> {
    let user = section.take_spanned("user", &USER);
    let password = section.take_spanned("password_file", &value_kind::TEXT);
    let token = section.take_spanned("token_file", &value_kind::TEXT);
    let (key, file) = match (password, token) {
        (Some(_), Some(token)) => {
            let label = "expected one of `password_file` and `token_file`, not both".to_owned();
            section.report(token.span(), "token_file", "conflicts with `password_file`", label);
            return None;
        }
        (Some(file), None) => ("password_file", Some(file)),
        (None, Some(file)) => ("token_file", Some(file)),
        (None, None) => ("password_file", None),
    };
    match (&user, &file) {
        (Some(user), None) => {
            let label = "expected `password_file` or `token_file` too".to_owned();
            section.report(user.span(), "user", "needs a password", label);
        }
        (None, Some(file)) => {
            section.report(file.span(), key, "is not allowed here", "expected `user` too".to_owned());
        }
        _ => {}
    }
    let path = file.and_then(|file| fill_path(section, key, &file, data_dir))?;
    let secret = if key == "token_file" { RelaySecretFile::Token(path) } else { RelaySecretFile::Password(path) };
    Some(RelayLoginSettings { user: user?.into_inner().into(), secret })
}

/// The mechanisms for passwords, the preferred one first.
fn mechanisms(section: &mut Section<'_, '_>, has_passwords: bool) -> Vec<LoginMechanism> {
    if !has_passwords {
        section.reject("mechanisms", "expected only with passwords; a token is used by XOAUTH2");
    }
    let span = section.span_of("mechanisms");
    let Some(written) = section.list("mechanisms", &MECHANISM) else { return LoginMechanism::WITH_PASSWORD.into() };
    if written.is_empty() {
        section.report(span, "mechanisms", "is empty", format!("expected at least one of {}", MECHANISM.expected));
    }
    written.into_iter().map(Spanned::into_inner).collect()
}
