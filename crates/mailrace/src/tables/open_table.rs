//! Tells whether an open table still matches the configuration: its settings, and the files that
//! are read when it is opened.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lookup::Table;

use config::{self, TableKind};

use crate::file_stamp::FileStamp;

/// An open table.
#[derive(Clone)]
pub(super) struct OpenTable {
    /// Its settings in the configuration.
    pub(super) config: config::TableConfig,
    pub(super) table: Arc<dyn Table>,
    stamps: Vec<Option<FileStamp>>,
}

impl OpenTable {
    /// `stamps` are taken before the table is opened, so that a change meanwhile is seen the next
    /// time.
    pub(super) fn new(
        described: config::TableConfig,
        table: Arc<dyn Table>,
        stamps: Vec<Option<FileStamp>>,
    ) -> OpenTable {
        OpenTable { config: described, table, stamps }
    }

    /// Whether opening it now would give the same table. Its parts are not compared.
    pub(super) fn is_current(&self, described: &config::TableConfig, stamps: &[Option<FileStamp>]) -> bool {
        self.config == *described && self.stamps == stamps
    }
}

/// The stamps of the files that are read only when the table is opened.
pub(super) fn file_stamps(table: &config::TableConfig) -> Vec<Option<FileStamp>> {
    files(&table.kind).into_iter().map(file_stamp).collect()
}

/// The file of a replica, which only one table at a time can write.
pub(super) fn replica_file(table: &config::TableConfig) -> Option<&PathBuf> {
    match &table.kind {
        TableKind::Ldap(ldap) => ldap.replica.as_ref().map(|replica| &replica.file),
        _ => None,
    }
}

fn files(kind: &TableKind) -> Vec<&Path> {
    let named = match kind {
        TableKind::Text { path } | TableKind::Cdb { path } | TableKind::Regexp { path } => [Some(path), None],
        TableKind::Postgres(postgres) => [postgres.password_file.as_ref(), postgres.ca_file.as_ref()],
        TableKind::Mysql(mysql) => [mysql.password_file.as_ref(), mysql.ca_file.as_ref()],
        TableKind::Redis(redis) => [redis.password_file.as_ref(), redis.ca_file.as_ref()],
        TableKind::Ldap(ldap) => [ldap.password_file.as_ref(), ldap.directory.servers.ca_file.as_ref()],
        TableKind::Unavailable { path, .. } => [path.as_ref(), None],
        TableKind::Static { .. } | TableKind::Chain { .. } | TableKind::Sqlite(_) => [None, None],
    };
    named.into_iter().flatten().map(PathBuf::as_path).collect()
}

fn file_stamp(path: &Path) -> Option<FileStamp> {
    Some(FileStamp::from(&fs::metadata(path).ok()?))
}
