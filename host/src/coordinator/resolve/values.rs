//! The values that flags, the environment and files share, and how each is written.

mod grants;

use crate::attend::{Mode, Replication};
use crate::text::{LIKENESS_MIN, did_you_mean, escaped, hex, nearest, shown};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

pub use crate::lifetime::EndRule;
pub use grants::{EnvGrant, dir_grant, env_grant, net_grant};

pub use crate::runtime::{DirGrant, NetGrant, NetHost};

/// Spellings of [`Mode`].
pub const MODES: [&str; 2] = [Mode::IndependentWorker.as_str(), Mode::SplitClient.as_str()];
/// Spellings of [`Replication`].
pub const REPLICATIONS: [&str; 2] = [Replication::BetweenGraph.as_str(), Replication::InGraph.as_str()];
/// Spellings of [`RpcLayer`].
pub const RPC_LAYERS: [&str; 2] = ["grpc", "none"];
/// Spellings of [`EndRule`].
pub const END_RULES: [&str; 3] = ["all-done", "chief-done", "never"];
/// Keys of `-W`.
pub const WASM_KEYS: [&str; 9] = [
    "cpu-timeout",
    "fuel",
    "max-wasm-stack",
    "max-handles",
    "max-output",
    "max-output-line",
    "max-output-rate",
    "max-ops",
    "unknown-imports-trap",
];
/// Keys of `-D`.
pub const DEBUG_KEYS: [&str; 1] = ["coredump"];

/// The longest duration. A point in time that far ahead can be computed on every system; sums of a few such durations as well.
pub const DURATION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Most threads that multiply matrices for a guest.
pub const THREADS_MAX: u32 = 1024;

/// Why a text is not a value: what was expected instead. Prints on one line, whatever the text is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", escaped(.0))]
pub struct ValueError(pub String);

/// What stands before the address in a master target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RpcLayer {
    /// `grpc://`.
    Grpc,
    /// Nothing.
    None,
}

impl RpcLayer {
    /// Returns the master target for an address.
    ///
    /// # Source
    /// `_get_master_target` of TensorFlow's `distribute_coordinator.py`: no prefix is stripped or added twice.
    pub fn target(self, address: &str) -> String {
        match self {
            RpcLayer::Grpc => format!("grpc://{address}"),
            RpcLayer::None => address.to_owned(),
        }
    }
}

/// A duration or none, which means without limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timeout(pub Option<Duration>);

/// A number of bytes or none, which means without limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SizeLimit(pub Option<u64>);

/// A number of threads or none, which means one for each processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadCount(pub Option<u32>);

/// One limit of `-W key=value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WasmOption {
    /// Time that the guest may compute, host calls and barrier waits excluded.
    CpuTimeout(Timeout),
    /// Instructions, roughly, that the guest may execute; none: not counted.
    Fuel(Option<u64>),
    /// Bytes of the wasm stack.
    MaxWasmStack(u64),
    /// Component handles and resource table entries.
    MaxHandles(u32),
    /// Bytes that the guest may print in all.
    MaxOutput(u64),
    /// Bytes of one line that the guest prints.
    MaxOutputLine(u64),
    /// Bytes that the guest may print in a second.
    MaxOutputRate(u64),
    /// Op calls in flight.
    MaxOps(u32),
    /// Whether unknown imports trap when they are called, instead of being refused.
    UnknownImportsTrap(bool),
}

/// One setting of `-D key=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DebugOption {
    /// Where a trap leaves the guest's memory.
    Coredump(PathBuf),
}

macro_rules! spelled {
    ($name:ident, $kind:ty, $all:expr, [$($variant:expr),+]) => {
        #[doc = concat!("Reads one of [`", stringify!($all), "`].\n\n# Errors\nAnything else.")]
        pub fn $name(text: &str) -> Result<$kind, ValueError> {
            let all = [$($variant),+];
            $all.iter().position(|known| *known == text).map(|at| all[at]).ok_or_else(|| unknown(text, &$all))
        }
    };
}

spelled!(mode, Mode, MODES, [Mode::IndependentWorker, Mode::SplitClient]);
spelled!(replication, Replication, REPLICATIONS, [Replication::BetweenGraph, Replication::InGraph]);
spelled!(rpc_layer, RpcLayer, RPC_LAYERS, [RpcLayer::Grpc, RpcLayer::None]);
spelled!(end_rule, EndRule, END_RULES, [EndRule::AllDone, EndRule::ChiefDone, EndRule::Never]);

impl fmt::Display for RpcLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(RPC_LAYERS[*self as usize])
    }
}

impl fmt::Display for EndRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(END_RULES[*self as usize])
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(duration) => humantime::format_duration(duration).fmt(f),
            None => f.pad("none"),
        }
    }
}

impl fmt::Display for SizeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.map_or_else(|| "none".to_owned(), size_text))
    }
}

impl fmt::Display for ThreadCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.map_or_else(|| "all".to_owned(), |count| count.to_string()))
    }
}

impl fmt::Display for WasmOption {
    /// Writes the limit as `-W` reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WasmOption::CpuTimeout(Timeout(Some(limit))) => write!(f, "cpu-timeout={}ns", limit.as_nanos()),
            WasmOption::CpuTimeout(Timeout(None)) => f.write_str("cpu-timeout=none"),
            WasmOption::Fuel(Some(fuel)) => write!(f, "fuel={fuel}"),
            WasmOption::Fuel(None) => f.write_str("fuel=off"),
            WasmOption::MaxWasmStack(bytes) => write!(f, "max-wasm-stack={bytes}"),
            WasmOption::MaxHandles(handles) => write!(f, "max-handles={handles}"),
            WasmOption::MaxOutput(bytes) => write!(f, "max-output={bytes}"),
            WasmOption::MaxOutputLine(bytes) => write!(f, "max-output-line={bytes}"),
            WasmOption::MaxOutputRate(bytes) => write!(f, "max-output-rate={bytes}"),
            WasmOption::MaxOps(ops) => write!(f, "max-ops={ops}"),
            WasmOption::UnknownImportsTrap(on) => write!(f, "unknown-imports-trap={on}"),
        }
    }
}

/// Reads a duration with its unit: `90s`, `10m`, `1h 30m`.
///
/// # Errors
/// A number without unit, anything that is no duration, and more than a year.
pub fn duration(text: &str) -> Result<Duration, ValueError> {
    let shown = shown(text);
    match humantime::parse_duration(text.trim()) {
        Ok(duration) if duration > DURATION_MAX => {
            Err(ValueError(format!("`{shown}` is more than a year, which no job lasts; give a shorter duration")))
        }
        Ok(duration) => Ok(duration),
        Err(error) => Err(ValueError(format!("`{shown}` is no duration such as `90s` or `10m`: {error}"))),
    }
}

/// Reads a duration longer than zero.
///
/// # Errors
/// As [`duration`], and zero.
pub fn positive_duration(text: &str) -> Result<Duration, ValueError> {
    match duration(text)? {
        Duration::ZERO => Err(ValueError(format!("`{text}` leaves no time at all, give a duration such as `90s`"))),
        positive => Ok(positive),
    }
}

/// The shortest interval of looking again: below, looking is most of what a server does.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Reads an interval, of 100 ms and more.
///
/// # Errors
/// As [`duration`], and a shorter one.
pub fn interval(text: &str) -> Result<Duration, ValueError> {
    match duration(text)? {
        short if short < INTERVAL_MIN => {
            Err(ValueError(format!("`{text}` is too short, give {} or more", humantime::format_duration(INTERVAL_MIN))))
        }
        interval => Ok(interval),
    }
}

/// Reads a duration, or `none` for no limit.
///
/// # Errors
/// As [`duration`].
pub fn timeout(text: &str) -> Result<Timeout, ValueError> {
    if text.trim() == "none" { Ok(Timeout(None)) } else { duration(text).map(|limit| Timeout(Some(limit))) }
}

/// Reads a duration longer than zero, or `none` for no limit.
///
/// # Errors
/// As [`positive_duration`].
pub fn positive_timeout(text: &str) -> Result<Timeout, ValueError> {
    if text.trim() == "none" { Ok(Timeout(None)) } else { positive_duration(text).map(|limit| Timeout(Some(limit))) }
}

/// Reads a number of bytes greater than 0: `4096`, `512KiB`, `64MiB`, `1GiB`, `2TiB` (also `Ki`, ...; `KB`, ... are
/// powers of 1000).
///
/// # Errors
/// Another unit, a fraction, zero, and more than 2^64 - 1.
pub fn size(text: &str) -> Result<u64, ValueError> {
    const UNITS: [(&[&str], u64); 8] = [
        (&["", "b"], 1),
        (&["kib", "ki"], 1 << 10),
        (&["mib", "mi"], 1 << 20),
        (&["gib", "gi"], 1 << 30),
        (&["tib", "ti"], 1 << 40),
        (&["kb"], 1_000),
        (&["mb"], 1_000_000),
        (&["gb"], 1_000_000_000),
    ];
    let trimmed = text.trim();
    let (number, unit) = trimmed.split_at(trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len()));
    let unit = unit.trim().to_ascii_lowercase();
    let factor = UNITS.iter().find(|(names, _)| names.contains(&unit.as_str())).map(|&(_, factor)| factor);
    let bytes = number.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| {
        ValueError(format!("`{text}` is no size: give whole bytes above 0, or a number with KiB, MiB, GiB or TiB"))
    })
}

/// Reads a size, or `none` for no limit.
///
/// # Errors
/// As [`size`].
pub fn size_limit(text: &str) -> Result<SizeLimit, ValueError> {
    if text.trim() == "none" { Ok(SizeLimit(None)) } else { size(text).map(|bytes| SizeLimit(Some(bytes))) }
}

/// Writes a number of bytes as [`size`] reads it, in the largest unit that leaves no rest.
pub fn size_text(bytes: u64) -> String {
    let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|&(unit, _)| bytes >= unit && bytes.is_multiple_of(unit)) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes}B"),
    }
}

/// Reads a whole number of digits alone; Rust's own parser takes a plus sign too.
pub(super) fn digits<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Reads a number greater than 0.
///
/// # Errors
/// Anything else.
pub fn count<T: FromStr + PartialEq + Default>(text: &str) -> Result<T, ValueError> {
    digits(text.trim())
        .filter(|count| *count != T::default())
        .ok_or_else(|| ValueError(format!("`{text}` is no whole number above 0 that dchost can count to")))
}

/// Reads a number of threads of at most [`THREADS_MAX`], or `all`.
///
/// # Errors
/// As [`count`], and for more.
pub fn thread_count(text: &str) -> Result<ThreadCount, ValueError> {
    if text.trim() == "all" {
        return Ok(ThreadCount(None));
    }
    let threads = count(text)?;
    if threads > THREADS_MAX {
        return Err(ValueError(format!(
            "`{text}` are more threads than {THREADS_MAX}, which no machine has processors for"
        )));
    }
    Ok(ThreadCount(Some(threads)))
}

/// Reads an amount of fuel, or `off`, by which it isn't counted.
///
/// # Errors
/// As [`count`].
pub fn fuel(text: &str) -> Result<Option<u64>, ValueError> {
    if text.trim() == "off" { Ok(None) } else { count(text).map(Some) }
}

/// Reads `true`, `false`, `1`, `0`, `on` or `off`, the forms of a switch in the environment and in a file.
///
/// # Errors
/// Anything else.
pub fn switch(text: &str) -> Result<bool, ValueError> {
    match text.trim() {
        "true" | "1" | "on" => Ok(true),
        "false" | "0" | "off" => Ok(false),
        _ => Err(ValueError(format!("`{text}` is neither true nor false"))),
    }
}

/// Reads a path, which any text but the empty one is.
///
/// # Errors
/// The empty text.
pub fn path(text: &str) -> Result<PathBuf, ValueError> {
    if text.is_empty() { Err(ValueError("the path is empty".to_owned())) } else { Ok(PathBuf::from(text)) }
}

/// Reads any text.
///
/// # Errors
/// None; it has the form of the other readers.
pub fn text(text: &str) -> Result<String, ValueError> {
    Ok(text.to_owned())
}

/// Reads `KEY=VALUE` of `-W`.
///
/// # Errors
/// An unknown KEY, listing the known; a VALUE that doesn't fit.
pub fn wasm_option(text: &str) -> Result<WasmOption, ValueError> {
    // A switch may stand alone, as in wasmtime.
    let (key, value) = match text.split_once('=') {
        Some(pair) => pair,
        None if text.trim() == "unknown-imports-trap" => (text, "true"),
        None => return Err(ValueError(format!("`{text}` is not KEY=VALUE, keys are {}", WASM_KEYS.join(", ")))),
    };
    Ok(match key.trim() {
        "cpu-timeout" => WasmOption::CpuTimeout(positive_timeout(value)?),
        "fuel" => WasmOption::Fuel(fuel(value)?),
        "max-wasm-stack" => WasmOption::MaxWasmStack(size(value)?),
        "max-handles" => WasmOption::MaxHandles(count(value)?),
        "max-output" => WasmOption::MaxOutput(size(value)?),
        "max-output-line" => WasmOption::MaxOutputLine(size(value)?),
        "max-output-rate" => WasmOption::MaxOutputRate(size(value)?),
        "max-ops" => WasmOption::MaxOps(count(value)?),
        "unknown-imports-trap" => WasmOption::UnknownImportsTrap(switch(value)?),
        other => return Err(unknown(other, &WASM_KEYS)),
    })
}

/// Reads `KEY=VALUE` of `-W` where nothing runs.
///
/// # Errors
/// As [`wasm_option`]; a KEY that only a run heeds.
pub fn compile_option(text: &str) -> Result<WasmOption, ValueError> {
    match wasm_option(text)? {
        option @ (WasmOption::Fuel(_) | WasmOption::UnknownImportsTrap(_)) => Ok(option),
        other => Err(ValueError(format!("`{other}` is for the run, here keys are fuel, unknown-imports-trap"))),
    }
}

/// Reads `KEY=VALUE` of `-D`.
///
/// # Errors
/// An unknown KEY, listing the known; a VALUE that doesn't fit.
pub fn debug_option(text: &str) -> Result<DebugOption, ValueError> {
    match text.split_once('=') {
        Some(("coredump", dir)) => path(dir).map(DebugOption::Coredump),
        Some((other, _)) => Err(unknown(other, &DEBUG_KEYS)),
        None => Err(ValueError(format!("`{}` is not KEY=VALUE, keys are {}", shown(text), DEBUG_KEYS.join(", ")))),
    }
}

/// Reads `sha256:` and 64 hexadecimal digits.
///
/// # Errors
/// Another algorithm, another length, anything that is no hexadecimal digit.
pub fn digest(text: &str) -> Result<[u8; 32], ValueError> {
    let read = || {
        let digits = text.trim().strip_prefix("sha256:")?;
        if digits.len() != 64 || !digits.is_ascii() {
            return None;
        }
        let mut digest = [0; 32];
        for (byte, at) in digest.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok().filter(|_| digits.as_bytes()[at] != b'+')?;
        }
        Some(digest)
    };
    read().ok_or_else(|| {
        ValueError(format!(
            "`{}` is no digest: write `sha256:` and 64 hexadecimal digits, as sha256sum prints them",
            shown(text)
        ))
    })
}

/// Writes a digest as [`digest`] reads it.
pub fn digest_text(digest: &[u8; 32]) -> String {
    format!("sha256:{}", hex(digest))
}

fn unknown(text: &str, known: &[&str]) -> ValueError {
    let (text, hint) = (shown(text), did_you_mean(nearest(text, known, LIKENESS_MIN)));
    ValueError(format!("unknown `{text}`, known are {}{hint}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_and_decimal_units() {
        for (text, bytes) in [
            ("4096", Some(4096)),
            ("512KiB", Some(512 << 10)),
            ("64 MiB", Some(64 << 20)),
            ("1gib", Some(1 << 30)),
            ("2Gi", Some(2 << 30)),
            ("1KB", Some(1000)),
            ("0", None),
            ("1.5GiB", None),
            ("5M", None),
            ("-1", None),
            ("", None),
            ("99999999999TiB", None),
        ] {
            assert_eq!(size(text).ok(), bytes, "{text}");
        }
    }

    #[test]
    fn written_sizes_read_back() {
        for bytes in [1, 1000, 1024, 1536, 64 << 20, (1 << 30) + 1, 3 << 40, u64::MAX] {
            assert_eq!(size(&size_text(bytes)).ok(), Some(bytes));
        }
    }

    /// What help and documents call a default can be given, so that a layer can undo what a lower one says.
    #[test]
    fn words_for_no_limit_are_read_as_they_are_written() {
        assert_eq!((fuel("off"), fuel(" 7 ")), (Ok(None), Ok(Some(7))));
        assert_eq!((size_limit("none"), size_limit("1KiB")), (Ok(SizeLimit(None)), Ok(SizeLimit(Some(1024)))));
        assert_eq!((SizeLimit(None).to_string(), SizeLimit(Some(1024)).to_string()), ("none".into(), "1KiB".into()));
        assert_eq!((timeout("none"), switch("off"), switch("on")), (Ok(Timeout(None)), Ok(false), Ok(true)));
        assert_eq!((thread_count("all"), thread_count("8")), (Ok(ThreadCount(None)), Ok(ThreadCount(Some(8)))));
        assert_eq!((ThreadCount(None).to_string(), ThreadCount(Some(8)).to_string()), ("all".into(), "8".into()));
        assert!(thread_count("0").is_err() && thread_count("1025").is_err() && thread_count("none").is_err());
        assert!(
            fuel("+7").is_err()
                && fuel("0").is_err()
                && fuel("none").is_err()
                && size_limit("off").is_err()
                && size_limit("0").is_err()
        );
    }

    #[test]
    fn timeouts_need_a_unit_and_may_be_none() {
        assert_eq!(timeout("none"), Ok(Timeout(None)));
        assert_eq!(timeout("1m 30s"), Ok(Timeout(Some(Duration::from_secs(90)))));
        assert!(timeout("30").is_err());
        assert!(duration("366days").is_ok() && duration("367days").is_err() && duration("500000000years").is_err());
        assert!(positive_timeout("0s").is_err());
    }

    #[test]
    fn sandbox_options_write_as_they_read() {
        for text in
            ["fuel=3", "fuel=off", "max-handles=9", "max-output=4096", "max-wasm-stack=65536", "cpu-timeout=none"]
        {
            assert_eq!(wasm_option(text).expect("reads").to_string(), text);
        }
        assert!(wasm_option("fuel").is_err() && wasm_option("fuel=0").is_err());
    }

    #[test]
    fn digests_are_sha256_in_hexadecimal() {
        let text = format!("sha256:{}", "0aF1".repeat(16));
        assert_eq!(digest_text(&digest(&text).unwrap()), text.to_lowercase());
        let long = "0".repeat(65);
        for text in ["", "sha256:", "sha512:00", &long, &format!("sha256:{long}"), &format!("sha256:{}+0", &long[..62])]
        {
            assert!(digest(text).is_err(), "{text:?} is accepted");
        }
    }

    #[test]
    fn refusals_print_on_one_line() {
        let text = "fuel=\n\u{1b}[2J";
        let refusals = [size(text).err(), wasm_option(text).err(), switch(text).err(), timeout(text).err()];
        for refusal in refusals {
            let refusal = refusal.expect("refused").to_string();
            assert!(!refusal.contains(char::is_control) && refusal.contains(r"\u{1b}[2J"), "{refusal:?}");
        }
    }

    #[test]
    fn debug_settings_are_known_by_key() {
        assert_eq!(debug_option("coredump=/a=b"), Ok(DebugOption::Coredump("/a=b".into())));
        assert!(debug_option("coredmp=/a").unwrap_err().0.contains("did you mean `coredump`?"));
        assert!(debug_option("coredump").is_err() && debug_option("coredump=").is_err());
    }
}
