//! Rows of variables: a part of a table, read and changed by itself.

use crate::change::Operand;
use crate::raw::{RawRowChange, UpdateKind};
use crate::{Element, Error, Result, Value, Variable};

/// Rows of a variable of shape `[n, ...]`: its slices along axis 0. What goes over the network is these, and not the whole.
///
/// ```
/// use dchost_guest::{MockCluster, Result, WorkerContext};
///
/// fn embed(ctx: &WorkerContext) -> Result<()> {
///     let table = ctx.variable::<f32>("table").shape([10_000, 2]).declare()?;
///     table.initialize(0.0)?;
///     // Row 7 stands twice, and changes twice.
///     table.scatter_add([7, 9_000, 7], &[0.5, 1.0, 2.0, 2.0, 0.5, 1.0])?;
///     let rows = table.gather([9_000, 7])?;
///     assert_eq!((rows.shape(), &rows[..]), (&[2, 2][..], &[2.0, 2.0, 1.0, 2.0][..]));
///     Ok(())
/// }
///
/// MockCluster::builder().workers(1).ps(2).build().run(embed).unwrap();
/// ```
///
/// A call has at most 1,048,576 rows. Each is all or none for a variable, or for [each part](crate::VariableBuilder::sharded) of one.
///
/// # Errors
/// `out-of-range` names the first row that the variable hasn't, and its place among those asked for; `invalid-argument`: a scalar,
/// too many rows, or values of another number; else those of [all calls](Variable#errors).
impl<T: Element> Variable<T> {
    /// Reads rows, in the order asked for, which may name one twice. The value has shape `[rows, ...]` and the variable's version.
    pub fn gather(&self, rows: impl AsRef<[usize]>) -> Result<Value<T>> {
        Value::from_raw(self.core.context.gather(&self.core.imp, &indices(rows.as_ref()))?)
    }

    /// Replaces rows: by all their elements, `[rows, ...]`, or by one number for all of them. Of a row that is named twice the last
    /// one stays.
    ///
    /// Raises the version by one, as every write does; without rows nothing changes.
    pub fn scatter_assign<'a>(&self, rows: impl AsRef<[usize]>, values: impl Operand<'a, T>) -> Result<()> {
        self.scatter(rows.as_ref(), UpdateKind::Assign, values)
    }

    /// Adds to rows, element by element, as [`scatter_assign`](Self::scatter_assign) replaces them. What stands for a row that is
    /// named twice adds up.
    pub fn scatter_add<'a>(&self, rows: impl AsRef<[usize]>, values: impl Operand<'a, T>) -> Result<()> {
        self.scatter(rows.as_ref(), UpdateKind::Add, values)
    }

    /// Subtracts from rows, as [`scatter_add`](Self::scatter_add) adds.
    pub fn scatter_sub<'a>(&self, rows: impl AsRef<[usize]>, values: impl Operand<'a, T>) -> Result<()> {
        self.scatter(rows.as_ref(), UpdateKind::Sub, values)
    }

    /// Takes the smaller of both for each element of the rows.
    pub fn scatter_min<'a>(&self, rows: impl AsRef<[usize]>, values: impl Operand<'a, T>) -> Result<()> {
        self.scatter(rows.as_ref(), UpdateKind::Min, values)
    }

    /// Takes the greater of both for each element of the rows.
    pub fn scatter_max<'a>(&self, rows: impl AsRef<[usize]>, values: impl Operand<'a, T>) -> Result<()> {
        self.scatter(rows.as_ref(), UpdateKind::Max, values)
    }

    fn scatter<'a>(&self, rows: &[usize], kind: UpdateKind, values: impl Operand<'a, T>) -> Result<()> {
        let core = &*self.core;
        let mut shape = core.shape.clone();
        let Some(extent) = shape.first_mut() else {
            return Err(Error::invalid(format!("variable `{}` is a scalar and has no rows", core.name)));
        };
        *extent = rows.len();
        let too_large =
            || Error::invalid(format!("{} rows of `{}` are too large for this guest", rows.len(), core.name));
        let len = crate::tensor::size_bytes(T::DTYPE, &shape).map_err(|_| too_large())? / size_of::<T>();
        let data = values.operand(&format!("{}[rows]", core.name), &shape, len)?;
        let rows = indices(rows);
        core.context.scatter(RawRowChange { variable: &core.imp, kind, rows: &rows, data: &data })
    }
}

fn indices(rows: &[usize]) -> Vec<u64> {
    rows.iter().map(|&row| row as u64).collect()
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use crate::{ErrorCode, MockCluster, Result, Tensor, WorkerContext, ps};

    #[test]
    fn rows_change_in_order_and_all_or_none() {
        let cluster = MockCluster::builder().workers(1).ps(2).build();
        let run = |ctx: &WorkerContext| -> Result<()> {
            let t = ctx.variable::<i32>("t").shape([4, 2]).on(ps(1)).declare()?;
            assert_eq!(t.gather([0]).unwrap_err().code, ErrorCode::Uninitialized);
            t.initialize(&[0, 1, 2, 3, 4, 5, 6, 7])?;
            assert_eq!(t.gather([3, 0, 3])?.to_vec(), [6, 7, 0, 1, 6, 7]);
            t.scatter_add([1, 3, 1], &[10, 20, 30, 40, 50, 60])?;
            assert_eq!(t.read()?.to_vec(), [0, 1, 62, 83, 4, 5, 36, 47]);
            t.scatter_sub([0], 1)?;
            t.scatter_min([0, 1], &[5, -5, 5, 100])?;
            t.scatter_max([0, 1], &[5, -7, 6, 90])?;
            t.scatter_assign([3, 3], &Tensor::new([2, 2], &[1, 2, 8, 9])?)?;
            let value = t.read()?;
            assert_eq!((value.to_vec(), value.version()), (vec![5, -5, 6, 90, 4, 5, 8, 9], 6));

            t.scatter_add([], 1)?;
            let none = t.gather([])?;
            assert_eq!((none.shape(), none.len(), none.version()), (&[0, 2][..], 0, 6));
            for error in [t.gather([1, 4]).unwrap_err(), t.scatter_add([1, 4], 1).unwrap_err()] {
                assert_eq!(error.code, ErrorCode::OutOfRange);
                assert!(error.message.contains("row 4 (number 1"), "{error}");
            }
            let error = t.scatter_add([1, 2], &[1, 2, 3]).unwrap_err();
            assert_eq!(error.message, "`t[rows]` of shape [2, 2] has 4 elements, 3 are given");
            let error = t.gather(vec![0; (1 << 20) + 1]).unwrap_err();
            assert!(error.code == ErrorCode::InvalidArgument && error.message.contains("1048577 rows"), "{error}");
            assert_eq!(t.read()?.version(), 6);

            let scalar = ctx.variable::<i32>("s").declare()?;
            scalar.initialize(1)?;
            for error in [scalar.gather([]).unwrap_err(), scalar.scatter_add([], 1).unwrap_err()] {
                assert!(error.code == ErrorCode::InvalidArgument && error.message.contains("no rows"), "{error}");
            }
            Ok(())
        };
        cluster.run(run).unwrap();
    }
}
