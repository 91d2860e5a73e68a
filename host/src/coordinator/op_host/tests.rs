//! The queue of an instance, and compiling in turn.

use super::*;
use crate::cluster::{ClusterSpec, TaskType};
use crate::coordinator::plan::op_context;
use crate::coordinator::resolve::values::RpcLayer;
use crate::handles::Origin;
use crate::runtime::test_support::has_ops;
use sha2::{Digest as _, Sha256};

const PS: Task = Task::new(TaskType::Ps, 0);

/// Aim: a call that was given up holds nothing of a task, however long the call before it takes.
#[tokio::test]
async fn a_call_that_is_given_up_leaves_the_queue_with_its_inputs() {
    let queue = Arc::new(Queue::default());
    let (callers, server) = (Callers(queue.clone()), Server(queue.clone()));
    let held = Arc::new(());
    let call = |op: &str| {
        let held = held.clone();
        let inputs = Box::pin(async move {
            let _held = held;
            Ok(Vec::new())
        });
        callers.call(op.to_owned(), inputs)
    };
    let [first, second, third] = ["first", "second", "third"].map(call);
    let runs = server.next().await.expect("one waits");
    assert_eq!(runs.op, "first");
    drop(second);
    assert_eq!(Arc::strong_count(&held), 3, "its inputs have gone though the first still runs");
    assert_eq!(server.next().await.expect("another waits").op, "third");
    drop(runs);
    assert_eq!(first.await.expect_err("it was dropped").code, ErrorCode::Cancelled);
    drop((third, callers));
    assert!(server.next().await.is_none(), "nobody can call any more");
}

#[tokio::test]
async fn an_instance_that_has_gone_takes_no_calls() {
    let queue = Arc::new(Queue::default());
    let (callers, server) = (Callers(queue.clone()), Server(queue));
    let waits = callers.call("echo".to_owned(), Box::pin(async { Ok(Vec::new()) }));
    drop(server);
    assert_eq!(waits.await.expect_err("nobody serves").code, ErrorCode::Cancelled);
    let late = callers.call("echo".to_owned(), Box::pin(async { Ok(Vec::new()) }));
    assert_eq!(late.await.expect_err("nobody serves").code, ErrorCode::Cancelled);
}

struct Deaf;

impl Console for Deaf {
    fn line(&self, _origin: Origin, _text: &str) {}

    fn progress(&self, _done: u64, _total: Option<u64>, _note: &str) {}
}

/// Aim: callers that give up as soon as compiling has begun don't make a task compile many components at once.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_begun_to_compile_goes_on_when_its_caller_gives_up() {
    let cluster = ClusterSpec::new().with_job(TaskType::Ps, ["ps.test:1"]);
    let ops = Ops::new(OpHostOptions {
        task: PS,
        leader: None,
        context: Arc::new(op_context(&cluster, PS, RpcLayer::Grpc)),
        engine: EngineOptions::default(),
        guest: GuestOptions::default(),
        store: Store::default(),
        spare: Spare::default(),
        console: Arc::new(Deaf),
        guests: Handle::current(),
        control: Handle::current(),
        connect_timeout: Duration::from_secs(1),
        rejoin_timeout: Duration::from_secs(1),
    });
    let body = "(func $call (param i32 i32 i32) (result i32) unreachable)";
    let component = Bytes::from(has_ops(&["work"], &[], body));
    let digest: [u8; 32] = Sha256::digest(&component).into();
    let mut load = ops.load(digest, component);
    assert!(polled_once(&mut load).await.is_none(), "it takes a thread's time");
    drop(load);
    let found = async {
        while ops.component(&digest).is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), found).await.expect("it is compiled all the same");
}

/// Polls once.
async fn polled_once<T>(future: &mut BoxFuture<'_, T>) -> Option<T> {
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        std::task::Poll::Ready(value) => std::task::Poll::Ready(Some(value)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}
