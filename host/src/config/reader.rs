//! Layers: flags beat the environment, which beats the file.

use super::environment::Environment;
use super::file::{ConfigFile, read_text};
use super::twin;
use crate::coordinator::resolve::values::{self, EnvGrant, ValueError};
use crate::coordinator::resolve::{Cache, ClusterText, Fault, Origin, Setting};
use crate::text::shown;
use std::path::{Path, PathBuf};

/// Reads settings from their layers, and collects what is wrong.
pub(super) struct Reader<'a> {
    pub(super) environment: &'a Environment,
    file: Option<ConfigFile>,
    pub(super) faults: Vec<Fault>,
    pub(super) warnings: Vec<String>,
}

impl<'a> Reader<'a> {
    /// Starts with the file that the flag or `DCHOST_CONFIG` names.
    pub(super) fn new(environment: &'a Environment, config: Option<&Path>) -> Self {
        let mut reader = Reader { environment, file: None, faults: Vec::new(), warnings: Vec::new() };
        let setting = reader.pick("config", config.map(Path::to_owned), values::path);
        if let Some(Setting { value: path, origin }) = setting {
            match ConfigFile::read(&origin.place("config"), &path) {
                Ok(file) => reader.file = Some(file),
                Err(faults) => reader.faults.extend(faults),
            }
        }
        reader.warn_about_typos();
        reader
    }

    /// Variables that are almost a twin. Others are left alone: Kubernetes sets `DCHOST_PORT` and the like by itself
    /// for a service of that name.
    fn warn_about_typos(&mut self) {
        // Two letters, so that a swapped pair counts.
        const TYPO_DISTANCE_MAX: usize = 2;
        let twins: Vec<_> = super::KEYS.iter().chain(&["config"]).map(|key| twin(key)).collect();
        let environment = self.environment;
        for name in environment.names().filter(|name| name.starts_with("DCHOST_") && !twins.iter().any(|t| t == name)) {
            let near = twins.iter().map(|twin| (strsim::levenshtein(name, twin), twin)).min();
            if let Some((1..=TYPO_DISTANCE_MAX, twin)) = near {
                let name = shown(name);
                self.warnings.push(format!("the variable `{name}` is unknown, did you mean `{twin}`?"));
            }
        }
    }

    /// Keeps a good value, and notes a fault.
    pub(super) fn keep<T>(&mut self, result: Result<T, Fault>) -> Option<T> {
        result.map_err(|fault| self.faults.push(fault)).ok()
    }

    fn parsed<T>(&mut self, origin: Origin, key: &str, value: Result<T, ValueError>) -> Option<Setting<T>> {
        match value {
            Ok(value) => Some(Setting { value, origin }),
            Err(ValueError(what)) => {
                self.faults.push(Fault::new(origin.place(key), what, ""));
                None
            }
        }
    }

    /// The text below the flag: the environment's, else the file's.
    fn below(&mut self, key: &str) -> Option<(String, Origin)> {
        let name = twin(key);
        let environment = self.environment;
        match environment.text(&name) {
            Ok(Some(text)) => return Some((text.to_owned(), Origin::Environment(name))),
            Ok(None) => {}
            Err(fault) => {
                self.faults.push(fault);
                return None;
            }
        }
        let file = self.file.as_ref()?;
        let origin = Origin::File(file.path.clone());
        let text = if key == "cluster" { file.cluster() } else { file.text(key) };
        self.keep(text)?.map(|text| (text, origin))
    }

    /// One setting.
    pub(super) fn pick<T>(
        &mut self,
        key: &str,
        flag: Option<T>,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Option<Setting<T>> {
        if let Some(value) = flag {
            return Some(Setting { value, origin: Origin::Flag });
        }
        let (text, origin) = self.below(key)?;
        self.parsed(origin, key, parse(&text))
    }

    /// One setting with a default.
    pub(super) fn pick_or<T>(
        &mut self,
        key: &str,
        flag: Option<T>,
        parse: impl Fn(&str) -> Result<T, ValueError>,
        default: T,
    ) -> Setting<T> {
        self.pick(key, flag, parse).unwrap_or_else(|| Setting::default(default))
    }

    /// A switch, off by default.
    pub(super) fn switch(&mut self, key: &str, flag: bool) -> Setting<bool> {
        self.pick_or(key, flag.then_some(true), values::switch, false)
    }

    /// A setting that may be given several times. A layer's list replaces the one below.
    pub(super) fn list<T>(
        &mut self,
        key: &str,
        flags: &[T],
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Setting<Vec<T>>
    where
        T: Clone,
    {
        if !flags.is_empty() {
            return Setting { value: flags.to_vec(), origin: Origin::Flag };
        }
        let name = twin(key);
        let environment = self.environment;
        let (texts, origin) = match (self.keep(environment.text(&name)).flatten(), &self.file) {
            (Some(text), _) => (
                text.split(';').filter(|part| !part.is_empty()).map(str::to_owned).collect(),
                Origin::Environment(name),
            ),
            (None, Some(file)) => {
                let origin = Origin::File(file.path.clone());
                let texts = file.texts(key);
                match self.keep(texts).flatten() {
                    Some(texts) => (texts, origin),
                    None => return Setting::default(Vec::new()),
                }
            }
            (None, None) => return Setting::default(Vec::new()),
        };
        let value =
            texts.iter().filter_map(|text| Some(self.parsed(origin.clone(), key, parse(text))?.value)).collect();
        Setting { value, origin }
    }

    /// The cluster: JSON, or a file that holds it.
    pub(super) fn cluster(&mut self, flag: Option<String>) -> Option<Setting<ClusterText>> {
        let Setting { value: text, origin } = self.pick("cluster", flag, values::text)?;
        if text.trim_start().starts_with(['{', '[', '"', '\'']) || text.trim().is_empty() {
            return Some(Setting { value: ClusterText { json: text, file: None }, origin });
        }
        let file = PathBuf::from(text);
        match read_text(&file) {
            Ok(json) => Some(Setting { value: ClusterText { json, file: Some(file) }, origin }),
            Err(error) => {
                let shown = file.display();
                let what = format!("`{shown}` is neither JSON, which begins with a brace, nor a file to read: {error}");
                self.faults.push(Fault::new(origin.place("cluster"), what, "write {\"worker\":[\"a:2222\"]}"));
                None
            }
        }
    }

    /// Looks up the values of the guest's variables that are handed over from here.
    pub(super) fn env_values(&mut self, grants: &Setting<Vec<EnvGrant>>) -> Vec<(String, String)> {
        let environment = self.environment;
        let mut found = Vec::new();
        for EnvGrant { name, value } in &grants.value {
            let value = match value {
                Some(value) => Some(value.clone()),
                None => match environment.text(name) {
                    Ok(Some(value)) => Some(value.to_owned()),
                    Ok(None) => {
                        let what = format!("`{}` is not set here, so it can't be handed over", shown(name));
                        self.faults.push(Fault::new(grants.origin.place("env"), what, "set it, or give NAME=VALUE"));
                        None
                    }
                    Err(fault) => {
                        self.faults.push(fault);
                        None
                    }
                },
            };
            found.extend(value.map(|value| (name.clone(), value)));
        }
        found
    }

    /// Where compiled components are kept: what the higher layer of the two settings says, and nowhere where one layer
    /// says both. Flags can't say both, so that one of them is all that counts. `compiles`: whether a component will be compiled.
    pub(super) fn cache(&mut self, dir: Option<PathBuf>, no_cache: bool, compiles: bool) -> Setting<Cache> {
        let off = if dir.is_some() { Setting::default(false) } else { self.switch("no-cache", no_cache) };
        let dir = if no_cache { None } else { self.pick("cache-dir", dir, values::path) };
        match dir {
            Some(Setting { value, origin }) if !off.value || origin.rank() > off.origin.rank() => {
                return Setting { value: Cache::Dir(value), origin };
            }
            _ if off.value => return Setting { value: Cache::Off, origin: off.origin },
            _ => {}
        }
        // The base directory rules of freedesktop.org: a relative XDG_CACHE_HOME doesn't count.
        let base = self.environment.directory("XDG_CACHE_HOME");
        let base = base.or_else(|| self.environment.directory("HOME").map(|home| home.join(".cache")));
        if base.is_none() && compiles {
            let why = "neither XDG_CACHE_HOME nor HOME is an absolute path";
            self.warnings
                .push(format!("compiled components are kept nowhere, since {why}: give --cache-dir, or --no-cache"));
        }
        Setting::default(base.map_or(Cache::Off, |base| Cache::Dir(base.join("dchost"))))
    }
}
