//! The processes that this process started, however often they fork.
//!
//! This process becomes a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER), so it is the parent of every orphaned
//! descendant. A daemon that leaves its session and process group is still found through the parent ids in /proc.
//! Nobody else reaps orphans then, so they are reaped here.

use std::collections::HashSet;
use std::io;

use rustix::process::{Pid, WaitOptions, set_child_subreaper, waitpid};

use crate::process_table::{ProcessIdentity, ProcessStat, all_processes, trees};

/// All descendants of this process, except those that were running before.
#[derive(Debug)]
pub struct Descendants {
    /// They and their children are left alone.
    preexisting: HashSet<ProcessIdentity>,
}

impl Descendants {
    /// Becomes a subreaper. Every descendant that starts from now on is found.
    ///
    /// # Errors
    ///
    /// The kernel has no subreapers, or /proc cannot be read.
    pub fn watch() -> io::Result<Descendants> {
        become_subreaper()?;
        let mut descendants = Descendants { preexisting: HashSet::new() };
        descendants.preexisting = descendants.running()?.into_iter().collect();
        Ok(descendants)
    }

    /// Those that run, parents before children. Reaps all dead children of this process: nobody else may wait for one.
    ///
    /// # Errors
    ///
    /// /proc cannot be read.
    pub fn running(&self) -> io::Result<Vec<ProcessIdentity>> {
        let all = all_processes()?;
        let this = own_id();
        all.iter().filter(|process| process.is_dead && process.parent == this).for_each(reap);
        Ok(descendants(this, all, &self.preexisting))
    }
}

/// Orphans get this process as their parent from now on.
///
/// # Errors
///
/// The kernel is older than 3.4.
pub(crate) fn become_subreaper() -> io::Result<()> {
    Ok(set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// The programs that form one group.
#[derive(Debug, Default)]
pub(crate) struct Family<'a> {
    /// They count with their descendants and, if this process started them, with their process groups.
    pub(crate) roots: &'a [ProcessIdentity],
    /// If this is set, all orphans count that have a session of their own, with their descendants, except these.
    pub(crate) orphans_except: Option<&'a HashSet<ProcessIdentity>>,
}

impl Family<'_> {
    /// The members that run. Reaps dead orphans.
    pub(crate) fn running(&self) -> Vec<ProcessIdentity> {
        let all = all_processes().unwrap_or_default();
        let parent = Parent::this(&all);
        all.iter().filter(|process| process.is_dead && parent.has_adopted(process)).for_each(reap);
        self.members(all, parent)
    }

    fn members(&self, all: Vec<ProcessStat>, parent: Parent) -> Vec<ProcessIdentity> {
        let own: HashSet<ProcessIdentity> = descendants(parent.id, all.clone(), &HashSet::new()).into_iter().collect();
        let is_root = |process: &ProcessStat| self.roots.contains(&process.identity);
        // A stranger may lead a group with the id of a root that has ended, but is no descendant.
        let is_in_group = |process: &ProcessStat| {
            own.contains(&process.identity) && self.roots.iter().any(|root| root.id == process.group)
        };
        let is_orphan = |process: &ProcessStat| {
            let is_new = |except: &HashSet<ProcessIdentity>| !except.contains(&process.identity);
            parent.has_adopted(process) && self.orphans_except.is_some_and(is_new)
        };
        let seeds = all.iter().filter(|process| is_root(process) || is_in_group(process) || is_orphan(process));
        let seeds: Vec<ProcessIdentity> = seeds.map(|process| process.identity).collect();
        trees(&all, seeds)
    }
}

/// The orphans with a session of their own that this process has adopted so far.
pub(crate) fn adopted() -> HashSet<ProcessIdentity> {
    let all = all_processes().unwrap_or_default();
    let parent = Parent::this(&all);
    all.iter().filter(|process| parent.has_adopted(process)).map(|process| process.identity).collect()
}

/// The process that adopts orphans.
#[derive(Clone, Copy, Debug)]
struct Parent {
    id: i32,
    session: i32,
}

impl Parent {
    /// The session is that of /proc, as for all others: 0 if its leader is outside of the PID namespace, for which
    /// getsid(2) has no answer.
    fn this(all: &[ProcessStat]) -> Parent {
        let id = own_id();
        let this = all.iter().find(|process| process.identity.id == id);
        Parent { id, session: this.map_or(0, |process| process.session) }
    }

    /// A child that was started here leads a process group, so it cannot have made a session.
    fn has_adopted(self, process: &ProcessStat) -> bool {
        process.parent == self.id && process.session != self.session
    }
}

/// Running descendants, parents before children, without the preexisting ones and their children.
fn descendants(
    ancestor: i32,
    mut all: Vec<ProcessStat>,
    preexisting: &HashSet<ProcessIdentity>,
) -> Vec<ProcessIdentity> {
    all.retain(|process| !preexisting.contains(&process.identity));
    let children = all.iter().filter(|process| process.parent == ancestor).map(|process| process.identity);
    trees(&all, children.collect())
}

fn own_id() -> i32 {
    std::process::id().cast_signed()
}

fn reap(process: &ProcessStat) {
    // The process may have been reaped already.
    let _ = waitpid(Pid::from_raw(process.identity.id), WaitOptions::NOHANG);
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIS: Parent = Parent { id: 1, session: 1 };

    /// In the process group of the last argument, and in the session of this process.
    fn process(id: i32, parent: i32, group: i32) -> ProcessStat {
        ProcessStat { parent, group, session: THIS.session, ..ProcessStat::running(id, 22) }
    }

    fn ids(found: &[ProcessIdentity]) -> Vec<i32> {
        found.iter().map(|process| process.id).collect()
    }

    #[test]
    fn preexisting_processes_are_left_out_with_their_children_unless_their_id_was_reused() {
        let all = vec![process(2, 1, 2), process(3, 2, 2), process(4, 1, 4), process(5, 4, 4)];
        let found = |strangers| ids(&descendants(1, all.clone(), &strangers));
        assert_eq!(found(HashSet::from([all[0].identity])), [4, 5]);
        assert_eq!(found(HashSet::from([ProcessStat::running(2, 1).identity])).len(), 4);
    }

    #[test]
    fn a_stranger_that_leads_a_group_with_the_id_of_a_dead_root_is_no_member() {
        let roots = [process(7, 1, 7).identity];
        let family = Family { roots: &roots, orphans_except: None };
        let orphan = process(8, 1, 7);
        let stranger = process(7, 99, 7);
        let stranger = ProcessStat { identity: ProcessStat::running(7, 23).identity, ..stranger };
        assert_eq!(ids(&family.members(vec![orphan, process(9, 8, 9), stranger], THIS)), [8, 9]);
    }

    #[test]
    fn orphans_with_a_session_are_members_if_they_are_wanted_and_new() {
        let daemon = |id: i32| ProcessStat { session: id, ..process(id, 1, id) };
        let all = || vec![process(7, 1, 7), daemon(20), process(21, 20, 20), daemon(30), process(40, 1, 40)];
        let roots = [process(7, 1, 7).identity];
        let old = HashSet::from([daemon(30).identity]);
        let members = |orphans_except| ids(&Family { roots: &roots, orphans_except }.members(all(), THIS));
        assert_eq!(members(Some(&old)), [7, 20, 21]);
        assert_eq!(members(None), [7]);
    }

    #[test]
    fn a_root_that_was_not_started_here_is_a_member_with_its_descendants() {
        let roots = [process(7, 99, 7).identity];
        let family = Family { roots: &roots, orphans_except: None };
        assert_eq!(ids(&family.members(vec![process(7, 99, 7), process(8, 7, 8), process(9, 99, 7)], THIS)), [7, 8]);
    }
}
