//! Checks of what users read.

use std::sync::LazyLock;

/// Checks a text that may have several lines: no control characters beside line breaks and tabs, and an end.
///
/// # Panics
/// The text breaks that.
#[track_caller]
pub fn check_block(text: &str, bytes_max: usize) {
    assert!(text.len() <= bytes_max, "{} bytes, more than {bytes_max}: {}", text.len(), start(text));
    let control = text.chars().find(|char| char.is_control() && !matches!(char, '\n' | '\t'));
    assert_eq!(control, None, "a control character in {}", start(text));
}

/// Checks a text of one line.
///
/// # Panics
/// It has more lines, control characters, or too many bytes.
#[track_caller]
pub fn check_line(text: &str, bytes_max: usize) {
    check_block(text, bytes_max);
    assert!(!text.contains('\n'), "more than one line: {}", start(text));
}

/// Prints what came of an input where `FUZZ_SHOW` is set: for looking at one input.
pub fn show(text: impl FnOnce() -> String) {
    static WANTED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("FUZZ_SHOW").is_some());
    if *WANTED {
        eprintln!("{}", text());
    }
}

fn start(text: &str) -> String {
    text.chars().take(2000).collect::<String>().escape_debug().to_string()
}
