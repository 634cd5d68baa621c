//! The values of macros, as Postfix has them, from what is known of the session.

use mail::{Address, Reply};
use protocol::milter::MacroValues;

use super::Milter;
use crate::access::ReverseName;
use crate::check::{SessionInfo, Submitter};

/// The values at one stage.
pub(super) struct SessionMacros<'a> {
    pub(super) milter: &'a Milter,
    pub(super) session: &'a SessionInfo<'a>,
    /// The client's name and address, as the milter gets them.
    pub(super) client_name: &'a ReverseName,
    pub(super) client_address: String,
    /// At RCPT: the reply, if it was refused.
    pub(super) refusal: Option<&'a Reply>,
}

impl MacroValues for SessionMacros<'_> {
    fn value(&self, name: &str) -> Option<String> {
        let session = self.session;
        let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
        match name {
            "j" => Some(self.milter.hostname.to_string()),
            "v" => Some(concat!("Mailrace ", env!("CARGO_PKG_VERSION")).to_owned()),
            "_" => Some(self.client_as_in_received()),
            "i" => session.id.map(|id| id.to_string()),
            "daemon_name" => {
                let name = self.milter.settings.daemon_name.as_ref();
                Some(name.unwrap_or(&self.milter.hostname).to_string())
            }
            "daemon_addr" => session.local_address.map(|address| address.to_string()),
            "daemon_port" => session.listener.map(|listener| listener.port().to_string()),
            "client_addr" => Some(self.client_address.clone()),
            "client_port" => Some(session.client_port.to_string()),
            "client_name" => Some(self.client_name.confirmed_or_unknown().to_owned()),
            "client_ptr" => Some(self.client_name.reverse_or_unknown().to_owned()),
            "client_resolve" => Some(self.client_name.resolution().to_owned()),
            "tls_version" => session.security.map(|tls| tls.version.to_owned()),
            "cipher" => session.security.map(|tls| tls.cipher.to_owned()),
            "cipher_bits" => session.security.map(|tls| tls.cipher_bits().to_string()),
            "auth_type" => session.login_mechanism.map(str::to_owned),
            "auth_authen" => match session.submitter {
                Submitter::User(user) => Some(user.to_owned()),
                _ => None,
            },
            "mail_addr" => session.sender.map(|sender| sender.map_or("", Address::as_str).to_owned()),
            "mail_host" => session.sender.flatten().map(|sender| sender.domain().to_owned()),
            "rcpt_addr" | "rcpt_host" | "rcpt_mailer" => self.recipient_value(name),
            _ => None,
        }
    }
}

impl SessionMacros<'_> {
    /// The name and address as in a Received field of Sendmail.
    fn client_as_in_received(&self) -> String {
        let forged = if let ReverseName::Unconfirmed(_) = self.client_name { " (may be forged)" } else { "" };
        format!("{} [{}]{forged}", self.client_name.reverse_or_unknown(), self.client_address)
    }

    /// A refused recipient has the reply in place of its address.
    fn recipient_value(&self, name: &str) -> Option<String> {
        match (name, self.refusal) {
            ("rcpt_mailer", refusal) => refusal.map(|_| "error".to_owned()),
            ("rcpt_host", Some(reply)) => Some(reply.enhanced.map_or_else(String::new, |code| code.to_string())),
            (_, Some(reply)) => Some(reply.text.replace('\n', " ")),
            ("rcpt_host", None) => self.session.recipient.map(|recipient| recipient.domain().to_owned()),
            (_, None) => self.session.recipient.map(|recipient| recipient.as_str().to_owned()),
        }
    }
}
