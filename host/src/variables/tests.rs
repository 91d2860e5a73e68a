//! The store against a naive model, under many threads, and at its limits.

mod model;
mod optimizers;
mod relaxed;
mod rows;
mod rules;
mod saved;
mod sync;
mod threads;
mod versions;

use super::*;
use crate::error::Result;
use crate::tensor::DType;

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn variable(name: &str, elements: u64) -> VariableRef {
    VariableRef::whole(name, TensorType::new(DType::F32, [elements]))
}

fn open(store: &Store) -> Container {
    store.open("default", None).unwrap()
}

fn initialize(container: &Container, name: &str, values: &[f32]) -> Result<Vec<u64>> {
    let value = f32s(values);
    let variable = variable(name, values.len() as u64);
    container.initialize(vec![(variable, Payload::Borrowed(&value))], InitializeMode::Overwrite)
}

fn update<'a>(name: &str, kind: UpdateKind, value: &'a [u8], base: Option<u64>) -> Update<'a> {
    Update { variable: variable(name, value.len() as u64 / 4), kind, value: Payload::Borrowed(value), base }
}

fn read(container: &Container, name: &str, elements: u64) -> (Vec<f32>, u64) {
    let snapshot = container.pull(&[variable(name, elements)]).unwrap().remove(0);
    let floats = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
    (floats(&snapshot.blocks.contiguous()), snapshot.version)
}
