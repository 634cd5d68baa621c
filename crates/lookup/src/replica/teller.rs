//! Reports changes of a replica's state, each once.

use super::copy::Refreshed;
use crate::{Event, Events};

/// Reports to the event handler of a table.
pub(super) struct Teller {
    table: Box<str>,
    events: Events,
    agrees: bool,
    lost: bool,
    held: bool,
}

impl Teller {
    /// A reporter for this table.
    pub(super) fn new(table: &str, events: Events) -> Self {
        Teller { table: table.into(), events, agrees: false, lost: false, held: false }
    }

    /// Reports the end of a refresh if the copy did not match the server before or removals are
    /// held back; not every poll.
    pub(super) fn refreshed(&mut self, refreshed: &Refreshed, entries: u64) {
        self.lost = false;
        self.held(refreshed.held, entries);
        if refreshed.held > 0 {
            self.agrees = false;
            return;
        }
        if !std::mem::replace(&mut self.agrees, true) {
            (self.events)(Event::Loaded {
                table: self.table.clone(),
                entries,
                changed: refreshed.applied.changed,
                removed: refreshed.applied.removed,
                took: refreshed.took,
            });
        }
    }

    /// Reports that removals are held back.
    pub(super) fn held(&mut self, removals: u64, entries: u64) {
        if !std::mem::replace(&mut self.held, removals > 0) && removals > 0 {
            (self.events)(Event::HeldBack { table: self.table.clone(), removals, entries });
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
            (self.events)(Event::Lost { table: self.table.clone(), error: error.into() });
        }
    }

    /// Reports that the file had to be replaced.
    pub(super) fn damaged(&self, error: String) {
        (self.events)(Event::Failed { table: self.table.clone(), error: error.into(), left_out: 0 });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::replica::store::Applied;

    #[test]
    fn each_change_is_told_once() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let to = told.clone();
        let name = |event: &Event| match event {
            Event::Loaded { .. } => "loaded",
            Event::HeldBack { .. } => "held back",
            Event::Lost { .. } => "lost",
            _ => "other",
        };
        let mut teller = Teller::new("t", Arc::new(move |event| to.lock().unwrap().push(name(&event))));
        let end = |held| Refreshed { applied: Applied::default(), took: Duration::ZERO, held };
        teller.refreshed(&end(0), 10);
        teller.refreshed(&end(0), 10);
        teller.lost("x");
        teller.lost("y");
        teller.refreshed(&end(5), 10);
        teller.refreshed(&end(5), 10);
        teller.refreshed(&end(0), 10);
        teller.held(1, 10);
        teller.held(2, 10);
        assert_eq!(*told.lock().unwrap(), ["loaded", "lost", "held back", "loaded", "held back"]);
    }
}
