//! Compares the imports of every crate with the table in ARCHITECTURE.md.
//!
//! It checks what a crate declares (`[dependencies]`) and what its sources use (`use` and paths),
//! in both directions: a crate without a row and a row without a crate are errors too. The columns
//! about sockets and files are checked against the crates and modules that open them, for rows that
//! say "no".

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A row of the table.
#[derive(Debug, PartialEq)]
struct CrateRow {
    /// None: all of them.
    may_import: Option<BTreeSet<String>>,
    sockets: bool,
    files: bool,
}

type CrateTable = BTreeMap<String, CrateRow>;

const SOCKETS: [&str; 6] = ["tokio", "socket2", "TcpStream", "TcpListener", "UdpSocket", "UnixStream"];
const FILES: [&str; 4] = ["std::fs", "rustix::fs", "File::", "OpenOptions"];

#[test]
fn every_crate_imports_only_what_the_table_allows() {
    let (table, folders) = (table(), crate_folders());
    let named: Vec<_> = table.keys().collect();
    assert_eq!(named, folders.keys().collect::<Vec<_>>(), "rows of the table and folders");
    let errors: Vec<_> = folders.iter().flat_map(|(name, folder)| violations(&table, name, folder)).collect();
    assert!(errors.is_empty(), "\n{}", errors.join("\n"));
}

#[test]
fn the_checker_sees_what_it_is_there_to_see() {
    let table = parse(
        "| crate | may import | async, sockets | files |\n|---|---|---|---|\n\
         | mail | nothing | no | a handle only |\n| queue | mail | no | no |\n| spool | mail | yes | yes |\n\nend",
    );
    let check = |manifest: &str, source: &str| crate_violations(&table, "queue", manifest, &[("q.rs", source)]).len();
    let clean = "[dependencies]\nmail.workspace = true\n[dev-dependencies]\nsim.workspace = true\n";
    assert_eq!(check(clean, "use mail::Reply;\nuse std::net::IpAddr;\nuse crate::spool::X; // spool::Y"), 0);
    assert_eq!(check("[dependencies]\nspool.workspace = true\n", ""), 1);
    assert_eq!(check("[dependencies]\nspool = { workspace = true }\n", ""), 1);
    assert_eq!(check("[dependencies.spool]\nworkspace = true\n", ""), 1);
    assert_eq!(check("[dependencies]\nlog = { package = \"spool\", path = \"../spool\" }\n", ""), 1);
    assert_eq!(check("[dependencies]\ntokio.workspace = true\n", ""), 1);
    assert_eq!(check(clean, "use spool::Spool;"), 1);
    assert_eq!(check(clean, "fn f(x: &spool::Spool) {}"), 1);
    assert_eq!(check(clean, "use {mail::Reply, spool::Spool};"), 1);
    assert_eq!(check(clean, "fn f() { std::fs::read(\"x\"); }"), 1);
    assert_eq!(check(clean, "use std::net::TcpStream;"), 1);
    assert_eq!(table["queue"].may_import, Some(BTreeSet::from(["mail".to_owned()])));
}

fn table() -> CrateTable {
    let path = root().join("ARCHITECTURE.md");
    parse(&fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

fn parse(text: &str) -> CrateTable {
    let rows = text.lines().skip_while(|line| !line.ends_with("| async, sockets | files |")).skip(2);
    let table: CrateTable = rows.take_while(|line| line.starts_with('|')).map(row).collect();
    assert!(!table.is_empty(), "ARCHITECTURE.md has no table with the columns 'async, sockets' and 'files'");
    table
}

fn row(line: &str) -> (String, CrateRow) {
    let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [name, imports, sockets, files] = cells[..] else { panic!("not four cells: {line}") };
    let may_import = match imports {
        "all" => None,
        "nothing" => Some(BTreeSet::new()),
        names => Some(names.split(", ").map(str::to_owned).collect()),
    };
    (name.to_owned(), CrateRow { may_import, sockets: sockets != "no", files: files != "no" })
}

/// All crates of the workspace by name.
fn crate_folders() -> BTreeMap<String, PathBuf> {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let folders = crates
        .chain(["sim", "sim_dns"].map(|name| root().join(name)))
        .filter(|folder| folder.join("Cargo.toml").exists());
    folders.map(|folder| (folder.file_name().unwrap().to_str().unwrap().to_owned(), folder)).collect()
}

fn violations(table: &CrateTable, crate_name: &str, folder: &Path) -> Vec<String> {
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let mut sources = Vec::new();
    collect(&folder.join("src"), &mut sources);
    let sources: Vec<_> = sources.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    crate_violations(table, crate_name, &manifest, &sources)
}

fn crate_violations(table: &CrateTable, crate_name: &str, manifest: &str, sources: &[(&str, &str)]) -> Vec<String> {
    let row = &table[crate_name];
    let dependencies = dependencies(manifest);
    let refused = |name: &str| {
        let ours = name != crate_name && table.contains_key(name);
        ours && row.may_import.as_ref().is_some_and(|allowed| !allowed.contains(name))
    };
    let mut errors = Vec::new();
    for name in &dependencies {
        if refused(name) || (!row.sockets && SOCKETS.contains(&name.as_str())) {
            errors.push(format!("{crate_name}: its Cargo.toml depends on {name}"));
        }
    }
    for (path, text) in sources {
        let code = code(text);
        errors.extend(roots(&code).into_iter().filter(|name| refused(name)).map(|n| format!("{path}: names {n}")));
        let opens = |banned: &[&str]| banned.iter().find(|word| code.contains(**word)).map(|word| word.to_string());
        let socket = opens(&SOCKETS).filter(|_| !row.sockets);
        let file = opens(&FILES).filter(|_| !row.files);
        errors.extend(socket.into_iter().chain(file).map(|word| format!("{path}: {crate_name} may not use {word}")));
    }
    errors
}

/// The dependencies in a manifest, without those for tests.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let manifest: toml::Table = manifest.parse().unwrap();
    let Some(dependencies) = manifest.get("dependencies").and_then(toml::Value::as_table) else {
        return BTreeSet::new();
    };
    let package = |(name, value): (&String, &toml::Value)| {
        value.get("package").and_then(toml::Value::as_str).unwrap_or(name).to_owned()
    };
    dependencies.iter().map(package).collect()
}

/// The source without comments and without the tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The first segments of all paths: `a` in `a::b::c`, in `use a::b` and in `use {a::b, c::d}`.
/// Names imported by another `use` are not crates.
fn roots(code: &str) -> BTreeSet<String> {
    let mut roots = BTreeSet::new();
    for (place, _) in code.match_indices("::") {
        let before = &code[..place];
        let name = &before[before.rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |end| end + 1)..];
        let inside_path = before[..before.len() - name.len()].trim_end().ends_with("::");
        if !inside_path && !is_nested(before) && !is_imported(code, name) {
            roots.insert(name.to_owned());
        }
    }
    roots
}

/// Whether the text after `before` is inside the braces of `use x::{...}`.
fn is_nested(before: &str) -> bool {
    let statement = &before[before.rfind(';').map_or(0, |end| end + 1)..];
    statement.rfind("::{").is_some_and(|open| !statement[open..].contains('}')) && statement.contains("use ")
}

/// Whether `use std::net;`, `use crate::net;` or `mod net;` defines `name` in the file.
fn is_imported(code: &str, name: &str) -> bool {
    let brought = [format!("::{name};"), format!("mod {name};"), format!("mod {name} {{")];
    brought.iter().any(|text| code.contains(text))
}

fn collect(folder: &Path, sources: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources
                .push((path.strip_prefix(root()).unwrap().display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}
