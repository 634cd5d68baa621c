//! Which rows of an answer are whose: each has its key in its first column, and the others are values.

use std::collections::HashMap;

use crate::{Answer, fold};

/// Answers that grow row by row.
pub(super) struct Rows<'a> {
    /// Where each key's answer is.
    places: HashMap<&'a str, usize>,
    found: Vec<Option<Vec<String>>>,
}

/// A row is about none of the keys that were asked: the query is not what it was meant to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Stray {
    /// Another key.
    #[error("the query answers for '{0}', which was not asked for; its first column must be the key, out of $1")]
    Key(String),
    /// None.
    #[error("the query answers with NULL for a key; its first column must be the key, out of $1")]
    Null,
}

impl<'a> Rows<'a> {
    /// None so far, for these keys, which are folded.
    pub(super) fn new(keys: &[&'a str]) -> Self {
        let places = keys.iter().enumerate().map(|(place, &key)| (key, place)).collect();
        Rows { places, found: vec![None; keys.len()] }
    }

    /// Takes one row. Values that are NULL are left out.
    pub(super) fn add<'v>(
        &mut self,
        key: Option<&str>,
        values: impl Iterator<Item = Option<&'v str>>,
    ) -> Result<(), Stray> {
        let key = key.ok_or(Stray::Null)?;
        // Most databases have their keys folded already.
        let place = self.places.get(key).or_else(|| self.places.get(&*fold(key)));
        let &place = place.ok_or_else(|| Stray::Key(key.to_owned()))?;
        self.found[place].get_or_insert_default().extend(values.flatten().map(str::to_owned));
        Ok(())
    }

    /// The answers, in the order of the keys.
    pub(super) fn answers(self) -> Vec<Answer> {
        self.found.into_iter().map(|values| values.map_or(Answer::NotFound, Answer::Found)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(values: &[&str]) -> Answer {
        Answer::Found(values.iter().map(|&value| value.to_owned()).collect())
    }

    #[test]
    fn rows_find_their_keys_in_any_case_and_order() {
        let mut rows = Rows::new(&["bob@x", "jürgen@x", "nobody@x", "dave@x"]);
        rows.add(Some("JÜRGEN@X"), [Some("A"), None, Some("b")].into_iter()).unwrap();
        rows.add(Some("Dave@x"), [None].into_iter()).unwrap();
        rows.add(Some("bob@x"), [].into_iter()).unwrap();
        rows.add(Some("jürgen@x"), [Some("c")].into_iter()).unwrap();
        assert_eq!(rows.answers(), [found(&[]), found(&["A", "b", "c"]), Answer::NotFound, found(&[])]);
    }

    #[test]
    fn a_row_that_nobody_asked_for_is_an_error() {
        let mut rows = Rows::new(&["bob@x"]);
        assert_eq!(rows.add(Some("Carol@x"), [].into_iter()), Err(Stray::Key("Carol@x".into())));
        assert_eq!(rows.add(None, [].into_iter()), Err(Stray::Null));
    }
}
