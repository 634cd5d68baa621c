//! Any bytes as the server's side of a session: no panic, the result is the same whether they
//! arrive whole or in pieces, each transaction finishes once, and nothing is accepted before it was
//! sent. Bytes FF separate the server's turns, between which the client sends. The last byte
//! chooses the client's options and the size of the pieces.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use mail::{Address, Timestamp};
use protocol::sasl::Nonce;
use protocol::sasl::client::LoginMechanism;
use protocol::smtp::MailProtocol;
use protocol::smtp::client::{
    CommandArgument, ContentSize, ForwardedClient, RecipientOutcome, SmtpClient, SmtpClientConfig, SmtpClientEvent,
    SmtpCredentials, Transaction,
};

const NOW: Timestamp = Timestamp(0);
const TURN_END: u8 = 0xff;
const TRANSACTIONS_MAX: usize = 3;

/// The result of an input.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    heads: Vec<u8>,
    octets: u64,
    events: Vec<SmtpClientEvent>,
    begun: usize,
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_last() else { return };
    let whole = play(choice, bytes, usize::MAX);
    assert_eq!(whole, play(choice, bytes, 1 + usize::from(choice >> 4)));
    let finished = whole.events.iter().filter(|event| matches!(event, SmtpClientEvent::Finished(_))).count();
    assert_eq!(finished, whole.begun, "each transaction finishes once");
    assert!(
        matches!(whole.events.last(), Some(SmtpClientEvent::Closed(_))),
        "the last event says why the session closed"
    );
});

fn play(choice: u8, bytes: &[u8], size: usize) -> Outcome {
    let nonce = Nonce::from_random([7; Nonce::OCTETS]);
    let mut client = SmtpClient::new(Arc::new(config(choice)), NOW).with_nonce(nonce);
    let mut outcome = Outcome::default();
    for turn in bytes.split(|byte| *byte == TURN_END) {
        let is_all_sent = client.output().is_empty();
        turn.chunks(size).for_each(|piece| client.handle_input(NOW, piece));
        settle(&mut client, &mut outcome, is_all_sent);
    }
    let is_all_sent = client.output().is_empty();
    client.handle_disconnect();
    settle(&mut client, &mut outcome, is_all_sent);
    assert!(client.wants_close());
    outcome
}

fn config(choice: u8) -> SmtpClientConfig {
    let flavor = if choice & 1 == 0 { MailProtocol::Smtp } else { MailProtocol::Lmtp };
    let helo = CommandArgument::new("client.example").expect("a host name is a valid word");
    let credentials = SmtpCredentials::new("user", "secret").expect("the credentials are valid");
    let credentials = credentials.restricted(&LoginMechanism::WITH_PASSWORD, choice & 2 == 0);
    SmtpClientConfig {
        pipelining: choice & 2 == 0,
        chunking: choice & 4 != 0,
        credentials: (choice & 8 != 0).then_some(credentials),
        ..SmtpClientConfig::new(flavor, helo)
    }
}

fn settle(client: &mut SmtpClient, outcome: &mut Outcome, is_all_sent: bool) {
    while let Some(event) = client.poll_event() {
        match &event {
            SmtpClientEvent::StartTls => client.handle_tls_established(NOW),
            SmtpClientEvent::ComputeProof(work) => client.handle_proof(NOW, work.clone().compute()),
            SmtpClientEvent::Finished(verdicts) => {
                let needs_all = |verdict: &RecipientOutcome| {
                    matches!(verdict, RecipientOutcome::Accepted(_) | RecipientOutcome::InDoubt)
                };
                assert!(is_all_sent || !verdicts.iter().any(needs_all), "accepted before it was sent");
                assert_eq!(verdicts.len(), 2);
            }
            _ => {}
        }
        outcome.events.push(event);
    }
    if client.is_ready() && outcome.begun < TRANSACTIONS_MAX {
        let begun = client.begin_transaction(NOW, &transaction()).is_ok();
        outcome.begun += usize::from(begun);
    } else {
        client.quit(NOW);
    }
    let output = client.output();
    let octets = output.octet_count();
    outcome.heads.extend_from_slice(output.head);
    outcome.octets += octets;
    client.handle_sent(NOW, octets);
}

fn transaction() -> Transaction {
    let address = |text: &str| -> Address { text.parse().expect("an address") };
    let recipients = [address("c@d.example"), address("e@d.example")];
    let content = ContentSize::from_message(b"Subject: x\r\n\r\n.text");
    let client = ForwardedClient { address: None, helo: "a b".into(), ident: "1-0-1".into() };
    Transaction {
        client: Some(Box::new(client)),
        ..Transaction::new(Some(address("a@b.example")), recipients, content)
    }
}
