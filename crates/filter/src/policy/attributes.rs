//! The attributes of a question, as in Postfix's SMTPD_POLICY_README. Those that this server does not
//! know are empty, as there.

use std::net::IpAddr;

use mail::Address;
use protocol::policy::PolicyRequest;

use super::PolicyService;
use crate::access::ReverseName;
use crate::check::{SessionInfo, Submitter};
use crate::stage::Stage;

/// What is asked, beside the session.
pub(super) struct Question<'a> {
    pub(super) stage: Stage,
    pub(super) client_name: &'a ReverseName,
    /// The same for all questions of a message.
    pub(super) instance: &'a str,
    /// The octets of a complete message.
    pub(super) message_octets: Option<u64>,
}

/// The request, as it is sent.
pub(super) fn request(service: &PolicyService, session: &SessionInfo<'_>, question: &Question<'_>) -> Vec<u8> {
    let text = |address: Option<IpAddr>| address.map_or_else(String::new, |address| address.to_string());
    let user = match session.submitter {
        Submitter::User(user) => user,
        _ => "",
    };
    let size = question.message_octets.or(session.mail.and_then(|mail| mail.size)).unwrap_or(0).to_string();
    let recipients = if question.stage >= Stage::Data { session.recipients } else { 0 };
    // Postfix names a recipient after DATA only if there is exactly one.
    let recipient = session.recipient.map_or("", Address::as_str);
    let attributes: [(&str, &str); 24] = [
        ("protocol_state", protocol_state(question.stage, session)),
        ("protocol_name", if is_extended(session) { "ESMTP" } else { "SMTP" }),
        ("client_address", &text(session.client)),
        ("client_name", question.client_name.confirmed_or_unknown()),
        ("client_port", &client_port(session)),
        ("reverse_client_name", question.client_name.reverse_or_unknown()),
        ("server_address", &text(session.local_address)),
        ("server_port", &session.listener.map_or_else(String::new, |listener| listener.port().to_string())),
        ("helo_name", session.helo.unwrap_or_default()),
        ("sender", session.sender.flatten().map_or("", Address::as_str)),
        ("recipient", recipient),
        ("recipient_count", &recipients.to_string()),
        ("queue_id", &session.id.map_or_else(String::new, |id| id.to_string())),
        ("instance", question.instance),
        ("size", &size),
        ("etrn_domain", ""),
        ("stress", ""),
        ("sasl_method", session.login_mechanism.unwrap_or_default()),
        ("sasl_username", user),
        ("sasl_sender", session.asserted_author().unwrap_or_default()),
        ("encryption_protocol", session.security.map_or("", |tls| tls.version)),
        ("encryption_cipher", session.security.map_or("", |tls| tls.cipher)),
        ("encryption_keysize", &session.security.map_or(0, |tls| tls.cipher_bits()).to_string()),
        ("policy_context", &service.settings.context),
    ];
    let unknown = ["ccert_subject", "ccert_issuer", "ccert_fingerprint", "ccert_pubkey_fingerprint"];
    let mut request = PolicyRequest::default();
    attributes.into_iter().for_each(|(name, value)| request.push(name, value));
    unknown.into_iter().for_each(|name| request.push(name, ""));
    request.into_wire()
}

/// Empty if it is unknown, after XCLIENT.
fn client_port(session: &SessionInfo<'_>) -> String {
    if session.client_port == 0 { String::new() } else { session.client_port.to_string() }
}

/// Whether the greeting was not HELO; there is none at connect.
fn is_extended(session: &SessionInfo<'_>) -> bool {
    !session.protocol.is_empty() && session.protocol != "SMTP"
}

fn protocol_state(stage: Stage, session: &SessionInfo<'_>) -> &'static str {
    match stage {
        Stage::Connect => "CONNECT",
        Stage::Helo if is_extended(session) => "EHLO",
        Stage::Helo => "HELO",
        Stage::Mail => "MAIL",
        Stage::Rcpt => "RCPT",
        Stage::Data => "DATA",
        Stage::Message => "END-OF-MESSAGE",
    }
}
