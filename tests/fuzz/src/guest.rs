//! A component that reads a script and calls what the script says: an interpreter of every import of the WIT.
//!
//! It is made from the WIT itself, so that a function that is added there is called here. The script comes as the guest's
//! only argument, each byte as the character of that number: arguments are text.

use crate::script::{SCRATCH, SLOT_BYTES};
use std::fmt::Write as _;
use std::path::Path;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::abi::{AbiVariant, WasmType};
use wit_parser::{
    Function, LiftLowerAbi, ManglingAndAbi, Resolve, ResourceIntrinsic, TypeDefKind, WasmImport, WorldId, WorldItem,
    WorldKey,
};

/// What of WASI the guest calls beside `dchost:worker`: where the script comes from, and what makes pollables.
const WASI: &[(&str, &str)] = &[
    ("cli.wit", "package wasi:cli@0.2.0; interface environment { get-arguments: func() -> list<string>; }"),
    (
        "clocks.wit",
        "package wasi:clocks@0.2.0; interface monotonic-clock { use wasi:io/poll@0.2.0.{pollable}; \
         now: func() -> u64; subscribe-duration: func(when: u64) -> pollable; }",
    ),
    ("random.wit", "package wasi:random@0.2.0; interface random { get-random-bytes: func(len: u64) -> list<u8>; }"),
];

/// The world of the guest. `worker` alone would leave out the exported ops, which nothing calls yet.
const WORLD: &str = "package fuzz:guest; world interpreter { include dchost:worker/worker@0.1.0; \
    import wasi:cli/environment@0.2.0; import wasi:clocks/monotonic-clock@0.2.0; import wasi:random/random@0.2.0; }";

/// Where results that don't fit a register are returned, by turns: 16 slots.
const RETURNS: u32 = 0x2000;
/// The last 8 results.
const RESULTS: u32 = 0x2800;
/// What `run` returns.
const RUN_RESULT: u32 = 0x2900;
/// Where the heap begins; it is emptied at each op.
const HEAP: u32 = 0x1_0000;

/// The component, and the names of its imports.
#[derive(Debug)]
pub struct Guest {
    component: Vec<u8>,
    imports: Vec<Import>,
}

/// A function that the guest imports.
#[derive(Debug)]
struct Import {
    /// What scripts call it.
    name: String,
    /// Its name in the core module.
    module: String,
    field: String,
    /// What scripts give; the address of the result is added.
    parameters: Vec<WasmType>,
    returns_by_address: bool,
    results: Vec<WasmType>,
}

impl Guest {
    /// Makes the guest from the WIT of this repository.
    ///
    /// # Panics
    /// The WIT can't be read, or is no longer what this module knows.
    pub fn new() -> Self {
        let (resolve, world) = resolve();
        let imports = imports(&resolve, world);
        let mut module = wat::parse_str(core_module(&imports)).unwrap_or_else(|error| panic!("{error}"));
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("metadata is embedded");
        let encoder = ComponentEncoder::default().module(&module).expect("it is a module of this world");
        let component = encoder.validate(true).encode().unwrap_or_else(|error| panic!("{error:?}"));
        Guest { component, imports }
    }

    /// The component's bytes.
    pub fn component(&self) -> &[u8] {
        &self.component
    }

    /// The index of an import and the number of values that a script gives it.
    pub fn import(&self, name: &str) -> Option<(usize, usize)> {
        let index = self.imports.iter().position(|import| import.name == name)?;
        Some((index, self.imports[index].parameters.len()))
    }

    /// The names of all imports, as scripts call them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.imports.iter().map(|import| &*import.name)
    }

    /// The guest's argument for a script.
    pub fn argument(script: &[u8]) -> String {
        script.iter().map(|&byte| char::from(byte)).collect()
    }
}

impl Default for Guest {
    fn default() -> Self {
        Guest::new()
    }
}

fn resolve() -> (Resolve, WorldId) {
    let mut resolve = Resolve::default();
    let wit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wit");
    resolve.push_dir(wit).unwrap_or_else(|error| panic!("{error:?}"));
    for (name, text) in WASI {
        resolve.push_str(name, text).unwrap_or_else(|error| panic!("{error:?}"));
    }
    let package = resolve.push_str("world.wit", WORLD).unwrap_or_else(|error| panic!("{error:?}"));
    let world = resolve.select_world(&[package], None).expect("the package has one world");
    (resolve, world)
}

/// Every function of the world, and the drop of every resource, but for the one that the script comes by.
fn imports(resolve: &Resolve, world: WorldId) -> Vec<Import> {
    let mut imports = Vec::new();
    for (key, item) in &resolve.worlds[world].imports {
        let WorldItem::Interface { id, .. } = item else { panic!("the world imports interfaces only") };
        let interface = resolve.interfaces[*id].name.as_deref().expect("interfaces have names");
        if interface != "environment" {
            let functions = resolve.interfaces[*id].functions.values();
            imports.extend(functions.map(|function| import(resolve, key, interface, function)));
            for (name, &ty) in &resolve.interfaces[*id].types {
                if matches!(resolve.types[ty].kind, TypeDefKind::Resource) {
                    let intrinsic = ResourceIntrinsic::ImportedDrop;
                    let import = WasmImport::ResourceIntrinsic { interface: Some(key), resource: ty, intrinsic };
                    let (module, field) = resolve.wasm_import_name(mangling(), import);
                    imports.push(Import {
                        name: format!("drop {name}"),
                        module,
                        field,
                        parameters: vec![WasmType::I32],
                        returns_by_address: false,
                        results: Vec::new(),
                    });
                }
            }
        }
    }
    imports
}

fn import(resolve: &Resolve, key: &WorldKey, interface: &str, function: &Function) -> Import {
    let signature = resolve.wasm_signature(AbiVariant::GuestImport, function);
    let import = WasmImport::Func { interface: Some(key), func: function };
    let (module, field) = resolve.wasm_import_name(mangling(), import);
    let mut parameters = signature.params;
    if signature.retptr {
        parameters.pop();
    }
    // `[method]variable.name` is `variable.name`, and a function is `interface.function`.
    let name = match function.name.split_once(']') {
        Some((_, name)) => name.to_owned(),
        None => format!("{interface}.{}", function.name),
    };
    Import { name, module, field, parameters, returns_by_address: signature.retptr, results: signature.results }
}

fn mangling() -> ManglingAndAbi {
    ManglingAndAbi::Legacy(LiftLowerAbi::Sync)
}

fn core_type(ty: WasmType) -> &'static str {
    match ty {
        WasmType::I32 | WasmType::Pointer | WasmType::Length => "i32",
        WasmType::I64 | WasmType::PointerOrI64 => "i64",
        WasmType::F32 => "f32",
        WasmType::F64 => "f64",
    }
}

/// The text of the interpreter; `crate::script` says what it interprets.
fn core_module(imports: &[Import]) -> String {
    let mut declarations = String::new();
    let mut calls = String::new();
    for (index, import) in imports.iter().enumerate() {
        let types = |types: &[WasmType]| types.iter().map(|&ty| format!(" {}", core_type(ty))).collect::<String>();
        let by_address = if import.returns_by_address { " i32" } else { "" };
        writeln!(
            declarations,
            "(import {:?} {:?} (func $f{index} (param{}{by_address}) (result{})))",
            import.module,
            import.field,
            types(&import.parameters),
            types(&import.results)
        )
        .expect("a string takes everything");
        writeln!(calls, "(if (i32.eq (local.get $op) (i32.const {index})) (then").expect("a string takes everything");
        for &parameter in &import.parameters {
            calls += match core_type(parameter) {
                "i32" => "(i32.wrap_i64 (call $value))",
                "i64" => "(call $value)",
                "f32" => "(f32.reinterpret_i32 (i32.wrap_i64 (call $value)))",
                _ => "(f64.reinterpret_i64 (call $value))",
            };
        }
        if import.returns_by_address {
            calls += "(local.tee $at (call $return_slot))";
        }
        write!(calls, "(call $f{index})").expect("a string takes everything");
        calls += match (import.results.first().map(|&ty| core_type(ty)), import.returns_by_address) {
            (Some("i32"), _) => "i64.extend_i32_u call $remember",
            (Some("i64"), _) => "call $remember",
            (Some("f32"), _) => "i32.reinterpret_f32 i64.extend_i32_u call $remember",
            (Some(_), _) => "i64.reinterpret_f64 call $remember",
            // After a result's or an option's tag: a handle, or where a list is.
            (None, true) => "(call $remember (i64.load32_u offset=4 (local.get $at)))",
            (None, false) => "",
        };
        calls += "))\n";
    }
    let environment = "wasi:cli/environment@0.2.0";
    let count = imports.len();
    format!(
        r#"(module
{declarations}
(import "{environment}" "get-arguments" (func $arguments (param i32)))
(memory (export "memory") 8)
{data}
(global $heap (mut i32) (i32.const {HEAP}))
(global $script (mut i32) (i32.const 0))
(global $end (mut i32) (i32.const 0))
(global $turn (mut i32) (i32.const 0))
(global $returned (mut i32) (i32.const 0))

(func (export "cabi_realloc") (param $old i32) (param $size i32) (param $align i32) (param $new i32) (result i32)
  (local $at i32)
  (local.set $at (i32.and
    (i32.add (global.get $heap) (i32.sub (local.get $align) (i32.const 1)))
    (i32.sub (i32.const 0) (local.get $align))))
  (global.set $heap (i32.add (local.get $at) (local.get $new)))
  (if (i32.gt_u (global.get $heap) (i32.mul (memory.size) (i32.const 65536)))
    (then (if (i32.eq (i32.const -1) (memory.grow (i32.add (i32.const 1) (i32.shr_u (local.get $new) (i32.const 16)))))
      (then unreachable))))
  (local.get $at))

;; The next byte of the script, of the one or two that its character has.
(func $byte (result i32)
  (local $byte i32)
  (if (i32.ge_u (global.get $script) (global.get $end)) (then (return (i32.const 0))))
  (local.set $byte (i32.load8_u (global.get $script)))
  (global.set $script (i32.add (global.get $script) (i32.const 1)))
  (if (i32.lt_u (local.get $byte) (i32.const 0xC0)) (then (return (local.get $byte))))
  (local.set $byte (i32.or
    (i32.shl (i32.and (local.get $byte) (i32.const 3)) (i32.const 6))
    (i32.and (i32.load8_u (global.get $script)) (i32.const 0x3F))))
  (global.set $script (i32.add (global.get $script) (i32.const 1)))
  (local.get $byte))

(func $bytes (param $count i32) (result i64)
  (local $value i64) (local $shift i64)
  (loop $next
    (if (local.get $count) (then
      (local.set $value (i64.or (local.get $value)
        (i64.shl (i64.extend_i32_u (call $byte)) (local.get $shift))))
      (local.set $shift (i64.add (local.get $shift) (i64.const 8)))
      (local.set $count (i32.sub (local.get $count) (i32.const 1)))
      (br $next))))
  (local.get $value))

(func $value (result i64)
  (local $byte i32)
  (local.set $byte (call $byte))
  (if (i32.lt_u (local.get $byte) (i32.const 0x70)) (then (return (i64.extend_i32_u (local.get $byte)))))
  (if (i32.lt_u (local.get $byte) (i32.const 0xB0)) (then (return (i64.extend_i32_u (i32.add
    (i32.const {SCRATCH}) (i32.mul (i32.const {SLOT_BYTES}) (i32.sub (local.get $byte) (i32.const 0x70))))))))
  (if (i32.lt_u (local.get $byte) (i32.const 0xC0)) (then (return (i64.load (i32.add (i32.const {RESULTS})
    (i32.mul (i32.const 8) (i32.and (i32.const 7)
      (i32.sub (i32.sub (global.get $turn) (i32.const 1)) (local.get $byte)))))))))
  (if (i32.lt_u (local.get $byte) (i32.const 0xC8)) (then (return (i64.sub
    (i64.shl (i64.const 1) (i64.extend_i32_u (call $byte)))
    (i64.extend_i32_u (i32.and (local.get $byte) (i32.const 1)))))))
  (if (i32.lt_u (local.get $byte) (i32.const 0xD0)) (then (return (i64.const -1))))
  (if (i32.lt_u (local.get $byte) (i32.const 0xE0)) (then (return (call $bytes (i32.const 2)))))
  (if (i32.lt_u (local.get $byte) (i32.const 0xF0)) (then (return (call $bytes (i32.const 4)))))
  (call $bytes (i32.const 8)))

;; Keeps a result; 0xB0 as a value is the last, 0xB1 the one before.
(func $remember (param $value i64)
  (i64.store (i32.add (i32.const {RESULTS}) (i32.mul (i32.const 8) (i32.and (i32.const 7) (global.get $turn))))
    (local.get $value))
  (global.set $turn (i32.add (global.get $turn) (i32.const 1))))

(func $return_slot (result i32)
  (global.set $returned (i32.and (i32.add (global.get $returned) (i32.const 1)) (i32.const 15)))
  (i32.add (i32.const {RETURNS}) (i32.mul (i32.const {SLOT_BYTES}) (global.get $returned))))

;; A place in the scratch memory: 16 times the next byte.
(func $at (result i32)
  (i32.add (i32.const {SCRATCH}) (i32.mul (i32.const 16) (call $byte))))

(func $copy
  (local $at i32) (local $count i32)
  (local.set $at (call $at))
  (local.set $count (call $byte))
  (loop $next
    (if (local.get $count) (then
      (i32.store8 (local.get $at) (call $byte))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (local.set $count (i32.sub (local.get $count) (i32.const 1)))
      (br $next)))))

(func $call (param $op i32) (local $at i32)
{calls})

(func (export "dchost:worker/entry@0.1.0#run") (result i32)
  (local $op i32)
  (call $arguments (i32.const {RUN_RESULT}))
  ;; The second of the list's strings; the first is the component's name.
  (local.set $op (i32.load (i32.const {RUN_RESULT})))
  (if (i32.lt_u (i32.load offset=4 (i32.const {RUN_RESULT})) (i32.const 2)) (then unreachable))
  (global.set $script (i32.load offset=8 (local.get $op)))
  (global.set $end (i32.add (global.get $script) (i32.load offset=12 (local.get $op))))
  ;; The script stays, what comes after it is emptied at each op.
  (i32.store (i32.const {RUN_RESULT}) (i32.const 0))
  (i64.store (i32.const {RUN_RESULT}) (i64.const 0))
  (local.set $op (i32.add (global.get $end) (i32.const 8)))
  (call $interpret (local.get $op))
  (i32.const {RUN_RESULT}))

(func $interpret (param $heap i32)
  (local $op i32) (local $at i32)
  (loop $next
    (if (i32.ge_u (global.get $script) (global.get $end)) (then (return)))
    (global.set $heap (local.get $heap))
    (local.set $op (call $byte))
    (if (i32.lt_u (local.get $op) (i32.const 0xE0))
      (then (call $call (i32.rem_u (local.get $op) (i32.const {count}))) (br $next)))
    (if (i32.lt_u (local.get $op) (i32.const 0xE8))
      (then (i32.store8 (call $at) (i32.wrap_i64 (call $value))) (br $next)))
    (if (i32.lt_u (local.get $op) (i32.const 0xF0))
      (then (i32.store (call $at) (i32.wrap_i64 (call $value))) (br $next)))
    (if (i32.lt_u (local.get $op) (i32.const 0xF8)) (then (call $copy) (br $next)))
    (if (i32.lt_u (local.get $op) (i32.const 0xFC)) (then
      (call $remember (i64.load32_u (i32.and (i32.wrap_i64 (call $value)) (i32.const 0x7FFF0))))
      (br $next)))
    (if (i32.eq (local.get $op) (i32.const 0xFC))
      (then (drop (memory.grow (i32.wrap_i64 (call $value)))) (br $next)))
    (if (i32.eq (local.get $op) (i32.const 0xFD)) (then
      (i32.store (i32.const {RUN_RESULT}) (i32.const 1))
      (i32.store offset=4 (i32.const {RUN_RESULT}) (i32.wrap_i64 (call $value)))
      (i32.store offset=8 (i32.const {RUN_RESULT}) (i32.wrap_i64 (call $value)))
      (return)))
    (if (i32.eq (local.get $op) (i32.const 0xFE)) (then unreachable)))))
"#,
        data = data(),
    )
}

/// What the upper half of the scratch memory holds at the start, so that a script of few bytes says something.
///
/// | slot | what |
/// | --- | --- |
/// | 32 | `weights`, and `bias` 16 bytes later |
/// | 33 | the shape `[2, 2]`, and `[4]` 16 bytes later |
/// | 34 | 16 bytes of data |
/// | 35 | a tensor: u8, of shape `[4]` |
/// | 36 | the handles 1 to 16 |
/// | 37 | `(borrow<variable>, tensor)` of handle 1 |
/// | 38 | a change of handle 1: add the tensor |
/// | 39 | `weights` as a list of strings, and `ps` 16 bytes later |
fn data() -> String {
    let slot = |slot: u32| SCRATCH + SLOT_BYTES * slot;
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let tensor = [4, slot(33) + 16, 1, slot(34), 4];
    let parts = [
        (slot(32), b"weights".to_vec()),
        (slot(32) + 16, b"bias".to_vec()),
        (slot(33), words(&[2, 0, 2, 0, 4, 0])),
        (slot(34), (1..=16).collect()),
        (slot(35), words(&tensor)),
        (slot(36), words(&(1..=16).collect::<Vec<u32>>())),
        (slot(37), words(&[&[1], &tensor[..]].concat())),
        (slot(38), words(&[&[1, 1], &tensor[..], &[0, 0, 0, 0]].concat())),
        (slot(39), words(&[slot(32), 7, slot(32) + 16, 4])),
        (slot(39) + 16, b"ps".to_vec()),
    ];
    let escaped = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("\\{byte:02x}")).collect::<String>();
    parts.into_iter().map(|(at, bytes)| format!("(data (i32.const {at}) \"{}\")\n", escaped(bytes))).collect()
}
