//! Converts queries of pgsql_table(5) and sqlite_table(5).
//!
//! Our queries take all keys together and return the key first. Any Postfix query can be applied to
//! each key with `SELECT k.key, q.* FROM unnest($1::text[]) AS k(key), LATERAL (...) AS q`, where
//! the key replaces `%s`. Keys are bound and never written into the query, so quotes around `%s`
//! are removed.

/// Expressions for the key and its parts.
struct KeyExpressions {
    key: &'static str,
    local: &'static str,
    domain: &'static str,
}

const POSTGRES: KeyExpressions =
    KeyExpressions { key: "k.key", local: "split_part(k.key, '@', 1)", domain: "split_part(k.key, '@', 2)" };
const SQLITE: KeyExpressions = KeyExpressions { key: ":key", local: ":local", domain: ":domain" };

/// The query for type postgres. `local`: Postfix looks up names without a domain.
pub(super) fn postgres(query: &str, local: bool) -> Result<String, String> {
    let query = bind_keys(query, &POSTGRES, local)?;
    Ok(format!("SELECT k.key, q.* FROM unnest($1::text[]) AS k(key), LATERAL ({query}) AS q"))
}

/// The query for type sqlite.
pub(super) fn sqlite(query: &str, local: bool) -> Result<String, String> {
    bind_keys(query, &SQLITE, local)
}

/// The query from the parameters of old versions without `query`.
pub(super) fn legacy_query(value: impl Fn(&str) -> Option<String>) -> Option<String> {
    let (field, table, key) = (value("select_field")?, value("table")?, value("where_field")?);
    let more = value("additional_conditions").unwrap_or_default();
    Some(format!("SELECT {field} FROM {table} WHERE {key} = '%s' {more}"))
}

fn bind_keys(query: &str, terms: &KeyExpressions, local: bool) -> Result<String, String> {
    let mut done = String::new();
    let mut asks = false;
    let query = query.trim().trim_end_matches(';');
    for (number, part) in query.split('\'').enumerate() {
        let is_text = number % 2 == 1;
        let pieces = pieces(part, terms, local)?;
        asks |= pieces.iter().any(|(is_term, _)| *is_term);
        match is_text {
            true => done.push_str(&concat_expression(&pieces)),
            false => pieces.iter().for_each(|(_, piece)| done.push_str(piece)),
        }
    }
    match asks {
        true => Ok(done.split_whitespace().collect::<Vec<_>>().join(" ")),
        false => Err("the query does not contain the key".into()),
    }
}

/// A quoted string, with expressions outside the quotes.
fn concat_expression(pieces: &[(bool, String)]) -> String {
    let piece = |(is_term, piece): &(bool, String)| if *is_term { piece.clone() } else { format!("'{piece}'") };
    match pieces {
        [] => "''".to_owned(),
        [one] => piece(one),
        many => format!("({})", many.iter().map(piece).collect::<Vec<_>>().join(" || ")),
    }
}

/// Splits into texts and expressions for `%s`, `%u` and `%d`.
fn pieces(text: &str, terms: &KeyExpressions, local: bool) -> Result<Vec<(bool, String)>, String> {
    let mut pieces: Vec<(bool, String)> = Vec::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let term = match (c, if c == '%' { chars.next() } else { None }) {
            ('%', Some('s')) if local => terms.local,
            ('%', Some('s')) => terms.key,
            ('%', Some('u')) => terms.local,
            ('%', Some('d')) => terms.domain,
            ('%', Some(other)) if other != '%' => {
                return Err(format!("%{other} in a query is not a known placeholder"));
            }
            _ => {
                match pieces.last_mut() {
                    Some((false, text)) => text.push(c),
                    _ => pieces.push((false, c.to_string())),
                }
                continue;
            }
        };
        pieces.push((true, term.to_owned()));
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
            ("SELECT 'x' FROM t WHERE u='%u' AND d='%d'", false, "SELECT 'x' FROM t WHERE u=:local AND d=:domain"),
            (
                "SELECT '' || a FROM t WHERE b = '%d/%u%%'",
                false,
                "SELECT '' || a FROM t WHERE b = (:domain || '/' || :local || '%')",
            ),
        ] {
            assert_eq!(sqlite(query, local), Ok(expected.to_owned()), "{query}");
        }
        let expected =
            "SELECT k.key, q.* FROM unnest($1::text[]) AS k(key), LATERAL (SELECT a FROM t WHERE b = k.key) AS q";
        assert_eq!(postgres("SELECT a FROM t WHERE b = '%s'", false), Ok(expected.to_owned()));
    }

    #[test]
    fn what_cannot_be_asked_is_told() {
        assert!(sqlite("SELECT a FROM t", false).unwrap_err().contains("does not contain the key"));
        assert!(sqlite("SELECT a FROM t WHERE b = '%1'", false).unwrap_err().contains("%1"));
    }

    proptest! {
        #[test]
        fn any_query_is_read(query in "[a%sud1' ;]{0,40}|(?s).{0,60}", local: bool) {
            let _ = postgres(&query, local);
        }
    }
}
