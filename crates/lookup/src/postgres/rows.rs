//! Assigns rows to keys: the first column is the key, the others are values.

use std::collections::HashMap;

use crate::{LookupAnswer, fold_key};

/// Answers, collected row by row.
pub(super) struct RowCollector<'a> {
    /// The index of each key.
    places: HashMap<&'a str, usize>,
    found: Vec<Option<Vec<String>>>,
}

/// A row for a key that was not requested, which means that the query is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RowError {
    /// Another key.
    #[error("the query returned the key '{0}', which is not in $1; its first column must be the key")]
    Key(String),
    /// NULL.
    #[error("the query returned NULL as a key; its first column must be the key")]
    Null,
}

impl<'a> RowCollector<'a> {
    /// No rows yet, for these folded keys.
    pub(super) fn new(keys: &[&'a str]) -> Self {
        let places = keys.iter().enumerate().map(|(place, &key)| (key, place)).collect();
        RowCollector { places, found: vec![None; keys.len()] }
    }

    /// Adds a row, skipping NULL values.
    pub(super) fn add<'v>(
        &mut self,
        key: Option<&str>,
        values: impl Iterator<Item = Option<&'v str>>,
    ) -> Result<(), RowError> {
        let key = key.ok_or(RowError::Null)?;
        // Most databases store folded keys.
        let place = self.places.get(key).or_else(|| self.places.get(&*fold_key(key)));
        let &place = place.ok_or_else(|| RowError::Key(key.to_owned()))?;
        self.found[place].get_or_insert_default().extend(values.flatten().map(str::to_owned));
        Ok(())
    }

    /// The answers in the order of the keys.
    pub(super) fn into_answers(self) -> Vec<LookupAnswer> {
        self.found.into_iter().map(|values| values.map_or(LookupAnswer::NotFound, LookupAnswer::Found)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(values: &[&str]) -> LookupAnswer {
        LookupAnswer::Found(values.iter().map(|&value| value.to_owned()).collect())
    }

    #[test]
    fn rows_find_their_keys_in_any_case_and_order() {
        let mut rows = RowCollector::new(&["bob@x", "jürgen@x", "nobody@x", "dave@x"]);
        rows.add(Some("JÜRGEN@X"), [Some("A"), None, Some("b")].into_iter()).unwrap();
        rows.add(Some("Dave@x"), [None].into_iter()).unwrap();
        rows.add(Some("bob@x"), [].into_iter()).unwrap();
        rows.add(Some("jürgen@x"), [Some("c")].into_iter()).unwrap();
        assert_eq!(rows.into_answers(), [found(&[]), found(&["A", "b", "c"]), LookupAnswer::NotFound, found(&[])]);
    }

    #[test]
    fn a_row_that_nobody_asked_for_is_an_error() {
        let mut rows = RowCollector::new(&["bob@x"]);
        assert_eq!(rows.add(Some("Carol@x"), [].into_iter()), Err(RowError::Key("Carol@x".into())));
        assert_eq!(rows.add(None, [].into_iter()), Err(RowError::Null));
    }
}
