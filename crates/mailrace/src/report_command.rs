//! `mailrace bench report`: results of measurements as a page, and compared with earlier ones.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use mail::printable;

use crate::cli::BenchReportArgs;
use crate::exit::{self, ExitError};
use crate::output::{output, terminal_width};
use compare::against::{Against, ChangeVerdict};
use compare::result::ResultFile;
use compare::{against_text, page, result_files};

/// Writes the page, and prints what changed. A figure that is worse than before is an error with the exit code 1.
///
/// # Errors
///
/// A file cannot be read or is not one of results, no result has an earlier one, or the page cannot be written.
pub fn report(options: &BenchReportArgs) -> anyhow::Result<()> {
    refuse_other_file(&options.output)?;
    let results = result_files::load_all(&options.results)?;
    let against = options.against.as_deref().map(|old| compare_with(&results, old)).transpose()?;
    let text = page::render(&results, options.title.as_deref(), against.as_ref());
    fs::write(&options.output, text).with_context(|| format!("writing {}", options.output.display()))?;
    let count = results.len();
    let noun = if count == 1 { "result" } else { "results" };
    writeln!(output(), "{}: {count} {noun}", options.output.display())?;
    against.map_or(Ok(()), |against| print_changes(&against, &results))
}

fn compare_with(results: &[ResultFile], old: &Path) -> anyhow::Result<Against> {
    let old_results = result_files::load_all(&[PathBuf::from(old)])?;
    let against = Against::new(results, &old_results);
    if against.is_empty() {
        let names = |files: &[ResultFile]| files.iter().map(|file| file.name.as_str()).collect::<Vec<_>>().join(", ");
        let (here, there) = (names(results), names(&old_results));
        let text = format!(
            "{}: nothing to compare, since only results of the same name are compared: {here} (new), {there} (old)",
            old.display()
        );
        return Err(ExitError { code: exit::DATA, text }.into());
    }
    Ok(against)
}

fn print_changes(against: &Against, results: &[ResultFile]) -> anyhow::Result<()> {
    let text = against_text(against, results, terminal_width());
    let lines: String = text.lines().map(|line| format!("{}\n", printable(line))).collect();
    output().write_all(lines.as_bytes())?;
    match against.count(ChangeVerdict::Worse) {
        0 => Ok(()),
        _ => Err(ExitError { code: exit::NEGATIVE, text: "some figures are worse than before".into() }.into()),
    }
}

/// A wrong --output must not cost a file of results.
fn refuse_other_file(path: &Path) -> anyhow::Result<()> {
    if !path.is_file() {
        return Ok(());
    }
    let mut start = Vec::new();
    let length = page::PAGE_START.len() as u64;
    let read = fs::File::open(path).and_then(|file| file.take(length).read_to_end(&mut start));
    read.with_context(|| format!("reading {}", path.display()))?;
    if start.is_empty() || start == page::PAGE_START.as_bytes() {
        return Ok(());
    }
    let text = format!("{} exists and is no page of HTML; give another --output", path.display());
    Err(ExitError { code: exit::USAGE, text }.into())
}
