//! Notices compared with snapshots, and properties that hold for every notice.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use delivery::bounce::{Dsn, DsnAction, DsnComposeInput, DsnKind, DsnReport, ORIGINAL_OCTETS_MAX, RecipientResult};
use mail::{
    Address, BodyFlags, BodyType, ClientInfo, DsnNotify, DsnReturn, EnhancedCode, Envelope, QueueId, Recipient, Reply,
    SpoolId, Timestamp,
};
use proptest::prelude::*;

const MESSAGE: &str =
    "From: Ann <ann@example.org>\r\nTo: bob@example.net\r\nSubject: Tomorrow\r\n\r\nSee you at ten.\r\n";
/// When messages are accepted, attempted and expire.
const ACCEPTED: Timestamp = Timestamp(1_762_160_000_000);
const ATTEMPTED: Timestamp = Timestamp(ACCEPTED.0 + 401_000);
const EXPIRES: Timestamp = Timestamp(ACCEPTED.0 + 5 * 86_400_000);

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

fn recipient(text: &str) -> Recipient {
    Recipient { address: address(text), original: None, notify: DsnNotify::UNSET, orcpt: None, is_forwarded: false }
}

fn envelope(recipients: Vec<Recipient>) -> Envelope {
    Envelope {
        sender: Some(address("ann@example.org")),
        recipients,
        accepted_at: ACCEPTED,
        client: ClientInfo { address: None, helo: "client.example.org".into(), trusted: true },
        body_type: BodyType::SevenBit,
        smtputf8: false,
        ret: None,
        envid: None,
        content_filter: false,
    }
}

fn unknown() -> Reply {
    Reply::new(550, EnhancedCode(5, 1, 1), "No such user here")
}

fn busy() -> Reply {
    Reply::new(451, EnhancedCode(4, 7, 1), "Greylisted, come back in an hour")
}

fn taken() -> Reply {
    Reply::without_enhanced_code(250, "Ok: queued as 4D2F1")
}

/// One result for each recipient, all reported by `peer`.
fn results<'a>(fates: &'a [DsnAction<'a>], peer: Option<&'a str>) -> impl Iterator<Item = RecipientResult<'a>> {
    fates.iter().zip(0..).map(move |(&fate, ordinal)| RecipientResult { ordinal, action: fate, peer })
}

fn compose(report: &DsnReport<'_>, original: &[u8]) -> Dsn {
    report.compose(&DsnComposeInput {
        hostname: "mx1.example.org",
        id: QueueId::new(SpoolId::new(0xC0FFEE), 0, 42),
        now: Timestamp(ATTEMPTED.0 + 1000),
        original_id: QueueId::new(SpoolId::new(0xC0FFEE), 0, 41),
        attempted_at: Some(ATTEMPTED),
        octets: original.len() as u64,
        original,
    })
}

/// The notice about a message that failed for every recipient, each for its own reason.
fn bounce(envelope: &Envelope, reasons: &[Reply], original: &[u8]) -> Dsn {
    let fates: Vec<_> = reasons.iter().map(DsnAction::Failed).collect();
    let report = DsnReport::build(envelope, None, results(&fates, None)).expect("a failure is reported");
    compose(&report, original)
}

fn text(letter: Dsn) -> String {
    String::from_utf8(letter.content).unwrap().replace("\r\n", "\n")
}

#[test]
fn one_recipient_is_unknown() {
    let bounce = bounce(&envelope(vec![recipient("bob@example.net")]), &[unknown()], MESSAGE.as_bytes());
    assert_eq!(bounce.flags, BodyFlags { dot_lines: false, eight_bit: false, ends_in_crlf: true });
    assert!(!bounce.smtputf8);
    insta::assert_snapshot!(text(bounce));
}

#[test]
fn several_recipients_with_all_rfc_3461_parameters_return_only_the_header() {
    let mut envelope = envelope(vec![
        Recipient { orcpt: Some("rfc822;Bob+2Btag@Example.NET".into()), ..recipient("bob@example.net") },
        Recipient { original: Some(address("sales@example.org")), ..recipient("carol@example.com") },
        Recipient { notify: DsnNotify::NEVER, ..recipient("nobody.asked@example.com") },
        Recipient { notify: DsnNotify::SUCCESS.with(DsnNotify::FAILURE), ..recipient("\"d d\"@example.com") },
    ]);
    envelope.ret = Some(DsnReturn::Headers);
    envelope.envid = Some("QQ314159+2B+3D".into());
    let reasons = [
        Reply::new(
            552,
            EnhancedCode(5, 2, 2),
            "The mailbox is over its quota:\n100 MB of 100 MB are used\nsee https://example.net/quota",
        ),
        Reply::new(
            554,
            EnhancedCode(5, 4, 7),
            "delivery time expired after 5 days; the last answer was: 451 4.4.1 example.com: connection timed out",
        ),
        unknown(),
        Reply::without_enhanced_code(550, "Administrative prohibition"),
    ];
    insta::assert_snapshot!(text(bounce(&envelope, &reasons, MESSAGE.as_bytes())));
}

#[test]
fn non_ascii_addresses_make_a_global_report() {
    let mut envelope = envelope(vec![recipient("jürgen@müller.example")]);
    envelope.sender = Some(address("żaneta@example.org"));
    envelope.smtputf8 = true;
    let original = "From: Żaneta <żaneta@example.org>\r\nSubject: Übermorgen\r\n\r\nBis dann\r\n";
    let reason = Reply::new(550, EnhancedCode(5, 1, 1), "Empfänger unbekannt");
    let bounce = bounce(&envelope, &[reason], original.as_bytes());
    assert!(bounce.smtputf8 && bounce.flags.eight_bit);
    insta::assert_snapshot!(text(bounce));
}

/// Only the To field of the notice is not ASCII.
#[test]
fn a_non_ascii_sender_makes_the_notice_non_ascii() {
    let mut envelope = envelope(vec![recipient("bob@example.net")]);
    envelope.sender = Some(address("żaneta@example.org"));
    let bounce = bounce(&envelope, &[unknown()], MESSAGE.as_bytes());
    assert!(bounce.smtputf8 && bounce.flags.eight_bit);
    let text = text(bounce);
    assert!(text.contains("\nTo: <żaneta@example.org>\n") && !text.contains("Content-Transfer-Encoding"));
}

#[test]
fn an_eight_bit_message_is_returned_unchanged() {
    let original = "Subject: Gr=?\r\nContent-Transfer-Encoding: 8bit\r\n\r\nGrüße\r\n.hidden\r\nno line end";
    let reason = Reply::new(550, EnhancedCode(5, 7, 1), "Zugriff verweigert – bitte anrufen");
    let bounce = bounce(&envelope(vec![recipient("bob@example.net")]), &[reason], original.as_bytes());
    assert_eq!(bounce.flags, BodyFlags { dot_lines: true, eight_bit: true, ends_in_crlf: true });
    assert!(!bounce.smtputf8);
    insta::assert_snapshot!(text(bounce));
}

#[test]
fn a_delay_says_until_when_we_retry_and_returns_only_the_header() {
    let mut envelope = envelope(vec![recipient("bob@example.net"), recipient("carol@example.net")]);
    envelope.ret = Some(DsnReturn::Full);
    let busy = busy();
    let fates = [DsnAction::Delayed { reply: &busy, until: EXPIRES }; 2];
    let report = DsnReport::build(&envelope, None, results(&fates, Some("mx.example.net"))).unwrap();
    assert_eq!(report.kind(), DsnKind::Delayed);
    insta::assert_snapshot!(text(compose(&report, MESSAGE.as_bytes())));
}

#[test]
fn a_success_is_reported_if_requested() {
    let asked = Recipient { notify: DsnNotify::SUCCESS, ..recipient("bob@example.org") };
    let envelope = envelope(vec![recipient("carol@example.org"), asked]);
    let report = DsnReport::build(&envelope, None, results(&[DsnAction::Delivered; 2], None)).unwrap();
    assert_eq!(report.kind(), DsnKind::Delivered);
    insta::assert_snapshot!(text(compose(&report, MESSAGE.as_bytes())));
}

#[test]
fn one_notice_reports_every_kind_of_result() {
    let all = DsnNotify::SUCCESS.with(DsnNotify::FAILURE).with(DsnNotify::DELAY);
    let recipients = ["ok", "next", "slow", "unknown"].map(|name| Recipient {
        notify: all,
        orcpt: Some(format!("rfc822;{name}@example.net").into()),
        ..recipient(&format!("{name}@example.net"))
    });
    let envelope = envelope(recipients.into());
    let (taken, busy, unknown) = (taken(), busy(), unknown());
    let fates = [
        DsnAction::Delivered,
        DsnAction::Relayed { reply: &taken, dsn: false },
        DsnAction::Delayed { reply: &busy, until: EXPIRES },
        DsnAction::Failed(&unknown),
    ];
    let report = DsnReport::build(&envelope, None, results(&fates, Some("mx.example.net"))).unwrap();
    assert_eq!(report.kind(), DsnKind::Failed);
    insta::assert_snapshot!(text(compose(&report, MESSAGE.as_bytes())));
}

#[test]
fn a_failed_notice_is_reported_to_the_postmaster() {
    let mut envelope = envelope(vec![Recipient { notify: DsnNotify::NEVER, ..recipient("forged@example.net") }]);
    envelope.sender = None;
    let (postmaster, unknown) = (address("postmaster@example.org"), unknown());
    let fates = [DsnAction::Failed(&unknown)];
    let report = DsnReport::build(&envelope, Some(&postmaster), results(&fates, Some("mx.example.net"))).unwrap();
    assert!(report.is_double_bounce());
    assert_eq!(report.notified_address(), &postmaster);
    insta::assert_snapshot!(text(compose(&report, MESSAGE.as_bytes())));
}

/// A double bounce causes no further notice, whatever its result and whatever address the
/// postmaster's mail goes to.
#[test]
fn a_double_bounce_is_never_reported() {
    let (postmaster, unknown, busy, taken) = (address("postmaster@example.org"), unknown(), busy(), taken());
    let alias = Recipient { original: Some(postmaster.clone()), ..recipient("ann@example.org") };
    let nobody = Recipient { notify: DsnNotify::SUCCESS.with(DsnNotify::DELAY), ..recipient("bob@example.net") };
    let mut envelope = envelope(vec![recipient("postmaster@EXAMPLE.org"), alias, nobody]);
    envelope.sender = None;
    let told = |to, fate| {
        DsnReport::build(&envelope, to, results(&[fate; 3], None))
            .map(|report| [0, 1, 2].map(|ordinal| report.includes_recipient(ordinal)))
    };
    assert_eq!(told(Some(&postmaster), DsnAction::Failed(&unknown)), Some([false, false, true]));
    assert_eq!(told(None, DsnAction::Failed(&unknown)), None);
    for fate in [
        DsnAction::Delivered,
        DsnAction::Relayed { reply: &taken, dsn: false },
        DsnAction::Delayed { reply: &busy, until: EXPIRES },
    ] {
        assert_eq!(told(Some(&postmaster), fate), None);
    }
}

/// RFC 3461 sections 4.1 and 5.2, row by row.
#[test]
fn notices_follow_the_notify_parameter() {
    let (unknown, busy, taken) = (unknown(), busy(), taken());
    let wishes = [DsnNotify::UNSET, DsnNotify::NEVER, DsnNotify::SUCCESS, DsnNotify::FAILURE, DsnNotify::DELAY];
    let recipients = wishes.map(|notify| Recipient { notify, ..recipient("bob@example.net") });
    let mut envelope = envelope(recipients.into());
    let told = |envelope: &Envelope, fate| {
        let fates = [fate; 5];
        let report = DsnReport::build(envelope, None, results(&fates, None))?;
        assert_eq!(report.notified_address().as_str(), "ann@example.org");
        Some([0, 1, 2, 3, 4].map(|ordinal| u8::from(report.includes_recipient(ordinal))))
    };
    let relayed = |dsn| DsnAction::Relayed { reply: &taken, dsn };
    let fates = [
        (DsnAction::Failed(&unknown), Some([1, 0, 0, 1, 0])),
        (DsnAction::Delayed { reply: &busy, until: EXPIRES }, Some([1, 0, 0, 0, 1])),
        (DsnAction::Delivered, Some([0, 0, 1, 0, 0])),
        (relayed(false), Some([0, 0, 1, 0, 0])),
        (relayed(true), None),
    ];
    for (fate, expected) in fates {
        assert_eq!(told(&envelope, fate), expected, "{fate:?}");
    }
    assert!(DsnReport::build(&envelope, None, []).is_none());
    let nobody = RecipientResult { ordinal: 5, action: DsnAction::Failed(&unknown), peer: None };
    assert!(DsnReport::build(&envelope, None, [nobody]).is_none());
    envelope.sender = None;
    assert!(fates.iter().all(|(fate, _)| told(&envelope, *fate).is_none()));
}

/// A list manager that generates its own sender addresses gets bounces at those addresses.
#[test]
fn notices_go_to_the_sender_as_accepted() {
    let unknown = unknown();
    let mut envelope = envelope(vec![recipient("bob@example.net")]);
    envelope.sender = Some(address("news+bob=example.net@example.org"));
    let fates = [DsnAction::Failed(&unknown)];
    let report = DsnReport::build(&envelope, None, results(&fates, None)).unwrap();
    assert_eq!(Some(report.notified_address()), envelope.sender.as_ref());
    let text = text(compose(&report, MESSAGE.as_bytes()));
    assert!(text.contains("\nTo: <news+bob=example.net@example.org>\n"));
}

#[test]
fn a_message_comes_back_whole_unless_it_is_large_or_its_header_was_asked_for_or_it_could_not_be_read() {
    let line = "x".repeat(98) + "\r\n";
    let long = format!("{MESSAGE}{}", line.repeat(500));
    let (large, limit) = (long.as_bytes(), ORIGINAL_OCTETS_MAX as usize);
    for (ret, original, octets, whole) in [
        (None, &large[..limit], limit, true),
        (Some(DsnReturn::Full), &large[..limit], limit, true),
        (Some(DsnReturn::Headers), MESSAGE.as_bytes(), MESSAGE.len(), false),
        (Some(DsnReturn::Full), large, large.len(), false),
        (Some(DsnReturn::Full), &large[..limit], large.len(), false),
        (None, &large[..100], limit, false),
        (None, b"", limit, false),
    ] {
        let mut envelope = envelope(vec![recipient("bob@example.net")]);
        envelope.ret = ret;
        let unknown = unknown();
        let fates = [DsnAction::Failed(&unknown)];
        let report = DsnReport::build(&envelope, None, results(&fates, None)).unwrap();
        let letter = report.compose(&DsnComposeInput {
            hostname: "mx1.example.org",
            id: QueueId::new(SpoolId::new(1), 0, 2),
            now: ATTEMPTED,
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
fn a_notice_has_a_null_sender_and_requests_no_notification() {
    let bounce = bounce(&envelope(vec![recipient("bob@example.net")]), &[unknown()], "Subject: ü\r\n\r\n".as_bytes());
    let asked = Recipient { notify: DsnNotify::FAILURE, ..recipient("ann@example.org") };
    let envelope = bounce.envelope("mx1.example.org", ATTEMPTED, vec![asked]);
    assert_eq!(
        envelope,
        Envelope {
            sender: None,
            recipients: vec![Recipient { notify: DsnNotify::NEVER, ..recipient("ann@example.org") }],
            accepted_at: ATTEMPTED,
            client: ClientInfo { address: None, helo: "mx1.example.org".into(), trusted: true },
            body_type: BodyType::EightBitMime,
            smtputf8: false,
            ret: None,
            envid: None,
            content_filter: false,
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
fn recipient_fields(kind: DsnKind) -> Vec<&'static str> {
    let mut names = vec!["Final-Recipient", "Action", "Status", "Remote-MTA"];
    names.extend((kind != DsnKind::Delivered).then_some("Diagnostic-Code"));
    names.push("Last-Attempt-Date");
    names.extend((kind == DsnKind::Delayed).then_some("Will-Retry-Until"));
    names
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Text from other hosts adds no field, part or overlong line, and the message is returned
    /// unchanged.
    #[test]
    fn remote_text_cannot_escape_its_field(
        reply in "(\r\n|\n|\r|: |X-Evil: |--|\\PC|[\u{0}-\u{ff}]|.{300}){0,40}",
        peer in "(\r\n|\r\n\r\n|X-Evil: |\\PC|.{300}){0,10}",
        envid in "(\\+0D\\+0A|\\+|[ -~]|\r\n){0,30}",
        orcpt in "(rfc822|utf-8|x y|\r\nX-Evil: 1)?;?(\\+0D\\+0A|\\+C3|[ -~]){0,30}",
        original in "([A-Z]: \\PC{0,20}\r\n){0,3}\r\n(--|=_|\\PC|\r\n){0,40}",
        headers: bool,
        choice in 0..4usize,
    ) {
        let notify = DsnNotify::SUCCESS.with(DsnNotify::FAILURE).with(DsnNotify::DELAY);
        let recipient = Recipient { orcpt: Some(orcpt.into()), notify, ..recipient("bob@example.net") };
        let mut envelope = envelope(vec![recipient]);
        envelope.envid = Some(envid.into());
        envelope.ret = headers.then_some(DsnReturn::Headers);
        let reply = &Reply { code: 550, enhanced: None, text: reply.into() };
        let (delayed, relayed) = (DsnAction::Delayed { reply, until: EXPIRES }, DsnAction::Relayed { reply, dsn: false });
        let fates = [[DsnAction::Failed(reply), delayed, relayed, DsnAction::Delivered][choice]];
        let report = DsnReport::build(&envelope, None, results(&fates, Some(&peer))).unwrap();
        let content = String::from_utf8(compose(&report, original.as_bytes()).content).unwrap();

        let (header, parts) = parts(&content);
        prop_assert_eq!(fields(header).len(), 8 + usize::from(header.contains("Transfer-Encoding")));
        prop_assert_eq!(parts.len(), 3);
        let (_, status) = parts[1].split_once("\r\n\r\n").unwrap();
        let mut names = fields(status);
        names.retain(|name| *name != "Original-Recipient");
        prop_assert_eq!(&names[..4], ["Original-Envelope-Id", "Reporting-MTA", "X-Mailrace-Queue-ID", "Arrival-Date"]);
        prop_assert_eq!(&names[4..], recipient_fields(report.kind()));
        let (_, returned) = parts[2].split_once("\r\n\r\n").unwrap();
        if headers || report.kind() != DsnKind::Failed {
            prop_assert!(original.starts_with(returned));
        } else {
            prop_assert_eq!(returned, &original);
        }
        let ours = [header, parts[0], parts[1]].concat();
        prop_assert!(ours.split("\r\n").all(|line| line.len() <= 998 && !line.contains(['\r', '\n', '\0'])));
    }
}
