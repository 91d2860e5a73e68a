//! Components in text: guests that no compiler would make.

use crate::{Run, paths};
use anyhow::{Context, Result, ensure};
use std::borrow::Cow;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// A component of `tests/guests/wat`, assembled when it is used.
///
/// A text may hold placeholders, `%LIKE_THIS%`, which a scenario fills in: one guest for each way to answer, not for each
/// answer.
#[derive(Clone, Debug)]
#[must_use = "nothing is assembled before `path` or `run`"]
pub struct Wat {
    name: &'static str,
    text: Cow<'static, str>,
}

impl Wat {
    /// Takes a text; `name` is that of its file, without extension.
    pub const fn new(name: &'static str, text: &'static str) -> Self {
        Wat { name, text: Cow::Borrowed(text) }
    }

    /// Fills in a placeholder.
    ///
    /// # Panics
    /// The text has none of this name: a mistake of the test.
    pub fn with(mut self, placeholder: &str, value: impl AsRef<str>) -> Self {
        let placeholder = format!("%{placeholder}%");
        assert!(self.text.contains(&placeholder), "no `{placeholder}` in tests/guests/wat/{}.wat", self.name);
        self.text = self.text.replace(&placeholder, value.as_ref()).into();
        self
    }

    /// The component's bytes.
    ///
    /// # Errors
    /// The text cannot be assembled, or a placeholder was not filled in.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        ensure!(!self.text.contains('%'), "{}.wat has a placeholder that nobody filled in", self.name);
        wat::parse_str(&self.text).with_context(|| format!("assemble {}.wat", self.name))
    }

    /// The assembled component, a file in the target folder named after its text: it is there as long as anybody needs it.
    ///
    /// # Errors
    /// It cannot be assembled or written.
    pub fn path(&self) -> Result<PathBuf> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mut hasher = DefaultHasher::new();
        self.text.hash(&mut hasher);
        let folder = paths::target()?.join("wat");
        let path = folder.join(format!("{}-{:016x}.wasm", self.name, hasher.finish()));
        if !path.is_file() {
            fs::create_dir_all(&folder).with_context(|| format!("make `{}`", folder.display()))?;
            // Renamed when it is whole: other tests may use the same one at the same time.
            let unique = format!("{}-{}.part", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let part = folder.join(unique);
            fs::write(&part, self.bytes()?).with_context(|| format!("write `{}`", part.display()))?;
            fs::rename(&part, &path).with_context(|| format!("write `{}`", path.display()))?;
        }
        ensure!(path.is_file(), "no `{}`", path.display());
        Ok(path)
    }

    /// Begins the command line of a local run of the component.
    ///
    /// # Errors
    /// As [`path`](Self::path).
    pub fn run(&self) -> Result<Run> {
        Ok(Run::new(self.name).args(["--module".into(), self.path()?.into_os_string()]))
    }
}
