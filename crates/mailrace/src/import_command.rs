//! Imports the configuration of another mail server. The original files are not changed. What has
//! no counterpart is listed in comments of the new file: nothing is dropped silently.
//!
//! Files are written only beside `--output`, and existing ones are replaced only on request.
//! Passwords go into separate files that only their owner can read. If mail would be handled
//! differently than before, or the new file has errors, everything is still written, but the
//! problems are printed and the exit code is 1.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use import::{FileReader, NewFile, postfix};

use crate::exit::{self, ExitError};
use crate::stderr::print_stderr;
use config::{self, Config};

/// The folder for new tables, beside the new configuration.
const TABLES_FOLDER: &str = "mailrace-tables";
/// The path of Postfix's files in configurations.
const POSTFIX_DIR: &str = "/etc/postfix";
/// The modes of public files and of files with passwords.
const FILE_MODES: [u32; 2] = [0o644, 0o600];

/// Reads the Postfix configuration in `folder` and writes a new one to `output`, or to standard
/// output. It names its tables by their paths in `installed_in`, where both will be; None: where they are
/// written.
///
/// # Errors
///
/// main.cf cannot be read, a file exists and `force` is not set, or writing fails.
/// [`exit::NEGATIVE`]: all is written, and mail will be handled differently than before.
pub fn from_postfix(
    folder: &Path,
    output: Option<&Path>,
    installed_in: Option<&Path>,
    force: bool,
) -> anyhow::Result<()> {
    let file = folder.join("main.cf");
    let main = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let master = fs::read_to_string(folder.join("master.cf")).unwrap_or_default();
    let machine = config::machine_name();
    let beside = match output {
        Some(output) => std::path::absolute(output)?.parent().unwrap_or(Path::new("/")).to_owned(),
        None => PathBuf::from("."),
    };
    let named = installed_in.unwrap_or(&beside).join(TABLES_FOLDER);
    let mut made = postfix::import(&main, &master, &machine, &Disk { folder }, &named);
    for file in &mut made.files {
        if let Ok(inside) = file.path.strip_prefix(&named) {
            file.path = beside.join(TABLES_FOLDER).join(inside);
        }
    }
    match output {
        Some(output) => write_all(output, &made.text, &made.files, force)?,
        None => {
            crate::output::output().write_all(made.text.as_bytes())?;
            let unwritten = made.files.iter().map(|file| file.path.display());
            unwritten.for_each(|path| print_stderr(format_args!("mailrace: not written without --output: {path}")));
        }
    }
    // Report unforeseen errors now, not when the server starts.
    let name = output.unwrap_or(Path::new("mailrace.toml")).to_string_lossy();
    let faults = Config::parse(&made.text, &name, &machine).err();
    faults.iter().for_each(print_stderr);
    made.behavior_changes.iter().for_each(|alarm| print_stderr(format_args!("mailrace: {alarm}")));
    match made.behavior_changes.len() {
        0 if faults.is_none() => Ok(()),
        0 => Err(ExitError { code: exit::NEGATIVE, text: "the new configuration has the errors above".into() }.into()),
        number => {
            let kinds =
                if number == 1 { "1 kind of mail is".to_owned() } else { format!("{number} kinds of mail are") };
            let text =
                format!("{kinds} handled differently than by Postfix, see above; correct {name} before you use it");
            Err(ExitError { code: exit::NEGATIVE, text }.into())
        }
    }
}

/// Local files. A copy of Postfix's folder takes the place of the original.
struct Disk<'a> {
    folder: &'a Path,
}

impl FileReader for Disk<'_> {
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

/// Writes all files, or none if one of them exists.
fn write_all(output: &Path, text: &str, files: &[NewFile], force: bool) -> anyhow::Result<()> {
    let paths = std::iter::once(output).chain(files.iter().map(|file| &*file.path));
    if let Some(there) = paths.into_iter().find(|path| !force && path.symlink_metadata().is_ok()) {
        let text = format!("{} already exists; use --force to replace it", there.display());
        return Err(ExitError { code: exit::IO, text }.into());
    }
    for file in files {
        create_parent(&file.path)?;
        write(&file.path, &file.text, FILE_MODES[usize::from(file.secret)])?;
    }
    create_parent(output)?;
    write(output, text, FILE_MODES[0])
}

fn create_parent(path: &Path) -> anyhow::Result<()> {
    match path.parent() {
        Some(folder) => fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display())),
        None => Ok(()),
    }
}

/// Creates the file anew instead of overwriting it, so that it gets this mode.
fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let told = || format!("writing {}", path.display());
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).with_context(told),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).with_context(told)?;
    file.write_all(text.as_bytes()).with_context(told)?;
    print_stderr(format_args!("mailrace: written: {}", path.display()));
    Ok(())
}
