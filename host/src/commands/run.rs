//! `dchost --module FILE`: runs this process's task.
