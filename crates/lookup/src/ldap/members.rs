//! Group members: entries that a group names by DN, read level by level.
//!
//! Each DN is read once, so groups may contain each other. DNs that do not exist are skipped: they
//! often remain after entries are deleted. A group that is too deep or too large gets no answer
//! instead of a partial one.

use std::collections::HashSet;

use futures_util::StreamExt;

use super::Scope;
use super::ask::{Asking, PIPELINE};
use super::connection::{Entry, Search};
use super::search::{Ending, Trouble};
use super::slot::Slot;

impl Asking<'_> {
    /// Adds the results of all members to `slot`.
    pub(super) async fn follow_members(&self, slot: &mut Slot) -> Result<(), Trouble> {
        let Some(members) = &self.config.members else { return Ok(()) };
        let reads_max = self.config.reads_max();
        let mut seen: HashSet<String> = slot.dns.drain(..).map(|dn| dn.to_lowercase()).collect();
        let mut depth = 0;
        loop {
            let mut level = std::mem::take(&mut slot.members);
            level.retain(|dn| seen.insert(dn.to_lowercase()));
            if level.is_empty() || slot.is_faulty() {
                return Ok(());
            }
            depth += 1;
            if depth > members.depth_max {
                slot.set_fault(format!("groups nested more than {} deep", members.depth_max));
                return Ok(());
            }
            if seen.len() > reads_max {
                slot.set_fault(format!("group with more than {reads_max} entries"));
                return Ok(());
            }
            let mut reads = futures_util::stream::iter(&level).map(|dn| self.read(dn)).buffered(PIPELINE);
            while let Some(read) = reads.next().await {
                match read? {
                    Ok(Some(entry)) => slot.add(&entry, self.config, self.schema),
                    Ok(None) => {}
                    Err(fault) => slot.set_fault(fault),
                }
            }
        }
    }

    /// Reads the entry with this DN. The inner error is the reason why that failed for this member
    /// only.
    async fn read(&self, dn: &str) -> Result<Result<Option<Entry>, String>, Trouble> {
        let filter = super::filter::present("objectClass");
        let attributes = self.result_attributes();
        let search = Search { base: dn, scope: Scope::Base, filter: &filter, attributes: &attributes, controls: &[] };
        let mut found = None;
        let take = &mut |entry: &Entry| {
            found = Some(entry.clone());
            true
        };
        let ending = self.searcher.run(&search, take).await?;
        Ok(match ending {
            Ending::Complete => Ok(found),
            Ending::NoBase(words) if words.starts_with("noSuchObject") => Ok(None),
            Ending::NoBase(words) | Ending::Keys(words) => Err(format!("member '{dn}': {words}")),
        })
    }
}
