//! Group members: entries that a group names by DN, read level by level.
//!
//! Each DN is read once, so groups may contain each other. DNs that do not exist are skipped: they
//! often remain after entries are deleted. A group that is too deep or too large gets no answer
//! instead of a partial one.

use std::collections::HashSet;

use futures_util::StreamExt;

use super::SearchScope;
use super::batch_search::{BatchSearch, PIPELINE_MAX};
use super::connection::{SearchEntry, SearchRequest};
use super::key_result::KeyResult;
use super::search::{SearchEnd, SearchError};

impl BatchSearch<'_> {
    /// Adds the results of all members to `result`.
    pub(super) async fn follow_members(&self, result: &mut KeyResult) -> Result<(), SearchError> {
        let Some(members) = &self.config.members else { return Ok(()) };
        let reads_max = self.config.group_entries_max();
        let mut seen: HashSet<String> = result.dns.drain(..).map(|dn| dn.to_lowercase()).collect();
        let mut depth = 0;
        loop {
            let mut level = std::mem::take(&mut result.members);
            level.retain(|dn| seen.insert(dn.to_lowercase()));
            if level.is_empty() || result.has_error() {
                return Ok(());
            }
            depth += 1;
            if depth > members.depth_max {
                result.set_error(format!("groups nested more than {} deep", members.depth_max));
                return Ok(());
            }
            if seen.len() > reads_max {
                result.set_error(format!("group with more than {reads_max} entries"));
                return Ok(());
            }
            let mut reads = futures_util::stream::iter(&level).map(|dn| self.read_member(dn)).buffered(PIPELINE_MAX);
            while let Some(read) = reads.next().await {
                match read? {
                    Ok(Some(entry)) => result.add(&entry, self.config, self.schema),
                    Ok(None) => {}
                    Err(fault) => result.set_error(fault),
                }
            }
        }
    }

    /// Reads the entry with this DN. The inner error is the reason why that failed for this member
    /// only.
    async fn read_member(&self, dn: &str) -> Result<Result<Option<SearchEntry>, String>, SearchError> {
        let filter = super::search_filter::present("objectClass");
        let attributes = self.result_attributes();
        let search = SearchRequest {
            base: dn,
            scope: SearchScope::Base,
            filter: &filter,
            attributes: &attributes,
            controls: &[],
        };
        let mut found = None;
        let take = &mut |entry: &SearchEntry| {
            found = Some(entry.clone());
            true
        };
        let ending = self.searcher.run(&search, take).await?;
        Ok(match ending {
            SearchEnd::Complete => Ok(found),
            SearchEnd::NoBase(words) if words.starts_with("noSuchObject") => Ok(None),
            SearchEnd::NoBase(words) | SearchEnd::KeysRejected(words) => Err(format!("member '{dn}': {words}")),
        })
    }
}
