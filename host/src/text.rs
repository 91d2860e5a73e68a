//! Text from outside: which of its characters must not reach a terminal or a log as they are.

/// Whether a character drives a terminal or misleads whoever reads: control characters but the tab, line and paragraph
/// separators, and marks that turn the direction of what follows.
pub fn is_harmful(character: char) -> bool {
    (character.is_control() && character != '\t')
        || matches!(
            character,
            '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
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
}
