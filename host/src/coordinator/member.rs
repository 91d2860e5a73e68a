//! A task's half of the attend stream: registering, reconnecting, barriers, the job's end.
