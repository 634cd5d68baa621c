//! Converts queries of pgsql_table(5), mysql_table(5) and sqlite_table(5).
//!
//! Keys are bound and never written into the query, so quotes around `%s` are removed. The queries
//! of MySQL and SQLite keep their form. Those of PostgreSQL take all keys together here and return
//! the key first, so the old query is applied to each key with `LATERAL`. As in Postfix, a key that
//! lacks a part of the query finds nothing.

use super::placeholders::key_part;

/// A kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Database {
    Postgres,
    Mysql,
    Sqlite,
}

impl Database {
    /// The database of a type of Postfix's maps.
    pub(crate) fn of_map_type(kind: &str) -> Option<Database> {
        match kind {
            "pgsql" => Some(Database::Postgres),
            "mysql" => Some(Database::Mysql),
            "sqlite" => Some(Database::Sqlite),
            _ => None,
        }
    }

    /// The type of our tables.
    pub(crate) fn table_type(self) -> &'static str {
        match self {
            Database::Postgres => "postgres",
            Database::Mysql => "mysql",
            Database::Sqlite => "sqlite",
        }
    }

    /// Whether this begins and ends a text. In MySQL, double quotes do too.
    fn is_quote(self, c: char) -> bool {
        c == '\'' || c == '"' && self == Database::Mysql
    }

    /// The expression for a part of the key.
    fn expression(self, part: &str) -> String {
        match (self, part.strip_prefix("label")) {
            (Database::Postgres, Some(number)) => {
                format!("reverse(split_part(reverse(k.domain), '.', {number}))")
            }
            (Database::Postgres, None) => format!("k.{part}"),
            (Database::Mysql | Database::Sqlite, _) => format!(":{part}"),
        }
    }

    /// The expression for texts one after another.
    fn concatenation(self, texts: &[String]) -> String {
        match self {
            // There, || is OR.
            Database::Mysql => format!("CONCAT({})", texts.join(", ")),
            Database::Postgres | Database::Sqlite => format!("({})", texts.join(" || ")),
        }
    }

    /// The query for our table. `local`: Postfix looks up names without a domain.
    pub(crate) fn query(self, query: &str, local: bool) -> Result<String, String> {
        let (query, parts) = bind_keys(query, self, local)?;
        Ok(match self {
            Database::Postgres => postgres_query(&query, &parts),
            Database::Mysql | Database::Sqlite => query,
        })
    }
}

/// Applies a query to each key that has these parts.
fn postgres_query(query: &str, parts: &[String]) -> String {
    if parts.iter().all(|part| part == "key") {
        return format!("SELECT k.key, q.* FROM unnest($1::text[]) AS k(key), LATERAL ({query}) AS q");
    }
    let needed: Vec<String> =
        parts.iter().map(|part| format!("{} <> ''", Database::Postgres.expression(part))).collect();
    format!(
        "SELECT k.key, q.* FROM (SELECT key, regexp_replace(key, '@[^@]*$', '') AS local, \
         substring(key from '@([^@]*)$') AS domain FROM unnest($1::text[]) AS u(key)) AS k, LATERAL ({query}) AS q \
         WHERE {}",
        needed.join(" AND ")
    )
}

/// The query from the parameters of old versions without `query`.
pub(crate) fn legacy_query(value: impl Fn(&str) -> Option<String>) -> Option<String> {
    let (field, table, key) = (value("select_field")?, value("table")?, value("where_field")?);
    let more = value("additional_conditions").unwrap_or_default();
    Some(format!("SELECT {field} FROM {table} WHERE {key} = '%s' {more}"))
}

/// The query with expressions in place of Postfix's placeholders, and the parts of the key in it.
fn bind_keys(query: &str, database: Database, local: bool) -> Result<(String, Vec<String>), String> {
    let (mut done, mut parts, mut rest) = (String::new(), Vec::new(), query.trim().trim_end_matches(';'));
    while !rest.is_empty() {
        let begin = rest.find(|c| database.is_quote(c)).unwrap_or(rest.len());
        let (code, behind) = rest.split_at(begin);
        pieces(code, local)?.into_iter().for_each(|piece| done.push_str(&piece.expression(database, &mut parts)));
        let Some(quote) = behind.chars().next() else { break };
        let (text, behind) = behind[1..].split_once(quote).ok_or("a text in the query is not closed")?;
        done.push_str(&text_expression(pieces(text, local)?, quote, database, &mut parts));
        rest = behind;
    }
    match parts.is_empty() {
        true => Err("the query does not contain the key".into()),
        false => Ok((done.split_whitespace().collect::<Vec<_>>().join(" "), parts)),
    }
}

/// A piece of a query.
enum Piece {
    Text(String),
    /// A part of the key.
    Part(String),
}

impl Piece {
    fn expression(self, database: Database, parts: &mut Vec<String>) -> String {
        match self {
            Piece::Text(text) => text,
            Piece::Part(part) => {
                let expression = database.expression(&part);
                if !parts.contains(&part) {
                    parts.push(part);
                }
                expression
            }
        }
    }
}

/// A quoted text, with expressions outside the quotes.
fn text_expression(pieces: Vec<Piece>, quote: char, database: Database, parts: &mut Vec<String>) -> String {
    let mut expressions: Vec<String> = pieces
        .into_iter()
        .map(|piece| match piece {
            Piece::Text(text) => format!("{quote}{text}{quote}"),
            part => part.expression(database, parts),
        })
        .collect();
    match expressions.len() {
        0 => format!("{quote}{quote}"),
        1 => expressions.remove(0),
        _ => database.concatenation(&expressions),
    }
}

/// Splits at Postfix's placeholders.
fn pieces(text: &str, local: bool) -> Result<Vec<Piece>, String> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let letter = if c == '%' { chars.next() } else { None };
        match letter {
            None | Some('%') => match pieces.last_mut() {
                Some(Piece::Text(text)) => text.push(c),
                _ => pieces.push(Piece::Text(c.to_string())),
            },
            Some(letter) => {
                let unknown = || format!("%{letter} in a query is not a known placeholder");
                pieces.push(Piece::Part(key_part(letter, local)?.ok_or_else(unknown)?));
            }
        }
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_are_bound_and_never_written_into_a_query() {
        for (query, local, expected) in [
            ("SELECT a FROM t\n WHERE b = '%s';", false, "SELECT a FROM t WHERE b = :key"),
            ("SELECT a FROM t WHERE b = '%s'", true, "SELECT a FROM t WHERE b = :local"),
            ("SELECT 'x' FROM t WHERE u='%u' AND d='%D'", false, "SELECT 'x' FROM t WHERE u=:local AND d=:domain"),
            ("SELECT '' FROM t WHERE b = '%2'", false, "SELECT '' FROM t WHERE b = :label2"),
            (
                "SELECT '' || a FROM t WHERE b = '%d/%u%%'",
                false,
                "SELECT '' || a FROM t WHERE b = (:domain || '/' || :local || '%')",
            ),
        ] {
            assert_eq!(Database::Sqlite.query(query, local).as_deref(), Ok(expected), "{query}");
        }
        let mysql = |query| Database::Mysql.query(query, false);
        assert_eq!(mysql("SELECT a FROM t WHERE b = \"%s\""), Ok("SELECT a FROM t WHERE b = :key".into()));
        assert_eq!(
            mysql("SELECT CONCAT(a, \"'\") FROM t WHERE b LIKE '%%@%d' AND c = %u"),
            Ok("SELECT CONCAT(a, \"'\") FROM t WHERE b LIKE CONCAT('%@', :domain) AND c = :local".into())
        );
    }

    #[test]
    fn a_query_of_postgresql_is_applied_to_each_key_that_has_its_parts() {
        let postgres = |query| Database::Postgres.query(query, false).unwrap();
        assert_eq!(
            postgres("SELECT a FROM t WHERE b = '%s'"),
            "SELECT k.key, q.* FROM unnest($1::text[]) AS k(key), LATERAL (SELECT a FROM t WHERE b = k.key) AS q"
        );
        let made = postgres("SELECT a FROM t WHERE b = '%u' AND c = '%1'");
        assert!(made.contains("LATERAL (SELECT a FROM t WHERE b = k.local AND c = reverse(split_part("), "{made}");
        assert!(
            made.ends_with("WHERE k.local <> '' AND reverse(split_part(reverse(k.domain), '.', 1)) <> ''"),
            "{made}"
        );
    }

    #[test]
    fn what_cannot_be_asked_is_told() {
        let sqlite = |query, local| Database::Sqlite.query(query, local).unwrap_err();
        assert!(sqlite("SELECT a FROM t", false).contains("does not contain the key"));
        assert!(sqlite("SELECT a FROM t WHERE b = '%x'", false).contains("%x"));
        assert!(sqlite("SELECT a FROM t WHERE b = '%d'", true).contains("never there"));
        assert!(sqlite("SELECT a FROM t WHERE b = '%s", false).contains("not closed"));
    }

    proptest! {
        #[test]
        fn any_query_is_read(query in "[a%sud1'\" ;]{0,40}|(?s).{0,60}", local: bool) {
            for database in [Database::Postgres, Database::Mysql, Database::Sqlite] {
                let _ = database.query(&query, local);
            }
        }
    }
}
