//! What an action on recipients has done, as the control socket says it and as nodes of a cluster say it to one
//! another: a line with a number of recipients, and a second one with the number of those that were left out, if
//! there are any.

use std::fmt;
use std::io::{self, Write};
use std::num::ParseIntError;
use std::str::FromStr;

use crate::text::plural;

/// What an action has done that is not left unfinished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActReport {
    /// Recipients whose outcome is recorded; in a dry run, those that would be picked.
    pub recipients: usize,
    /// Recipients that were left out since they are in an attempt.
    pub in_attempt: usize,
}

impl ActReport {
    /// Writes the lines.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", self.recipients)?;
        match self.in_attempt {
            0 => Ok(()),
            in_attempt => writeln!(out, "{in_attempt}"),
        }
    }
}

impl FromStr for ActReport {
    type Err = ParseIntError;

    fn from_str(answer: &str) -> Result<Self, ParseIntError> {
        let mut lines = answer.lines();
        let recipients = lines.next().unwrap_or_default().parse()?;
        Ok(ActReport { recipients, in_attempt: lines.next().map_or(Ok(0), str::parse)? })
    }
}

/// The text for the log.
impl fmt::Display for ActReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plural(self.recipients, "recipient"))?;
        match self.in_attempt {
            0 => Ok(()),
            in_attempt => write!(f, "; {in_attempt} left out: in an attempt"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_written() {
        for (recipients, in_attempt, lines, logged) in
            [(3, 0, "3\n", "3 recipients"), (1, 2, "1\n2\n", "1 recipient; 2 left out: in an attempt")]
        {
            let (report, mut out) = (ActReport { recipients, in_attempt }, Vec::new());
            report.write(&mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), lines);
            assert_eq!((lines.parse(), &*report.to_string()), (Ok(report), logged));
        }
        for text in ["", "x\n", "1\nx\n"] {
            assert!(text.parse::<ActReport>().is_err(), "{text:?}");
        }
    }
}
