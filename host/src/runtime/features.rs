//! Which WebAssembly features a component may use, and how the lack of one is told.

use wasmtime::WasmFeatures;

/// What components of today's compilers need. Everything else is off: each proposal was part of advisories.
///
/// Left out on purpose: shared memories, which the limiter doesn't see; relaxed SIMD, whose results may differ between
/// machines and which gained nothing in the loops of a training step; tail calls, which no compiler emits unasked.
pub(super) const OFFERED: WasmFeatures = WasmFeatures::COMPONENT_MODEL
    .union(WasmFeatures::FLOATS)
    .union(WasmFeatures::MUTABLE_GLOBAL)
    .union(WasmFeatures::SATURATING_FLOAT_TO_INT)
    .union(WasmFeatures::SIGN_EXTENSION)
    .union(WasmFeatures::MULTI_VALUE)
    .union(WasmFeatures::REFERENCE_TYPES)
    .union(WasmFeatures::CALL_INDIRECT_OVERLONG)
    .union(WasmFeatures::BULK_MEMORY)
    .union(WasmFeatures::BULK_MEMORY_OPT)
    .union(WasmFeatures::EXTENDED_CONST)
    .union(WasmFeatures::SIMD)
    // What wasmtime makes between the parts of a composed component copies from memory to memory.
    .union(WasmFeatures::MULTI_MEMORY);

/// Words of the validator's messages, and the feature that each is about; the first that matches counts.
const NAMES: [(&str, &str); 26] = [
    ("custom page sizes", "custom page sizes"),
    ("shared-everything", "shared-everything threads"),
    ("shared memories", "threads and shared memories"),
    ("component model threading", "component model threads"),
    ("more async builtins", "component model async"),
    ("component model async", "component model async"),
    ("cm-async", "component model async"),
    ("error-context", "component model error contexts"),
    ("component model gc", "component model GC"),
    ("cm-gc", "component model GC"),
    ("fixed-length lists", "fixed-length lists"),
    ("maps require", "component model maps"),
    ("function references", "typed function references"),
    ("legacy_exceptions", "legacy exceptions"),
    ("64-bit feature", "the 64-bit component model"),
    ("component model `value`s", "component model values"),
    ("threads", "threads and shared memories"),
    ("memory64", "64-bit memories"),
    ("64-bit", "64-bit memories"),
    ("exceptions", "exceptions"),
    ("exception", "exceptions"),
    ("stack switching", "stack switching"),
    ("relaxed simd", "relaxed SIMD"),
    ("tail calls", "tail calls"),
    ("wide arithmetic", "wide arithmetic"),
    ("gc", "garbage collection"),
];

/// Words by which the validator says that a feature is off.
const OFF: [&str; 10] = [
    "references required",
    "must be enabled",
    "not enabled",
    "is disabled",
    "not supported",
    "not active",
    "feature required",
    "requires the `",
    "require the component model",
    "requires the component model",
];

/// The feature that a validator's message says is off; none where it is about something else.
pub(super) fn missing(reason: &str) -> Option<&'static str> {
    if !OFF.iter().any(|off| reason.contains(off)) && !reason.contains("the shared-everything-threads proposal") {
        return None;
    }
    let lower = reason.to_lowercase();
    let name = NAMES.iter().find(|(word, _)| lower.contains(word)).map(|&(_, name)| name);
    Some(name.unwrap_or("a WebAssembly feature"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Engine, EngineOptions, LoadError};
    use expect_test::expect;
    use std::fmt::Write as _;

    /// Aim: what isn't offered is refused by name, and an update of wasmtime that turns something on or words a refusal
    /// anew is seen. Method: the smallest use of each feature.
    #[tokio::test]
    async fn each_feature_that_is_not_offered_is_refused_by_its_name() {
        let uses = [
            ("shared memory", "(core module (memory 1 2 shared))"),
            ("atomics", "(core module (memory 1) (func (drop (i32.atomic.load (i32.const 0)))))"),
            ("shared function", "(core module (type (shared (func))))"),
            ("memory64", "(core module (memory i64 1))"),
            ("table64", "(core module (table i64 1 funcref))"),
            ("custom page size", "(core module (memory 1 (pagesize 1)))"),
            ("gc", "(core module (type (struct (field i32))))"),
            ("function references", "(core module (type $f (func)) (func (param (ref $f))))"),
            ("exceptions", "(core module (tag))"),
            ("legacy exceptions", "(core module (func try catch_all end))"),
            ("stack switching", "(core module (type $f (func)) (type (cont $f)))"),
            ("tail call", "(core module (func return_call 0))"),
            (
                "relaxed simd",
                "(core module (func (param v128 v128) (drop (i8x16.relaxed_swizzle (local.get 0) (local.get 1)))))",
            ),
            ("wide arithmetic", "(core module (func (result i64 i64) (i64.mul_wide_u (i64.const 1) (i64.const 1))))"),
            ("stream", "(type (stream u8))"),
            ("future", "(type (future))"),
            ("task", "(core func (canon task.cancel))"),
            ("waitable set", "(core func (canon waitable-set.new))"),
            ("error context", "(type (option error-context))"),
            ("fixed length list", "(type (list u8 4))"),
            ("map", "(type (map u32 u32))"),
        ];
        let engine = Engine::new(EngineOptions::default()).unwrap();
        let mut told = String::new();
        for (what, text) in uses {
            let bytes = wat::parse_str(format!("(component {text})")).unwrap_or_else(|error| panic!("{what}: {error}"));
            let told_as = match engine.load_bytes("guest.wasm", bytes.into()).await {
                Err(LoadError::Feature { feature, .. }) => feature.to_owned(),
                Err(error) => format!("NOT NAMED: {error}"),
                Ok(_) => "LOADED".to_owned(),
            };
            writeln!(told, "{what}: {told_as}").unwrap();
        }
        expect![[r#"
            shared memory: threads and shared memories
            atomics: threads and shared memories
            shared function: shared-everything threads
            memory64: 64-bit memories
            table64: 64-bit memories
            custom page size: custom page sizes
            gc: garbage collection
            function references: typed function references
            exceptions: exceptions
            legacy exceptions: legacy exceptions
            stack switching: stack switching
            tail call: tail calls
            relaxed simd: relaxed SIMD
            wide arithmetic: wide arithmetic
            stream: component model async
            future: component model async
            task: component model async
            waitable set: component model async
            error context: component model error contexts
            fixed length list: fixed-length lists
            map: component model maps
        "#]]
        .assert_eq(&told);
    }

    #[test]
    fn other_faults_are_no_missing_feature() {
        assert_eq!(missing("unexpected end (at offset 0x20)"), None);
        assert_eq!(missing("type mismatch: expected i32, found i64"), None);
    }
}
