//! Macros: values of the mail server, by name, that a milter gets before a command.
//!
//! The names before each command are those that Postfix sends, unless the milter has asked for others
//! when it negotiated.

use std::borrow::Cow;

use super::command::MilterStep;
use super::frame::{push_frame, push_string};
use super::limits::MilterViolation;

/// Macro names that a milter may ask for at one step.
const NAMES_MAX: usize = 256;
const COMMAND: u8 = b'D';

/// Gives the values of macros.
pub trait MacroValues: Sync {
    /// The value of a macro, whose name is a letter (`i`) or in braces (`{client_addr}`). None: it
    /// has none now, and is not sent.
    fn value(&self, name: &str) -> Option<Cow<'_, str>>;
}

/// The names that the milter has asked for, by step; None where it has not asked.
#[derive(Debug, Default)]
pub(super) struct RequestedMacros {
    names: [Option<Box<str>>; STEPS.len()],
}

/// The steps that have macros, in the order of their numbers in a request.
const STEPS: [MilterStep; 7] = [
    MilterStep::Connect,
    MilterStep::Helo,
    MilterStep::Mail,
    MilterStep::Rcpt,
    MilterStep::Data,
    MilterStep::EndOfBody,
    MilterStep::EndOfHeader,
];

impl RequestedMacros {
    /// Reads what follows the options in an answer to the negotiation: numbers of steps, each with
    /// names separated by blanks.
    pub(super) fn parse(mut data: &[u8]) -> Result<RequestedMacros, MilterViolation> {
        let mut requested = RequestedMacros::default();
        while !data.is_empty() {
            let (step, rest) = data.split_first_chunk::<4>().ok_or(MilterViolation::Negotiation)?;
            let end = memchr::memchr(0, rest).ok_or(MilterViolation::Negotiation)?;
            let names = String::from_utf8_lossy(&rest[..end]);
            if names.split_ascii_whitespace().count() > NAMES_MAX {
                return Err(MilterViolation::Negotiation);
            }
            let place = usize::try_from(u32::from_be_bytes(*step)).ok().and_then(|step| requested.names.get_mut(step));
            *place.ok_or(MilterViolation::Negotiation)? = Some(names.into());
            data = &rest[end + 1..];
        }
        Ok(requested)
    }

    /// Appends the macros of a step, if any of them has a value.
    pub(super) fn push(&self, out: &mut Vec<u8>, step: MilterStep, values: &dyn MacroValues) {
        let requested = STEPS.iter().position(|one| *one == step).and_then(|number| self.names[number].as_deref());
        let names = requested.unwrap_or(default_names(step)).split_ascii_whitespace();
        let mut found = names.filter_map(|name| Some((name, values.value(name)?))).peekable();
        if found.peek().is_none() {
            return;
        }
        push_frame(out, COMMAND, |out| {
            out.push(step.code());
            for (name, value) in found {
                push_string(out, name.as_bytes());
                push_string(out, value.as_bytes());
            }
        });
    }
}

fn default_names(step: MilterStep) -> &'static str {
    match step {
        MilterStep::Connect => {
            "j {daemon_name} {daemon_addr} {daemon_port} v _ \
             {client_addr} {client_port} {client_name} {client_ptr} {client_resolve}"
        }
        MilterStep::Helo => "{tls_version} {cipher} {cipher_bits}",
        MilterStep::Mail => {
            "i {auth_type} {auth_authen} {auth_author} {mail_addr} {mail_host} {tls_version} {cipher} {cipher_bits}"
        }
        MilterStep::Rcpt => "i {rcpt_addr} {rcpt_host} {rcpt_mailer}",
        MilterStep::Data | MilterStep::EndOfHeader | MilterStep::EndOfBody => "i",
        MilterStep::Header | MilterStep::Body | MilterStep::Unknown => "",
    }
}
