//! All of a container, saved and restored.

use super::*;
use crate::error::ErrorCode;
use std::task::Poll;

const ADAM: Optimizer =
    Optimizer::Adam(Adam { learning_rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 });

fn step(container: &Container, name: &str, gradient: &[f32]) {
    let data = f32s(gradient);
    let gradients = vec![(variable(name, gradient.len() as u64), Payload::Borrowed(&data[..]))];
    let options = ApplyOptions { optimizer: ADAM, scale: 1.0, sync: None, write: WriteOptions::default() };
    container.apply(gradients, &options).unwrap();
}

fn restored(saved: Vec<(Saved, Vec<Blocks>)>) -> Vec<Restored> {
    let restored = |(Saved { variable, slots, .. }, tensors)| Restored { variable, slots, tensors };
    saved.into_iter().map(restored).collect()
}

/// Aim: what is restored goes on as what was saved, to the last bit, and what was saved stays as it was. Method: the same steps
/// with both, in another store and in the same one over other values.
#[test]
fn what_is_restored_goes_on_as_what_was_saved() {
    let first = Store::default();
    let container = open(&first);
    for (name, values) in [("b", &[1.0, 2.0, 3.0][..]), ("a", &[5.0]), ("empty", &[])] {
        initialize(&container, name, values).unwrap();
    }
    container
        .initialize(
            vec![(VariableRef::whole("wide", TensorType::new(DType::F64, [1])), Payload::Borrowed(&[0; 8]))],
            InitializeMode::Overwrite,
        )
        .unwrap();
    step(&container, "b", &[0.1, -0.2, 0.3]);
    step(&container, "b", &[0.3, 0.1, -0.3]);
    let saved = container.save().unwrap();
    let names: Vec<_> = saved
        .iter()
        .map(|(saved, tensors)| {
            (saved.variable.name.as_str(), saved.version, saved.slots.map(|slots| slots.step), tensors.len())
        })
        .collect();
    assert_eq!(names, [("wide", 1, None, 1), ("a", 1, None, 1), ("b", 3, Some(2), 3), ("empty", 1, None, 1)]);

    let second = Store::default();
    let other = open(&second);
    initialize(&other, "b", &[9.0, 9.0, 9.0]).unwrap();
    step(&other, "b", &[1.0, 1.0, 1.0]);
    step(&container, "b", &[1.0, 2.0, 3.0]);
    let expected = read(&container, "b", 3);
    assert_eq!(other.restore(restored(saved.clone())), Ok(vec![1, 1, 3, 1]));
    step(&other, "b", &[1.0, 2.0, 3.0]);
    assert_eq!(read(&other, "b", 3).0, expected.0);
    assert_eq!(second.variable_bytes(), first.variable_bytes());

    assert_eq!(container.restore(restored(saved)), Ok(vec![2, 2, 5, 2]), "versions never go backward");
    step(&container, "b", &[1.0, 2.0, 3.0]);
    assert_eq!(read(&container, "b", 3).0, expected.0);
    container.delete(&["a", "b", "empty", "wide"].map(str::to_owned)).unwrap();
    assert_eq!(first.variable_bytes(), 0);
}

#[test]
fn slots_that_a_checkpoint_lacks_are_dropped_and_room_is_given_back() {
    let store = Store::default();
    let container = open(&store);
    initialize(&container, "w", &[1.0]).unwrap();
    let before = container.save().unwrap();
    step(&container, "w", &[1.0]);
    assert_eq!(store.variable_bytes(), 12);
    container.restore(restored(before)).unwrap();
    assert_eq!((read(&container, "w", 1), store.variable_bytes()), ((vec![1.0], 3), 4));
}

#[test]
fn what_cannot_be_restored_is_refused_and_changes_nothing() {
    let store = Store::new(StoreOptions { variable_bytes_max: Some(28), ..Default::default() });
    let container = open(&store);
    initialize(&container, "w", &[1.0]).unwrap();
    let adam = SlotState::checked("adam", 1).ok();
    let tensors = |count, bytes: usize| vec![Blocks::copy_of(&vec![0; bytes]); count];
    let check = |code, text: &str, variable: VariableRef, slots, tensors: Vec<Blocks>| {
        let early = container.check_restore(&[(variable.clone(), slots)]);
        let late = container.restore(vec![Restored { variable, slots, tensors }]).unwrap_err();
        assert!(late.code == code && late.message.contains(text), "{late}");
        early
    };
    let invalid = ErrorCode::InvalidArgument;
    assert!(check(invalid, "variable `w` is `f32[1]` here", variable("w", 2), None, tensors(1, 8)).is_err());
    let n = || VariableRef::whole("n", TensorType::new(DType::S32, [1]));
    assert!(check(invalid, "f32 and f64 only", n(), adam, tensors(3, 4)).is_err());
    assert!(check(invalid, "`2` tensors", variable("w", 1), adam, tensors(2, 4)).is_ok());
    assert!(check(invalid, "has `8` bytes", variable("w", 1), adam, tensors(3, 8)).is_ok());
    let full = ErrorCode::ResourceExhausted;
    assert!(check(full, "--max-variable-bytes", variable("v", 3), adam, tensors(3, 12)).is_err());
    assert!(check(full, "--max-variable-bytes", variable("v", 7), None, tensors(1, 28)).is_err());
    let twice = || Restored { variable: variable("v", 1), slots: None, tensors: tensors(1, 4) };
    assert_eq!(container.restore(vec![twice(), twice()]).unwrap_err().code, invalid);
    assert_eq!((read(&container, "w", 1), container.len(), store.variable_bytes()), ((vec![1.0], 1), 1, 4));
    // It just fits, and again.
    for _ in 0..2 {
        let fits = Restored { variable: variable("v", 2), slots: adam, tensors: tensors(3, 8) };
        container.restore(vec![fits]).unwrap();
        assert_eq!(store.variable_bytes(), 28);
    }
}

#[tokio::test]
async fn a_restore_wakes_who_waits_for_values() {
    let store = Store::default();
    let container = open(&store);
    let wanted = [variable("w", 1)];
    let mut waits = Box::pin(container.wait_initialized(&wanted));
    std::future::poll_fn(|cx| {
        assert!(waits.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    container
        .restore(vec![Restored { variable: variable("w", 1), slots: None, tensors: vec![Blocks::copy_of(&[0; 4])] }])
        .unwrap();
    assert_eq!(waits.await, Ok(()));
}
