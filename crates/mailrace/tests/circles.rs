//! No circles: in every folder of sources, modules import one another in one direction only.
//!
//! An import of a module by another one counts where their paths part: `a::b` that uses `a::c::d`
//! makes `b` depend on `c`, in the folder `a`. What a module shares with its parent or its children
//! does not count. Only paths that begin with `crate`, `super` or `self` are followed, also through
//! `use` with braces; tests at the end of a file are ignored.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The path of a module in its crate; empty for the root.
type ModulePath = Vec<String>;
/// The text of each module.
type Modules = BTreeMap<ModulePath, String>;
/// What each module of a folder imports from the same folder.
type Imports = BTreeMap<String, BTreeSet<String>>;

#[test]
fn no_modules_import_one_another_in_a_circle() {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path().join("src"));
    let found: Vec<String> = crates.flat_map(|sources| circles(&modules(&sources), &sources)).collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn a_circle_is_found_however_it_is_written() {
    let found = |a: &str, b: &str| {
        let named = [(vec![], "mod a; mod b;"), (vec!["a".to_owned()], a), (vec!["b".to_owned()], b)];
        let modules = named.into_iter().map(|(path, text)| (path, text.to_owned())).collect();
        circles(&modules, Path::new("src")).len()
    };
    assert_eq!(found("use super::b::X;", "use std::fmt; use crate::c::Y;"), 0);
    assert_eq!(found("use super::b::X;", "use crate::{a::Y, c};"), 1);
    assert_eq!(found("use crate::{\n    c::{D, E},\n    b,\n};", "fn f() { super::a::g() }"), 1);
    assert_eq!(found("use super::b::X;", "fn f() {} // crate::a::Y"), 0);
    assert_eq!(found("use super::b::X;", "#[cfg(test)]\nmod tests { use crate::a::Y; }"), 0);
}

/// Each circle of a crate, as a line.
fn circles(modules: &Modules, sources: &Path) -> Vec<String> {
    let mut folders: BTreeMap<ModulePath, Imports> = BTreeMap::new();
    for (module, text) in modules {
        for path in imported_paths(module, &code(text)) {
            let target = (0..=path.len()).rev().map(|end| &path[..end]).find(|start| modules.contains_key(*start));
            let target = target.unwrap_or_default();
            let shared = module.iter().zip(target).take_while(|(own, other)| own == other).count();
            if let (Some(from), Some(to)) = (module.get(shared), target.get(shared)) {
                folders
                    .entry(module[..shared].to_vec())
                    .or_default()
                    .entry(from.clone())
                    .or_default()
                    .insert(to.clone());
            }
        }
    }
    let line = |(folder, imports): (&ModulePath, &Imports)| {
        let inside: Vec<_> = imports.keys().filter(|module| reachable(imports, module).contains(*module)).collect();
        (!inside.is_empty()).then(|| format!("{}: {folder:?}: {inside:?} import one another", sources.display()))
    };
    folders.iter().filter_map(line).collect()
}

/// The modules that one imports, directly or through others.
fn reachable(imports: &Imports, module: &str) -> BTreeSet<String> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![module.to_owned()]);
    while let Some(module) = next.pop() {
        next.extend(imports.get(&module).into_iter().flatten().filter(|other| seen.insert((*other).clone())).cloned());
    }
    seen
}

/// The absolute paths that a module names.
fn imported_paths(module: &[String], code: &str) -> Vec<ModulePath> {
    let mut written = Vec::new();
    let mut rest = String::new();
    for statement in code.split_inclusive(';') {
        match statement.rfind("use ").filter(|_| statement.ends_with(';')) {
            Some(place) => {
                rest.push_str(&statement[..place]);
                expand(statement[place + 4..].trim_end_matches(';'), &mut Vec::new(), &mut written);
            }
            None => rest.push_str(statement),
        }
    }
    let inline =
        rest.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).filter(|path| path.contains("::"));
    written.extend(inline.map(segments));
    written.iter().filter_map(|path| absolute(module, path)).collect()
}

/// The paths of a tree such as `a::{b, c::d}`.
fn expand(tree: &str, before: &mut ModulePath, paths: &mut Vec<ModulePath>) {
    let (start, inner) = match tree.split_once('{') {
        Some((start, inner)) => (start, inner.rsplit_once('}').map_or(inner, |(inner, _)| inner)),
        None => (tree, ""),
    };
    let own = segments(start);
    let depth = before.len();
    before.extend(own);
    if inner.is_empty() {
        paths.push(before.clone());
    }
    parts(inner).into_iter().for_each(|part| expand(part, before, paths));
    before.truncate(depth);
}

/// The parts between commas that are not inside braces.
fn parts(list: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let is_border = |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    };
    list.split(is_border).filter(|part| !part.trim().is_empty()).collect()
}

fn segments(path: &str) -> ModulePath {
    let name = |part: &str| part.split_whitespace().next().unwrap_or_default().to_owned();
    path.split("::").map(name).filter(|part| !part.is_empty()).collect()
}

/// The path from the crate's root; None if it begins elsewhere.
fn absolute(module: &[String], path: &[String]) -> Option<ModulePath> {
    let up = path.iter().take_while(|part| *part == "super").count();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([module, &path[1..]].concat()),
        "super" => Some([&module[..module.len().checked_sub(up)?], &path[up..]].concat()),
        _ => None,
    }
}

/// The source without comments and without the tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The modules below a folder of sources, by their paths.
fn modules(sources: &Path) -> Modules {
    let mut files = Vec::new();
    collect(sources, &mut files);
    let module = |file: PathBuf| {
        let path = file.strip_prefix(sources).unwrap().with_extension("");
        let mut path: ModulePath = path.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        if path.last().is_some_and(|name| ["lib", "main", "mod"].contains(&name.as_str())) {
            path.pop();
        }
        (path, fs::read_to_string(&file).unwrap())
    };
    files.into_iter().filter(|file| !file.to_string_lossy().contains("tests")).map(module).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}
