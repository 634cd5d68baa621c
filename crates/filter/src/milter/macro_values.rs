//! The values of macros, as Postfix has them, from what is known of the session.

use std::borrow::Cow;
use std::net::IpAddr;

use mail::{Address, Reply};
use protocol::milter::MacroValues;

use super::Milter;
use crate::access::ReverseName;
use crate::check::{SessionInfo, Submitter};
use crate::client_names::UNKNOWN;

/// The values at one stage.
pub(super) struct SessionMacros<'a> {
    pub(super) milter: &'a Milter,
    pub(super) session: &'a SessionInfo<'a>,
    /// The client's name and address, as the milter gets them.
    pub(super) client_name: &'a ReverseName,
    pub(super) client_address: Option<IpAddr>,
    /// At RCPT: the reply, if it was refused.
    pub(super) refusal: Option<&'a Reply>,
}

impl MacroValues for SessionMacros<'_> {
    fn value(&self, name: &str) -> Option<Cow<'_, str>> {
        let session = self.session;
        let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
        Some(match name {
            "j" => (*self.milter.hostname).into(),
            "v" => concat!("Mailrace ", env!("CARGO_PKG_VERSION")).into(),
            "_" => self.client_as_in_received().into(),
            "i" => session.id?.to_string().into(),
            "daemon_name" => self.milter.settings.daemon_name.as_deref().unwrap_or(&self.milter.hostname).into(),
            "daemon_addr" => session.local_address?.to_string().into(),
            "daemon_port" => session.listener?.port().to_string().into(),
            "client_addr" => self.client_address().into(),
            "client_port" => session.client_port.to_string().into(),
            "client_name" => self.client_name.confirmed_or_unknown().into(),
            "client_ptr" => self.client_name.reverse_or_unknown().into(),
            "client_resolve" => self.client_name.resolution().into(),
            "tls_version" => session.security?.version.into(),
            "cipher" => session.security?.cipher.into(),
            "cipher_bits" => session.security?.cipher_bits().to_string().into(),
            "auth_type" => session.login_mechanism?.into(),
            "auth_authen" => match session.submitter {
                Submitter::User(user) => user.into(),
                _ => return None,
            },
            "auth_author" => session.asserted_author()?.into(),
            "mail_addr" => session.sender?.map_or("", Address::as_str).into(),
            "mail_host" => session.sender??.domain().into(),
            "rcpt_addr" | "rcpt_host" | "rcpt_mailer" => return self.recipient_value(name),
            _ => return None,
        })
    }
}

impl SessionMacros<'_> {
    fn client_address(&self) -> String {
        self.client_address.map_or_else(|| UNKNOWN.to_owned(), |address| address.to_string())
    }

    /// The name and address as in a Received field of Sendmail.
    fn client_as_in_received(&self) -> String {
        let forged = if let ReverseName::Unconfirmed(_) = self.client_name { " (may be forged)" } else { "" };
        format!("{} [{}]{forged}", self.client_name.reverse_or_unknown(), self.client_address())
    }

    /// A refused recipient has the reply in place of its address.
    fn recipient_value(&self, name: &str) -> Option<Cow<'_, str>> {
        Some(match (name, self.refusal) {
            ("rcpt_mailer", Some(_)) => "error".into(),
            ("rcpt_mailer", None) => {
                let is_local = self.session.is_recipient_local?;
                if is_local { "local".into() } else { "smtp".into() }
            }
            ("rcpt_host", Some(reply)) => reply.enhanced.map_or_else(String::new, |code| code.to_string()).into(),
            (_, Some(reply)) => reply.text.replace('\n', " ").into(),
            ("rcpt_host", None) => self.session.recipient?.domain().into(),
            (_, None) => self.session.recipient?.as_str().into(),
        })
    }
}
