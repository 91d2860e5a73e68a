//! Guests that multiply matrices: what is answered, what is refused, and what ends a long product.

use super::limits::FAILED;
use super::*;
use crate::error::{Error, ErrorCode};
use crate::runtime::Limit;
use crate::runtime::test_support::{MATMUL, guest_with_memory};

/// Dtypes by their number in the WIT.
const F32: u8 = 0;
const F64: u8 = 1;
const S32: u8 = 2;

/// A tensor in the guest's memory.
#[derive(Clone)]
struct At {
    dtype: u8,
    shape: Vec<u64>,
    data: u32,
    bytes: u32,
}

impl At {
    /// Square, of zeros.
    fn square(extent: u32) -> At {
        At { dtype: F32, shape: vec![u64::from(extent); 2], data: 8192, bytes: extent * extent * 4 }
    }

    fn f32(shape: &[u64], data: u32) -> At {
        let count: u64 = shape.iter().product();
        At { dtype: F32, shape: shape.to_vec(), data, bytes: u32::try_from(count * 4).unwrap_or(0) }
    }

    /// Stores it at `at`, its extents at `shape_at`.
    fn store(&self, at: u32, shape_at: u32) -> String {
        let extents = self.shape.iter().zip((shape_at..).step_by(8));
        let extents: String =
            extents.map(|(extent, at)| format!("(i64.store (i32.const {at}) (i64.const {extent}))")).collect();
        format!(
            "(i32.store8 (i32.const {at}) (i32.const {dtype})) (i32.store offset=4 (i32.const {at}) (i32.const {shape_at}))
             (i32.store offset=8 (i32.const {at}) (i32.const {rank})) (i32.store offset=12 (i32.const {at}) (i32.const {data}))
             (i32.store offset=16 (i32.const {at}) (i32.const {bytes})) {extents}",
            dtype = self.dtype,
            rank = self.shape.len(),
            data = self.data,
            bytes = self.bytes,
        )
    }
}

/// What a guest passes.
struct Call {
    a: At,
    b: At,
    c: Option<At>,
    alpha: f64,
    beta: f64,
}

impl Call {
    fn of(a: At, b: At) -> Call {
        Call { a, b, c: None, alpha: 1.0, beta: 0.0 }
    }

    /// Makes the call; the arguments are at 2048, the result at 64.
    fn body(&self) -> String {
        let Call { a, b, c, alpha, beta } = self;
        let c = c
            .as_ref()
            .map_or(String::new(), |c| format!("(i32.store8 (i32.const 2112) (i32.const 1)) {}", c.store(2116, 3072)));
        format!(
            "{} {} {c}
             (f64.store (i32.const 2096) (f64.const {alpha})) (f64.store (i32.const 2104) (f64.const {beta}))
             (call $matmul (i32.const 2048) (i32.const 64))",
            a.store(2048, 2560),
            b.store(2068, 2816),
        )
    }

    /// Returns what the call failed with, or checks the result by `then`.
    fn guest(&self, then: &str) -> Vec<u8> {
        guest_of(&format!("{} (if (i32.eqz (i32.load8_u (i32.const 64))) (then {then}))", self.body()))
    }
}

/// A guest of 32 MiB that does this and returns what is at 64.
fn guest_of(body: &str) -> Vec<u8> {
    guest_with_memory(512, &[MATMUL], &format!(r#"(func (export "run") (result i32) {body} {FAILED})"#))
}

/// Seventeen thousand million operations: several turns on any machine.
fn long() -> Call {
    Call::of(At::square(2048), At::square(2048))
}

/// The long product again and again, so that it ends by what ends it.
fn endless() -> Vec<u8> {
    guest_of(&format!("(loop {} (br 0))", long().body()))
}

async fn message(call: Call) -> String {
    match run(call.guest(""), Limits::default()).await.0.end {
        RunEnd::WorkerError { message } => message,
        RunEnd::Done => "done".to_owned(),
        other => panic!("{other:?}"),
    }
}

/// `[1, 2; 3, 4]` at an address, however odd.
fn numbers(at: u32) -> String {
    let store =
        |(index, number): (u32, u32)| format!("(f32.store (i32.const {}) (f32.const {number}))", at + 4 * index);
    (0..).zip([1, 2, 3, 4]).map(store).collect()
}

#[tokio::test]
async fn a_product_is_answered_wherever_its_factors_lie() {
    // [1, 2; 3, 4]² = [7, 10; 15, 22]; twice that and thrice c.
    for at in [8192, 8193, 8194, 8196] {
        let square = At::f32(&[2, 2], at);
        let call = Call { a: square.clone(), b: square.clone(), c: Some(square), alpha: 2.0, beta: 3.0 };
        let expect = |(index, number): (u32, u32)| {
            format!(
                "(if (f32.ne (f32.load offset={} (i32.load (i32.const 80))) (f32.const {number})) (then unreachable))",
                4 * index
            )
        };
        let expected: String = (0..).zip([17, 26, 39, 56]).map(expect).collect();
        let body = format!("{} {} {expected}", numbers(at), call.body());
        assert_eq!(run(guest_of(&body), Limits::default()).await.0.end, RunEnd::Done, "at {at}");
    }
}

#[tokio::test]
async fn what_does_not_fit_is_refused_with_both_types() {
    let f32 = |shape: &[u64]| At::f32(shape, 8192);
    let other = |dtype, bytes| At { dtype, shape: vec![2, 2], data: 8192, bytes };
    for (a, b, c, expected) in [
        (f32(&[2, 3]), f32(&[4, 5]), None, "matmul of a f32[2, 3] and b f32[4, 5]: a has 3 columns and b 4 rows"),
        (f32(&[3]), f32(&[3, 3]), None, "a f32[3] and b f32[3, 3]: each needs at least two dimensions"),
        (f32(&[]), f32(&[3, 3]), None, "each needs at least two dimensions"),
        (f32(&[2, 2, 2]), f32(&[3, 2, 2]), None, "the dimensions before the last two have to be the same"),
        (f32(&[2, 2, 2]), f32(&[2, 2]), None, "the dimensions before the last two have to be the same"),
        (f32(&[2, 2]), other(F64, 32), None, "a f32[2, 2] and b f64[2, 2]: both have to be f32, or both f64"),
        (other(S32, 16), other(S32, 16), None, "both have to be f32, or both f64"),
        (other(F32, 15), f32(&[2, 2]), None, "a tensor f32[2, 2] has 16 bytes, but 15 came with it"),
        (
            f32(&[2, 3]),
            f32(&[3, 2]),
            Some(f32(&[2, 3])),
            "the result is f32[2, 2], c has to be the same and is f32[2, 3]",
        ),
        (f32(&[2, 2]), f32(&[2, 2]), Some(other(F64, 32)), "c has to be the same and is f64[2, 2]"),
    ] {
        let message = message(Call { c, ..Call::of(a, b) }).await;
        assert!(message.contains(expected), "{message}\nwhere {expected:?} was expected");
    }
}

/// Aim: nothing is allocated or computed for what can't be answered. Method: extents of 0 let a tensor without bytes have any.
#[tokio::test]
async fn extents_without_bytes_make_no_large_result_and_no_work() {
    let huge = 1 << 62;
    for (a, b, expected) in [
        ([huge, 0], [0, huge], "more bytes than can be counted, above 256 MiB (--max-tensor)"),
        ([1 << 20, 0], [0, 1 << 20], "has 4194304 MiB, above 256 MiB (--max-tensor): multiply in parts"),
        ([huge, 0], [0, 0], "done"),
        ([0, huge], [huge, 0], "done"),
        ([0, 0], [0, 0], "done"),
        ([2, 0], [0, 2], "done"),
    ] {
        let message = message(Call::of(At::f32(&a, 8192), At::f32(&b, 8192))).await;
        assert!(message.contains(expected), "{message}");
    }
    // More matrices than can be counted, all of them empty.
    let batch = [huge, huge, 2, 0];
    let empty = At { dtype: F32, shape: batch.to_vec(), data: 8192, bytes: 0 };
    let other = At { shape: vec![huge, huge, 0, 0], ..empty.clone() };
    let message = message(Call::of(empty, other)).await;
    assert!(message.contains("is larger than the address space"), "{message}");
}

#[tokio::test]
async fn passed_tensors_and_the_result_are_bounded_by_max_tensor() {
    let limits = Limits { tensor_bytes_max: 1 << 10, ..Limits::default() };
    let passed = Call::of(At::f32(&[16, 16], 8192), At::f32(&[16, 1], 8192));
    assert!(matches!(run(passed.guest(""), limits.clone()).await.0.end, RunEnd::Limit { limit: Limit::Tensor, .. }));
    let result = Call::of(At::f32(&[64, 1], 8192), At::f32(&[1, 64], 8192));
    let RunEnd::WorkerError { message } = run(result.guest(""), limits).await.0.end else { panic!("not refused") };
    assert_eq!(message, "the product f32[64, 64] has 16 KiB, above 1 KiB (--max-tensor): multiply in parts");
}

#[tokio::test]
async fn kernels_are_charged_to_the_cpu_budget() {
    let limits = Limits { cpu_timeout: Some(Duration::from_millis(100)), ..Limits::default() };
    let (report, _) = run(endless(), limits).await;
    let RunEnd::Limit { limit: Limit::Cpu, message } = &report.end else { panic!("{report:?}") };
    assert!(message.contains("cpu limit 100ms reached (-W cpu-timeout)"), "{message}");
    assert!(report.cpu_time >= Duration::from_millis(100), "{report:?}");
}

/// Aim: the time of threads beside the guest's counts too. Method: they do more of the same product than the guest's own.
#[tokio::test]
async fn threads_of_kernels_count() {
    let cpu_time = async |threads| {
        let limits = Limits { kernel_threads: Some(threads), ..Limits::default() };
        let (report, _) = run(long().guest(""), limits).await;
        assert_eq!(report.end, RunEnd::Done);
        report.cpu_time
    };
    let (alone, helped) = (cpu_time(1).await, cpu_time(8).await);
    assert!(helped * 2 > alone, "{helped:?} of eight threads, {alone:?} of one");
}

#[tokio::test]
async fn kernels_take_fuel_by_their_multiplications() {
    let engine = Engine::new(EngineOptions { fuel: true, ..EngineOptions::default() }).unwrap();
    // 2^18 multiplications are 2^16 units.
    let bytes = Call::of(At::square(64), At::square(64)).guest("");
    for (fuel, done) in [(1 << 15, false), (1 << 17, true)] {
        let limits = Limits { fuel: Some(fuel), ..Limits::default() };
        let options = GuestOptions { limits, ..GuestOptions::default() };
        let end = run_on(&engine, bytes.clone(), options).await.0.end;
        match end {
            RunEnd::Done => assert!(done, "{fuel}"),
            RunEnd::Limit { limit: Limit::Fuel, message } => {
                assert!(!done && message.contains(&format!("fuel limit {fuel} reached")), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Aim: a product under way hears an interrupt, names itself, and leaves the thread to others. Method: all on one thread, which
/// could not even see the call if it were held for long.
#[tokio::test]
async fn an_interrupt_ends_a_product_that_is_under_way() {
    let fakes = Fakes::new();
    let module = load(long().guest("")).await;
    let watch = RunWatch::new();
    let running = module.run(GuestOptions::default(), fakes.handles(), watch.clone());
    let interrupting = async {
        while watch.pending_host_call().as_deref() != Some("kernels.matmul") {
            tokio::task::yield_now().await;
        }
        fakes.interrupt.send_replace(Some(Error::new(ErrorCode::PeerFailed, "worker:1 has failed")));
    };
    let (report, ()) = tokio::join!(running, interrupting);
    assert_eq!(report.end, RunEnd::WorkerError { message: "worker:1 has failed".to_owned() });
    assert_eq!(report.cluster_failure.map(|error| error.code), Some(ErrorCode::PeerFailed));
}

#[tokio::test]
async fn a_run_that_is_dropped_ends_its_product() {
    let module = load(endless()).await;
    let watch = RunWatch::new();
    let running = module.run(GuestOptions::default(), Fakes::new().handles(), watch.clone());
    let seen = async {
        while watch.pending_host_call().is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! { report = running => panic!("{report:?}"), () = seen => {} }
    assert_eq!(watch.pending_host_call().as_deref(), Some("kernels.matmul"));
}
