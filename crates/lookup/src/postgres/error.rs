//! Errors of PostgreSQL in its own words, and what they mean for the connection and the keys.

use std::error::Error as StdError;
use std::io;

use rustls::CertificateError;
use tokio_postgres::Error;
use tokio_postgres::error::{DbError, SqlState};

use crate::backend::BackendFailure;
use crate::request_error::RequestError;

/// Classifies an error of the server at `at`.
pub(super) fn request_error(at: &str, error: &Error) -> RequestError {
    let failure = BackendFailure::new(at, error_text(error));
    match error.code() {
        None => RequestError::Connection(failure),
        Some(code) if is_connection_error(code) => RequestError::Connection(failure),
        Some(code) if is_key_error(code) => RequestError::Keys(failure),
        Some(_) => RequestError::Refused(failure),
    }
}

/// Whether another connection may work: this one is being closed (57P) or is closed (08), or its
/// prepared statement is gone or outdated.
fn is_connection_error(code: &SqlState) -> bool {
    let renewed = [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::FEATURE_NOT_SUPPORTED];
    renewed.contains(code) || code.code().starts_with("08") || code.code().starts_with("57P")
}

/// Whether the keys are the cause (class 22, data exception): a character that the encoding lacks,
/// or a failed conversion to a number.
fn is_key_error(code: &SqlState) -> bool {
    code.code().starts_with("22")
}

/// The server's message with hint and SQLSTATE, or the client's error with its causes.
pub(super) fn error_text(error: &Error) -> String {
    if let Some(error) = error.as_db_error() {
        return server_error_text(error);
    }
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    match is_unknown_issuer(error) {
        true => format!("{words}; set ca_file to trust its CA, or sslmode=disable to connect without TLS"),
        false => words,
    }
}

fn server_error_text(error: &DbError) -> String {
    let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
    format!("{}: {}{hint} (SQLSTATE {})", error.severity(), error.message(), error.code().code())
}

/// Whether the server's certificate is from an unknown CA.
fn is_unknown_issuer(error: &Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    let cause = cause.and_then(|cause| cause.get_ref()).and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)))
}
