//! Variables in parts on three real servers.

use super::*;
use dchost::client::channel::{Connections, PeersOptions};
use dchost::coordinator::local::LocalVariables;
use dchost::coordinator::placement::{PlacedVariables, PlacementOptions};
use dchost::error::ErrorCode;
use dchost::handles::{Placement, RowChange, Variable, Variables};
use dchost::variables::{Shard, shard_map};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// A run of worker:0 on these ps tasks, whose cluster gives them the indices.
pub(super) fn placed(ps: &[(u32, SocketAddr)], run: u64) -> PlacedVariables {
    let mut cluster = ClusterSpec::new().with_job(TaskType::Worker, ["w:1"]);
    for (index, addr) in ps {
        cluster.insert(Task::new(TaskType::Ps, *index), addr.to_string());
    }
    let peers = Peers::new(PeersOptions {
        client_use: None,
        leader: None,
        connections: Connections::default(),
        cluster: cluster.clone(),
        caller: caller("default", WORKER, run),
        runtime: Handle::current(),
        connect_timeout: LONG,
        rejoin_timeout: Duration::from_secs(1),
    });
    PlacedVariables::new(PlacementOptions {
        cluster,
        run_task: Some(WORKER),
        process_task: Some(WORKER),
        local: Arc::new(LocalVariables::new(Store::default(), "default", None, Handle::current())),
        remote: Box::new(move |task| Arc::new(RemoteVariables::new(peers.clone(), task))),
        chief_ended: watch::channel(None).1,
        runtime: Handle::current(),
        spare: Spare::default(),
    })
}

fn three() -> (Vec<Ps>, Vec<(u32, SocketAddr)>) {
    let servers: Vec<_> =
        (0..3).map(|index| Ps::start_as(Task::new(TaskType::Ps, index), StoreOptions::default())).collect();
    let addresses = (0..).zip(servers.iter().map(|ps| ps.addr)).collect();
    (servers, addresses)
}

/// 7 MB in rows of 28 bytes: blocks, chunks and parts end within rows of each other.
fn table() -> (Variable, Vec<u8>) {
    let ty = TensorType::new(DType::U8, [250_001, 28]);
    let data = (0..250_001_usize * 28).map(|at| (at / 97) as u8).collect();
    (Variable { name: "table".into(), ty, placement: Placement::Sharded }, data)
}

async fn add(run: &PlacedVariables, table: &Variable, data: &[u8]) -> Result<Value> {
    let value = TensorView { ty: table.ty.clone(), data };
    let change = Change { variable: table.clone(), kind: UpdateKind::Add, value, base: None };
    run.update(vec![change], WriteOptions::WITH_VALUES).await.map(|mut values| values.remove(0))
}

async fn read(run: &PlacedVariables, table: &Variable) -> Result<Value> {
    run.read(vec![table.clone()], ReadOptions::default()).await.map(|mut values| values.remove(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_are_read_and_written_as_one() {
    let (servers, addresses) = three();
    let (table, data) = table();
    let (chief, other) = (placed(&addresses, 1), placed(&addresses, 2));
    assert_eq!(read(&other, &table).await.unwrap_err().names, ["table"]);
    let waiting = other.wait_initialized(vec![table.clone()], None);
    let view = TensorView { ty: table.ty.clone(), data: &data };
    let values = vec![(table.clone(), view)];
    let (waited, initialized) = tokio::join!(waiting, chief.initialize(values, InitializeMode::Overwrite));
    assert_eq!((waited, initialized), (Ok(()), Ok(())));
    let held: Vec<_> = servers.iter().flat_map(|ps| ps.store.statuses()).map(|status| status.bytes).collect();
    // The name's place is ps:1.
    assert_eq!(held, [83_333 * 28, 83_334 * 28, 83_334 * 28]);
    let value = read(&other, &table).await.unwrap();
    assert!(value.tensor.data == data && value.tensor.ty == table.ty && value.version == 1);
    for version in 2..5 {
        let value = add(&other, &table, &data).await.unwrap();
        let expected = data.iter().map(|byte| byte.wrapping_mul(version as u8));
        assert!(value.version == version && value.tensor.data.iter().copied().eq(expected));
    }
    for ps in servers {
        assert_eq!(ps.store.staged_bytes(), 0);
        ps.stop().await;
    }
}

/// The error detail carries the map over the wire, in every kind of call.
#[tokio::test(flavor = "multi_thread")]
async fn a_view_with_other_tasks_goes_by_the_map_or_is_told_what_it_lacks() {
    let (servers, addresses) = three();
    let (table, data) = table();
    let view = TensorView { ty: table.ty.clone(), data: &data };
    placed(&addresses, 1).initialize(vec![(table.clone(), view)], InitializeMode::Overwrite).await.unwrap();

    // Its `ps:3` is the server that the others know as `ps:0`.
    let strange = placed(&[addresses[1], addresses[2], (3, addresses[0].1)], 2);
    let error = add(&strange, &table, &data).await.unwrap_err();
    assert_eq!((error.code, &*error.tasks), (ErrorCode::InvalidArgument, &[PS][..]), "{error}");
    let auto = Variable { placement: Placement::Auto, ..table.clone() };
    for (run, variable) in [(3, &table), (4, &auto)] {
        let value = add(&placed(&addresses, run), variable, &data).await.unwrap();
        assert_eq!(value.version, run - 1);
    }
    let fewer = placed(&addresses[..2], 5);
    for error in [read(&fewer, &table).await.unwrap_err(), add(&fewer, &table, &data).await.unwrap_err()] {
        assert_eq!(error.code, ErrorCode::InvalidArgument);
        assert!(error.message.contains("lacks ps:2; give this task a cluster"), "{error}");
    }
    for ps in servers {
        ps.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_ps_of_a_part_is_named() {
    let (mut servers, mut addresses) = three();
    let (table, data) = table();
    let run = placed(&addresses, 1);
    let view = TensorView { ty: table.ty.clone(), data: &data };
    run.initialize(vec![(table.clone(), view)], InitializeMode::Overwrite).await.unwrap();
    servers.remove(2).stop().await;
    let error = read(&run, &table).await.unwrap_err();
    assert_eq!((error.code, &*error.tasks), (ErrorCode::PeerFailed, &[Task::new(TaskType::Ps, 2)][..]), "{error}");
    // In its place one that has lost its part.
    servers.push(Ps::start_as(Task::new(TaskType::Ps, 2), StoreOptions::default()));
    addresses[2].1 = servers[2].addr;
    let error = read(&placed(&addresses, 2), &table).await.unwrap_err();
    assert_eq!((error.code, &*error.names), (ErrorCode::Uninitialized, &["table".to_owned()][..]));
    for ps in servers {
        ps.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_parts_are_refused_by_the_server() {
    let ps = Ps::default();
    let variables = connect(ps.addr, 1);
    let whole = TensorType::new(DType::U8, [10]);
    let (shard, ty) = shard_map(&whole, &[0, 1].into()).remove(1);
    let good = VariableRef { name: "w".into(), ty, shard: Some(shard.clone()) };
    assert_eq!(initialize(&variables, &good, &[7; 5]).await, Ok(vec![1]));
    for bad in [
        Shard { index: 2, ..shard.clone() },
        Shard { first_row: 6, ..shard.clone() },
        Shard { ps: [0].into(), ..shard.clone() },
        Shard { ps: vec![0; 257].into(), ..shard },
    ] {
        let bad = VariableRef { shard: Some(bad), ..good.clone() };
        let error = pull(&variables, &bad).await.unwrap_err();
        assert!(error.code == ErrorCode::InvalidArgument && error.message.contains("there is no such part"), "{error}");
    }
    let error = pull(&variables, &u8s("w", 10)).await.unwrap_err();
    assert_eq!(error.stored.len(), 1);
    assert_eq!(error.stored[0].shard, good.shard);
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_go_to_the_parts_that_have_them() {
    let (servers, addresses) = three();
    let (table, mut data) = table();
    let (chief, other) = (placed(&addresses, 1), placed(&addresses, 2));
    let view = TensorView { ty: table.ty.clone(), data: &data };
    chief.initialize(vec![(table.clone(), view)], InitializeMode::Overwrite).await.unwrap();
    // Both sides of each border, the ends, and one row twice.
    let rows = vec![250_000, 0, 83_334, 83_333, 166_668, 166_667, 0];
    let row = |row: u64| row as usize * 28..(row as usize + 1) * 28;
    let wanted = |data: &[u8]| rows.iter().flat_map(|&at| data[row(at)].to_vec()).collect::<Vec<_>>();
    let gather = async |rows: &[u64]| other.gather(table.clone(), rows.to_vec()).await;
    let value = gather(&rows).await.unwrap();
    assert_eq!((value.tensor.ty.shape.as_slice(), value.version), (&[7, 28][..], 1));
    assert!(value.tensor.data == wanted(&data));

    let ones = [1; 7 * 28];
    let scatter = async |run: &PlacedVariables, rows: Vec<u64>| {
        let ty = table.ty.with_rows(rows.len() as u64);
        let value = TensorView { ty, data: &ones[..rows.len() * 28] };
        run.scatter(RowChange { variable: table.clone(), rows, kind: UpdateKind::Add, value }).await
    };
    scatter(&chief, rows.clone()).await.unwrap();
    scatter(&other, vec![250_000]).await.unwrap();
    for &at in rows.iter().chain(&[250_000]) {
        data[row(at)].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
    }
    assert!(read(&chief, &table).await.unwrap().tensor.data == data);
    let value = gather(&rows).await.unwrap();
    assert!(value.tensor.data == wanted(&data) && value.version == 2, "the least of the parts that were asked");
    assert_eq!(gather(&[250_000]).await.unwrap().version, 3, "the only one");
    assert!(gather(&[]).await.unwrap().tensor.data.is_empty());
    let error = scatter(&chief, vec![0, 250_001]).await.unwrap_err();
    assert!(error.code == ErrorCode::OutOfRange && error.message.contains("row `250001` (number `1`"), "{error}");
    assert!(read(&chief, &table).await.unwrap().tensor.data == data);
    for ps in servers {
        ps.stop().await;
    }
}
