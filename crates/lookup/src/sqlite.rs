//! Tables in an SQLite database, opened read-only.
//!
//! The query runs once per key. `:key`, `:local`, `:domain` and `:label1` to `:label9` are the parts
//! of the key ([`KeyPart`]); a key that lacks one of them is NotFound. All columns of all rows are
//! values, in order. NULL is skipped, numbers become text. No rows means NotFound.
//!
//! ```sql
//! SELECT target FROM aliases WHERE address = :key
//! ```
//!
//! The file is opened at the first request, and again after an error or when another file replaces
//! it. It is read on the calling thread. The timeout bounds waiting for writers and the whole
//! request: if the first key exceeds it the request fails, otherwise the remaining keys are
//! Unavailable.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rusqlite::types::ValueRef;
use rusqlite::{CachedStatement, Connection, ErrorCode, OpenFlags, Row};

use crate::LookupAnswer;
use crate::backend::{Backend, BackendFailure, BackendFuture, ProbeFuture};
use crate::key_part::KeyPart;

/// Values per key.
const VALUES_MAX: usize = 10_000;
/// Instructions of SQLite's virtual machine between two deadline checks, about 0.1 ms.
const STEPS_PER_CLOCK_CHECK: i32 = 10_000;

/// Configuration of an SQLite table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteConfig {
    /// The database file.
    pub path: PathBuf,
    /// The query for one key, with parts of it as parameters.
    pub query: Box<str>,
    /// How long to wait for a writer, and how long one request may take.
    pub timeout: Duration,
}

/// A table in an SQLite database.
pub struct Sqlite {
    config: SqliteConfig,
    open: RefCell<Option<OpenDatabase>>,
}

/// The open database.
struct OpenDatabase {
    connection: Connection,
    /// Identity of the opened file.
    file: FileId,
}

/// A file's device and inode numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileId(u64, u64);

/// Why a query fails.
#[derive(Debug, thiserror::Error)]
enum SqliteError {
    #[error("{0}")]
    File(#[from] std::io::Error),
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    #[error("the query has no part of the key, such as :key: all keys would get the same answer")]
    NoKey,
    #[error("the query has the unknown parameter '{0}': use :key, :local, :domain or :label1 to :label9")]
    Parameter(String),
    #[error("the query would change the database")]
    Writes,
    #[error("the column '{0}' of the query holds {1}, not text")]
    Column(String, &'static str),
    #[error("the query takes longer than {0:?}")]
    TimedOut(Duration),
    #[error("more than {VALUES_MAX} values for one key")]
    TooManyValues,
}

impl SqliteError {
    /// Whether the deadline interrupted the query.
    fn is_interruption(&self) -> bool {
        matches!(self, SqliteError::Sqlite(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted))
    }
}

impl Sqlite {
    /// Creates the table. The file is opened at the first request.
    pub fn new(config: SqliteConfig) -> Self {
        Sqlite { config, open: RefCell::default() }
    }

    /// Opens the file and prepares the query, so that mistakes show at startup.
    pub fn check_query(&self) -> Result<(), BackendFailure> {
        self.with_statement(Instant::now() + self.config.timeout, |_| Ok(()))
    }

    fn answers(&self, keys: &[Box<str>]) -> Result<Vec<LookupAnswer>, BackendFailure> {
        let deadline = Instant::now() + self.config.timeout;
        self.with_statement(deadline, |statement| {
            let answer = |(at, key)| {
                if at > 0 && Instant::now() >= deadline {
                    return Ok(self.timed_out_answer());
                }
                match find(statement, key) {
                    Err(mistake) if mistake.is_interruption() && at > 0 => Ok(self.timed_out_answer()),
                    Err(mistake) if mistake.is_interruption() => Err(SqliteError::TimedOut(self.config.timeout)),
                    answer => answer,
                }
            };
            keys.iter().map(AsRef::as_ref).enumerate().map(answer).collect()
        })
    }

    /// Opens the file if necessary and runs `ask` until the deadline. Any error closes the file.
    fn with_statement<T>(
        &self,
        deadline: Instant,
        ask: impl FnOnce(&mut CachedStatement<'_>) -> Result<T, SqliteError>,
    ) -> Result<T, BackendFailure> {
        let mut slot = self.open.borrow_mut();
        let asked = self.reopen(&mut slot).and_then(|connection| {
            connection.progress_handler(STEPS_PER_CLOCK_CHECK, Some(move || Instant::now() >= deadline))?;
            // One transaction for all keys: one lock, one snapshot.
            let _together = connection.unchecked_transaction()?;
            let mut statement = connection.prepare_cached(&self.config.query)?;
            check(&statement)?;
            ask(&mut statement)
        });
        asked.map_err(|mistake| {
            *slot = None;
            BackendFailure::new(self.config.path.to_string_lossy(), mistake)
        })
    }

    /// The connection, reopened if another file has replaced the old one.
    fn reopen<'a>(&self, slot: &'a mut Option<OpenDatabase>) -> Result<&'a mut Connection, SqliteError> {
        let metadata = fs::metadata(&self.config.path)?;
        let file = FileId(metadata.dev(), metadata.ino());
        let open = match slot.take().filter(|open| open.file == file) {
            Some(open) => open,
            None => OpenDatabase { connection: self.connect()?, file },
        };
        Ok(&mut slot.insert(open).connection)
    }

    fn connect(&self) -> Result<Connection, SqliteError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.config.path, flags)?;
        connection.busy_timeout(self.config.timeout)?;
        Ok(connection)
    }

    fn timed_out_answer(&self) -> LookupAnswer {
        let (path, time) = (self.config.path.display(), self.config.timeout);
        LookupAnswer::Unavailable(format!("{path}: the keys before this one took longer than {time:?}"))
    }
}

impl Backend for Sqlite {
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> BackendFuture<'a> {
        Box::pin(async { self.answers(keys) })
    }

    fn probe(&self) -> ProbeFuture<'_> {
        Box::pin(async { self.check_query() })
    }
}

/// Checks that the query is read-only and uses only known parameters.
fn check(statement: &CachedStatement<'_>) -> Result<(), SqliteError> {
    if !statement.readonly() {
        return Err(SqliteError::Writes);
    }
    if statement.parameter_count() == 0 {
        return Err(SqliteError::NoKey);
    }
    key_parts(statement).map(drop)
}

/// The part of the key for each parameter.
fn key_parts(statement: &CachedStatement<'_>) -> Result<Vec<KeyPart>, SqliteError> {
    let part = |place| {
        let name = statement.parameter_name(place).unwrap_or("?");
        let part = name.strip_prefix(':').and_then(KeyPart::parse);
        part.ok_or_else(|| SqliteError::Parameter(name.to_owned()))
    };
    (1..=statement.parameter_count()).map(part).collect()
}

/// Runs the query for one key.
fn find(statement: &mut CachedStatement<'_>, key: &str) -> Result<LookupAnswer, SqliteError> {
    for (place, part) in (1..).zip(key_parts(statement)?) {
        match part.of(key) {
            Some(value) => statement.raw_bind_parameter(place, value)?,
            None => return Ok(LookupAnswer::NotFound),
        }
    }
    let mut rows = statement.raw_query();
    let mut values = None;
    while let Some(row) = rows.next()? {
        let values = values.get_or_insert_with(Vec::new);
        add(row, values)?;
        if values.len() > VALUES_MAX {
            return Err(SqliteError::TooManyValues);
        }
    }
    Ok(values.map_or(LookupAnswer::NotFound, LookupAnswer::Found))
}

/// Adds the values of one row.
fn add(row: &Row<'_>, values: &mut Vec<String>) -> Result<(), SqliteError> {
    for column in 0..row.as_ref().column_count() {
        let wrong = |what| SqliteError::Column(row.as_ref().column_name(column).unwrap_or_default().to_owned(), what);
        match row.get_ref(column)? {
            ValueRef::Null => {}
            ValueRef::Integer(number) => values.push(number.to_string()),
            ValueRef::Real(number) => values.push(number.to_string()),
            ValueRef::Text(octets) => {
                let text = str::from_utf8(octets).map_err(|_| wrong("invalid UTF-8"))?;
                values.push(text.to_owned());
            }
            ValueRef::Blob(_) => return Err(wrong("a blob")),
        }
    }
    Ok(())
}
