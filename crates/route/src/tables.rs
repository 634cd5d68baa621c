//! Table lookups for a domain: whether it is local, and its next hop.

use std::collections::HashMap;
use std::sync::Arc;

use lookup::{LookupAnswer, Table};

use crate::error::RouteError;
use crate::fixed_hop::FixedHop;

/// Tables by name.
#[derive(Default)]
pub(crate) struct RouteTables(HashMap<Box<str>, Arc<dyn Table>>);

impl RouteTables {
    pub(crate) fn new(tables: impl IntoIterator<Item = Arc<dyn Table>>) -> Self {
        RouteTables(tables.into_iter().map(|table| (table.name().into(), table)).collect())
    }

    /// Whether the table contains the domain.
    pub(crate) async fn contains(&self, table: &str, domain: &str) -> Result<bool, RouteError> {
        Ok(self.lookup_first(table, &[domain]).await?.is_some())
    }

    /// The next hop in the table for the domain, or for its closest parent domain listed with a
    /// leading dot. An entry without a value has no next hop. Only the first of several values is
    /// used.
    pub(crate) async fn next_hop(&self, table: &str, domain: &str) -> Result<Option<Option<FixedHop>>, RouteError> {
        let above = domain.match_indices('.').map(|(dot, _)| &domain[dot..]);
        let keys: Vec<&str> = std::iter::once(domain).chain(above.filter(|_| !domain.starts_with('['))).collect();
        let Some(values) = self.lookup_first(table, &keys).await? else { return Ok(None) };
        let wrong = |text: &String| RouteError::BadNextHop { table: table.into(), text: text.as_str().into() };
        let hop = values.first().map(|text| text.parse().map_err(|_| wrong(text))).transpose()?;
        Ok(Some(hop))
    }

    /// The values of the first key found.
    async fn lookup_first(&self, table: &str, keys: &[&str]) -> Result<Option<Vec<String>>, RouteError> {
        let Some(table) = self.0.get(table) else { return Ok(None) };
        for answer in table.lookup(keys).await {
            match answer {
                LookupAnswer::Found(values) => return Ok(Some(values)),
                LookupAnswer::NotFound => {}
                LookupAnswer::Unavailable(why) | LookupAnswer::Unconfirmed(why) => {
                    return Err(RouteError::TableUnavailable(why.into()));
                }
            }
        }
        Ok(None)
    }
}
