//! The parameters of `tune search`: what each is in a scenario, and its bounds.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::scenario::Scenario;
use crate::settings::ServerSettings;
use crate::target::{Target, TargetError};

/// A parameter of `tune search`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchParameter {
    /// The connections of the load.
    Sessions,
    /// Deliveries at the same time.
    Concurrency,
    /// Keys in one request to a directory or database.
    Batch,
    /// Threads of the server.
    Threads,
}

/// The words of the command line.
const PARAMETERS: [(&str, SearchParameter); 4] = [
    ("sessions", SearchParameter::Sessions),
    ("concurrency", SearchParameter::Concurrency),
    ("batch", SearchParameter::Batch),
    ("threads", SearchParameter::Threads),
];

impl FromStr for SearchParameter {
    type Err = String;

    fn from_str(text: &str) -> Result<SearchParameter, String> {
        let found = PARAMETERS.iter().find(|(name, _)| *name == text).map(|(_, parameter)| *parameter);
        found.ok_or_else(|| "expected sessions, concurrency, batch or threads".to_owned())
    }
}

impl fmt::Display for SearchParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = PARAMETERS.iter().find(|(_, parameter)| parameter == self).map_or("", |(name, _)| *name);
        f.write_str(name)
    }
}

impl SearchParameter {
    /// What the parameter is in a scenario.
    ///
    /// # Errors
    ///
    /// The scenario does not depend on it.
    pub fn target(self, scenario: Scenario, settings: &ServerSettings) -> Result<Target, TargetError> {
        let setting = |name: &str| name.parse().map(Target::Setting).map_err(TargetError);
        match (self, scenario) {
            (SearchParameter::Sessions, _) => Ok(Target::Sessions),
            (SearchParameter::Threads, _) => setting("threads"),
            (SearchParameter::Concurrency, Scenario::DeliverMaildir) => setting("queue.local.concurrency"),
            (SearchParameter::Concurrency, Scenario::Relay) => setting("transport.smtp.connections"),
            (SearchParameter::Batch, Scenario::Lookup) => {
                let none = || {
                    TargetError(
                        "no table has a batch: search batch needs one of type ldap, postgres, mysql or redis".into(),
                    )
                };
                let (table, _) = settings.table_batch.first().ok_or_else(none)?;
                setting(&format!("table.\"{table}\".batch"))
            }
            (SearchParameter::Concurrency, _) => Err(TargetError(format!(
                "{scenario} delivers nothing, so it has no concurrency: use deliver-maildir or relay"
            ))),
            (SearchParameter::Batch, _) => {
                Err(TargetError(format!("{scenario} asks no table, so it has no batch: use lookup")))
            }
        }
    }

    /// The bounds if none are given. `processors` of this machine.
    #[must_use]
    pub fn bounds(self, scenario: Scenario, settings: &ServerSettings, processors: u64) -> RangeInclusive<u64> {
        match self {
            // A next hop cannot have fewer connections than it starts with.
            SearchParameter::Concurrency if scenario == Scenario::Relay => settings.relay_concurrency.max(1)..=1024,
            SearchParameter::Sessions | SearchParameter::Concurrency => 1..=1024,
            SearchParameter::Batch => 1..=512,
            SearchParameter::Threads => 1..=processors.max(1) * 2,
        }
    }

    /// The value in force as a point of the curve, from its text, if it has one; None if it is no number, is 0 and stops
    /// what is measured, or is one of the load.
    #[must_use]
    pub fn in_force(self, present: Option<&str>, settings: &ServerSettings, processors: u64) -> Option<u64> {
        match self {
            SearchParameter::Sessions => None,
            SearchParameter::Threads => Some(settings.session_threads(Some(processors))),
            SearchParameter::Batch | SearchParameter::Concurrency => present?.parse().ok().filter(|value| *value > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_parameter_says_what_it_is_or_why_it_is_nothing() {
        let settings = ServerSettings { table_batch: vec![("people".to_owned(), 64)], ..ServerSettings::default() };
        let target = |parameter: SearchParameter, scenario| match parameter.target(scenario, &settings) {
            Ok(target) => target.to_string(),
            Err(error) => error.to_string(),
        };
        assert_eq!(target(SearchParameter::Sessions, Scenario::AcceptMany), "the connections of the load");
        assert_eq!(target(SearchParameter::Threads, Scenario::Relay), "threads in mailrace.toml");
        assert_eq!(target(SearchParameter::Batch, Scenario::Lookup), "table.people.batch in mailrace.toml");
        assert!(target(SearchParameter::Batch, Scenario::Relay).contains("use lookup"));
        assert!(target(SearchParameter::Concurrency, Scenario::AcceptOne).contains("use deliver-maildir"));
    }

    #[test]
    fn the_value_in_force_is_a_number_that_works() {
        let settings = ServerSettings { table_batch: vec![("people".to_owned(), 64)], ..ServerSettings::default() };
        let in_force = |parameter: SearchParameter, present| parameter.in_force(Some(present), &settings, 4);
        assert_eq!(in_force(SearchParameter::Threads, "0"), Some(2), "half of the processors");
        assert_eq!(in_force(SearchParameter::Concurrency, "2000"), Some(2000));
        assert_eq!(in_force(SearchParameter::Concurrency, "0"), None, "it holds the queue");
        assert_eq!(in_force(SearchParameter::Sessions, "100"), None, "clients are not configured");
        assert_eq!(in_force(SearchParameter::Batch, "64"), Some(64));
    }

    #[test]
    fn a_search_begins_with_a_value_that_the_configuration_allows() {
        let settings = ServerSettings { relay_concurrency: 2, ..ServerSettings::default() };
        let lowest = |scenario| *SearchParameter::Concurrency.bounds(scenario, &settings, 2).start();
        assert_eq!((lowest(Scenario::Relay), lowest(Scenario::DeliverMaildir)), (2, 1));
    }
}
