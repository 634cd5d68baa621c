//! The lines of an IMAP login. Its commands have the tags `S` (STARTTLS), `I` (ID) and `L` (the
//! login).

use super::{
    BackendAcceptance, BackendFault, BackendLogin, BackendLoginMethod, BackendLoginOutcome, BackendRefusal,
    LineMeaning, State,
};

pub(super) const STARTTLS: &[u8] = b"S STARTTLS\r\n";

/// Response codes of refusals that are about name and password (RFC 5530 section 3). A refusal
/// without a code is too.
const CREDENTIAL_CODES: [&str; 3] = ["AUTHENTICATIONFAILED", "AUTHORIZATIONFAILED", "EXPIRED"];

impl BackendLogin {
    pub(super) fn read_imap_line(&mut self, line: &str) -> LineMeaning {
        let unexpected = || LineMeaning::End(BackendLoginOutcome::Failed(BackendFault::Unexpected(line.into())));
        let (tag, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (&self.state, tag) {
            (State::Greeting, "*") => self.read_imap_greeting(rest),
            (State::Login, "*") if begins_with_word(rest, "CAPABILITY") => {
                self.capability_line = Some(line.into());
                LineMeaning::Skip
            }
            (State::StartTls | State::Login, "*") if !begins_with_word(rest, "BYE") => LineMeaning::Skip,
            (State::StartTls, "S") if begins_with_word(rest, "OK") => LineMeaning::GoOn,
            (State::StartTls, "S") => LineMeaning::End(BackendLoginOutcome::Failed(BackendFault::NoTls(rest.into()))),
            (State::Login, "+") => LineMeaning::GoOn,
            // A host may not know ID.
            (State::Login, "I") => LineMeaning::Skip,
            (State::Login, "L") => self.read_imap_reply(rest).map_or_else(unexpected, LineMeaning::End),
            _ => unexpected(),
        }
    }

    fn read_imap_greeting(&mut self, rest: &str) -> LineMeaning {
        if !begins_with_word(rest, "OK") {
            return LineMeaning::End(BackendLoginOutcome::Failed(BackendFault::NoGreeting(rest.into())));
        }
        let announced = rest.to_ascii_uppercase();
        self.has_sasl_ir = announced
            .split(|separator: char| separator.is_whitespace() || separator == ']')
            .any(|word| matches!(word, "SASL-IR" | "IMAP4REV2"));
        LineMeaning::GoOn
    }

    /// The tagged reply to the login. None if it is not one.
    fn read_imap_reply(&mut self, reply: &str) -> Option<BackendLoginOutcome> {
        let (status, text) = reply.split_once(' ').unwrap_or((reply, ""));
        match status.to_ascii_uppercase().as_str() {
            "OK" if self.parts.is_empty() => {
                let capability_line = self.capability_line.take();
                Some(BackendLoginOutcome::Accepted(BackendAcceptance { text: text.into(), capability_line }))
            }
            "NO" | "BAD" => {
                let code = response_code(text);
                let is_about_credentials = status.eq_ignore_ascii_case("NO")
                    && code.is_none_or(|code| CREDENTIAL_CODES.iter().any(|known| code.eq_ignore_ascii_case(known)));
                Some(BackendLoginOutcome::Refused(BackendRefusal { is_about_credentials, text: text.into() }))
            }
            _ => None,
        }
    }

    /// Makes the parts of the login, with an ID before it if the client's address is to be told.
    pub(super) fn make_imap_login(&mut self) {
        let id = self.request.client.map(|client| format!("I ID (\"x-originating-ip\" \"{client}\")\r\n"));
        let id = id.unwrap_or_default();
        match self.request.method {
            BackendLoginMethod::Plain => {
                let message = self.plain_message();
                if self.has_sasl_ir {
                    self.add_part(&[id.as_bytes(), b"L AUTHENTICATE PLAIN ", message.as_bytes(), b"\r\n"]);
                } else {
                    self.add_part(&[id.as_bytes(), b"L AUTHENTICATE PLAIN\r\n"]);
                    self.add_part(&[message.as_bytes(), b"\r\n"]);
                }
            }
            BackendLoginMethod::Login => {
                let (user, password) = (self.request.user.clone(), self.request.password.clone());
                let mut line = zeroize::Zeroizing::new([id.as_bytes(), b"L LOGIN "].concat());
                self.add_string(&mut line, &user);
                line.push(b' ');
                self.add_string(&mut line, password.reveal());
                self.add_part(&[&line, b"\r\n"]);
            }
        }
    }

    /// Appends a quoted string to the line; or a literal, before which the line is a part of its own
    /// (RFC 9051 section 4.3).
    fn add_string(&mut self, line: &mut Vec<u8>, text: &str) {
        if text.is_ascii() {
            line.push(b'"');
            for octet in text.bytes() {
                line.extend(matches!(octet, b'"' | b'\\').then_some(b'\\'));
                line.push(octet);
            }
            line.push(b'"');
        } else {
            self.add_part(&[line.as_slice(), format!("{{{}}}\r\n", text.len()).as_bytes()]);
            line.clear();
            line.extend_from_slice(text.as_bytes());
        }
    }
}

/// The code at the beginning of a reply's text, without its arguments (RFC 9051 section 7.1).
fn response_code(text: &str) -> Option<&str> {
    let (code, _) = text.strip_prefix('[')?.split_once(']')?;
    code.split(' ').next()
}

fn begins_with_word(text: &str, word: &str) -> bool {
    text.split(' ').next().is_some_and(|first| first.eq_ignore_ascii_case(word))
}
