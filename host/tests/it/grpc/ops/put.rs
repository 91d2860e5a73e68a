//! Components on their way to a task.

use super::*;
use dchost::ids::Attempt;
use dchost::wire::ops::proof;
use dchost::wire::v1::put_module_request::Kind;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

const COMPONENT: &[u8] = b"a component of these bytes";

/// A put that the test carries out by hand, in a session of run 1.
struct Putting {
    requests: mpsc::Sender<v1::PutModuleRequest>,
    answers: Streaming<v1::PutModuleResponse>,
    challenge: Bytes,
}

impl Putting {
    async fn begin(addr: SocketAddr, digest: &[u8], size: u64) -> Result<Putting, Status> {
        Putting::begin_for(addr, 1, digest, size).await
    }

    async fn begin_for(addr: SocketAddr, run: u64, digest: &[u8], size: u64) -> Result<Putting, Status> {
        let from = channel_to(addr).await;
        Putting::begin_by(from, caller(run), digest, size).await
    }

    /// Of a worker of its own on a machine of its own, by whose number both are called.
    async fn begin_on(addr: SocketAddr, worker: u8, digest: &[u8], size: u64) -> Result<Putting, Status> {
        let machine = endpoint(&addr.to_string()).expect("it is an address");
        let machine = machine.local_address(Some([127, 0, 0, worker].into())).connect().await.expect("it listens");
        Putting::begin_by(machine, caller(worker.into()), digest, size).await
    }

    async fn begin_by(from: Channel, caller: Caller, digest: &[u8], size: u64) -> Result<Putting, Status> {
        let (requests, stream) = mpsc::channel(64);
        let header = Some((&Header::new(caller)).into());
        let header = v1::ModuleHeader { header, sha256: digest.to_vec().into(), size };
        requests.try_send(v1::PutModuleRequest { kind: Some(Kind::Header(header)) }).expect("there is room");
        let mut client = OpsClient::new(from);
        let mut answers = client.put_module(ReceiverStream::new(stream)).await?.into_inner();
        let challenge = answers.message().await?.expect("a challenge comes first").challenge;
        Ok(Putting { requests, answers, challenge })
    }

    async fn send(&self, kind: Kind) {
        // The task may have ended the stream.
        let _ = self.requests.send(v1::PutModuleRequest { kind: Some(kind) }).await;
    }

    async fn answer(&mut self) -> Result<v1::PutModuleResponse> {
        let answer = within(self.answers.message()).await;
        answer
            .map(|answer| answer.expect("an answer comes"))
            .map_err(|status| dchost::wire::status::from_status(&status))
    }

    /// Answers the challenge of somebody who has `component`.
    async fn prove(&mut self, component: &[u8]) -> Result<v1::PutModuleResponse> {
        self.send(Kind::Proof(proof(&self.challenge, component).to_vec().into())).await;
        self.answer().await
    }
}

/// A run of a worker of its own, by whose number both are called.
fn caller(run: u64) -> Caller {
    let worker = Task::new(TaskType::Worker, u32::try_from(run).expect("it is small"));
    Caller { task: Some(worker), ..super::caller(run) }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

async fn put_whole(addr: SocketAddr, run: u64, component: &'static [u8]) -> Result<bool> {
    let begun = Putting::begin_for(addr, run, &sha256(component), component.len() as u64).await;
    let mut put = begun.map_err(|status| dchost::wire::status::from_status(&status))?;
    let answer = put.prove(component).await?;
    if answer.wanted {
        put.send(Kind::Data(Bytes::from_static(component))).await;
        assert!(put.answer().await?.ready);
    }
    Ok(answer.wanted)
}

/// Waits for `work` while puts stall: each sends a byte now and then, so that none is given up.
async fn beside<T>(stalled: &[Putting], work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    let dripping = async {
        loop {
            if let Ok(done) = tokio::time::timeout(Duration::from_secs(1), &mut work).await {
                return done;
            }
            for put in stalled {
                put.send(Kind::Data(Bytes::from_static(&[0]))).await;
            }
        }
    };
    within(dripping).await
}

#[tokio::test]
async fn a_component_travels_once_and_then_its_proof_is_enough() {
    let tasks = Tasks::start();
    let (addr, seen) = (tasks.servers[&A].addr, tasks.seen(A));
    let guard = &tasks.servers[&A].guard;
    let _leases = [1, 2].map(|run| guard.sessions().open(&caller(run)).expect("there is room"));
    assert_eq!(put_whole(addr, 1, COMPONENT).await, Ok(true), "its bytes are wanted");
    assert_eq!(put_whole(addr, 1, COMPONENT).await, Ok(false), "the proof is enough");
    assert_eq!(put_whole(addr, 2, COMPONENT).await, Ok(false), "whoever brought it");
    assert_eq!(Seen::count(&seen.loads), 1);
    tasks.stop().await;
}

/// Aim: knowing a component's digest doesn't tell whether it is here, nor open it. Method: the answers to a wrong proof of one
/// that is here and to any of one that isn't are the same, and a call of it is refused.
#[tokio::test]
async fn who_has_not_the_component_cannot_tell_whether_it_is_here_nor_call_it() {
    let tasks = Tasks::start();
    let addr = tasks.servers[&A].addr;
    let guard = &tasks.servers[&A].guard;
    let _leases = [1, 2].map(|run| guard.sessions().open(&caller(run)).expect("there is room"));
    assert_eq!(put_whole(addr, 1, COMPONENT).await, Ok(true));
    let mut answers = Vec::new();
    for digest in [sha256(COMPONENT), sha256(b"nobody has this")] {
        let mut put = Putting::begin_for(addr, 2, &digest, COMPONENT.len() as u64).await.expect("it begins");
        answers.push(put.prove(b"a guess").await);
    }
    assert!(answers[0].as_ref().is_ok_and(|answer| answer.wanted && !answer.ready), "{answers:?}");
    assert_eq!(answers[0], answers[1]);
    // A proof is of one challenge.
    let mut first = Putting::begin(addr, &sha256(COMPONENT), 1).await.expect("it begins");
    let second = Putting::begin(addr, &sha256(COMPONENT), 1).await.expect("it begins");
    assert_ne!(first.challenge, second.challenge);
    first.challenge = second.challenge.clone();
    assert!(first.prove(COMPONENT).await.expect("it is answered").wanted);

    let (opening, stream) = mpsc::channel(1);
    let kind = v1::call_request::Kind::Opening(v1::Opening {
        header: Some((&Header::new(caller(2))).into()),
        module_sha256: sha256(COMPONENT).to_vec().into(),
        argument: Vec::new(),
    });
    opening.try_send(v1::CallRequest { kind: Some(kind) }).expect("there is room");
    let status =
        OpsClient::new(channel_to(addr).await).call(ReceiverStream::new(stream)).await.expect_err("not its own");
    let error = dchost::wire::status::from_status(&status);
    assert_eq!(error.to_string(), "not-found: the component was not put in this session: its ops can't be called");
    tasks.stop().await;
}

#[tokio::test]
async fn wrong_bytes_and_wrong_sizes_are_refused_and_leave_nothing() {
    let tasks = Tasks::start();
    let addr = tasks.servers[&A].addr;
    let _lease = tasks.servers[&A].guard.sessions().open(&caller(1)).expect("there is room");
    let digest = sha256(COMPONENT);
    let begin = |size| Putting::begin(addr, &digest, size);
    // Others than its digest says.
    let mut put = begin(5).await.expect("it begins");
    assert!(put.prove(b"other").await.expect("it is answered").wanted);
    put.send(Kind::Data(Bytes::from_static(b"other"))).await;
    assert_eq!(put.answer().await.expect_err("it is another").code, ErrorCode::InvalidArgument);
    // More than its header says.
    let mut put = begin(5).await.expect("it begins");
    assert!(put.prove(b"other").await.expect("it is answered").wanted);
    put.send(Kind::Data(Bytes::from_static(b"others"))).await;
    let error = put.answer().await.expect_err("they are too many");
    assert!(error.message.contains("more bytes of the component came than the 5"), "{error}");
    // Fewer, an empty message, and what isn't data.
    for kind in [None, Some(Kind::Data(Bytes::new())), Some(Kind::Proof(Bytes::new()))] {
        let mut put = begin(5).await.expect("it begins");
        assert!(put.prove(b"other").await.expect("it is answered").wanted);
        match kind {
            Some(kind) => put.send(kind).await,
            None => put.requests = mpsc::channel(1).0,
        }
        assert_eq!(put.answer().await.expect_err("it is incomplete").code, ErrorCode::InvalidArgument);
    }
    // No proof.
    let mut put = begin(5).await.expect("it begins");
    put.send(Kind::Data(Bytes::from_static(b"other"))).await;
    assert!(put.answer().await.expect_err("it is no proof").message.contains("`proof`"));
    // Too large, told before a byte has come.
    let status = begin(COMPONENT_BYTES_MAX + 1).await.err().expect("it is too large");
    let error = dchost::wire::status::from_status(&status);
    assert_eq!(
        error.to_string(),
        "resource-exhausted: the component has 1048577 bytes, worker:0 takes at most 1048576 (its --max-module-size): its ops \
         can't run there"
    );
    let status = Putting::begin(addr, &[0; 31], 5).await.err().expect("it is no digest");
    assert!(status.message().contains("`sha256` has 31 bytes, not 32"), "{status}");
    assert!(tasks.seen(A).loads.load(Ordering::SeqCst) == 1, "only whole components are looked at");
    assert_eq!(put_whole(addr, 1, COMPONENT).await, Ok(true), "nothing of it stays");
    tasks.stop().await;
}

#[tokio::test]
async fn a_component_that_cannot_run_is_told_to_whoever_calls_its_ops() {
    let tasks = Tasks::start();
    let run = Asker::new(tasks.run(1).peers, component_of(b"bad component"));
    let error = run_op(&run.a, "echo", []).await.expect_err("it can't run");
    assert_eq!(error.to_string(), "failed-precondition: worker:0 can't run the component: it has no op-entry");
    tasks.stop().await;
}

/// Aim: a run's end, and puts that stall, hold nobody up. Method: as many puts as may come at once stall; those of other runs
/// wait, and go on when the session of the stalled ones has ended.
#[tokio::test]
async fn puts_that_stall_go_with_their_session() {
    let tasks = Tasks::start();
    let addr = tasks.servers[&A].addr;
    let guard = &tasks.servers[&A].guard;
    let open = |worker: u8| guard.sessions().open(&caller(worker.into())).expect("there is room");
    let stalled: Vec<_> = (1..=4).map(open).collect();
    let _lease = guard.sessions().open(&caller(5)).expect("there is room");
    let mut puts = Vec::new();
    for worker in 1..=4 {
        let mut put = Putting::begin_on(addr, worker, &sha256(COMPONENT), 100).await.expect("it begins");
        assert!(put.prove(b"").await.expect("it is answered").wanted);
        puts.push(put);
    }
    let waits = tokio::spawn(put_whole(addr, 5, COMPONENT));
    stalled.into_iter().for_each(dchost::server::session::Lease::close);
    assert_eq!(within(waits).await.expect("no panic"), Ok(true));
    for mut put in puts {
        assert_eq!(put.answer().await.expect_err("its session has ended").code, ErrorCode::Cancelled);
    }
    tasks.stop().await;
}

/// Aim: a split client can't keep the others' components out, however many runs it has. Method: more runs of one client stall
/// than components may come at once; then those of a machine with any number of clients.
#[tokio::test]
async fn puts_of_one_client_or_one_machine_that_stall_hold_nobody_else_up() {
    let tasks = Tasks::start();
    let addr = tasks.servers[&A].addr;
    let guard = &tasks.servers[&A].guard;
    let _lease = guard.sessions().open(&caller(100)).expect("there is room");
    let client = |container: &str, run: u8| {
        // That of the client.
        let attempt = Some(Attempt { leader: Incarnation(1), number: 0 });
        Caller { container: container.into(), attempt, ..caller(run.into()) }
    };
    let mut stalled = Vec::new();
    let mut stall = async |caller: Caller, machine: u8, gets_a_place: bool| {
        let header = Some((&Header::new(caller.clone())).into());
        stalled.push(guard.open_session(header, v1::ClientUse::Exclusive.into()).expect("there is room"));
        let machine =
            endpoint(&addr.to_string()).expect("it is an address").local_address(Some([127, 0, 0, machine].into()));
        let from = machine.connect().await.expect("it listens");
        let mut put = Putting::begin_by(from, caller, &sha256(COMPONENT), 100).await.expect("it begins");
        if gets_a_place {
            assert!(put.prove(b"").await.expect("it is its turn").wanted);
        } else {
            put.send(Kind::Proof(Bytes::from_static(&[0; 32]))).await;
        }
        put
    };
    let mut puts = Vec::new();
    for run in 1..=6 {
        puts.push(stall(client("run-1", run), run, run == 1).await);
    }
    assert_eq!(beside(&puts, put_whole(addr, 100, b"one")).await, Ok(true));
    puts.clear();
    for number in 2..=6 {
        puts.push(stall(client(&format!("run-{number}"), 1), 9, number <= 4).await);
    }
    assert_eq!(beside(&puts, put_whole(addr, 100, b"two")).await, Ok(true));
    tasks.stop().await;
}

/// Aim: a component that had to make room between its put and the first call costs the caller nothing. Method: once it has gone
/// when the stream is opened, and then twice.
#[tokio::test]
async fn a_component_that_was_dropped_meanwhile_is_put_again_once() {
    let tasks = Tasks::start();
    let seen = tasks.seen(A);
    let run = tasks.run(1);
    seen.evictions.store(1, Ordering::SeqCst);
    let calls: Vec<_> = (1..=3).map(|_| begin(&run.a, "calls", [])).collect();
    for (count, call) in (1..).zip(calls) {
        assert_eq!(take(&*call).await, Ok(vec![number(count)]), "in order");
    }
    assert_eq!((Seen::count(&seen.loads), Seen::count(&seen.opened)), (2, 1));

    let run = tasks.run(2);
    seen.evictions.store(2, Ordering::SeqCst);
    let error = run_op(&run.a, "calls", []).await.expect_err("twice is no accident");
    assert_eq!(error.to_string(), "not-found: worker:0 has dropped the component meanwhile: put it again");
    assert_eq!(run_op(&run.a, "calls", []).await, Ok(vec![number(1)]), "the next call tries again");
    tasks.stop().await;
}

#[tokio::test]
async fn runs_that_bring_components_at_once_are_all_served() {
    let tasks = Tasks::start();
    let runs: Vec<_> = (1..=16).map(|run| tasks.run(run)).collect();
    let asked = runs.iter().map(|run| begin(&run.a, "echo", [number(1)])).collect::<Vec<_>>();
    for started in asked {
        assert_eq!(take(&*started).await, Ok(vec![number(1)]));
    }
    assert_eq!(Seen::count(&tasks.seen(A).opened), 16);
    tasks.stop().await;
}

/// Aim: one run can't keep the others' components out. Method: more puts of one run than may come at once stall.
#[tokio::test]
async fn puts_of_one_run_that_stall_hold_nobody_else_up() {
    let tasks = Tasks::start();
    let addr = tasks.servers[&A].addr;
    let guard = &tasks.servers[&A].guard;
    let _leases = [1, 2].map(|run| guard.sessions().open(&caller(run)).expect("there is room"));
    let mut stalls = Putting::begin(addr, &sha256(COMPONENT), 100).await.expect("it begins");
    assert!(stalls.prove(b"").await.expect("it is its turn").wanted);
    let mut puts = vec![stalls];
    for _ in 0..5 {
        let put = Putting::begin(addr, &sha256(COMPONENT), 100).await.expect("it begins");
        put.send(Kind::Proof(Bytes::from_static(&[0; 32]))).await;
        puts.push(put);
    }
    assert_eq!(beside(&puts, put_whole(addr, 2, COMPONENT)).await, Ok(true));
    tasks.stop().await;
}
