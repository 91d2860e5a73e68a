//! `dchost:worker/worker-context`: the task's place in the cluster, and the barrier.

use super::bindings::{types, wit::worker_context};
use super::calls::{CallKind, HostError};
use super::lift::{Answer, answer, shadowed, text};
use super::state::State;
use crate::ids::check_name;
use crate::text::shown;
use std::time::Duration;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, WasmStr};

impl worker_context::Host for State {
    fn this_task(&mut self) -> wasmtime::Result<Option<types::Task>> {
        Ok(self.handles.context.task.map(types::Task::from))
    }

    fn master_target(&mut self) -> wasmtime::Result<String> {
        Ok(self.handles.context.master_target.clone())
    }

    fn is_chief(&mut self) -> wasmtime::Result<bool> {
        Ok(self.handles.context.is_chief)
    }

    fn num_workers(&mut self) -> wasmtime::Result<u32> {
        Ok(self.handles.context.num_workers)
    }

    fn distributed_mode(&mut self) -> wasmtime::Result<bool> {
        Ok(self.handles.context.distributed_mode)
    }

    fn has_barrier(&mut self) -> wasmtime::Result<bool> {
        Ok(self.handles.context.has_barrier)
    }

    fn cluster_spec(&mut self) -> wasmtime::Result<Vec<(String, Vec<(u32, String)>)>> {
        let cluster = &self.handles.context.cluster;
        let tasks = |job| {
            cluster
                .tasks(job)
                .filter_map(|task| Some((task.index, cluster.address(task)?.to_owned())))
                .collect::<Vec<_>>()
        };
        Ok(cluster.jobs().map(|job| (job.as_str().to_owned(), tasks(job))).collect())
    }

    fn should_checkpoint(&mut self) -> wasmtime::Result<bool> {
        Ok(self.handles.context.should_checkpoint())
    }

    fn should_save_summary(&mut self) -> wasmtime::Result<bool> {
        Ok(self.handles.context.should_save_summary())
    }

    fn attempt(&mut self) -> wasmtime::Result<u32> {
        Ok(self.handles.job.attempt())
    }

    fn training_ended(&mut self) -> wasmtime::Result<bool> {
        Ok(self.handles.job.training_ended())
    }

    async fn wait_for_other_workers(&mut self) -> Result<(), HostError> {
        let job = self.handles.job.clone();
        self.calls.clone().wait(CallKind::Barrier, "wait-for-other-workers".to_owned(), job.barrier("", None)).await
    }

    async fn barrier(&mut self, _name: String, _timeout: Option<types::Millis>) -> Result<(), HostError> {
        Err(shadowed().into())
    }
}

/// Defines `barrier` on guest memory: its name is measured before it is copied.
pub(super) fn add_in_place(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.instance("dchost:worker/worker-context@0.1.0")?.func_wrap_async(
        "barrier",
        |cx: StoreContextMut<'_, State>, (name, timeout): (WasmStr, Option<types::Millis>)| {
            Box::new(async move {
                let (calls, job) = (cx.data().calls.clone(), cx.data().handles.job.clone());
                let name = match name_of_barrier(&cx, &name) {
                    Ok(name) => name,
                    Err(error) => return answer(Err(error)),
                };
                let label = format!("barrier `{}`", shown(&name));
                let waited = job.barrier(&name, timeout.map(Duration::from_millis));
                answer(calls.wait(CallKind::Barrier, label, waited).await)
            })
        },
    )
}

fn name_of_barrier(cx: &StoreContextMut<'_, State>, name: &WasmStr) -> Answer<String> {
    cx.data().calls.check()?;
    let name = text(cx, name)?;
    // The empty name is that of `wait-for-other-workers`, which must not be met by accident.
    check_name("barrier", &name)?;
    Ok(name.into_owned())
}
