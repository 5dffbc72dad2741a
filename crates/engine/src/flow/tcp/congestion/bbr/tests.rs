//! The model by itself.
