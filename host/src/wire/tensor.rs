//! Tensor headers, variable references and chunks.
