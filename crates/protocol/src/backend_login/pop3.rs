//! The lines of a POP3 login.

use super::{
    BackendAcceptance, BackendFault, BackendLogin, BackendLoginMethod, BackendLoginOutcome, BackendRefusal,
    LineMeaning, State,
};

pub(super) const STLS: &[u8] = b"STLS\r\n";

const AUTH: &[u8] = b"AUTH PLAIN";
/// Octets of a command with its CRLF (RFC 2449 section 4).
const COMMAND_OCTETS_MAX: usize = 255;

impl BackendLogin {
    pub(super) fn read_pop3_line(&mut self, line: &str) -> LineMeaning {
        let end = |outcome| LineMeaning::End(outcome);
        let failed = |fault| LineMeaning::End(BackendLoginOutcome::Failed(fault));
        let (status, text) = line.split_once(' ').unwrap_or((line, ""));
        match (&self.state, status) {
            (State::Greeting | State::StartTls, "+OK") => LineMeaning::GoOn,
            (State::Greeting, "-ERR") => failed(BackendFault::NoGreeting(text.into())),
            (State::StartTls, "-ERR") => failed(BackendFault::NoTls(text.into())),
            (State::Login, "+OK") if self.parts.is_empty() => {
                end(BackendLoginOutcome::Accepted(BackendAcceptance { text: text.into(), capability_line: None }))
            }
            (State::Login, "+OK") if self.request.method == BackendLoginMethod::Login => LineMeaning::GoOn,
            (State::Login, "+") if self.request.method == BackendLoginMethod::Plain => LineMeaning::GoOn,
            (State::Login, "-ERR") => {
                let is_about_credentials = is_about_credentials(text);
                end(BackendLoginOutcome::Refused(BackendRefusal { is_about_credentials, text: text.into() }))
            }
            _ => failed(BackendFault::Unexpected(line.into())),
        }
    }

    pub(super) fn make_pop3_login(&mut self) {
        match self.request.method {
            BackendLoginMethod::Plain => {
                let message = self.plain_message();
                if AUTH.len() + b" ".len() + message.len() + b"\r\n".len() <= COMMAND_OCTETS_MAX {
                    self.add_part(&[AUTH, b" ", message.as_bytes(), b"\r\n"]);
                } else {
                    self.add_part(&[AUTH, b"\r\n"]);
                    self.add_part(&[message.as_bytes(), b"\r\n"]);
                }
            }
            BackendLoginMethod::Login => {
                let (user, password) = (self.request.user.clone(), self.request.password.clone());
                self.add_part(&[b"USER ", user.as_bytes(), b"\r\n"]);
                self.add_part(&[b"PASS ", password.reveal().as_bytes(), b"\r\n"]);
            }
        }
    }
}

/// Whether the text of a refusal says so, by its code or by having none (RFC 3206 section 4).
fn is_about_credentials(text: &str) -> bool {
    let code = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    code.is_none_or(|(code, _)| code.eq_ignore_ascii_case("AUTH"))
}
