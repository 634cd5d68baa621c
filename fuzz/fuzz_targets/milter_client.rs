//! Any bytes as the milter's side of a session: no panic, the result is the same whether they arrive
//! whole or in pieces, and changes are never more than the input. The last byte chooses the first
//! command and the size of the pieces.

#![no_main]

use std::borrow::Cow;

use libfuzzer_sys::fuzz_target;
use protocol::milter::{MacroValues, MilterClient, MilterCommand, MilterEvent, MilterLimits, MilterViolation};

const LIMITS: MilterLimits = MilterLimits { edits_max: 20, edit_octets_max: 2000, body_octets_max: 1000 };
/// A negotiation with all actions and skipping.
const NEGOTIATION: &[u8] = b"\0\0\0\x0dO\0\0\0\x06\0\0\x01\xff\0\0\x04\0";
const COMMANDS: [MilterCommand<'static>; 6] = [
    MilterCommand::Helo("a.test"),
    MilterCommand::Mail { path: "<a@a.test>", parameters: &[] },
    MilterCommand::Rcpt { path: "<b@b.test>", parameters: &[] },
    MilterCommand::Header { name: b"Subject", value: b" one" },
    MilterCommand::Body(b"body\r\n"),
    MilterCommand::EndOfBody,
];

struct NoMacros;

impl MacroValues for NoMacros {
    fn value(&self, _name: &str) -> Option<Cow<'_, str>> {
        None
    }
}

/// The result of an input.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    events: Vec<MilterEvent>,
    changes: Vec<String>,
    violation: Option<MilterViolation>,
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_last() else { return };
    let begun = [if choice & 1 == 0 { NEGOTIATION } else { b"" }, bytes].concat();
    assert_eq!(play(choice, &begun, usize::MAX), play(choice, &begun, 1 + usize::from(choice >> 4)));
});

fn play(choice: u8, bytes: &[u8], size: usize) -> Outcome {
    let mut client = MilterClient::new(LIMITS);
    let mut outcome = Outcome::default();
    let mut commands = COMMANDS.iter().cycle().skip(usize::from(choice >> 1 & 7));
    for piece in bytes.chunks(size) {
        client.handle_input(piece);
        while outcome.violation.is_none() {
            match client.poll_event() {
                Ok(Some(MilterEvent::Progress)) => outcome.events.push(MilterEvent::Progress),
                Ok(Some(event)) => {
                    outcome.events.push(event);
                    let edits = client.take_edits();
                    assert!(edits.body.as_ref().is_none_or(|body| body.len() <= bytes.len()));
                    outcome.changes.push(format!("{edits:?}"));
                    // A milter may want few commands; the end of a message is always wanted.
                    let _ = (0..COMMANDS.len()).any(|_| commands.next().is_some_and(|command| client.send(command, &NoMacros)));
                    let sent = client.output().len();
                    client.handle_sent(sent);
                }
                Ok(None) => break,
                Err(violation) => outcome.violation = Some(violation),
            }
        }
    }
    outcome
}
