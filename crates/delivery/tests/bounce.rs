//! Notices compared with snapshots, and properties that hold for every notice.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use delivery::bounce::{Fate, Finding, Kind, Letter, ORIGINAL_OCTETS_MAX, Occasion, Report};
use mail::{
    Address, BodyFlags, BodyType, Client, Enhanced, Envelope, Notify, QueueId, Recipient, Reply, Return, SpoolId,
    Timestamp,
};
use proptest::prelude::*;

const LETTER: &str =
    "From: Ann <ann@example.org>\r\nTo: bob@example.net\r\nSubject: Tomorrow\r\n\r\nSee you at ten.\r\n";
/// When messages are accepted, attempted and expire.
const ACCEPTED: Timestamp = Timestamp(1_762_160_000_000);
const TRIED: Timestamp = Timestamp(ACCEPTED.0 + 401_000);
const GIVEN_UP: Timestamp = Timestamp(ACCEPTED.0 + 5 * 86_400_000);

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

fn recipient(text: &str) -> Recipient {
    Recipient { address: address(text), original: None, notify: Notify::UNSET, orcpt: None }
}

fn envelope(recipients: Vec<Recipient>) -> Envelope {
    Envelope {
        sender: Some(address("ann@example.org")),
        recipients,
        accepted_at: ACCEPTED,
        client: Client { address: None, helo: "client.example.org".into(), trusted: true },
        body_type: BodyType::SevenBit,
        smtputf8: false,
        ret: None,
        envid: None,
    }
}

fn unknown() -> Reply {
    Reply::new(550, Enhanced(5, 1, 1), "No such user here")
}

fn busy() -> Reply {
    Reply::new(451, Enhanced(4, 7, 1), "Greylisted, come back in an hour")
}

fn taken() -> Reply {
    Reply::plain(250, "Ok: queued as 4D2F1")
}

/// One result for each recipient, all reported by `peer`.
fn findings<'a>(fates: &'a [Fate<'a>], peer: Option<&'a str>) -> impl Iterator<Item = Finding<'a>> {
    fates.iter().zip(0..).map(move |(&fate, ordinal)| Finding { ordinal, fate, peer })
}

fn letter(report: &Report<'_>, original: &[u8]) -> Letter {
    report.compose(&Occasion {
        hostname: "mx1.example.org",
        id: QueueId::new(SpoolId::new(0xC0FFEE), 0, 42),
        now: Timestamp(TRIED.0 + 1000),
        original_id: QueueId::new(SpoolId::new(0xC0FFEE), 0, 41),
        attempted_at: Some(TRIED),
        octets: original.len() as u64,
        original,
    })
}

/// The notice about a message that failed for every recipient, each for its own reason.
fn bounce(envelope: &Envelope, reasons: &[Reply], original: &[u8]) -> Letter {
    let fates: Vec<_> = reasons.iter().map(Fate::Failed).collect();
    let report = Report::of(envelope, None, findings(&fates, None)).expect("a failure is reported");
    letter(&report, original)
}

fn text(letter: Letter) -> String {
    String::from_utf8(letter.content).unwrap().replace("\r\n", "\n")
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
        Recipient { original: Some(address("sales@example.org")), ..recipient("carol@example.com") },
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
    envelope.sender = Some(address("żaneta@example.org"));
    envelope.smtputf8 = true;
    let original = "From: Żaneta <żaneta@example.org>\r\nSubject: Übermorgen\r\n\r\nBis dann\r\n";
    let reason = Reply::new(550, Enhanced(5, 1, 1), "Empfänger unbekannt");
    let bounce = bounce(&envelope, &[reason], original.as_bytes());
    assert!(bounce.smtputf8 && bounce.flags.eight_bit);
    insta::assert_snapshot!(text(bounce));
}

/// Only the To field of the notice is not ASCII.
#[test]
fn a_sender_beyond_ascii_is_told_in_a_letter_beyond_ascii() {
    let mut envelope = envelope(vec![recipient("bob@example.net")]);
    envelope.sender = Some(address("żaneta@example.org"));
    let bounce = bounce(&envelope, &[unknown()], LETTER.as_bytes());
    assert!(bounce.smtputf8 && bounce.flags.eight_bit);
    let text = text(bounce);
    assert!(text.contains("\nTo: <żaneta@example.org>\n") && !text.contains("Content-Transfer-Encoding"));
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
fn a_delay_says_how_long_it_will_be_tried_and_brings_back_the_header_only() {
    let mut envelope = envelope(vec![recipient("bob@example.net"), recipient("carol@example.net")]);
    envelope.ret = Some(Return::Full);
    let busy = busy();
    let fates = [Fate::Delayed { reply: &busy, until: GIVEN_UP }; 2];
    let report = Report::of(&envelope, None, findings(&fates, Some("mx.example.net"))).unwrap();
    assert_eq!(report.kind(), Kind::Delayed);
    insta::assert_snapshot!(text(letter(&report, LETTER.as_bytes())));
}

#[test]
fn a_success_is_told_to_those_who_asked() {
    let asked = Recipient { notify: Notify::SUCCESS, ..recipient("bob@example.org") };
    let envelope = envelope(vec![recipient("carol@example.org"), asked]);
    let report = Report::of(&envelope, None, findings(&[Fate::Delivered; 2], None)).unwrap();
    assert_eq!(report.kind(), Kind::Delivered);
    insta::assert_snapshot!(text(letter(&report, LETTER.as_bytes())));
}

#[test]
fn every_fate_has_its_place_in_one_letter() {
    let all = Notify::SUCCESS.with(Notify::FAILURE).with(Notify::DELAY);
    let recipients = ["ok", "next", "slow", "unknown"].map(|name| Recipient {
        notify: all,
        orcpt: Some(format!("rfc822;{name}@example.net").into()),
        ..recipient(&format!("{name}@example.net"))
    });
    let envelope = envelope(recipients.into());
    let (taken, busy, unknown) = (taken(), busy(), unknown());
    let fates = [
        Fate::Delivered,
        Fate::Relayed { reply: &taken, dsn: false },
        Fate::Delayed { reply: &busy, until: GIVEN_UP },
        Fate::Failed(&unknown),
    ];
    let report = Report::of(&envelope, None, findings(&fates, Some("mx.example.net"))).unwrap();
    assert_eq!(report.kind(), Kind::Failed);
    insta::assert_snapshot!(text(letter(&report, LETTER.as_bytes())));
}

#[test]
fn a_double_bounce_tells_the_postmaster_of_a_failed_notice() {
    let mut envelope = envelope(vec![Recipient { notify: Notify::NEVER, ..recipient("forged@example.net") }]);
    envelope.sender = None;
    let (postmaster, unknown) = (address("postmaster@example.org"), unknown());
    let fates = [Fate::Failed(&unknown)];
    let report = Report::of(&envelope, Some(&postmaster), findings(&fates, Some("mx.example.net"))).unwrap();
    assert!(report.is_double_bounce());
    assert_eq!(report.to(), &postmaster);
    insta::assert_snapshot!(text(letter(&report, LETTER.as_bytes())));
}

/// A double bounce causes no further notice, whatever its result and whatever address the
/// postmaster's mail goes to.
#[test]
fn a_double_bounce_is_never_told_of() {
    let (postmaster, unknown, busy, taken) = (address("postmaster@example.org"), unknown(), busy(), taken());
    let alias = Recipient { original: Some(postmaster.clone()), ..recipient("ann@example.org") };
    let nobody = Recipient { notify: Notify::SUCCESS.with(Notify::DELAY), ..recipient("bob@example.net") };
    let mut envelope = envelope(vec![recipient("postmaster@EXAMPLE.org"), alias, nobody]);
    envelope.sender = None;
    let told = |to, fate| {
        Report::of(&envelope, to, findings(&[fate; 3], None))
            .map(|report| [0, 1, 2].map(|ordinal| report.tells_of(ordinal)))
    };
    assert_eq!(told(Some(&postmaster), Fate::Failed(&unknown)), Some([false, false, true]));
    assert_eq!(told(None, Fate::Failed(&unknown)), None);
    for fate in
        [Fate::Delivered, Fate::Relayed { reply: &taken, dsn: false }, Fate::Delayed { reply: &busy, until: GIVEN_UP }]
    {
        assert_eq!(told(Some(&postmaster), fate), None);
    }
}

/// RFC 3461 sections 4.1 and 5.2, row by row.
#[test]
fn only_those_who_want_it_are_told() {
    let (unknown, busy, taken) = (unknown(), busy(), taken());
    let wishes = [Notify::UNSET, Notify::NEVER, Notify::SUCCESS, Notify::FAILURE, Notify::DELAY];
    let recipients = wishes.map(|notify| Recipient { notify, ..recipient("bob@example.net") });
    let mut envelope = envelope(recipients.into());
    let told = |envelope: &Envelope, fate| {
        let fates = [fate; 5];
        let report = Report::of(envelope, None, findings(&fates, None))?;
        assert_eq!(report.to().as_str(), "ann@example.org");
        Some([0, 1, 2, 3, 4].map(|ordinal| u8::from(report.tells_of(ordinal))))
    };
    let relayed = |dsn| Fate::Relayed { reply: &taken, dsn };
    let fates = [
        (Fate::Failed(&unknown), Some([1, 0, 0, 1, 0])),
        (Fate::Delayed { reply: &busy, until: GIVEN_UP }, Some([1, 0, 0, 0, 1])),
        (Fate::Delivered, Some([0, 0, 1, 0, 0])),
        (relayed(false), Some([0, 0, 1, 0, 0])),
        (relayed(true), None),
    ];
    for (fate, expected) in fates {
        assert_eq!(told(&envelope, fate), expected, "{fate:?}");
    }
    assert!(Report::of(&envelope, None, []).is_none());
    let nobody = Finding { ordinal: 5, fate: Fate::Failed(&unknown), peer: None };
    assert!(Report::of(&envelope, None, [nobody]).is_none());
    envelope.sender = None;
    assert!(fates.iter().all(|(fate, _)| told(&envelope, *fate).is_none()));
}

/// A list manager that generates its own sender addresses gets bounces at those addresses.
#[test]
fn the_sender_is_told_as_it_was_accepted() {
    let unknown = unknown();
    let mut envelope = envelope(vec![recipient("bob@example.net")]);
    envelope.sender = Some(address("news+bob=example.net@example.org"));
    let fates = [Fate::Failed(&unknown)];
    let report = Report::of(&envelope, None, findings(&fates, None)).unwrap();
    assert_eq!(Some(report.to()), envelope.sender.as_ref());
    let text = text(letter(&report, LETTER.as_bytes()));
    assert!(text.contains("\nTo: <news+bob=example.net@example.org>\n"));
}

#[test]
fn a_message_comes_back_whole_unless_it_is_large_or_its_header_was_asked_for_or_it_could_not_be_read() {
    let line = "x".repeat(98) + "\r\n";
    let long = format!("{LETTER}{}", line.repeat(500));
    let (large, limit) = (long.as_bytes(), ORIGINAL_OCTETS_MAX as usize);
    for (ret, original, octets, whole) in [
        (None, &large[..limit], limit, true),
        (Some(Return::Full), &large[..limit], limit, true),
        (Some(Return::Headers), LETTER.as_bytes(), LETTER.len(), false),
        (Some(Return::Full), large, large.len(), false),
        (Some(Return::Full), &large[..limit], large.len(), false),
        (None, &large[..100], limit, false),
        (None, b"", limit, false),
    ] {
        let mut envelope = envelope(vec![recipient("bob@example.net")]);
        envelope.ret = ret;
        let unknown = unknown();
        let fates = [Fate::Failed(&unknown)];
        let report = Report::of(&envelope, None, findings(&fates, None)).unwrap();
        let letter = report.compose(&Occasion {
            hostname: "mx1.example.org",
            id: QueueId::new(SpoolId::new(1), 0, 2),
            now: TRIED,
            original_id: QueueId::new(SpoolId::new(1), 0, 1),
            attempted_at: None,
            octets: octets as u64,
            original,
        });
        let content = text(letter);
        let kind = if whole { "message/rfc822" } else { "text/rfc822-headers" };
        assert!(content.contains(&format!("Content-Type: {kind}\n")), "{ret:?}, {} of {octets}", original.len());
        assert_eq!(content.contains("See you at ten."), whole);
        assert!(!content.contains("Last-Attempt-Date"));
    }
}

#[test]
fn a_letter_comes_from_nobody_and_asks_for_no_answer() {
    let bounce = bounce(&envelope(vec![recipient("bob@example.net")]), &[unknown()], "Subject: ü\r\n\r\n".as_bytes());
    let asked = Recipient { notify: Notify::FAILURE, ..recipient("ann@example.org") };
    let envelope = bounce.envelope("mx1.example.org", TRIED, vec![asked]);
    assert_eq!(
        envelope,
        Envelope {
            sender: None,
            recipients: vec![Recipient { notify: Notify::NEVER, ..recipient("ann@example.org") }],
            accepted_at: TRIED,
            client: Client { address: None, helo: "mx1.example.org".into(), trusted: true },
            body_type: BodyType::EightBitMime,
            smtputf8: false,
            ret: None,
            envid: None,
        }
    );
}

/// Splits a multipart/report at its boundary: (header, [part, part, part]).
fn parts(content: &str) -> (&str, Vec<&str>) {
    let (header, body) = content.split_once("\r\n\r\n").unwrap();
    let boundary = header.split("boundary=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let body = body.strip_prefix(&format!("--{boundary}\r\n")).unwrap();
    let body = body.strip_suffix(&format!("\r\n--{boundary}--\r\n")).unwrap();
    let delimiter = format!("\r\n--{boundary}\r\n");
    (header, body.split(delimiter.as_str()).collect())
}

/// The names of the fields in a header, ignoring continuation lines.
fn fields(header: &str) -> Vec<&str> {
    let lines = header.split("\r\n").filter(|line| !line.is_empty() && !line.starts_with([' ', '\t']));
    lines.map(|line| line.split_once(':').unwrap().0).collect()
}

/// The fields of a recipient with this kind of result, in order, without Original-Recipient.
fn recipient_fields(kind: Kind) -> Vec<&'static str> {
    let mut names = vec!["Final-Recipient", "Action", "Status", "Remote-MTA"];
    names.extend((kind != Kind::Delivered).then_some("Diagnostic-Code"));
    names.push("Last-Attempt-Date");
    names.extend((kind == Kind::Delayed).then_some("Will-Retry-Until"));
    names
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Text from other hosts adds no field, part or overlong line, and the message is returned
    /// unchanged.
    #[test]
    fn no_text_of_a_stranger_gets_out_of_its_place(
        reply in "(\r\n|\n|\r|: |X-Evil: |--|\\PC|[\u{0}-\u{ff}]|.{300}){0,40}",
        peer in "(\r\n|\r\n\r\n|X-Evil: |\\PC|.{300}){0,10}",
        envid in "(\\+0D\\+0A|\\+|[ -~]|\r\n){0,30}",
        orcpt in "(rfc822|utf-8|x y|\r\nX-Evil: 1)?;?(\\+0D\\+0A|\\+C3|[ -~]){0,30}",
        original in "([A-Z]: \\PC{0,20}\r\n){0,3}\r\n(--|=_|\\PC|\r\n){0,40}",
        headers: bool,
        choice in 0..4usize,
    ) {
        let notify = Notify::SUCCESS.with(Notify::FAILURE).with(Notify::DELAY);
        let recipient = Recipient { orcpt: Some(orcpt.into()), notify, ..recipient("bob@example.net") };
        let mut envelope = envelope(vec![recipient]);
        envelope.envid = Some(envid.into());
        envelope.ret = headers.then_some(Return::Headers);
        let reply = &Reply { code: 550, enhanced: None, text: reply.into() };
        let (delayed, relayed) = (Fate::Delayed { reply, until: GIVEN_UP }, Fate::Relayed { reply, dsn: false });
        let fates = [[Fate::Failed(reply), delayed, relayed, Fate::Delivered][choice]];
        let report = Report::of(&envelope, None, findings(&fates, Some(&peer))).unwrap();
        let content = String::from_utf8(letter(&report, original.as_bytes()).content).unwrap();

        let (header, parts) = parts(&content);
        prop_assert_eq!(fields(header).len(), 8 + usize::from(header.contains("Transfer-Encoding")));
        prop_assert_eq!(parts.len(), 3);
        let (_, status) = parts[1].split_once("\r\n\r\n").unwrap();
        let mut names = fields(status);
        names.retain(|name| *name != "Original-Recipient");
        prop_assert_eq!(&names[..4], ["Original-Envelope-Id", "Reporting-MTA", "X-Mailrace-Queue-ID", "Arrival-Date"]);
        prop_assert_eq!(&names[4..], recipient_fields(report.kind()));
        let (_, returned) = parts[2].split_once("\r\n\r\n").unwrap();
        if headers || report.kind() != Kind::Failed {
            prop_assert!(original.starts_with(returned));
        } else {
            prop_assert_eq!(returned, &original);
        }
        let ours = [header, parts[0], parts[1]].concat();
        prop_assert!(ours.split("\r\n").all(|line| line.len() <= 998 && !line.contains(['\r', '\n', '\0'])));
    }
}
