//! TensorFlow, PyTorch, JAX and Open MPI, where they are installed.

use crate::lane::{ANSWER, Fresh, Lane, Program, State};
use crate::question::{Bounds, Question};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) const TF: &str = "TensorFlow servers";
pub(crate) const GLOO: &str = "gloo send/recv";
pub(crate) const RPC: &str = "torch RPC over TCP";
pub(crate) const JAX: &str = "JAX coordination service";
pub(crate) const STORE: &str = "torch TCPStore";
pub(crate) const GLOO_BARRIER: &str = "gloo barrier";
pub(crate) const MPI: &str = "Open MPI over TCP";

/// Name, environment, what it must be able to import, script and its argument, whether it is about barriers.
const SCRIPTS: [(&str, &str, &str, &str, &str, bool); 6] = [
    (TF, "tf", "tensorflow", "variables_tf.py", "", false),
    (GLOO, "torch", "torch", "variables_torch.py", "gloo", false),
    (RPC, "torch", "torch", "variables_torch.py", "rpc", false),
    (JAX, "jax", "jax", "barrier_jax.py", "", true),
    (STORE, "torch", "torch", "barrier_torch.py", "store", true),
    (GLOO_BARRIER, "torch", "torch", "barrier_torch.py", "gloo", true),
];

/// All of them; those that are not installed are told on standard error.
pub(crate) fn lanes(venv: Option<&Path>, bounds: Bounds) -> Vec<Box<dyn Lane>> {
    let installed = |name: &str, python: Option<String>| {
        if python.is_none() {
            eprintln!("{name}: not installed");
        }
        python
    };
    let mut lanes: Vec<Box<dyn Lane>> = Vec::new();
    for (name, environment, module, file, kind, barriers) in SCRIPTS {
        let python = installed(name, python(venv, environment, module));
        lanes.push(Box::new(Program {
            name,
            knows: if barriers { Question::is_barrier } else { Question::is_transfer },
            command,
            state: if python.is_some() { State::Unasked } else { State::NotInstalled },
            args: [python.unwrap_or_default(), script(file), kind.to_owned()].into(),
            bounds,
        }));
    }
    let mpirun = Command::new("mpirun").arg("--version").stdout(Stdio::null()).status().is_ok_and(|it| it.success());
    let python = installed(MPI, python(venv, "mpi", "mpi4py").filter(|_| mpirun));
    let answer = move |question| mpi(python.as_deref()?, question, bounds);
    lanes.push(Box::new(Fresh { name: MPI, knows: Question::is_barrier, answer }));
    lanes
}

fn script(file: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/programs").join(file).display().to_string()
}

fn command(args: &[String]) -> Command {
    let mut command = Command::new(&args[0]);
    // What libraries log is not for the tables.
    command.args(args[1..].iter().filter(|word| !word.is_empty())).env("PYTHONDONTWRITEBYTECODE", "1");
    command.stderr(Stdio::null());
    command
}

/// The interpreter that has this module.
fn python(venv: Option<&Path>, environment: &str, module: &str) -> Option<String> {
    let named = std::env::var_os(format!("PYTHON_{}", environment.to_uppercase())).map(PathBuf::from);
    let python = named.or_else(|| Some(venv?.join(environment).join("bin/python")))?;
    // The module is looked for, not imported: that takes seconds.
    let test = format!("import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)");
    let found = Command::new(&python).args(["-c", &test]).status().is_ok_and(|status| status.success());
    found.then(|| python.display().to_string())
}

/// Waiting processes of MPI spin, so they live for one question only.
fn mpi(python: &str, question: Question, bounds: Bounds) -> Option<f64> {
    let Question::Barrier(tasks) = question else { return None };
    let output = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "-n", &tasks.to_string()])
        .args(["--mca", "mpi_yield_when_idle", "1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"])
        .args([python, &script("barrier_mpi.py"), &bounds.rounds.to_string()])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stderr(Stdio::null())
        .output()
        .ok()?;
    String::from_utf8_lossy(&output.stdout).lines().find_map(|line| line.strip_prefix(ANSWER)?.parse().ok())
}
