//! Whether a component fits the world: every problem in one report, with what is nearest to what was meant.

mod imports;
mod names;
mod ops;
mod surface;

pub(super) use ops::OpEntry;
pub use surface::{Item, Surface, Verdict, World};

use super::bindings::WorkerPre;
use super::engine::EngineInner;
use super::state::State;
use crate::text::shown;
use names::{InterfaceName, list, nearest, signature};
use std::collections::BTreeMap;
use std::fmt;
use wasmtime::component::types::{ComponentFunc, ComponentItem};
use wasmtime::component::{Component, InstancePre, Type};

/// The version of `dchost:worker` that this host links: it serves components of the same minor version.
const VERSION: (u64, u64) = (0, 1);

/// The interface that a worker exports.
const ENTRY: &str = "dchost:worker/entry";

/// Problems that are listed; more say nothing new.
const PROBLEMS_MAX: usize = 64;

/// Everything by which a component doesn't fit the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// What it doesn't fit.
    pub world: World,
    /// One line for each problem, with how to mend it where that is known; at most some sixty.
    pub problems: Vec<String>,
    /// What it imports and exports.
    pub surface: Surface,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "  {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Misfit {}

/// One thing by which a component doesn't fit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    verdict: Verdict,
    /// What, why and how to mend it, on one line.
    text: String,
    /// Whether it is linked to a trap, so that nothing stands against a run.
    trapping: bool,
}

impl Fault {
    fn wrong(text: String) -> Self {
        Fault { verdict: Verdict::WrongSignature, text, trapping: false }
    }
}

/// What a component is loaded for: which of its exports it can't do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To run its worker_fn.
    Run,
    /// To call its ops.
    Ops,
}

/// A component with everything that it imports, and what the host may call of it.
pub(super) struct Linked {
    pub(super) pre: InstancePre<State>,
    /// None of a component that was loaded for its ops and has no worker_fn.
    pub(super) worker: Option<WorkerPre<State>>,
    /// Its ops, or why none can be called.
    pub(super) ops: Result<OpEntry, String>,
}

/// Links a component, or lists all that stands against it.
pub(super) fn link(engine: &EngineInner, component: &Component, purpose: Purpose) -> Result<Linked, Misfit> {
    let mut exports = export_faults(&engine.wasmtime, component);
    let linked = imports::link(engine, component);
    let mut worker = None;
    if let (Some(pre), true) = (&linked.pre, exports.is_empty()) {
        match WorkerPre::new(pre.clone()) {
            Ok(pre) => worker = Some(pre),
            Err(error) => exports.push(Fault::wrong(format!("wrong export    {}", shown(&format!("{error:#}"))))),
        }
    }
    let ops = ops::find(&engine.wasmtime, component);
    let fits = match purpose {
        Purpose::Run => worker.is_some(),
        Purpose::Ops => ops.is_ok(),
    };
    if let (Some(pre), true) = (linked.pre, fits) {
        return Ok(Linked { pre, worker, ops: ops.map_err(|fault| fault.text) });
    }
    let surface = Surface::new(&engine.wasmtime, component, &linked.faults, &exports);
    let (world, exports) = match purpose {
        Purpose::Run => (World::Worker, exports),
        Purpose::Ops => (World::OpExports, ops.err().into_iter().collect()),
    };
    let imports = linked.faults.into_values().flatten().filter(|fault| !fault.trapping);
    let mut problems: Vec<_> = exports.into_iter().chain(imports).map(|fault| fault.text).collect();
    let more = problems.len().saturating_sub(PROBLEMS_MAX);
    problems.truncate(PROBLEMS_MAX);
    if linked.more {
        problems.push("and more".to_owned());
    } else if more > 0 {
        problems.push(format!("and {more} more"));
    }
    Err(Misfit { world, problems, surface })
}

/// What a component imports and exports, each with what it is to this host.
pub(super) fn surface(engine: &EngineInner, component: &Component) -> Surface {
    let exports = export_faults(&engine.wasmtime, component);
    Surface::new(&engine.wasmtime, component, &imports::link(engine, component).faults, &exports)
}

/// What is wrong with the exports: none is fine.
fn export_faults(engine: &wasmtime::Engine, component: &Component) -> Vec<Fault> {
    let ty = component.component_type();
    let mut exports = BTreeMap::new();
    let mut entries = Vec::new();
    for (name, item) in ty.exports(engine) {
        if InterfaceName::parse(name).is_some_and(|name| name.is("dchost:worker", "entry")) {
            entries.push((name.to_owned(), item.ty.clone()));
        }
        exports.insert(name.to_owned(), item.ty);
    }
    let fitting = entries.iter().find(|(name, _)| version_fits(name));
    match fitting {
        Some((name, ComponentItem::ComponentInstance(instance))) => {
            let functions: Vec<_> =
                instance.exports(engine).map(|(name, item)| (name.to_owned(), item.ty.clone())).collect();
            match functions.iter().find(|(name, _)| name == "run") {
                Some((_, ComponentItem::ComponentFunc(function))) if is_run(function) => Vec::new(),
                Some((_, ComponentItem::ComponentFunc(function))) => vec![Fault::wrong(format!(
                    "wrong export    `run` of `{name}` is `{}`, but `func() -> result<_, string>` is called",
                    signature(function)
                ))],
                _ => {
                    let names: Vec<_> = functions.iter().map(|(name, _)| name.as_str()).collect();
                    vec![Fault::wrong(format!("missing export  `run` in `{name}`, which has {}", list(&names)))]
                }
            }
        }
        Some((name, _)) => vec![Fault::wrong(format!("wrong export    `{name}` is not an interface"))],
        None => {
            let entries: Vec<_> = entries.into_iter().map(|(name, _)| name).collect();
            let verdict = if entries.is_empty() { Verdict::Unknown } else { Verdict::WrongVersion };
            vec![Fault { verdict, text: missing_entry(&entries, &exports), trapping: false }]
        }
    }
}

/// Why the entry isn't there: another version, at the root, a command, only ops, or nothing of the sort.
fn missing_entry(entries: &[String], exports: &BTreeMap<String, ComponentItem>) -> String {
    let missing = format!("missing export  `run` (interface {ENTRY}@{}.{}.0)", VERSION.0, VERSION.1);
    if let Some(name) = entries.first() {
        let newer = InterfaceName::parse(name).and_then(InterfaceName::release).is_some_and(|found| found > VERSION);
        let (age, mend) = if newer {
            ("newer", "this dchost is too old for it, take a newer dchost or rebuild with dchost-guest 0.1")
        } else {
            ("other", "rebuild with dchost-guest 0.1")
        };
        return format!(
            "{missing}, but exports the {age} `{}`: host offers {}.{}.x; {mend}",
            shown(name),
            VERSION.0,
            VERSION.1
        );
    }
    if matches!(exports.get("run"), Some(ComponentItem::ComponentFunc(_))) {
        return format!("{missing}; `run` stands at the root of the world, export it inside interface `{ENTRY}`");
    }
    let names: Vec<_> = exports.keys().map(String::as_str).collect();
    if names.iter().any(|name| name.starts_with("wasi:cli/run")) {
        return format!(
            "{missing}; it is a command with a `main` (exports `wasi:cli/run`): make it a library (crate-type cdylib) \
             with a `#[worker_fn]`"
        );
    }
    if names.iter().any(|name| name.starts_with("dchost:worker/op-entry")) {
        return format!("{missing}; it exports ops only, give the component that has the `#[worker_fn]`");
    }
    if names.is_empty() {
        return format!("{missing}; it exports nothing: mark the entry with `#[worker_fn]`");
    }
    format!("{missing}; it exports {}{}", list(&names), nearest(ENTRY, names.iter().copied()))
}

fn version_fits(name: &str) -> bool {
    InterfaceName::parse(name).and_then(InterfaceName::release) == Some(VERSION)
}

fn is_run(function: &ComponentFunc) -> bool {
    let mut results = function.results();
    function.params().len() == 0
        && results.len() == 1
        && matches!(results.next(), Some(Type::Result(result))
            if result.ok().is_none() && matches!(result.err(), Some(Type::String)))
}
