//! dchost's own log: to stderr, a line an event, without raw control characters.

use crate::cli::LogFormat;
use crate::config::LogConfig;
use crate::text::{escaped, escaped_json};
use std::borrow::Cow;
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
    // An event that can't be written is lost: told where it was to go, that would panic.
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).log_internal_errors(false);
    // A log that was started already goes on as it is.
    let _ = match config.format {
        LogFormat::Text => {
            let builder = builder.with_target(config.verbose > 0);
            builder.with_writer(Escaped { writer, escape: escaped }).finish().try_init()
        }
        LogFormat::Json => {
            let writer = Escaped { writer, escape: escaped_json };
            builder.json().flatten_event(true).with_writer(writer).finish().try_init()
        }
    };
}

/// [`escaped`] or [`escaped_json`].
type Escape = fn(&str) -> Cow<'_, str>;

/// Makes writers that escape control characters.
struct Escaped<W> {
    writer: W,
    escape: Escape,
}

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for Escaped<W> {
    type Writer = EscapedWriter<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        EscapedWriter { writer: self.writer.make_writer(), escape: self.escape }
    }

    fn make_writer_for(&'a self, meta: &tracing::Metadata<'_>) -> Self::Writer {
        EscapedWriter { writer: self.writer.make_writer_for(meta), escape: self.escape }
    }
}

/// Escapes control characters, which could forge lines or drive a terminal; the line's end stays.
struct EscapedWriter<W> {
    writer: W,
    escape: Escape,
}

impl<W: Write> Write for EscapedWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // The formatter hands over whole lines of text.
        let text = String::from_utf8_lossy(line);
        let (text, end) = text.strip_suffix('\n').map_or((&*text, ""), |text| (text, "\n"));
        self.writer.write_all([&*(self.escape)(text), end].concat().as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_hold_no_raw_control_characters() {
        let json = escaped_json as Escape;
        for (escape, line, expected) in [
            (escaped as Escape, "plain\ttext ü\n", "plain\ttext ü\n"),
            (escaped, "a\nforged line\n", "a\\nforged line\n"),
            (escaped, "\u{1b}[31mred\r\u{7}", "\\u{1b}[31mred\\r\\u{7}"),
            (escaped, "turned \u{202e}txt\n", "turned \\u{202e}txt\n"),
            (json, "{\"message\":\"c1 \u{9b}2J\"}\n", "{\"message\":\"c1 \\u009b2J\"}\n"),
        ] {
            let mut writer = EscapedWriter { writer: Vec::new(), escape };
            writer.write_all(line.as_bytes()).expect("a vector takes all");
            assert_eq!(String::from_utf8(writer.writer).expect("text stays text"), expected);
        }
    }
}
