//! Reads and writes files of results, and finds them in folders.
//!
//! A file that is unreadable, not JSON, of another format or not complete is an error that names the file and, where
//! there is one, the line: nothing is left out silently. A file is written under another name first, so that one with
//! the right name is whole.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::result::{FORMAT, ResultFile};

/// Why files of results cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ResultFileError {
    /// The system refused to read or write.
    #[error("{what} {}", path.display())]
    System {
        /// What was attempted: `reading`.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        #[source]
        error: io::Error,
    },
    /// It is not JSON, or not what a file of results has.
    #[error("{}:{line}: not a file of results: {fault}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// From 1; 0 before the first.
        line: usize,
        /// What is wrong there.
        fault: String,
    },
    /// It was written by another version.
    #[error(
        "{}:1: results of format {found}, but this version reads format {FORMAT}: use the mailrace that wrote it",
        path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// The format of the file.
        found: u64,
    },
    /// There is no `*.json` in the folder.
    #[error("{}: no files of results (*.json) in this folder", path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
    /// What would be replaced is something else.
    #[error("{}: not replaced, since it is no file of results of {name}: give another --output", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// The scenario.
        name: String,
    },
    /// What should be written has a figure that JSON cannot hold.
    #[error("{}: not written, because a figure is not a finite number", path.display())]
    NotFinite {
        /// The file.
        path: PathBuf,
    },
}

impl ResultFileError {
    fn system(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ResultFileError {
        move |error| ResultFileError::System { what, path: path.to_owned(), error }
    }

    fn invalid(path: &Path, error: &serde_json::Error) -> ResultFileError {
        let text = error.to_string();
        let fault = text.rsplit_once(" at line ").map_or(text.as_str(), |(fault, _)| fault).to_owned();
        ResultFileError::Invalid { path: path.to_owned(), line: error.line(), fault }
    }
}

/// Reads all files that the paths name, in this order; of a folder, all `*.json` in it by name.
///
/// # Errors
///
/// A path or file cannot be used; see [`ResultFileError`].
pub fn load_all(paths: &[PathBuf]) -> Result<Vec<ResultFile>, ResultFileError> {
    let mut results = Vec::new();
    for path in paths {
        for file in find(path)? {
            results.push(load(&file)?);
        }
    }
    Ok(results)
}

/// The path itself, or, if it is a folder, all `*.json` in it by name, without those in folders below it.
///
/// # Errors
///
/// The folder cannot be read, or has none.
pub fn find(path: &Path) -> Result<Vec<PathBuf>, ResultFileError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let failed = || ResultFileError::system("reading the folder", path);
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(failed())? {
        let file = entry.map_err(failed())?.path();
        if file.extension().is_some_and(|extension| extension == "json") && file.is_file() {
            found.push(file);
        }
    }
    found.sort();
    if found.is_empty() { Err(ResultFileError::Empty { path: path.to_owned() }) } else { Ok(found) }
}

/// Reads a file.
///
/// # Errors
///
/// It cannot be read, or is not a file of results of this format.
pub fn load(path: &Path) -> Result<ResultFile, ResultFileError> {
    /// The field that every format has.
    #[derive(Deserialize)]
    struct Version {
        format: u64,
    }
    let bytes = fs::read(path).map_err(ResultFileError::system("reading", path))?;
    let invalid = |error| ResultFileError::invalid(path, &error);
    let Version { format } = serde_json::from_slice(&bytes).map_err(invalid)?;
    if format != u64::from(FORMAT) {
        return Err(ResultFileError::Format { path: path.to_owned(), found: format });
    }
    serde_json::from_slice(&bytes).map_err(invalid)
}

/// Checks that the results of this scenario would replace no file but earlier results of it.
///
/// # Errors
///
/// The file is there, and something else.
pub fn check_replaceable(path: &Path, name: &str) -> Result<(), ResultFileError> {
    let is_earlier_result = || load(path).is_ok_and(|file| file.name == name);
    match !path.exists() || is_earlier_result() {
        true => Ok(()),
        false => Err(ResultFileError::Other { path: path.to_owned(), name: name.to_owned() }),
    }
}

/// Writes a file, and replaces one of this name.
///
/// # Errors
///
/// It cannot be written, or has a figure that is not finite.
pub fn save(path: &Path, file: &ResultFile) -> Result<(), ResultFileError> {
    let failed = |error: io::Error| ResultFileError::system("writing", path)(error);
    let text = serde_json::to_string_pretty(file).map_err(|error| failed(error.into()))? + "\n";
    // serde_json writes null for what is not finite; what is absent has no field.
    if has_null(&serde_json::to_value(file).map_err(|error| failed(error.into()))?) {
        return Err(ResultFileError::NotFinite { path: path.to_owned() });
    }
    let unfinished = path.with_extension("json.unfinished");
    fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, path)).map_err(failed)
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.iter().any(has_null),
        Value::Object(fields) => fields.values().any(has_null),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"{
  "format": 1, "name": "n", "title": "t", "command": "c", "started": "s", "machine": [], "unit": "message",
  "systems": [], "cases": [{"label": "", "rounds": [{"a": {"count": 1, "seconds": 2.0, "cpu_seconds": 0.5}}]}]
}"#;

    fn error_of(text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        fs::write(&path, text).unwrap();
        load(&path).unwrap_err().to_string().replace(&format!("{}/", folder.path().display()), "")
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
        assert_eq!(error_of("{\n\"format\": 1,\n]"), "x.json:3: not a file of results: key must be a string");
        let unknown = SMALL.replace("\"systems\"", "\"system\"");
        assert!(error_of(&unknown).starts_with("x.json:3: not a file of results: unknown field `system`"));
        let old = "x.json:1: results of format 7, but this version reads format 1: use the mailrace that wrote it";
        assert_eq!(error_of(r#"{"format": 7, "other": []}"#), old);
        assert_eq!(error_of("{}"), "x.json:1: not a file of results: missing field `format`");
        assert_eq!(error_of(""), "x.json:1: not a file of results: EOF while parsing a value");
    }

    #[test]
    fn a_missing_file_and_an_empty_folder_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let missing = load(&folder.path().join("y.json")).unwrap_err().to_string();
        assert!(missing.starts_with("reading ") && missing.ends_with("/y.json"), "{missing}");
        let empty = load_all(&[folder.path().to_owned()]).unwrap_err().to_string();
        assert!(empty.ends_with("no files of results (*.json) in this folder"), "{empty}");
    }

    #[test]
    fn a_folder_is_read_by_name_and_what_is_saved_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut file: ResultFile = serde_json::from_str(SMALL).unwrap();
        for name in ["b", "a"] {
            file.name = name.to_owned();
            save(&folder.path().join(format!("{name}.json")), &file).unwrap();
        }
        fs::write(folder.path().join("a.md"), "no result").unwrap();
        let loaded = load_all(&[folder.path().to_owned()]).unwrap();
        assert_eq!(loaded.iter().map(|file| file.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(loaded[0], file);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn only_results_of_the_same_scenario_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n.json");
        assert!(check_replaceable(&path, "n").is_ok());
        fs::write(&path, SMALL).unwrap();
        assert!(check_replaceable(&path, "n").is_ok());
        assert!(check_replaceable(&path, "m").is_err());
        fs::write(&path, "{}").unwrap();
        assert!(check_replaceable(&path, "n").unwrap_err().to_string().contains("give another --output"));
    }

    #[test]
    fn figures_that_json_cannot_hold_are_not_saved() {
        let folder = tempfile::tempdir().unwrap();
        let mut file: ResultFile = serde_json::from_str(SMALL).unwrap();
        file.seconds = Some(1.0);
        let path = folder.path().join("n.json");
        save(&path, &file).unwrap();
        file.cases[0].value = Some(f64::NAN);
        let before = fs::read(&path).unwrap();
        assert!(save(&path, &file).is_err());
        assert_eq!(fs::read(&path).unwrap(), before);
    }
}
