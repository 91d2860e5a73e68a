//! Text from outside: made harmless, cut, and compared with what was expected.
//!
//! Whatever a guest, another task, a file or a command line says may end on a terminal or in a log. There it must not
//! move the cursor, end the line or turn what follows. Every place that shows such text uses one of these:
//!
//! | function | for |
//! | --- | --- |
//! | [`escaped`], [`escape`] | a line of output, as text or as bytes |
//! | [`escape_block`] | a message of several lines |
//! | [`escaped_json`] | a line of JSON |
//! | [`shown`], [`shown_within`] | a value quoted in a message: also cut |
//! | [`truncated`] | what is kept of a text of any length |
//! | [`hex`] | a digest |
//! | [`nearest`], [`did_you_mean`] | what was meant by an unknown name |

use std::borrow::Cow;
use std::fmt::Write as _;

/// How much of a value a message shows, in bytes: enough to know it again.
const SHOWN_BYTES_MAX: usize = 200;

/// Longest name that is looked for or suggested, in bytes: nobody misspells a longer one, and the cost of a comparison
/// grows with the square.
const NAME_BYTES_MAX: usize = 100;

/// How alike names must be so that one is suggested for the other, from 0 to 1. Below, a suggestion confuses more than it
/// helps; prefixes (`worker_hosts`) still reach it.
pub const LIKENESS_MIN: f64 = 0.7;

/// Whether a character drives a terminal or misleads whoever reads: control characters but the tab, line and paragraph
/// separators, and marks that turn the direction of what follows.
pub fn is_harmful(character: char) -> bool {
    (character.is_control() && character != '\t')
        || matches!(
            character,
            '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
        )
}

/// Replaces what [`is_harmful`] by visible escapes (`\n`, `\u{1b}`), so that the text is one line and drives nothing.
///
/// A second call changes nothing: escapes are plain text.
pub fn escaped(text: &str) -> Cow<'_, str> {
    replaced(text, |escaped, character| escaped.extend(character.escape_default()))
}

/// As [`escaped`], for bytes; those that are no UTF-8 show as `\xff`.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(&escaped(chunk.valid()));
        for byte in chunk.invalid() {
            // Writing to a string can't fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// As [`escaped`], but keeps line ends: for a message that is shown as a block.
pub fn escape_block(text: &str) -> String {
    text.lines().map(escaped).collect::<Vec<_>>().join("\n")
}

/// Replaces what [`is_harmful`] in a line of JSON by JSON's own escapes (`\u001b`), so that it stays the same JSON.
///
/// JSON has such characters within strings only; where it breaks that rule, it is no JSON before and after.
pub fn escaped_json(line: &str) -> Cow<'_, str> {
    replaced(line, |escaped, character| {
        let mut units = [0; 2];
        for unit in character.encode_utf16(&mut units) {
            // Writing to a string can't fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    })
}

fn replaced(text: &str, replace: impl Fn(&mut String, char)) -> Cow<'_, str> {
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut result = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_harmful(character) { replace(&mut result, character) } else { result.push(character) }
    }
    Cow::Owned(result)
}

/// The beginning of `text`, at most `bytes_max` bytes, cut between characters.
pub fn truncated(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// A text and what is known beside it, on lines of its own if there is any.
pub fn with_lines(text: &str, more: &str) -> String {
    if more.is_empty() { text.to_owned() } else { format!("{text}\n{more}") }
}

/// A value from outside, fit for a message: harmless, and cut where it is longer than 200 bytes.
pub fn shown(text: &str) -> String {
    shown_within(text, SHOWN_BYTES_MAX)
}

/// As [`shown`], cut where it is longer than `bytes_max` bytes; its whole length is then told. Tabs show as `\t`, since a
/// value's blanks matter.
pub fn shown_within(text: &str, bytes_max: usize) -> String {
    let kept = truncated(text, bytes_max);
    let shown = escaped(kept).replace('\t', "\\t");
    if kept.len() == text.len() { shown } else { format!("{shown}... ({} bytes)", text.len()) }
}

/// Hexadecimal digits, two for each byte, as sha256sum prints them.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Finds the known name that is most like `name`, whatever their case, if one is at least `likeness_min` (from 0 to 1)
/// alike: [`LIKENESS_MIN`] among few names, more where many names compete.
pub fn nearest<K: AsRef<str>>(name: &str, known: impl IntoIterator<Item = K>, likeness_min: f64) -> Option<K> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let name = name.to_lowercase();
    known
        .into_iter()
        .filter(|known| known.as_ref().len() <= NAME_BYTES_MAX)
        .map(|known| (strsim::jaro_winkler(&name, &known.as_ref().to_lowercase()), known))
        .filter(|&(likeness, _)| likeness >= likeness_min)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}

/// The end of a sentence about an unknown name: ``, did you mean `worker`?``, or nothing.
pub fn did_you_mean(near: Option<impl AsRef<str>>) -> String {
    near.map(|near| format!(", did you mean `{}`?", shown(near.as_ref()))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_or_turns_is_harmful_and_what_is_read_is_not() {
        for harmful in ['\0', '\n', '\r', '\u{1b}', '\u{7f}', '\u{9b}', '\u{200f}', '\u{2028}', '\u{202e}', '\u{2066}']
        {
            assert!(is_harmful(harmful), "{harmful:?}");
        }
        for harmless in ['\t', ' ', 'a', 'ä', '世', '😀', 'ש', '\u{200d}'] {
            assert!(!is_harmful(harmless), "{harmless:?}");
        }
    }

    #[test]
    fn harmful_characters_show_as_escapes_once() {
        for (text, expected) in [
            ("plain\ttext ü", "plain\ttext ü"),
            ("\u{1b}]0;owned\u{7}", "\\u{1b}]0;owned\\u{7}"),
            ("\u{1b}[31mred", "\\u{1b}[31mred"),
            ("a\rb\nc\u{9b}2J\u{7f}", "a\\rb\\nc\\u{9b}2J\\u{7f}"),
            ("a\u{2028}b\u{202e}c", "a\\u{2028}b\\u{202e}c"),
        ] {
            assert_eq!(escaped(text), expected);
            assert_eq!(escaped(expected), expected, "a second look changes nothing");
            assert_eq!(escape(text.as_bytes()), expected);
        }
        assert_eq!(escape(b"a\xff\xe2\x80b"), "a\\xff\\xe2\\x80b");
        assert_eq!(escape_block("a\r\nb\u{1b}\n"), "a\nb\\u{1b}");
    }

    #[test]
    fn json_stays_the_same_json() {
        let text = "a\u{9b}b\u{202e}c\u{7f} ü";
        let line = serde_json::json!({ "message": text }).to_string();
        let harmless = escaped_json(&line);
        assert!(line.contains(is_harmful) && !harmless.contains(is_harmful), "{harmless}");
        let read: serde_json::Value = serde_json::from_str(&harmless).expect("it is JSON still");
        assert_eq!(read["message"], text);
    }

    #[test]
    fn values_in_messages_are_escaped_and_cut() {
        assert_eq!(shown("it's a \"worker\""), "it's a \"worker\"");
        assert_eq!(shown("a\u{1b}[2J\n\tb"), "a\\u{1b}[2J\\n\\tb");
        let long = shown(&"ü".repeat(1 << 20));
        assert!(long.len() < 300 && long.ends_with("... (2097152 bytes)"), "{long}");
        assert_eq!(shown_within("übel", 1), "... (5 bytes)");
    }

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let jobs = ["chief", "evaluator", "ps", "worker"];
        for (name, near) in [
            ("worker_hosts", Some("worker")),
            ("ps_hosts", Some("ps")),
            ("Workr", Some("worker")),
            ("tpu", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, jobs, LIKENESS_MIN), near, "{name}");
        }
        assert_eq!(nearest("train.wasm", vec!["Train.wasm".to_owned()], 0.9).as_deref(), Some("Train.wasm"));
        assert_eq!(nearest(&"w".repeat(1 << 20), ["w"], 0.0), None);
        assert_eq!(did_you_mean(Some("a\u{1b}")), ", did you mean `a\\u{1b}`?");
        assert_eq!(did_you_mean(None::<&str>), "");
    }
}
