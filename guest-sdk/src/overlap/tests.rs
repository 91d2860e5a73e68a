//! Which pushes a read lacks, in which order they are made, and who gets their errors.

use super::{Flight, Later, Order};
use crate::{Change, Error, ErrorCode, MockCluster, Optimizer, Read, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A server on which pushes take as long as they may, or end when the test says.
#[derive(Default)]
struct Server {
    /// Numbers of pushes, in the order in which they were made.
    made: RefCell<Vec<u64>>,
    failing: Cell<Option<u64>>,
}

struct FakePush {
    server: Rc<Server>,
    number: u64,
    /// Made, though nobody has waited for it.
    early: Rc<Cell<bool>>,
}

impl FakePush {
    fn make(&self) {
        self.server.made.borrow_mut().push(self.number);
        self.early.set(true);
    }
}

impl Later for FakePush {
    type Value = Vec<u64>;

    fn is_ready(&self) -> bool {
        self.early.get()
    }

    fn get(self) -> Result<Vec<u64>> {
        if self.server.failing.get() == Some(self.number) {
            return Err(Error::new(ErrorCode::PeerFailed, "ps:0 is gone"));
        }
        if !self.early.get() {
            self.make();
        }
        Ok(vec![self.number])
    }
}

/// What had been made when the read was begun.
struct FakeRead(Result<Vec<u64>>);

impl Later for FakeRead {
    type Value = Vec<u64>;

    fn is_ready(&self) -> bool {
        true
    }

    fn get(self) -> Result<Vec<u64>> {
        self.0
    }
}

/// Whether the push of a number takes as long as it may.
type Slow = fn(u64) -> bool;

/// A loop on such a server.
struct Fake {
    server: Rc<Server>,
    flight: Flight<FakeRead, FakePush>,
}

impl Fake {
    fn new(depth: usize) -> Self {
        let mut flight = Flight::new();
        flight.depth = depth;
        Fake { server: Rc::default(), flight }
    }

    fn read(&mut self) -> Result<Vec<u64>> {
        let server = &self.server;
        self.flight.read(|| Ok(FakeRead(Ok(server.made.borrow().clone()))))
    }

    fn push(&mut self, order: Order) -> Result<()> {
        let (server, number) = (Rc::clone(&self.server), self.flight.begun + 1);
        self.flight.push(order, || Ok(FakePush { server, number, early: Rc::default() }))
    }

    /// Makes the push that was begun last, unless it is `slow`: whoever waits for it makes it then.
    fn make_last(&self, slow: Slow) {
        if let Some(push) = self.flight.pushes.back().filter(|push| !slow(push.number)) {
            push.later.make();
        }
    }

    fn under_way(&self) -> Vec<u64> {
        self.flight.pushes.iter().map(|push| push.number).collect()
    }
}

/// All, some or none of the pushes are made as late as they may. No read lacks more than the last `depth + 1`; where all are late it
/// lacks exactly those. Each is made once.
#[test]
fn a_read_lacks_the_last_pushes_only_and_each_is_made_once() {
    let slow: [(&str, Slow); 3] = [("all", |_| true), ("some", |number| number % 7 == 1), ("none", |_| false)];
    for depth in 0..5 {
        for (name, slow) in slow {
            let mut fake = Fake::new(depth);
            for step in 0..40_u64 {
                let seen = fake.read().unwrap();
                let complete = step.saturating_sub(depth as u64 + 1);
                let lacks: Vec<u64> = (1..=complete).filter(|number| !seen.contains(number)).collect();
                assert_eq!(lacks, [], "depth {depth}, step {step}, {name} slow");
                if name == "all" {
                    assert_eq!(seen.len() as u64, complete, "depth {depth}, step {step}");
                }
                fake.push(Order::Free).unwrap();
                assert!(fake.under_way().len() <= depth);
                fake.make_last(slow);
            }
            fake.flight.flush().unwrap();
            assert_eq!(fake.read().unwrap().len(), 40, "a read after a flush has all");
            let mut made = fake.server.made.take();
            made.sort_unstable();
            assert_eq!(made, (1..=40).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_push_that_keeps_its_order_is_under_way_alone() {
    let mut fake = Fake::new(3);
    let mut lines = Vec::new();
    for order in [Order::Free, Order::Free, Order::Kept, Order::Free, Order::Free, Order::Kept, Order::Kept] {
        fake.push(order).unwrap();
        lines.push(fake.under_way());
    }
    let expected: [&[u64]; 7] = [&[1], &[1, 2], &[3], &[4], &[4, 5], &[6], &[7]];
    assert_eq!(lines, expected);
}

#[test]
fn one_push_at_a_time_is_made_before_the_next_begins() {
    for depth in [0, 1] {
        let mut fake = Fake::new(depth);
        for number in 1..9 {
            fake.push(Order::Free).unwrap();
            assert_eq!(fake.server.made.borrow().len() as u64, number - depth as u64);
        }
    }
}

#[test]
fn an_error_is_told_once_with_the_number_and_the_loop_goes_on() {
    let lost = Error::new(ErrorCode::PeerFailed, "push 2: ps:0 is gone");
    // By the push that waits for it, and is not begun.
    let mut fake = Fake::new(2);
    fake.server.failing.set(Some(2));
    for _ in 0..3 {
        fake.push(Order::Free).unwrap();
    }
    assert_eq!(fake.push(Order::Free), Err(lost.clone()));
    assert_eq!(fake.under_way(), [3]);
    fake.push(Order::Free).unwrap();
    fake.flight.flush().unwrap();
    assert_eq!(*fake.server.made.borrow(), [1, 3, 4]);

    // By whatever is called when it has come.
    let mut fake = Fake::new(3);
    fake.server.failing.set(Some(2));
    for _ in 0..3 {
        fake.push(Order::Free).unwrap();
    }
    fake.flight.pushes[1].later.early.set(true);
    assert_eq!(fake.read(), Err(lost.clone()));
    assert_eq!(fake.read(), Ok(vec![]));

    // By the end, when all others have ended.
    let mut fake = Fake::new(3);
    fake.server.failing.set(Some(2));
    for _ in 0..3 {
        fake.push(Order::Free).unwrap();
    }
    assert_eq!(fake.flight.flush(), Err(lost));
    assert_eq!(*fake.server.made.borrow(), [1, 3]);
    assert_eq!(fake.flight.flush(), Ok(()));
}

/// A read that fails, or that can't be begun, is told by the call that waits for it; the one after begins anew.
#[test]
fn a_read_that_fails_is_told_by_the_call_that_wants_its_values() {
    let error = || Error::new(ErrorCode::Unavailable, "ps:0 isn't there");
    let mut flight: Flight<FakeRead, FakePush> = Flight::new();
    let good = || Ok(FakeRead(Ok(vec![])));
    assert_eq!(flight.read(|| Err(error())), Err(error()));
    assert!(flight.next.is_none());
    let turns = Cell::new(0);
    let first_only = || {
        turns.set(turns.get() + 1);
        if turns.get() == 1 { good() } else { Err(error()) }
    };
    assert_eq!(flight.read(first_only), Ok(vec![]));
    assert_eq!(flight.read(good), Err(error()));
    assert_eq!(flight.read(|| Ok(FakeRead(Err(error())))), Err(error()));
    assert_eq!(flight.read(good), Ok(vec![]));
}

#[test]
fn workers_that_overlap_lose_no_push_and_end_where_the_plain_loop_ends() {
    let train = |depth: Option<usize>| {
        let cluster = MockCluster::builder().workers(3).ps(2).build();
        let run = cluster.run(|ctx| -> Result<()> {
            let w = ctx.variable::<f32>("w").shape([4]).declare()?;
            let steps = ctx.variable::<i64>("steps").declare()?;
            if ctx.is_chief() {
                ctx.initialize([Change::assign(&w, 3.0), Change::assign(&steps, 0)])?;
            }
            ctx.wait_initialized((&w, &steps), None)?;
            let optimizer = Optimizer::sgd(0.02);
            let slope = |now: &[f32]| now.iter().map(|w| 2.0 * (w - 1.0)).collect::<Vec<f32>>();
            if let Some(depth) = depth {
                let mut weights = ctx.overlap((&w, &steps)).depth(depth).reading(Read::new().relaxed());
                let mut last = 0;
                for step in 0..200 {
                    let (now, seen) = weights.read()?;
                    assert!(seen.scalar() >= last && seen.scalar() + depth as i64 + 1 >= step);
                    last = seen.scalar();
                    // Changes and gradients of one step travel side by side.
                    weights.apply_gradients(&optimizer, [(&w, &slope(&now))])?;
                    weights.update([Change::add(&steps, 1)])?;
                    if step == 100 {
                        weights.flush()?;
                    }
                }
                weights.finish()
            } else {
                for _ in 0..200 {
                    let now = w.read()?;
                    ctx.apply_gradients(&optimizer, [(&w, &slope(&now))])?;
                    steps.add(1)?;
                }
                Ok(())
            }
        });
        run.unwrap();
        assert_eq!(cluster.value::<i64>("steps"), Some(vec![600]));
        cluster.value::<f32>("w").unwrap()
    };
    for depth in [None, Some(0), Some(1), Some(4)] {
        assert!(train(depth).iter().all(|w| (w - 1.0).abs() < 1e-3), "depth {depth:?}");
    }
}

#[test]
fn a_push_that_fails_shows_at_the_next_call_or_at_the_end() {
    let check = |what: &str, call: fn(&mut super::Overlap<[&crate::Variable<i64>; 1]>) -> Result<()>| {
        let cluster = MockCluster::local();
        let run = cluster.run(|ctx| -> Result<()> {
            let w = ctx.variable::<i64>("w").declare()?;
            let absent = ctx.variable::<i64>("absent").declare()?;
            w.initialize(0)?;
            let mut loop_ = ctx.overlap([&w]).depth(2);
            loop_.update([Change::add(&w, 1)])?;
            loop_.update([Change::add(&absent, 1)])?;
            assert_eq!(format!("{loop_:?}"), "Overlap(2 pushes, 1 of at most 2 under way)");
            let error = call(&mut loop_).unwrap_err();
            assert_eq!(error.code, ErrorCode::Uninitialized, "{what}");
            assert!(error.message.starts_with("push 2: `absent`"), "{what}: {error}");
            // What can't be begun at all is told by the call itself, without a number.
            let error = loop_.update([Change::add(&w, &[1, 2])]).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidArgument, "{what}");
            assert!(!error.message.starts_with("push"), "{what}: {error}");
            loop_.update([Change::add(&w, 10)])?;
            loop_.finish()
        });
        run.unwrap();
        assert_eq!(cluster.value::<i64>("w"), Some(vec![11]), "{what}: the failed call has pushed nothing");
    };
    check("read", |loop_| loop_.read().map(drop));
    check("update", |loop_| loop_.update([]));
    check("apply_gradients", |loop_| {
        loop_.apply_gradients(&Optimizer::sgd(0.1), Vec::<(&crate::Variable<f32>, f32)>::new())
    });
    check("flush", |loop_| loop_.flush());
}
