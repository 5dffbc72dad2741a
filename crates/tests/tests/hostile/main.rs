//! Users, namespaces and strangers who mean harm, each as a real process without rights, beside programs of others on the
//! same engine. What is looked at is what happens to those others. Needs root. `docs/security.md` says what is promised;
//! each file here is one kind of attack.
#![forbid(unsafe_code)]

mod connections;
mod descriptors;
mod figures;
mod floods;
mod greeting;
mod holes;
mod namespaces;
mod ports;
mod quotas;
mod rights;
mod scene;
mod storm;
mod views;
mod wakes;
mod wire;
