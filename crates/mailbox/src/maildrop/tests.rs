//! Maildrops on real directories.

use std::fs;
use std::io::Read;

use tempfile::TempDir;

use super::*;

const HEADER: &str = "3 V1700000000 N9 G0123456789abcdef0123456789abcdef\n";

/// A Maildir with these files; each contains `text`.
fn maildir(files: &[&str]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    crate::folder::create(root.path()).unwrap();
    for path in files {
        put(&root, path, "a\r\n.b\n");
    }
    root
}

fn put(root: &TempDir, path: &str, text: &str) {
    fs::write(root.path().join(path), text).unwrap();
}

fn uidlist(root: &TempDir) -> String {
    fs::read_to_string(root.path().join("dovecot-uidlist")).unwrap()
}

fn settings() -> MaildropSettings {
    MaildropSettings { lock_timeout: Duration::ZERO, ..MaildropSettings::default() }
}

fn open(root: &TempDir) -> Maildrop {
    Maildrop::open(root.path(), &settings()).unwrap()
}

fn uids(maildrop: &Maildrop) -> Vec<String> {
    let uid = |message| {
        let mut uid = Vec::new();
        maildrop.write_uid(message, &mut uid);
        String::from_utf8(uid).unwrap()
    };
    (0..maildrop.len()).map(uid).collect()
}

fn names(maildrop: &Maildrop) -> Vec<&str> {
    (0..maildrop.len()).map(|message| str::from_utf8(maildrop.file_name(message)).unwrap()).collect()
}

fn read(maildrop: &Maildrop, message: usize) -> io::Result<String> {
    let mut text = String::new();
    maildrop.open_message(message, false)?.file.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn a_new_maildir_gets_uids_in_the_order_of_delivery_and_keeps_them() {
    let root = maildir(&["new/3.c.mx,S=7,W=8", "cur/2.b.mx:2,ST", "new/10.d.mx"]);
    let first = open(&root);
    assert_eq!(names(&first), ["2.b.mx:2,ST", "3.c.mx,S=7,W=8", "10.d.mx"]);
    assert_eq!((0..3).map(|message| first.octets(message)).collect::<Vec<_>>(), [7, 8, 7]);
    let told = uids(&first);
    assert!(told[0].starts_with("00000001") && told[2].starts_with("00000003"), "{told:?}");
    assert!(told.iter().all(|uid| uid.len() == 16 && uid[8..] == told[0][8..]));
    drop(first);
    let text = uidlist(&root);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("3 V") && lines[0].contains(" N4 G"), "{}", lines[0]);
    assert_eq!(lines[1..], ["1 W7 :2.b.mx", "2 :3.c.mx,S=7,W=8", "3 W7 :10.d.mx"]);

    put(&root, "new/1.late.mx,W=9", "x");
    fs::rename(root.path().join("new/10.d.mx"), root.path().join("cur/10.d.mx:2,S")).unwrap();
    let second = open(&root);
    assert_eq!(uids(&second)[..3], told);
    assert_eq!(names(&second)[3], "1.late.mx,W=9");
    assert_eq!(uidlist(&root), format!("{text}4 :1.late.mx,W=9\n"), "only a line is appended");
    drop(second);
    let changed = root.path().join("dovecot-uidlist").metadata().unwrap().modified().unwrap();
    assert_eq!(open(&root).len(), 4);
    assert_eq!(root.path().join("dovecot-uidlist").metadata().unwrap().modified().unwrap(), changed);
}

#[test]
fn a_view_has_the_messages_of_a_session_and_does_not_wait_for_it() {
    let root = maildir(&["new/3.c.mx", "cur/2.b.mx:2,S"]);
    let session = open(&root);
    let view = MaildropView::open(root.path(), Duration::ZERO).unwrap();
    assert_eq!((view.len(), view.uid(0), view.uid(1)), (2, 1, 2));
    let told = uids(&session);
    assert!((0..2).all(|message| told[message].starts_with(&format!("{:08x}", view.uid(message)))), "{told:?}");
    assert_eq!((view.find_uid(2), view.find_uid(3), view.octets(0)), (Some(1), None, 7));
    fs::rename(root.path().join("new/3.c.mx"), root.path().join("cur/3.c.mx:2,S")).unwrap();
    assert_eq!(view.open_message(1, false).unwrap().octets, 6);
    fs::remove_file(root.path().join("cur/3.c.mx:2,S")).unwrap();
    assert_eq!(view.open_message(1, false).unwrap_err().kind(), io::ErrorKind::NotFound);
    let missing = MaildropView::open(&root.path().join("none"), Duration::ZERO).unwrap();
    assert!(missing.is_empty() && missing.find_uid(1).is_none());
}

#[test]
fn what_dovecot_recorded_is_used_and_kept() {
    let root = maildir(&["cur/1.a:2,S", "cur/2.b:2,", "cur/3.c:2,", "cur/4.d,W=8:2,", "new/5.e"]);
    let known = "2 W700 Z9 :1.a\n3 P :2.b\n5 Pold@id Gaf :3.c\n7 O1 :4.d,W=8\n";
    put(&root, "dovecot-uidlist", &format!("{HEADER}{known}"));
    let maildrop = open(&root);
    assert_eq!(names(&maildrop), ["4.d,W=8:2,", "1.a:2,S", "2.b:2,", "3.c:2,", "5.e"]);
    let validity = format!("{:08x}", 1_700_000_000);
    let expected = [format!("00000007{validity}"), format!("00000002{validity}"), "2.b".into(), "old@id".into()];
    assert_eq!(uids(&maildrop)[..4], expected);
    assert_eq!(uids(&maildrop)[4], format!("00000009{validity}"));
    assert_eq!(maildrop.octets(1), 700);
    let header = HEADER.replace("N9", "N10");
    let known = "2 W700 Z9 :1.a\n3 P W7 :2.b\n5 Pold@id Gaf W7 :3.c\n7 O1 :4.d,W=8\n";
    assert_eq!(uidlist(&root), format!("{header}{known}9 W7 :5.e\n"));
    drop(maildrop);
    let settings = MaildropSettings { uid_format: "%g".parse().unwrap(), ..settings() };
    let by_guid = Maildrop::open(root.path(), &settings).unwrap();
    assert_eq!(uids(&by_guid), ["4.d,W=8", "1.a", "2.b", "old@id", "5.e"]);
}

#[test]
fn a_damaged_uidlist_is_set_aside_once() {
    let root = maildir(&["cur/1.a,W=8:2,S"]);
    put(&root, "dovecot-uidlist", &format!("{HEADER}2 :1.a,W=8\n2 :1.b\n"));
    let maildrop = open(&root);
    assert_eq!(maildrop.warnings().len(), 1, "{:?}", maildrop.warnings());
    assert!(maildrop.warnings()[0].contains("line 3: UIDs do not ascend"));
    let told = uids(&maildrop);
    assert!(told[0].starts_with("00000001") && !told[0].ends_with(&format!("{:08x}", 1_700_000_000)));
    drop(maildrop);
    assert!(fs::read_to_string(root.path().join("dovecot-uidlist.damaged")).unwrap().ends_with("2 :1.b\n"));
    let again = open(&root);
    assert_eq!((uids(&again), again.warnings().len()), (told, 0));
}

#[test]
fn anything_in_place_of_the_uidlist_is_set_aside() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    for kind in ["link", "folder", "pipe"] {
        let root = maildir(&["cur/1.a,W=8:2,S"]);
        let path = root.path().join("dovecot-uidlist");
        match kind {
            "link" => std::os::unix::fs::symlink(secret.path(), &path).unwrap(),
            "folder" => fs::create_dir(&path).unwrap(),
            _ => rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap(),
        }
        assert_eq!(open(&root).len(), 1, "{kind}");
        assert!(uidlist(&root).ends_with("\n1 :1.a,W=8\n"), "{kind}");
    }
    assert_eq!(secret.as_file().metadata().unwrap().len(), 0);
}

#[test]
fn without_the_lock_only_messages_with_uids_are_shown() {
    let root = maildir(&["cur/1.a,W=8:2,S", "new/2.b,W=8"]);
    put(&root, "dovecot-uidlist.lock", "1:elsewhere");
    let error = Maildrop::open(root.path(), &settings()).err().unwrap();
    assert!(matches!(error, MaildropError::Unavailable(error) if error.kind() == io::ErrorKind::TimedOut));
    put(&root, "dovecot-uidlist", &format!("{HEADER}2 :1.a,W=8\n"));
    let maildrop = open(&root);
    assert_eq!((names(&maildrop), maildrop.warnings().len()), (vec!["1.a,W=8:2,S"], 1));
    drop(maildrop);
    fs::remove_file(root.path().join("dovecot-uidlist.lock")).unwrap();
    assert_eq!(open(&root).len(), 2);
}

#[test]
fn lines_of_deleted_messages_go_when_they_are_many() {
    let root = maildir(&["cur/kept,W=8:2,S", "new/fresh,W=8"]);
    let lines = |gone: u32| (1..=gone).map(|uid| format!("{uid} :gone{uid}\n")).collect::<String>();
    put(&root, "dovecot-uidlist", &format!("{HEADER}{}90 :kept,W=8\n", lines(80)));
    assert_eq!(open(&root).len(), 2);
    assert!(uidlist(&root).ends_with("80 :gone80\n90 :kept,W=8\n91 :fresh,W=8\n"));
    put(&root, "dovecot-uidlist", &format!("{HEADER}{}200 :kept,W=8\n", lines(120)));
    assert_eq!(open(&root).len(), 2);
    let header = HEADER.replace("N9", "N202");
    assert_eq!(uidlist(&root), format!("{header}200 :kept,W=8\n201 :fresh,W=8\n"));
}

#[test]
fn a_line_that_was_not_finished_is_replaced() {
    let root = maildir(&["cur/1.a,W=8:2,S", "cur/2.b,W=8:2,S"]);
    put(&root, "dovecot-uidlist", &format!("{HEADER}3 :1.a,W=8\n9 :2.b"));
    assert_eq!(open(&root).len(), 2);
    assert_eq!(uidlist(&root), format!("{}3 :1.a,W=8\n9 :2.b,W=8\n", HEADER.replace("N9", "N10")));
}

#[test]
fn of_two_lines_for_one_name_the_later_one_counts() {
    let root = maildir(&["cur/1.a,W=8:2,S", "new/2.b"]);
    put(&root, "dovecot-uidlist", &format!("{HEADER}3 :1.a,W=8\n4 :1.a,W=8\n5 :2.b\n"));
    assert!(uids(&open(&root))[0].starts_with("00000004"));
    assert_eq!(uidlist(&root), format!("{HEADER}4 :1.a,W=8\n5 W7 :2.b\n"));
}

#[test]
fn when_all_uids_are_used_all_messages_get_new_ones() {
    let root = maildir(&["cur/1.a,W=8:2,S", "new/2.b,W=8"]);
    put(&root, "dovecot-uidlist", "3 V4294967294 N7\n4294967294 :1.a,W=8\n");
    let maildrop = open(&root);
    assert_eq!(uids(&maildrop), ["00000001ffffffff", "00000002ffffffff"]);
    assert_eq!(maildrop.warnings().len(), 1);
}

#[test]
fn moved_messages_are_found_and_deleted_ones_are_not() {
    let root = maildir(&["new/1.a,S=6,W=7", "new/2.b,W=7"]);
    let maildrop = open(&root);
    fs::rename(root.path().join("new/1.a,S=6,W=7"), root.path().join("cur/1.a,S=6,W=7:2,S")).unwrap();
    fs::remove_file(root.path().join("new/2.b,W=7")).unwrap();
    assert_eq!(read(&maildrop, 0).unwrap(), "a\r\n.b\n");
    assert_eq!(maildrop.open_message(0, true).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(read(&maildrop, 1).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn line_ends_are_known_from_sizes_that_agree() {
    let root = maildir(&["new/1,S=6,W=7", "new/2,W=6", "new/3,S=5,W=7", "new/4,S=6,W=5", "new/5"]);
    let maildrop = open(&root);
    let known = |message| {
        let file = maildrop.open_message(message, false).unwrap();
        (file.octets, file.line_ends, file.has_wrong_size)
    };
    assert_eq!(known(0), (6, FileLineEnds::Lf, false));
    assert_eq!(known(1), (6, FileLineEnds::Crlf, false));
    assert_eq!(known(2), (6, FileLineEnds::Unknown, true));
    assert_eq!(known(3), (6, FileLineEnds::Unknown, true));
    assert_eq!(known(4), (6, FileLineEnds::Lf, false), "read when it was listed");
}

#[test]
fn cached_paths_are_opened_at_once_and_others_never_wait() {
    let root = maildir(&["new/1,W=7"]);
    let maildrop = open(&root);
    read(&maildrop, 0).unwrap();
    match maildrop.open_message(0, true) {
        Ok(file) => assert_eq!(file.octets, 6),
        // A kernel or sandbox that cannot tell.
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
    }
}

#[test]
fn a_link_or_pipe_that_replaced_a_message_is_not_opened() {
    let root = maildir(&["new/1,W=7", "new/2,W=7"]);
    let maildrop = open(&root);
    for name in ["new/1,W=7", "new/2,W=7"] {
        fs::remove_file(root.path().join(name)).unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", root.path().join("new/1,W=7")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, root.path().join("new/2,W=7"), rustix::fs::Mode::RWXU).unwrap();
    for message in [0, 1] {
        assert_eq!(maildrop.open_message(message, false).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}

#[test]
fn deleted_messages_are_gone_and_counted_out_of_the_quota() {
    let root = maildir(&["new/1,S=6,W=7", "new/2,S=6,W=7", "cur/3,W=7:2,", "cur/4,W=7:2,"]);
    put(&root, "maildirsize", "1000S\n24 4\n");
    let settings = MaildropSettings { sync_deletions: true, ..settings() };
    let maildrop = Maildrop::open(root.path(), &settings).unwrap();
    fs::rename(root.path().join("new/2,S=6,W=7"), root.path().join("cur/2,S=6,W=7:2,S")).unwrap();
    fs::remove_file(root.path().join("cur/4,W=7:2,")).unwrap();
    assert_eq!(maildrop.delete(&[1, 2, 3]), 0);
    drop(maildrop);
    assert_eq!(fs::read_to_string(root.path().join("maildirsize")).unwrap(), "1000S\n24 4\n-12 -2\n");
    assert_eq!(names(&open(&root)), ["1,S=6,W=7"]);
}

#[test]
fn what_cannot_be_deleted_is_counted() {
    let root = maildir(&["new/1,W=7", "new/2,W=7"]);
    let maildrop = open(&root);
    fs::remove_file(root.path().join("new/1,W=7")).unwrap();
    fs::create_dir(root.path().join("new/1,W=7")).unwrap();
    assert_eq!(maildrop.delete(&[0, 1]), 1);
}

#[test]
fn a_missing_maildir_is_an_empty_maildrop() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("bob");
    let maildrop = Maildrop::open(&folder, &settings()).unwrap();
    assert!(maildrop.is_empty() && maildrop.warnings().is_empty());
    assert_eq!(maildrop.delete(&[]), 0);
    assert!(!folder.exists());
}

#[test]
fn an_empty_maildir_gets_no_uidlist() {
    let root = maildir(&[]);
    assert!(open(&root).is_empty());
    assert!(!root.path().join("dovecot-uidlist").exists());
}

#[test]
fn a_second_session_is_refused_until_the_first_ends() {
    let root = maildir(&["new/1,W=7"]);
    let first = open(&root);
    first.touch_lock();
    assert!(matches!(Maildrop::open(root.path(), &settings()), Err(MaildropError::InUse)));
    drop(first);
    assert_eq!(open(&root).len(), 1);
    assert!(!root.path().join("dovecot-pop3-session.lock").exists());
}

/// Two sessions in turn, and a program that adds lines between and during them.
#[test]
fn a_uid_is_never_given_twice() {
    let root = maildir(&["new/1.a,W=7"]);
    let before = uids(&open(&root));
    // As Dovecot does it: lines at the end, the header unchanged.
    put(&root, "new/2.b,W=7", "x");
    put(&root, "dovecot-uidlist", &format!("{}2 :2.b,W=7\n", uidlist(&root)));
    put(&root, "new/3.c,W=7", "x");
    let after = uids(&open(&root));
    assert_eq!(after[0], before[0]);
    assert!(after[1].starts_with("00000002") && after[2].starts_with("00000003"), "{after:?}");
}
