//! Any bytes as the client's side of an IMAP session before login: no panic, the result is the same
//! whether they arrive whole or in pieces, and only a password that the driver accepted hands the
//! session over. The last byte chooses TLS, clear text, and the size of the pieces.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use mail::Timestamp;
use protocol::TlsMode;
use protocol::backend_login::BackendAcceptance;
use protocol::imap::server::{
    ImapAction, ImapAuthConfig, ImapLimits, ImapLoginSession, ImapOpenRefusal, ImapQuestion, ImapServerConfig,
};
use protocol::sasl::{Mechanism, Nonce, PasswordVerdict, SaslConfig, ScramKeysAnswer};

const NOW: Timestamp = Timestamp(0);

/// The result of an input.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    output: Vec<u8>,
    actions: Vec<ImapAction>,
    /// What the backend gets.
    handed_over: Option<Vec<u8>>,
    closed: bool,
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_last() else { return };
    let config = Arc::new(config(choice));
    let whole = play(&config, std::iter::once(bytes));
    assert_eq!(whole, play(&config, bytes.chunks(1 + usize::from(choice >> 3))));
    if let Some(rest) = &whole.handed_over {
        assert!(bytes.ends_with(rest) && matches!(whole.actions.last(), Some(ImapAction::Ask(_))));
    }
});

fn config(choice: u8) -> ImapServerConfig {
    let auth = ImapAuthConfig {
        mechanisms: Mechanism::ADVERTISED.into(),
        clear_text: choice & 2 == 0,
        sasl: SaslConfig { secret: [7; 32] },
    };
    let limits = ImapLimits {
        command_octets_max: 200,
        literal_octets_max: 60,
        commands_max: 10,
        failed_logins_max: 3,
        ..ImapLimits::default()
    };
    let tls = if choice & 1 == 0 { TlsMode::Offered } else { TlsMode::Never };
    ImapServerConfig { hostname: "imap.example.org".into(), tls, auth, limits }
}

fn play<'a>(config: &Arc<ImapServerConfig>, pieces: impl Iterator<Item = &'a [u8]>) -> Outcome {
    let mut session = ImapLoginSession::new(config.clone(), NOW);
    let mut outcome = Outcome::default();
    for piece in pieces {
        match &mut outcome.handed_over {
            Some(rest) => rest.extend_from_slice(piece),
            None => {
                session.handle_input(NOW, piece);
                settle(&mut session, &mut outcome);
            }
        }
    }
    settle(&mut session, &mut outcome);
    outcome.closed = session.wants_close();
    outcome
}

/// Users whose names begin with `n` are refused; those with `m` have no mailbox.
fn settle(session: &mut ImapLoginSession, outcome: &mut Outcome) {
    while let Some(action) = session.poll_action() {
        if let ImapAction::Ask(question) = &action {
            match question {
                ImapQuestion::Password { user, .. } if user.starts_with('n') => {
                    session.handle_password_verdict(NOW, PasswordVerdict::Refused);
                }
                ImapQuestion::Password { user, .. } => {
                    session.handle_password_verdict(NOW, PasswordVerdict::Accepted { user: user.clone() });
                }
                ImapQuestion::ScramKeys { .. } => {
                    let nonce = Nonce::from_random([3; Nonce::OCTETS]);
                    session.handle_scram_keys(NOW, ScramKeysAnswer::Unknown { iterations: 4096 }, &nonce);
                }
                ImapQuestion::Open { user } if user.starts_with('m') => {
                    session.handle_open_refused(NOW, &ImapOpenRefusal::NoMailbox);
                }
                ImapQuestion::Open { .. } => {
                    let acceptance = BackendAcceptance { text: "in".into(), capability_line: None };
                    outcome.handed_over = session.hand_over(&acceptance);
                }
            }
        }
        outcome.actions.push(action);
    }
    outcome.output.extend_from_slice(session.output());
    session.handle_sent(session.output().len());
}
