//! dchost's own log: to stderr, a line an event, without raw control characters.

use crate::cli::LogFormat;
use crate::config::LogConfig;
use crate::text::is_harmful;
use std::io::{self, Write};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Starts the log, for the whole process. Further calls have no effect.
///
/// `writer` is written once for each event, with the whole line: [`io::stderr`] or what keeps lines of several writers
/// apart.
pub fn start<W>(config: LogConfig, writer: W)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::new(match config.verbose {
        0 => "warn,dchost=info",
        1 => "info,dchost=debug",
        _ => "debug,dchost=trace",
    });
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
    // A log that was started already goes on as it is.
    let _ = match config.format {
        LogFormat::Text => {
            let builder = builder.with_target(config.verbose > 0);
            builder.with_writer(Escaped(writer)).finish().try_init()
        }
        LogFormat::Json => builder.json().flatten_event(true).with_writer(writer).finish().try_init(),
    };
}

/// Makes writers that escape control characters.
struct Escaped<W>(W);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for Escaped<W> {
    type Writer = EscapedWriter<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        EscapedWriter(self.0.make_writer())
    }

    fn make_writer_for(&'a self, meta: &tracing::Metadata<'_>) -> Self::Writer {
        EscapedWriter(self.0.make_writer_for(meta))
    }
}

/// Escapes control characters, which could forge lines or drive a terminal; the line's end stays.
struct EscapedWriter<W>(W);

impl<W: Write> Write for EscapedWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // The formatter hands over whole lines of text.
        self.0.write_all(escape_line(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Escapes every control character but tabs and a final line end, and what turns the direction of text.
fn escape_line(line: &str) -> String {
    let (text, end) = match line.strip_suffix('\n') {
        Some(text) => (text, "\n"),
        None => (line, ""),
    };
    let mut escaped = String::with_capacity(line.len());
    for c in text.chars() {
        if is_harmful(c) { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    escaped + end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_hold_no_raw_control_characters() {
        for (line, escaped) in [
            ("plain\ttext ü\n", "plain\ttext ü\n"),
            ("a\nforged line\n", "a\\nforged line\n"),
            ("\u{1b}[31mred\r\u{7}", "\\u{1b}[31mred\\r\\u{7}"),
            ("c1 \u{9b}2J\n", "c1 \\u{9b}2J\n"),
            ("turned \u{202e}txt\n", "turned \\u{202e}txt\n"),
        ] {
            assert_eq!(escape_line(line), escaped);
        }
    }

    #[test]
    fn writers_report_what_they_took() {
        let mut writer = EscapedWriter(Vec::new());
        writer.write_all(b"a\x07b\n").expect("a vector takes all");
        assert_eq!(writer.0, b"a\\u{7}b\n");
    }
}
