//! A real sink on a port of its own, and clients that send line by line.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use clap::Parser as _;

use super::*;
use crate::verify::PlaceKind;
use crate::{MessageStamp, RunId};

#[derive(clap::Parser)]
struct CommandLine {
    #[command(flatten)]
    options: SinkOptions,
}

fn options(arguments: &[&str]) -> SinkOptions {
    let line = ["sink", "--listen", "127.0.0.1:0"].iter().chain(arguments);
    CommandLine::try_parse_from(line).unwrap().options
}

fn sink(arguments: &[&str]) -> Sink {
    Sink::open(&options(arguments)).unwrap()
}

fn sink_with_rule(rule: &str) -> Sink {
    sink(&["--rule", rule])
}

/// Long enough for any machine; only failing tests wait that long.
const TIMEOUT: Duration = Duration::from_secs(30);

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(sink: &Sink) -> Client {
        let stream = TcpStream::connect(sink.addresses()[0]).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Client(BufReader::new(stream))
    }

    fn connect_and_greet(sink: &Sink) -> Client {
        let mut client = Client::connect(sink);
        assert_eq!(client.reply(), 220);
        assert_eq!(client.command("HELO client.test"), 250);
        client
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn command(&mut self, line: &str) -> u16 {
        self.write(format!("{line}\r\n").as_bytes());
        self.reply()
    }

    /// The code of the next reply; 0 at the end of the connection.
    fn reply(&mut self) -> u16 {
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            match line.as_bytes() {
                [] => return 0,
                [_, _, _, b'-', ..] => {}
                _ => return line[..3].parse().unwrap(),
            }
        }
    }

    /// All bytes until the end of the connection.
    fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).unwrap();
        rest
    }

    /// The codes of a transaction, up to the first refusal.
    fn send(&mut self, recipients: &[&str], message: &[u8]) -> Vec<u16> {
        let mut lines = vec!["MAIL FROM:<sender@client.test>".to_owned()];
        lines.extend(recipients.iter().map(|recipient| format!("RCPT TO:<{recipient}>")));
        lines.push("DATA".into());
        let mut codes = Vec::new();
        for line in lines {
            codes.push(self.command(&line));
            if codes.last().is_some_and(|&code| !(200..400).contains(&code)) {
                return codes;
            }
        }
        self.write(message);
        codes.push(self.command("."));
        codes
    }
}

fn message(sequence: u64, body: &str) -> Vec<u8> {
    let mut message = Vec::new();
    MessageStamp::new(RunId(1), sequence, [b"Hello.\r\n".as_slice()]).append_header(&mut message);
    message.extend_from_slice(format!("\r\n{body}\r\n").as_bytes());
    message
}

const ACCEPTED: [u16; 4] = [250, 250, 354, 250];

#[test]
fn a_sink_counts_and_discards() {
    let sink = sink(&["--threads", "2"]);
    let mut clients = [Client::connect_and_greet(&sink), Client::connect_and_greet(&sink)];
    for client in &mut clients {
        assert_eq!(client.send(&["a@x.test"], b"Hello.\r\n"), ACCEPTED);
        assert_eq!(client.send(&["a@x.test", "b@Y.test"], b"Hello.\r\n"), [250, 250, 250, 354, 250]);
        assert_eq!(client.command("QUIT"), 221);
    }
    let SinkResult { tally, sessions_peak: guests_peak, verified, .. } = sink.close().unwrap();
    assert_eq!((tally.messages, tally.recipients, tally.octets), (4, 6, 32));
    assert_eq!((tally.connections, guests_peak, verified), (2, 2, false));
    assert_eq!((tally.domains.named["x.test"], tally.domains.named["y.test"]), (4, 2));
    assert!(tally.copies.stamped.is_empty());
}

#[test]
fn a_verifying_sink_counts_sound_damaged_doubled_and_foreign_messages() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let sink = sink(&["--verify", "--record", record.to_str().unwrap()]);
    let mut client = Client::connect_and_greet(&sink);
    for (sequence, body) in [(0, "Hello."), (1, "Hallo."), (2, "Hello."), (2, "Hello.")] {
        assert_eq!(client.send(&["a@x.test"], &message(sequence, body)), ACCEPTED);
    }
    client.send(&["a@x.test"], b"Subject: foreign\r\n\r\n");
    let acknowledged =
        AcknowledgedMessages::parse("run 1\n0\ta@x.test\n1\ta@x.test\n2\ta@x.test\n3\ta@x.test\n".into()).unwrap();
    let mut comparer = Comparer::new(&acknowledged, PlaceKind::Recipients);
    sink.add_copies_to(&mut comparer);
    assert!(!comparer.is_complete());
    let received = sink.close().unwrap();
    let machine = || MachineUsage::begin().end();
    let alone = SinkSummary::of(&received, &[], None, machine());
    assert!(alone.to_string().contains("\n3 sound, 1 damaged, 1 doubled, 1 foreign\n"), "{alone}");
    assert_eq!(alone.verdict(), RunVerdict::Bad);
    let held = SinkSummary::of(&received, &[], Some(&acknowledged), machine());
    let json = serde_json::to_value(&held).unwrap();
    assert_eq!(json["held"]["lost"], 1);
    assert_eq!(json["held"]["examples"]["lost"][0]["sequence"], 3);
    let record = std::fs::read_to_string(record).unwrap();
    let lines: Vec<&str> = record.lines().collect();
    assert_eq!(lines[1], "0000000000000001 1 damaged a@x.test");
    assert_eq!((lines.len(), lines[4]), (5, "- - foreign a@x.test"));
}

#[test]
fn a_record_that_cannot_be_written_ends_the_sink_with_a_fault() {
    let sink = sink(&["--record", "/dev/full"]);
    assert_eq!(Client::connect_and_greet(&sink).send(&["a@x.test"], b"Hello.\r\n"), ACCEPTED);
    sink.wait(sink.signals().unwrap(), None);
    let received = sink.close().unwrap();
    assert_eq!(received.tally.messages, 1, "the summary is missing");
    assert!(matches!(received.recorded, Err(BenchError::System { .. })));
}

#[test]
fn an_invalid_ledger_is_refused_at_the_start_and_an_empty_one_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger");
    let run = || run(&options(&["--duration", "1ms", "--ledger", ledger.to_str().unwrap()]));
    assert!(matches!(run(), Err(BenchError::System { .. })), "the ledger must not exist");
    std::fs::write(&ledger, "").unwrap();
    assert!(matches!(run(), Err(BenchError::Data(_))));
    std::fs::write(&ledger, "run 1\n").unwrap();
    assert!(matches!(run(), Err(BenchError::Unavailable(_))));
    std::fs::write(&ledger, "run 1\n0\ta@x.test\n").unwrap();
    assert_eq!(run().unwrap(), RunVerdict::Bad);
    std::fs::write(&ledger, "no ledger\n").unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = [taken.local_addr().unwrap()].to_vec();
    let options = SinkOptions { listen, ..options(&["--ledger", ledger.to_str().unwrap()]) };
    assert!(
        matches!(super::run(&options), Err(BenchError::Data(_))),
        "the ledger must be read before an address is bound"
    );
}

#[test]
fn lmtp_has_a_reply_for_each_recipient() {
    let sink = sink(&["--lmtp"]);
    let mut client = Client::connect(&sink);
    assert_eq!((client.reply(), client.command("LHLO client.test")), (220, 250));
    assert_eq!(client.send(&["a@x.test", "b@x.test"], b"Hello.\r\n"), [250, 250, 250, 354, 250]);
    assert_eq!(client.reply(), 250);
    assert_eq!(sink.close().unwrap().tally.recipients, 2);
}

#[test]
fn the_sink_ends_after_the_requested_messages_and_answers_the_last_one() {
    let sink = sink(&["--messages", "2"]);
    let mut client = Client::connect_and_greet(&sink);
    let sending = std::thread::spawn(move || {
        assert_eq!(client.send(&["a@x.test"], b"Hello.\r\n"), ACCEPTED);
        assert_eq!(client.send(&["a@x.test"], b"Hello.\r\n"), ACCEPTED);
        assert_eq!(client.reply(), 421);
    });
    sink.wait(sink.signals().unwrap(), None);
    assert_eq!(sink.close().unwrap().tally.messages, 2);
    sending.join().unwrap();
}

#[test]
fn a_sink_does_not_disconnect_a_client_that_sends_no_mail() {
    let sink = sink(&["--recipients-max", "1"]);
    let mut client = Client::connect_and_greet(&sink);
    for _ in 0..300 {
        assert_eq!((client.command("NOOP"), client.command("nonsense")), (250, 500));
    }
    assert_eq!(client.send(&["a@x.test", "b@x.test"], b""), [250, 250, 452]);
    drop(sink.close().unwrap());
}

#[test]
fn rules_refuse_at_their_stage_and_only_for_their_domain() {
    for (rule, codes) in [
        ("lame.test reject 550 no", &[250, 550][..]),
        ("lame.test data defer", &[250, 250, 451]),
        ("lame.test message reject 554 no", &[250, 250, 354, 554]),
    ] {
        let sink = sink_with_rule(rule);
        let mut client = Client::connect_and_greet(&sink);
        assert_eq!(client.send(&["a@fine.test"], b"Hello.\r\n"), ACCEPTED, "{rule}");
        assert_eq!(client.send(&["a@Lame.test"], b"Hello.\r\n"), codes, "{rule}");
        assert_eq!(client.command("RSET"), 250);
        assert_eq!(client.send(&["a@fine.test"], b"Hello.\r\n"), ACCEPTED, "{rule}");
        let tally = sink.close().unwrap().tally;
        assert_eq!((tally.messages, &tally.rule_hits[..]), (2, &[1][..]), "{rule}");
    }
    let sink = sink_with_rule("* mail defer 452 full");
    assert_eq!(Client::connect_and_greet(&sink).send(&["a@x.test"], b""), [452]);
}

#[test]
fn a_refusal_at_connect_or_helo_closes_the_connection() {
    let sink = sink_with_rule("* defer 421 later");
    let mut client = Client::connect(&sink);
    assert_eq!(client.rest(), b"421 4.7.1 later\r\n");
    let sink = sink_with_rule("* helo reject 554 no");
    let mut client = Client::connect(&sink);
    assert_eq!((client.reply(), client.command("EHLO client.test"), client.reply()), (220, 554, 0));
}

#[test]
fn a_rule_can_drop_silently_or_answer_with_garbage() {
    let sink = sink_with_rule("* data drop");
    let mut client = Client::connect_and_greet(&sink);
    assert_eq!(client.send(&["a@x.test"], b""), [250, 250, 0]);
    let sink = sink_with_rule("* garbage");
    let garbage = Client::connect(&sink).rest();
    assert!(garbage.len() > 100 && garbage.ends_with(b"\r\n"));
    assert!(!garbage.iter().any(u8::is_ascii_alphanumeric));
}

#[test]
fn a_message_that_is_dropped_at_its_end_does_not_count() {
    let sink = sink_with_rule("* message drop");
    assert_eq!(Client::connect_and_greet(&sink).send(&["a@x.test"], b"Hello.\r\n"), [250, 250, 354, 0]);
    assert_eq!(sink.close().unwrap().tally.messages, 0);
}

#[test]
fn a_delay_affects_only_its_domain() {
    let sink = sink_with_rule("lame.test delay 1h");
    let mut lame = Client::connect_and_greet(&sink);
    assert_eq!(lame.command("MAIL FROM:<>"), 250);
    lame.write(b"RCPT TO:<a@lame.test>\r\n");
    let mut fine = Client::connect_and_greet(&sink);
    assert_eq!(fine.send(&["a@fine.test"], b"Hello.\r\n"), ACCEPTED);
    assert_eq!(fine.command("QUIT"), 221);
    let tally = sink.close().unwrap().tally;
    assert_eq!((tally.messages, &tally.rule_hits[..]), (1, &[1][..]), "the delayed client must still wait");
}

#[test]
fn a_delay_ends() {
    let sink = sink_with_rule("lame.test delay 500ms");
    let mut lame = Client::connect_and_greet(&sink);
    assert_eq!(lame.command("MAIL FROM:<>"), 250);
    let asked = Instant::now();
    assert_eq!(lame.command("RCPT TO:<a@lame.test>"), 250);
    assert!(asked.elapsed() >= Duration::from_millis(500));
}

#[test]
fn a_slow_rule_limits_the_rate_of_the_client() {
    const OCTETS: usize = 40_000;
    let sink = sink_with_rule("* slow 80kB/s");
    let mut client = Client::connect_and_greet(&sink);
    let begun = Instant::now();
    let body = "0123456789012345678901234567890123456\r\n".repeat(OCTETS / 39);
    assert_eq!(client.send(&["a@x.test"], body.as_bytes()), ACCEPTED);
    assert!(begun.elapsed() >= Duration::from_millis(450), "{:?}", begun.elapsed());
}

#[test]
fn a_stall_stops_the_whole_sink() {
    let sink = sink_with_rule("* stall 400ms every 1s");
    let mut client = Client::connect_and_greet(&sink);
    let begun = Instant::now();
    let mut slowest = Duration::ZERO;
    let mut answers = 0;
    while begun.elapsed() < Duration::from_millis(2500) {
        let asked = Instant::now();
        assert_eq!(client.command("NOOP"), 250);
        slowest = slowest.max(asked.elapsed());
        answers += 1;
    }
    assert!(slowest >= Duration::from_millis(300), "{slowest:?}");
    assert!(answers > 10, "no answers between the stalls: {answers}");
}

#[test]
fn an_answer_delayed_into_a_stall_is_sent_after_it() {
    let sink = sink(&["--rule", "* stall 500ms every 1s", "--rule", "* mail delay 300ms"]);
    let opened = Instant::now();
    let mut client = Client::connect_and_greet(&sink);
    for command in ["MAIL FROM:<>", "RSET", "MAIL FROM:<>"] {
        assert_eq!(client.command(command), 250);
    }
    assert!(opened.elapsed() >= Duration::from_millis(900), "{:?}", opened.elapsed());
}

#[test]
fn what_a_share_applies_to_depends_only_on_the_seed() {
    let met = |seed: &str| {
        let sink = sink(&["--seed", seed, "--rule", "50% mail defer"]);
        (0..20).map(|_| Client::connect_and_greet(&sink).command("MAIL FROM:<>")).collect::<Vec<u16>>()
    };
    let first = met("7");
    assert_eq!(first, met("7"));
    assert!(first.contains(&250) && first.contains(&451));
    assert_ne!(first, met("8"));
}

#[test]
fn an_idle_connection_is_kept_and_takes_little_memory() {
    let sink = sink(&[]);
    let clients: Vec<Client> = (0..200).map(|_| Client::connect_and_greet(&sink)).collect();
    assert_eq!(sink.state.sessions_peak(), 200);
    assert!(size_of::<SinkSession>() < 1024, "{}", size_of::<SinkSession>());
    drop(clients);
    drop(sink.close().unwrap());
}
