//! Changes knobs by files of its own, by the configuration file and by values of the running kernel, and puts everything
//! back as it was: every file byte by byte with its mode and owner, every value.
//!
//! [`plan()`] says what would change and reads only. [`apply`] makes the changes of a plan under a journal in
//! [`STATE_FOLDER`], and [`revert`] puts back what all applications since the last revert changed. A kill at any step
//! leaves a journal by which [`revert`] puts everything back; until then [`apply`] refuses. [`revert`] refuses before it
//! changes anything if a file was edited since. [`TemporaryChanges`] does the same for the time of a measurement.

mod error;
mod files;
mod journal;
mod lines;
mod plan;
mod preview;
mod setting;
mod temporary;
mod transaction;

use std::sync::Arc;

use crate::check::CheckReport;
use crate::host::Host;
use crate::knob::knobs;

pub use error::ApplyError;
pub use files::{FileOwner, FileState, Files, RealFiles};
pub use journal::STATE_FOLDER;
pub use plan::{ApplyRequest, ConfigFile, KnobRequest, Plan, plan};
pub use preview::{FileDiff, Preview, ValueDiff};
pub use temporary::TemporaryChanges;
pub use transaction::{Change, ChangeKind};

pub(crate) use plan::{pair_of, sysctl_name};

use error::doing;
use journal::{Journal, JournalName, Place, value_word};
use lines::LineFile;
use transaction::{Transaction, no_longer_exists};

/// What the operator does after an interruption.
const UNFINISHED: &str = "an earlier `mailrace tune apply` or `revert` was interrupted: run `mailrace tune revert --yes`, \
                          which puts everything back, then apply again";

/// Makes the changes of a plan.
///
/// # Errors
///
/// Before anything is changed: an earlier call was interrupted; another one is at work; this process lacks rights; a
/// file was edited since the plan, or since the last call. Later: a change failed; then those of this call are put back.
pub fn apply(files: &Arc<dyn Files>, plan: &Plan) -> Result<(), ApplyError> {
    if !plan.missing_rights.is_empty() {
        return Err(lacking(&plan.missing_rights));
    }
    if plan.changes.is_empty() {
        // A call that was interrupted at its end has left nothing to change, but a journal.
        return check_finished(&**files);
    }
    let mut transaction = Transaction::begin(files.clone(), JournalName::Applied)?;
    let checked = refuse_unfinished(transaction.journal()).and_then(|()| refuse_outdated(&**files, &plan.preview));
    if let Err(error) = checked {
        transaction.abandon();
        return Err(error);
    }
    transaction.make(&plan.changes)
}

/// Refuses if an earlier [`apply`] or [`revert`] was interrupted. Reads only.
///
/// # Errors
///
/// It was, or its journal cannot be read.
pub fn check_finished(files: &dyn Files) -> Result<(), ApplyError> {
    Journal::load(files, JournalName::Applied)?.as_ref().map_or(Ok(()), refuse_unfinished)
}

/// Whether there is a journal, which [`revert`] ends even if nothing differs from it.
///
/// # Errors
///
/// One cannot be read.
pub fn has_journal(files: &dyn Files) -> Result<bool, ApplyError> {
    Ok(has_measurement(files)? || Journal::load(files, JournalName::Applied)?.is_some())
}

/// Whether a measurement changes values of this host, or was killed. Reads only.
///
/// # Errors
///
/// Its journal cannot be read.
pub fn has_measurement(files: &dyn Files) -> Result<bool, ApplyError> {
    Ok(Journal::load(files, JournalName::Temporary)?.is_some())
}

/// Puts back what a killed measurement left. Returns whether there was any.
///
/// # Errors
///
/// Those of [`TemporaryChanges::begin`].
pub fn end_measurement(files: &Arc<dyn Files>) -> Result<bool, ApplyError> {
    let has_left = has_measurement(&**files)?;
    if has_left {
        TemporaryChanges::begin(files.clone())?.put_back()?;
    }
    Ok(has_left)
}

/// What [`revert`] would change. Reads only.
///
/// # Errors
///
/// The journal, or a file that it names, cannot be read.
pub fn plan_revert(files: &dyn Files) -> Result<Plan, ApplyError> {
    let mut plan = Plan::default();
    for name in [JournalName::Temporary, JournalName::Applied] {
        let Some(journal) = Journal::load(files, name)? else { continue };
        let mut paths = Vec::new();
        for entry in journal.entries.iter().filter(|entry| entry.place != Place::Folder).rev() {
            let now = files.state(&entry.path).map_err(doing("reading", &entry.path))?;
            // Not even root may create a value of the kernel.
            if now.is_some() || matches!(entry.place, Place::File(_)) {
                paths.push(&*entry.path);
            }
            add_to_preview(&mut plan.preview, &entry.path, &entry.place, now);
        }
        plan.missing_rights.extend(plan::missing_rights(files, paths.into_iter()));
    }
    add_steps_after_revert(&mut plan.preview);
    Ok(plan)
}

/// Puts back everything that measurements and [`apply`] changed, and removes the journal. Returns what was left as it
/// is, for people.
///
/// # Errors
///
/// Before anything is changed: another process is at work; this process lacks rights; a file or value was changed since.
/// Later: an operation failed; the next call goes on from there.
pub fn revert(files: &Arc<dyn Files>) -> Result<Vec<String>, ApplyError> {
    let mut notes = Vec::new();
    if !files.is_folder(STATE_FOLDER) {
        return Ok(notes);
    }
    let plan = plan_revert(&**files)?;
    if !plan.missing_rights.is_empty() {
        return Err(lacking(&plan.missing_rights));
    }
    // Both journals, before anything is changed; the lock ends with this line.
    Transaction::begin(files.clone(), JournalName::Applied)?.refuse_conflicts()?;
    end_measurement(files)?;
    notes.extend(Transaction::begin(files.clone(), JournalName::Applied)?.undo()?);
    Ok(notes)
}

/// The changes of the kernel's values that set a knob, without files: what a measurement changes.
///
/// # Errors
///
/// The value is not of the knob's kind, or the kernel does not offer it; or a file cannot be read.
pub fn live_changes(
    host: &Host,
    files: &dyn Files,
    report: &CheckReport,
    knob: KnobRequest,
) -> Result<Vec<Change>, ApplyError> {
    let request = ApplyRequest { knobs: vec![knob], all_sure: false };
    let config = ConfigFile { path: Err("a measurement changes no file".to_owned()), accepts: &|_| Ok(()) };
    let planned = plan(host, files, report, &request, &config)?;
    if let Some(reason) = planned.not_changed.first() {
        return Err(ApplyError::Refused(reason.clone()));
    }
    Ok(planned.changes.into_iter().filter(|change| !matches!(change.kind, ChangeKind::File(_))).collect())
}

fn lacking(rights: &[String]) -> ApplyError {
    let list = rights.join("\n  ");
    ApplyError::MissingRights(format!("missing rights; nothing was changed. Run it as root to write\n  {list}"))
}

fn refuse_unfinished(journal: &Journal) -> Result<(), ApplyError> {
    match journal.is_finished || journal.entries.is_empty() {
        true => Ok(()),
        false => Err(ApplyError::Refused(UNFINISHED.to_owned())),
    }
}

/// Refuses if a file is not as the plan found it.
fn refuse_outdated(files: &dyn Files, preview: &Preview) -> Result<(), ApplyError> {
    for file in &preview.files {
        let now = files.state(&file.path).map_err(doing("reading", &file.path))?;
        if now.as_ref().map(|state| &*state.octets) != file.former.as_ref().map(String::as_bytes) {
            return Err(ApplyError::Refused(format!("{} was changed meanwhile: run the command again", file.path)));
        }
    }
    Ok(())
}

fn add_to_preview(preview: &mut Preview, path: &str, place: &Place, now: Option<FileState>) {
    let text = |state: &FileState| String::from_utf8_lossy(&state.octets).into_owned();
    match place {
        Place::Folder => {}
        Place::File(former) if former.as_ref() != now.as_ref() => preview.files.push(FileDiff {
            path: path.to_owned(),
            former: now.as_ref().map(text),
            text: former.as_ref().map(text),
        }),
        Place::Value(former) | Place::Follower(former) => {
            let Some(now) = now.map(|now| value_word(&now.octets)) else {
                preview.advice.push(no_longer_exists(path));
                return;
            };
            let value = value_word(&former.octets);
            if now != value {
                preview.values.push(ValueDiff { path: path.to_owned(), former: now, value });
            }
        }
        Place::File(_) => {}
    }
}

/// Whether the server reads a value only when it starts.
fn needs_restart(value: &ValueDiff) -> bool {
    knobs().iter().any(|knob| !knob.live && knob.linux == value.path)
}

fn add_steps_after_revert(preview: &mut Preview) {
    let is_unit = |file: &FileDiff| file.path == LineFile::Unit.path();
    let is_config = |file: &FileDiff| LineFile::ALL.iter().all(|own| own.path() != file.path);
    if preview.files.iter().any(is_unit) {
        preview.next_steps.push("systemctl daemon-reload && systemctl restart mailrace".to_owned());
    } else if preview.values.iter().any(needs_restart) {
        preview.next_steps.push("systemctl restart mailrace".to_owned());
    } else if preview.files.iter().any(is_config) {
        preview.next_steps.push(preview::RELOAD.to_owned());
    }
}
