//! The configuration file: TOML, each key named as its flag.

use super::{KEYS, twin};
use crate::coordinator::resolve::{Fault, values};
use crate::files::{self, ReadError};
use crate::text::{LIKENESS_MIN, nearest, shown};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The largest file that is read, in bytes: a cluster of 10,000 tasks takes less than 1 MiB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Settings that can't stand in a file, because they are needed before it is read.
const NOT_IN_FILE: [&str; 2] = ["log-format", "verbose"];

/// A configuration file that was read.
pub(super) struct ConfigFile {
    pub(super) path: PathBuf,
    table: Table,
}

impl ConfigFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// It can't be read, is no TOML, or has unknown keys.
    pub(super) fn read(place: &str, path: &Path) -> Result<Self, Vec<Fault>> {
        let text = read_text(path).map_err(|error| {
            let what = format!("can't read the file `{}`: {error}", path.display());
            vec![Fault::new(place, what, "give a TOML file")]
        })?;
        ConfigFile::parse(path, &text)
    }

    /// Checks the text of a file.
    ///
    /// # Errors
    /// It is no TOML, or has unknown keys.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, Vec<Fault>> {
        let place = format!("`{}`", path.display());
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| line_at(text, span.start));
            vec![Fault::new(&place, format!("is no TOML: {} in line {line}", error.message().trim()), "")]
        })?;
        let unknown = table.keys().filter(|key| !KEYS.contains(&key.as_str()) || NOT_IN_FILE.contains(&key.as_str()));
        let faults: Vec<_> = unknown
            .map(|key| {
                if NOT_IN_FILE.contains(&key.as_str()) {
                    let mend = format!("give --{key} or {}", twin(key));
                    return Fault::new(&place, format!("`{key}` can't stand in a file, which is read later"), mend);
                }
                let near = nearest(key, KEYS, LIKENESS_MIN).map(|near| format!("did you mean `{near}`?"));
                let what = format!("unknown key `{}`", shown(key));
                Fault::new(&place, what, near.unwrap_or_else(|| "keys are named as the flags are".to_owned()))
            })
            .collect();
        if faults.is_empty() { Ok(ConfigFile { path: path.to_owned(), table }) } else { Err(faults) }
    }

    /// The text of a setting, as a flag would have it.
    ///
    /// # Errors
    /// The value is a list, a table or a date.
    pub(super) fn text(&self, key: &str) -> Result<Option<String>, Fault> {
        self.table.get(key).map(|value| self.scalar(key, value)).transpose()
    }

    /// The texts of a setting that may be given several times: a list or one text.
    ///
    /// # Errors
    /// An entry is no text.
    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<String>>, Fault> {
        match self.table.get(key) {
            None => Ok(None),
            Some(Value::Array(items)) => {
                items.iter().map(|item| self.scalar(key, item)).collect::<Result<_, _>>().map(Some)
            }
            Some(one) => self.scalar(key, one).map(|text| Some(vec![text])),
        }
    }

    /// The text of the cluster: JSON or a path, or a table of jobs.
    ///
    /// # Errors
    /// The value is neither.
    pub(super) fn cluster(&self) -> Result<Option<String>, Fault> {
        match self.table.get("cluster") {
            Some(value @ Value::Table(_)) => match serde_json::to_string(value) {
                Ok(json) => Ok(Some(json)),
                Err(error) => Err(self.fault("cluster", error.to_string())),
            },
            _ => self.text("cluster"),
        }
    }

    fn scalar(&self, key: &str, value: &Value) -> Result<String, Fault> {
        match value {
            Value::String(text) => Ok(text.clone()),
            Value::Integer(number) => Ok(number.to_string()),
            Value::Boolean(on) => Ok(on.to_string()),
            Value::Float(number) => Ok(number.to_string()),
            other => Err(self.fault(key, format!("is of type {}, write it as the flag has it", other.type_str()))),
        }
    }

    fn fault(&self, key: &str, what: String) -> Fault {
        Fault::new(format!("`{key}` in `{}`", self.path.display()), what, "")
    }
}

/// The line, from 1, of a byte of a text; the end of the text is on its last line.
fn line_at(text: &str, at: usize) -> usize {
    let before = text.bytes().take(at).filter(|&byte| byte == b'\n').count();
    (before + 1).min(text.lines().count()).max(1)
}

/// Reads a small text file, without its byte order mark.
///
/// # Errors
/// It can't be read, is too large or is not UTF-8.
pub(super) fn read_text(path: &Path) -> Result<String, ReadError> {
    let mut text = String::new();
    let read = files::open_text(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if read as u64 > FILE_BYTES_MAX {
        return Err(std::io::Error::other(format!("larger than {}", values::size_text(FILE_BYTES_MAX))).into());
    }
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}
