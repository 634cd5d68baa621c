//! Every guarantee of delivery, on real directories.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use mail::{Body, BodyError, BodyFlags, ByteSource, QueueId, SpoolId, Timestamp};
use mailbox::{
    DeliverError, LineEnds, MaildirEntry, MaildirFolder, MaildirMessage, MaildirWriter, MaildirWriterConfig,
    QuotaState, list_messages, open_message,
};

const TEXT: &[u8] = b"Subject: hello\r\n\r\nfirst line\r\nsecond line\r\n";
const HEADER: &[u8] = b"Return-Path: <a@example.org>\r\n";

type Results = Vec<(u64, Result<(), DeliverError>)>;

fn maildirs(line_ends: LineEnds) -> MaildirWriter<u64> {
    MaildirWriter::new(MaildirWriterConfig { host: "mx.example.org".into(), line_ends })
}

fn body(text: &[u8]) -> Body {
    Body::new(Arc::new(text.to_vec()), 0, text.len() as u64, crc32c::crc32c(text), BodyFlags::default())
}

fn message(folder: &Path, number: u64) -> MaildirMessage<u64> {
    MaildirMessage {
        ticket: number,
        folder: folder.into(),
        id: QueueId::new(SpoolId::new(7), 1, number),
        ordinal: 3,
        accepted_at: Timestamp(1_763_000_000_500),
        header: HEADER.to_vec(),
        body: body(TEXT),
        recovered: false,
        quota: QuotaState::None,
    }
}

/// The files of a Maildir by their relative paths.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for part in ["tmp", "new", "cur"] {
        for entry in fs::read_dir(folder.join(part)).into_iter().flatten() {
            let entry = entry.unwrap();
            let name = format!("{part}/{}", entry.file_name().to_str().unwrap());
            found.insert(name, fs::read(entry.path()).unwrap());
        }
    }
    found
}

fn succeeded(results: &Results) -> Vec<u64> {
    results.iter().filter(|(_, result)| result.is_ok()).map(|(ticket, _)| *ticket).collect()
}

/// Two batches, as for a burst of one batch.
fn deliver(maildirs: &mut MaildirWriter<u64>, messages: Vec<MaildirMessage<u64>>) -> Results {
    let mut results = maildirs.deliver_batch(messages);
    results.extend(maildirs.deliver_batch(Vec::new()));
    assert!(maildirs.is_idle());
    results
}

#[test]
fn a_message_is_in_new_after_its_batch_and_confirmed_by_the_next() {
    let root = tempfile::tempdir().unwrap();
    let mut maildirs = maildirs(LineEnds::Crlf);
    assert!(maildirs.is_idle());
    assert!(maildirs.deliver_batch(vec![message(root.path(), 5)]).is_empty());
    assert!(!maildirs.is_idle());
    let size = HEADER.len() + TEXT.len();
    let name = format!("new/1763000000.7-1-5_3.mx.example.org,S={size},W={size}");
    assert_eq!(files(root.path()), BTreeMap::from([(name, [HEADER, TEXT].concat())]));
    assert_eq!(succeeded(&maildirs.deliver_batch(vec![message(root.path(), 6)])), [5]);
    assert_eq!(succeeded(&maildirs.deliver_batch(Vec::new())), [6]);
    assert!(maildirs.is_idle());
}

#[test]
fn a_mailbox_and_its_parents_are_made_for_their_owner_only() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("example.org/bob");
    assert_eq!(succeeded(&deliver(&mut maildirs(LineEnds::Crlf), vec![message(&folder, 1)])), [1]);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    for path in [folder.parent().unwrap(), &folder, &folder.join("tmp"), &folder.join("new"), &folder.join("cur")] {
        assert_eq!(mode(path), 0o700, "{path:?}");
    }
    let file = folder.join(files(&folder).keys().next().unwrap());
    assert_eq!(mode(&file), 0o600);
}

#[test]
fn a_mailbox_that_lost_its_new_folder_gets_it_back() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("tmp")).unwrap();
    assert_eq!(succeeded(&deliver(&mut maildirs(LineEnds::Crlf), vec![message(root.path(), 1)])), [1]);
    assert_eq!(files(root.path()).len(), 1);
}

#[test]
fn two_messages_of_one_batch_for_one_mailbox_are_two_files() {
    let root = tempfile::tempdir().unwrap();
    let other_recipient = MaildirMessage { ordinal: 4, ticket: 2, ..message(root.path(), 1) };
    let messages = vec![message(root.path(), 1), other_recipient, message(root.path(), 3)];
    assert_eq!(succeeded(&deliver(&mut maildirs(LineEnds::Crlf), messages)), [1, 2, 3]);
    assert_eq!(files(root.path()).len(), 3);
}

#[test]
fn a_second_try_replaces_nothing_and_succeeds() {
    let root = tempfile::tempdir().unwrap();
    deliver(&mut maildirs(LineEnds::Crlf), vec![message(root.path(), 1)]);
    let name = files(root.path()).into_keys().next().unwrap();
    fs::write(root.path().join(&name), "as the reader left it").unwrap();
    assert_eq!(succeeded(&deliver(&mut maildirs(LineEnds::Crlf), vec![message(root.path(), 1)])), [1]);
    assert_eq!(files(root.path()), BTreeMap::from([(name, b"as the reader left it".to_vec())]));
}

#[test]
fn what_a_crash_left_in_tmp_is_replaced() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("tmp")).unwrap();
    fs::write(root.path().join("tmp/1763000000.7-1-1_3.mx.example.org"), vec![b'x'; 100_000]).unwrap();
    assert_eq!(succeeded(&deliver(&mut maildirs(LineEnds::Crlf), vec![message(root.path(), 1)])), [1]);
    assert_eq!(files(root.path()).into_values().collect::<Vec<_>>(), [[HEADER, TEXT].concat()]);
}

#[test]
fn a_recovered_message_that_a_reader_has_moved_is_not_delivered_again() {
    for place in ["new/", "cur/"] {
        let root = tempfile::tempdir().unwrap();
        deliver(&mut maildirs(LineEnds::Crlf), vec![message(root.path(), 1)]);
        let name = files(root.path()).into_keys().next().unwrap();
        let flagged = name.replace("new/", place) + if place == "cur/" { ":2,S" } else { "" };
        fs::rename(root.path().join(&name), root.path().join(&flagged)).unwrap();

        let messages = [1, 2].map(|number| MaildirMessage { recovered: true, ..message(root.path(), number) });
        let mut maildirs = maildirs(LineEnds::Crlf);
        assert_eq!(
            succeeded(&maildirs.deliver_batch(messages.into())),
            [1],
            "its name is durable after the sync of this batch"
        );
        assert_eq!(succeeded(&maildirs.deliver_batch(Vec::new())), [2]);
        let found = files(root.path());
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.contains_key(&flagged), "{found:?}");
    }
}

#[test]
fn a_recovered_message_is_deferred_if_its_mailbox_cannot_be_searched() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("cur"), "no folder").unwrap();
    let lost = MaildirMessage { recovered: true, ..message(root.path(), 1) };
    let results = deliver(&mut maildirs(LineEnds::Crlf), vec![lost]);
    assert!(matches!(results[..], [(1, Err(DeliverError::Unavailable(_)))]), "{results:?}");
}

#[test]
fn a_recovered_message_for_a_missing_mailbox_is_delivered() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("bob");
    let recovered = MaildirMessage { recovered: true, ..message(&folder, 1) };
    assert_eq!(succeeded(&deliver(&mut maildirs(LineEnds::Crlf), vec![recovered])), [1]);
    assert_eq!(files(&folder).len(), 1);
}

#[test]
fn with_lf_line_ends_the_name_has_both_sizes() {
    let root = tempfile::tempdir().unwrap();
    deliver(&mut maildirs(LineEnds::Lf), vec![message(root.path(), 1)]);
    let whole = [HEADER, TEXT].concat();
    let text = String::from_utf8(whole.clone()).unwrap().replace("\r\n", "\n");
    let entries = list_messages(root.path()).unwrap();
    assert_eq!((entries[0].size, entries[0].size_crlf), (text.len() as u64, Some(whole.len() as u64)));
    assert_eq!(files(root.path()).into_values().next().unwrap(), text.as_bytes());
}

#[test]
fn a_body_of_many_pieces_arrives_whole() {
    let root = tempfile::tempdir().unwrap();
    let text: Vec<u8> = (0..1_000_003u32).flat_map(u32::to_le_bytes).collect();
    deliver(&mut maildirs(LineEnds::Crlf), vec![MaildirMessage { body: body(&text), ..message(root.path(), 1) }]);
    assert!(files(root.path()).into_values().next().unwrap() == [HEADER, &text].concat());
}

struct BadDisk;

impl ByteSource for BadDisk {
    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(5))
    }

    fn file(&self) -> Option<&File> {
        None
    }
}

#[test]
fn a_damaged_body_is_not_reported_as_a_bad_mailbox_and_leaves_no_file() {
    let root = tempfile::tempdir().unwrap();
    let changed = Body::new(Arc::new(TEXT.to_vec()), 0, TEXT.len() as u64, 1, BodyFlags::default());
    let short = Body::new(Arc::new(TEXT.to_vec()), 0, TEXT.len() as u64 + 1, 1, BodyFlags::default());
    let unreadable = Body::new(Arc::new(BadDisk), 0, 10, 1, BodyFlags::default());
    let mut messages: Vec<_> = (1..).map(|number| message(root.path(), number)).take(4).collect();
    messages[0].body = changed;
    messages[1].body = short;
    messages[2].body = unreadable;
    let results = deliver(&mut maildirs(LineEnds::Crlf), messages);
    let [
        (1, Err(DeliverError::Damaged(BodyError::Digest { expected: 1, .. }))),
        (2, Err(DeliverError::Damaged(BodyError::Unreadable(_)))),
        (3, Err(DeliverError::Damaged(BodyError::Unreadable(_)))),
        (4, Ok(())),
    ] = &results[..]
    else {
        panic!("{results:?}");
    };
    assert_eq!(files(root.path()).len(), 1);
}

#[test]
fn a_mailbox_that_cannot_be_created_defers_only_its_own_message() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), "").unwrap();
    let (through_a_file, fine) = (root.path().join("file/bob"), root.path().join("fine"));
    let messages = vec![message(&through_a_file, 1), message(Path::new("/proc/mailbox"), 2), message(&fine, 3)];
    let results = deliver(&mut maildirs(LineEnds::Crlf), messages);
    let [(1, Err(DeliverError::Unavailable(_))), (2, Err(DeliverError::Unavailable(_))), (3, Ok(()))] = &results[..]
    else {
        panic!("{results:?}");
    };
}

#[test]
fn a_message_that_cannot_be_linked_is_deferred_and_leaves_no_file() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("tmp")).unwrap();
    fs::write(root.path().join("new"), "no folder").unwrap();
    let results = deliver(&mut maildirs(LineEnds::Crlf), vec![message(root.path(), 1)]);
    assert!(matches!(results[..], [(1, Err(DeliverError::Unavailable(_)))]), "{results:?}");
    assert!(files(root.path()).is_empty());
}

#[test]
fn an_invalid_path_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let long = root.path().join("x".repeat(300));
    let nul = root.path().join("a\0b");
    let results = deliver(&mut maildirs(LineEnds::Crlf), vec![message(&long, 1), message(&nul, 2)]);
    let [(1, Err(DeliverError::Refused(_))), (2, Err(DeliverError::Refused(_)))] = &results[..] else {
        panic!("{results:?}");
    };
}

/// A file size limit acts as a full disk. It applies to a whole process, so this part of the test
/// runs in a child process.
#[test]
fn a_message_without_disk_space_is_reported_as_such_and_leaves_no_file() {
    let root = tempfile::tempdir().unwrap();
    let script = "trap '' XFSZ; ulimit -f 16; exec \"$0\" --exact --ignored a_child_with_little_disk_space --nocapture";
    let child = std::env::current_exe().unwrap();
    let output = Command::new("sh").arg("-c").arg(script).arg(child).env(CHILD_FOLDER, root.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    assert_eq!(files(root.path()).len(), 1);
}

const CHILD_FOLDER: &str = "MAILBOX_TEST_FOLDER";

#[test]
#[ignore = "runs in a child process that limits the size of files"]
fn a_child_with_little_disk_space() {
    let folder = PathBuf::from(std::env::var_os(CHILD_FOLDER).expect("set by the parent"));
    let large = MaildirMessage { body: body(&[b'x'; 50_000]), ..message(&folder, 1) };
    let results = deliver(&mut maildirs(LineEnds::Crlf), vec![large, message(&folder, 2)]);
    let [(1, Err(DeliverError::Full(_))), (2, Ok(()))] = &results[..] else {
        panic!("{results:?}");
    };
}

fn entry(place: MaildirFolder, name: &str, size: u64, size_crlf: Option<u64>) -> MaildirEntry {
    MaildirEntry { folder: place, name: name.into(), size, size_crlf }
}

#[test]
fn a_list_has_new_and_cur_by_time_with_sizes_from_names_or_files() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(list_messages(&root.path().join("nobody")).unwrap(), []);
    for (file, text) in [
        ("new/30.c.host,S=99,W=100", "abc"),
        ("new/10.a.host", "abcd"),
        ("cur/20.b.host,S=7:2,S", ""),
        ("cur/30.c.host,S=99,W=100:2,", "moved while the list was made"),
        ("new/.hidden", ""),
        ("tmp/40.d.host", ""),
    ] {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let expected = [
        entry(MaildirFolder::New, "10.a.host", 4, None),
        entry(MaildirFolder::Cur, "20.b.host,S=7:2,S", 7, None),
        entry(MaildirFolder::Cur, "30.c.host,S=99,W=100:2,", 99, Some(100)),
    ];
    assert_eq!(list_messages(root.path()).unwrap(), expected);
}

#[test]
fn an_entry_opens_where_it_is_now() {
    let root = tempfile::tempdir().unwrap();
    deliver(&mut maildirs(LineEnds::Crlf), vec![message(root.path(), 1)]);
    let entry = list_messages(root.path()).unwrap().remove(0);
    assert_eq!(open_message(root.path(), &entry).unwrap().metadata().unwrap().len(), entry.size);
    let name = entry.name.to_str().unwrap();
    let seen = root.path().join(format!("cur/{name}:2,S"));
    fs::rename(root.path().join("new").join(name), &seen).unwrap();
    assert_eq!(open_message(root.path(), &entry).unwrap().metadata().unwrap().len(), entry.size);
    fs::remove_file(seen).unwrap();
    assert_eq!(open_message(root.path(), &entry).unwrap_err().kind(), io::ErrorKind::NotFound);
}

/// The lines of `maildirsize` that follow `before`.
fn appended_lines(folder: &Path, before: &str) -> String {
    fs::read_to_string(folder.join("maildirsize")).unwrap().strip_prefix(before).unwrap().to_owned()
}

#[test]
fn messages_of_a_batch_are_added_to_the_quota_in_one_line_and_once_each() {
    let root = tempfile::tempdir().unwrap();
    let limits = "100000S".parse().unwrap();
    deliver(&mut maildirs(LineEnds::Crlf), vec![message(root.path(), 1)]);
    mailbox::quota::recount(root.path(), limits).unwrap();
    let octets = HEADER.len() + TEXT.len();
    let before = format!("100000S\n{octets} 1\n");
    assert_eq!(appended_lines(root.path(), &before), "", "a message without a quota was added");

    let counted = |number| MaildirMessage { quota: QuotaState::Counted, ..message(root.path(), number) };
    let results = deliver(&mut maildirs(LineEnds::Crlf), vec![counted(2), counted(3)]);
    assert_eq!(succeeded(&results), [2, 3]);
    let line = format!("{} 2\n", octets * 2);
    assert_eq!(appended_lines(root.path(), &before), line);

    // Retries of a message that is in new/ already: once found by its name, once by searching.
    let again = MaildirMessage { recovered: true, ..counted(3) };
    deliver(&mut maildirs(LineEnds::Crlf), vec![counted(2), again]);
    assert_eq!(appended_lines(root.path(), &before), line);
}

#[test]
fn a_full_mailbox_takes_nothing_new_but_confirms_earlier_deliveries() {
    let root = tempfile::tempdir().unwrap();
    deliver(&mut maildirs(LineEnds::Crlf), vec![message(root.path(), 1)]);
    let full = |number| MaildirMessage { quota: QuotaState::Full, recovered: true, ..message(root.path(), number) };
    let results = deliver(&mut maildirs(LineEnds::Crlf), vec![full(1), full(2)]);
    assert_eq!(succeeded(&results), [1], "it was delivered before");
    assert!(results.iter().any(|(ticket, result)| *ticket == 2 && matches!(result, Err(DeliverError::OverQuota))));
    assert_eq!(files(root.path()).len(), 1);
}
