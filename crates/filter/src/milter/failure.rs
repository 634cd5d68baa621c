//! Why a milter could not decide. The failure action decides instead.

use std::io;

use mail::{AddressError, Reply};
use protocol::milter::MilterViolation;

use crate::edit::InvalidField;

/// Why a milter could not decide.
#[derive(Debug, thiserror::Error)]
pub(super) enum MilterFailure {
    #[error("no connection in time; all of them may be in use")]
    NoConnection,
    #[error("no answer in time")]
    NoAnswer,
    #[error("closed the connection")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Violation(#[from] MilterViolation),
    #[error("said that it cannot work")]
    SaidSo,
    #[error("asks for a field that is invalid: {0}")]
    Field(#[from] InvalidField),
    #[error("asks for an address that is invalid: {0}")]
    Address(#[from] AddressError),
    #[error("asks for invalid ESMTP parameters: {0}")]
    Parameters(Reply),
    #[error("not asked: the header is longer than {} octets", crate::header::HEADER_OCTETS_MAX)]
    HeaderTooLong,
    #[error("no memory for the new body now; see limits.body_memory")]
    NoMemory,
    #[error("not asked: the message cannot be read: {0}")]
    Unreadable(io::Error),
}
