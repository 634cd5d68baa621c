//! The Received line added to every message (RFC 5321 section 4.4).

use std::fmt::{self, Write};
use std::net::IpAddr;

use mail::{Address, QueueId, Timestamp, TlsInfo};

/// The size of most lines, or more.
const LINE_OCTETS: usize = 320;

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
        let mut line = String::with_capacity(LINE_OCTETS);
        match self.source {
            MessageSource::Client { helo, address, security, user } => {
                push_all(&mut line, &["Received: from ", helo]);
                match address {
                    Some(IpAddr::V4(address)) => push_display(&mut line, format_args!(" ([{address}])")),
                    Some(IpAddr::V6(address)) => push_display(&mut line, format_args!(" ([IPv6:{address}])")),
                    None => {}
                }
                push_all(&mut line, &["\r\n\tby ", self.hostname, " (Mailrace) with ", self.protocol]);
                if let Some(security) = security {
                    push_display(&mut line, format_args!("\r\n\t(using {security})"));
                }
                if let Some(user) = user {
                    push_all(&mut line, &["\r\n\t(authenticated as ", &escape_comment(user), ")"]);
                }
            }
            MessageSource::LocalProgram { uid } => {
                push_all(&mut line, &["Received: by ", self.hostname]);
                push_display(&mut line, format_args!(" (Mailrace, from userid {uid})\r\n\twith {}", self.protocol));
            }
        }
        push_display(&mut line, format_args!(" id {}", self.id));
        if let Some(recipient) = self.recipient {
            push_all(&mut line, &["\r\n\tfor <", recipient.as_str(), ">"]);
        }
        push_all(&mut line, &[";\r\n\t", &self.now.to_rfc5322(), "\r\n"]);
        line
    }
}

fn push_all(line: &mut String, parts: &[&str]) {
    parts.iter().for_each(|part| line.push_str(part));
}

fn push_display(line: &mut String, text: fmt::Arguments<'_>) {
    // A string takes everything.
    let _ = line.write_fmt(text);
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
