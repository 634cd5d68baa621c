//! Generic addresses, from `generic` of transports: what `filter` does with a table, for `delivery`.

use std::fmt;
use std::sync::Arc;

use config::{Config, SmtpTransportSettings};
use delivery::remote::{GenericAddresses, GenericFuture, GenericRewriter};
use filter::rewrite::{GenericMessage, GenericTable};
use lookup::directory::RecipientDirectory;
use mail::Address;

use super::origin_domain;
use crate::tables::OpenTables;

/// Rewrites the addresses of a transport's mail; None if it has no such table.
pub(super) fn generic_rewriter(
    config: &Config,
    smtp: &SmtpTransportSettings,
    tables: &OpenTables,
    directory: &Arc<RecipientDirectory>,
) -> Option<Arc<dyn GenericRewriter>> {
    let name = smtp.generic.as_deref()?;
    let table = GenericTable::new(tables.find(name)?.clone(), directory.clone(), origin_domain(config));
    Some(Arc::new(ConfiguredGeneric { name: name.into(), table }))
}

struct ConfiguredGeneric {
    name: Box<str>,
    table: GenericTable,
}

impl fmt::Debug for ConfiguredGeneric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfiguredGeneric").field("name", &self.name).finish_non_exhaustive()
    }
}

impl GenericRewriter for ConfiguredGeneric {
    fn rewrite<'a>(&'a self, envelope: &'a [Address], header: &'a [u8]) -> GenericFuture<'a> {
        Box::pin(async move {
            let GenericMessage { envelope, header, needs_smtputf8 } = self.table.rewrite(envelope, header).await?;
            Ok(GenericAddresses { envelope, header, needs_smtputf8 })
        })
    }
}
