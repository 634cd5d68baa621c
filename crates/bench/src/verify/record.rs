//! The record of a sink: a line for each copy, `RUN SEQUENCE sound|damaged RECIPIENT`, or
//! `- - foreign RECIPIENT` for one without a stamp. An incomplete last line is ignored, since it
//! may still be written. Any other line in a different form, or longer than [`LINE_OCTETS_MAX`], is
//! a fault.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;

use super::{Comparer, CopyPlace, FoundCopy};
use crate::{BenchError, StampCheckResult};

/// Bytes of a line. A sink limits the command with the recipient to half of it.
const LINE_OCTETS_MAX: u64 = 128 << 10;

/// Appends the line of a copy.
pub(crate) fn write_line(seen: Option<StampCheckResult>, recipient: &str, lines: &mut Vec<u8>) {
    // Writing to a Vec cannot fail.
    let _ = match seen {
        Some(StampCheckResult { stamp, sound }) => {
            let state = if sound { "sound" } else { "damaged" };
            writeln!(lines, "{} {} {state} {recipient}", stamp.run, stamp.sequence)
        }
        None => writeln!(lines, "- - foreign {recipient}"),
    };
}

/// Finds every copy in the record.
pub(super) fn scan(path: &Path, comparer: &mut Comparer<'_>) -> Result<(), BenchError> {
    let what = format!("reading the record {}", path.display());
    let mut file = BufReader::new(File::open(path).map_err(BenchError::system(&what))?);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let octets =
            file.by_ref().take(LINE_OCTETS_MAX).read_until(b'\n', &mut line).map_err(BenchError::system(&what))?;
        let Some((b'\n', line)) = line.split_last() else {
            if octets as u64 == LINE_OCTETS_MAX {
                return Err(BenchError::Data(format!("{what}: line {number} is longer than {LINE_OCTETS_MAX} bytes")));
            }
            break;
        };
        let text = str::from_utf8(line).ok();
        let kept = text.and_then(|line| add_line(line, comparer));
        kept.ok_or_else(|| BenchError::Data(format!("{what}: line {number} is invalid")))?;
    }
    Ok(())
}

fn add_line(line: &str, comparer: &mut Comparer<'_>) -> Option<()> {
    let mut words = line.splitn(4, ' ');
    let (run, sequence, state, recipient) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let sound = match state {
        "sound" => true,
        "damaged" => false,
        "foreign" => {
            comparer.add_foreign();
            return Some(());
        }
        _ => return None,
    };
    let place = CopyPlace::recipient(recipient);
    let found = FoundCopy { run: run.parse().ok()?, sequence: sequence.parse().ok()?, sound, place };
    comparer.add(found, recipient);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::{CopyLocation, compare_until_complete};
    use crate::{AcknowledgedMessages, MessageStamp, RunId};

    fn compare(record: &[u8]) -> Result<super::super::Comparison, BenchError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        std::fs::write(&path, record).unwrap();
        let acknowledged = AcknowledgedMessages::parse("run 1\n0\ta@x.test\tb@x.test\n".into()).unwrap();
        compare_until_complete(&acknowledged, &CopyLocation::Record(path), Default::default())
    }

    #[test]
    fn a_record_written_by_a_sink_is_read() {
        let stamp = MessageStamp::new(RunId(1), 0, []);
        let mut record = Vec::new();
        write_line(Some(StampCheckResult { stamp, sound: true }), "a@x.test", &mut record);
        write_line(Some(StampCheckResult { stamp, sound: false }), "\"b b\"@x.test", &mut record);
        write_line(None, "a@x.test", &mut record);
        record.extend_from_slice(b"0000000000000001 0 sound b@x");
        let held = compare(&record).unwrap();
        assert_eq!((held.found, held.lost, held.damaged, held.foreign), (1, 1, 1, 1));
        assert_eq!(held.examples.damaged[0].at, "\"b b\"@x.test");
    }

    #[test]
    fn an_invalid_record_is_refused_with_its_line() {
        for line in ["1 0 sound", "1 x sound a@x.test", "1 0 odd a@x.test", ""] {
            let fault = compare(format!("1 0 sound a@x.test\n{line}\n").as_bytes()).unwrap_err();
            assert!(fault.to_string().ends_with("line 2 is invalid"), "{line}: {fault}");
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let long = "x".repeat(LINE_OCTETS_MAX as usize);
        let fault = compare(format!("1 0 sound {long}").as_bytes()).unwrap_err();
        assert!(fault.to_string().contains("line 1 is longer than"), "{fault}");
    }
}
