//! The files of results that `bench/run` writes can be read: those that are kept in bench/results, and
//! one with every field that it can write (`bench_run.json`, which tests/peers/test_bench_report.py makes
//! anew and compares).

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use compare::result::{FORMAT, Figure, ResultFile};

fn read(path: &Path) -> ResultFile {
    let text = fs::read_to_string(path).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn kept() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect()
}

/// What comparisons and runs refer to exists, and each round has the same systems.
fn check_references(path: &Path, file: &ResultFile) {
    let systems: BTreeSet<&str> = file.systems.iter().map(|system| system.name.as_str()).collect();
    let labels: BTreeSet<&str> = file.cases.iter().map(|case| case.label.as_str()).collect();
    assert_eq!(systems.len(), file.systems.len(), "{}: a system is there twice", path.display());
    assert_eq!(labels.len(), file.cases.len(), "{}: a case is there twice", path.display());
    for case in &file.cases {
        for round in &case.rounds {
            assert!(round.keys().eq(case.rounds[0].keys()), "{}: rounds differ", path.display());
            assert!(round.keys().all(|name| systems.contains(name.as_str())), "{}: {round:?}", path.display());
        }
    }
    for comparison in &file.comparisons {
        let named = [comparison.over.as_str(), comparison.under.as_str()].iter().all(|name| systems.contains(name));
        let under_case = comparison.under_case.as_deref().unwrap_or(&comparison.case);
        let labelled = labels.contains(comparison.case.as_str()) && labels.contains(under_case);
        assert!(named && labelled, "{}: {comparison:?}", path.display());
    }
}

#[test]
fn every_kept_result_is_a_file_of_results() {
    let paths = kept();
    assert!(paths.len() > 40, "{} results", paths.len());
    for path in &paths {
        let file = read(path);
        assert_eq!(file.format, FORMAT, "{}", path.display());
        assert_eq!(Some(file.name.as_str()), path.file_stem().and_then(|stem| stem.to_str()));
        assert!(!file.is_trial, "{}: a trial is no result", path.display());
        check_references(path, &file);
    }
}

#[test]
fn everything_that_bench_run_can_write_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench_run.json");
    let file = read(&path);
    check_references(&path, &file);
    assert_eq!(file.started, "2026-11-23T12:00:00Z");
    assert!(file.is_trial && file.question.is_some() && file.answer.is_some() && file.seconds.is_some());
    assert_eq!(file.case_name.as_deref(), Some("runners"));
    assert_eq!(file.cases.iter().map(|case| case.value).collect::<Vec<_>>(), [Some(400.0), Some(900.0)]);
    let run = &file.cases[1].rounds[0]["exim"];
    assert_eq!(run.figure(Figure::Rate), Some(100.0));
    assert_eq!(run.latency_seconds["99"], 0.02);
    assert_eq!(file.comparisons[1].under_case.as_deref(), Some("400"));
    assert_eq!((file.comparisons[1].is_met, file.comparisons[1].aim.as_deref()), (None, None));
    assert!(!file.checks.is_empty() && !file.charts.is_empty() && !file.tables.is_empty());
}
