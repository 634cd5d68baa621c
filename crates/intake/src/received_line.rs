//! The Received line added to every message (RFC 5321 section 4.4).

use std::net::IpAddr;

use mail::{Address, QueueId, Timestamp, TlsInfo};

/// The contents of a Received line.
pub(crate) struct ReceivedLine<'a> {
    pub(crate) source: MessageSource<'a>,
    pub(crate) hostname: &'a str,
    pub(crate) protocol: &'static str,
    pub(crate) id: QueueId,
    /// Only if it is the only recipient, so that recipients do not learn of each other (section
    /// 7.2).
    pub(crate) recipient: Option<&'a Address>,
    pub(crate) now: Timestamp,
}

/// Who brought the message.
pub(crate) enum MessageSource<'a> {
    Client {
        helo: &'a str,
        address: Option<IpAddr>,
        /// Added as a comment.
        security: Option<TlsInfo>,
        /// Added as a comment.
        user: Option<&'a str>,
    },
    /// A program on this machine; the operating system tells the id of its user.
    LocalProgram { uid: u32 },
}

impl ReceivedLine<'_> {
    /// The folded line with its CRLF.
    pub(crate) fn to_line(&self) -> String {
        let recipient = self.recipient.map(|address| format!("\r\n\tfor <{address}>")).unwrap_or_default();
        let (hostname, protocol, id, date) = (self.hostname, self.protocol, self.id, self.now.to_rfc5322());
        match self.source {
            MessageSource::Client { helo, address, security, user } => {
                let client = match address {
                    Some(IpAddr::V4(address)) => format!(" ([{address}])"),
                    Some(IpAddr::V6(address)) => format!(" ([IPv6:{address}])"),
                    None => String::new(),
                };
                let security = security.map(|security| format!("\r\n\t(using {security})")).unwrap_or_default();
                let user = user.map(|user| format!("\r\n\t(authenticated as {})", escape_comment(user)));
                let user = user.unwrap_or_default();
                format!(
                    "Received: from {helo}{client}\r\n\tby {hostname} (Mailrace) with {protocol}{security}{user} id {id}{recipient};\r\n\t{date}\r\n"
                )
            }
            MessageSource::LocalProgram { uid } => format!(
                "Received: by {hostname} (Mailrace, from userid {uid})\r\n\twith {protocol} id {id}{recipient};\r\n\t{date}\r\n"
            ),
        }
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

    fn received<'a>(source: MessageSource<'a>, protocol: &'static str, recipient: Option<&'a Address>) -> String {
        let (hostname, id) = ("mx.example.org", QueueId::new(SpoolId::new(1), 0, 33));
        ReceivedLine { source, hostname, protocol, id, recipient, now: Timestamp(0) }.to_line()
    }

    #[test]
    fn the_line_names_the_client_and_a_lone_recipient() {
        let recipient = "bob@example.org".parse().unwrap();
        let line = |protocol, security, user| {
            let address = Some("2001:db8::1".parse().unwrap());
            let source = MessageSource::Client { helo: "client.example", address, security, user };
            received(source, protocol, Some(&recipient))
        };
        let expected = "Received: from client.example ([IPv6:2001:db8::1])\r\n\tby mx.example.org (Mailrace) with ESMTP \
                        id 1-0-11\r\n\tfor <bob@example.org>;\r\n\tThu, 1 Jan 1970 00:00:00 +0000\r\n";
        assert_eq!(line("ESMTP", None, None), expected);
        let security = TlsInfo { version: "TLSv1.3", cipher: "TLS_AES_256_GCM_SHA384" };
        let secured = line("ESMTPS", Some(security), None);
        let comment = "with ESMTPS\r\n\t(using TLSv1.3 with cipher TLS_AES_256_GCM_SHA384) id 1-0-11\r\n\tfor";
        assert!(secured.contains(comment), "{secured}");
        let named = line("ESMTPA", None, Some("b(o)b\u{fc}"));
        assert!(named.contains("with ESMTPA\r\n\t(authenticated as b\\(o\\)b?) id 1-0-11\r\n"), "{named}");
    }

    #[test]
    fn the_line_names_the_user_of_a_local_program() {
        let expected = "Received: by mx.example.org (Mailrace, from userid 7)\r\n\twith local id 1-0-11;\r\n\t\
                        Thu, 1 Jan 1970 00:00:00 +0000\r\n";
        assert_eq!(received(MessageSource::LocalProgram { uid: 7 }, "local", None), expected);
    }
}
