//! What `dchost compile` needs: of a run's settings those that count before anything runs.

use super::reader::Reader;
use super::{Environment, compile_timeout, digest, fuel, max_module_size, unknown_imports_trap};
use crate::cli;
use crate::coordinator::resolve::{Fault, Faults};
use crate::files;
use crate::runtime::EngineOptions;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// What `dchost compile` needs besides its two paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileConfig {
    /// How the component is loaded and compiled.
    pub engine: EngineOptions,
    /// What reading found odd.
    pub warnings: Vec<String>,
}

/// Reads the settings by which a component is compiled. What is for the run alone (directories, variables, limits of the
/// guest) is left to the run, which may be on another machine.
///
/// # Errors
/// Every fault; something other than a file stands where the code is to be written, or the component itself.
pub fn compile(args: &cli::Compile, environment: &Environment) -> Result<CompileConfig, Faults> {
    let mut reader = Reader::new(environment, args.config.as_deref());
    let engine = EngineOptions {
        module_bytes_max: max_module_size(&mut reader, &args.load).value,
        digest: digest(&mut reader, &args.load).map(|digest| digest.value),
        compile_timeout: compile_timeout(&mut reader, &args.load).value,
        fuel: fuel(&mut reader, &args.wasm).value.is_some() || args.fuel,
        unknown_imports_trap: unknown_imports_trap(&mut reader, &args.wasm).value,
        ..EngineOptions::default()
    };
    let Reader { mut faults, warnings, .. } = reader;
    faults.extend(check_output(&args.file, &args.output));
    if faults.is_empty() { Ok(CompileConfig { engine, warnings }) } else { Err(Faults(faults)) }
}

/// Sees, before anything is compiled, that the code can take its place: a pipe, a device or a link would be renamed over as a
/// file is, and the component itself is worth more than its code.
fn check_output(component: &Path, output: &Path) -> Option<Fault> {
    let fault = |what: String, mend: &str| Some(Fault::new("`--output`", what, mend));
    let shown = output.display();
    match fs::symlink_metadata(output) {
        Ok(there) if !there.is_file() => {
            let what = format!("`{shown}` is {}, and only a file is replaced", files::kind(there.file_type()));
            fault(what, "give the name of a file")
        }
        Ok(there) => {
            let same = |given: fs::Metadata| (given.dev(), given.ino()) == (there.dev(), there.ino());
            let is_component = fs::metadata(component).is_ok_and(same);
            if is_component { fault(format!("`{shown}` is the component itself"), "give another name") } else { None }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let dir = output.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let what = || format!("`{shown}` can't be written: `{}` is no directory", dir.display());
            if dir.is_dir() { None } else { fault(what(), "make it") }
        }
        Err(error) => fault(format!("`{shown}` can't be written: {error}"), ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser as _;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    fn read(flags: &[&str], pairs: &[(&str, &str)]) -> Result<CompileConfig, Faults> {
        let cli =
            Cli::try_parse_from(["dchost", "compile"].iter().chain(flags)).unwrap_or_else(|error| panic!("{error}"));
        let Some(Command::Compile(args)) = cli.command else { panic!("not compile") };
        compile(&args, &pairs.iter().copied().collect())
    }

    #[test]
    fn flags_beat_the_environment_which_beats_the_file_and_the_runs_settings_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("job.toml");
        let text = "compile-timeout = \"3s\"\nmax-module-size = \"3MiB\"\nfuel = 3\nunknown-imports-trap = true\n\
                    dir = \"/nowhere\"\nenv = [\"NOT_SET_HERE\"]\n";
        fs::write(&file, text).unwrap();
        let out = dir.path().join("out");
        let (out, file) = (out.to_str().unwrap(), file.to_str().unwrap());
        let flags = ["m.wasm", "-o", out, "--config", file, "--compile-timeout", "1s"];
        let read_all = read(&flags, &[("DCHOST_COMPILE_TIMEOUT", "2s"), ("DCHOST_MAX_MODULE_SIZE", "2MiB")]).unwrap();
        let expected = EngineOptions {
            compile_timeout: Duration::from_secs(1),
            module_bytes_max: 2 << 20,
            fuel: true,
            unknown_imports_trap: true,
            ..EngineOptions::default()
        };
        assert_eq!(read_all.engine, expected);
        assert_eq!(read(&["m.wasm", "-o", out], &[]).unwrap().engine, EngineOptions::default());
        for fuel in [&["--fuel"][..], &["-W", "fuel=1"]] {
            assert!(read(&[&["m.wasm", "-o", out], fuel].concat(), &[]).unwrap().engine.fuel);
        }
        let faults = read(&["m.wasm", "-o", out], &[("DCHOST_COMPILE_TIMEOUT", "soon")]).unwrap_err().to_string();
        assert!(faults.contains("DCHOST_COMPILE_TIMEOUT"), "{faults}");
    }

    #[test]
    fn only_a_file_other_than_the_component_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("m.wasm"), b"").unwrap();
        fs::write(at("old.cdc"), b"").unwrap();
        fs::hard_link(at("m.wasm"), at("hard")).unwrap();
        symlink(at("m.wasm"), at("soft")).unwrap();
        for (component, output, told) in [
            ("m.wasm", "new.cdc", None),
            ("m.wasm", "old.cdc", None),
            ("m.wasm", "m.wasm", Some("the component itself")),
            ("m.wasm", "hard", Some("the component itself")),
            ("soft", "m.wasm", Some("the component itself")),
            ("m.wasm", "soft", Some("a symbolic link")),
            ("m.wasm", ".", Some("a directory")),
            ("m.wasm", "none/new.cdc", Some("is no directory")),
            ("m.wasm", "/dev/null", Some("a device")),
        ] {
            let fault = check_output(&at(component), &at(output)).map(|fault| fault.to_string());
            let fits = match (&fault, told) {
                (Some(fault), Some(told)) => fault.contains(told),
                (fault, told) => fault.is_none() && told.is_none(),
            };
            assert!(fits, "{output}: {fault:?}");
        }
    }
}
