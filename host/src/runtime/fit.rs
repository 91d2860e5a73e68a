//! Whether a component fits the world: every problem in one report, with what is nearest to what was meant.

use super::bindings::WorkerPre;
use super::engine::EngineInner;
use super::state::State;
use crate::text::{did_you_mean, nearest, shown};
use std::collections::BTreeMap;
use std::fmt;
use wasmtime::component::types::{ComponentFunc, ComponentItem};
use wasmtime::component::{Component, Linker, ResourceType, Type};

/// The version of `dchost:worker` that this host links: it serves components of the same minor version.
const VERSION: (u64, u64) = (0, 1);

/// The interface that a worker exports.
const ENTRY: &str = "dchost:worker/entry";

/// Interfaces of `dchost:worker` that a component may import.
const INTERFACES: [&str; 8] = ["types", "worker-context", "pending", "variables", "ops", "kernels", "summary", "log"];

/// Packages of WASI 0.2 that a component may import.
const WASI_PACKAGES: [&str; 6] =
    ["wasi:cli", "wasi:clocks", "wasi:filesystem", "wasi:io", "wasi:random", "wasi:sockets"];

/// How alike a name must be to be suggested, from 0 to 1: names of interfaces share much anyway.
const SUGGESTION_LIKENESS_MIN: f64 = 0.8;

/// Names that are listed in one problem.
const LISTED_MAX: usize = 16;

/// Problems that are listed; more say nothing new.
const PROBLEMS_MAX: usize = 64;

/// Everything by which a component doesn't fit the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// One line for each problem, with how to mend it where that is known.
    pub problems: Vec<String>,
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

/// The name of an interface: `wasi:io/poll@0.2.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InterfaceName<'a> {
    package: &'a str,
    interface: &'a str,
    version: Option<&'a str>,
}

impl<'a> InterfaceName<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let (path, version) = match name.split_once('@') {
            Some((path, version)) => (path, Some(version)),
            None => (name, None),
        };
        let (package, interface) = path.split_once('/')?;
        package.contains(':').then_some(InterfaceName { package, interface, version })
    }

    /// Major and minor version, where it is a release.
    fn release(self) -> Option<(u64, u64)> {
        let version = self.version?;
        if version.contains(['-', '+']) {
            return None;
        }
        let mut parts = version.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

/// Links a component, or lists all that stands against it.
pub(super) fn link(engine: &EngineInner, component: &Component) -> Result<WorkerPre<State>, Misfit> {
    let mut problems = export_problems(&engine.wasmtime, component);
    let pre = engine.linker.instantiate_pre(component);
    match pre {
        Err(_) => problems.extend(import_problems(engine, component)),
        Ok(pre) if problems.is_empty() => match WorkerPre::new(pre) {
            Ok(pre) => return Ok(pre),
            Err(error) => problems.push(format!("wrong export    {error:#}")),
        },
        Ok(_) => {}
    }
    if problems.len() > PROBLEMS_MAX {
        let more = problems.len() - PROBLEMS_MAX;
        problems.truncate(PROBLEMS_MAX);
        problems.push(format!("and {more} more"));
    }
    Err(Misfit { problems })
}

/// What is wrong with the exports: none is fine.
fn export_problems(engine: &wasmtime::Engine, component: &Component) -> Vec<String> {
    let ty = component.component_type();
    let mut exports = BTreeMap::new();
    let mut entries = Vec::new();
    for (name, item) in ty.exports(engine) {
        if InterfaceName::parse(name).is_some_and(|name| format!("{}/{}", name.package, name.interface) == ENTRY) {
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
                Some((_, ComponentItem::ComponentFunc(function))) => vec![format!(
                    "wrong export    `run` of `{name}` is `{}`, but `func() -> result<_, string>` is called",
                    signature(function)
                )],
                _ => vec![format!(
                    "missing export  `run` in `{name}`, which has {}",
                    list(&functions.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>())
                )],
            }
        }
        Some((name, _)) => vec![format!("wrong export    `{name}` is not an interface")],
        None => vec![missing_entry(&entries.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), &exports)],
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
        return format!("{missing}, but exports the {age} `{name}`: host offers {}.{}.x; {mend}", VERSION.0, VERSION.1);
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
    format!("{missing}; it exports {}{}", list(&names), suggestion(ENTRY, names.iter().copied()))
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

/// A signature in the words of WIT, as far as it helps to see the difference.
fn signature(function: &ComponentFunc) -> String {
    let params: Vec<_> = function.params().map(|(name, ty)| format!("{name}: {}", type_name(&ty))).collect();
    let results: Vec<_> = function.results().map(|ty| format!(" -> {}", type_name(&ty))).collect();
    format!("func({}){}", params.join(", "), results.join(","))
}

fn type_name(ty: &Type) -> String {
    let optional = |ty: Option<Type>| ty.map_or_else(|| "_".to_owned(), |ty| type_name(&ty));
    match ty {
        Type::Bool => "bool".to_owned(),
        Type::S8 => "s8".to_owned(),
        Type::U8 => "u8".to_owned(),
        Type::S16 => "s16".to_owned(),
        Type::U16 => "u16".to_owned(),
        Type::S32 => "s32".to_owned(),
        Type::U32 => "u32".to_owned(),
        Type::S64 => "s64".to_owned(),
        Type::U64 => "u64".to_owned(),
        Type::Float32 => "f32".to_owned(),
        Type::Float64 => "f64".to_owned(),
        Type::Char => "char".to_owned(),
        Type::String => "string".to_owned(),
        Type::List(list) => format!("list<{}>", type_name(&list.ty())),
        Type::Option(option) => format!("option<{}>", type_name(&option.ty())),
        Type::Result(result) if result.ok().is_none() && result.err().is_none() => "result".to_owned(),
        Type::Result(result) if result.err().is_none() => format!("result<{}>", optional(result.ok())),
        Type::Result(result) => format!("result<{}, {}>", optional(result.ok()), optional(result.err())),
        Type::Tuple(tuple) => {
            format!("tuple<{}>", tuple.types().map(|ty| type_name(&ty)).collect::<Vec<_>>().join(", "))
        }
        Type::Record(_) => "record".to_owned(),
        Type::Variant(_) => "variant".to_owned(),
        Type::Enum(_) => "enum".to_owned(),
        Type::Flags(_) => "flags".to_owned(),
        Type::Own(_) => "own<resource>".to_owned(),
        Type::Borrow(_) => "borrow<resource>".to_owned(),
        other => format!("{other:?}").split('(').next().unwrap_or("type").to_ascii_lowercase(),
    }
}

/// What is wrong with the imports.
///
/// The linker stops at the first; each one that it names is defined as a stand-in in a copy of it, and it is asked again.
fn import_problems(engine: &EngineInner, component: &Component) -> Vec<String> {
    let ty = component.component_type();
    let imports: BTreeMap<_, _> = ty.imports(&engine.wasmtime).map(|(name, item)| (name.to_owned(), item.ty)).collect();
    let mut scratch = engine.linker.clone();
    scratch.allow_shadowing(true);
    let mut problems = BTreeMap::new();
    // Each round settles one import.
    for _ in 0..=imports.len() {
        let error = match scratch.instantiate_pre(component) {
            Ok(_) => break,
            Err(error) => error,
        };
        let text = format!("{error:#}");
        let Some((name, item)) = named_import(&text, &imports).filter(|(name, _)| !problems.contains_key(*name)) else {
            problems.insert(String::new(), format!("wrong import    {text}"));
            break;
        };
        problems.insert(name.to_owned(), import_problem(engine, component, name, &text));
        if stand_in(&engine.wasmtime, &mut scratch, name, item).is_err() {
            break;
        }
    }
    problems.into_values().collect()
}

/// The import that an error of the linker is about: it quotes the name first of all.
fn named_import<'a>(text: &str, imports: &'a BTreeMap<String, ComponentItem>) -> Option<(&'a str, &'a ComponentItem)> {
    let name = text.split('`').nth(1)?;
    imports.get_key_value(name).map(|(name, item)| (name.as_str(), item))
}

/// Defines an import in whatever way lets the linker go on to the next; nothing is ever run with it.
fn stand_in(
    engine: &wasmtime::Engine,
    linker: &mut Linker<State>,
    name: &str,
    item: &ComponentItem,
) -> wasmtime::Result<()> {
    match item {
        ComponentItem::ComponentInstance(instance) => {
            let mut interface = linker.instance(name)?;
            for (name, item) in instance.exports(engine) {
                match item.ty {
                    ComponentItem::ComponentFunc(_) => {
                        interface.func_new(name, |_, _, _, _| Err(wasmtime::format_err!("a stand-in was called")))?;
                    }
                    ComponentItem::Resource(_) => {
                        interface.resource(name, ResourceType::host::<()>(), |_, _| Ok(()))?;
                    }
                    _ => {}
                }
            }
            Ok(())
        }
        ComponentItem::ComponentFunc(_) => {
            linker.root().func_new(name, |_, _, _, _| Err(wasmtime::format_err!("a stand-in was called")))
        }
        ComponentItem::Resource(_) => linker.root().resource(name, ResourceType::host::<()>(), |_, _| Ok(())),
        _ => Err(wasmtime::format_err!("no stand-in for this kind of import")),
    }
}

/// Says what is wrong with one import, and how to mend it.
fn import_problem(engine: &EngineInner, component: &Component, name: &str, text: &str) -> String {
    let Some(parsed) = InterfaceName::parse(name) else {
        return format!("unknown import  `{name}`: dchost offers nothing at the root of the world");
    };
    if parsed.package == "dchost:worker" {
        if !INTERFACES.contains(&parsed.interface) {
            return format!(
                "unknown import  `{name}`: dchost:worker has no such interface{}",
                suggestion(parsed.interface, INTERFACES)
            );
        }
        if parsed.release() != Some(VERSION) {
            return format!(
                "unknown import  `{name}`: host offers {}.{}.x; rebuild with dchost-guest 0.1, or take another dchost",
                VERSION.0, VERSION.1
            );
        }
        return mismatch(engine, component, name, text);
    }
    if parsed.package.starts_with("wasi:") {
        return match parsed.release() {
            Some((0, 2)) if WASI_PACKAGES.contains(&parsed.package) => mismatch(engine, component, name, text),
            Some((0, 2)) => format!(
                "unknown import  `{name}`: not among the WASI interfaces that dchost offers (cli, clocks, filesystem, io, \
                 random, sockets); build without it"
            ),
            _ => format!("unknown import  `{name}`: host offers WASI 0.2.x; rebuild with a current toolchain"),
        };
    }
    format!("unknown import  `{name}`: dchost offers dchost:worker and WASI 0.2 only; build without it")
}

/// An interface that the host has, with something in it that it hasn't.
fn mismatch(engine: &EngineInner, component: &Component, name: &str, text: &str) -> String {
    // "...: instance export `frobnicate` has the wrong type: function implementation is missing"
    let part = text.split("instance export `").nth(1).and_then(|rest| rest.split('`').next());
    let reason = text.rsplit(": ").next().unwrap_or(text);
    let Some(part) = part else {
        return format!("wrong import    `{name}`: {text}");
    };
    let mend = if name.starts_with("wasi:") { "a toolchain for WASI 0.2" } else { "dchost-guest 0.1" };
    if reason.ends_with("is missing") {
        return format!(
            "unknown import  `{part}` of `{name}`: this dchost's interface has no such function; rebuild with {mend}, or take \
             a newer dchost"
        );
    }
    let imported = component
        .component_type()
        .get_import(&engine.wasmtime, name)
        .and_then(|item| match item.ty {
            ComponentItem::ComponentInstance(instance) => {
                instance.get_export(&engine.wasmtime, part).and_then(|item| match item.ty {
                    ComponentItem::ComponentFunc(function) => Some(format!(" as `{}`", signature(&function))),
                    _ => None,
                })
            }
            _ => None,
        })
        .unwrap_or_default();
    format!("wrong import    `{part}` of `{name}` is imported{imported}: {reason}; rebuild with {mend}")
}

/// The nearest of `names`, as the end of a sentence.
fn suggestion<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    did_you_mean(nearest(wanted, names, SUGGESTION_LIKENESS_MIN))
}

/// Names of the component's own making: it may have any number, of any length.
fn list(names: &[&str]) -> String {
    if names.is_empty() {
        return "nothing".to_owned();
    }
    let listed = names.iter().take(LISTED_MAX).map(|name| format!("`{}`", shown(name)));
    let listed = listed.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED_MAX) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_bounded_in_number_and_length() {
        assert_eq!((list(&[]), list(&["a", "b"])), ("nothing".to_owned(), "`a`, `b`".to_owned()));
        let long = "x".repeat(1 << 20);
        let text = list(&vec![long.as_str(); 1000]);
        assert!(text.len() < 5000 && text.ends_with(" and 984 more"), "{} bytes", text.len());
    }

    #[test]
    fn interface_names_are_taken_apart() {
        let name = InterfaceName::parse("wasi:io/streams@0.2.0-rc-2023-11-05").unwrap();
        assert_eq!((name.package, name.interface, name.release()), ("wasi:io", "streams", None));
        assert_eq!(InterfaceName::parse("dchost:worker/log@0.1.7").unwrap().release(), Some((0, 1)));
        assert_eq!(InterfaceName::parse("run"), None);
        assert_eq!(InterfaceName::parse("a:b/c").unwrap().version, None);
    }
}
