//! The variables that one task holds: containers, values, versions, writes applied once.
