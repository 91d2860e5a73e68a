//! Source files as the checks see them: without comments and strings, and production code apart from tests.

use std::fs;
use std::path::{Path, PathBuf};

/// One file of the repository.
pub(crate) struct Source {
    /// Path from the repository's root, with `/`.
    pub(crate) path: String,
    /// As it stands.
    pub(crate) text: String,
    /// Comments, strings and characters blanked out; lines keep their numbers.
    pub(crate) code: String,
    /// `code` without items under `#[cfg(test)]`; empty for a file that is a test as a whole.
    pub(crate) production: String,
}

impl Source {
    /// Line numbers, from 1, of production lines that name `word`.
    pub(crate) fn production_lines(&self, word: &str) -> Vec<usize> {
        lines_with(&self.production, word)
    }

    /// The part of the code that is test code: what `production` lacks.
    pub(crate) fn tests(&self) -> String {
        let differs = self.code.chars().zip(self.production.chars().chain(std::iter::repeat(' ')));
        differs.map(|(code, production)| if code == production && code != '\n' { ' ' } else { code }).collect()
    }
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the host is a directory of the repository").to_path_buf()
}

/// Every text file of the repository: its path from the root and its text.
pub(crate) fn files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    walk(&root(), "", &mut files);
    assert!(files.len() > 50, "only {} files found: the walk is broken", files.len());
    files
}

/// Every Rust file below `folder` (with a final `/`, or empty for all).
pub(crate) fn sources(folder: &str) -> Vec<Source> {
    let files = files().into_iter().filter(|(path, _)| path.starts_with(folder) && path.ends_with(".rs"));
    let sources: Vec<Source> = files.map(|(path, text)| source(path, text)).collect();
    assert!(!sources.is_empty(), "no Rust file below `{folder}`");
    sources
}

fn source(path: String, text: String) -> Source {
    let code = blank(&text);
    let production = if is_test_file(&path) { String::new() } else { without_tests(&code) };
    Source { path, text, code, production }
}

/// Files that are tests as a whole: below a `tests` or `benches` folder, or a module `tests`. Components for tests aren't.
fn is_test_file(path: &str) -> bool {
    !path.starts_with("tests/guests/") && path.split('/').any(|part| ["tests", "benches", "tests.rs"].contains(&part))
}

fn walk(folder: &Path, prefix: &str, files: &mut Vec<(String, String)>) {
    let entries = fs::read_dir(folder).expect("the checkout can be read");
    let mut entries: Vec<_> = entries.map(|entry| entry.expect("the checkout can be read").path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().and_then(|name| name.to_str()).expect("names of the repository are UTF-8");
        if path.is_dir() {
            if name != "target" && name != ".git" {
                walk(&path, &format!("{prefix}{name}/"), files);
            }
        } else if name != ".git"
            && let Ok(text) = fs::read_to_string(&path)
        {
            files.push((format!("{prefix}{name}"), text));
        }
    }
}

/// Replaces comments, and what strings and characters hold, by spaces.
fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |index: usize| chars.get(index).copied().unwrap_or('\0');
    let mut out = String::with_capacity(text.len());
    let mut index = 0;
    // Moves on to `end`, leaving line breaks only.
    let skip = |index: &mut usize, end: usize, out: &mut String| {
        let end = end.min(chars.len());
        out.extend(chars[*index..end].iter().map(|&char| if char == '\n' { '\n' } else { ' ' }));
        *index = end;
    };
    while index < chars.len() {
        let start_of_word = index == 0 || !is_word(at(index - 1));
        match at(index) {
            '/' if at(index + 1) == '/' => {
                let end = (index..chars.len()).find(|&end| at(end) == '\n').unwrap_or(chars.len());
                skip(&mut index, end, &mut out);
            }
            '/' if at(index + 1) == '*' => {
                let (mut depth, mut end) = (1, index + 2);
                while depth > 0 && end < chars.len() {
                    match (at(end), at(end + 1)) {
                        ('/', '*') => (depth, end) = (depth + 1, end + 2),
                        ('*', '/') => (depth, end) = (depth - 1, end + 2),
                        _ => end += 1,
                    }
                }
                skip(&mut index, end, &mut out);
            }
            '"' => {
                let end = end_of_quoted(&chars, index + 1, '"');
                skip(&mut index, end, &mut out);
            }
            'r' | 'b' | 'c' if start_of_word && raw_string(&chars, index).is_some() => {
                let end = raw_string(&chars, index).expect("just looked");
                skip(&mut index, end, &mut out);
            }
            // A character, not a lifetime: `'x'` or an escape.
            '\'' if at(index + 1) == '\\' || (at(index + 2) == '\'' && at(index + 1) != '\'') => {
                let end = end_of_quoted(&chars, index + 1, '\'');
                skip(&mut index, end, &mut out);
            }
            char => {
                out.push(char);
                index += 1;
            }
        }
    }
    out
}

/// The index behind the closing quote.
fn end_of_quoted(chars: &[char], mut index: usize, quote: char) -> usize {
    while index < chars.len() && chars[index] != quote {
        index += if chars[index] == '\\' { 2 } else { 1 };
    }
    index + 1
}

/// The index behind a raw string that starts here with `r`, `br` or `cr`.
fn raw_string(chars: &[char], start: usize) -> Option<usize> {
    let prefix: String = chars[start..].iter().take_while(|char| char.is_alphabetic()).collect();
    if !["r", "br", "cr"].contains(&prefix.as_str()) {
        return None;
    }
    let mut index = start + prefix.len();
    let hashes = chars[index..].iter().take_while(|&&char| char == '#').count();
    index += hashes;
    if chars.get(index) != Some(&'"') {
        return None;
    }
    let closes =
        |at: usize| chars[at] == '"' && chars[at + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes;
    let close = (index + 1..chars.len()).find(|&at| closes(at)).unwrap_or(chars.len());
    Some(close + 1 + hashes)
}

/// Blanks out items under `#[cfg(test)]` (also `#[cfg(all(test, ...))]`).
fn without_tests(code: &str) -> String {
    let mut out: Vec<char> = code.chars().collect();
    let text: String = code.to_owned();
    let starts = text.match_indices("#[cfg(").filter(|(at, _)| {
        let condition = text[*at..].split(']').next().unwrap_or_default();
        condition.starts_with("#[cfg(test)") || condition.starts_with("#[cfg(all(test")
    });
    for (byte, _) in starts.collect::<Vec<_>>() {
        let start = text[..byte].chars().count();
        let mut depth = 0;
        for char in out.iter_mut().skip(start) {
            match char {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            let ends = matches!(char, '}' | ';') && depth == 0;
            if *char != '\n' {
                *char = ' ';
            }
            if ends {
                break;
            }
        }
    }
    out.into_iter().collect()
}

/// Line numbers, from 1, of lines that have `word` as a whole word; a word may hold `::`, and may end in `*` for any rest.
pub(crate) fn lines_with(code: &str, word: &str) -> Vec<usize> {
    let (word, open_end) = match word.strip_suffix('*') {
        Some(word) => (word, true),
        None => (word, false),
    };
    let has = |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + word.len()..].chars().next();
            !before.is_some_and(is_word) && (open_end || !after.is_some_and(is_word))
        })
    };
    code.lines().enumerate().filter(|(_, line)| has(line)).map(|(index, _)| index + 1).collect()
}

/// The names of modules that follow `crate::` (or another root), also in `use crate::{a::B, c}`.
pub(crate) fn modules_named(code: &str, root: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices(root) {
        if code[..at].chars().next_back().is_some_and(is_word) {
            continue;
        }
        let rest = &code[at + root.len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let mut depth = 0;
            let mut name = String::new();
            for char in group.chars() {
                match char {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => names.push(std::mem::take(&mut name)),
                    _ if depth == 0 => name.push(char),
                    _ => {}
                }
            }
            names.push(name);
        } else {
            names.push(rest.chars().take_while(|&char| is_word(char)).collect());
        }
    }
    let first = |name: String| name.trim().split("::").next().unwrap_or_default().trim().to_owned();
    names.into_iter().map(first).filter(|name| !name.is_empty()).collect()
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

#[cfg(test)]
mod tests {
    use super::{blank, lines_with, modules_named, source, without_tests};

    #[test]
    fn comments_strings_and_characters_are_blanked() {
        let check = |text: &str, expected: &str| {
            assert_eq!(blank(text).split_whitespace().collect::<Vec<_>>().join(" "), expected, "{text}");
        };
        check("a // b\nc /* d /* e */ f */ g", "a c g");
        check(r#"a "b \" c" d"#, "a d");
        check(r##"a r#"b " c"# d br"e" f"##, "a d f");
        check(r"a 'b' '\'' '\n' c<'d> e", "a c<'d> e");
        check("'\"' a \"'\" b", "a b");
        check("for r in bar", "for r in bar");
        assert_eq!(blank("a\n/* b\nc */\nd").lines().count(), 4);
    }

    #[test]
    fn tests_are_not_production_code() {
        let code =
            "fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() { x }\n}\nfn c() {}\n#[cfg(test)]\nmod d;\nfn e() {}";
        let production = without_tests(code);
        assert_eq!(production.split_whitespace().collect::<Vec<_>>().join(" "), "fn a() {} fn c() {} fn e() {}");
        let file = source("host/src/x.rs".to_owned(), code.to_owned());
        assert_eq!(lines_with(&file.tests(), "b"), [4]);
        assert!(lines_with(&file.tests(), "c").is_empty());
        assert!(source("tests/tests/scenarios/main.rs".to_owned(), code.to_owned()).production.trim().is_empty());
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(lines_with("tonic::x\ntonically\na_tonic\n use tonic;", "tonic"), [1, 4]);
        assert_eq!(lines_with("tonic_health\nx", "tonic*"), [1]);
    }

    #[test]
    fn modules_are_found_in_paths_and_groups() {
        let code = "use crate::a::b;\nuse crate::{c::{d, e}, f, g::h};\nlet x = crate::i::j(mycrate::k);";
        assert_eq!(modules_named(code, "crate::"), ["a", "c", "f", "g", "i"]);
    }
}
