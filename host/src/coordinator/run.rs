//! Runs a plan: wires the parts and owns shutdown.
