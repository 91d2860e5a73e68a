//! What `dchost new` writes, and what it refuses.

use super::*;
use std::process::Command;

#[test]
fn names_are_kebab_case_and_nobody_elses() {
    for name in ["a", "job", "my-job", "resnet50", "a-1-b"] {
        assert!(check_name(name).is_ok(), "{name}");
    }
    let refused = [
        (
            "My Job",
            "`My Job` isn't a crate name: lowercase letters, digits and single hyphens, a letter first, such as `my-job`",
        ),
        ("my_job", "a letter first, such as `my-job`"),
        ("1st-job", "a letter first, such as `st-job`"),
        ("job-", "such as `job`"),
        ("a--b", "such as `a-b`"),
        ("", "`` isn't a crate name: lowercase letters, digits and single hyphens, a letter first"),
        ("../up", "such as `up`"),
        ("trait", "`trait` can't be a crate's name"),
        ("test", "choose another one, `test-job` for instance"),
        ("dchost-guest", "`dchost-guest` can't be a crate's name"),
    ];
    for (name, text) in refused {
        let error = check_name(name).unwrap_err();
        assert!(error.to_string().contains(text), "`{error}` should say `{text}`");
        assert_eq!(error.exit(), Exit::Refused);
    }
    assert!(matches!(check_name(&"a".repeat(65)), Err(NewError::NameTooLong { .. })));
}

#[test]
fn a_crate_is_named_after_its_directory_unless_a_name_is_given() {
    assert_eq!(crate_name(Path::new("jobs/my-job/"), None).unwrap(), "my-job");
    assert_eq!(crate_name(Path::new("jobs/x"), Some("other")).unwrap(), "other");
    assert!(matches!(crate_name(Path::new(".."), None), Err(NewError::NoName { .. })));
}

#[test]
fn nothing_is_written_over() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    let version = || SdkSource::Version("0.1.0".to_owned());
    let error = create(dir.path(), "job", version()).unwrap_err();
    assert!(matches!(error, NewError::NotEmpty { .. }), "{error}");
    let error = create(&dir.path().join("notes.txt"), "job", version()).unwrap_err();
    assert!(matches!(error, NewError::NotADirectory { .. }), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(create(&empty, "job", version()).is_ok());
}

#[test]
fn the_files_carry_name_sdk_and_toolchain() {
    let dir = tempfile::tempdir().unwrap();
    let crate_dir = dir.path().join("deep/my-job");
    let files = create(&crate_dir, "my-job", SdkSource::Version("0.1.0".to_owned())).unwrap();
    for file in &files {
        let text = fs::read_to_string(crate_dir.join(file)).unwrap();
        assert!(!text.contains("{{"), "{}: a word is left", file.display());
    }
    let manifest = fs::read_to_string(crate_dir.join("Cargo.toml")).unwrap();
    assert!(manifest.contains("name = \"my-job\"\n") && manifest.contains("dchost-guest = \"0.1.0\"\n"), "{manifest}");
    assert!(fs::read_to_string(crate_dir.join("README.md")).unwrap().contains("guest/my_job.wasm"));
    assert!(fs::read_to_string(crate_dir.join("README.md")).unwrap().contains("`#[op]`"));
    let toolchain = fs::read_to_string(crate_dir.join("rust-toolchain.toml")).unwrap();
    assert_eq!(toolchain, include_str!("../../../../rust-toolchain.toml"), "the same toolchain as dchost's own");
    let flags = |config: &str| config.lines().find(|line| line.starts_with("rustflags")).map(str::to_owned);
    let config = fs::read_to_string(crate_dir.join(".cargo/config.toml")).unwrap();
    let own = flags(include_str!("../../../../.cargo/config.toml"));
    assert!(own.as_ref().is_some_and(|flags| flags.contains("+simd128")), "{own:?}");
    assert_eq!(flags(&config), own, "components are built with the same flags as the examples");

    let told = report(Path::new("deep/my-job"), "my-job", &files);
    assert!(told.contains("  deep/my-job/src/lib.rs\n") && told.contains("  cd deep/my-job\n"), "{told}");
    assert!(told.ends_with("write functions with `#[op]`: docs/ops.md of dchost, and README.md there\n"), "{told}");
}

#[test]
fn a_path_is_quoted_for_cargo() {
    let quoted = SdkSource::Path(PathBuf::from("/srv/my \"sdk\"")).dependency();
    assert_eq!(quoted, r#"{ path = "/srv/my \"sdk\"" }"#);
}

/// The real thing: cargo formats, lints and tests the crate as it was written, against the SDK of this repository.
#[test]
fn the_crate_passes_fmt_clippy_and_its_own_tests() {
    let dir = tempfile::tempdir().unwrap();
    let crate_dir = dir.path().join("my-job");
    let sdk = SdkSource::detect();
    assert!(matches!(sdk, SdkSource::Path(_)), "tests run beside the SDK");
    create(&crate_dir, "my-job", sdk).unwrap();
    let commands: [&[&str]; 3] = [
        &["fmt", "--check"],
        &["clippy", "--offline", "--all-targets", "--quiet", "--", "-D", "warnings"],
        &["test", "--offline", "--quiet"],
    ];
    for arguments in commands {
        let output = Command::new(env!("CARGO"))
            .args(arguments)
            .current_dir(&crate_dir)
            .env("CARGO_TARGET_DIR", dir.path().join("target"))
            .env_remove("RUSTFLAGS")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "cargo {arguments:?}:\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
