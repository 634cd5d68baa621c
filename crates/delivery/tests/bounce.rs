//! Bounces as they are read: golden texts, and what must hold for any of them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use delivery::bounce::{Bounce, Notice, ORIGINAL_OCTETS_MAX, Undelivered, compose};
use mail::{BodyFlags, Client, Enhanced, Envelope, Notify, QueueId, Recipient, Reply, Return, SpoolId, Timestamp};
use proptest::prelude::*;

const LETTER: &str =
    "From: Ann <ann@example.org>\r\nTo: bob@example.net\r\nSubject: Tomorrow\r\n\r\nSee you at ten.\r\n";

fn recipient(address: &str) -> Recipient {
    Recipient { address: address.parse().unwrap(), original: None, notify: Notify::UNSET, orcpt: None }
}

fn envelope(recipients: Vec<Recipient>) -> Envelope {
    Envelope {
        sender: Some("ann@example.org".parse().unwrap()),
        recipients,
        accepted_at: Timestamp(1_762_160_000_000),
        client: Client { address: None, helo: "client.example.org".into() },
        body_type: mail::BodyType::SevenBit,
        smtputf8: false,
        ret: None,
        envid: None,
    }
}

fn unknown() -> Reply {
    Reply::new(550, Enhanced(5, 1, 1), "No such user here")
}

/// The bounce of a message whose every recipient failed, for the same reason if there are more than reasons.
fn bounce(envelope: &Envelope, reasons: &[Reply], original: &[u8]) -> Bounce {
    let failed = (0..envelope.recipients.len()).map(|n| (n as u32, reasons.get(n).unwrap_or(&reasons[0])));
    let undelivered = Undelivered::new(envelope, failed).expect("somebody is told");
    compose(&Notice {
        hostname: "mx1.example.org",
        id: QueueId::new(SpoolId::new(0xC0FFEE), 0, 42),
        date: "Mon, 03 Nov 2025 09:00:02 +0000",
        original_id: QueueId::new(SpoolId::new(0xC0FFEE), 0, 41),
        arrival_date: "Mon, 03 Nov 2025 08:53:20 +0000",
        portion: undelivered.portion(original.len() as u64),
        undelivered: &undelivered,
        original,
    })
}

fn text(bounce: Bounce) -> String {
    String::from_utf8(bounce.content).unwrap().replace("\r\n", "\n")
}

#[test]
fn one_recipient_is_unknown() {
    let bounce = bounce(&envelope(vec![recipient("bob@example.net")]), &[unknown()], LETTER.as_bytes());
    assert_eq!(bounce.flags, BodyFlags { dot_lines: false, eight_bit: false, ends_in_crlf: true });
    assert!(!bounce.smtputf8);
    insta::assert_snapshot!(text(bounce));
}

#[test]
fn several_recipients_with_all_that_rfc_3461_knows_and_only_the_header_back() {
    let mut envelope = envelope(vec![
        Recipient { orcpt: Some("rfc822;Bob+2Btag@Example.NET".into()), ..recipient("bob@example.net") },
        Recipient { original: Some("sales@example.org".parse().unwrap()), ..recipient("carol@example.com") },
        Recipient { notify: Notify::NEVER, ..recipient("nobody.asked@example.com") },
        Recipient { notify: Notify::SUCCESS.with(Notify::FAILURE), ..recipient("\"d d\"@example.com") },
    ]);
    envelope.ret = Some(Return::Headers);
    envelope.envid = Some("QQ314159+2B+3D".into());
    let reasons = [
        Reply::new(
            552,
            Enhanced(5, 2, 2),
            "The mailbox is over its quota:\n100 MB of 100 MB are used\nsee https://example.net/quota",
        ),
        Reply::new(
            554,
            Enhanced(5, 4, 7),
            "delivery time expired after 5 days; the last answer was: 451 4.4.1 example.com: connection timed out",
        ),
        unknown(),
        Reply::plain(550, "Administrative prohibition"),
    ];
    insta::assert_snapshot!(text(bounce(&envelope, &reasons, LETTER.as_bytes())));
}

#[test]
fn addresses_beyond_ascii_make_a_global_report() {
    let mut envelope = envelope(vec![recipient("jürgen@müller.example")]);
    envelope.sender = Some("żaneta@example.org".parse().unwrap());
    envelope.smtputf8 = true;
    let original = "From: Żaneta <żaneta@example.org>\r\nSubject: Übermorgen\r\n\r\nBis dann\r\n";
    let reason = Reply::new(550, Enhanced(5, 1, 1), "Empfänger unbekannt");
    let bounce = bounce(&envelope, &[reason], original.as_bytes());
    assert!(bounce.smtputf8 && bounce.flags.eight_bit);
    insta::assert_snapshot!(text(bounce));
}

#[test]
fn an_eight_bit_message_comes_back_as_it_was() {
    let original = "Subject: Gr=?\r\nContent-Transfer-Encoding: 8bit\r\n\r\nGrüße\r\n.hidden\r\nno line end";
    let reason = Reply::new(550, Enhanced(5, 7, 1), "Zugriff verweigert – bitte anrufen");
    let bounce = bounce(&envelope(vec![recipient("bob@example.net")]), &[reason], original.as_bytes());
    assert_eq!(bounce.flags, BodyFlags { dot_lines: true, eight_bit: true, ends_in_crlf: true });
    assert!(!bounce.smtputf8);
    insta::assert_snapshot!(text(bounce));
}

#[test]
fn only_those_who_want_it_are_told() {
    let reason = unknown();
    let failed = || (0..3).map(|ordinal| (ordinal, &reason));
    let with = |notify| Recipient { notify, ..recipient("bob@example.net") };
    let envelope = envelope(vec![with(Notify::NEVER), with(Notify::DELAY), with(Notify::FAILURE)]);
    let undelivered = Undelivered::new(&envelope, failed()).unwrap();
    assert_eq!([0, 1, 2, 3].map(|ordinal| undelivered.tells_of(ordinal)), [false, false, true, false]);
    assert_eq!(undelivered.sender().as_str(), "ann@example.org");
    assert!(Undelivered::new(&envelope, failed().take(2)).is_none());
    assert!(Undelivered::new(&envelope, []).is_none());
    let bounce = Envelope { sender: None, ..envelope.clone() };
    assert!(Undelivered::new(&bounce, failed()).is_none());
}

#[test]
fn a_large_message_and_one_with_ret_hdrs_come_back_as_a_header() {
    let reason = unknown();
    let portion = |ret, octets| {
        let mut envelope = envelope(vec![recipient("bob@example.net")]);
        envelope.ret = ret;
        Undelivered::new(&envelope, [(0, &reason)]).unwrap().portion(octets)
    };
    assert_eq!(portion(None, ORIGINAL_OCTETS_MAX), Return::Full);
    assert_eq!(portion(Some(Return::Full), ORIGINAL_OCTETS_MAX + 1), Return::Headers);
    assert_eq!(portion(Some(Return::Headers), 1), Return::Headers);
}

/// Cuts a multipart/report at its boundary: (header, [part, part, part]).
fn parts(content: &str) -> (&str, Vec<&str>) {
    let (header, body) = content.split_once("\r\n\r\n").unwrap();
    let boundary = header.split("boundary=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let body = body.strip_prefix(&format!("--{boundary}\r\n")).unwrap();
    let body = body.strip_suffix(&format!("\r\n--{boundary}--\r\n")).unwrap();
    let delimiter = format!("\r\n--{boundary}\r\n");
    (header, body.split(delimiter.as_str()).collect())
}

/// The names of the fields in a header; continuation lines have none.
fn fields(header: &str) -> Vec<&str> {
    let lines = header.split("\r\n").filter(|line| !line.is_empty() && !line.starts_with([' ', '\t']));
    lines.map(|line| line.split_once(':').unwrap().0).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Texts of strangers make no field, no part and no long line, and the message comes back as it was.
    #[test]
    fn no_text_of_a_stranger_gets_out_of_its_place(
        reply in "(\r\n|\n|\r|: |X-Evil: |--|\\PC|[\u{0}-\u{ff}]|.{300}){0,40}",
        envid in "(\\+0D\\+0A|\\+|[ -~]|\r\n){0,30}",
        orcpt in "(rfc822|utf-8|x y|\r\nX-Evil: 1)?;?(\\+0D\\+0A|\\+C3|[ -~]){0,30}",
        original in "([A-Z]: \\PC{0,20}\r\n){0,3}\r\n(--|=_|\\PC|\r\n){0,40}",
        headers: bool,
    ) {
        let mut envelope = envelope(vec![Recipient { orcpt: Some(orcpt.into()), ..recipient("bob@example.net") }]);
        envelope.envid = Some(envid.into());
        envelope.ret = headers.then_some(Return::Headers);
        let reason = Reply { code: 550, enhanced: None, text: reply.into() };
        let content = String::from_utf8(bounce(&envelope, &[reason], original.as_bytes()).content).unwrap();
        let (header, parts) = parts(&content);
        prop_assert_eq!(fields(header).len(), 8 + usize::from(header.contains("Transfer-Encoding")));
        prop_assert_eq!(parts.len(), 3);
        let (_, report) = parts[1].split_once("\r\n\r\n").unwrap();
        let mut names = fields(report);
        names.retain(|name| *name != "Original-Recipient");
        prop_assert_eq!(names, [
            "Original-Envelope-Id", "Reporting-MTA", "X-Mailrace-Queue-ID", "Arrival-Date",
            "Final-Recipient", "Action", "Status", "Diagnostic-Code",
        ]);
        let (_, returned) = parts[2].split_once("\r\n\r\n").unwrap();
        if headers {
            prop_assert!(original.starts_with(returned));
        } else {
            prop_assert_eq!(returned, &original);
        }
        let ours = [header, parts[0], parts[1]].concat();
        prop_assert!(ours.split("\r\n").all(|line| line.len() <= 998 && !line.contains(['\r', '\n', '\0'])));
    }
}
