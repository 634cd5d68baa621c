//! Configurations of other mail servers, read and written anew as ours. Nothing of theirs is changed, and what has no
//! counterpart here is told in a comment of the new file: nothing is dropped silently.
//!
//! Files are written only beside `--output`, and none is replaced unless that is asked for. Passwords go into files of
//! their own, which nobody else can read. Where mail is treated otherwise than before, or the new file has faults, all is
//! written nevertheless, the terminal tells of each, and the exit code is 1.

pub mod postfix;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use postfix::{Files, NewFile};

use crate::config::{self, Config};
use crate::exit::{self, Exit};
use crate::say::say;

/// The folder beside the new configuration for the files that it names.
const FOLDER: &str = "mailrace-tables";
/// Where Postfix's own files are, as configurations name them.
const POSTFIX_DIR: &str = "/etc/postfix";
/// Bits of a file that everybody may read, and of one that nobody else may.
const MODES: [u32; 2] = [0o644, 0o600];

/// Reads the Postfix configuration in `folder` and writes ours to `output`, or to the standard output.
///
/// # Errors
///
/// main.cf cannot be read, a file is there already and `force` is not given, or writing fails. [`exit::NO`]: all is
/// written, and mail is treated otherwise than before.
pub fn from_postfix(folder: &Path, output: Option<&Path>, force: bool) -> anyhow::Result<()> {
    let file = folder.join("main.cf");
    let main = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let master = fs::read_to_string(folder.join("master.cf")).unwrap_or_default();
    let machine = config::machine_name();
    let beside = match output {
        Some(output) => std::path::absolute(output)?.parent().unwrap_or(Path::new("/")).to_owned(),
        None => PathBuf::from("."),
    };
    let made = postfix::import(&main, &master, &machine, &Disk { folder }, &beside.join(FOLDER));
    match output {
        Some(output) => write_all(output, &made.text, &made.files, force)?,
        None => {
            crate::output::output().write_all(made.text.as_bytes())?;
            let unwritten = made.files.iter().map(|file| file.path.display());
            unwritten.for_each(|path| say(format_args!("mailrace: not written without --output: {path}")));
        }
    }
    // What could not be foreseen is told at once, and not when the server is to start.
    let name = output.unwrap_or(Path::new("mailrace.toml")).to_string_lossy();
    let faults = Config::parse(&made.text, &name, &machine).err();
    faults.iter().for_each(say);
    made.alarms.iter().for_each(|alarm| say(format_args!("mailrace: {alarm}")));
    match made.alarms.len() {
        0 if faults.is_none() => Ok(()),
        0 => Err(Exit { code: exit::NO, text: "the new configuration has the errors above".into() }.into()),
        number => {
            let kinds =
                if number == 1 { "1 kind of mail is".to_owned() } else { format!("{number} kinds of mail are") };
            let text = format!("{kinds} treated otherwise than by Postfix, see above; mend {name} before you use it");
            Err(Exit { code: exit::NO, text }.into())
        }
    }
}

/// Files of this machine. A copy of Postfix's folder counts as that folder.
struct Disk<'a> {
    folder: &'a Path,
}

impl Files for Disk<'_> {
    fn text(&self, path: &Path) -> io::Result<String> {
        if let Ok(inside) = path.strip_prefix(POSTFIX_DIR)
            && let copy = self.folder.join(inside)
            && copy.exists()
        {
            return fs::read_to_string(copy);
        }
        fs::read_to_string(path)
    }
}

/// Writes all files, or none where one of them is there already.
fn write_all(output: &Path, text: &str, files: &[NewFile], force: bool) -> anyhow::Result<()> {
    let paths = std::iter::once(output).chain(files.iter().map(|file| &*file.path));
    if let Some(there) = paths.into_iter().find(|path| !force && path.symlink_metadata().is_ok()) {
        let text = format!("{} is there already; --force replaces it", there.display());
        return Err(Exit { code: exit::IO, text }.into());
    }
    for file in files {
        make_folder_of(&file.path)?;
        write(&file.path, &file.text, MODES[usize::from(file.secret)])?;
    }
    make_folder_of(output)?;
    write(output, text, MODES[0])
}

fn make_folder_of(path: &Path) -> anyhow::Result<()> {
    match path.parent() {
        Some(folder) => fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display())),
        None => Ok(()),
    }
}

/// A file is made anew and not written over: it then has these bits, whatever was there before.
fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let told = || format!("writing {}", path.display());
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).with_context(told),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).with_context(told)?;
    file.write_all(text.as_bytes()).with_context(told)?;
    say(format_args!("mailrace: written: {}", path.display()));
    Ok(())
}
