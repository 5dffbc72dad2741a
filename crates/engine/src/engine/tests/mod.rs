//! The engine's tests, as stories between two engines in virtual time.

mod closing;
mod hostile;
mod sessions;
mod transfer;
mod world;
