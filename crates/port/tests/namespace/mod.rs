//! A network namespace of a test's own, gone with the test however that ends.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{panic, process, thread};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

pub struct Namespace {
    name: String,
}

impl Namespace {
    /// `None`, said aloud: not root, so the test cannot run here.
    pub fn new() -> Option<Namespace> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            // Not by `eprintln!`, whose text the test harness hides when a test passes.
            let test = thread::current().name().unwrap_or("a test").to_owned();
            let line = format!("\nSKIPPED {test}: needs root, to make a network namespace\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            return None;
        }
        let name = format!("toe-port-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        ip(&["netns", "add", &name]);
        Some(Namespace { name })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` inside.
    pub fn ip(&self, arguments: &[&str]) {
        ip_in(&self.name, arguments);
    }

    /// Runs `body` in a thread inside. The namespace of a thread cannot be changed for a part of it only.
    pub fn run(&self, body: impl FnOnce() + Send + 'static) {
        let path = format!("/run/netns/{}", self.name);
        let inside = move || {
            let namespace = File::open(path).expect("made by `ip netns add`");
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may");
            body();
        };
        if let Err(panicked) = thread::spawn(inside).join() {
            panic::resume_unwind(panicked);
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // No panic in drop: a second one would end the test program.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

pub fn ip_in(namespace: &str, arguments: &[&str]) {
    ip(&[&["-n", namespace], arguments].concat());
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().expect("`ip` is needed: install iproute2");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {}: {said}", arguments.join(" "));
}
