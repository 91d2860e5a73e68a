//! `dchost new`: writes a crate with a first worker_fn, a native test and a README.

use super::print;
use crate::cli;
use crate::exit::Exit;
use crate::text;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The crate's files: where each lies, and its text, in which `{{words}}` are replaced.
const TEMPLATES: [(&str, &str); 6] = [
    ("Cargo.toml", include_str!("new/Cargo.toml.in")),
    (".cargo/config.toml", include_str!("new/cargo-config.toml.in")),
    ("rust-toolchain.toml", include_str!("new/rust-toolchain.toml.in")),
    ("src/lib.rs", include_str!("new/lib.rs.in")),
    ("README.md", include_str!("new/README.md.in")),
    (".gitignore", include_str!("new/gitignore.in")),
];

/// The toolchain that dchost and its SDK are built and tested with.
const RUST: &str = "1.95.0";

/// More bytes than anybody types, few enough for every file system with what cargo appends.
const NAME_BYTES_MAX: usize = 64;

/// Names that Rust or cargo keep for themselves, and that of the SDK, on which the crate depends.
const RESERVED: &[&str] = &[
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "build",
    "const",
    "continue",
    "core",
    "crate",
    "dchost-guest",
    "deps",
    "do",
    "dyn",
    "else",
    "enum",
    "examples",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "incremental",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "proc-macro",
    "pub",
    "ref",
    "return",
    "self",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "trait",
    "true",
    "try",
    "type",
    "typeof",
    "unsafe",
    "unsized",
    "use",
    "virtual",
    "where",
    "while",
    "yield",
];

/// Where the new crate's SDK comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SdkSource {
    /// A directory on this machine.
    Path(PathBuf),
    /// The registry, with this version.
    Version(String),
}

impl SdkSource {
    /// The SDK beside the sources that this binary was built of, if they are still there; else the registry's of this version.
    pub fn detect() -> Self {
        let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest-sdk");
        match beside.canonicalize() {
            Ok(path) if path.join("Cargo.toml").is_file() => SdkSource::Path(path),
            _ => SdkSource::Version(env!("CARGO_PKG_VERSION").to_owned()),
        }
    }

    /// The right-hand side of a dependency in Cargo.toml. A JSON string is a TOML string too.
    fn dependency(&self) -> String {
        match self {
            SdkSource::Path(path) => format!("{{ path = {} }}", serde_json::Value::from(path.to_string_lossy())),
            SdkSource::Version(version) => serde_json::Value::from(version.as_str()).to_string(),
        }
    }
}

/// Why a crate wasn't written.
#[derive(Debug, thiserror::Error)]
pub enum NewError {
    /// The name isn't in kebab-case.
    #[error("`{name}` isn't a crate name: lowercase letters, digits and single hyphens, a letter first{}", suggest(.name))]
    Name {
        /// The name as given.
        name: String,
    },
    /// The name is longer than anybody needs.
    #[error("the crate name has {} bytes, at most {NAME_BYTES_MAX} are allowed", .name.len())]
    NameTooLong {
        /// The name as given.
        name: String,
    },
    /// The name means something else to Rust or cargo.
    #[error(
        "`{name}` can't be a crate's name: Rust or cargo keeps it for itself; choose another one, `{name}-job` for instance"
    )]
    NameReserved {
        /// The name as given.
        name: String,
    },
    /// The path ends in nothing that could be a name.
    #[error("`{}` has no last part to name the crate after; give one with --name", crate::text::path(.dir))]
    NoName {
        /// The directory as given.
        dir: PathBuf,
    },
    /// There is something already.
    #[error("`{}` isn't empty; nothing is written over, so give a new directory", crate::text::path(.dir))]
    NotEmpty {
        /// The directory as given.
        dir: PathBuf,
    },
    /// There is a file where the directory should be.
    #[error("`{}` is a file, not a directory", crate::text::path(.path))]
    NotADirectory {
        /// The path as given.
        path: PathBuf,
    },
    /// The file system refuses.
    #[error("can't {action} `{}`", crate::text::path(.path))]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl NewError {
    /// The exit code: a mistake of the user's, or files that can't be written.
    pub fn exit(&self) -> Exit {
        match self {
            NewError::Io { .. } => Exit::Files,
            NewError::Name { .. }
            | NewError::NameTooLong { .. }
            | NewError::NameReserved { .. }
            | NewError::NoName { .. }
            | NewError::NotEmpty { .. }
            | NewError::NotADirectory { .. } => Exit::Refused,
        }
    }
}

/// Writes the crate that the command line asks for, and says on standard output what to do with it.
///
/// # Errors
/// Standard output can't be written. A refusal is shown on standard error and is an exit code.
pub fn run(args: &cli::New) -> anyhow::Result<Exit> {
    let name = crate_name(&args.path, args.name.as_deref())?;
    let files = create(&args.path, &name, SdkSource::detect())?;
    print(&report(&args.path, &name, &files))?;
    Ok(Exit::Done)
}

/// Writes a crate called `name` into `dir`, which must not exist or be empty; returns the files, relative to `dir`.
///
/// The crate builds, is formatted, and passes its own tests and clippy as written.
///
/// # Errors
/// A bad name, a directory that has something in it, or a file that can't be written; in the last case those written
/// before it stay.
pub fn create(dir: &Path, name: &str, sdk: SdkSource) -> Result<Vec<PathBuf>, NewError> {
    check_name(name)?;
    check_vacant(dir)?;
    let words = [
        ("name", name.to_owned()),
        ("wasm", name.replace('-', "_")),
        ("sdk", sdk.dependency()),
        ("rust", RUST.to_owned()),
    ];
    let mut written = Vec::new();
    for (file, template) in TEMPLATES {
        let path = dir.join(file);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(io_error("create", parent))?;
        }
        fs::write(&path, fill(template, &words)).map_err(io_error("write", &path))?;
        written.push(PathBuf::from(file));
    }
    Ok(written)
}

/// The name that was given, else the last part of the path.
fn crate_name(dir: &Path, name: Option<&str>) -> Result<String, NewError> {
    if let Some(name) = name {
        return Ok(name.to_owned());
    }
    let last = dir.file_name().ok_or_else(|| NewError::NoName { dir: dir.to_owned() })?;
    Ok(last.to_string_lossy().into_owned())
}

fn check_name(name: &str) -> Result<(), NewError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(NewError::NameTooLong { name: name.to_owned() });
    }
    if RESERVED.contains(&name) {
        return Err(NewError::NameReserved { name: name.to_owned() });
    }
    if is_kebab_case(name) { Ok(()) } else { Err(NewError::Name { name: name.to_owned() }) }
}

fn is_kebab_case(name: &str) -> bool {
    let word =
        |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    name.starts_with(|first: char| first.is_ascii_lowercase()) && name.split('-').all(word)
}

/// `, such as my-job` for `My Job`; nothing where no name can be made of it.
fn suggest(name: &str) -> String {
    let words = name.split(|char: char| !char.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let kebab = words.collect::<Vec<_>>().join("-").to_ascii_lowercase();
    let kebab = kebab.trim_start_matches(|first: char| !first.is_ascii_lowercase());
    if is_kebab_case(kebab) && !RESERVED.contains(&kebab) { format!(", such as `{kebab}`") } else { String::new() }
}

fn check_vacant(dir: &Path) -> Result<(), NewError> {
    let mut entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(NewError::NotADirectory { path: dir.to_owned() });
        }
        Err(error) => return Err(io_error("list", dir)(error)),
    };
    if entries.next().is_some() { Err(NewError::NotEmpty { dir: dir.to_owned() }) } else { Ok(()) }
}

fn fill(template: &str, words: &[(&str, String)]) -> String {
    words.iter().fold(template.to_owned(), |text, (word, value)| text.replace(&format!("{{{{{word}}}}}"), value))
}

fn io_error<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> NewError + use<'a> {
    move |source| NewError::Io { action, path: path.to_owned(), source }
}

fn report(dir: &Path, name: &str, files: &[PathBuf]) -> String {
    let files: String = files.iter().map(|file| format!("  {}\n", text::path(&dir.join(file)))).collect();
    let (dir, wasm) = (text::path(dir), name.replace('-', "_"));
    format!(
        "wrote `{name}`:\n{files}next:\n  cd {dir}\n  cargo test\n  cargo build --profile guest --target wasm32-wasip2\n  \
         dchost launch --workers 3 --ps 1 --module target/wasm32-wasip2/guest/{wasm}.wasm\n\
         for work that one task has others do, write functions with `#[op]`: docs/ops.md of dchost, and README.md there\n"
    )
}

#[cfg(test)]
mod tests;
