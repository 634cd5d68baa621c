//! What opening a maildrop costs: `maildrop_rate FOLDER MESSAGES ROUNDS`.
//!
//! Makes Maildirs of MESSAGES messages under FOLDER, unless they are there: one with sizes in the file
//! names, as this server delivers, and one without. Prints the time of each call, as the median of
//! ROUNDS: listing and stat-ing all files, opening the maildrop (locked by a file and without), and
//! opening all its messages.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mailbox::maildrop::{Maildrop, MaildropSettings};

const TEXT: &str = "Subject: test\r\n\r\ntext\r\n";

fn main() -> Result<(), String> {
    let mut args = std::env::args_os().skip(1);
    let number = |arg: Option<std::ffi::OsString>| arg?.to_str()?.parse::<usize>().ok().filter(|&number| number > 0);
    let (folder, messages, rounds) = (args.next().map(PathBuf::from), number(args.next()), number(args.next()));
    let (Some(folder), Some(messages), Some(rounds)) = (folder, messages, rounds) else {
        return Err("usage: maildrop_rate FOLDER MESSAGES ROUNDS".to_owned());
    };
    let by_file = MaildropSettings::default();
    let in_memory = MaildropSettings { lock_file: false, ..by_file.clone() };
    for (title, sizes) in [("sizes in names", format!(",S={0},W={0}", TEXT.len())), ("no sizes", String::new())] {
        let folder = folder.join(format!("{messages}{sizes}"));
        create(&folder, messages, &sizes).map_err(|error| format!("{}: {error}", folder.display()))?;
        let measure = |what: &str, work: &mut dyn FnMut()| println!("{title}: {what}: {:?}", median(rounds, work));
        measure("list and stat", &mut || list_and_stat(&folder));
        measure("open, locked by a file", &mut || drop(open(&folder, &by_file)));
        measure("open", &mut || drop(open(&folder, &in_memory)));
        let maildrop = open(&folder, &in_memory);
        measure("open all messages", &mut || open_all(&maildrop, false));
        measure("open all messages, if cached", &mut || open_all(&maildrop, true));
    }
    Ok(())
}

fn create(folder: &Path, messages: usize, sizes: &str) -> std::io::Result<()> {
    if folder.exists() {
        return Ok(());
    }
    ["new", "tmp"].iter().try_for_each(|part| fs::create_dir_all(folder.join(part)))?;
    fs::create_dir(folder.join("cur"))?;
    (0..messages).try_for_each(|number| {
        let name = format!("{}.11-2-{number}_0.mx.example.org{sizes}:2,S", 1_763_000_000 + number / 10);
        fs::write(folder.join("cur").join(name), TEXT)
    })
}

fn median(rounds: usize, work: &mut dyn FnMut()) -> Duration {
    let mut times: Vec<_> = (0..rounds)
        .map(|_| {
            let begun_at = Instant::now();
            work();
            begun_at.elapsed()
        })
        .collect();
    times.sort();
    times[rounds / 2]
}

fn list_and_stat(folder: &Path) {
    for part in ["new", "cur"] {
        for entry in folder.join(part).read_dir().expect("the Maildir is readable") {
            entry.and_then(|entry| entry.metadata()).expect("the Maildir is readable");
        }
    }
}

fn open(folder: &Path, settings: &MaildropSettings) -> Maildrop {
    Maildrop::open(folder, settings).expect("the Maildir is readable")
}

fn open_all(maildrop: &Maildrop, cached_only: bool) {
    for message in 0..maildrop.len() {
        maildrop.open_message(message, cached_only).expect("the message is readable, and cached");
    }
}
