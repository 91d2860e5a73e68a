//! The invariants of ARCHITECTURE.md, each stated by what is absent from the source text.
//!
//! Aim: nobody has to remember the rules. Method: sources are read as text without comments and strings, so that a check
//! is a search for words; no build, no macro expansion.

pub(crate) mod source;

use source::{Source, files, lines_with, modules_named, root, sources};
use std::collections::{BTreeMap, BTreeSet};

/// Modules without sockets, wasm, protobuf, clock or environment.
const DOMAIN: [&str; 14] = [
    "attend",
    "barrier",
    "cluster",
    "context",
    "error",
    "exit",
    "ids",
    "lifetime",
    "ops",
    "status",
    "sync",
    "tensor",
    "text",
    "variables",
];

/// Every other module of the host, and those that it may name besides itself and the domain.
const MAY_NAME: [(&str, &[&str]); 13] = [
    (
        "main",
        &[
            "lib",
            "commands",
            "cli",
            "config",
            "checkpoint",
            "coordinator",
            "server",
            "client",
            "runtime",
            "handles",
            "wire",
            "files",
        ],
    ),
    ("lib", &["coordinator"]),
    (
        "commands",
        &["cli", "config", "checkpoint", "coordinator", "server", "client", "runtime", "handles", "wire", "files"],
    ),
    ("checkpoint", &["coordinator", "client", "files"]),
    ("config", &["cli", "coordinator", "server", "client", "runtime", "handles", "wire", "files"]),
    ("cli", &["coordinator", "server", "client", "runtime", "handles", "wire"]),
    ("coordinator", &["server", "client", "runtime", "handles", "wire"]),
    ("server", &["handles", "wire"]),
    ("client", &["handles", "wire"]),
    ("runtime", &["handles", "files"]),
    ("handles", &[]),
    ("wire", &[]),
    ("files", &[]),
];

/// Files with `unsafe` or an exception from `unsafe_code`, and why it is sound.
const UNSAFE: &[(&str, &str)] = &[
    ("guest-sdk/src/wasm.rs", "generated bindings: the component model's own calling convention"),
    (
        "host/src/runtime/kernels/gemm.rs",
        "multiplies by pointers and strides, after they were found to be within their slices",
    ),
    ("host/src/runtime/precompiled.rs", "loads compiled code, after its checksum, versions and settings are compared"),
];

/// Files longer than [`LINES_MAX`] or [`TEST_LINES_MAX`], and why they are one idea all the same.
const LONG: &[(&str, &str)] = &[];

/// Lines of a file. Longer ones are rarely one idea.
const LINES_MAX: usize = 600;

/// Lines of a file of tests: tables of cases are long, and read one case at a time.
const TEST_LINES_MAX: usize = 900;

/// Test code that sleeps on the real clock other than between two looks at a condition or as a deadline, and why.
const SLEEPS: &[(&str, &str)] = &[];

/// The top-level module of a file of the host.
fn module(source: &Source) -> &str {
    let path = source.path.strip_prefix("host/src/").expect("only files of the host are asked for");
    path.split(['/', '.']).next().expect("a path has a first part")
}

/// Fails with all findings, one a line.
#[track_caller]
fn none(rule: &str, findings: Vec<String>) {
    assert!(findings.is_empty(), "{rule}:\n  {}", findings.join("\n  "));
}

/// Findings of words in the production code of files that `applies` picks.
fn naming(sources: &[Source], words: &[&str], applies: impl Fn(&Source) -> bool) -> Vec<String> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| applies(source)) {
        for word in words {
            let lines = source.production_lines(word);
            findings.extend(lines.iter().map(|line| format!("{}:{line} names `{word}`", source.path)));
        }
    }
    findings
}

/// Compares the files where something was found with the list of exceptions: both ways, so that the list stays true.
#[track_caller]
fn only_listed(rule: &str, found: BTreeMap<String, String>, list: &[(&str, &str)]) {
    let mut findings: Vec<String> = Vec::new();
    let listed: BTreeSet<&str> = list.iter().map(|(path, _)| *path).collect();
    for (path, what) in &found {
        if !listed.contains(path.as_str()) {
            findings.push(format!("{path}: {what}, and isn't in the list of exceptions"));
        }
    }
    for (path, reason) in list {
        assert!(!reason.is_empty(), "the exception for {path} has no reason");
        if !found.contains_key(*path) {
            findings.push(format!("{path} is in the list of exceptions and needs none any more"));
        }
    }
    none(rule, findings);
}

#[test]
fn modules_name_only_modules_to_their_right() {
    let mut findings = Vec::new();
    for source in &sources("host/src/") {
        let module = module(source);
        let allowed = match MAY_NAME.iter().find(|(name, _)| *name == module) {
            Some((_, allowed)) => *allowed,
            None if DOMAIN.contains(&module) => &[],
            None => {
                findings.push(format!("{}: add the module to the table of this test", source.path));
                continue;
            }
        };
        // `super` once for each level of the file's own module is the crate's root.
        let depth = source.path.matches('/').count() - 1;
        let roots = ["crate::".to_owned(), "dchost::".to_owned(), "super::".repeat(depth)];
        for name in roots.iter().flat_map(|root| modules_named(&source.production, root)) {
            let is_module = DOMAIN.contains(&name.as_str()) || MAY_NAME.iter().any(|(module, _)| *module == name);
            let fine = name == module || DOMAIN.contains(&name.as_str()) || allowed.contains(&name.as_str());
            if is_module && !fine {
                findings.push(format!("{} names `{name}`", source.path));
            }
        }
    }
    none("a module names one that isn't to its right", findings);
}

#[test]
fn domain_names_no_io_no_clock_and_no_randomness() {
    let words = [
        "tokio::net",
        "tokio::time",
        "tonic*",
        "prost*",
        "wasmtime*",
        "clap",
        "serde*",
        "std::net",
        "std::env",
        "std::fs",
        "std::process",
        "Instant::now",
        "SystemTime::now",
        "thread_rng",
        "rand::rng",
        "rand::random",
    ];
    let findings = naming(&sources("host/src/"), &words, |source| DOMAIN.contains(&module(source)));
    none("the domain takes time and randomness as arguments and knows no outside", findings);
}

#[test]
fn only_wire_server_and_client_name_grpc() {
    let words = ["tonic*", "prost*"];
    let findings =
        naming(&sources("host/src/"), &words, |source| !["wire", "server", "client"].contains(&module(source)));
    none("protobuf is converted at the edge", findings);
}

#[test]
fn only_runtime_names_wasmtime() {
    let findings = naming(&sources("host/src/"), &["wasmtime*", "wasmparser*"], |source| module(source) != "runtime");
    none("components are the runtime's business", findings);
}

#[test]
fn server_and_runtime_never_name_each_other() {
    let sources = sources("host/src/");
    let mut findings = naming(&sources, &["crate::runtime"], |source| module(source) == "server");
    findings.extend(naming(&sources, &["crate::server"], |source| module(source) == "runtime"));
    none("`coordinator` joins them through `handles`", findings);
}

#[test]
fn only_text_escapes() {
    let words = ["escape_debug", "escape_default", "escape_unicode"];
    let findings = naming(&sources("host/src/"), &words, |source| module(source) != "text");
    none("what is harmful is decided once, or one way in forgets a character", findings);
}

#[test]
fn only_main_exits_the_process() {
    let words = ["process::exit", "process::abort"];
    let findings = naming(&sources("host/src/"), &words, |source| module(source) != "main");
    none("everyone else returns what happened", findings);
}

#[test]
fn only_config_reads_the_environment() {
    let sources = sources("host/src/");
    let words = ["from_env", "from_default_env", "try_from_default_env", "env::temp_dir"];
    let variables = ["env::var*", "env::set_var", "env::remove_var", "env::{"];
    let words: Vec<&str> = words.into_iter().chain(variables).collect();
    let mut findings = naming(&sources, &words, |source| module(source) != "config");
    findings.extend(naming(&sources, &["env::args*"], |source| module(source) != "main"));
    none("`config` reads it before any port is bound; `main` hands it the arguments", findings);
}

#[test]
fn only_commands_change_the_process() {
    let signals = ["tokio::signal*", "survive_size_limit"];
    let words = ["setrlimit", "descriptors::raise", "set_global_default", "try_init", "set_hook"];
    let words: Vec<&str> = words.into_iter().chain(signals).collect();
    // Each takes effect where a command, or the program that embeds dchost, asks for it.
    let asked = ["host/src/coordinator/run/stop.rs", "host/src/coordinator/descriptors.rs", "host/src/files.rs"];
    let asks = |source: &Source| ["main", "commands"].contains(&module(source));
    let applies = |source: &Source| !asks(source) && !asked.contains(&source.path.as_str());
    none("a library leaves its process as it is", naming(&sources("host/src/"), &words, applies));
}

#[test]
fn runtimes_of_coordinators_mark_their_threads() {
    let mut findings = Vec::new();
    for source in sources("host/src/").iter().filter(|source| module(source) == "coordinator") {
        let count = |word: &str| source.production.matches(word).count();
        let (made, marked) =
            (count("::new_multi_thread") + count("::new_current_thread"), count("on_thread_start(mark_thread)"));
        if made != marked {
            findings.push(format!("{}: {made} runtimes, {marked} with marked threads", source.path));
        }
    }
    none("on threads that a run needs no other coordinator may start", findings);
}

#[test]
fn guest_sdk_names_nothing_of_the_host() {
    let mut findings = Vec::new();
    for source in &sources("guest-sdk/") {
        // `dchost::worker` is the WIT package, as bindings spell it.
        let names = modules_named(&source.code, "dchost::").into_iter().filter(|name| name != "worker");
        findings.extend(names.map(|name| format!("{} names `dchost::{name}`", source.path)));
    }
    let manifest = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    for (path, name) in [("guest-sdk/Cargo.toml", "dchost"), ("host/Cargo.toml", "dchost-guest")] {
        let depends = |line: &&str| line.split(['.', ' ', '=']).next() == Some(name);
        findings.extend(manifest(path).lines().filter(depends).map(|line| format!("{path}: {line}")));
    }
    none("a guest knows the WIT contract only", findings);
}

#[test]
fn scenarios_use_only_the_public_face() {
    let mut findings = Vec::new();
    for source in sources("tests/") {
        for word in ["#[path", "include!", "host/src"] {
            let text = if word == "host/src" { &source.text } else { &source.code };
            if text.contains(word) {
                findings.push(format!("{} has `{word}`", source.path));
            }
        }
    }
    none("scenarios run the binary and call the public API", findings);
}

#[test]
fn unsafe_code_stands_in_the_list() {
    let mut found = BTreeMap::new();
    for source in sources("") {
        if !lines_with(&source.code, "unsafe").is_empty() {
            found.insert(source.path.clone(), "has `unsafe`".to_owned());
        }
        for (at, _) in source.code.match_indices("unsafe_code") {
            // The level is the word before the parenthesis: `deny` is no exception.
            let level = source.code[..at].rsplit_once('(').map_or("", |(before, _)| before);
            if level.ends_with("allow") || level.ends_with("expect") {
                found.insert(source.path.clone(), "allows `unsafe_code`".to_owned());
            }
        }
    }
    only_listed("unsafe code is denied", found, UNSAFE);
}

#[test]
fn nothing_is_left_for_later() {
    let mut findings = Vec::new();
    for source in sources("") {
        for word in ["#[ignore", "todo!", "unimplemented!", "dbg!"] {
            let lines = source.code.lines().enumerate().filter(|(_, line)| line.contains(word));
            findings.extend(lines.map(|(index, _)| format!("{}:{} has `{word}`", source.path, index + 1)));
        }
    }
    none("an ignored test or a stub is finished or taken out", findings);
}

#[test]
fn tests_wait_for_conditions_and_not_for_time() {
    let mut found = BTreeMap::new();
    for source in sources("").into_iter().filter(|source| !source.path.starts_with("tests/guests/")) {
        let tests = source.tests();
        let lines: Vec<&str> = tests.lines().collect();
        // On a paused clock tokio's sleep takes no time.
        let word = if source.code.contains("start_paused") { "thread::sleep" } else { "sleep" };
        for number in lines_with(&tests, word) {
            let (line, before) = (lines[number - 1], lines[..number - 1].iter().rfind(|line| !line.trim().is_empty()));
            let asks_again = before.is_some_and(|before| before.contains("while "));
            let is_deadline = line.contains("=>");
            if line.contains("sleep(") && !asks_again && !is_deadline {
                found.insert(source.path.clone(), format!("line {number} sleeps"));
            }
        }
    }
    only_listed("a test that sleeps is slow, or wrong on a slow machine", found, SLEEPS);
}

#[test]
fn every_crate_takes_the_workspace_lints() {
    let manifests = files().into_iter().filter(|(path, _)| path.ends_with("Cargo.toml") && path != "Cargo.toml");
    let findings = manifests.filter(|(path, _)| !path.contains("/templates/"));
    let findings = findings.filter(|(_, text)| !text.contains("[lints]\nworkspace = true"));
    none("lints are the same everywhere", findings.map(|(path, _)| path).collect());
}

#[test]
fn components_have_names_of_their_own() {
    let paths: Vec<String> = files().into_iter().map(|(path, _)| path).collect();
    let named = |before: &str, after: &str| -> BTreeSet<String> {
        let name = |path: &String| Some(path.strip_prefix(before)?.strip_suffix(after)?.replace('-', "_"));
        paths.iter().filter_map(name).collect()
    };
    let (examples, guests) = (named("examples/", "/Cargo.toml"), named("tests/guests/examples/", ".rs"));
    assert!(examples.contains("in_graph") && guests.contains("drives"), "{examples:?}, {guests:?}");
    none("a scenario would run the example", examples.intersection(&guests).cloned().collect());
}

#[test]
fn every_file_says_what_it_is() {
    let starts = |source: &Source| {
        let first = source.text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        first.starts_with("//!") || first.starts_with("#![doc = include_str!")
    };
    // The name of a file `tests.rs` says it all.
    let sources = sources("").into_iter().filter(|source| !source.path.ends_with("/tests.rs"));
    let findings = sources.filter(|source| !starts(source)).map(|source| source.path).collect();
    none("a file starts with its module documentation", findings);
}

#[test]
fn files_are_short() {
    let mut found = BTreeMap::new();
    for source in sources("") {
        let lines = source.text.lines().count();
        let max = if source.production.is_empty() { TEST_LINES_MAX } else { LINES_MAX };
        if lines > max {
            found.insert(source.path, format!("has {lines} lines, more than {max}"));
        }
    }
    only_listed("a file is one idea", found, LONG);
}

#[test]
fn no_file_names_a_workplace() {
    // Put together here, so that this file doesn't name them either. The last is where this very checkout lies.
    let mut places: Vec<String> = ["work", "root", "Users"].map(|place| format!("/{place}/")).into();
    places.extend(
        root().parent().filter(|parent| parent.components().count() > 2).map(|parent| format!("{}/", parent.display())),
    );
    let mut findings = Vec::new();
    for (path, text) in files() {
        for (index, line) in text.lines().enumerate() {
            let names = |place: &String| {
                let mut hits = line.match_indices(place.as_str());
                // `a/work/b` is part of some longer path and fine.
                hits.any(|(at, _)| !line[..at].ends_with(|char: char| char.is_alphanumeric() || "._-".contains(char)))
            };
            if places.iter().any(names) {
                findings.push(format!("{path}:{}: {line}", index + 1));
            }
        }
    }
    none("a path of somebody's machine means nothing to others", findings);
}

#[test]
fn architecture_lists_these_invariants() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = text.split("\n## ").find(|section| section.starts_with("Invariants")).expect("a section Invariants");
    let rows = section.lines().filter(|line| line.starts_with("| ")).filter_map(|line| line.split('`').rev().nth(1));
    let listed: BTreeSet<String> = rows.map(str::to_owned).collect();
    let own = include_str!("architecture.rs");
    let names = own.split("#[test]\nfn ").skip(1).map(|test| test.split('(').next().unwrap_or_default().to_owned());
    let tests: BTreeSet<String> = names.filter(|name| name != "architecture_lists_these_invariants").collect();
    assert_eq!(listed, tests, "ARCHITECTURE.md (left) and the tests (right) list different invariants");
}
