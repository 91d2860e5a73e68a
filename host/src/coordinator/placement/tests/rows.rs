//! Rows of variables in parts, by tasks that show what they are asked for.

use super::*;
use crate::tensor::Tensor;

type Scattered = (String, Vec<u64>, Vec<u8>);

/// A task whose rows are their numbers in the whole variable.
struct Rows {
    task: Task,
    scattered: StdMutex<Vec<Scattered>>,
}

fn floats(values: impl IntoIterator<Item = u64>) -> Vec<u8> {
    values.into_iter().flat_map(|value| (value as f32).to_le_bytes()).collect()
}

impl TaskVariables for Rows {
    fn initialize<'a>(
        &'a self,
        _: Vec<(VariableRef, TensorView<'a>)>,
        _: InitializeMode,
    ) -> BoxFuture<'a, Result<Vec<u64>>> {
        unreachable!("rows only")
    }

    fn uninitialized(&self, _: Vec<VariableRef>, _: Duration) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn pull(&self, _: Vec<VariableRef>, _: ReadOptions) -> BoxFuture<'_, Result<Vec<Value>>> {
        unreachable!("rows only")
    }

    fn push<'a>(&'a self, _: Vec<Change<'a, VariableRef>>, _: WriteOptions) -> BoxFuture<'a, Result<Vec<Value>>> {
        unreachable!("rows only")
    }

    fn apply<'a>(&'a self, _: Vec<Gradient<'a, VariableRef>>, _: ApplyOptions) -> BoxFuture<'a, Result<Vec<Value>>> {
        unreachable!("rows only")
    }

    fn gather(&self, variable: VariableRef, rows: Vec<u64>) -> BoxFuture<'_, Result<Value>> {
        Box::pin(async move {
            let first = variable.shard.as_ref().map_or(0, |shard| shard.first_row);
            assert!(rows.iter().all(|&row| row < variable.ty.shape[0]));
            let data = floats(rows.iter().map(|row| first + row)).into();
            let ty = variable.ty.with_rows(rows.len() as u64);
            Ok(Value { tensor: Tensor { ty, data }, version: 10 - u64::from(self.task.index) })
        })
    }

    fn scatter<'a>(&'a self, change: RowChange<'a, VariableRef>) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async move {
            assert_eq!(change.value.ty, change.variable.ty.with_rows(change.rows.len() as u64));
            let part = change.variable.shard.map_or("whole".to_owned(), |shard| shard.to_string());
            let name = format!("{} {part}", self.task);
            self.scattered.lock().unwrap().push((name, change.rows, change.value.data.to_vec()));
            Ok(1)
        })
    }
}

#[tokio::test]
async fn rows_are_split_by_part_and_keep_their_order_and_duplicates() {
    let tasks = Arc::new(StdMutex::new(HashMap::<Task, Arc<Rows>>::new()));
    let all = tasks.clone();
    let world = world_with(cluster(3, 1), Some(WORKER0), Some(WORKER0), move |task, _| {
        let make = || Arc::new(Rows { task, scattered: StdMutex::default() });
        all.lock().unwrap().entry(task).or_insert_with(make).clone()
    });
    // So many elements that it is in three parts: of 100,001 rows on ps:0, as many on ps:1, and 100,000 on ps:2.
    let vector = |placement| Variable { name: "w".into(), ty: TensorType::new(DType::F32, [300_002]), placement };
    let w = vector(Placement::Sharded);
    let last = 300_001;
    for (rows, version) in [
        (vec![last, 0, 0, 100_001, 100_000, 100_002, last, 200_001], 8),
        (vec![1, 100_001, 0, 1], 9),
        (vec![last - 1, last - 1], 8),
        (vec![], 10),
        ((0..last).collect(), 8),
    ] {
        let value = world.variables.gather(w.clone(), rows.clone()).await.unwrap();
        assert_eq!(value.tensor.ty, w.ty.with_rows(rows.len() as u64));
        assert!(value.tensor.data == floats(rows.iter().copied()), "{rows:?}");
        assert_eq!(value.version, version, "the least of those that were asked");
    }
    let scatter = async |variable: Variable, rows: &[u64]| {
        let data = floats(0..rows.len() as u64);
        let value = TensorView { ty: variable.ty.with_rows(rows.len() as u64), data: &data };
        let change = RowChange { variable, rows: rows.to_vec(), kind: UpdateKind::Add, value };
        world.variables.scatter(change).await.unwrap();
        let tasks = tasks.lock().unwrap();
        let mut all: Vec<_> =
            tasks.values().flat_map(|task| std::mem::take(&mut *task.scattered.lock().unwrap())).collect();
        all.sort();
        let shown = |(task, rows, data): Scattered| {
            let values: Vec<_> = data.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
            format!("{task}: {rows:?} by {values:?}")
        };
        all.into_iter().map(shown).collect::<Vec<_>>()
    };
    assert_eq!(
        scatter(w.clone(), &[last, 0, 0, 100_001, 100_000, 100_002, last, 200_002]).await,
        [
            "ps:0 shard 0 of 3: [0, 0, 100000] by [1.0, 2.0, 4.0]",
            "ps:1 shard 1 of 3: [0, 1] by [3.0, 5.0]",
            "ps:2 shard 2 of 3: [99999, 99999, 0] by [0.0, 6.0, 7.0]",
        ]
    );
    assert_eq!(scatter(w, &[100_003, 100_004]).await, ["ps:1 shard 1 of 3: [2, 3] by [0.0, 1.0]"]);
    assert_eq!(scatter(vector(Placement::On(PS0)), &[3, 1]).await, ["ps:0 whole: [3, 1] by [0.0, 1.0]"]);
}
