//! Compiled code and its checks with the real binary: digests, `dchost compile`, and a cache that can't be used.

use anyhow::{Context, Result};
use dchost_tests::{Outcome, Run, guest};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

const OTHER: &str = "sha256:abababababababababababababababababababababababababababababababab";

fn run(module: &Path, args: &[&str]) -> Result<Outcome> {
    Run::new("local").args(["--module"]).args([module]).args(args.iter().copied()).output()
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
    let outcome = Run::new("compile").args(["compile"]).args([&module]).args(["-o"]).args([&out]).output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
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
fn a_cache_that_cannot_be_used_is_one_warning() -> Result<()> {
    let (module, dir) = (guest("prints")?, tempfile::tempdir().context("make a directory")?);
    let file = dir.path().join("file");
    std::fs::write(&file, b"").context("write a file")?;
    let plain = run(&module, &["--no-cache"])?;
    let below = file.join("cache");
    let outcome = run(&module, &["--cache-dir", below.to_str().context("a path in UTF-8")?])?;
    assert_eq!(outcome.code, plain.code, "{}", outcome.output);
    assert_eq!(outcome.stderr.matches("can't be used, compiling without it").count(), 1, "{}", outcome.output);
    Ok(())
}
