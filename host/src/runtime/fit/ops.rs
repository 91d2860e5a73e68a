//! The ops of a component: where its `op-entry` stands, and whether it is as the host calls it.

use super::names::{InterfaceName, list, signature};
use super::{Fault, VERSION, Verdict, version_fits};
use crate::text::shown;
use wasmtime::component::types::{ComponentFunc, ComponentItem};
use wasmtime::component::{Component, ComponentExportIndex, Type};

/// Element types of the WIT, in its order.
const DTYPES: [&str; 8] = ["f32", "f64", "s32", "s64", "u8", "bf16", "f16", "bool"];

/// The functions of `op-entry`; their types were checked.
#[derive(Clone, Copy, Debug)]
pub(in crate::runtime) struct OpEntry {
    pub(in crate::runtime) list: ComponentExportIndex,
    pub(in crate::runtime) call: ComponentExportIndex,
}

/// Finds a component's ops, or says why it has none that can be called.
pub(super) fn find(engine: &wasmtime::Engine, component: &Component) -> Result<OpEntry, Fault> {
    let interface = format!("dchost:worker/op-entry@{}.{}.0", VERSION.0, VERSION.1);
    let ty = component.component_type();
    let names: Vec<_> = ty
        .exports(engine)
        .map(|(name, _)| name.to_owned())
        .filter(|name| InterfaceName::parse(name).is_some_and(|name| name.is("dchost:worker", "op-entry")))
        .collect();
    let Some(name) = names.iter().find(|name| version_fits(name)) else {
        let text = match names.first() {
            Some(other) => format!(
                "missing export  `call` (interface {interface}), but exports the other `{}`; rebuild with dchost-guest 0.1",
                shown(other)
            ),
            None => format!("missing export  `call` (interface {interface}): it has no ops, mark some with `#[op]`"),
        };
        let verdict = if names.is_empty() { Verdict::Unknown } else { Verdict::WrongVersion };
        return Err(Fault { verdict, text, trapping: false });
    };
    let Some((ComponentItem::ComponentInstance(instance), entry)) = component.get_export(None, name.as_str()) else {
        return Err(Fault::wrong(format!("wrong export    `{}` is not an interface", shown(name))));
    };
    let function = |function: &str, fits: fn(&ComponentFunc) -> bool, wanted: &str| match component
        .get_export(Some(&entry), function)
    {
        Some((ComponentItem::ComponentFunc(ty), index)) if fits(&ty) => Ok(index),
        Some((ComponentItem::ComponentFunc(ty), _)) => Err(Fault::wrong(format!(
            "wrong export    `{function}` of `{}` is `{}`, but `{wanted}` is called",
            shown(name),
            signature(&ty)
        ))),
        _ => {
            let names: Vec<_> = instance.exports(engine).map(|(name, _)| name).collect();
            Err(Fault::wrong(format!("missing export  `{function}` in `{}`, which has {}", shown(name), list(&names))))
        }
    };
    Ok(OpEntry {
        list: function("list", is_list, "func() -> list<string>")?,
        call: function("call", is_call, "func(name: string, inputs: list<tensor>) -> result<list<tensor>, string>")?,
    })
}

fn is_list(function: &ComponentFunc) -> bool {
    let mut results = function.results();
    function.params().len() == 0
        && results.len() == 1
        && results.next().is_some_and(|ty| is_list_of(&ty, |ty| matches!(ty, Type::String)))
}

fn is_call(function: &ComponentFunc) -> bool {
    let params: Vec<_> = function.params().map(|(_, ty)| ty).collect();
    let results: Vec<_> = function.results().collect();
    matches!(&params[..], [Type::String, inputs] if is_list_of(inputs, is_tensor))
        && matches!(&results[..], [Type::Result(result)]
            if matches!(result.err(), Some(Type::String)) && result.ok().is_some_and(|ty| is_list_of(&ty, is_tensor)))
}

fn is_list_of(ty: &Type, of: fn(&Type) -> bool) -> bool {
    matches!(ty, Type::List(list) if of(&list.ty()))
}

fn is_tensor(ty: &Type) -> bool {
    let Type::Record(record) = ty else { return false };
    let fields: Vec<_> = record.fields().map(|field| (field.name, field.ty)).collect();
    let is_dtype = |ty: &Type| matches!(ty, Type::Enum(dtype) if dtype.names().eq(DTYPES));
    matches!(&fields[..], [("dtype", dtype), ("shape", shape), ("data", data)]
        if is_dtype(dtype)
            && is_list_of(shape, |ty| matches!(ty, Type::U64))
            && is_list_of(data, |ty| matches!(ty, Type::U8)))
}
