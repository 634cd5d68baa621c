//! Table lookups for a domain: whether it is local, and its next hop.

use std::collections::HashMap;
use std::sync::Arc;

use lookup::{Answer, Table};

use crate::hop::FixedHop;
use crate::replies::Obstacle;

/// Tables by name.
#[derive(Default)]
pub(crate) struct Tables(HashMap<Box<str>, Arc<dyn Table>>);

impl Tables {
    pub(crate) fn new(tables: impl IntoIterator<Item = Arc<dyn Table>>) -> Self {
        Tables(tables.into_iter().map(|table| (table.name().into(), table)).collect())
    }

    /// Whether the table contains the domain.
    pub(crate) async fn has(&self, table: &str, domain: &str) -> Result<bool, Obstacle> {
        Ok(self.first(table, &[domain]).await?.is_some())
    }

    /// The next hop in the table for the domain, or for its closest parent domain listed with a
    /// leading dot. An entry without a value has no next hop. Only the first of several values is
    /// used.
    pub(crate) async fn hop(&self, table: &str, domain: &str) -> Result<Option<Option<FixedHop>>, Obstacle> {
        let above = domain.match_indices('.').map(|(dot, _)| &domain[dot..]);
        let keys: Vec<&str> = std::iter::once(domain).chain(above.filter(|_| !domain.starts_with('['))).collect();
        let Some(values) = self.first(table, &keys).await? else { return Ok(None) };
        let wrong = |text: &String| Obstacle::NextHop { table: table.into(), text: text.as_str().into() };
        let hop = values.first().map(|text| text.parse().map_err(|_| wrong(text))).transpose()?;
        Ok(Some(hop))
    }

    /// The values of the first key found.
    async fn first(&self, table: &str, keys: &[&str]) -> Result<Option<Vec<String>>, Obstacle> {
        let Some(table) = self.0.get(table) else { return Ok(None) };
        for answer in table.lookup(keys).await {
            match answer {
                Answer::Found(values) => return Ok(Some(values)),
                Answer::NotFound => {}
                Answer::Unavailable(why) | Answer::Unconfirmed(why) => return Err(Obstacle::Table(why.into())),
            }
        }
        Ok(None)
    }
}
