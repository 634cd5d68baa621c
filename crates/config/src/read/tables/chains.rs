//! Chains of tables: every name must exist, and chains must not form loops. The order of sections
//! does not matter, so this is checked after all tables have been read.

use std::collections::{BTreeSet, HashMap, VecDeque};

use toml::Spanned;

use super::super::check_known_name;
use crate::error::ConfigError;
use crate::section::Section;

/// The tables of one chain.
pub(super) struct ChainLinks {
    pub(super) from: String,
    pub(super) to: Vec<Spanned<String>>,
}

/// Reports unknown names, and each loop once.
pub(super) fn check(document: &Section<'_, '_>, chains: &[ChainLinks], names: &[String]) {
    for link in chains.iter().flat_map(|chain| &chain.to) {
        check_known_name(document, "tables", link, "[[table]]", names);
    }
    let links: HashMap<&str, &[Spanned<String>]> = chains.iter().map(|it| (&*it.from, &*it.to)).collect();
    let mut told = BTreeSet::new();
    for chain in chains {
        if told.contains(&*chain.from) {
            continue;
        }
        if let Some((link, way)) = chain.to.iter().find_map(|link| Some((link, loop_path(&links, link, &chain.from)?)))
        {
            let label = format!("part of a loop: {} > {}", chain.from, way.join(" > "));
            document.report_error(ConfigError::new(
                link.span(),
                format!("the chain {:?} is a loop", chain.from),
                label,
            ));
            told.extend(way);
        }
    }
}

/// The shortest path from the table of a link to `to`, including both.
fn loop_path<'a>(
    links: &HashMap<&str, &'a [Spanned<String>]>,
    link: &'a Spanned<String>,
    to: &str,
) -> Option<Vec<&'a str>> {
    let first = link.get_ref().as_str();
    let mut before: HashMap<&str, Option<&'a str>> = HashMap::from([(first, None)]);
    let mut open = VecDeque::from([first]);
    while let Some(table) = open.pop_front() {
        if table == to {
            let way = std::iter::successors(Some(table), |table| before.get(table).copied().flatten());
            let mut way: Vec<_> = way.collect();
            way.reverse();
            return Some(way);
        }
        for next in links.get(table).copied().unwrap_or_default() {
            let next = next.get_ref().as_str();
            before.entry(next).or_insert_with(|| {
                open.push_back(next);
                Some(table)
            });
        }
    }
    None
}
