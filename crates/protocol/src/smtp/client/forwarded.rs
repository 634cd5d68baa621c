//! XFORWARD, by which a content filter is told of the client that a message came from (Postfix's
//! XFORWARD_README). The command comes before MAIL, in one group with it, and counts for one transaction.
//! A server that refuses it gets the message anyway.

use std::net::IpAddr;

/// Octets of an encoded value; a longer one is not sent.
const VALUE_OCTETS_MAX: usize = 255;
const UNAVAILABLE: &str = "[UNAVAILABLE]";
/// The attributes that are sent.
const NAMES: [&str; 4] = ["ADDR", "HELO", "IDENT", "SOURCE"];

/// The client that a message came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardedClient {
    /// None: unknown, or a program on this machine.
    pub address: Option<IpAddr>,
    /// The name in its HELO or EHLO; empty if there was none.
    pub helo: Box<str>,
    /// The queue id of the message.
    pub ident: Box<str>,
}

/// The attributes that a server takes, of those that are sent: a bit for each of `NAMES`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardedAttributes(u8);

impl ForwardedAttributes {
    /// Reads what follows the keyword XFORWARD.
    pub(super) fn parse(offered: &str) -> Self {
        let is_offered = |name: &str| offered.split(' ').any(|one| one.eq_ignore_ascii_case(name));
        let bits = (0..).zip(NAMES).filter(|(_, name)| is_offered(name)).map(|(number, _)| 1_u8 << number);
        ForwardedAttributes(bits.sum())
    }

    fn contains(self, number: usize) -> bool {
        self.0 & (1 << number) != 0
    }
}

impl ForwardedClient {
    /// The command with these attributes; empty if there are none.
    pub(super) fn line(&self, attributes: ForwardedAttributes) -> Vec<u8> {
        let source = if self.address.is_some() { "REMOTE" } else { "LOCAL" };
        let address = self.address.map_or_else(|| UNAVAILABLE.to_owned(), address_value);
        let values = [address, text_value(&self.helo), text_value(&self.ident), source.to_owned()];
        let known = NAMES.into_iter().zip(values).enumerate().filter(|(number, _)| attributes.contains(*number));
        let known: String = known.map(|(_, (name, value))| format!(" {name}={value}")).collect();
        if known.is_empty() { Vec::new() } else { format!("XFORWARD{known}\r\n").into_bytes() }
    }
}

fn address_value(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("IPV6:{v6}"),
    }
}

/// In xtext (RFC 3461 section 4).
fn text_value(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for octet in text.bytes() {
        match octet {
            b'!'..=b'~' if !matches!(octet, b'+' | b'=') => encoded.push(char::from(octet)),
            _ => encoded.push_str(&format!("+{octet:02X}")),
        }
    }
    if encoded.is_empty() || encoded.len() > VALUE_OCTETS_MAX { UNAVAILABLE.to_owned() } else { encoded }
}

#[cfg(test)]
mod tests {
    use super::super::Extensions;
    use super::*;

    fn line(client: &ForwardedClient, offered: &str) -> String {
        String::from_utf8(client.line(Extensions::parse(&format!("x\n{offered}")).xforward)).unwrap()
    }

    #[test]
    fn only_attributes_that_the_server_knows_are_sent() {
        let mut client =
            ForwardedClient { address: "192.0.2.1".parse().ok(), helo: "a.test".into(), ident: "1-0-1".into() };
        let all = "XFORWARD NAME ADDR PORT PROTO HELO IDENT SOURCE";
        assert_eq!(line(&client, all), "XFORWARD ADDR=192.0.2.1 HELO=a.test IDENT=1-0-1 SOURCE=REMOTE\r\n");
        assert_eq!(line(&client, "xforward addr"), "XFORWARD ADDR=192.0.2.1\r\n");
        assert_eq!(line(&client, "XFORWARD PROTO"), "");
        assert_eq!(line(&client, "PIPELINING"), "");
        client.address = "2001:db8::1".parse().ok();
        assert_eq!(line(&client, "XFORWARD ADDR"), "XFORWARD ADDR=IPV6:2001:db8::1\r\n");
    }

    #[test]
    fn no_value_ends_the_line_or_is_too_long() {
        let mut client = ForwardedClient { address: None, helo: "a b\r\nRSET+=\u{e4}".into(), ident: "".into() };
        let told = "XFORWARD ADDR=[UNAVAILABLE] HELO=a+20b+0D+0ARSET+2B+3D+C3+A4 IDENT=[UNAVAILABLE] SOURCE=LOCAL\r\n";
        assert_eq!(line(&client, "XFORWARD ADDR HELO IDENT SOURCE"), told);
        client.helo = "x".repeat(VALUE_OCTETS_MAX + 1).into();
        assert_eq!(line(&client, "XFORWARD HELO"), "XFORWARD HELO=[UNAVAILABLE]\r\n");
    }
}
