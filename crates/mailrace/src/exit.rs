//! The exit codes, following `sysexits.h`.

use std::io;
use std::process::ExitCode;

use crate::privileges::PrivilegesError;
use compare::error::CompareError;
use compare::result_files::ResultFileError;
use config::{ConfigErrors, LoadError};

/// The answer is no.
pub const NEGATIVE: u8 = 1;
/// Mail for an address would bounce (`sendmail -bv`).
pub const UNDELIVERABLE: u8 = 2;
/// Mail is left in the queue (`serve --drain-only`).
pub const MAIL_LEFT: u8 = 3;
/// Another node has taken over a lane of this one; started again, the server goes on with what is left.
pub const LANE_LOST: u8 = 4;
/// The command line is wrong.
pub const USAGE: u8 = 64;
/// Invalid data.
pub const DATA: u8 = 65;
/// A service does not answer.
pub const UNAVAILABLE: u8 = 69;
/// Any other error.
pub const SOFTWARE: u8 = 70;
/// Reading or writing failed.
pub const IO: u8 = 74;
/// The message was not accepted; try again later.
pub const TEMPFAIL: u8 = 75;
/// Missing permission.
pub const PERMISSION: u8 = 77;
/// Errors in the configuration.
pub const CONFIG: u8 = 78;

/// An error with its exit code.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct ExitError {
    /// The exit code.
    pub code: u8,
    /// The message.
    pub text: String,
}

/// An error that the running server has already formatted; its text is printed as it is.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct FormattedError {
    /// The exit code.
    pub code: u8,
    /// The message.
    pub text: String,
}

impl FormattedError {
    /// Errors in a configuration are printed as they are, other errors on a line of their own.
    pub fn from_error(error: &anyhow::Error) -> FormattedError {
        let text = match config_errors(error) {
            Some(errors) => errors.to_string(),
            None => match error.downcast_ref::<FormattedError>() {
                Some(page) => page.text.clone(),
                None => format!("mailrace: {error:#}"),
            },
        };
        FormattedError { code: error.chain().find_map(exit_code_of_cause).unwrap_or(SOFTWARE), text }
    }
}

/// The errors of a configuration text.
fn config_errors(error: &anyhow::Error) -> Option<&ConfigErrors> {
    match error.downcast_ref() {
        Some(LoadError::Invalid(errors)) => Some(errors),
        _ => error.downcast_ref(),
    }
}

/// The exit code for an error.
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(FormattedError::from_error(error).code)
}

fn exit_code_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(exit) = cause.downcast_ref::<ExitError>() {
        return Some(exit.code);
    }
    if let Some(page) = cause.downcast_ref::<FormattedError>() {
        return Some(page.code);
    }
    match cause.downcast_ref() {
        Some(LoadError::Invalid(_) | LoadError::NotUtf8 { .. } | LoadError::NotForInjection(_)) => return Some(CONFIG),
        // The cause of the system error, which follows, determines the code.
        Some(LoadError::Unreadable { .. }) => return None,
        None if cause.is::<ConfigErrors>() => return Some(CONFIG),
        None => {}
    }
    if cause.is::<PrivilegesError>() {
        return Some(PERMISSION);
    }
    if let Some(fault) = cause.downcast_ref::<bench::BenchError>() {
        return exit_code_of_bench(fault);
    }
    if let Some(fault) = cause.downcast_ref::<CompareError>() {
        return exit_code_of_compare(fault);
    }
    if let Some(fault) = cause.downcast_ref::<ResultFileError>() {
        return exit_code_of_result_file(fault);
    }
    let error = cause.downcast_ref::<io::Error>()?;
    Some(if error.kind() == io::ErrorKind::PermissionDenied { PERMISSION } else { IO })
}

/// The cause of a system error determines its code.
fn exit_code_of_bench(fault: &bench::BenchError) -> Option<u8> {
    match fault {
        bench::BenchError::Usage(_) => Some(USAGE),
        bench::BenchError::Data(_) => Some(DATA),
        bench::BenchError::Unavailable(_) => Some(UNAVAILABLE),
        bench::BenchError::System { .. } => None,
    }
}

/// The cause of a system error determines its code.
fn exit_code_of_compare(fault: &CompareError) -> Option<u8> {
    match fault {
        CompareError::Usage(_) => Some(USAGE),
        CompareError::Data(_) => Some(DATA),
        CompareError::Failed(_) | CompareError::Interrupted | CompareError::TimeOver => Some(SOFTWARE),
        CompareError::System { .. } => None,
    }
}

/// The cause of a system error determines its code.
fn exit_code_of_result_file(fault: &ResultFileError) -> Option<u8> {
    match fault {
        ResultFileError::System { .. } => None,
        ResultFileError::Other { .. } => Some(USAGE),
        ResultFileError::Invalid { .. }
        | ResultFileError::Format { .. }
        | ResultFileError::Empty { .. }
        | ResultFileError::NotFinite { .. } => Some(DATA),
    }
}
