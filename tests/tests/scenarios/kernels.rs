//! Matrix products by the host's kernel: right, and within the limits of a component.

use anyhow::Result;
use dchost_tests::Run;
use std::time::Duration;

/// Far more than an end takes, with the compiling before it on a busy machine.
const PROMPT: Duration = Duration::from_secs(30);

#[test]
fn products_by_the_kernel_are_those_of_plain_loops() -> Result<()> {
    for threads in ["1", "3", "all"] {
        let outcome = Run::guest("multiplies")?.args(["--kernel-threads", threads]).output()?;
        assert_eq!(outcome.code, 0, "{}", outcome.output);
        for told in ["40 products of f32 are right", "40 products of f64 are right"] {
            assert!(outcome.output.contains(told), "{}", outcome.output);
        }
    }
    Ok(())
}

/// Aim: nobody waits for a product that is to end. Method: products of two matrices of 64 MiB, one after the other.
#[test]
fn a_product_under_way_ends_by_either_clock() -> Result<()> {
    for (flag, value, code, told) in [
        ("-W", "cpu-timeout=300ms", 4, "cpu limit 300ms reached (-W cpu-timeout)"),
        ("--timeout", "1s", 124, "the wall clock `--timeout 1s` has passed"),
    ] {
        let run = Run::guest("multiplies")?.args([flag, value]).guest_args(["endless", "4096"]);
        let outcome = run.output()?;
        assert_eq!(outcome.code, code, "{}", outcome.output);
        assert!(outcome.output.contains(told), "{}", outcome.output);
        assert!(outcome.time < PROMPT, "{:?}", outcome.time);
    }
    Ok(())
}
