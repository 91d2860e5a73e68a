//! What is wrong with the imports, all of it, and stand-ins for what the host hasn't.

use super::names::{InterfaceName, nearest, signature};
use super::{Fault, PROBLEMS_MAX, VERSION, Verdict};
use crate::runtime::engine::EngineInner;
use crate::runtime::state::State;
use crate::text::shown;
use std::collections::BTreeMap;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, InstancePre, Linker, LinkerInstance, ResourceType};

/// Interfaces of `dchost:worker` that a component may import.
pub(super) const INTERFACES: [&str; 8] =
    ["types", "worker-context", "pending", "variables", "ops", "kernels", "summary", "log"];

/// Packages of WASI 0.2 that a component may import.
const WASI_PACKAGES: [&str; 6] =
    ["wasi:cli", "wasi:clocks", "wasi:filesystem", "wasi:io", "wasi:random", "wasi:sockets"];

/// The version by which the linker knows `dchost:worker`; a component may name another patch of it.
const LINKED_VERSION: &str = "0.1.0";

/// The version by which the linker knows WASI.
const LINKED_WASI_VERSION: &str = "0.2.12";

/// A resource of an interface that the host hasn't: nobody ever makes one.
enum Unknown {}

/// What came out of linking the imports.
pub(super) struct Linked {
    /// What is wrong with each import that isn't as it should be. In the order of their names.
    pub(super) faults: BTreeMap<String, Vec<Fault>>,
    /// The component with everything that it imports, unless something stands against it.
    pub(super) pre: Option<InstancePre<State>>,
    /// Whether there may be more faults than those that were looked for.
    pub(super) more: bool,
}

impl Linked {
    fn add(&mut self, name: &str, fault: Fault) {
        self.faults.entry(name.to_owned()).or_default().push(fault);
    }
}

/// Links the imports. With `-W unknown-imports-trap` those that the host hasn't are linked to a trap.
///
/// The linker stops at the first fault. Each function that it names is replaced by a stand-in in a copy of it, and it is
/// asked again; nothing is run with a stand-in unless everything else fits.
pub(super) fn link(engine: &EngineInner, component: &Component) -> Linked {
    let mut linked = Linked { faults: BTreeMap::new(), pre: None, more: false };
    // What nearly every component does.
    if let Ok(pre) = engine.linker.instantiate_pre(component) {
        linked.pre = Some(pre);
        return linked;
    }
    let traps = engine.options.unknown_imports_trap;
    let ty = component.component_type();
    let imports: BTreeMap<_, _> = ty.imports(&engine.wasmtime).map(|(name, item)| (name.to_owned(), item.ty)).collect();
    let mut scratch = engine.linker.clone();
    scratch.allow_shadowing(true);
    for (name, item) in &imports {
        let Some((verdict, text)) = unknown(name) else { continue };
        let trapping = stand_in(&engine.wasmtime, &mut scratch, name, name, item, None).is_ok() && traps;
        linked.add(name, Fault { verdict, text, trapping });
    }
    let mut round = 0;
    let pre = loop {
        let error = match scratch.instantiate_pre(component) {
            Ok(pre) => break Some(pre),
            Err(error) => error,
        };
        // Each round settles one function, or one import.
        round += 1;
        if round > PROBLEMS_MAX {
            linked.more = true;
            break None;
        }
        let text = format!("{error:#}");
        let Some((name, item)) = named(&text, &imports) else {
            linked.add("", Fault::wrong(format!("wrong import    {}", shown(&text))));
            break None;
        };
        let part = text.split("instance export `").nth(1).and_then(|rest| rest.split('`').next());
        let missing = text.ends_with("implementation is missing");
        let fault = match part {
            Some(part) if missing => Fault { trapping: traps, ..missing_part(name, part) },
            Some(part) => wrong_part(engine, item, name, part, &text),
            None => Fault::wrong(format!("wrong import    `{}`: {}", shown(name), shown(last_cause(&text)))),
        };
        // The same again: the stand-in didn't settle it.
        if linked.faults.get(name).is_some_and(|faults| faults.iter().any(|known| known.text == fault.text)) {
            break None;
        }
        linked.add(name, fault);
        let place = linked_name(name);
        let settled = stand_in(&engine.wasmtime, &mut scratch, &place, name, item, part)
            .or_else(|_| stand_in(&engine.wasmtime, &mut scratch, name, name, item, None));
        if settled.is_err() {
            break None;
        }
    };
    let trapping = linked.faults.values().flatten().all(|fault| fault.trapping);
    linked.pre = pre.filter(|_| trapping);
    linked
}

/// The import that an error of the linker is about: it quotes the name first of all. A name may hold quotes itself.
fn named<'a>(text: &str, imports: &'a BTreeMap<String, ComponentItem>) -> Option<(&'a str, &'a ComponentItem)> {
    let (_, rest) = text.split_once('`')?;
    imports
        .iter()
        .filter(|(name, _)| rest.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('`')))
        .max_by_key(|(name, _)| name.len())
        .map(|(name, item)| (name.as_str(), item))
}

fn last_cause(text: &str) -> &str {
    text.rsplit(": ").next().unwrap_or(text)
}

/// The name by which the linker knows an interface that it has in another patch version.
fn linked_name(name: &str) -> String {
    match InterfaceName::parse(name) {
        Some(InterfaceName { package, interface, .. }) if package == "dchost:worker" => {
            format!("{package}/{interface}@{LINKED_VERSION}")
        }
        Some(InterfaceName { package, interface, .. }) if package.starts_with("wasi:") => {
            format!("{package}/{interface}@{LINKED_WASI_VERSION}")
        }
        _ => name.to_owned(),
    }
}

/// Defines an import, or one part of it, at `place` in whatever way lets the linker go on. Calling it traps with its name.
fn stand_in(
    engine: &wasmtime::Engine,
    linker: &mut Linker<State>,
    place: &str,
    name: &str,
    item: &ComponentItem,
    part: Option<&str>,
) -> wasmtime::Result<()> {
    let ComponentItem::ComponentInstance(instance) = item else {
        return trap(&mut linker.root(), name, shown(name), item);
    };
    let mut interface = linker.instance(place)?;
    if let Some(part) = part {
        let item = instance.get_export(engine, part).map(|item| item.ty);
        let item = item.ok_or_else(|| wasmtime::format_err!("no such part"))?;
        return trap(&mut interface, part, format!("{}#{}", shown(name), shown(part)), &item);
    }
    for (part, item) in instance.exports(engine) {
        match item.ty {
            // Types alone need no definition.
            ComponentItem::Type(_) => {}
            item => trap(&mut interface, part, format!("{}#{}", shown(name), shown(part)), &item)?,
        }
    }
    Ok(())
}

fn trap(
    interface: &mut LinkerInstance<'_, State>,
    part: &str,
    full_name: String,
    item: &ComponentItem,
) -> wasmtime::Result<()> {
    match item {
        ComponentItem::ComponentFunc(_) => interface.func_new(part, move |_, _, _, _| {
            Err(wasmtime::format_err!(
                "unknown import `{full_name}` called, which dchost doesn't offer (-W unknown-imports-trap)"
            ))
        }),
        ComponentItem::Resource(_) => interface.resource(part, ResourceType::host::<Unknown>(), |_, _| Ok(())),
        _ => Err(wasmtime::format_err!("no stand-in for this kind of import")),
    }
}

/// Why the host hasn't an import, as far as its name alone tells; none: it has an interface of that name, or may.
pub(super) fn unknown(name: &str) -> Option<(Verdict, String)> {
    let import = format!("unknown import  `{}`", shown(name));
    let Some(parsed) = InterfaceName::parse(name) else {
        return Some((Verdict::Unknown, format!("{import}: dchost offers nothing at the root of the world")));
    };
    if parsed.package == "dchost:worker" {
        if !INTERFACES.contains(&parsed.interface) {
            let near = nearest(parsed.interface, INTERFACES);
            return Some((Verdict::Unknown, format!("{import}: dchost:worker has no such interface{near}")));
        }
        if parsed.release() != Some(VERSION) {
            let (major, minor) = VERSION;
            return Some((
                Verdict::WrongVersion,
                format!(
                    "{import}: host offers {major}.{minor}.x; rebuild with dchost-guest 0.1, or take another dchost"
                ),
            ));
        }
        return None;
    }
    if parsed.package.starts_with("wasi:") {
        return match parsed.release() {
            Some((0, 2)) if WASI_PACKAGES.contains(&parsed.package) => None,
            Some((0, 2)) => Some((
                Verdict::Unknown,
                format!(
                    "{import}: not among the WASI interfaces that dchost offers (cli, clocks, filesystem, io, random, \
                     sockets); build without it"
                ),
            )),
            _ => Some((
                Verdict::WrongVersion,
                format!("{import}: host offers WASI 0.2.x; rebuild with a current toolchain"),
            )),
        };
    }
    let text = format!("{import}: dchost offers dchost:worker and WASI 0.2 only; build without it");
    Some((Verdict::Unknown, text))
}

fn toolchain(name: &str) -> &'static str {
    if name.starts_with("wasi:") { "a toolchain for WASI 0.2" } else { "dchost-guest 0.1" }
}

/// An interface that the host has, with something in it that it hasn't.
fn missing_part(name: &str, part: &str) -> Fault {
    let text = format!(
        "unknown import  `{}` of `{}`: this dchost's interface has no such function; rebuild with {}, or take a newer dchost",
        shown(part),
        shown(name),
        toolchain(name)
    );
    Fault { verdict: Verdict::Unknown, text, trapping: false }
}

/// An interface that the host has, with something in it that is other there.
fn wrong_part(engine: &EngineInner, item: &ComponentItem, name: &str, part: &str, text: &str) -> Fault {
    let imported = match item {
        ComponentItem::ComponentInstance(instance) => instance.get_export(&engine.wasmtime, part).map(|item| item.ty),
        _ => None,
    };
    let imported = match imported {
        Some(ComponentItem::ComponentFunc(function)) => format!(" as `{}`", signature(&function)),
        _ => String::new(),
    };
    Fault::wrong(format!(
        "wrong import    `{}` of `{}` is imported{imported}: {}; rebuild with {}",
        shown(part),
        shown(name),
        shown(last_cause(text)),
        toolchain(name)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Engine, EngineOptions};

    /// A stand-in for one function goes where the linker has the interface; elsewhere it would hide the others.
    #[test]
    fn the_linker_has_the_versions_that_it_is_asked_by() {
        let engine = Engine::new(EngineOptions::default()).unwrap();
        for (name, function) in [("wasi:random/random@0.2.0", "get-random-u64"), ("dchost:worker/log@0.1.9", "write")] {
            let mut linker = engine.inner.linker.clone();
            let place = linked_name(name);
            let defined = linker.instance(&place).unwrap().func_new(function, |_, _, _, _| Ok(()));
            let error = defined.expect_err(&place).to_string();
            assert!(error.contains("defined twice"), "{place}: {error}");
        }
    }
}
