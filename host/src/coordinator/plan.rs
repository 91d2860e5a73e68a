//! Which server, which runs with which context, join or return: a pure function.
