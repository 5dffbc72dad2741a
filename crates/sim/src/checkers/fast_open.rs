//! Fast Open (RFC 7413) as [`super::sequence`] judges it: which SYN may have text, what its answer may acknowledge, and that
//! a client shows only cookies that it was given.

use crate::frame::{TcpFrame, Way};
use std::collections::BTreeSet;
use std::net::IpAddr;
use toe_base::SeqNum;
use toe_wire::tcp::FastOpenCookie;

/// What there was in a first SYN, or SYN-ACK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Syn {
    option: Option<FastOpenCookie>,
    pub text: u32,
    window: u16,
    /// How often it has arrived, with text or without.
    pub delivered: u32,
}

/// Cookies that have arrived: the client's address, the server's, and the bytes.
#[derive(Debug, Default)]
pub struct Cookies(BTreeSet<(IpAddr, IpAddr, Vec<u8>)>);

impl Cookies {
    /// A SYN-ACK arrives.
    pub fn delivered(&mut self, tcp: &TcpFrame) {
        if let Some(cookie) = tcp.header.options.fast_open.filter(|_| tcp.header.ack.is_some()) {
            self.0.insert((tcp.way.to.0, tcp.way.from.0, cookie.as_slice().to_vec()));
        }
    }

    fn has(&self, way: Way, cookie: &FastOpenCookie) -> bool {
        self.0.contains(&(way.from.0, way.to.0, cookie.as_slice().to_vec()))
    }

    /// The first SYN of a connection is sent.
    pub fn syn_is_right(&self, tcp: &TcpFrame) -> Result<(), String> {
        let cookie = tcp.header.options.fast_open.filter(|cookie| !cookie.is_request());
        match cookie {
            Some(cookie) if !self.has(tcp.way, &cookie) => {
                Err(format!("cookie {cookie:?} was not given by the server"))
            }
            None if !tcp.is_empty() => Err("a SYN with text, but without a cookie".into()),
            _ => Ok(()),
        }
    }
}

impl Syn {
    pub fn of(tcp: &TcpFrame) -> Syn {
        let header = &tcp.header;
        Syn { option: header.options.fast_open, text: tcp.len(), window: header.window.0, delivered: 0 }
    }

    pub fn has_cookie(&self) -> bool {
        self.option.is_some_and(|cookie| !cookie.is_request())
    }

    /// The number of the SYN that `ack` answers: this one's, `iss`, if it acknowledges nothing but it and its text.
    pub fn answered(&self, iss: SeqNum, ack: SeqNum) -> SeqNum {
        let is_this = ack.at_or_after(iss.plus(1)) && ack.at_or_before(iss.plus(1 + self.text));
        if is_this { iss } else { ack.minus(1) }
    }

    /// How far the answer's sender may send before it has heard more: the window of a SYN with a cookie counts for the
    /// server's first bytes (section 4.2.2).
    pub fn window_edge(&self, answer_iss: SeqNum) -> Option<SeqNum> {
        self.has_cookie().then(|| answer_iss.plus(1 + u32::from(self.window)))
    }

    /// This one is answered with `answer`.
    pub fn answer_is_right(&self, answer: &TcpFrame) -> Result<(), String> {
        match answer.header.options.fast_open {
            Some(cookie) if cookie.is_request() => Err("a SYN-ACK that asks for a cookie".into()),
            Some(_) if self.option.is_none() => Err("a cookie that was not asked for".into()),
            _ => Ok(()),
        }
    }
}
