//! The leader's rows, and what follows from them: loss, end, leaving; a pure state machine.
