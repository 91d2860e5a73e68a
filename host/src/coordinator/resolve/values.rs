//! The values that flags, the environment and files share, and how each is written.

use crate::attend::{Mode, Replication};
use crate::error::shown;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use crate::lifetime::EndRule;
pub use crate::runtime::DirGrant;

/// Spellings of [`Mode`].
pub const MODES: [&str; 2] = [Mode::IndependentWorker.as_str(), Mode::SplitClient.as_str()];
/// Spellings of [`Replication`].
pub const REPLICATIONS: [&str; 2] = [Replication::BetweenGraph.as_str(), Replication::InGraph.as_str()];
/// Spellings of [`RpcLayer`].
pub const RPC_LAYERS: [&str; 2] = ["grpc", "none"];
/// Spellings of [`EndRule`].
pub const END_RULES: [&str; 3] = ["all-done", "chief-done", "never"];
/// Keys of `-W`.
pub const WASM_KEYS: [&str; 5] = ["cpu-timeout", "fuel", "max-wasm-stack", "max-handles", "max-output"];

/// Why a text is not a value: what was expected instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
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

/// A variable of the guest's environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvGrant {
    /// Its name.
    pub name: String,
    /// Its value; none: the value in this process's environment.
    pub value: Option<String>,
}

/// One limit of `-W key=value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WasmOption {
    /// Time that the guest may compute, host calls and barrier waits excluded.
    CpuTimeout(Timeout),
    /// Instructions, roughly, that the guest may execute.
    Fuel(u64),
    /// Bytes of the wasm stack.
    MaxWasmStack(u64),
    /// Component handles and resource table entries.
    MaxHandles(u32),
    /// Bytes that the guest may print in all.
    MaxOutput(u64),
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

impl fmt::Display for DirGrant {
    /// Writes the grant as `--dir` reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}{}", self.host.display(), self.guest, if self.read_only { ":ro" } else { "" })
    }
}

impl fmt::Display for EnvGrant {
    /// Writes the name only: values may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

impl fmt::Display for WasmOption {
    /// Writes the limit as `-W` reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WasmOption::CpuTimeout(Timeout(Some(limit))) => write!(f, "cpu-timeout={}ns", limit.as_nanos()),
            WasmOption::CpuTimeout(Timeout(None)) => f.write_str("cpu-timeout=none"),
            WasmOption::Fuel(fuel) => write!(f, "fuel={fuel}"),
            WasmOption::MaxWasmStack(bytes) => write!(f, "max-wasm-stack={bytes}"),
            WasmOption::MaxHandles(handles) => write!(f, "max-handles={handles}"),
            WasmOption::MaxOutput(bytes) => write!(f, "max-output={bytes}"),
        }
    }
}

/// Reads a duration with its unit: `90s`, `10m`, `1h 30m`.
///
/// # Errors
/// A number without unit, anything that is no duration, and more than a year.
pub fn duration(text: &str) -> Result<Duration, ValueError> {
    // A point in time that far ahead can be computed on every system; sums of a few such durations as well.
    const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
    let shown = shown(text);
    match humantime::parse_duration(text.trim()) {
        Ok(duration) if duration > LONGEST => {
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

/// Writes a number of bytes as [`size`] reads it, in the largest unit that leaves no rest.
pub fn size_text(bytes: u64) -> String {
    let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|&(unit, _)| bytes >= unit && bytes.is_multiple_of(unit)) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes}B"),
    }
}

/// Reads a number greater than 0.
///
/// # Errors
/// Anything else.
pub fn count<T: std::str::FromStr + PartialEq + Default>(text: &str) -> Result<T, ValueError> {
    text.trim()
        .parse::<T>()
        .ok()
        .filter(|count| *count != T::default())
        .ok_or_else(|| ValueError(format!("`{text}` is no whole number above 0 that dchost can count to")))
}

/// Reads `true`, `false`, `1` or `0`, the forms of a switch in the environment and in a file.
///
/// # Errors
/// Anything else.
pub fn switch(text: &str) -> Result<bool, ValueError> {
    match text.trim() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
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

/// Reads `HOST[::GUEST][:ro]`; without GUEST the guest sees the directory under HOST's path.
///
/// # Errors
/// An empty HOST or GUEST.
pub fn dir_grant(text: &str) -> Result<DirGrant, ValueError> {
    let (rest, read_only) = match text.strip_suffix(":ro") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let (host, guest) = rest.split_once("::").unwrap_or((rest, rest));
    // A misspelt `:ro` must not become a grant to write.
    if let Some((_, suffix)) = guest.rsplit_once(':') {
        let suffix = shown(suffix);
        let message = format!("`{}` ends in `:{suffix}`, only `:ro` may follow the guest's path", shown(text));
        return Err(ValueError(message));
    }
    if host.is_empty() || guest.is_empty() {
        return Err(ValueError(format!("`{text}` lacks a directory, write HOST, HOST::GUEST or HOST::GUEST:ro")));
    }
    Ok(DirGrant { host: PathBuf::from(host), guest: guest.to_owned(), read_only })
}

/// Reads `NAME[=VALUE]`.
///
/// # Errors
/// An empty NAME.
pub fn env_grant(text: &str) -> Result<EnvGrant, ValueError> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    if name.is_empty() || text.contains('\0') {
        return Err(ValueError(format!("`{}` lacks a name, write NAME or NAME=VALUE", text.escape_debug())));
    }
    Ok(EnvGrant { name: name.to_owned(), value })
}

/// Reads `KEY=VALUE` of `-W`.
///
/// # Errors
/// An unknown KEY, listing the known; a VALUE that doesn't fit.
pub fn wasm_option(text: &str) -> Result<WasmOption, ValueError> {
    let Some((key, value)) = text.split_once('=') else {
        return Err(ValueError(format!("`{text}` is not KEY=VALUE, keys are {}", WASM_KEYS.join(", "))));
    };
    Ok(match key.trim() {
        "cpu-timeout" => WasmOption::CpuTimeout(positive_timeout(value)?),
        "fuel" => WasmOption::Fuel(count(value)?),
        "max-wasm-stack" => WasmOption::MaxWasmStack(size(value)?),
        "max-handles" => WasmOption::MaxHandles(count(value)?),
        "max-output" => WasmOption::MaxOutput(size(value)?),
        other => return Err(unknown(other, &WASM_KEYS)),
    })
}

fn unknown(text: &str, known: &[&str]) -> ValueError {
    let hint = nearest(text, known.iter().copied()).map(|name| format!(", did you mean `{name}`?")).unwrap_or_default();
    ValueError(format!("unknown `{text}`, known are {}{hint}", known.join(", ")))
}

/// Finds the known name that is most like `name`, if one is near enough to be meant.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Below 0.7 a suggestion confuses more than it helps; prefixes (`worker_hosts`) reach it through Jaro-Winkler.
    const NEAR: f64 = 0.7;
    // Nobody misspells a name by that much, and the comparison's cost grows with the square.
    const NAME_BYTES_MAX: usize = 100;
    let known = if name.len() <= NAME_BYTES_MAX { Some(known) } else { None };
    known
        .into_iter()
        .flatten()
        .map(|known| (strsim::jaro_winkler(&name.to_lowercase(), known), known))
        .filter(|&(likeness, _)| likeness >= NEAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
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

    #[test]
    fn directories_follow_the_wasmtime_spelling() {
        let grant = |host: &str, guest: &str, read_only| DirGrant { host: host.into(), guest: guest.into(), read_only };
        assert_eq!(dir_grant("data"), Ok(grant("data", "data", false)));
        assert_eq!(dir_grant("data:ro"), Ok(grant("data", "data", true)));
        assert_eq!(dir_grant("a/b::/data:ro"), Ok(grant("a/b", "/data", true)));
        // Not a grant to write below another path.
        for text in ["/tmp::/a:rox", "/tmp::/a:RO", "data::d:rw", "data:rw"] {
            assert!(dir_grant(text).is_err(), "{text}");
        }
        assert_eq!(dir_grant("C:x::/data"), Ok(grant("C:x", "/data", false)), "the host's path may hold one");
        assert!(dir_grant("").is_err() && dir_grant("a::").is_err() && dir_grant("::/b").is_err());
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
    fn near_names_are_found_and_far_ones_are_not() {
        let jobs = ["chief", "evaluator", "ps", "worker"];
        for (name, near) in
            [("worker_hosts", Some("worker")), ("ps_hosts", Some("ps")), ("Workr", Some("worker")), ("tpu", None)]
        {
            assert_eq!(nearest(name, jobs), near, "{name}");
        }
    }

    #[test]
    fn sandbox_options_write_as_they_read() {
        for text in ["fuel=3", "max-handles=9", "max-output=4096", "max-wasm-stack=65536", "cpu-timeout=none"] {
            assert_eq!(wasm_option(text).expect("reads").to_string(), text);
        }
        assert!(wasm_option("fuel").is_err() && wasm_option("fuel=0").is_err());
    }
}
