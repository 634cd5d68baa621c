//! The exit codes, as `sysexits.h` has them where it has one.

use std::io;
use std::process::ExitCode;

use crate::config::Faults;
use crate::privileges::PrivilegesError;

/// The answer is no.
pub const NO: u8 = 1;
/// Mail for an address would come back (`sendmail -bv`).
pub const UNDELIVERABLE: u8 = 2;
/// The command line is wrong.
pub const USAGE: u8 = 64;
/// The data is wrong.
pub const DATA: u8 = 65;
/// Somebody who is needed does not answer.
pub const UNAVAILABLE: u8 = 69;
/// Something else failed.
pub const SOFTWARE: u8 = 70;
/// Reading or writing failed.
pub const IO: u8 = 74;
/// Nothing was kept, and the same may succeed later.
pub const TEMPFAIL: u8 = 75;
/// A right is missing.
pub const PERMISSION: u8 = 77;
/// The configuration has faults.
pub const CONFIG: u8 = 78;

/// An error whose exit code is known where it arises.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Exit {
    /// The code.
    pub code: u8,
    /// What to tell.
    pub text: String,
}

/// An error of the running server, which has put it into its words: its text is all there is to say.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Page {
    /// The code.
    pub code: u8,
    /// What to tell.
    pub text: String,
}

impl Page {
    /// Faults of a configuration are a page of their own, everything else is a line.
    pub fn of(error: &anyhow::Error) -> Page {
        let text = match error.downcast_ref::<Faults>() {
            Some(faults) => faults.to_string(),
            None => match error.downcast_ref::<Page>() {
                Some(page) => page.text.clone(),
                None => format!("mailrace: {error:#}"),
            },
        };
        Page { code: error.chain().find_map(code_of_cause).unwrap_or(SOFTWARE), text }
    }
}

/// The exit code for an error.
pub fn code_of(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(Page::of(error).code)
}

fn code_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(exit) = cause.downcast_ref::<Exit>() {
        return Some(exit.code);
    }
    if let Some(page) = cause.downcast_ref::<Page>() {
        return Some(page.code);
    }
    if cause.is::<Faults>() || cause.is::<std::string::FromUtf8Error>() {
        return Some(CONFIG);
    }
    if cause.is::<PrivilegesError>() {
        return Some(PERMISSION);
    }
    if let Some(fault) = cause.downcast_ref::<bench::Fault>() {
        return code_of_fault(fault);
    }
    let error = cause.downcast_ref::<io::Error>()?;
    Some(if error.kind() == io::ErrorKind::PermissionDenied { PERMISSION } else { IO })
}

/// What the system refused is told by the cause beneath.
fn code_of_fault(fault: &bench::Fault) -> Option<u8> {
    match fault {
        bench::Fault::Usage(_) => Some(USAGE),
        bench::Fault::Data(_) => Some(DATA),
        bench::Fault::Unavailable(_) => Some(UNAVAILABLE),
        bench::Fault::System { .. } => None,
    }
}
