//! The manifest of a checkpoint: which files belong to it, and which variables are where in them.

use super::tensors::METADATA;
use crate::cluster::Task;
use crate::tensor::{DType, TensorType};
use crate::text::shown_within;
use crate::variables::{SlotState, check_variable, tensor_count};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// The manifest's file: written last, so that a directory without it is no checkpoint.
pub(super) const MANIFEST: &str = "manifest.json";

/// Most bytes of a manifest that is read: those of a million variables.
pub(super) const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// What names the format in a manifest.
const FORMAT: &str = "dchost-checkpoint";

/// The version of the format that is written, and the only one that is read.
const VERSION: u32 = 1;

/// How the names of files begin: values, and what optimizers keep.
pub(super) const PREFIXES: [&str; 2] = ["model-", "slots-"];

/// How they end.
const SUFFIX: &str = ".safetensors";

/// The name of a file of tensors.
pub(super) fn file_name(prefix: &str, index: usize, count: usize) -> String {
    format!("{prefix}{index:05}-of-{count:05}{SUFFIX}")
}

/// Whether a file of this name may belong to a checkpoint.
pub(super) fn is_ours(name: &str) -> bool {
    let of = |prefix: &&str| name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(SUFFIX));
    let numbers = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit() || b"-of".contains(&byte));
    name == MANIFEST || PREFIXES.iter().find_map(of).is_some_and(numbers)
}

/// The manifest as it is in its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: String,
    version: u32,
    /// The version of dchost that wrote it, for people.
    #[serde(default)]
    dchost: String,
    /// The container that was saved.
    pub(super) container: String,
    pub(super) files: Vec<FileEntry>,
    pub(super) variables: Vec<VariableEntry>,
}

/// A file of tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileEntry {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

/// A variable, whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VariableEntry {
    pub(super) name: String,
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
    /// When it was saved; of one in parts the least of theirs.
    pub(super) version: u64,
    /// The task that it was placed on, where it doesn't lie by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) on: Option<String>,
    /// Whether it was in parts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) sharded: bool,
    #[serde(flatten)]
    pub(super) value: TensorEntry,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) slots: Option<SlotsEntry>,
}

/// Where a tensor is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TensorEntry {
    pub(super) file: String,
    pub(super) tensor: String,
}

/// What an optimizer keeps beside a variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SlotsEntry {
    pub(super) method: String,
    pub(super) step: u64,
    pub(super) tensors: Vec<TensorEntry>,
}

/// A variable of a checkpoint, after it was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Of the whole variable.
    pub(super) ty: TensorType,
    pub(super) version: u64,
    pub(super) placed: Placed,
    pub(super) slots: Option<SlotState>,
    /// Where its value and its slots are: the index of the file, and the tensor's name.
    pub(super) tensors: Vec<(usize, String)>,
}

/// Where a variable lay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Placed {
    /// Where it lies by itself, whole.
    Auto,
    /// In parts.
    Sharded,
    /// On a task that it was placed on.
    On(Task),
}

impl Manifest {
    /// Makes the manifest of these files.
    pub(super) fn new(container: &str, files: Vec<FileEntry>, entries: &[Entry]) -> Self {
        let tensor = |(file, tensor): &(usize, String)| TensorEntry {
            file: files.get(*file).map(|file| file.name.clone()).unwrap_or_default(),
            tensor: tensor.clone(),
        };
        let variable = |entry: &Entry| {
            let mut tensors = entry.tensors.iter().map(tensor);
            VariableEntry {
                name: entry.name.clone(),
                dtype: entry.ty.dtype.as_str().to_owned(),
                shape: entry.ty.shape.clone(),
                version: entry.version,
                on: match entry.placed {
                    Placed::On(task) => Some(task.to_string()),
                    Placed::Auto | Placed::Sharded => None,
                },
                sharded: entry.placed == Placed::Sharded,
                value: tensors.next().unwrap_or_else(|| TensorEntry { file: String::new(), tensor: String::new() }),
                slots: entry.slots.map(|SlotState { layout, step }| SlotsEntry {
                    method: layout.method.to_owned(),
                    step,
                    tensors: tensors.collect(),
                }),
            }
        };
        let variables = entries.iter().map(variable).collect();
        let dchost = env!("CARGO_PKG_VERSION").to_owned();
        let (format, container) = (FORMAT.to_owned(), container.to_owned());
        Manifest { format, version: VERSION, dchost, container, files, variables }
    }

    /// Its text: a line for each file and each variable.
    pub(super) fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        let Manifest { format, version, dchost, container, files, variables } = self;
        let about = [
            ("format", serde_json::to_string(format)?),
            ("version", version.to_string()),
            ("dchost", serde_json::to_string(dchost)?),
            ("container", serde_json::to_string(container)?),
            ("files", lines(files)?),
            ("variables", lines(variables)?),
        ];
        let about = about.map(|(key, value)| format!("  \"{key}\": {value}"));
        Ok(format!("{{\n{}\n}}\n", about.join(",\n")).into_bytes())
    }

    /// Reads a manifest, and checks all that it says by itself.
    ///
    /// # Errors
    /// In words.
    pub(super) fn read(json: &[u8]) -> Result<(Manifest, Vec<Entry>), String> {
        let manifest: Manifest =
            serde_json::from_slice(json).map_err(|error| format!("{MANIFEST} makes no sense: {error}"))?;
        let Manifest { format, version, .. } = &manifest;
        if format != FORMAT {
            return Err(format!("{MANIFEST} is of the format `{}`, not `{FORMAT}`", shown_within(format, 64)));
        }
        if *version != VERSION {
            let wrote = shown_within(&manifest.dchost, 64);
            return Err(format!(
                "{MANIFEST} is of version `{version}` of the format, written by dchost `{wrote}`; this one reads version `{VERSION}`"
            ));
        }
        let mut files = HashMap::new();
        for (index, FileEntry { name, sha256, .. }) in manifest.files.iter().enumerate() {
            let shown = shown_within(name, 64);
            // No way out of the directory, and not twice the same.
            if !is_ours(name) || name == MANIFEST {
                return Err(format!("{MANIFEST} lists the file `{shown}`, which is no name of a checkpoint's file"));
            }
            if sha256.len() != 64 {
                return Err(format!("{MANIFEST} has no sha256 of `{shown}`"));
            }
            if files.insert(&**name, index).is_some() {
                return Err(format!("{MANIFEST} lists the file `{shown}` twice"));
            }
        }
        let (mut entries, mut names) = (Vec::with_capacity(manifest.variables.len()), HashSet::new());
        for variable in &manifest.variables {
            let entry = entry(variable, &files)
                .map_err(|why| format!("{MANIFEST}, variable `{}`: {why}", shown_within(&variable.name, 256)))?;
            if !names.insert((variable.name.as_str(), entry.placed)) {
                return Err(format!("{MANIFEST} lists the variable `{}` twice", variable.name));
            }
            entries.push(entry);
        }
        drop((files, names));
        Ok((manifest, entries))
    }
}

/// A list with a line for each.
fn lines(all: &[impl Serialize]) -> Result<String, serde_json::Error> {
    let lines = all.iter().map(|one| Ok(format!("\n    {}", serde_json::to_string(one)?)));
    Ok(format!("[{}\n  ]", lines.collect::<Result<Vec<_>, _>>()?.join(",")))
}

/// Checks a variable; `files` has the index of each file.
fn entry(variable: &VariableEntry, files: &HashMap<&str, usize>) -> Result<Entry, String> {
    let VariableEntry { name, dtype, shape, version, on, sharded, value, slots } = variable;
    let dtype = DType::ALL.into_iter().find(|known| known.as_str() == dtype).ok_or_else(|| {
        let known = DType::ALL.map(DType::as_str).join(", ");
        format!("dtype `{}` is unknown, known are {known}", shown_within(dtype, 64))
    })?;
    let ty = TensorType::new(dtype, shape.clone());
    check_variable(name, &ty).map_err(|error| error.message)?;
    let placed = match (on, sharded) {
        (None, false) => Placed::Auto,
        (None, true) => Placed::Sharded,
        (Some(task), false) => Placed::On(parse_task(task)?),
        (Some(_), true) => return Err("it can't be on one task and in parts".to_owned()),
    };
    let state = slots.as_ref().map(|slots| SlotState::checked(&slots.method, slots.step)).transpose();
    let state = state.map_err(|error| error.message)?;
    if state.is_some() && !matches!(dtype, DType::F32 | DType::F64) {
        return Err(format!("{dtype} can't have slots"));
    }
    let tensors: Vec<_> = [value].into_iter().chain(slots.iter().flat_map(|slots| &slots.tensors)).collect();
    if tensors.len() != tensor_count(state) {
        return Err(format!("it has `{}` tensors, but takes `{}`", tensors.len(), tensor_count(state)));
    }
    let place = |entry: &TensorEntry| {
        let file = files.get(&*entry.file);
        let file = file.ok_or_else(|| format!("its file `{}` isn't listed", shown_within(&entry.file, 64)))?;
        Ok::<_, String>((*file, entry.tensor.clone()))
    };
    let tensors = tensors.into_iter().map(place).collect::<Result<_, _>>()?;
    Ok(Entry { name: name.clone(), ty, version: *version, placed, slots: state, tensors })
}

fn parse_task(text: &str) -> Result<Task, String> {
    let bad = || format!("`{}` is no task", shown_within(text, 64));
    let (job, index) = text.split_once(':').ok_or_else(bad)?;
    Ok(Task::new(job.parse().map_err(|_| bad())?, index.parse().map_err(|_| bad())?))
}

/// Names a checkpoint's tensors: as the variables, so that other tools find them.
///
/// # Errors
/// In words: there can't be a tensor of this name.
pub(super) fn tensor_name(name: &str, apart: Option<Task>) -> Result<String, String> {
    if name == METADATA {
        return Err(format!(
            "variable `{METADATA}` can't be saved: safetensors keeps that name for itself; declare the variable under another one"
        ));
    }
    // Of one name on several tasks there are several variables.
    Ok(apart.map_or_else(|| name.to_owned(), |task| format!("{name}@{task}")))
}

/// The name of the tensor of a slot; the last two parts of it have no slash in them, so that no other variable's has it.
pub(super) fn slot_name(tensor: &str, slots: SlotState, index: usize) -> String {
    let slot = slots.layout.names.get(index).copied().unwrap_or_default();
    format!("{tensor}/{}/{slot}", slots.layout.method)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::TaskType;

    fn manifest() -> (Manifest, Vec<Entry>) {
        let file = |prefix| FileEntry { name: file_name(prefix, 0, 1), bytes: 100, sha256: "0".repeat(64) };
        let entry = |name: &str, dtype, shape: &[u64], placed, slots: Option<SlotState>| Entry {
            name: name.to_owned(),
            ty: TensorType::new(dtype, shape),
            version: 7,
            placed,
            slots,
            tensors: std::iter::once((0, name.to_owned()))
                .chain((1..tensor_count(slots)).map(|at| (1, slot_name(name, slots.expect("it has some"), at - 1))))
                .collect(),
        };
        let adam = SlotState::checked("adam", 20).ok();
        let on = Placed::On(Task::new(TaskType::Worker, 3));
        let entries = vec![
            entry("dense/w", DType::F64, &[2, 3], Placed::Sharded, adam),
            entry("名 \"quoted\" \\", DType::U8, &[0], Placed::Auto, None),
            entry("step", DType::S64, &[], on, None),
        ];
        (Manifest::new("default", vec![file(PREFIXES[0]), file(PREFIXES[1])], &entries), entries)
    }

    #[test]
    fn a_manifest_survives_its_file() {
        let (manifest, entries) = manifest();
        let json = manifest.to_json().unwrap();
        assert_eq!(Manifest::read(&json), Ok((manifest, entries)));
    }

    #[test]
    fn a_manifest_that_lies_is_refused_in_words() {
        let json = || serde_json::to_value(manifest().0).unwrap();
        type Spoil = fn(&mut serde_json::Value);
        let cases: [(Spoil, &str); 20] = [
            (|m| m["format"] = "tar".into(), "format `tar`"),
            (|m| m["version"] = 2.into(), "version `2`"),
            (|m| m["version"] = "1".into(), "makes no sense"),
            (|m| m["files"] = 1.into(), "makes no sense"),
            (|m| m["files"][0]["name"] = "../secret".into(), "`../secret`, which is no name"),
            (|m| m["files"][0]["name"] = "/etc/passwd".into(), "no name of a checkpoint's file"),
            (|m| m["files"][0]["name"] = "model-/../x.safetensors".into(), "no name of a checkpoint's file"),
            (|m| m["files"][0]["name"] = "manifest.json".into(), "no name of a checkpoint's file"),
            (|m| m["files"][1] = m["files"][0].clone(), "twice"),
            (|m| m["files"][0]["sha256"] = "0".into(), "no sha256"),
            (|m| m["files"][0]["bytes"] = (-1).into(), "makes no sense"),
            (|m| m["variables"][0]["name"] = "".into(), "is empty; give it one"),
            (|m| m["variables"][0]["dtype"] = "f16".into(), "dtype `f16` is unknown"),
            (|m| m["variables"][0]["shape"] = vec![u64::MAX, 2].into(), "overflows"),
            (|m| m["variables"][0]["file"] = "x".into(), "its file `x` isn't listed"),
            (|m| m["variables"][0]["slots"]["method"] = "sgd".into(), "`sgd` keeps no slots"),
            (|m| m["variables"][0]["slots"]["step"] = u64::MAX.into(), "steps are not restored"),
            (|m| m["variables"][0]["slots"]["tensors"] = Vec::<u8>::new().into(), "`1` tensors, but takes `3`"),
            (|m| m["variables"][2]["on"] = "judge:1".into(), "`judge:1` is no task"),
            (|m| m["variables"][1] = m["variables"][0].clone(), "`dense/w` twice"),
        ];
        for (spoil, why) in cases {
            let mut spoiled = json();
            spoil(&mut spoiled);
            let error = Manifest::read(spoiled.to_string().as_bytes()).expect_err(why);
            assert!(error.contains(why), "{error} has no `{why}`");
        }
        for (text, why) in [("", "makes no sense"), ("[", "makes no sense"), ("{}", "makes no sense")] {
            assert!(Manifest::read(text.as_bytes()).is_err_and(|error| error.contains(why)));
        }
        let deep = "[".repeat(1 << 20);
        assert!(Manifest::read(deep.as_bytes()).is_err());
    }

    #[test]
    fn names_of_files_and_tensors_are_their_own() {
        assert_eq!(file_name("model-", 0, 12), "model-00000-of-00012.safetensors");
        for (name, ours) in [
            ("manifest.json", true),
            ("model-00000-of-00001.safetensors", true),
            ("slots-123456-of-123457.safetensors", true),
            ("model.safetensors", false),
            ("model-notes.safetensors", false),
            ("model-00000-of-00001.safetensors.bak", false),
            ("notes.txt", false),
        ] {
            assert_eq!(is_ours(name), ours, "{name}");
        }
        assert!(tensor_name("__metadata__", None).is_err_and(|error| error.contains("another one")));
        assert_eq!(tensor_name("w", Some(Task::new(TaskType::Ps, 1))).as_deref(), Ok("w@ps:1"));
    }
}
