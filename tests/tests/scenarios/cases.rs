//! The table of cases, `tests/CASES.md`: every case has a test that exists, or a reason why not.

use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The known cases of others, by letter, and how many there are; A46 was never given out.
const KNOWN: [(char, u32); 4] = [('A', 47), ('K', 19), ('N', 10), ('O', 8)];

fn known() -> impl Iterator<Item = String> {
    let numbered = |(letter, count)| (1..=count).map(move |number| format!("{letter}{number}"));
    KNOWN.into_iter().flat_map(numbered).filter(|case| case != "A46")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The rows of the table: the case, and its last column.
fn rows(text: &str) -> Vec<(&str, &str)> {
    let is_case = |cell: &str| cell.starts_with(['A', 'B', 'K', 'N', 'O']) && cell[1..].parse::<u32>().is_ok();
    let cells = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    cells
        .filter(|(case, _)| is_case(case))
        .map(|(case, rest)| (case, rest.rsplit(" | ").next().unwrap_or(rest)))
        .collect()
}

/// Adds the Rust files below a folder: path without extension, and text.
fn sources(folder: &Path, found: &mut Vec<(String, String)>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("list `{}`", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).with_context(|| format!("read `{}`", path.display()))?;
            found.push((path.with_extension("").display().to_string(), text));
        }
    }
    Ok(())
}

#[test]
fn every_named_test_exists() -> Result<()> {
    let mut files = Vec::new();
    for folder in ["host", "tests"] {
        sources(&root().join(folder), &mut files)?;
    }
    let table = fs::read_to_string(root().join("tests/CASES.md")).context("read the table")?;
    for (case, tests) in rows(&table) {
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty() || tests.starts_with("reason: "), "{case} has neither a test nor a reason");
        for name in names {
            let (module, function) =
                name.rsplit_once("::").with_context(|| format!("{case}: `{name}` has no module"))?;
            // A module `tests` may be a file of its own, or stand in the file that it tests.
            let inline = module.strip_suffix("::tests").unwrap_or(module);
            let folders = [module, inline].map(|module| format!("/{}", module.replace("::", "/")));
            let definition = format!("fn {function}(");
            let exists = files.iter().any(|(path, text)| {
                folders.iter().any(|folder| path.ends_with(folder.as_str())) && text.contains(&definition)
            });
            assert!(exists, "{case}: there is no test `{name}`");
        }
    }
    Ok(())
}

#[test]
fn every_known_case_has_one_row() -> Result<()> {
    let table = fs::read_to_string(root().join("tests/CASES.md")).context("read the table")?;
    let cases: Vec<&str> = rows(&table).iter().map(|(case, _)| *case).filter(|case| !case.starts_with('B')).collect();
    assert_eq!(cases, known().collect::<Vec<_>>());
    Ok(())
}
