//! What a component imports and exports, each with what it is to this host.

use super::imports::unknown;
use super::names::InterfaceName;
use super::{Fault, VERSION, ops, version_fits};
use crate::text::shown;
use std::collections::BTreeMap;
use wasmtime::component::Component;

/// Imports or exports that are listed, each; a component that means well has some forty.
const ITEMS_MAX: usize = 256;

/// What an import or export is to this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is there.
    Served,
    /// Nobody has it, or the interface hasn't that function.
    Unknown,
    /// The host has another version of it.
    WrongVersion,
    /// The host has it with another type.
    WrongSignature,
    /// The host has no use for it: an export beside those of the world.
    Unused,
}

impl Verdict {
    /// The word for people and programs: `served`, `unknown`, `wrong-version`, `wrong-signature`, `unused`.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Served => "served",
            Verdict::Unknown => "unknown",
            Verdict::WrongVersion => "wrong-version",
            Verdict::WrongSignature => "wrong-signature",
            Verdict::Unused => "unused",
        }
    }
}

/// One import or export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its name, escaped and cut where it is long.
    pub name: String,
    /// What it is to this host.
    pub verdict: Verdict,
    /// Which flag grants it, what is missing, or how to mend it.
    pub note: Option<String>,
}

/// The world of `dchost:worker` whose exports a component has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum World {
    /// A worker_fn.
    Worker,
    /// A worker_fn and ops.
    WorkerWithOps,
    /// Ops only.
    OpExports,
}

impl World {
    /// Its name in the WIT.
    pub fn as_str(self) -> &'static str {
        match self {
            World::Worker => "worker",
            World::WorkerWithOps => "worker-with-ops",
            World::OpExports => "op-exports",
        }
    }
}

/// What a component imports and exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surface {
    /// Which world it is of; none: of none that this host knows.
    pub world: Option<World>,
    /// Its imports, in the order of their names; the first of them where they are very many.
    pub imports: Vec<Item>,
    /// Its exports, as its imports.
    pub exports: Vec<Item>,
    /// Imports and exports that aren't listed.
    pub more: usize,
}

impl Surface {
    /// Collects what is known about each import and export.
    pub(super) fn new(
        engine: &wasmtime::Engine,
        component: &Component,
        import_faults: &BTreeMap<String, Vec<Fault>>,
        export_faults: &[Fault],
    ) -> Self {
        let ty = component.component_type();
        let items: BTreeMap<_, _> = ty.imports(engine).collect();
        let mut more = items.len().saturating_sub(ITEMS_MAX);
        let imports = items
            .into_iter()
            .take(ITEMS_MAX)
            .map(|(name, _)| import(name, import_faults.get(name).map_or(&[], Vec::as_slice)))
            .collect();
        let names: BTreeMap<_, _> = ty.exports(engine).collect();
        more += names.len().saturating_sub(ITEMS_MAX);
        let has = |interface: &str| {
            names.keys().any(|name| {
                version_fits(name) && InterfaceName::parse(name).is_some_and(|name| name.is("dchost:worker", interface))
            })
        };
        let world = match (has("entry"), has("op-entry")) {
            (true, false) => Some(World::Worker),
            (true, true) => Some(World::WorkerWithOps),
            (false, true) => Some(World::OpExports),
            (false, false) => None,
        };
        let ops = ops::find(engine, component).err();
        let exports = names.keys().take(ITEMS_MAX).map(|name| export(name, export_faults, ops.as_ref())).collect();
        Surface { world, imports, exports, more }
    }
}

fn import(name: &str, faults: &[Fault]) -> Item {
    let verdict = faults.first().map_or(Verdict::Served, |fault| fault.verdict);
    if let Some(first) = faults.first() {
        // Its name stands beside it too.
        let note = after_blanks(&first.text);
        let mut note = note.strip_prefix(&format!("`{}`: ", shown(name))).unwrap_or(note).to_owned();
        if faults.len() > 1 {
            note += &format!("; and {} more in it", faults.len() - 1);
        }
        if faults.iter().all(|fault| fault.trapping) {
            note += "; traps when it is called";
        }
        return Item { name: shown(name), verdict, note: Some(note) };
    }
    // It links all the same.
    if let Some((verdict, _)) = unknown(name) {
        return Item {
            name: shown(name),
            verdict,
            note: Some("types only, which need nothing of the host".to_owned()),
        };
    }
    let (verdict, note) = match InterfaceName::parse(name) {
        Some(parsed) if parsed.package == "dchost:worker" => (Verdict::Served, None),
        Some(parsed) => (Verdict::Served, grant(parsed).map(str::to_owned)),
        None => (Verdict::Served, None),
    };
    Item { name: shown(name), verdict, note }
}

/// The flag that grants what an interface of WASI is for.
fn grant(name: InterfaceName<'_>) -> Option<&'static str> {
    match (name.package, name.interface) {
        ("wasi:filesystem", _) => Some("no files without --dir"),
        ("wasi:sockets", _) => Some("no network without --allow-net"),
        ("wasi:cli", "environment") => Some("no variables without --env; arguments follow --"),
        ("wasi:cli", "stdin" | "terminal-stdin") => Some("always empty"),
        _ => None,
    }
}

fn export(name: &str, faults: &[Fault], ops_fault: Option<&Fault>) -> Item {
    let parsed = InterfaceName::parse(name);
    let entry = parsed.is_some_and(|parsed| parsed.is("dchost:worker", "entry"));
    let ops = parsed.is_some_and(|parsed| parsed.is("dchost:worker", "op-entry"));
    let (verdict, note) = match faults.first() {
        Some(fault) if entry => (fault.verdict, Some("see the reason below".to_owned())),
        _ if entry => (Verdict::Served, None),
        _ if ops && version_fits(name) => match ops_fault {
            Some(fault) => (fault.verdict, Some(format!("{}; its ops can't be called", after_blanks(&fault.text)))),
            None => (
                Verdict::Served,
                Some("ops that other tasks call; their names are known by running it only".to_owned()),
            ),
        },
        _ if ops => (Verdict::WrongVersion, Some(format!("host knows {}.{}.x", VERSION.0, VERSION.1))),
        _ => (Verdict::Unused, None),
    };
    Item { name: shown(name), verdict, note }
}

/// The text of a fault without its kind, which stands beside it as a verdict.
fn after_blanks(text: &str) -> &str {
    text.split_once("  ").map_or(text, |(_, rest)| rest.trim_start())
}
