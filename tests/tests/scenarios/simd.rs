//! How components are built: the flags of .cargo/config.toml are in what comes out.

use anyhow::{Context as _, Result};
use dchost_tests::{Run, guest};
use std::collections::BTreeMap;
use wasmparser::{Operator, Parser, Payload};

/// SIMD instructions of a component by name, and how many of each there are in the loop that has most.
fn simd_in_loops(component: &[u8]) -> Result<BTreeMap<String, usize>> {
    let mut most = BTreeMap::new();
    for payload in Parser::new(0).parse_all(component) {
        let Payload::CodeSectionEntry(body) = payload? else { continue };
        // One count for each block that is open; only a loop's own instructions count, not those of what lies in it.
        let mut open: Vec<BTreeMap<String, usize>> = vec![BTreeMap::new()];
        for operator in body.get_operators_reader()? {
            match operator? {
                Operator::Loop { .. } | Operator::Block { .. } | Operator::If { .. } => open.push(BTreeMap::new()),
                Operator::End => {
                    for (name, count) in open.pop().unwrap_or_default() {
                        let most = most.entry(name).or_insert(0);
                        *most = count.max(*most);
                    }
                }
                operator => {
                    let name = format!("{operator:?}");
                    let name = name.split([' ', '{']).next().unwrap_or_default().to_owned();
                    let is_simd =
                        name.starts_with("V128") || ["x2", "x4", "x8", "x16"].iter().any(|lanes| name.contains(lanes));
                    if let Some(counts) = open.last_mut().filter(|_| is_simd) {
                        *counts.entry(name).or_insert(0) += 1;
                    }
                }
            }
        }
    }
    Ok(most)
}

/// Aim: nobody ships components that are several times slower than they need be. Method: the plainest loop there is, `x += y`,
/// becomes SIMD that takes 4 vectors a turn only with both flags of .cargo/config.toml; and it still counts right.
#[test]
fn components_are_built_with_simd_and_long_turns() -> Result<()> {
    let path = guest("adds")?;
    let component = std::fs::read(&path).with_context(|| format!("read `{}`", path.display()))?;
    let counts = simd_in_loops(&component)?;
    let adds = counts.get("F32x4Add").copied().unwrap_or(0);
    assert!(adds >= 4, "the longest turn of a loop adds {adds} vectors, not 4 or more: {counts:?}");

    // A length that no number of lanes divides.
    let outcome = Run::guest("adds")?.guest_args(["1003"]).output()?;
    assert!(outcome.code == 0 && outcome.stdout.contains("sum 3009\n"), "{}", outcome.output);
    Ok(())
}

/// Every example that computes has SIMD in it.
#[test]
fn the_digits_example_computes_with_simd() -> Result<()> {
    let counts = simd_in_loops(&std::fs::read(guest("digits")?)?)?;
    assert!(counts.contains_key("F32x4Mul") && counts.contains_key("F32x4Add"), "{counts:?}");
    Ok(())
}
