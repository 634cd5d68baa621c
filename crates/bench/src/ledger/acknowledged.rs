//! A ledger in memory: its text with an index, about 60 MB for a million messages. Messages are
//! numbered in the order of runs, and by sequence number within a run.

use std::path::Path;

use super::RUN;
use crate::{BenchError, RunId};

/// All messages of a ledger.
#[derive(Debug, Default)]
pub struct AcknowledgedMessages {
    text: String,
    runs: Vec<LedgerRun>,
}

#[derive(Debug)]
struct LedgerRun {
    id: RunId,
    /// The number of messages in earlier runs.
    messages_before: usize,
    messages: Vec<LedgerMessage>,
}

#[derive(Clone, Copy, Debug)]
struct LedgerMessage {
    sequence: u64,
    /// The offset of its recipients in the text.
    recipients_at: usize,
}

impl AcknowledgedMessages {
    /// Reads a ledger, which may still be growing.
    pub fn read(path: &Path) -> Result<AcknowledgedMessages, BenchError> {
        let name = path.display();
        let mut text = std::fs::read(path).map_err(BenchError::system(format_args!("reading the ledger {name}")))?;
        text.truncate(memchr::memrchr(b'\n', &text).map_or(0, |last| last + 1));
        let text = String::from_utf8(text).map_err(|_| BenchError::Data(format!("the ledger {name} is not UTF-8")))?;
        AcknowledgedMessages::parse(text).map_err(|why| BenchError::Data(format!("the ledger {name}: {why}")))
    }

    /// Reads a ledger that must contain messages, since an empty one proves nothing.
    pub fn read_nonempty(path: &Path) -> Result<AcknowledgedMessages, BenchError> {
        let (name, acknowledged) = (path.display(), AcknowledgedMessages::read(path)?);
        if !acknowledged.has_runs() {
            return Err(BenchError::Data(format!("the ledger {name} has no run")));
        }
        if acknowledged.is_empty() {
            let why = "has no message that was answered 250, so nothing was proved";
            return Err(BenchError::Unavailable(format!("the ledger {name} {why}")));
        }
        Ok(acknowledged)
    }

    /// Checks that a ledger can be read later. The file may be missing, but its folder must exist.
    pub(crate) fn check_readable(path: &Path) -> Result<(), BenchError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        match path.try_exists() {
            Ok(false) if folder.is_none_or(Path::is_dir) => Ok(()),
            _ => AcknowledgedMessages::read(path).map(drop),
        }
    }

    /// Removes the first `runs` runs.
    pub(crate) fn skip_runs(mut self, runs: usize) -> AcknowledgedMessages {
        self.runs.drain(..runs.min(self.runs.len()));
        number_messages(&mut self.runs);
        self
    }

    /// Parses complete lines.
    pub(crate) fn parse(text: String) -> Result<AcknowledgedMessages, String> {
        let mut runs: Vec<LedgerRun> = Vec::new();
        let mut at = 0;
        for (number, line) in text.split_inclusive('\n').enumerate() {
            let fault = |why: &str| format!("line {}: {why}: {}", number + 1, line.trim_end());
            if let Some(id) = line.strip_prefix(RUN) {
                let id = id.trim_end().parse().map_err(|_| fault("not the id of a run"))?;
                runs.push(LedgerRun { id, messages_before: 0, messages: Vec::new() });
            } else {
                let run = runs.last_mut().ok_or_else(|| fault("no run before this line"))?;
                let (sequence, _) = line.split_once('\t').ok_or_else(|| fault("expected a number and recipients"))?;
                let recipients_at = at + sequence.len() + 1;
                let sequence = sequence.parse().map_err(|_| fault("not a number"))?;
                run.messages.push(LedgerMessage { sequence, recipients_at });
            }
            at += line.len();
        }
        sort_messages(&mut runs)?;
        number_messages(&mut runs);
        Ok(AcknowledgedMessages { text, runs })
    }

    /// The number of messages.
    pub fn len(&self) -> usize {
        self.runs.last().map_or(0, |run| run.messages_before + run.messages.len())
    }

    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there are any runs.
    pub fn has_runs(&self) -> bool {
        !self.runs.is_empty()
    }

    /// The number of runs.
    pub(crate) fn runs_count(&self) -> usize {
        self.runs.len()
    }

    /// Whether the ledger has this run, with or without messages.
    pub fn contains_run(&self, run: RunId) -> bool {
        self.runs.iter().any(|known| known.id == run)
    }

    /// The number of a message, from 0.
    pub fn index_of(&self, run: RunId, sequence: u64) -> Option<usize> {
        self.runs.iter().filter(|known| known.id == run).find_map(|run| {
            let place = run.messages.binary_search_by_key(&sequence, |message| message.sequence);
            place.ok().map(|place| run.messages_before + place)
        })
    }

    /// The message with this number, which is less than [`AcknowledgedMessages::len`].
    pub fn run_and_sequence(&self, number: usize) -> (RunId, u64) {
        let (run, message) = self.entry(number);
        (run, message.sequence)
    }

    /// The accepted recipients of the message with this number.
    pub fn recipients(&self, number: usize) -> impl Iterator<Item = &str> {
        let (_, message) = self.entry(number);
        let rest = &self.text[message.recipients_at..];
        rest[..rest.find('\n').unwrap_or(rest.len())].split('\t')
    }

    fn entry(&self, number: usize) -> (RunId, LedgerMessage) {
        let run = &self.runs[self.runs.partition_point(|run| run.messages_before + run.messages.len() <= number)];
        (run.id, run.messages[number - run.messages_before])
    }
}

fn sort_messages(runs: &mut [LedgerRun]) -> Result<(), String> {
    for run in runs {
        run.messages.shrink_to_fit();
        run.messages.sort_unstable_by_key(|message| message.sequence);
        if let Some(twice) = run.messages.windows(2).find(|pair| pair[0].sequence == pair[1].sequence) {
            return Err(format!("message {} of run {} appears twice", twice[0].sequence, run.id));
        }
    }
    Ok(())
}

fn number_messages(runs: &mut [LedgerRun]) {
    let mut before = 0;
    for run in runs {
        run.messages_before = before;
        before += run.messages.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_ledger_is_refused_with_its_line() {
        for (text, why) in [
            ("1\tu@x.test\n", "line 1: no run before this line: 1\tu@x.test"),
            ("run xyz\n", "line 1: not the id of a run: run xyz"),
            ("run 1\n1\n", "line 2: expected a number and recipients: 1"),
            ("run 1\nx\tu@x.test\n", "line 2: not a number: x\tu@x.test"),
            ("run 1\n1\ta@x\n1\tb@x\n", "message 1 of run 0000000000000001 appears twice"),
        ] {
            assert_eq!(AcknowledgedMessages::parse(text.to_owned()).unwrap_err(), why);
        }
    }

    #[test]
    fn a_run_without_messages_is_skipped() {
        let ledger = AcknowledgedMessages::parse("run 1\nrun 2\n5\ta@x\trun b@x\nrun 3\n".to_owned()).unwrap();
        assert_eq!((ledger.len(), ledger.run_and_sequence(0)), (1, (RunId(2), 5)));
        assert_eq!(ledger.recipients(0).collect::<Vec<_>>(), ["a@x", "run b@x"]);
        assert!(ledger.contains_run(RunId(1)) && !ledger.contains_run(RunId(4)));
        assert!(AcknowledgedMessages::parse(String::new()).unwrap().is_empty());
    }

    #[test]
    fn earlier_runs_are_left_out() {
        let text = "run 1\n0\ta@x\n1\ta@x\nrun 2\n5\tb@x\nrun 3\n0\tc@x\n";
        let ledger = AcknowledgedMessages::parse(text.to_owned()).unwrap();
        assert_eq!(ledger.runs_count(), 3);
        let ledger = ledger.skip_runs(1);
        assert_eq!(
            (ledger.len(), ledger.run_and_sequence(0), ledger.run_and_sequence(1)),
            (2, (RunId(2), 5), (RunId(3), 0))
        );
        assert_eq!(ledger.recipients(1).collect::<Vec<_>>(), ["c@x"]);
        assert_eq!((ledger.index_of(RunId(3), 0), ledger.index_of(RunId(1), 0)), (Some(1), None));
        assert!(!ledger.skip_runs(7).has_runs());
    }

    #[test]
    fn a_ledger_without_a_run_or_without_a_message_proves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let evidence = |text: &str| {
            let path = folder.path().join("ledger");
            std::fs::write(&path, text).unwrap();
            AcknowledgedMessages::read_nonempty(&path)
        };
        assert!(matches!(evidence(""), Err(BenchError::Data(_))));
        assert!(
            matches!(evidence("run 1\n"), Err(BenchError::Unavailable(why)) if why.ends_with("nothing was proved"))
        );
        assert_eq!(evidence("run 1\n0\ta@x\n").unwrap().len(), 1);
    }

    #[test]
    fn a_ledger_may_be_missing_if_its_folder_exists() {
        let folder = tempfile::tempdir().unwrap();
        let check = |name: &str| AcknowledgedMessages::check_readable(&folder.path().join(name));
        assert!(check("later").is_ok());
        assert!(matches!(check("nowhere/later"), Err(BenchError::System { .. })));
        assert!(matches!(check("."), Err(BenchError::System { .. })));
        std::fs::write(folder.path().join("none"), "no run\n").unwrap();
        assert!(matches!(check("none"), Err(BenchError::Data(_))));
    }
}
