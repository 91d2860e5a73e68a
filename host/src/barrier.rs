//! The barrier: a reusable rendezvous of chief and workers, as a pure state machine.
