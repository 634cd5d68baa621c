//! Tables that are made of others: each name is that of a table, and no way leads back to where it began. The order of
//! the text does not matter, so this is looked at when all tables have been read.

use std::collections::{BTreeSet, HashMap, VecDeque};

use toml::Spanned;

use super::super::known;
use crate::config::fault::Fault;
use crate::config::section::Section;

/// The tables that one table is made of.
pub(super) struct Links {
    pub(super) from: String,
    pub(super) to: Vec<Spanned<String>>,
}

/// States names that no table bears, and circles, each of these once.
pub(super) fn check(document: &Section<'_, '_>, chains: &[Links], names: &[String]) {
    for link in chains.iter().flat_map(|chain| &chain.to) {
        known(document, "tables", link, "[[table]]", names);
    }
    let links: HashMap<&str, &[Spanned<String>]> = chains.iter().map(|it| (&*it.from, &*it.to)).collect();
    let mut told = BTreeSet::new();
    for chain in chains {
        if told.contains(&*chain.from) {
            continue;
        }
        if let Some((link, way)) = chain.to.iter().find_map(|link| Some((link, way_back(&links, link, &chain.from)?))) {
            let label = format!("leads back: {} > {}; expected tables that do not", chain.from, way.join(" > "));
            document.state_fault(Fault::new(link.span(), format!("the chain {:?} has no end", chain.from), label));
            told.extend(way);
        }
    }
}

/// The shortest way from the table of a link to the one of that name, both included.
fn way_back<'a>(
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
