//! The environment as a value, so that what reads it can be tested.

use crate::coordinator::resolve::Fault;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// The variables of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// Reads the environment of this process.
    pub fn of_process() -> Self {
        std::env::vars_os().collect()
    }

    /// Whether the variable is set and not empty: the rule of `NO_COLOR` and the like.
    pub fn is_set(&self, name: &str) -> bool {
        self.variables.get(OsStr::new(name)).is_some_and(|value| !value.is_empty())
    }

    /// The names of the variables, those that are text.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.variables.keys().filter_map(|name| name.to_str())
    }

    /// Every variable with its value, for a child's environment.
    pub fn variables(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.variables.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// The value of a variable that must be text; none where it is not set.
    ///
    /// # Errors
    /// The value is not UTF-8.
    pub fn text(&self, name: &str) -> Result<Option<&str>, Fault> {
        let Some(value) = self.variables.get(OsStr::new(name)) else { return Ok(None) };
        value.to_str().map(Some).ok_or_else(|| {
            // Without the value, which may be a secret.
            let good_bytes =
                std::str::from_utf8(value.as_encoded_bytes()).map_or_else(|bad| bad.valid_up_to(), str::len);
            let what = format!("is not UTF-8 from byte {good_bytes} of its value on");
            Fault::new(format!("`{name}`"), what, "set it to text, or unset it")
        })
    }

    /// The value of a variable that holds an absolute path; none where it is unset, empty or relative.
    pub(super) fn directory(&self, name: &str) -> Option<PathBuf> {
        self.variables.get(OsStr::new(name)).map(PathBuf::from).filter(|path| path.is_absolute())
    }
}

impl<N: Into<OsString>, V: Into<OsString>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Environment { variables: pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect() }
    }
}
