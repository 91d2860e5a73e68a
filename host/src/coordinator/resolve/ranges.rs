//! Values that no reading refuses because they come from a program: what a text could not say.

use super::fault::Fault;
use super::settings::{Origin, Settings};
use super::values::DURATION_MAX;
use std::time::Duration;

/// Finds values out of range. Those of a command line are in range, since reading refuses the others.
pub(super) fn check(settings: &Settings) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |origin: &Origin, key: &str, what: &str, mend: &str| {
        faults.push(Fault::new(origin.place(key), what, mend));
    };
    let limits = &settings.limits;
    let some = |duration: Duration| Some(duration);
    for (key, origin, duration, may_be_zero) in [
        ("connect-timeout", &settings.connect_timeout.origin, some(settings.connect_timeout.value), true),
        ("rejoin-timeout", &settings.rejoin_timeout.origin, some(settings.rejoin_timeout.value), true),
        ("evaluator-grace", &settings.evaluator_grace.origin, some(settings.evaluator_grace.value), true),
        ("barrier-timeout", &settings.barrier_timeout.origin, settings.barrier_timeout.value.0, true),
        ("timeout", &settings.timeout.origin, settings.timeout.value.0, false),
        ("compile-timeout", &limits.compile_timeout.origin, some(limits.compile_timeout.value), false),
        ("cpu-timeout", &limits.cpu_timeout.origin, limits.cpu_timeout.value.0, false),
    ] {
        match duration {
            Some(duration) if duration > DURATION_MAX => {
                fault(origin, key, "is more than a year, which no job lasts", "give a shorter duration");
            }
            Some(Duration::ZERO) if !may_be_zero => {
                fault(origin, key, "leaves no time at all", "give a longer duration, or none");
            }
            _ => {}
        }
    }
    for (key, origin, is_zero) in [
        ("max-attempts", &settings.max_attempts.origin, settings.max_attempts.value == 0),
        ("max-memory", &limits.max_memory.origin, limits.max_memory.value == 0),
        ("max-tensor", &limits.max_tensor.origin, limits.max_tensor.value == 0),
        ("max-module-size", &limits.max_module_size.origin, limits.max_module_size.value == 0),
        ("max-variable-bytes", &limits.max_variable_bytes.origin, limits.max_variable_bytes.value.0 == Some(0)),
        ("fuel", &limits.fuel.origin, limits.fuel.value == Some(0)),
        ("max-handles", &limits.max_handles.origin, limits.max_handles.value == 0),
        ("max-output", &limits.max_output.origin, limits.max_output.value == 0),
        ("max-output-line", &limits.max_output_line.origin, limits.max_output_line.value == 0),
        ("max-output-rate", &limits.max_output_rate.origin, limits.max_output_rate.value == 0),
        ("max-ops", &limits.max_ops.origin, limits.max_ops.value == 0),
        ("kernel-threads", &limits.kernel_threads.origin, limits.kernel_threads.value.0 == Some(0)),
    ] {
        if is_zero {
            fault(origin, key, "is 0, with which nothing can run", "give a number above 0");
        }
    }
    faults
}
