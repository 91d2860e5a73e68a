//! Reads flags, environment and files into one value; the only reader of the environment.
