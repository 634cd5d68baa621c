//! Errors of PostgreSQL in its own words, and what they say of the connection and of the keys.

use std::error::Error as StdError;
use std::io;

use rustls::CertificateError;
use tokio_postgres::Error;
use tokio_postgres::error::{DbError, SqlState};

use crate::backend::Failure;

/// A request failed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The connection is of no more use; another one may do better.
    Connection(Failure),
    /// There is something among the keys that the database cannot take.
    Keys(Failure),
    /// Nothing is to be gained by asking again, and the connection is as good as before.
    Refused(Failure),
    /// Nothing is to be gained by asking again, and the answer has not been read to its end.
    Wrong(Failure),
}

impl Trouble {
    /// What an error at `at` means.
    pub(super) fn of(at: &str, error: &Error) -> Self {
        let failure = Failure::new(at, words(error));
        match error.code() {
            None => Trouble::Connection(failure),
            Some(code) if is_connections(code) => Trouble::Connection(failure),
            Some(code) if is_keys(code) => Trouble::Keys(failure),
            Some(_) => Trouble::Refused(failure),
        }
    }

    /// What came from `at` is not what was meant to come.
    pub(super) fn wrong(at: &str, what: impl ToString) -> Self {
        Trouble::Wrong(Failure::new(at, what))
    }

    /// The failure.
    pub(super) fn failure(self) -> Failure {
        match self {
            Trouble::Connection(failure)
            | Trouble::Keys(failure)
            | Trouble::Refused(failure)
            | Trouble::Wrong(failure) => failure,
        }
    }
}

/// Whether another connection may do better: this one is being closed (57P), was (08), or has not the statement any more
/// that was prepared on it, or has it with other columns than the tables have now.
fn is_connections(code: &SqlState) -> bool {
    let renewed = [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::FEATURE_NOT_SUPPORTED];
    renewed.contains(code) || code.code().starts_with("08") || code.code().starts_with("57P")
}

/// Whether it is about what was asked (22, data exception): the database cannot hold a character of a key, or the query
/// makes a number of it.
fn is_keys(code: &SqlState) -> bool {
    code.code().starts_with("22")
}

/// What the server says, with its hint and its SQLSTATE; else what the client says, with its causes.
pub(super) fn words(error: &Error) -> String {
    if let Some(error) = error.as_db_error() {
        return server_words(error);
    }
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    match is_unvouched(error) {
        true => format!("{words}; ca_file names who vouches for it, and sslmode=disable goes without TLS"),
        false => words,
    }
}

fn server_words(error: &DbError) -> String {
    let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
    format!("{}: {}{hint} (SQLSTATE {})", error.severity(), error.message(), error.code().code())
}

/// Whether nobody whom we trust vouches for the server.
fn is_unvouched(error: &Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    let cause = cause.and_then(|cause| cause.get_ref()).and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)))
}
