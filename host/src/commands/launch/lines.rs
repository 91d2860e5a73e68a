//! Splits a child's output into lines of bounded length.

use std::io::{self, BufRead, BufReader, Read};

/// Longest line that is held whole; what is longer is shown in several lines. A guest's line is at most 64 KiB before
/// its control characters are escaped, which makes it at most eight times as long.
pub(super) const LINE_BYTES_MAX: usize = 1 << 20;

/// Calls `each` with every line of `input`, without its newline, until the input ends or fails.
pub(super) fn for_each_line(input: impl Read, bytes_max: usize, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let mut input = BufReader::with_capacity(64 << 10, input);
    let mut line = Vec::new();
    let mut is_continued = false;
    loop {
        line.clear();
        let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX);
        if input.by_ref().take(limit).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let is_whole = line.last() == Some(&b'\n');
        if is_whole {
            line.pop();
        }
        // The newline of a line that was exactly as long as the limit ends that line; it is no empty line.
        if !(is_continued && line.is_empty()) {
            each(&line);
        }
        is_continued = !is_whole;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &[u8], expected: &[&str]) {
        let mut lines = Vec::new();
        for_each_line(input, 4, |line| lines.push(String::from_utf8_lossy(line).into_owned()))
            .expect("slices can be read");
        assert_eq!(lines, expected);
    }

    #[test]
    fn lines_are_whole_and_bounded() {
        check(b"", &[]);
        check(b"a\n\nb", &["a", "", "b"]);
        check(b"abcd\nef\n", &["abcd", "ef"]);
        check(b"abcdefghij\nk\n", &["abcd", "efgh", "ij", "k"]);
        check(b"\xff\n", &["\u{fffd}"]);
    }
}
