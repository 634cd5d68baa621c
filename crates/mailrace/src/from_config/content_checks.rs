//! The content rules, address rewriting and blind copies, from `[[content]]`, `[rewrite]` and `[bcc]`. Each
//! reload makes them anew; sessions keep those they began with.

use std::sync::Arc;

use anyhow::Context;
use config::Config;
use filter::CheckFactory;
use filter::bcc::BlindCopies;
use filter::content::{ContentLimits, ContentRules};
use filter::rewrite::{AddressRewriter, HeaderRewriting};
use lookup::directory::RecipientDirectory;
use mail::OperatorLog;

use super::origin_domain;
use crate::tables::OpenTables;

/// Rewrites addresses; None if nothing is configured. The tables must belong to the same configuration.
pub fn address_rewriter(
    config: &Config,
    tables: &OpenTables,
    directory: &Arc<RecipientDirectory>,
) -> Option<Arc<AddressRewriter>> {
    let settings = config.rewrite.as_ref()?;
    let (directory, origin) = (directory.clone(), origin_domain(config));
    Some(Arc::new(AddressRewriter::new(settings, |name| tables.find(name), directory, origin)))
}

/// The checks, in their order.
///
/// # Errors
///
/// The patterns of the content rules are too large together.
pub fn content_checks(
    config: &Config,
    tables: &OpenTables,
    rewriter: Option<&Arc<AddressRewriter>>,
    directory: &Arc<RecipientDirectory>,
    log: &Arc<dyn OperatorLog>,
) -> anyhow::Result<Vec<Arc<dyn CheckFactory>>> {
    let find = |name: &str| tables.find(name);
    let limits = ContentLimits {
        body_octets_max: config.limits.content_body_octets_max,
        body_lookup_octets_max: config.limits.content_body_lookup_octets_max,
    };
    let rules = ContentRules::new(config.content.clone(), limits, find, log.clone()).context("[[content]]")?;
    let rewriting = rewriter.zip(config.rewrite.clone()).map(|(rewriter, settings)| {
        Arc::new(HeaderRewriting { rewriter: rewriter.clone(), settings, log: log.clone() }) as Arc<dyn CheckFactory>
    });
    let copies = BlindCopies::new(&config.bcc, find, directory.clone(), origin_domain(config), log.clone());
    let rules = rules.map(|rules| Arc::new(rules) as Arc<dyn CheckFactory>);
    let copies = copies.map(|copies| Arc::new(copies) as Arc<dyn CheckFactory>);
    Ok(rules.into_iter().chain(rewriting).chain(copies).collect())
}
