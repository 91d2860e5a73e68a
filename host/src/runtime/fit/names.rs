//! Names and types of a component in messages: taken apart, bounded, and compared with what is known.

use crate::text::{self, did_you_mean, shown};
use wasmtime::component::Type;
use wasmtime::component::types::ComponentFunc;

/// How alike a name must be to be suggested, from 0 to 1.
const SUGGESTION_SIMILARITY_MIN: f64 = 0.8;

/// Names that are listed in one line.
const LISTED_MAX: usize = 10;

/// How deep a type is written out. A type may be shared by many places, so that its text grows with the power of its depth.
const TYPE_DEPTH_MAX: u32 = 4;

/// Parts of a type or parameters that are written out.
const PARTS_MAX: usize = 8;

/// The name of an interface: `wasi:io/poll@0.2.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InterfaceName<'a> {
    pub(super) package: &'a str,
    pub(super) interface: &'a str,
    pub(super) version: Option<&'a str>,
}

impl<'a> InterfaceName<'a> {
    pub(super) fn parse(name: &'a str) -> Option<Self> {
        let (path, version) = match name.split_once('@') {
            Some((path, version)) => (path, Some(version)),
            None => (name, None),
        };
        let (package, interface) = path.split_once('/')?;
        package.contains(':').then_some(InterfaceName { package, interface, version })
    }

    /// Major and minor version, where it is a release.
    pub(super) fn release(self) -> Option<(u64, u64)> {
        let version = self.version?;
        if version.contains(['-', '+']) {
            return None;
        }
        let mut parts = version.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }

    /// Whether it is that interface, in whatever version.
    pub(super) fn is(self, package: &str, interface: &str) -> bool {
        self.package == package && self.interface == interface
    }
}

/// A signature in the words of WIT, as far as it helps to see the difference.
pub(super) fn signature(function: &ComponentFunc) -> String {
    let params: Vec<_> = function
        .params()
        .take(PARTS_MAX)
        .map(|(name, ty)| format!("{}: {}", shown(name), type_name(&ty, TYPE_DEPTH_MAX)))
        .collect();
    let more = if function.params().len() > PARTS_MAX { ", ..." } else { "" };
    let results: Vec<_> = function.results().map(|ty| format!(" -> {}", type_name(&ty, TYPE_DEPTH_MAX))).collect();
    shown(&format!("func({}{more}){}", params.join(", "), results.join(",")))
}

fn type_name(ty: &Type, depth: u32) -> String {
    let Some(depth) = depth.checked_sub(1) else { return "...".to_owned() };
    let inner = |ty: Type| type_name(&ty, depth);
    let optional = |ty: Option<Type>| ty.map_or_else(|| "_".to_owned(), inner);
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
        Type::List(list) => format!("list<{}>", inner(list.ty())),
        Type::Option(option) => format!("option<{}>", inner(option.ty())),
        Type::Result(result) if result.ok().is_none() && result.err().is_none() => "result".to_owned(),
        Type::Result(result) if result.err().is_none() => format!("result<{}>", optional(result.ok())),
        Type::Result(result) => format!("result<{}, {}>", optional(result.ok()), optional(result.err())),
        Type::Tuple(tuple) => {
            format!("tuple<{}>", tuple.types().take(PARTS_MAX).map(inner).collect::<Vec<_>>().join(", "))
        }
        Type::Record(_) => "record".to_owned(),
        Type::Variant(_) => "variant".to_owned(),
        Type::Enum(_) => "enum".to_owned(),
        Type::Flags(_) => "flags".to_owned(),
        Type::Own(_) => "own<resource>".to_owned(),
        Type::Borrow(_) => "borrow<resource>".to_owned(),
        // Those of features that are off; no component with one compiles.
        _ => "type".to_owned(),
    }
}

/// The nearest of `names`, as the end of a sentence.
pub(super) fn nearest<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    did_you_mean(text::nearest(wanted, names, SUGGESTION_SIMILARITY_MIN))
}

/// Names in a row, the first of them where there are many.
pub(super) fn list(names: &[&str]) -> String {
    if names.is_empty() {
        return "nothing".to_owned();
    }
    let mut listed =
        names.iter().take(LISTED_MAX).map(|name| format!("`{}`", shown(name))).collect::<Vec<_>>().join(", ");
    if names.len() > LISTED_MAX {
        listed += &format!(" and {} more", names.len() - LISTED_MAX);
    }
    listed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_are_taken_apart() {
        let name = InterfaceName::parse("wasi:io/streams@0.2.0-rc-2023-11-05").unwrap();
        assert_eq!((name.package, name.interface, name.release()), ("wasi:io", "streams", None));
        assert_eq!(InterfaceName::parse("dchost:worker/log@0.1.7").unwrap().release(), Some((0, 1)));
        assert_eq!(InterfaceName::parse("run"), None);
        assert_eq!(InterfaceName::parse("a:b/c").unwrap().version, None);
    }

    #[test]
    fn lists_and_suggestions_are_bounded() {
        let long = "a".repeat(1 << 20);
        let listed = list(&vec![long.as_str(); 1000]);
        assert!(listed.len() < 4096 && listed.ends_with("and 990 more"), "{}", listed.len());
        assert_eq!(nearest(&long, ["log"]), "");
        assert_eq!(nearest("logg", ["log", &long]), ", did you mean `log`?");
    }
}
