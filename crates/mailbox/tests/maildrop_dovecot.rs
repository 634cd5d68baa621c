//! Maildrops that Dovecot and this server open in turn: both must give the same unique-ids and sizes,
//! and keep out of each other's sessions. Skipped where Dovecot is not installed.
//!
//! Dovecot's POP3 server runs on pipes, as for a user who is logged in already.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use mailbox::maildrop::{Maildrop, MaildropError, MaildropSettings};
use tempfile::TempDir;

/// Dovecot opens no mail for root, so root runs the tests as this user (nobody).
const USER_ID: u32 = 65534;
/// How long Dovecot may need for anything.
const TIME_MAX: Duration = Duration::from_secs(30);

struct Dovecot {
    home: TempDir,
    program: PathBuf,
}

/// Runs this test again without the rights of root; false if it has none. The test program is copied:
/// the user may not enter the folder that it was built in, such as root's home.
fn is_run_as_user(test: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    if folder.path().metadata().unwrap().uid() != 0 {
        return false;
    }
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("test");
    // Not by this process: a program that another test starts now would inherit the file open for
    // writing, and so nobody could run it (ETXTBSY).
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap();
    assert!(copied.success(), "cp failed");
    let mut command = Command::new(&program);
    command.args([test, "--exact", "--nocapture"]).current_dir("/").uid(USER_ID).gid(USER_ID);
    let done = command.output().unwrap();
    print!("{}", String::from_utf8_lossy(&done.stdout));
    eprint!("{}", String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "the test failed as another user");
    true
}

/// A session with Dovecot's POP3 server.
struct Session {
    child: Child,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Dovecot {
    /// None if it is not installed.
    fn new(settings: &str) -> Option<Dovecot> {
        let program = PathBuf::from("/usr/lib/dovecot/pop3");
        if !program.exists() {
            eprintln!("skipped: {} (Debian package dovecot-pop3d) is not installed", program.display());
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().display().to_string();
        let owner = home.path().metadata().unwrap();
        let (uid, gid) = (owner.uid(), owner.gid());
        let config = format!(
            "base_dir = {folder}/run\nmail_home = {folder}\nmail_location = maildir:{folder}/Maildir\n\
             mail_uid = {uid}\nmail_gid = {gid}\nfirst_valid_uid = 0\nfirst_valid_gid = 0\nssl = no\n\
             protocols = pop3\npop3_no_flag_updates = yes\nstats_writer_socket_path =\n\
             {settings}\n"
        );
        fs::write(home.path().join("dovecot.conf"), config).unwrap();
        for part in ["tmp", "new", "cur"] {
            fs::create_dir_all(home.path().join("Maildir").join(part)).unwrap();
        }
        Some(Dovecot { home, program })
    }

    fn maildir(&self) -> PathBuf {
        self.home.path().join("Maildir")
    }

    fn deliver(&self, name: &str, text: &str) {
        fs::write(self.maildir().join("new").join(name), text).unwrap();
    }

    /// Begins a session. There is no greeting on pipes, but an error if the maildrop cannot be opened.
    fn begin(&self) -> Session {
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(self.home.path().join("dovecot.conf"));
        command.env("USER", "alice").env("HOME", self.home.path());
        let log = fs::File::options().create(true).append(true).open(self.home.path().join("log")).unwrap();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let (commands, replies) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Session { child, commands, replies }
    }

    fn log_in(&self) -> Session {
        let mut session = self.begin();
        let greeting = session.ask("NOOP");
        assert!(greeting.starts_with("+OK"), "{greeting:?}; {}", self.log());
        session
    }

    /// The unique-ids and sizes of a whole session.
    fn listing(&self) -> Vec<(String, u64)> {
        let mut session = self.log_in();
        let uids = session.list("UIDL");
        let sizes = session.list("LIST");
        session.quit();
        uids.into_iter().zip(sizes).map(|(uid, size)| (uid, size.parse().unwrap())).collect()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    /// What Dovecot did not like.
    fn complaints(&self) -> Vec<String> {
        let is_one = |line: &&str| line.contains("Error") || line.contains("Warning") || line.contains("Fatal");
        self.log().lines().filter(is_one).map(str::to_owned).collect()
    }
}

impl Session {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, command: &str) -> String {
        self.commands.write_all(format!("{command}\r\n").as_bytes()).unwrap();
        self.line()
    }

    /// The last words of the lines of the reply.
    fn list(&mut self, command: &str) -> Vec<String> {
        let first = self.ask(command);
        assert!(first.starts_with("+OK"), "{first}");
        let lines = std::iter::from_fn(|| Some(self.line()).filter(|line| line != "."));
        lines.map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect()
    }

    fn quit(mut self) {
        let reply = self.ask("QUIT");
        assert!(reply.starts_with("+OK"), "{reply}");
        assert!(self.child.wait().unwrap().success());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn listing(maildrop: &Maildrop) -> Vec<(String, u64)> {
    let entry = |message| {
        let mut uid = Vec::new();
        maildrop.write_uid(message, &mut uid);
        (String::from_utf8(uid).unwrap(), maildrop.octets(message))
    };
    (0..maildrop.len()).map(entry).collect()
}

fn ours(dovecot: &Dovecot, settings: &MaildropSettings) -> Vec<(String, u64)> {
    let maildrop = Maildrop::open(&dovecot.maildir(), settings).unwrap();
    assert_eq!(maildrop.warnings(), []);
    listing(&maildrop)
}

#[test]
fn unique_ids_and_sizes_are_the_same_whoever_gives_them() {
    if is_run_as_user("unique_ids_and_sizes_are_the_same_whoever_gives_them") {
        return;
    }
    for format in ["%08Xu%08Xv", "%v.%u", "UID%u-%v", "%f", "%g", "%u:%08XUv"] {
        let Some(dovecot) = Dovecot::new(&format!("pop3_uidl_format = {format}")) else { return };
        let settings = MaildropSettings { uid_format: format.parse().unwrap(), ..MaildropSettings::default() };
        dovecot.deliver("1700000002.M5P1.mx,S=9,W=9", "A: b\r\n\r\nx");
        dovecot.deliver("1700000001.M9P1.mx", "A: b\n\nline\nline\n");
        dovecot.deliver("1700000001.M10P1.mx,S=6", "A: b\n\n");
        let first = ours(&dovecot, &settings);
        assert_eq!(first.iter().map(|(_, size)| *size).collect::<Vec<_>>(), [20, 8, 9], "{format}");
        assert_eq!(dovecot.listing(), first, "{format}: Dovecot after us");

        // Names as Mailrace gives them, and as others do.
        for name in ["1700000100.11-2-5_7.mx", "1700000100.11-2-40_1.mx", "1700000099.V801I1M3.mx,W=8", "odd"] {
            dovecot.deliver(name, "A: b\n\n");
        }
        let second = dovecot.listing();
        assert_eq!(second[..3], first, "{format}");
        assert_eq!(ours(&dovecot, &settings), second, "{format}: we after Dovecot");

        for round in 0..4 {
            dovecot.deliver(&format!("170000020{round}.M1P1.mx"), "A: b\r\n\r\nx\n");
            let (one, other) = match round % 2 {
                0 => (ours(&dovecot, &settings), dovecot.listing()),
                _ => (dovecot.listing(), ours(&dovecot, &settings)),
            };
            assert_eq!(one, other, "{format}: round {round}");
            assert_eq!(one[..7], second, "{format}: round {round}");
        }
        assert_eq!(dovecot.complaints(), Vec::<String>::new());
    }
}

/// Messages that both find new get UIDs in one order, whoever is first.
#[test]
fn new_messages_get_their_uids_in_dovecots_order() {
    if is_run_as_user("new_messages_get_their_uids_in_dovecots_order") {
        return;
    }
    let names = ["1700000003.a.mx", "9.b.mx", "1700000003.M4P5.mx", "1700000003.M40P5.mx", "1700000003.M4P4.mx", "x.y"];
    let settings = MaildropSettings { uid_format: "%u=%f".parse().unwrap(), ..MaildropSettings::default() };
    let listings: Vec<_> = [false, true]
        .into_iter()
        .filter_map(|is_ours| {
            let dovecot = Dovecot::new("pop3_uidl_format = %u=%f")?;
            // Without the names that Dovecot compares in no consistent order.
            names[1..].iter().for_each(|name| dovecot.deliver(name, "A: b\n\n"));
            Some(if is_ours { ours(&dovecot, &settings) } else { dovecot.listing() })
        })
        .collect();
    if let [dovecots, ours] = &listings[..] {
        assert_eq!(ours, dovecots);
    }
}

#[test]
fn migrated_unique_ids_and_orders_are_the_same() {
    if is_run_as_user("migrated_unique_ids_and_orders_are_the_same") {
        return;
    }
    let Some(dovecot) = Dovecot::new("") else { return };
    for name in ["1.a", "2.b", "3.c", "4.d", "5.e"] {
        fs::write(dovecot.maildir().join("cur").join(format!("{name}:2,S")), "A: b\n\n").unwrap();
    }
    let lines = "1 O3 :1.a\n2 Pold-2 O2 :2.b\n3 P :3.c\n4 Pold-4 W8 :4.d\n";
    let header = "3 V1700000000 N5 G0123456789abcdef0123456789abcdef\n";
    fs::write(dovecot.maildir().join("dovecot-uidlist"), format!("{header}{lines}")).unwrap();
    let listed = ours(&dovecot, &MaildropSettings::default());
    let uids: Vec<_> = listed.iter().map(|(uid, _)| &**uid).collect();
    let validity = format!("{:08x}", 1_700_000_000);
    let (first, fifth) = (format!("00000001{validity}"), format!("00000005{validity}"));
    assert_eq!(uids, ["old-2", &first, "3.c", "old-4", &fifth]);
    assert_eq!(dovecot.listing(), listed);
    assert_eq!(dovecot.complaints(), Vec::<String>::new());
}

#[test]
fn what_we_delete_is_deleted_for_dovecot_and_back() {
    if is_run_as_user("what_we_delete_is_deleted_for_dovecot_and_back") {
        return;
    }
    let Some(dovecot) = Dovecot::new("") else { return };
    (1..=300).for_each(|number| dovecot.deliver(&format!("{number}.a"), "A: b\n\n"));
    let all = dovecot.listing();
    let maildrop = Maildrop::open(&dovecot.maildir(), &MaildropSettings::default()).unwrap();
    assert_eq!(maildrop.delete(&(0..200).collect::<Vec<_>>()), 0);
    drop(maildrop);
    assert_eq!(dovecot.listing(), all[200..]);
    // Now the lines of deleted messages are removed.
    dovecot.deliver("301.b", "A: b\n\n");
    let after = ours(&dovecot, &MaildropSettings::default());
    assert_eq!((after.len(), &after[..100]), (101, &all[200..]));
    assert_eq!(dovecot.listing(), after);
    let mut session = dovecot.log_in();
    assert!(session.ask("DELE 101").starts_with("+OK"));
    session.quit();
    assert_eq!(ours(&dovecot, &MaildropSettings::default()), after[..100]);
    assert_eq!(dovecot.complaints(), Vec::<String>::new());
}

#[test]
fn a_session_of_one_excludes_the_other() {
    if is_run_as_user("a_session_of_one_excludes_the_other") {
        return;
    }
    let Some(dovecot) = Dovecot::new("pop3_lock_session = yes") else { return };
    dovecot.deliver("1.a", "A: b\n\n");
    let open = || Maildrop::open(&dovecot.maildir(), &MaildropSettings::default());
    let session = dovecot.log_in();
    assert!(matches!(open(), Err(MaildropError::InUse)), "Dovecot has the lock");
    session.quit();
    let maildrop = open().unwrap();
    let refused = dovecot.begin().ask("NOOP");
    assert!(refused.starts_with("-ERR [IN-USE]"), "{refused:?}");
    drop(maildrop);
    dovecot.log_in().quit();
}

#[test]
fn the_lock_of_a_killed_dovecot_is_taken_over() {
    if is_run_as_user("the_lock_of_a_killed_dovecot_is_taken_over") {
        return;
    }
    let Some(dovecot) = Dovecot::new("pop3_lock_session = yes") else { return };
    dovecot.log_in().kill();
    let begun_at = Instant::now();
    while let Err(error) = Maildrop::open(&dovecot.maildir(), &MaildropSettings::default()) {
        assert!(matches!(error, MaildropError::InUse), "{error}");
        assert!(begun_at.elapsed() < TIME_MAX, "the lock is still there");
        // A lock file must be some seconds old before its process is looked for.
        std::thread::sleep(Duration::from_millis(50));
    }
    dovecot.log_in().quit();
}

const MESSAGES: usize = 300;

/// Mail keeps coming while both open the Maildir at once; no two messages may ever have one UID.
#[test]
fn a_uid_never_names_two_messages() {
    if is_run_as_user("a_uid_never_names_two_messages") {
        return;
    }
    let Some(dovecot) = Dovecot::new("pop3_uidl_format = %u=%f") else { return };
    let settings = MaildropSettings {
        uid_format: "%u=%f".parse().unwrap(),
        lock_timeout: TIME_MAX,
        ..MaildropSettings::default()
    };
    let seen: Vec<_> = std::thread::scope(|scope| {
        let deliveries = scope.spawn(|| {
            for number in 0..MESSAGES {
                dovecot.deliver(&format!("{number}.a"), "A: b\n\n");
                std::thread::yield_now();
            }
        });
        let dovecots = scope.spawn(|| (0..15).flat_map(|_| dovecot.listing()).collect::<Vec<_>>());
        let ours = scope.spawn(|| (0..200).flat_map(|_| ours(&dovecot, &settings)).collect::<Vec<_>>());
        deliveries.join().unwrap();
        [dovecots.join().unwrap(), ours.join().unwrap()].concat()
    });
    let (mut names, mut uids) = (HashMap::new(), HashMap::new());
    for (told, _) in &seen {
        let (uid, name) = told.split_once('=').unwrap();
        assert_eq!(*names.entry(uid).or_insert(name), name, "two messages have the UID {uid}");
        assert_eq!(*uids.entry(name).or_insert(uid), uid, "{name} has two UIDs");
    }
    assert_eq!((dovecot.listing().len(), ours(&dovecot, &settings).len()), (MESSAGES, MESSAGES));
    assert_eq!(dovecot.complaints(), Vec::<String>::new());
}
