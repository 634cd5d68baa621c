//! Sessions with a scripted milter, with its answers whole and split at every octet; and what hostile
//! milters send.

use std::borrow::Cow;

use mail::{EnhancedCode, Reply};

use super::frame::{push_frame, push_string};
use super::*;

/// Values of two macros.
struct Macros;

impl MacroValues for Macros {
    fn value(&self, name: &str) -> Option<Cow<'_, str>> {
        match name {
            "i" => Some("4WxYz".into()),
            "{client_addr}" => Some("192.0.2.1".into()),
            _ => None,
        }
    }
}

fn frame(code: u8, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    push_frame(&mut out, code, |out| out.extend_from_slice(data));
    out
}

fn strings(parts: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    parts.iter().for_each(|part| push_string(&mut out, part.as_bytes()));
    out
}

fn words(words: &[u32], rest: &[u8]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).chain(rest.iter().copied()).collect()
}

/// What the client has to send, by frames: the code and the data, as text.
fn sent(client: &mut MilterClient) -> Vec<String> {
    let output = client.output().to_vec();
    client.handle_sent(output.len());
    let (mut frames, mut rest) = (Vec::new(), &output[..]);
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (frame, after) = after.split_at(u32::from_be_bytes(*length) as usize);
        frames.push(String::from_utf8_lossy(frame).replace('\0', "|"));
        rest = after;
    }
    frames
}

/// Passes input in pieces of this size, and returns all events.
fn receive(client: &mut MilterClient, input: &[u8], size: usize) -> Result<Vec<MilterEvent>, MilterViolation> {
    let mut events = Vec::new();
    for piece in input.chunks(size) {
        client.handle_input(piece);
        while let Some(event) = client.poll_event()? {
            events.push(event);
        }
    }
    Ok(events)
}

fn negotiated(version: u32, actions: u32, options: u32, macros: &[u8]) -> MilterClient {
    let mut client = MilterClient::new(MilterLimits::default());
    sent(&mut client);
    let answer = frame(b'O', &words(&[version, actions, options], macros));
    assert_eq!(receive(&mut client, &answer, 1).unwrap(), [MilterEvent::Negotiated]);
    client
}

fn answer(client: &mut MilterClient, answer: &[u8]) -> Result<MilterAnswer, MilterViolation> {
    let events = receive(client, answer, 3)?;
    match &events[..] {
        [MilterEvent::Answer(answer)] => Ok(answer.clone()),
        other => panic!("{other:?}"),
    }
}

fn go_on(client: &mut MilterClient) {
    assert_eq!(answer(client, &frame(b'c', b"")), Ok(MilterAnswer::Continue));
}

const HEADER: MilterCommand<'_> = MilterCommand::Header { name: b"Subject", value: b"  one\r\n\ttwo" };

#[test]
fn the_offer_has_the_newest_version_and_all_options() {
    let client = MilterClient::new(MilterLimits::default());
    assert_eq!(client.output(), frame(b'O', &words(&[6, 0x1ff, 0x1f_ffff], b"")));
}

/// What follows an early answer, and how many answers, depends on the milter.
#[test]
fn commands_ahead_are_answered_in_their_order_and_an_early_answer_ends_the_connection() {
    let mut client = negotiated(6, 0, 0x400, b"");
    let send_two = |client: &mut MilterClient| {
        assert!(client.send(&HEADER, &Macros) && client.send(&MilterCommand::EndOfHeader, &Macros));
        assert_eq!(client.unanswered(), 2);
    };
    send_two(&mut client);
    let go_on = MilterEvent::Answer(MilterAnswer::Continue);
    let answers = [frame(b's', b""), frame(b'p', b""), frame(b'c', b"")].concat();
    assert_eq!(receive(&mut client, &answers, 3).unwrap(), [go_on.clone(), MilterEvent::Progress, go_on]);
    assert!(client.takes_commands_ahead() && client.unanswered() == 0 && !client.is_closed());
    assert!(client.send(&MilterCommand::Data, &Macros));
    assert_eq!(answer(&mut client, &frame(b'c', b"")), Ok(MilterAnswer::Continue));
    send_two(&mut client);
    assert_eq!(answer(&mut client, &frame(b'a', b"")), Ok(MilterAnswer::Accept));
    assert!(client.is_closed() && !client.send(&HEADER, &Macros) && !client.quit(true));
    assert!(!negotiated(4, 0, 0, b"").takes_commands_ahead());
}

#[test]
fn a_session_is_told_step_by_step_with_its_macros() {
    let mut client = negotiated(6, 0, 0, b"");
    let address = Some("192.0.2.1:4711".parse().unwrap());
    let parameters = ["SIZE=100".to_owned()];
    for (command, expected) in [
        (
            MilterCommand::Connect { name: "a.test", address },
            vec!["DC{client_addr}|192.0.2.1|", "Ca.test|4\x12g192.0.2.1|"],
        ),
        (MilterCommand::Helo("a.test"), vec!["Ha.test|"]),
        (
            MilterCommand::Mail { path: "<a@a.test>", parameters: &parameters },
            vec!["DMi|4WxYz|", "M<a@a.test>|SIZE=100|"],
        ),
        (MilterCommand::Rcpt { path: "<b@b.test>", parameters: &[] }, vec!["DRi|4WxYz|", "R<b@b.test>|"]),
        (MilterCommand::Data, vec!["DTi|4WxYz|", "T"]),
        (HEADER, vec!["LSubject|one\n\ttwo|"]),
        (MilterCommand::EndOfHeader, vec!["DNi|4WxYz|", "N"]),
        (MilterCommand::Body(b"body\r\n"), vec!["Bbody\r\n"]),
        (MilterCommand::EndOfBody, vec!["DEi|4WxYz|", "E"]),
    ] {
        assert!(client.send(&command, &Macros));
        assert_eq!(sent(&mut client), expected);
        go_on(&mut client);
    }
    assert!(client.quit(true));
    assert_eq!(sent(&mut client), ["K"]);
    assert!(client.send(&MilterCommand::Connect { name: "b.test", address: None }, &Macros));
    assert_eq!(sent(&mut client)[1], "Cb.test|U");
}

#[test]
fn an_unknown_or_ipv6_address_is_told_as_such() {
    let mut client = negotiated(6, 0, 0x1000, b"");
    let address = Some("[2001:db8::1]:25".parse().unwrap());
    assert!(!client.send(&MilterCommand::Connect { name: "unknown", address }, &Macros));
    assert_eq!(sent(&mut client)[1], "Cunknown|6|\x192001:db8::1|");
}

#[test]
fn what_is_not_wanted_is_not_sent_and_what_is_not_answered_leaves_with_the_next_command() {
    // No connect, no reply to HELO, none to header fields, no end of header, white space kept.
    let mut client = negotiated(6, 0, 0x1 | 0x2000 | 0x80 | 0x40 | 0x10_0000, b"");
    assert!(!client.send(&MilterCommand::Connect { name: "a", address: None }, &Macros));
    assert!(!client.send(&MilterCommand::Helo("a"), &Macros));
    assert!(!client.send(&HEADER, &Macros));
    assert!(!client.send(&MilterCommand::EndOfHeader, &Macros));
    assert!(client.send(&MilterCommand::EndOfBody, &Macros));
    assert_eq!(sent(&mut client), ["Ha|", "LSubject|  one\n\ttwo|", "DEi|4WxYz|", "E"]);
}

#[test]
fn old_versions_get_no_data_command_and_no_second_session() {
    let mut client = negotiated(2, 0, 0, b"");
    assert!(!client.send(&MilterCommand::Data, &Macros));
    assert!(client.send(&MilterCommand::EndOfBody, &Macros));
    sent(&mut client);
    go_on(&mut client);
    assert!(!client.quit(true));
    assert_eq!(sent(&mut client), ["Q"]);
}

#[test]
fn unknown_commands_are_told_from_version_3_on_unless_they_are_not_wanted() {
    let unknown = MilterCommand::Unknown(b"WIZ now");
    for (version, options, expected) in [(2, 0, None), (3, 0, Some(true)), (6, 0x100, None), (6, 0x2_0000, Some(false))]
    {
        let mut client = negotiated(version, 0, options, b"");
        assert_eq!(client.send(&unknown, &Macros), expected == Some(true), "{version} {options:x}");
        let told: &[&str] = if expected.is_some() { &["UWIZ now|"] } else { &[] };
        assert_eq!(sent(&mut client), told, "{version} {options:x}");
    }
}

/// libmilter ignores the command for the next session in all other states, and that session too.
#[test]
fn a_connection_is_kept_only_after_a_message_that_the_milter_let_pass() {
    for (last, is_kept) in [(b'c', true), (b'a', false), (b'r', false), (b'd', false)] {
        let mut client = negotiated(6, 0, 0, b"");
        client.send(&MilterCommand::EndOfBody, &Macros);
        sent(&mut client);
        answer(&mut client, &frame(last, b"")).unwrap();
        assert_eq!(client.quit(true), is_kept, "{}", char::from(last));
    }
    let mut client = negotiated(6, 0, 0, b"");
    assert!(!client.quit(true), "no message");
}

#[test]
fn a_milter_may_ask_for_other_macros() {
    let macros = [words(&[0], b"i\0"), words(&[6], b"{client_addr} j\0")].concat();
    let mut client = negotiated(6, 0x100, 0, &macros);
    client.send(&MilterCommand::Connect { name: "a", address: None }, &Macros);
    assert_eq!(sent(&mut client), ["DCi|4WxYz|", "Ca|U"]);
    go_on(&mut client);
    client.send(&MilterCommand::EndOfHeader, &Macros);
    assert_eq!(sent(&mut client), ["DN{client_addr}|192.0.2.1|", "N"]);
}

#[test]
fn skipping_ends_a_series_of_the_same_command() {
    let mut client = negotiated(6, 0, 0x400, b"");
    assert!(client.send(&MilterCommand::Body(b"a"), &Macros));
    assert_eq!(answer(&mut client, &frame(b's', b"")), Ok(MilterAnswer::Continue));
    assert!(!client.wants(MilterStep::Body));
    assert!(!client.send(&MilterCommand::Body(b"b"), &Macros));
    assert!(client.send(&MilterCommand::EndOfBody, &Macros));
    go_on(&mut client);
    assert!(client.send(&MilterCommand::Body(b"c"), &Macros), "another message");
    let mut client = negotiated(6, 0, 0, b"");
    client.send(&MilterCommand::Body(b"a"), &Macros);
    assert_eq!(answer(&mut client, &frame(b's', b"")), Err(MilterViolation::Unsolicited(b's')));
}

#[test]
fn every_answer_has_its_meaning() {
    for (code, data, expected) in [
        (b'c', &b""[..], MilterAnswer::Continue),
        (b'a', b"", MilterAnswer::Accept),
        (b'd', b"", MilterAnswer::Discard),
        (b'r', b"", MilterAnswer::Reject),
        (b't', b"", MilterAnswer::Defer),
        (b'4', b"", MilterAnswer::Shutdown),
        (b'f', b"", MilterAnswer::Failed),
        (b'y', b"550 5.7.1 100%% spam\0", MilterAnswer::Reply(Reply::new(550, EnhancedCode(5, 7, 1), "100% spam"))),
        (
            b'y',
            b"451-4.7.1 one\r\n451 4.7.1 tw\xc3\xb6\0",
            MilterAnswer::Reply(Reply::new(451, EnhancedCode(4, 7, 1), "one\ntw?")),
        ),
        (b'y', b"554\0", MilterAnswer::Reply(Reply::without_enhanced_code(554, ""))),
    ] {
        let mut client = negotiated(6, 0, 0, b"");
        client.send(&MilterCommand::Helo("a"), &Macros);
        assert_eq!(answer(&mut client, &frame(code, data)), Ok(expected));
    }
}

/// All changes, an answer, and what the client makes of them.
fn all_changes() -> (Vec<u8>, MilterEdits) {
    let input = [
        frame(b'p', b""),
        frame(b'h', &strings(&["X-A", "one\n two"])),
        frame(b'i', &words(&[1], &strings(&["X-B", "b"]))),
        frame(b'm', &words(&[2], &strings(&["X-C", ""]))),
        frame(b'e', &strings(&["<c@c.test>", "RET=HDRS"])),
        frame(b'e', &strings(&["<>"])),
        frame(b'+', &strings(&["<d@d.test>"])),
        frame(b'2', &strings(&["<e@e.test>", "NOTIFY=NEVER"])),
        frame(b'-', &strings(&["<f@f.test>"])),
        frame(b'b', b"new "),
        frame(b'b', b"body\r\n"),
        frame(b'q', &strings(&["looks odd"])),
        frame(b'c', b""),
    ];
    let text = |text: &str| text.into();
    let edits = vec![
        MilterEdit::AddField { name: text("X-A"), value: text("one\n two") },
        MilterEdit::InsertField { index: 1, name: text("X-B"), value: text("b") },
        MilterEdit::ChangeField { index: 2, name: text("X-C"), value: text("") },
        MilterEdit::ChangeSender { path: text("<c@c.test>"), parameters: text("RET=HDRS") },
        MilterEdit::ChangeSender { path: text("<>"), parameters: text("") },
        MilterEdit::AddRecipient { path: text("<d@d.test>"), parameters: text("") },
        MilterEdit::AddRecipient { path: text("<e@e.test>"), parameters: text("NOTIFY=NEVER") },
        MilterEdit::RemoveRecipient(text("<f@f.test>")),
    ];
    let mut expected = MilterEdits { edits, body: Some(b"new body\r\n".to_vec()), ..MilterEdits::default() };
    expected.quarantine = Some(text("looks odd"));
    (input.concat(), expected)
}

#[test]
fn changes_are_the_same_however_they_are_split() {
    let (input, expected) = all_changes();
    for size in 1..=input.len() {
        let mut client = negotiated(6, 0xff, 0, b"");
        client.send(&MilterCommand::EndOfBody, &Macros);
        let events = receive(&mut client, &input, size).unwrap();
        assert_eq!(events, [MilterEvent::Progress, MilterEvent::Answer(MilterAnswer::Continue)]);
        let edits = client.take_edits();
        assert_eq!(
            (edits.edits, edits.body, edits.quarantine),
            (expected.edits.clone(), expected.body.clone(), expected.quarantine.clone())
        );
        assert_eq!(client.take_edits(), MilterEdits::default());
    }
}

#[test]
fn changes_come_only_at_the_end_and_only_if_they_were_negotiated() {
    let change = frame(b'h', &strings(&["X-A", "a"]));
    let mut client = negotiated(6, 0xff, 0, b"");
    client.send(&MilterCommand::EndOfHeader, &Macros);
    assert_eq!(receive(&mut client, &change, 9), Err(MilterViolation::Unsolicited(b'h')));
    let mut client = negotiated(6, 0xfe, 0, b"");
    client.send(&MilterCommand::EndOfBody, &Macros);
    assert_eq!(receive(&mut client, &change, 9), Err(MilterViolation::NotOffered));
}

#[test]
fn violations_are_told_and_end_the_connection() {
    let waiting = |client: &mut MilterClient| {
        client.send(&MilterCommand::EndOfBody, &Macros);
    };
    for (input, expected) in [
        (b"\xff\xff\xff\xffc".to_vec(), MilterViolation::FrameTooLong(0xffff_ffff)),
        (b"\0\0\0\0".to_vec(), MilterViolation::EmptyFrame),
        (frame(b'x', b""), MilterViolation::Unsolicited(b'x')),
        (frame(b'O', &words(&[6, 0, 0], b"")), MilterViolation::Unsolicited(b'O')),
        (frame(b'h', b"X-A\0no end"), MilterViolation::EditData),
        (frame(b'h', &strings(&["X-A", "a", "more"])), MilterViolation::EditData),
        (frame(b'm', b"\0\0"), MilterViolation::EditData),
        (frame(b'e', b""), MilterViolation::EditData),
        (frame(b'y', b"250 fine\0"), MilterViolation::Reply),
        (frame(b'y', b"550 no NUL"), MilterViolation::Reply),
        (frame(b'y', b"550-a\r\n551 b\0"), MilterViolation::Reply),
        (frame(b'y', b"5\0"), MilterViolation::Reply),
        (frame(b'y', "550-a\r\n".repeat(40).as_bytes()), MilterViolation::Reply),
    ] {
        let mut client = negotiated(6, 0xff, 0, b"");
        waiting(&mut client);
        assert_eq!(receive(&mut client, &input, 2), Err(expected));
        assert_eq!(receive(&mut client, &frame(b'c', b""), 9), Ok(Vec::new()), "closed");
        assert!(!client.send(&MilterCommand::Helo("a"), &Macros));
    }
    let mut client = negotiated(6, 0xff, 0, b"");
    assert_eq!(receive(&mut client, &frame(b'c', b""), 9), Err(MilterViolation::Unsolicited(b'c')));
}

#[test]
fn a_negotiation_that_asks_for_more_than_was_offered_fails() {
    for (answer, expected) in [
        (frame(b'O', &words(&[1, 0, 0], b"")), MilterViolation::Version(1)),
        (frame(b'O', &words(&[7, 0, 0], b"")), MilterViolation::Version(7)),
        (frame(b'O', &words(&[6, 0x200, 0], b"")), MilterViolation::NotOffered),
        (frame(b'O', &words(&[6, 0, 0x1000_0000], b"")), MilterViolation::NotOffered),
        (frame(b'O', &words(&[6, 0], b"")), MilterViolation::Negotiation),
        (frame(b'O', &words(&[6, 0, 0, 7], b"i\0")), MilterViolation::Negotiation),
        (frame(b'O', &words(&[6, 0, 0, 0], b"no end")), MilterViolation::Negotiation),
        (frame(b'O', &words(&[6, 0, 0], b"\0\0")), MilterViolation::Negotiation),
        (frame(b'c', b""), MilterViolation::Negotiation),
    ] {
        let mut client = MilterClient::new(MilterLimits::default());
        assert_eq!(receive(&mut client, &answer, 5), Err(expected));
    }
}

#[test]
fn changes_are_limited_in_number_and_size() {
    let limits = MilterLimits { edits_max: 2, edit_octets_max: 100, body_octets_max: 10 };
    let change = |value: &str| frame(b'h', &strings(&["A", value]));
    for (input, expected) in [
        (change("b").repeat(3), MilterViolation::TooManyEdits),
        (change(&"b".repeat(100)), MilterViolation::TooManyEdits),
        (frame(b'b', b"123456").repeat(2), MilterViolation::BodyTooLong),
    ] {
        let mut client = MilterClient::new(limits);
        receive(&mut client, &frame(b'O', &words(&[6, 0xff, 0], b"")), 99).unwrap();
        client.send(&MilterCommand::EndOfBody, &Macros);
        assert_eq!(receive(&mut client, &input, 99), Err(expected));
    }
}

#[test]
fn an_aborted_message_leaves_no_changes_behind() {
    let mut client = negotiated(6, 0xff, 0, b"");
    client.send(&MilterCommand::EndOfBody, &Macros);
    sent(&mut client);
    receive(&mut client, &all_changes().0, 99).unwrap();
    client.abort();
    assert_eq!(sent(&mut client), ["A"]);
    assert_eq!(client.take_edits(), MilterEdits::default());
}
