//! `dchost launch`: a whole cluster on this machine, one process for each task.
