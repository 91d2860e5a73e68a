//! Components that ask for what the host offers, or nearly: names, versions and types that are right and wrong.

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use std::fmt::Write as _;

const PACKAGES: &[&str] = &["dchost:worker", "dchost:workers", "wasi:cli", "wasi:io", "wasi:clocks", "acme:gpu"];
const INTERFACES: &[&str] = &[
    "worker-context",
    "worker-contex",
    "log",
    "summary",
    "variables",
    "environment",
    "poll",
    "monotonic-clock",
    "ops",
    "entry",
];
const VERSIONS: &[&str] =
    &["@0.1.0", "@0.1.7", "@0.2.0", "@0.2.3", "@0.2.0-rc-2023-11-05", "@0.3.0", "@1.0.0", "@0.1.0-dev", ""];
const FUNCTIONS: &[&str] =
    &["is-chief", "num-workers", "attempt", "barrier", "write", "scalar", "now", "get-arguments", "run", "attemp", "x"];
const TYPES: &[&str] = &[
    "(result bool)",
    "(result u32)",
    "(result u64)",
    "",
    "(param \"a\" u32)",
    "(param \"tag\" string) (param \"step\" u64) (param \"value\" float64)",
    "(result (list string))",
    "(result (result (error string)))",
    "(result string)",
];

/// Makes the text of a component with some imports and exports.
///
/// # Errors
/// The bytes don't suffice.
pub fn component(bytes: &mut Unstructured<'_>) -> Result<String> {
    let mut text = "(component\n".to_owned();
    for at in 0..bytes.int_in_range(0..=8)? {
        let name = name(bytes, at)?;
        match bytes.int_in_range(0..=5)? {
            0 => writeln!(text, "(import \"{name}\" (func {}))", bytes.choose(TYPES)?),
            1 => writeln!(text, "(import \"{name}\" (type (sub resource)))"),
            2 => writeln!(text, "(import \"{name}\" (core module))"),
            _ => {
                let mut functions = String::new();
                for at in 0..bytes.int_in_range(0..=3)? {
                    let function = bytes.choose(FUNCTIONS)?;
                    let function = if at == 0 { (*function).to_owned() } else { format!("{function}{at}") };
                    functions += &format!(" (export \"{function}\" (func {}))", bytes.choose(TYPES)?);
                }
                writeln!(text, "(import \"{name}\" (instance{functions}))")
            }
        }
        .expect("a string takes everything");
    }
    text += "(core module $m (func (export \"run\") (result i32) i32.const 0) (memory (export \"memory\") ";
    text += &bytes.int_in_range(0..=200)?.to_string();
    text += "))\n(core instance $i (instantiate $m))\n";
    let result = match bytes.int_in_range(0..=5)? {
        0 => "(result u32)",
        1 => "(result (result))",
        _ => "(result (result (error string)))",
    };
    text += &format!("(func $run {result} (canon lift (core func $i \"run\") (memory $i \"memory\")))\n");
    let function = if bytes.ratio(1, 4)? { bytes.choose(FUNCTIONS)? } else { "run" };
    match bytes.int_in_range(0..=7)? {
        0 => {}
        1 => text += &format!("(export \"{function}\" (func $run))"),
        2 => {
            let name = name(bytes, 100)?;
            text += &format!("(instance $e (export \"{function}\" (func $run)))(export \"{name}\" (instance $e))");
        }
        _ => {
            let version = bytes.choose(VERSIONS)?;
            text += &format!("(instance $e (export \"{function}\" (func $run)))");
            text += &format!("(export \"dchost:worker/entry{version}\" (instance $e))");
        }
    }
    Ok(text + ")")
}

/// The name of an import: an interface's, or a plain one. `at` keeps plain ones apart.
fn name(bytes: &mut Unstructured<'_>, at: u32) -> Result<String> {
    if bytes.ratio(1, 6)? {
        return Ok(format!("{}{at}", bytes.choose(FUNCTIONS)?));
    }
    Ok(format!("{}/{}{}", bytes.choose(PACKAGES)?, bytes.choose(INTERFACES)?, bytes.choose(VERSIONS)?))
}
