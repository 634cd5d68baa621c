//! Errors of PostgreSQL in its own words, and what they say of the connection and of the keys.

use std::error::Error as StdError;

use tokio_postgres::Error;
use tokio_postgres::error::{DbError, SqlState};

/// What the server says, with its hint and its SQLSTATE; else what the client says, with its causes.
pub(crate) fn words(error: &Error) -> String {
    if let Some(error) = error.as_db_error() {
        return server_words(error);
    }
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}

fn server_words(error: &DbError) -> String {
    let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
    format!("{}: {}{hint} (SQLSTATE {})", error.severity(), error.message(), error.code().code())
}

/// Whether another connection may do better: this one is closed, is being closed, or has not the statement any more that
/// was prepared on it, or has it with other columns than the tables have now.
pub(crate) fn is_connections(error: &Error) -> bool {
    let Some(code) = error.code() else { return true };
    *code == SqlState::INVALID_SQL_STATEMENT_NAME
        || *code == SqlState::FEATURE_NOT_SUPPORTED
        || code.code().starts_with("08")
        || code.code().starts_with("57P")
}

/// Whether it is about what was asked (class 22, data exception): the database cannot hold a character of a key, or the
/// query makes a number of it.
pub(crate) fn is_keys(error: &Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("22"))
}
