//! Compiled code and its checks with the real binary: digests, `dchost compile`, and a cache that can't be used.

use anyhow::{Context, Result};
use dchost_tests::{Outcome, PATIENCE, Process, Run, guest};
use sha2::{Digest as _, Sha256};
use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

const OTHER: &str = "sha256:abababababababababababababababababababababababababababababababab";

fn run(module: &Path, args: &[&str]) -> Result<Outcome> {
    Run::new("local").args(["--module"]).args([module]).args(args.iter().copied()).output()
}

fn compile(file: &Path, out: &Path, flags: &[&str]) -> Result<Outcome> {
    Run::new("compile").args(["compile"]).args([file]).args(["-o"]).args([out]).args(flags.iter().copied()).output()
}

/// A command line of dchost behind another one, which changes what the process may do.
fn behind(before: &[&str], args: &[&OsStr]) -> Result<Outcome> {
    let mut command = Command::new(before[0]);
    command.args(&before[1..]).arg(dchost_tests::dchost()?).args(args);
    Process::start("local", command)?.wait(PATIENCE)
}

/// `sh` as it starts what follows with a limit of 64 KiB for each file, as a disk that is nearly full.
const FULL: [&str; 4] = ["sh", "-c", "ulimit -f 64; exec \"$@\"", "sh"];

fn pipe(path: &Path) -> Result<()> {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).context("make a pipe")
}

/// The files of a directory.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).context("list a directory")?;
    entries.map(|entry| Ok(entry.context("list a directory")?.path())).collect()
}

#[track_caller]
fn refused(outcome: &Outcome, names: &[&str]) {
    assert_eq!(outcome.code, 2, "{}", outcome.output);
    for name in names {
        assert!(outcome.stderr.contains(name), "no `{name}` in:\n{}", outcome.output);
    }
}

#[test]
fn a_digest_is_compared_and_told() -> Result<()> {
    let module = guest("prints")?;
    let outcome = run(&module, &["--digest", OTHER])?;
    refused(&outcome, &[OTHER, "--digest"]);
    let found = outcome.stderr.split("the digest ").nth(1).and_then(|rest| rest.split(',').next());
    let found = found.context("the digest is told")?;
    let outcome = run(&module, &["--digest", found])?;
    assert_ne!(outcome.code, 2, "{}", outcome.output);
    assert!(outcome.stderr.contains(found), "{}", outcome.output);
    Ok(())
}

#[test]
fn compiled_ahead_a_component_runs_where_that_is_allowed() -> Result<()> {
    let (module, dir) = (guest("prints")?, tempfile::tempdir().context("make a directory")?);
    let out = dir.path().join("prints.dchost");
    let outcome = compile(&module, &out, &[])?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    refused(&compile(&out, &dir.path().join("twice"), &[])?, &["is compiled already", "--allow-precompiled"]);
    let plain = run(&module, &[])?;
    let outcome = run(&out, &["--allow-precompiled"])?;
    assert_eq!((outcome.code, &outcome.stdout), (plain.code, &plain.stdout), "{}", outcome.output);
    refused(&run(&out, &[])?, &["--allow-precompiled"]);
    refused(&run(&out, &["--allow-precompiled", "--digest", OTHER])?, &[OTHER]);
    refused(&run(&out, &["--allow-precompiled", "-W", "fuel=1000000"])?, &["fuel not counted", "-W fuel"]);
    std::fs::set_permissions(&out, std::fs::Permissions::from_mode(0o664)).context("let the group write")?;
    refused(&run(&out, &["--allow-precompiled"])?, &["chmod go-w"]);
    Ok(())
}

#[test]
fn compiling_goes_by_the_settings_of_the_run() -> Result<()> {
    let (module, dir) = (guest("hello")?, tempfile::tempdir().context("make a directory")?);
    let (out, job) = (dir.path().join("hello.cdc"), dir.path().join("job.toml"));
    refused(&compile(&module, &out, &["--max-module-size", "1KiB"])?, &["--max-module-size"]);
    refused(&compile(&module, &out, &["--compile-timeout", "1us"])?, &["--compile-timeout"]);
    refused(&compile(&module, &out, &["--digest", OTHER])?, &[OTHER]);
    refused(&compile(&module, &out, &["-W", "max-ops=1"])?, &["for the run"]);
    assert_eq!(files(dir.path())?.len(), 0, "nothing is left");
    std::fs::write(&job, "fuel = 100000000\ndir = \"/nowhere\"\n").context("write the settings")?;
    let outcome = compile(&module, &out, &["--config", job.to_str().context("a path in UTF-8")?])?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    let outcome = run(&out, &["--allow-precompiled", "-W", "fuel=100000000"])?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    refused(&run(&out, &["--allow-precompiled"])?, &["fuel counted (-W fuel)", "fuel not counted"]);
    Ok(())
}

#[test]
fn code_of_another_version_or_damaged_code_is_refused_by_what_it_is() -> Result<()> {
    // Magic, format and checksum.
    const HEADER_BYTES: usize = 8 + 32;
    let (module, dir) = (guest("hello")?, tempfile::tempdir().context("make a directory")?);
    let out = dir.path().join("hello.cdc");
    assert_eq!(compile(&module, &out, &[])?.code, 0);
    let whole = std::fs::read(&out).context("read the code")?;
    let check = |bytes: &[u8], names: &[&str]| -> Result<()> {
        std::fs::write(&out, bytes).context("write other code")?;
        let names = [names, &["hello.cdc", "dchost compile"]].concat();
        refused(&run(&out, &["--allow-precompiled"])?, &names);
        Ok(())
    };
    for length in [8, 40, whole.len() / 2, whole.len() - 1] {
        check(&whole[..length], &["damaged"])?;
    }
    let mut format = whole.clone();
    format[7] += 1;
    check(&format, &["another version of dchost", "format 2, not 1"])?;
    // As another patch of wasmtime would have written it, which wasmtime itself would take.
    let at = whole.windows(9).position(|bytes| bytes == b"wasmtime ").context("the maker is named")? + 9;
    let end = at + whole[at..].iter().position(|&byte| byte == b' ').context("its version ends")?;
    let mut maker = whole.clone();
    maker[end - 1] = if whole[end - 1] == b'9' { b'8' } else { whole[end - 1] + 1 };
    let checksum = Sha256::digest(&maker[HEADER_BYTES..]);
    maker[HEADER_BYTES - 32..HEADER_BYTES].copy_from_slice(&checksum);
    let [theirs, ours] = [&maker, &whole].map(|bytes| String::from_utf8_lossy(&bytes[at..end]).into_owned());
    check(&maker, &[&format!("with wasmtime {theirs} on"), &format!("with wasmtime {ours} on")])?;
    check(&[&whole[..], b"x"].concat(), &["damaged"])
}

#[test]
fn compiling_replaces_nothing_but_files() -> Result<()> {
    let dir = tempfile::tempdir().context("make a directory")?;
    let at = |name: &str| dir.path().join(name);
    let module = at("hello.wasm");
    std::fs::copy(guest("hello")?, &module).context("copy a component")?;
    std::fs::hard_link(&module, at("hard")).context("make a link")?;
    std::os::unix::fs::symlink(&module, at("soft")).context("make a link")?;
    pipe(&at("pipe"))?;
    let before = std::fs::read(&module).context("read the component")?;
    for (name, told) in [
        ("hello.wasm", "the component itself"),
        ("hard", "the component itself"),
        ("soft", "a symbolic link"),
        ("pipe", "a pipe"),
        (".", "a directory"),
        ("/dev/null", "a device"),
        ("none/hello.cdc", "is no directory"),
    ] {
        refused(&compile(&module, &at(name), &[])?, &["--output", told]);
    }
    assert!(std::fs::read(&module).context("read the component")? == before);
    assert_eq!(files(dir.path())?.len(), 4, "nothing is left");
    Ok(())
}

#[test]
fn code_that_does_not_fit_on_the_disk_is_74_and_leaves_the_old() -> Result<()> {
    let (module, dir) = (guest("hello")?, tempfile::tempdir().context("make a directory")?);
    let out = dir.path().join("hello.cdc");
    std::fs::write(&out, "old").context("write a file")?;
    let args = ["compile".as_ref(), module.as_os_str(), "-o".as_ref(), out.as_os_str()];
    let outcome = behind(&FULL, &args)?;
    assert_eq!(outcome.code, 74, "{}", outcome.output);
    assert!(outcome.stderr.contains("hello.cdc") && outcome.stderr.contains("too large"), "{}", outcome.output);
    assert_eq!(std::fs::read(&out).context("read the old")?, b"old");
    assert_eq!(files(dir.path())?.len(), 1, "nothing is left");
    Ok(())
}

/// Aim: dchost waits for nobody who may never write. Method: pipes wherever a file is named.
#[test]
fn a_pipe_in_the_place_of_a_file_is_refused() -> Result<()> {
    let dir = tempfile::tempdir().context("make a directory")?;
    let path = dir.path().join("pipe");
    pipe(&path)?;
    let module = guest("hello")?;
    let (module, pipe) = (module.as_os_str(), path.as_os_str());
    let (given, config) = (OsStr::new("--module"), OsStr::new("--config"));
    for args in [
        &[given, pipe][..],
        &["launch".as_ref(), "--workers".as_ref(), "1".as_ref(), given, pipe],
        &["inspect".as_ref(), pipe],
        &["compile".as_ref(), pipe, "-o".as_ref(), OsStr::new("unused.cdc")],
        &["compile".as_ref(), module, "-o".as_ref(), OsStr::new("unused.cdc"), config, pipe],
        &[given, module, config, pipe],
        &[given, module, "--task".as_ref(), "worker:0".as_ref(), "--cluster".as_ref(), pipe],
    ] {
        let outcome = Run::new("pipe").args(args.iter().copied()).dir(dir.path()).output()?;
        refused(&outcome, &["a pipe, not a file"]);
    }
    Ok(())
}

/// Checks that the component ran as it does without a cache, and that one warning says why there is none.
#[track_caller]
fn uncached(outcome: &Outcome, warning: &str) -> Result<()> {
    let plain = run(&guest("prints")?, &["--no-cache"])?;
    assert_eq!((outcome.code, &outcome.stdout), (plain.code, &plain.stdout), "{}", outcome.output);
    let warnings: Vec<_> = outcome.stderr.lines().filter(|line| line.contains(" WARN ")).collect();
    assert!(matches!(warnings[..], [one] if one.contains(warning)), "{}", outcome.output);
    Ok(())
}

#[test]
fn a_cache_that_cannot_be_used_is_one_warning() -> Result<()> {
    const WARNING: &str = "can't be used, compiling without it";
    let (module, dir) = (guest("prints")?, tempfile::tempdir().context("make a directory")?);
    let file = dir.path().join("file");
    std::fs::write(&file, b"").context("write a file")?;
    let below = file.join("cache");
    uncached(&run(&module, &["--cache-dir", below.to_str().context("a path in UTF-8")?])?, WARNING)?;

    // No home.
    let mut command = Run::guest("prints")?.command()?;
    command.env_remove("HOME").env_remove("XDG_CACHE_HOME");
    uncached(&Process::start("no home", command)?.wait(PATIENCE)?, "neither XDG_CACHE_HOME nor HOME")?;

    // A directory that can't be written. Root can, unless it gives up that right.
    let cache = dir.path().join("cache");
    std::fs::create_dir(&cache).context("make a directory")?;
    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o500)).context("take the right to write")?;
    let args: [&OsStr; 4] = ["--module".as_ref(), module.as_ref(), "--cache-dir".as_ref(), cache.as_ref()];
    let is_root = std::fs::metadata("/proc/self").context("look at this process")?.uid() == 0;
    let before: &[&str] =
        if is_root { &["setpriv", "--bounding-set=-dac_override,-dac_read_search"] } else { &["env"] };
    uncached(&behind(before, &args)?, WARNING)?;

    // A disk that is full when the code has been begun.
    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o700)).context("give it back")?;
    uncached(&behind(&FULL, &args)?, WARNING)?;
    assert_eq!(files(&cache)?.len(), 0, "nothing half written is left");
    Ok(())
}

/// Aim: what stands in the cache's directory costs no more than compiling. Method: in the place of the one entry a pipe, and
/// as many zeros as a whole cache may hold.
#[test]
fn an_entry_of_the_cache_that_cannot_be_one_is_replaced() -> Result<()> {
    let (module, dir) = (guest("prints")?, tempfile::tempdir().context("make a directory")?);
    let flags = ["--cache-dir", dir.path().to_str().context("a path in UTF-8")?];
    let plain = run(&module, &flags)?;
    let [entry] = &files(dir.path())?[..] else { panic!("one entry: {}", plain.output) };
    for make in [pipe, |path: &Path| std::fs::File::create(path)?.set_len(1 << 30).context("make it large")] {
        std::fs::remove_file(entry).context("remove the entry")?;
        make(entry)?;
        let outcome = run(&module, &flags)?;
        assert_eq!((outcome.code, &outcome.stdout), (plain.code, &plain.stdout), "{}", outcome.output);
        assert!(outcome.peak_memory_bytes < 512 << 20, "{} bytes", outcome.peak_memory_bytes);
        let metadata = std::fs::symlink_metadata(entry).context("look at the entry")?;
        assert!(metadata.is_file() && metadata.len() < 64 << 20, "it is replaced: {metadata:?}");
    }
    Ok(())
}
