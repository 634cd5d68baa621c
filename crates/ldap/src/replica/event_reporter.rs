//! Reports changes of a replica's state, each once.

use super::copy::RefreshSummary;
use lookup::{TableEvent, TableEventHandler};

/// Reports to the event handler of a table.
pub(super) struct EventReporter {
    table: Box<str>,
    events: TableEventHandler,
    agrees: bool,
    lost: bool,
    held: bool,
}

impl EventReporter {
    /// A reporter for this table.
    pub(super) fn new(table: &str, events: TableEventHandler) -> Self {
        EventReporter { table: table.into(), events, agrees: false, lost: false, held: false }
    }

    /// Reports the end of a refresh if the copy did not match the server before or removals are
    /// held back; not every poll.
    pub(super) fn refreshed(&mut self, refreshed: &RefreshSummary, entries: u64) {
        self.lost = false;
        self.held_back(refreshed.held_back, entries);
        if refreshed.held_back > 0 {
            self.agrees = false;
            return;
        }
        if !std::mem::replace(&mut self.agrees, true) {
            (self.events)(TableEvent::ReplicaLoaded {
                table: self.table.clone(),
                entries,
                changed: refreshed.applied.changed,
                removed: refreshed.applied.removed,
                took: refreshed.took,
            });
        }
    }

    /// Reports that removals are held back.
    pub(super) fn held_back(&mut self, removals: u64, entries: u64) {
        if !std::mem::replace(&mut self.held, removals > 0) && removals > 0 {
            (self.events)(TableEvent::RemovalsHeldBack { table: self.table.clone(), removals, entries });
        }
    }

    /// Makes held removals be reported again.
    pub(super) fn forget_held(&mut self) {
        self.held = false;
    }

    /// Reports that the server cannot be followed.
    pub(super) fn lost(&mut self, error: &str) {
        self.agrees = false;
        if !std::mem::replace(&mut self.lost, true) {
            (self.events)(TableEvent::ReplicaDisconnected { table: self.table.clone(), error: error.into() });
        }
    }

    /// Reports that the file had to be replaced.
    pub(super) fn damaged(&self, error: String) {
        (self.events)(TableEvent::Failed { table: self.table.clone(), error: error.into(), left_out: 0 });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::replica::store::AppliedCounts;

    #[test]
    fn each_change_is_told_once() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let to = told.clone();
        let name = |event: &TableEvent| match event {
            TableEvent::ReplicaLoaded { .. } => "loaded",
            TableEvent::RemovalsHeldBack { .. } => "held back",
            TableEvent::ReplicaDisconnected { .. } => "lost",
            _ => "other",
        };
        let mut reporter = EventReporter::new("t", Arc::new(move |event| to.lock().unwrap().push(name(&event))));
        let end = |held| RefreshSummary { applied: AppliedCounts::default(), took: Duration::ZERO, held_back: held };
        reporter.refreshed(&end(0), 10);
        reporter.refreshed(&end(0), 10);
        reporter.lost("x");
        reporter.lost("y");
        reporter.refreshed(&end(5), 10);
        reporter.refreshed(&end(5), 10);
        reporter.refreshed(&end(0), 10);
        reporter.held_back(1, 10);
        reporter.held_back(2, 10);
        assert_eq!(*told.lock().unwrap(), ["loaded", "lost", "held back", "loaded", "held back"]);
    }
}
