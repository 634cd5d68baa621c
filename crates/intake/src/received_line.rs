//! The Received line added to every message (RFC 5321 section 4.4).

use std::net::IpAddr;

use mail::{Address, QueueId, Timestamp, TlsInfo};

/// The contents of a Received line.
pub(crate) struct ReceivedLine<'a> {
    pub(crate) helo: &'a str,
    pub(crate) client: Option<IpAddr>,
    pub(crate) hostname: &'a str,
    pub(crate) protocol: &'static str,
    /// Added as a comment.
    pub(crate) security: Option<TlsInfo>,
    /// Added as a comment.
    pub(crate) user: Option<&'a str>,
    pub(crate) id: QueueId,
    /// Only if it is the only recipient, so that recipients do not learn of each other (section
    /// 7.2).
    pub(crate) recipient: Option<&'a Address>,
    pub(crate) now: Timestamp,
}

impl ReceivedLine<'_> {
    /// The folded line with its CRLF.
    pub(crate) fn to_line(&self) -> String {
        let client = match self.client {
            Some(IpAddr::V4(address)) => format!(" ([{address}])"),
            Some(IpAddr::V6(address)) => format!(" ([IPv6:{address}])"),
            None => String::new(),
        };
        let security = self.security.map(|security| format!("\r\n\t(using {security})")).unwrap_or_default();
        let user =
            self.user.map(|user| format!("\r\n\t(authenticated as {})", escape_comment(user))).unwrap_or_default();
        let recipient = self.recipient.map(|address| format!("\r\n\tfor <{address}>")).unwrap_or_default();
        let (helo, hostname, protocol, id) = (self.helo, self.hostname, self.protocol, self.id);
        let date = self.now.rfc5322_date();
        format!(
            "Received: from {helo}{client}\r\n\tby {hostname} (Mailrace) with {protocol}{security}{user} id {id}{recipient};\r\n\t{date}\r\n"
        )
    }
}

/// Escapes a comment (RFC 5322 section 3.2.2); non-ASCII characters are replaced.
fn escape_comment(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if matches!(c, '(' | ')' | '\\') {
            escaped.push('\\');
        }
        escaped.push(if c == ' ' || c.is_ascii_graphic() { c } else { '?' });
    }
    escaped
}

#[cfg(test)]
mod tests {
    use mail::SpoolId;

    use super::*;

    #[test]
    fn the_line_names_the_client_and_a_lone_recipient() {
        let recipient = "bob@example.org".parse().unwrap();
        let received = ReceivedLine {
            helo: "client.example",
            client: Some("2001:db8::1".parse().unwrap()),
            hostname: "mx.example.org",
            protocol: "ESMTP",
            security: None,
            user: None,
            id: QueueId::new(SpoolId::new(1), 0, 33),
            recipient: Some(&recipient),
            now: Timestamp(0),
        };
        let expected = "Received: from client.example ([IPv6:2001:db8::1])\r\n\tby mx.example.org (Mailrace) with ESMTP \
                        id 1-0-11\r\n\tfor <bob@example.org>;\r\n\tThu, 1 Jan 1970 00:00:00 +0000\r\n";
        assert_eq!(received.to_line(), expected);
        let security = TlsInfo { version: "TLSv1.3", cipher: "TLS_AES_256_GCM_SHA384" };
        let secured = ReceivedLine { security: Some(security), protocol: "ESMTPS", ..received }.to_line();
        let comment = "with ESMTPS\r\n\t(using TLSv1.3 with cipher TLS_AES_256_GCM_SHA384) id 1-0-11\r\n\tfor";
        assert!(secured.contains(comment), "{secured}");
        let named = ReceivedLine { user: Some("b(o)b\u{fc}"), protocol: "ESMTPA", ..received }.to_line();
        assert!(named.contains("with ESMTPA\r\n\t(authenticated as b\\(o\\)b?) id 1-0-11\r\n"), "{named}");
    }
}
