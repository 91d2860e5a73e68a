//! `dchost plan`: prints what would run, without running it.
