//! What compiling a component may cost.
//!
//! | what | bounded by |
//! | --- | --- |
//! | its size | `--max-module-size` |
//! | its functions, each and all; its parts, their number and depth | [`check`], which walks over the component before it is compiled: milliseconds |
//! | time | `--compile-timeout` |
//! | memory | [`COMPILE_BYTES_MAX`], looked at while it compiles |
//!
//! The compiler's memory doesn't follow from sizes alone: a function of some thousand loops and variables is a few KiB
//! long and makes gigabytes of values where they meet. So the process looks at its own memory meanwhile, and gives up. A
//! process of its own with a limit on its address space would hold harder, but costs a second start of dchost for each run,
//! and fails where address space is reserved far beyond what is used, as stacks and memories are.

use super::limits::mib;
use std::fmt;
use wasmparser::{Parser, Payload};

/// Largest function, in bytes of wasm: ten times the main loop of a large interpreter. What the compiler needs for one
/// grows with it, some hundred bytes for each.
const FUNCTION_BYTES_MAX: u64 = 2 << 20;

/// Most functions of a component, those of all its modules together: several times what a browser engine has.
const FUNCTIONS_MAX: u64 = 250_000;

/// Most modules and components within a component: a composed one has tens. Each costs some KiB, however small it is.
const PARTS_MAX: u64 = 1000;

/// How deep components may stand in one another: composing twice makes three levels. The loader's memory grows with the
/// square: 2 GB at 10,000 levels, which are 130 KB of wasm.
const DEPTH_MAX: u64 = 100;

/// Memory that compiling may take, in bytes: six times what a component with all of CPython takes (18 MB of wasm, 350 MiB).
pub(super) const COMPILE_BYTES_MAX: u64 = 2 << 30;

/// Memory that this process has resident, in bytes; none where the system doesn't tell.
pub(super) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// What there is too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// One function is too large.
    Function {
        /// Its size.
        size_bytes: u64,
    },
    /// There are too many functions.
    Functions,
    /// There are too many modules and components within.
    Parts,
    /// Components stand in one another too deep.
    Depth,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Excess::Function { size_bytes } => write!(
                f,
                "has a function of {}, at most {} are compiled: split the function, or build with less inlining",
                mib(*size_bytes),
                mib(FUNCTION_BYTES_MAX)
            ),
            Excess::Functions => {
                write!(
                    f,
                    "has more than {FUNCTIONS_MAX} functions, which is the most that is compiled: leave out what isn't used"
                )
            }
            Excess::Parts => write!(
                f,
                "has more than {PARTS_MAX} modules and components within, which is the most that is compiled: merge them"
            ),
            Excess::Depth => {
                write!(f, "has components within one another more than {DEPTH_MAX} deep: compose it flat")
            }
        }
    }
}

/// Refuses a component that would take the compiler too much memory. What isn't well-formed passes: the compiler tells it
/// better.
///
/// # Errors
/// What there is too much of.
pub(super) fn check(bytes: &[u8]) -> Result<(), Excess> {
    let (mut functions, mut parts, mut depth) = (0_u64, 0_u64, 0_u64);
    for payload in Parser::new(0).parse_all(bytes) {
        let Ok(payload) = payload else { return Ok(()) };
        match payload {
            Payload::CodeSectionEntry(body) => {
                functions += 1;
                if functions > FUNCTIONS_MAX {
                    return Err(Excess::Functions);
                }
                let size_bytes = body.range().len() as u64;
                if size_bytes > FUNCTION_BYTES_MAX {
                    return Err(Excess::Function { size_bytes });
                }
            }
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => {
                (parts, depth) = (parts + 1, depth + 1);
                if depth > DEPTH_MAX {
                    return Err(Excess::Depth);
                }
                if parts > PARTS_MAX {
                    return Err(Excess::Parts);
                }
            }
            // Each part ends with one; so does the whole, where nothing follows.
            Payload::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn component(functions: &str) -> Vec<u8> {
        wat::parse_str(format!("(component (core module {functions}) (core module (func)))")).unwrap()
    }

    #[test]
    fn functions_of_all_modules_are_counted_and_measured() {
        assert_eq!(check(&component("(func)")), Ok(()));
        let large = component(&format!("(func {})", "nop ".repeat(2 << 20)));
        assert!(matches!(check(&large), Err(Excess::Function { size_bytes }) if size_bytes > 2 << 20));
        let many = component(&"(func)".repeat(250_000));
        assert_eq!(check(&many), Err(Excess::Functions));
    }

    #[test]
    fn parts_are_counted_in_number_and_depth() {
        let beside =
            |parts: usize| wat::parse_str(format!("(component {})", "(core module) (component)".repeat(parts / 2)));
        assert_eq!(check(&beside(1000).unwrap()), Ok(()));
        assert_eq!(check(&beside(1002).unwrap()), Err(Excess::Parts));
        // The text format's own reader gives up earlier. Levels of less than 128 bytes, then of less than 16 KiB.
        let within = |depth: usize| {
            (0..depth).fold(b"\0asm\x0d\0\x01\0".to_vec(), |inner, _| {
                let length = u16::try_from(inner.len()).unwrap();
                let digits = [u8::try_from(length & 0x7f).unwrap() | 0x80, u8::try_from(length >> 7).unwrap()];
                [b"\0asm\x0d\0\x01\0\x04", &digits[..], &inner].concat()
            })
        };
        assert_eq!(check(&within(100)), Ok(()));
        assert_eq!(check(&within(101)), Err(Excess::Depth));
    }

    #[test]
    fn the_process_knows_its_memory() {
        assert!(resident_bytes().unwrap() > 1 << 20);
    }

    #[test]
    fn what_is_not_well_formed_is_left_to_the_compiler() {
        let bytes = component("(func)");
        assert_eq!(check(&bytes[..bytes.len() - 3]), Ok(()));
        assert_eq!(check(b"\0asm no component"), Ok(()));
    }
}
