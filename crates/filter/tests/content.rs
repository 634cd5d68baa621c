//! Content rules on messages: what they find, whatever the pieces in which a message is read, and what
//! they do.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use filter::content::{
    AttachmentCondition, ContentAction, ContentLimits, ContentRule, ContentRules, LineCondition, LineScope, Pattern,
};
use filter::{CheckFactory, CheckedMessage, ContentFuture, Decision, Edit, ServiceScope, SessionInfo, Verdict};
use lookup::fixed::StaticTable;
use lookup::text::TextTable;
use lookup::{LookupAnswer, LookupFuture, Table};
use mail::{Address, OperatorLog, Reply};

/// A message that is read in pieces.
struct PiecedMessage {
    prefix: &'static str,
    content: Vec<u8>,
    piece: usize,
    /// The position after the last octet that was read.
    read_to: u64,
}

impl CheckedMessage for PiecedMessage {
    fn sender(&self) -> Option<&Address> {
        None
    }

    fn recipients(&self) -> Vec<&Address> {
        Vec::new()
    }

    fn prefix(&self) -> &[u8] {
        self.prefix.as_bytes()
    }

    fn content_len(&self) -> u64 {
        self.content.len() as u64
    }

    fn is_eight_bit(&self) -> bool {
        false
    }

    fn read_content(&mut self, position: u64) -> ContentFuture<'_> {
        let from = (position as usize).min(self.content.len());
        let to = (from + self.piece).min(self.content.len());
        self.read_to = self.read_to.max(to as u64);
        Box::pin(ready(Ok(&self.content[from..to])))
    }

    fn edit(&mut self, _: Edit) -> Pin<Box<dyn Future<Output = Result<(), Reply>> + Send + '_>> {
        Box::pin(ready(Ok(())))
    }
}

/// Keeps the lines.
#[derive(Default)]
struct RecordingLog(Mutex<Vec<String>>);

impl OperatorLog for RecordingLog {
    fn log_line(&self, line: fmt::Arguments<'_>) {
        self.0.lock().unwrap().push(line.to_string());
    }
}

fn patterns(patterns: &[&str]) -> Vec<Pattern> {
    patterns.iter().map(|pattern| pattern.parse().unwrap()).collect()
}

fn rule(name: &str, action: ContentAction) -> ContentRule {
    let scope = ServiceScope::default();
    ContentRule { name: name.into(), list: None, scope, lines: None, attachment: None, action }
}

fn line_rule(scope: LineScope, pattern: &str, action: ContentAction) -> ContentRule {
    let lines = LineCondition { scopes: vec![scope], matches: patterns(&[pattern]), ..LineCondition::default() };
    ContentRule { lines: Some(lines), ..rule(pattern, action) }
}

fn attachment_rule(names: &[&str], types: &[&str], larger_than: Option<u64>) -> ContentRule {
    let globs = |names: &[&str]| names.iter().map(|name| Pattern::from_name(name).unwrap()).collect();
    let attachment = AttachmentCondition { names: globs(names), types: globs(types), larger_than, table: None };
    ContentRule { attachment: Some(attachment), ..rule("attachment", ContentAction::Hold) }
}

/// The verdict, and the octets that were read.
fn check_in(piece: usize, rules: &[ContentRule], message: &str, log: &Arc<RecordingLog>) -> (Verdict, u64) {
    let table: Arc<dyn Table> = Arc::new(StaticTable::new("all", vec!["x".to_owned()]));
    check_with(&table, piece, rules, message, log)
}

fn check_with(
    table: &Arc<dyn Table>,
    piece: usize,
    rules: &[ContentRule],
    message: &str,
    log: &Arc<RecordingLog>,
) -> (Verdict, u64) {
    let limits = ContentLimits { body_octets_max: 1000, body_lookup_octets_max: 100 };
    let rules = ContentRules::new(rules.to_vec(), limits, |_| Some(table), log.clone()).unwrap().unwrap();
    let mut check = Arc::new(rules).start();
    let content = message.replace('\n', "\r\n").into_bytes();
    let mut message = PiecedMessage { prefix: "X-Spam: yes\r\nReceived: by us\r\n", content, piece, read_to: 0 };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let verdict = runtime.block_on(check.message(&SessionInfo::default(), &mut message));
    (verdict, message.read_to)
}

fn check(rules: &[ContentRule], message: &str) -> Verdict {
    let (verdict, _) = check_in(usize::MAX / 2, rules, message, &Arc::default());
    for piece in [1, 7, 1000] {
        assert_eq!(check_in(piece, rules, message, &Arc::default()).0, verdict, "in pieces of {piece}");
    }
    verdict
}

fn holds(rules: &[ContentRule], message: &str) -> bool {
    check(rules, message).held
}

fn refusal(verdict: &Verdict) -> Option<(&str, u16)> {
    match &verdict.decision {
        Decision::Refuse(refusal) => Some((&refusal.by, refusal.reply.code)),
        _ => None,
    }
}

const MULTIPART: &str = "Subject: out\nContent-Type: multipart/mixed; boundary=b\n\npreamble\n--b\n\
    Content-Type: text/plain\nContent-Transfer-Encoding: quoted-printable\n\nhid=\nden =3D word\n--b\n\
    Content-Type: application/x-thing; name=\"a.exe\"\nContent-Transfer-Encoding: base64\n\naGVs\nbG8=\n--b\n\
    Content-Type: message/rfc822\n\nSubject: inner\nContent-Type: multipart/signed; boundary=s\n\n--s\n\
    Content-Disposition: attachment; filename*=UTF-8''%C3%A4.js\n\nx\n--s--\n--b--\nepilogue\n";

#[test]
fn each_place_has_its_lines() {
    for (scope, pattern, is_found) in [
        (LineScope::Header, "^Subject: out$", true),
        (LineScope::Header, "^content-type: multipart", true),
        (LineScope::Header, "^X-Spam: yes$", true),
        (LineScope::Header, "inner|epilogue|application", false),
        (LineScope::Mime, "^Content-Type: application/x-thing", true),
        (LineScope::Mime, "boundary=b$", true),
        (LineScope::Mime, "boundary=s$", true),
        (LineScope::Mime, "Subject", false),
        (LineScope::Nested, "^Subject: inner$", true),
        (LineScope::Nested, "out|Content", false),
        (LineScope::Body, "^hidden = word$", true),
        (LineScope::Body, "^hid=$", true),
        (LineScope::Body, "^aGVs$", true),
        (LineScope::Body, "^preamble$", true),
        (LineScope::Body, "^epilogue$", true),
        (LineScope::Body, "Subject|^hello$", false),
    ] {
        assert_eq!(
            holds(&[line_rule(scope, pattern, ContentAction::Hold)], MULTIPART),
            is_found,
            "{scope:?} {pattern}"
        );
    }
}

#[test]
fn attachments_are_found_by_name_type_and_size() {
    for (names, types, larger_than, is_found) in [
        (&["*.exe"][..], &[][..], None, true),
        (&["*.EXE"], &["application/*"], Some(4), true),
        (&["*.exe"], &[], Some(5), false),
        (&["*.exe"], &["text/*"], None, false),
        (&["\u{e4}.js"], &[], None, true),
        (&["*.zip"], &[], None, false),
        (&[], &["message/rfc822"], None, true),
        (&[], &["multipart/*"], None, false),
    ] {
        let rules = [attachment_rule(names, types, larger_than)];
        assert_eq!(holds(&rules, MULTIPART), is_found, "{names:?} {types:?} {larger_than:?}");
    }
    let alone = "Content-Type: application/pdf\nContent-Transfer-Encoding: base64\n\naGVsbG8=\n";
    assert!(holds(&[attachment_rule(&[], &["application/pdf"], Some(4))], alone));
    assert!(!holds(&[attachment_rule(&[], &[], None)], "Subject: x\n\ntext\n"));
}

#[test]
fn header_rules_do_not_read_the_body() {
    let message = format!("Subject: out\n\n{}", "line\n".repeat(10_000));
    let read = |rules: &[ContentRule]| check_in(100, rules, &message, &Arc::default()).1;
    assert!(read(&[line_rule(LineScope::Header, "nothing", ContentAction::Hold)]) <= 100);
    assert!(read(&[line_rule(LineScope::Mime, "nothing", ContentAction::Hold)]) <= 100);
    assert!(read(&[attachment_rule(&["*.exe"], &[], None)]) <= 100);
    assert_eq!(read(&[rule("all", ContentAction::Hold)]), 0);
    // Lines of the body, only as far as they are compared.
    assert!((1000..1500).contains(&read(&[line_rule(LineScope::Body, "nothing", ContentAction::Hold)])));
}

#[test]
fn rules_are_evaluated_in_order_and_the_first_decision_ends() {
    let on_subject = |action| line_rule(LineScope::Header, "^Subject:", action);
    let verdict = check(
        &[on_subject(ContentAction::Hold), on_subject(ContentAction::Refuse(None)), on_subject(ContentAction::Discard)],
        MULTIPART,
    );
    assert_eq!((refusal(&verdict), verdict.held), (Some(("^Subject:", 550)), true));
    let reply: Reply = "451 4.7.1 later".parse().unwrap();
    let verdict = check(&[on_subject(ContentAction::Defer(Some(reply))), on_subject(ContentAction::Hold)], MULTIPART);
    assert_eq!((refusal(&verdict), verdict.held), (Some(("^Subject:", 451)), false));
    let verdict = check(&[on_subject(ContentAction::Accept), on_subject(ContentAction::Hold)], MULTIPART);
    assert_eq!(verdict, Verdict::default());
    let discarded = check(&[on_subject(ContentAction::Discard)], MULTIPART).decision;
    assert_eq!(discarded, Decision::Discard { by: "^Subject:".into() });
}

#[test]
fn a_list_gives_each_line_to_its_first_rule() {
    let in_list =
        |pattern, action| ContentRule { list: Some("l".into()), ..line_rule(LineScope::Header, pattern, action) };
    let rules = [in_list("^Subject: out", ContentAction::Accept), in_list("out|secret", ContentAction::Hold)];
    assert!(!holds(&rules, "Subject: out\n\n"));
    assert!(holds(&rules, "Subject: out\nX: secret\n\n"));
    // The encoded form of a line is the same line.
    assert!(!holds(&rules, "Subject: out =?utf-8?q?secret?=\n\n"));
}

#[test]
fn several_patterns_and_exceptions_are_about_the_same_line() {
    let lines = LineCondition {
        scopes: vec![LineScope::Header],
        fields: vec!["subject".into()],
        matches: patterns(&["sale", "win"]),
        unless: patterns(&["order"]),
        table: None,
    };
    let rules = [ContentRule { lines: Some(lines), ..rule("r", ContentAction::Hold) }];
    assert!(holds(&rules, "Subject: win the\n sale\n\n"));
    for header in ["Subject: sale\nX: win", "X: sale win", "Subject: win a sale order"] {
        assert!(!holds(&rules, &format!("{header}\n\n")), "{header}");
    }
    assert!(holds(&rules, "Subject: =?utf-8?B?d2luIGEgc2FsZQ==?=\n\n"));
}

#[test]
fn lines_are_replaced_and_removed_where_they_stand() {
    let replaced = |scope, pattern, text: &str| {
        let edits = check(&[line_rule(scope, pattern, ContentAction::Replace(text.into()))], MULTIPART).edits;
        let [Edit::ReplaceOctets { changes }] = &*edits else { panic!("{edits:?}") };
        let mut content = MULTIPART.replace('\n', "\r\n").into_bytes();
        for (place, new) in changes.iter().rev() {
            content.splice(place.start as usize..place.end as usize, new.iter().copied());
        }
        String::from_utf8(content).unwrap().replace("\r\n", "\n")
    };
    let text = replaced(LineScope::Header, "^Subject: (.*)", "Subject: [x] $1");
    assert_eq!(text, MULTIPART.replace("Subject: out", "Subject: [x] out"));
    let text = replaced(LineScope::Mime, "name=.a.exe", "Content-Type: text/plain");
    assert_eq!(
        text,
        MULTIPART.replace("Content-Type: application/x-thing; name=\"a.exe\"", "Content-Type: text/plain")
    );
    assert_eq!(replaced(LineScope::Body, "^epi(.*)", "pro$1"), MULTIPART.replace("epilogue", "prologue"));
    assert_eq!(replaced(LineScope::Nested, "inner", "X: y"), MULTIPART.replace("Subject: inner", "X: y"));
    let removed = check(&[line_rule(LineScope::Header, "^x-spam", ContentAction::Remove)], MULTIPART).edits;
    assert_eq!(removed, [Edit::ReplaceField { name: "x-spam".into(), occurrence: 1, field: None }]);
}

#[test]
fn recipients_fields_and_queues_are_edits() {
    let address: Address = "copy@example.org".parse().unwrap();
    let on_subject = |action| line_rule(LineScope::Header, "^Subject: (.*)", action);
    let edits = check(
        &[
            on_subject(ContentAction::Prepend("X-Was: $1".into())),
            on_subject(ContentAction::Queue("slow".into())),
            on_subject(ContentAction::Redirect(address.clone())),
            on_subject(ContentAction::Bcc(address)),
            on_subject(ContentAction::Filter("amavis:[127.0.0.1]:10024".into())),
        ],
        MULTIPART,
    )
    .edits;
    let texts: Vec<String> = edits.iter().map(|edit| format!("{edit:?}")).collect();
    assert!(texts[0].contains("X-Was: out") && texts[1].contains("X-Mailrace-Queue: slow"), "{texts:?}");
    assert!(texts[4].contains("X-Mailrace-Filter: amavis:[127.0.0.1]:10024"), "{texts:?}");
    assert!(texts[2].starts_with("Redirect") && texts[3].starts_with("AddRecipient"), "{texts:?}");
}

#[test]
fn a_table_has_the_value_or_an_address_in_it() {
    let lines = LineCondition {
        scopes: vec![LineScope::Header],
        fields: vec!["from".into()],
        table: Some("all".into()),
        ..LineCondition::default()
    };
    let rules = [ContentRule { lines: Some(lines), ..rule("r", ContentAction::Hold) }];
    assert!(holds(&rules, "From: a@b.example\n\n") && !holds(&rules, "Subject: x\n\n"));
}

/// A rule that holds a message for the value of a field, which its table has whatever it is.
fn table_rule(scope: LineScope, field: &str) -> ContentRule {
    let lines = LineCondition {
        scopes: vec![scope],
        fields: vec![field.into()],
        table: Some("all".into()),
        ..LineCondition::default()
    };
    ContentRule { lines: Some(lines), ..rule("r", ContentAction::Hold) }
}

#[test]
fn a_table_has_fields_of_parts_and_of_enclosed_messages() {
    for (scope, field, is_found) in [
        (LineScope::Mime, "content-disposition", true),
        (LineScope::Header, "content-disposition", false),
        (LineScope::Nested, "subject", true),
        (LineScope::Nested, "from", false),
    ] {
        assert_eq!(holds(&[table_rule(scope, field)], MULTIPART), is_found, "{scope:?} {field}");
    }
}

#[test]
fn too_many_fields_for_a_table_are_refused() {
    for (count, code) in [(1000, None), (1001, Some(554))] {
        let verdict = check(&[table_rule(LineScope::Header, "x")], &format!("{}\n", "X: y\n".repeat(count)));
        assert_eq!(refusal(&verdict).map(|(_, code)| code), code, "{count}");
    }
}

/// Has one key, and keeps what it is asked for.
struct RecordingTable {
    key: &'static str,
    asked: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Table for RecordingTable {
    fn name(&self) -> &str {
        "all"
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        self.asked.lock().unwrap().push(keys.iter().map(|key| (*key).to_owned()).collect());
        let answer = |key: &&str| match *key {
            "down" => LookupAnswer::Unavailable("down".to_owned()),
            key if key == self.key => LookupAnswer::Found(Vec::new()),
            _ => LookupAnswer::NotFound,
        };
        Box::pin(ready(keys.iter().map(answer).collect()))
    }
}

/// A rule about lines of the body that a table has.
fn body_table_rule(action: ContentAction) -> ContentRule {
    let lines = LineCondition { scopes: vec![LineScope::Body], table: Some("all".into()), ..LineCondition::default() };
    ContentRule { lines: Some(lines), ..rule("body", action) }
}

/// The verdict of two rules about lines of the body, and what their table was asked for.
fn check_body_lines(action: ContentAction, message: &str) -> (Verdict, Vec<Vec<String>>) {
    let asked = Arc::default();
    let table: Arc<dyn Table> = Arc::new(RecordingTable { key: "hidden = word", asked: Arc::clone(&asked) });
    let rules = [body_table_rule(action), body_table_rule(ContentAction::Warn)];
    let (verdict, _) = check_with(&table, 100, &rules, message, &Arc::default());
    drop(table);
    let asked = asked.lock().unwrap().clone();
    (verdict, asked)
}

#[test]
fn a_table_has_lines_of_the_body_and_is_asked_for_all_of_them_at_once() {
    let (verdict, asked) = check_body_lines(ContentAction::Hold, "Subject: x\n\na\n\nb\0\na\nhidden = word\nc");
    assert!(verdict.held);
    assert_eq!(asked, [["a", "hidden = word", "c"]]);
    let (verdict, asked) = check_body_lines(ContentAction::Hold, "Subject: hidden = word\n\nhidden = words\n");
    assert!(!verdict.held);
    assert_eq!(asked, [["hidden = words"]]);
    let encoded = "Content-Transfer-Encoding: quoted-printable\n\nhid=\nden =3D word\n";
    assert!(check_body_lines(ContentAction::Hold, encoded).0.held);
}

#[test]
fn a_line_of_the_body_that_a_table_has_is_removed_wherever_it_stands() {
    let (verdict, _) = check_body_lines(ContentAction::Remove, "\nhidden = word\nb\nhidden = word\n");
    let [Edit::ReplaceOctets { changes }] = &*verdict.edits else { panic!("{:?}", verdict.edits) };
    assert_eq!(changes[..], [(2..17, Vec::new()), (20..35, Vec::new())]);
}

#[test]
fn lines_of_the_body_beyond_the_limit_are_not_looked_up() {
    // With its line end, each of the first lines has 10 octets, and the limit is 100.
    for (count, is_found) in [(8, true), (9, false)] {
        let message = format!("\n{}hidden = word\n", "12345678\n".repeat(count));
        let (verdict, _) = check_body_lines(ContentAction::Hold, &message);
        assert_eq!((verdict.held, refusal(&verdict)), (is_found, None), "{count}");
    }
    let (_, asked) = check_body_lines(ContentAction::Hold, &format!("\n{}\nlast\n", "x".repeat(99)));
    assert!(asked.concat().is_empty(), "no later line takes the place of one that was too long: {asked:?}");
}

#[test]
fn a_table_that_is_down_defers_the_message_whose_line_it_is_asked_for() {
    let (verdict, _) = check_body_lines(ContentAction::Hold, "\nhidden = word\ndown\n");
    assert_eq!(refusal(&verdict), Some(("content rules", 451)));
}

#[test]
fn a_table_has_the_name_of_an_attachment_or_its_end() {
    for (message, is_found) in [
        ("Content-Type: application/x; name=\"a.EXE\"\n\nx\n", true),
        ("Content-Type: application/x; name=\"b.exe\"\n\nx\n", false),
        ("Content-Disposition: attachment; filename=x.tar.js\n\nx\n", true),
        ("Content-Type: application/x\n\nx\n", false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("names");
        std::fs::write(&path, "a.exe x\n.js x\n").unwrap();
        let table: Arc<dyn Table> = Arc::new(TextTable::load("all", &path).unwrap());
        let attachment = AttachmentCondition { table: Some("all".into()), ..AttachmentCondition::default() };
        let rules = [ContentRule { attachment: Some(attachment), ..rule("r", ContentAction::Hold) }];
        assert_eq!(check_with(&table, 100, &rules, message, &Arc::default()).0.held, is_found, "{message}");
    }
}

#[test]
fn a_warning_is_a_line_in_the_log() {
    let log = Arc::new(RecordingLog::default());
    check_in(100, &[line_rule(LineScope::Header, "out", ContentAction::Warn)], MULTIPART, &log);
    assert_eq!(*log.0.lock().unwrap(), ["content rule 'out' matches : Subject: out"]);
}

/// `^Subject:` did not match a field with white space before its colon, which readers show as any other.
#[test]
fn white_space_before_a_colon_hides_no_field() {
    for pattern in ["^Subject: free", "^Subject : free", "^subject[ \t]+:"] {
        let is_exact = pattern == "^Subject: free";
        let rules = [line_rule(LineScope::Header, pattern, ContentAction::Hold)];
        assert!(holds(&rules, "Subject : free\n\n"), "{pattern}");
        assert_eq!(holds(&rules, "Subject\t: =?utf-8?Q?free?=\n\n"), pattern != "^Subject : free", "{pattern}");
        assert_eq!(holds(&rules, "Subject: free\n\n"), is_exact, "{pattern}");
    }
}

/// An attachment was not found in a message that is encoded or of a newer type, and where a second field named parts.
#[test]
fn no_enclosed_message_hides_an_attachment() {
    let rules = [attachment_rule(&["*.exe"], &[], None)];
    let inner = "Subject: inner\nContent-Disposition: attachment; filename=a.exe\n\nx\n";
    let outer = |fields: &str, content: &str| {
        format!("Content-Type: multipart/mixed; boundary=b\n\n--b\n{fields}\n\n{content}--b--\n")
    };
    assert!(holds(&rules, &outer("Content-Type: message/global", inner)));
    assert!(holds(&rules, &outer("Content-Type: message/rfc822\nContent-Transfer-Encoding: 8bit", inner)));
    let encoded = "U3ViamVjdDogaW5uZXIKQ29udGVudC1EaXNwb3NpdGlvbjogYXR0YWNobWVudDsgZmlsZW5hbWU9YS5leGUKCnggCg==\n";
    for kind in ["message/rfc822", "message/global"] {
        let fields = format!("Content-Type: {kind}\nContent-Transfer-Encoding: base64");
        assert_eq!(refusal(&check(&rules, &outer(&fields, encoded))), Some(("content rules", 554)), "{kind}");
        let nested = [line_rule(LineScope::Nested, "^Subject: inner", ContentAction::Hold)];
        assert_eq!(refusal(&check(&nested, &outer(&fields, encoded))), Some(("content rules", 554)), "{kind}");
        let header = [line_rule(LineScope::Header, "^Subject: inner", ContentAction::Hold)];
        assert_eq!(refusal(&check(&header, &outer(&fields, encoded))), None, "{kind}");
    }
    let second = "Content-Type: text/plain\nContent-Type: multipart/mixed; boundary=c";
    assert_eq!(refusal(&check(&rules, &format!("{second}\n\n--c\n{inner}"))), Some(("content rules", 554)));
    assert_eq!(refusal(&check(&rules, &outer(second, &format!("--c\n{inner}--c--\n")))), Some(("content rules", 554)));
    let same = "Content-Type: multipart/mixed; boundary=c\n".repeat(2);
    assert!(holds(&rules, &format!("{same}\n--c\n{inner}--c--\n")));
}

#[test]
fn hostile_structures_are_refused() {
    let rules = [attachment_rule(&["*.exe"], &[], None)];
    let many = format!("Content-Type: multipart/mixed; boundary=b\n\n{}", "--b\n\nx\n".repeat(10_001));
    let deep: String =
        (0..1000).map(|level| format!("Content-Type: multipart/mixed; boundary=b{level}x\n\n--b{level}x\n")).collect();
    let long_boundary = format!("Content-Type: multipart/mixed; boundary={}\n\n", "b".repeat(70_000));
    let long_name = format!("Content-Type: application/x; name={}\n\n", "n".repeat(70_000));
    // Each = begins a name that ends with the field: a header of 1 MiB became 400 MB of names.
    let many_names = format!("Content-Type: application/x; {}\n\n", "name=".repeat(700));
    let many_fields = format!("{}\n", "Content-Disposition: attachment; filename=\"a.txt\"\n".repeat(33));
    let long_header = format!("X: {}\n\n", "x".repeat(2 << 20));
    for message in [many, deep, long_boundary, long_name, many_names, many_fields, long_header] {
        let (verdict, _) = check_in(64 << 10, &rules, &message, &Arc::default());
        assert_eq!(refusal(&verdict), Some(("content rules", 554)), "{}", &message[..60]);
    }
    let lines = format!("Subject: x\n\n{}", "y\n".repeat(2000));
    let removal = [line_rule(LineScope::Header, "^X", ContentAction::Remove)];
    let fields = format!("{}\n", "X: y\n".repeat(1001));
    assert_eq!(refusal(&check_in(64 << 10, &removal, &fields, &Arc::default()).0), Some(("content rules", 554)));
    assert!(!holds(&[line_rule(LineScope::Body, "^z$", ContentAction::Hold)], &lines));
}
