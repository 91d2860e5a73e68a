//! Components with ops.

use anyhow::Result;
use dchost_tests::Run;

#[test]
fn a_component_with_ops_runs_also_where_nobody_calls_them() -> Result<()> {
    let outcome = Run::guest("ops")?.output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    Ok(())
}
