//! What happens to every byte of a variable on its way, each beside a copy of the same bytes: the limit of what moves memory.
//!
//! README.md says how to run it and what came out.

use bytes::{Bytes, BytesMut};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use dchost::handles::{InitializeMode, UpdateKind, VariableRef};
use dchost::tensor::{DType, TensorType};
use dchost::variables::{Blocks, Container, Payload, Spare, Store, Update};
use dchost::wire::v1::{self, push_request};
use prost::Message as _;
use std::hint::black_box;
use std::time::Duration;

const SIZES: [usize; 3] = [256 << 10, 1 << 20, 16 << 20];

type Group<'a> = BenchmarkGroup<'a, WallTime>;

fn hot(criterion: &mut Criterion) {
    for (name, bench) in [
        ("memcpy", memcpy as fn(&mut Group<'_>, BenchmarkId, usize)),
        ("apply add", |group, id, size| apply(group, id, size, UpdateKind::Add)),
        ("apply assign", |group, id, size| apply(group, id, size, UpdateKind::Assign)),
        ("encode a chunk", encode),
        ("decode a chunk", decode),
        ("blocks: copy_of", copy_of),
        ("blocks: append in chunks", append),
        ("blocks: contiguous_in", contiguous_in),
    ] {
        let mut group = criterion.benchmark_group(name);
        group.sample_size(30).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
        for size in SIZES {
            group.throughput(Throughput::Bytes(size as u64));
            bench(&mut group, BenchmarkId::from_parameter(format!("{} KiB", size >> 10)), size);
        }
        group.finish();
    }
}

/// Between two warm buffers.
fn memcpy(group: &mut Group<'_>, id: BenchmarkId, size: usize) {
    let (from, mut to) = (vec![1_u8; size], vec![2_u8; size + 64]);
    // Some processors copy ten times as slowly to an address a few bytes further in its page than the source: see README.md.
    let start = (from.as_ptr() as usize).wrapping_sub(to.as_ptr() as usize) % 64;
    let to = &mut to[start..start + size];
    group.bench_function(id, |bencher| bencher.iter(|| black_box(&mut *to).copy_from_slice(black_box(&from))));
}

/// The kernels of an update of `f32`, as [`Container::push`] calls them: a lock and a look-up by name come with it.
fn apply(group: &mut Group<'_>, id: BenchmarkId, size: usize, kind: UpdateKind) {
    let container = container();
    let variable = VariableRef::whole("v", TensorType::new(DType::F32, [size as u64 / 4]));
    let value = vec![0; size];
    let initial = vec![(variable.clone(), Payload::Borrowed(&value))];
    container.initialize(initial, InitializeMode::Overwrite).expect("the container takes it");
    group.bench_function(id, |bencher| {
        bencher.iter(|| {
            let value = Payload::Borrowed(black_box(&value));
            let update = Update { variable: variable.clone(), kind, value, base: None };
            container.push(vec![update], false).expect("the variable has a value")
        });
    });
}

fn container() -> Container {
    Store::default().open("default", None).expect("a new store has room")
}

fn chunk(size: usize) -> v1::PushRequest {
    let data = Bytes::from(vec![1; size]);
    v1::PushRequest { kind: Some(push_request::Kind::Chunk(v1::Chunk { item: 1, offset: 1 << 20, data })) }
}

/// Into memory that stays, as a connection's does.
fn encode(group: &mut Group<'_>, id: BenchmarkId, size: usize) {
    let message = chunk(size);
    let mut buffer = BytesMut::with_capacity(message.encoded_len());
    group.bench_function(id, |bencher| {
        bencher.iter(|| {
            buffer.clear();
            black_box(&message).encode(&mut buffer).expect("the buffer grows");
            black_box(buffer.len())
        });
    });
}

/// From a frame that lies in one piece.
fn decode(group: &mut Group<'_>, id: BenchmarkId, size: usize) {
    let encoded = Bytes::from(chunk(size).encode_to_vec());
    group.bench_function(id, |bencher| {
        bencher.iter(|| v1::PushRequest::decode(black_box(encoded.clone())).expect("it was encoded"));
    });
}

fn copy_of(group: &mut Group<'_>, id: BenchmarkId, size: usize) {
    let data = vec![1; size];
    group.bench_function(id, |bencher| bencher.iter(|| Blocks::copy_of(black_box(&data))));
}

/// As a server stages what comes.
fn append(group: &mut Group<'_>, id: BenchmarkId, size: usize) {
    let data = vec![1; size];
    group.bench_function(id, |bencher| {
        bencher.iter(|| {
            let mut blocks = Blocks::with_capacity(size);
            for chunk in black_box(&data).chunks(dchost::wire::tensor::CHUNK_BYTES) {
                blocks.append(chunk, size);
            }
            blocks
        });
    });
}

/// Into memory that was given up before; a single block is not copied at all.
fn contiguous_in(group: &mut Group<'_>, id: BenchmarkId, size: usize) {
    let blocks = Blocks::copy_of(&vec![1; size]);
    let spare = Spare::default();
    // What the function answers with is dropped while the clock runs, and so goes back to `spare` each time.
    group.bench_function(id, |bencher| bencher.iter(|| drop(black_box(blocks.contiguous_in(&spare)))));
}

fn main() {
    // `cargo test --benches` asks for a list of tests: there are none.
    if std::env::args().any(|argument| argument == "--list" || argument == "--test") {
        return;
    }
    let mut criterion = Criterion::default().configure_from_args();
    hot(&mut criterion);
    criterion.final_summary();
}
