//! docs/security.md, docs/limits.md and docs/coordinator.md promise: each test that they name must be there.

use crate::architecture::source::{Source, root, sources};

/// How many controls the document has.
const CONTROLS: usize = 29;

fn document() -> String {
    std::fs::read_to_string(root().join("docs/security.md")).expect("the document is there")
}

/// The rows of the table of controls: their cells.
fn controls<'a>(document: &'a str) -> Vec<Vec<&'a str>> {
    let rows = document.lines().filter(|line| {
        let first = line.strip_prefix("| ").and_then(|line| line.split_once(' '));
        first.is_some_and(|(number, _)| number.parse::<u32>().is_ok())
    });
    let cells = |row: &'a str| row.strip_prefix('|').and_then(|row| row.strip_suffix('|'));
    rows.filter_map(cells).map(|cells| cells.split('|').map(str::trim).collect()).collect()
}

/// The tests that a text names: `module::of::file::name`, in backticks.
fn tests_named(text: &str) -> Vec<&str> {
    let is_path = |text: &&str| {
        text.contains("::")
            && text.split("::").all(|part| {
                !part.is_empty()
                    && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
            })
    };
    text.split('`').skip(1).step_by(2).filter(is_path).collect()
}

/// Whether a file is what a module's path means, from its end: `scenarios::grants`.
fn is_module(source: &Source, module: &str) -> bool {
    let path = source.path.trim_end_matches(".rs").replace('/', "::");
    path == module || path.ends_with(&format!("::{module}"))
}

/// Whether a file has a test of this name.
fn has_test(source: &Source, name: &str) -> bool {
    let lines: Vec<&str> = source.code.lines().collect();
    let function = format!("fn {name}(");
    lines.iter().enumerate().any(|(index, line)| {
        let before = lines[..index].iter().rev().take_while(|line| !line.trim().is_empty() && !line.starts_with('}'));
        line.contains(&function)
            && before.take(4).any(|line| line.contains("#[test]") || line.contains("#[tokio::test"))
    })
}

/// The tests of these names that no file has.
fn missing<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let sources = sources("");
    let is_there = |path: &str| {
        let (module, name) = path.rsplit_once("::").expect("a path has two parts");
        sources.iter().any(|source| is_module(source, module) && has_test(source, name))
    };
    names.iter().copied().filter(|path| !is_there(path)).collect()
}

#[test]
fn every_test_that_the_document_names_exists() {
    let document = document();
    let names = tests_named(&document);
    let missing = missing(&names);
    assert!(missing.is_empty(), "docs/security.md names tests that are not there:\n  {}", missing.join("\n  "));
    assert!(names.len() > CONTROLS, "the search for names is broken");
}

/// The limits that no flag changes: their table has a column of tests.
#[test]
fn every_limit_without_a_flag_names_a_test_that_exists() {
    let text = std::fs::read_to_string(root().join("docs/limits.md")).expect("the document is there");
    let (_, table) = text.split_once("| limit | value | when it is met | test |").expect("the table is there");
    let rows: Vec<_> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 10, "the search for rows is broken");
    for row in &rows {
        assert!(!tests_named(row).is_empty(), "no test: {row}");
    }
    let names: Vec<_> = rows.iter().flat_map(|row| tests_named(row)).collect();
    let missing = missing(&names);
    assert!(missing.is_empty(), "docs/limits.md names tests that are not there:\n  {}", missing.join("\n  "));
}

#[test]
fn every_row_of_the_coordinators_decision_names_a_test_that_exists() {
    let text = std::fs::read_to_string(root().join("docs/coordinator.md")).expect("the document is there");
    let (decision, _) = text.split_once("## Contexts").expect("the contexts follow");
    let rows: Vec<_> = decision.lines().filter(|line| line.starts_with("| ") && line.contains("::")).collect();
    assert!(rows.len() > 15, "the search for rows is broken");
    let names = tests_named(&text);
    let missing = missing(&names);
    assert!(missing.is_empty(), "docs/coordinator.md names tests that are not there:\n  {}", missing.join("\n  "));
}

/// Aim: no row without proof goes unnoticed. Method: a row names a test, or says after `none:` why it has none.
#[test]
fn every_control_names_its_proof() {
    let document = document();
    let controls = controls(&document);
    let numbers: Vec<_> = controls.iter().map(|cells| cells[0].parse::<usize>().unwrap()).collect();
    assert_eq!(numbers, (1..=CONTROLS).collect::<Vec<_>>());
    for cells in controls {
        assert_eq!(cells.len(), 5, "{cells:?}");
        let proof = cells[4];
        assert!(!tests_named(proof).is_empty() || proof.starts_with("none: "), "control {} has no proof", cells[0]);
    }
}

#[test]
fn a_name_is_found_only_where_a_test_has_it() {
    let this = sources("host/tests/it/").into_iter().find(|source| is_module(source, "it::security")).unwrap();
    assert!(has_test(&this, "a_name_is_found_only_where_a_test_has_it"));
    assert!(!has_test(&this, "a_name"), "a part of a name is none");
    assert!(!has_test(&this, "has_test"), "not a test");
    assert!(!is_module(&this, "rity"), "a part of a module is none");
    assert_eq!(tests_named("`--dir HOST::GUEST` and `a::b_1`, `a`, `A::b`"), ["a::b_1"]);
}
