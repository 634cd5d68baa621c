//! Injects many messages: those of an mbox file, or the files of a folder. Each is accepted on its
//! own; failures are printed and the rest continues, unless the drop folder cannot be written.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::mbox::{MboxEntry, MboxReader};
use super::text::{self, TextError};
use super::{InjectError, Injector};
use crate::exit::{self, ExitError};
use crate::output::output;
use crate::stderr::print_stderr;

/// `--mbox`.
pub(super) fn mbox(injector: &Injector, path: &Path) -> anyhow::Result<()> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut batch = BulkInjection::new(injector, file.metadata()?.len(), "{bar:30} {bytes}/{total_bytes}  {msg}");
    let mut messages = MboxReader::new(BufReader::new(file), injector.octets_max);
    for number in 1.. {
        let next = messages.next().with_context(|| format!("reading {}", path.display()));
        let (piece, octets) = match next {
            Ok(Some(next)) => next,
            Ok(None) => break,
            Err(error) => return Err(batch.abort(error)),
        };
        let message = match piece {
            MboxEntry::Message(message) => Ok(message),
            MboxEntry::TooLarge => Err(TextError::TooLarge(injector.octets_max)),
        };
        batch.inject(&format!("message {number}"), message, octets)?;
    }
    batch.finish()
}

/// `--folder`.
pub(super) fn folder(injector: &Injector, path: &Path) -> anyhow::Result<()> {
    let files = files(path).with_context(|| format!("reading {}", path.display()))?;
    let mut batch = BulkInjection::new(injector, files.len() as u64, "{bar:30} {pos}/{len}  {msg}");
    for file in files {
        batch.inject(&file.display().to_string(), read_limited(&file, injector.octets_max), 1)?;
    }
    batch.finish()
}

/// The files in a folder, and in its new/ and cur/, sorted by name, without hidden files.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in [folder.to_owned(), folder.join("cur"), folder.join("new")] {
        match std::fs::read_dir(&folder) {
            Ok(entries) => {
                for entry in entries {
                    let entry = entry?;
                    let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
                    if !is_hidden && entry.path().is_file() {
                        found.push(entry.path());
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && !found.is_empty() => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && folder.ends_with("cur") => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && folder.ends_with("new") => {}
            Err(error) => return Err(error),
        }
    }
    found.sort();
    Ok(found)
}

fn read_limited(file: &Path, octets_max: u64) -> Result<Vec<u8>, TextError> {
    let mut message = Vec::new();
    File::open(file)?.take(octets_max + 1).read_to_end(&mut message)?;
    if message.len() as u64 > octets_max { Err(TextError::TooLarge(octets_max)) } else { Ok(message) }
}

/// A run over many messages.
struct BulkInjection<'a> {
    injector: &'a Injector,
    from_header: bool,
    bar: ProgressBar,
    kept: usize,
    failed: usize,
}

impl<'a> BulkInjection<'a> {
    fn new(injector: &'a Injector, length: u64, template: &str) -> Self {
        let target = match io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(length), target);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let from_header = injector.options.from_header || injector.options.recipients.is_empty();
        BulkInjection { injector, from_header, bar, kept: 0, failed: 0 }
    }

    /// Injects a message, or prints why not. An error ends the run.
    fn inject(&mut self, name: &str, message: Result<Vec<u8>, TextError>, step: u64) -> anyhow::Result<()> {
        let message = message.map(|message| text::to_wire(&message)).map_err(InjectError::from);
        let taken = message.and_then(|message| self.injector.inject(&message, self.from_header));
        self.bar.inc(step);
        match taken {
            Ok(_) => self.kept += 1,
            Err(refused @ InjectError::DropFolder(..)) => return Err(self.abort(refused.into_exit().into())),
            Err(refused) => {
                self.failed += 1;
                self.bar.suspend(|| print_stderr(format_args!("mailrace: {name}: {refused}")));
            }
        }
        self.bar.set_message(format!("{} accepted, {} failed", self.kept, self.failed));
        Ok(())
    }

    /// The error must not suggest that all messages were accepted, or none.
    fn abort(&self, error: anyhow::Error) -> anyhow::Error {
        self.bar.finish_and_clear();
        if self.kept == 0 {
            return error;
        }
        let text = format!("stopped: {} accepted, {} failed, the rest not tried: {error:#}", self.kept, self.failed);
        ExitError { code: exit::IO, text }.into()
    }

    fn finish(self) -> anyhow::Result<()> {
        self.bar.finish_and_clear();
        let told = writeln!(output(), "{} accepted, {} failed", self.kept, self.failed);
        match self.failed {
            0 => Ok(told?),
            _ => Err(ExitError { code: exit::DATA, text: "some messages were not accepted".into() }.into()),
        }
    }
}
