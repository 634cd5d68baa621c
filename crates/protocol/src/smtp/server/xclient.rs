//! XCLIENT, by which a trusted proxy names the client it speaks for (Postfix's XCLIENT_README): the
//! attributes, and their effect on the session. The driver decides which peers are trusted.
//!
//! After it, the session is as before its banner, which is sent again for the named client. The
//! client's HELO name counts from then on, whatever the proxy says in its own EHLO.
//!
//! Once the address was given, further input may be the client's own words, passed on by the proxy,
//! so the proxy's privileges end unless the driver also trusts that address. HELO may be given
//! before, in a command of its own (XCLIENT_README: "send NAME and ADDR last").

use std::net::{IpAddr, Ipv6Addr};

use mail::Reply;

use super::actions::{SessionQuestion, XclientIdentity};
use super::{PendingQuestion, SmtpSession, State, command, replies};

/// The EHLO keyword line.
pub(super) const KEYWORD: &str = "250-XCLIENT NAME ADDR PORT PROTO HELO LOGIN DESTADDR DESTPORT\r\n";
/// The values for attributes unknown to the proxy.
const UNKNOWN: [&str; 2] = ["[UNAVAILABLE]", "[TEMPUNAVAIL]"];

impl SmtpSession {
    /// Allows the peer to use XCLIENT.
    pub fn with_xclient(mut self) -> Self {
        self.trusts_xclient = true;
        self
    }

    /// Allows the client that the peer speaks for to use XCLIENT too. Call it while
    /// [`SessionQuestion::Identity`] is pending.
    pub fn allow_client_xclient(&mut self) {
        self.trusts_xclient = true;
    }

    /// Converts a bare CR or LF in that client's messages to CRLF. Call it while
    /// [`SessionQuestion::Identity`] is pending.
    pub fn normalise_client_newlines(&mut self) {
        self.peer.normalise_bare_newlines = true;
    }

    /// Allows that client to relay. Call it while [`SessionQuestion::Identity`] is pending.
    pub fn allow_client_relay(&mut self) {
        self.peer.may_relay = true;
    }

    pub(super) fn xclient(&mut self, arguments: &str) -> Result<(), Reply> {
        if !self.trusts_xclient {
            return Err(replies::XCLIENT_DENIED);
        }
        if self.transaction.is_some() {
            return Err(replies::NOT_IN_TRANSACTION);
        }
        let identity = parse_attributes(arguments).ok_or(replies::XCLIENT_SYNTAX)?;
        if let Some(address) = identity.address {
            // Whatever the answer, the proxy is not the peer any more.
            self.peer.address = address;
            self.trusts_xclient = false;
            self.peer.normalise_bare_newlines = false;
            self.peer.may_relay = false;
        }
        self.ask(PendingQuestion::Identity(Box::new(identity.clone())), SessionQuestion::Identity(identity));
        Ok(())
    }

    /// The driver accepted the new identity.
    pub(super) fn accept_identity(&mut self, identity: XclientIdentity) {
        self.greeting = None;
        self.helo = Box::default();
        self.errors = 0;
        self.commands = 0;
        // A login belongs to the previous client.
        self.authenticated_user = None;
        self.failed_logins = 0;
        if let Some(helo) = identity.helo {
            self.xclient_helo = helo;
            self.xclient_helo_first = identity.address.is_none();
        } else if identity.address.is_some() {
            // Keep the name if it was given ahead; otherwise it belongs to the previous client.
            self.xclient_helo = self.xclient_helo.take().filter(|_| self.xclient_helo_first);
            self.xclient_helo_first = false;
        }
        let banner = self.config.banner();
        self.send_reply(banner.as_bytes());
    }

    /// Refuses the new identity in place of the banner, and ends the session.
    pub(super) fn refuse_identity(&mut self, reply: Reply) {
        self.refuse(command::Verb::Xclient.stage(), None, reply);
        self.abandon();
        self.state = State::Closed;
    }
}

/// Parses the attributes; None if one is unknown, invalid or repeated, or if there are none.
fn parse_attributes(arguments: &str) -> Option<XclientIdentity> {
    let mut identity = XclientIdentity::default();
    let mut seen = Vec::new();
    for word in arguments.split_ascii_whitespace() {
        let (name, value) = word.split_once('=')?;
        let name = name.to_ascii_uppercase();
        let value =
            if UNKNOWN.iter().any(|word| word.eq_ignore_ascii_case(value)) { None } else { Some(decode_xtext(value)?) };
        let value = value.as_deref();
        match name.as_str() {
            "ADDR" => identity.address = Some(value.map(address).map_or(Some(None), |it| it.map(Some))?),
            "DESTADDR" => identity.own_address = Some(value.map(address).map_or(Some(None), |it| it.map(Some))?),
            "HELO" => {
                let host = |value: &str| command::parse_host(value).map(Box::from);
                identity.helo = Some(value.map(host).map_or(Some(None), |it| it.map(Some))?);
            }
            "PORT" => identity.port = Some(value.map_or(Some(0), |port| port.parse().ok())?),
            "DESTPORT" if value.is_none_or(|port| port.parse::<u16>().is_ok()) => {}
            "PROTO" if value.is_none_or(|it| ["SMTP", "ESMTP"].iter().any(|own| own.eq_ignore_ascii_case(it))) => {}
            "NAME" | "LOGIN" => {}
            _ => return None,
        }
        if seen.contains(&name) {
            return None;
        }
        seen.push(name);
    }
    (!seen.is_empty()).then_some(identity)
}

/// `192.0.2.1` or `IPV6:2001:db8::1`.
fn address(value: &str) -> Option<IpAddr> {
    let address: IpAddr = match value.split_at_checked(5) {
        Some((tag, v6)) if tag.eq_ignore_ascii_case("IPV6:") => v6.parse::<Ipv6Addr>().ok()?.into(),
        _ => value.parse().ok()?,
    };
    Some(address.to_canonical())
}

/// Decodes xtext (RFC 3461 section 4). None if it is invalid, or has control characters.
fn decode_xtext(value: &str) -> Option<String> {
    let mut bytes = value.bytes();
    let mut decoded = Vec::with_capacity(value.len());
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => {
                let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                decoded.push(high * 16 + low);
            }
            0x21..0x7f => decoded.push(byte),
            _ => return None,
        }
    }
    String::from_utf8(decoded).ok().filter(|text| !text.chars().any(char::is_control))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_in_any_case_and_order() {
        let read = parse_attributes(
            "helo=spike.example NAME=[UNAVAILABLE] ADDR=IPV6:2001:db8::1 port=25 LOGIN=a+40b proto=ESMTP",
        );
        let expected = XclientIdentity {
            address: Some("2001:db8::1".parse().ok()),
            port: Some(25),
            own_address: None,
            helo: Some(Some("spike.example".into())),
        };
        assert_eq!(read, Some(expected));
    }

    #[test]
    fn unknown_attributes_differ_from_absent_ones() {
        let identity = parse_attributes("ADDR=[unavailable] HELO=[TEMPUNAVAIL] DESTADDR=192.0.2.9").unwrap();
        let own_address = Some("192.0.2.9".parse().ok());
        assert_eq!(identity, XclientIdentity { address: Some(None), port: None, own_address, helo: Some(None) });
        assert_eq!(parse_attributes("NAME=mx.example.org"), Some(XclientIdentity::default()));
        assert_eq!(parse_attributes("ADDR=::ffff:192.0.2.1").unwrap().address, Some("192.0.2.1".parse().ok()));
    }

    #[test]
    fn bad_attributes_are_none() {
        for arguments in [
            "",
            "ADDR",
            "ADDR=",
            "ADDR=192.0.2",
            "ADDR=IPV6:192.0.2.1",
            "ADDR=192.0.2.1 addr=192.0.2.1",
            "PORT=65536",
            "PROTO=HTTP",
            "HELO=a+20b",
            "HELO=a+2",
            "NAME=a+0Ab",
            "NAME=a+FFb",
            "COLOUR=red",
        ] {
            assert_eq!(parse_attributes(arguments), None, "{arguments}");
        }
    }
}
