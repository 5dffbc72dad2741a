//! Sequence space: every frame that an engine sends is judged by what was sent and delivered before.
//!
//! Of each direction it is known what the sender has sent (so that nothing lies beyond its FIN, nothing is left out, and
//! bytes sent again are the same), what has been delivered of it (so that nothing else is acknowledged), and what the
//! receiver has offered and was delivered (so that nothing lies beyond the window).

use crate::checkers::fast_open::{Cookies, Syn};
use crate::checkers::streams::Streams;
use crate::frame::{TcpFrame, Way};
use crate::pattern::StreamId;
use crate::swarm::EngineSpec;
use std::collections::BTreeMap;
use toe_base::SeqNum;
use toe_wire::link::TxOffload;
use toe_wire::{EthRepr, EtherType, Ipv4Repr, Ipv6Repr, Protocol, Sum, TcpRepr, eth, ipv6};

/// One direction of one life of a connection.
#[derive(Clone, Debug, Default)]
pub struct Half {
    pub iss: SeqNum,
    /// One past the highest number that was sent.
    pub sent_max: SeqNum,
    /// One past the highest number that was delivered.
    pub delivered_max: SeqNum,
    /// The sender's last acknowledgement.
    pub acked: Option<SeqNum>,
    /// How far the sender of this half has offered to receive.
    pub offered: Option<SeqNum>,
    /// How far the receiver of this half has offered, as far as that was delivered to the sender.
    pub window_edge: Option<SeqNum>,
    pub fin: Option<SeqNum>,
    /// Its sender has reset it.
    was_reset: bool,
    /// Of the windows that the sender of this half offers.
    scale: u8,
    scale_offered: bool,
    pub stamps_offered: bool,
    /// TSval of the SYN: older than any that counts.
    pub first_stamp: u32,
    last_stamp: Option<u32>,
    mss: u16,
    /// It has sent more than its SYN, and so knows what was agreed on: a SYN-ACK may be a cookie, and be forgotten.
    pub has_spoken: bool,
    /// The life before sent numbers beyond this one's first: what acknowledges them may acknowledge this SYN-ACK.
    fits_old_acks: bool,
    /// Synchronized: the sender acknowledged the other SYN, which had this number.
    pub synchronized: Option<SeqNum>,
    /// An acknowledgement of the other side has arrived.
    heard: bool,
    syn: Syn,
    stream: Option<StreamId>,
}

/// What is known of an engine that sends a frame.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    pub link: &'a EngineSpec,
    /// It has found no memory for what it had offered to receive, once at least.
    pub has_lacked_memory: bool,
}

/// Every connection that was seen on the wire.
#[derive(Debug, Default)]
pub struct Sequences {
    halves: BTreeMap<Way, Half>,
    streams: BTreeMap<Way, StreamId>,
    /// A SYN that comes twice may be answered with two numbers, if with a cookie first. The other half is here until the
    /// peer has answered one.
    other_answers: BTreeMap<Way, Half>,
    cookies: Cookies,
    /// SYNs come that no engine has sent.
    forgives_syns: bool,
    /// Off when the peer is nobody's.
    pub judges: bool,
}

type Found = Result<(), String>;

impl Sequences {
    /// `forgives_syns`: there will be SYNs that no engine has sent.
    pub fn new(forgives_syns: bool) -> Sequences {
        Sequences { forgives_syns, judges: true, ..Sequences::default() }
    }

    /// Bytes that go `way` are this stream's.
    pub fn know(&mut self, way: Way, stream: StreamId) {
        self.streams.insert(way, stream);
        self.streams.insert(way.back(), StreamId { side: 1 - stream.side, ..stream });
    }

    /// Whose bytes go `way`.
    pub fn stream(&self, way: Way) -> Option<StreamId> {
        self.streams.get(&way).copied()
    }

    pub fn half(&self, way: Way) -> Option<&Half> {
        self.halves.get(&way)
    }

    /// An engine sends a frame.
    pub fn sent(&mut self, frame: &[u8], offload: TxOffload, sender: Sender<'_>, streams: &Streams) -> Found {
        let Ok((ethernet, packet)) = EthRepr::parse(frame) else {
            return Err("a frame without header".into());
        };
        let (len, protocol) = match ethernet.ethertype {
            EtherType::Ipv4 => {
                let (ip, _) = Ipv4Repr::parse(packet).map_err(|e| format!("a bad IPv4 header: {e:?}"))?;
                (usize::from(ip.total_len), ip.protocol)
            }
            EtherType::Ipv6 => {
                let (ip, _) = Ipv6Repr::parse(packet).map_err(|e| format!("a bad IPv6 header: {e:?}"))?;
                (ipv6::HEADER_LEN + usize::from(ip.payload_len), ip.protocol)
            }
            _ => return Ok(()),
        };
        if eth::HEADER_LEN + len != frame.len() {
            return Err(format!("a frame of {} bytes holds a datagram of {len}", frame.len()));
        }
        if protocol != Protocol::Tcp {
            return Ok(());
        }
        let tcp = TcpFrame::parse(frame).ok_or("a TCP header that does not parse")?;
        sizes_are_right(&tcp, frame.len(), offload, sender.link)?;
        checksum_is_right(&tcp, frame, offload)?;
        if !self.judges {
            return Ok(());
        }
        if tcp.header.flags.rst() {
            if let Some(half) = self.halves.get_mut(&tcp.way) {
                half.was_reset = true;
            }
            return Ok(());
        }
        if sender.has_lacked_memory
            && let Some(half) = self.halves.get_mut(&tcp.way)
        {
            // What was offered may be taken back then, and is offered again.
            half.offered = None;
        }
        self.numbers_are_right(&tcp, frame, offload, streams)
            .map_err(|what| format!("{what}: {:?} {:?} with {} bytes", tcp.way, tcp.header, tcp.len()))
    }

    fn numbers_are_right(
        &mut self,
        tcp: &TcpFrame,
        frame: &[u8],
        offload: TxOffload,
        streams: &Streams,
    ) -> Found {
        let header = &tcp.header;
        if header.flags.syn() {
            self.syn_text_is_right(tcp, frame, streams)?;
            return self.syn_sent(tcp);
        }
        self.choose_answer(tcp.way, header.seq);
        let back = self.halves.get(&tcp.way.back()).cloned();
        let Some(half) = self.halves.get_mut(&tcp.way) else { return Err("no SYN came before".into()) };
        // The other side may have another life by now, of which this one knows nothing.
        let back = back.filter(|back| half.synchronized.is_none_or(|iss| iss == back.iss));
        half.has_spoken = true;
        half.text_is_right(tcp)?;
        half.size_is_right(tcp, offload, back.as_ref())?;
        half.acknowledgement_is_right(tcp, back.as_ref())?;
        half.stamps_are_right(tcp, back.as_ref())?;
        let at = u64::from(tcp.header.seq.diff(half.iss.plus(1)) as u32);
        bytes_are_right(half.stream, at, tcp.payload(frame), streams)
    }

    /// Bytes are in the first SYN, and only with a cookie (RFC 7413 sections 3.1 and 4.2).
    fn syn_text_is_right(&self, tcp: &TcpFrame, frame: &[u8], streams: &Streams) -> Found {
        let is_first = self.halves.get(&tcp.way).is_none_or(|half| half.iss != tcp.header.seq);
        if !tcp.is_empty() && (!is_first || tcp.header.ack.is_some()) {
            return Err("text in a SYN that is not the first".into());
        }
        if tcp.header.ack.is_none() {
            self.cookies.syn_is_right(tcp)?;
        }
        bytes_are_right(self.stream(tcp.way), 0, tcp.payload(frame), streams)
    }

    /// A connection that a program may have early talks before its peer has answered; and of a SYN that came twice, both
    /// answers may have made one (RFC 7413 section 2.1). The one that has the number is the one that talks.
    fn choose_answer(&mut self, way: Way, seq: SeqNum) {
        let (Some(half), Some(other)) = (self.halves.get_mut(&way), self.other_answers.get_mut(&way)) else {
            return;
        };
        let has = |half: &Half| seq.at_or_after(half.iss) && seq.at_or_before(half.sent_max);
        if seq != half.sent_max && (seq == other.sent_max || !has(half) && has(other)) {
            core::mem::swap(half, other);
        }
    }

    /// A SYN-ACK for the SYN of `back`.
    fn answer_is_right(&self, tcp: &TcpFrame, ack: SeqNum, back: &Half) -> Found {
        let is_its_answer = back.syn.answered(back.iss, ack) == back.iss;
        if !is_its_answer && !self.forgives_syns {
            return Err("a SYN-ACK for another SYN".into());
        }
        if is_its_answer && ack.after(back.delivered_max) {
            return Err(format!("what is after {:?} never arrived", back.delivered_max));
        }
        if tcp.header.options.window_scale.is_some() && !back.scale_offered {
            return Err("a window scale that was not offered".into());
        }
        back.syn.answer_is_right(tcp)
    }

    fn syn_sent(&mut self, tcp: &TcpFrame) -> Found {
        let header = &tcp.header;
        let stream = self.streams.get(&tcp.way).copied();
        let back = self.halves.get(&tcp.way.back()).cloned();
        if header.flags.fin() {
            return Err("a SYN with FIN".into());
        }
        let synchronized = header.ack.map(|ack| match &back {
            Some(back) => back.syn.answered(back.iss, ack),
            None => ack.minus(1),
        });
        if let (Some(ack), Some(back)) = (header.ack, &back) {
            self.answer_is_right(tcp, ack, back)?;
        }
        let again = self.halves.get_mut(&tcp.way).filter(|half| half.iss == header.seq);
        if let Some(found) = again.and_then(|half| half.syn_again(header, synchronized)) {
            return found;
        }
        // An engine that keeps nothing of a SYN answers a forged one, too, and goes on with whom it answered before.
        let is_forged = back.as_ref().is_some_and(|back| synchronized.is_some_and(|iss| iss != back.iss));
        let offered = header.ack.map(|ack| ack.plus(u32::from(header.window.0)));
        // With the same number again, a peer in TIME-WAIT answers with what it has of the life before.
        let had = self.halves.get(&tcp.way).filter(|old| old.iss == header.seq).map(|old| old.delivered_max);
        let half = Half {
            iss: header.seq,
            sent_max: tcp.seq_end(),
            delivered_max: had.unwrap_or(header.seq),
            acked: header.ack,
            offered,
            window_edge: back.filter(|_| header.ack.is_some()).and_then(|b| b.syn.window_edge(header.seq)),
            fin: None,
            was_reset: false,
            scale: header.options.window_scale.map_or(0, |s| s.shift()),
            scale_offered: header.options.window_scale.is_some(),
            stamps_offered: header.options.timestamps.is_some(),
            first_stamp: header.options.timestamps.map_or(0, |t| t.value),
            last_stamp: header.options.timestamps.map(|t| t.value),
            mss: header.options.mss.unwrap_or(536),
            has_spoken: false,
            fits_old_acks: self.halves.get(&tcp.way).is_some_and(|old| old.fits(header.seq)),
            synchronized,
            heard: false,
            syn: Syn::of(tcp),
            stream,
        };
        // Whoever has said more since the first answer had a record, and has it no more: that life is over.
        let waits = |other: &Half| other.synchronized.is_some() && !other.has_spoken;
        if let Some(other) = self.halves.insert(tcp.way, half).filter(waits)
            && (other.synchronized == synchronized || is_forged)
        {
            // The peer may have answered the first one already: then that counts.
            let is_answered =
                self.halves.get(&tcp.way.back()).is_some_and(|peer| peer.synchronized == Some(other.iss));
            let aside =
                if is_answered || is_forged { self.halves.insert(tcp.way, other) } else { Some(other) };
            if let Some(aside) = aside {
                self.other_answers.insert(tcp.way, aside);
            }
        }
        if header.ack.is_none() {
            // A new life: what came back in the last one says nothing of this.
            self.halves.remove(&tcp.way.back());
            self.other_answers.remove(&tcp.way.back());
        }
        Ok(())
    }

    /// A frame that an engine sent arrives, as it is by now.
    pub fn delivered(&mut self, tcp: &TcpFrame) {
        let header = &tcp.header;
        if header.flags.rst() {
            return;
        }
        if header.flags.syn() {
            self.prefer_answer(tcp.way, header.seq);
            self.cookies.delivered(tcp);
        }
        let Some(half) = self.halves.get_mut(&tcp.way) else { return };
        if header.flags.syn() && header.seq != half.iss {
            return;
        }
        if tcp.seq_end().diff(half.sent_max) > 0 || header.seq.diff(half.iss) < -1 {
            // Of another life.
            return;
        }
        half.delivered_max = half.delivered_max.later(tcp.seq_end());
        half.syn.delivered += u32::from(header.flags.syn());
        let (scale, offered) = (half.scale, half.scale_offered);
        let Some(ack) = header.ack else { return };
        // Of two answers to a SYN either may be the one that is acknowledged.
        let answers = [self.halves.get_mut(&tcp.way.back()), self.other_answers.get_mut(&tcp.way.back())];
        let is_of = |back: &&mut Half| ack.at_or_after(back.iss) && ack.at_or_before(back.sent_max);
        let Some(back) = answers.into_iter().flatten().find(is_of) else { return };
        // The window of a SYN is never scaled; one side's scale counts only when both have offered one.
        let shift = if header.flags.syn() || !offered || !back.scale_offered { 0 } else { scale };
        let edge = ack.plus(u32::from(header.window.0) << shift);
        back.heard = true;
        back.window_edge = Some(back.window_edge.map_or(edge, |known| known.later(edge)));
    }

    /// A frame leaves a stack that is not judged, but whose numbers the judgement of others needs.
    pub fn observed(&mut self, tcp: &TcpFrame) {
        let header = &tcp.header;
        if header.flags.rst() {
            return;
        }
        if header.flags.syn() {
            // What would be wrong with it is its own affair.
            let _ = self.syn_sent(tcp);
            return;
        }
        let back = self.halves.get(&tcp.way.back()).map(|back| (back.iss, back.scale_offered));
        let Some(half) = self.halves.get_mut(&tcp.way) else { return };
        half.sent_max = half.sent_max.later(tcp.seq_end());
        if header.flags.fin() {
            half.fin = Some(tcp.seq_end().minus(1));
        }
        let (Some(ack), Some((iss, scale_offered))) = (header.ack, back) else { return };
        half.synchronized = Some(iss);
        half.acked = Some(half.acked.map_or(ack, |acked| acked.later(ack)));
        let shift = if scale_offered && half.scale_offered { half.scale } else { 0 };
        let edge = ack.plus(u32::from(header.window.0) << shift);
        half.offered = Some(half.offered.map_or(edge, |offered| offered.later(edge)));
    }

    /// The SYN-ACK with number `iss` arrives: unless another one has, that is the one which counts.
    fn prefer_answer(&mut self, way: Way, iss: SeqNum) {
        let Some(other) = self.other_answers.get_mut(&way).filter(|other| other.iss == iss) else { return };
        let waits = self.halves.get(&way.back()).is_some_and(|half| half.synchronized.is_none());
        if let Some(half) = self.halves.get_mut(&way).filter(|half| waits && half.syn.delivered == 0) {
            core::mem::swap(half, other);
        }
    }

    /// A listener hands a connection out that it has handed out `times` before. That a SYN with a good cookie makes one as
    /// often as it arrives is the price of Fast Open (RFC 7413 section 2.1). And where a connection that was reset had sent
    /// more than the clock of initial numbers went on meanwhile (RFC 9293 section 3.4.1 warns of that), a late copy of its SYN
    /// is answered with a number that a late acknowledgement fits. The bytes that such a one begins with.
    pub fn may_come_again(&self, way: Way, times: u32) -> Option<u32> {
        let syn = self.halves.get(&way)?.syn;
        let fits = self.halves.get(&way.back()).is_some_and(|half| half.fits_old_acks);
        (syn.delivered > times && (syn.has_cookie() || fits)).then_some(syn.text)
    }

    /// Nothing that the other side has sent but its SYN has arrived at the sender of this half.
    pub fn is_unheard(&self, way: Way) -> bool {
        self.halves.get(&way).is_some_and(|half| !half.heard)
    }

    /// Both sides have left the handshake behind and neither has sent FIN.
    pub fn is_open(&self, way: Way) -> bool {
        let (Some(half), Some(back)) = (self.halves.get(&way), self.halves.get(&way.back())) else {
            return false;
        };
        let live = |h: &Half, peer: &Half| {
            h.synchronized == Some(peer.iss) && h.fin.is_none() && h.window_edge.is_some()
        };
        live(half, back) && live(back, half)
    }
}

impl Half {
    /// What acknowledges bytes of this half, which was reset, may acknowledge a SYN of this number, too.
    fn fits(&self, iss: SeqNum) -> bool {
        self.was_reset && iss.at_or_after(self.iss) && iss.before(self.sent_max)
    }

    /// From here on the sender of this half takes nothing: a scaled window is rounded down, so it may take a little more
    /// than it has offered.
    pub fn takes_nothing_from(&self) -> Option<SeqNum> {
        Some(self.offered?.plus(1 << self.scale))
    }

    /// Whether a SYN-ACK that is sent again acknowledges less, or offers less and could offer more: its window is not scaled.
    /// A SYN with the same number as this one's; `None`: another life begins with it.
    fn syn_again(&mut self, header: &TcpRepr, synchronized: Option<SeqNum>) -> Option<Found> {
        let is_taken_back = header.ack.is_some_and(|ack| self.is_taken_back(ack, header.window.0));
        if !is_taken_back {
            self.synchronized = self.synchronized.or(synchronized);
            return Some(Ok(()));
        }
        // One that has sent its FIN, or a reset, may be gone; in answer to a late copy of the SYN a cookie is the same number again,
        // and so is any other first number while the clock stands still.
        let may_be_gone = self.fin.is_some() || self.was_reset;
        (!may_be_gone).then(|| Err("a SYN-ACK that takes back what was said".into()))
    }

    fn is_taken_back(&self, ack: SeqNum, window: u16) -> bool {
        let edge = ack.plus(u32::from(window));
        self.acked.is_some_and(|before| ack.before(before))
            || window < u16::MAX && self.offered.is_some_and(|before| edge.before(before))
    }

    fn text_is_right(&mut self, tcp: &TcpFrame) -> Found {
        let (seq, end) = (tcp.header.seq, tcp.seq_end());
        if seq.after(self.sent_max) {
            return Err(format!("numbers from {:?} on are left out", self.sent_max));
        }
        if seq.at_or_before(self.iss) && !tcp.is_empty() {
            return Err("it takes the number of the SYN".into());
        }
        if let Some(fin) = self.fin {
            if end.after(fin.plus(1)) {
                return Err(format!("it goes beyond the FIN at {fin:?}"));
            }
            if tcp.header.flags.fin() && end != fin.plus(1) {
                return Err(format!("the FIN was at {fin:?} before"));
            }
        }
        if tcp.header.flags.fin() {
            if end.before(self.sent_max) {
                return Err(format!("a FIN before {:?}, which was sent", self.sent_max));
            }
            self.fin = Some(end.minus(1));
        }
        if end.after(seq) {
            let edge = self.window_edge.ok_or("text before the window is known")?;
            if end.after(edge) {
                // A probe asks for a window with one number beyond it (RFC 9293 section 3.8.6.1).
                if end.after(edge.plus(1)) || tcp.len() > 1 && !tcp.header.flags.fin() {
                    return Err(format!("it goes beyond the window, which ends at {edge:?}"));
                }
            }
            self.sent_max = self.sent_max.later(end);
        }
        Ok(())
    }

    fn acknowledgement_is_right(&mut self, tcp: &TcpFrame, back: Option<&Half>) -> Found {
        let Some(ack) = tcp.header.ack else { return Err("no acknowledgement".into()) };
        if let Some(back) = back {
            self.synchronized = Some(back.iss);
            if ack.after(back.delivered_max) {
                return Err(format!("what is after {:?} never arrived", back.delivered_max));
            }
            for block in tcp.header.options.sack.as_slice() {
                if block.right.after(back.delivered_max) || block.left.at_or_after(block.right) {
                    return Err(format!("{block:?} of {:?} never arrived", back.delivered_max));
                }
            }
        }
        if let Some(before) = self.acked
            && ack.before(before)
        {
            return Err(format!("the acknowledgement was {before:?} before"));
        }
        self.acked = Some(ack);
        // Whether windows are scaled is not known when the other side has another life by now.
        let Some(back) = back else { return Ok(()) };
        let shift = if back.scale_offered && self.scale_offered { self.scale } else { 0 };
        let edge = ack.plus(u32::from(tcp.header.window.0) << shift);
        if let Some(before) = self.offered {
            // A scaled window cannot say every number: rounding down may seem to take back less than a unit of it.
            if edge.plus((1 << shift) - 1).before(before) {
                return Err(format!("the window's right edge was {before:?} and is {edge:?}"));
            }
            self.offered = Some(edge.later(before));
        } else {
            self.offered = Some(edge);
        }
        Ok(())
    }

    /// RFC 7323 section 3.2: once agreed on, in every segment; and a clock does not go back.
    fn stamps_are_right(&mut self, tcp: &TcpFrame, back: Option<&Half>) -> Found {
        let agreed = self.stamps_offered && back.is_some_and(|b| b.stamps_offered);
        match tcp.header.options.timestamps {
            Some(_) if !agreed && back.is_some() => Err("timestamps that were not agreed on".into()),
            None if agreed => Err("no timestamp, but they were agreed on".into()),
            Some(stamps) => {
                if let Some(last) = self.last_stamp
                    && (stamps.value.wrapping_sub(last) as i32) < 0
                {
                    return Err(format!("the timestamp was {last} before"));
                }
                self.last_stamp = Some(stamps.value);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// No piece is larger than the peer takes (RFC 9293 section 3.7.1: options count).
    fn size_is_right(&self, tcp: &TcpFrame, offload: TxOffload, back: Option<&Half>) -> Found {
        let Some(mss) = back.map(|back| u32::from(back.mss)) else { return Ok(()) };
        let piece = offload.segmentation.map_or(tcp.len(), |how| u32::from(how.mss));
        let options = (tcp.payload_at - tcp.tcp_at - toe_wire::tcp::HEADER_LEN) as u32;
        if !tcp.is_empty() && piece + options > mss.max(64) {
            return Err(format!("pieces of {piece} bytes and {options} of options for MSS {mss}"));
        }
        Ok(())
    }
}

/// Bytes from the place `at` on are the stream's, and its program has sent them.
fn bytes_are_right(stream: Option<StreamId>, at: u64, bytes: &[u8], streams: &Streams) -> Found {
    let Some(id) = stream.filter(|id| !streams.get(*id).tainted && !bytes.is_empty()) else { return Ok(()) };
    if let Some(within) = id.first_difference(at, bytes) {
        return Err(format!("byte {} of {id:?} is wrong", at + within as u64));
    }
    if at + bytes.len() as u64 > streams.get(id).handed {
        return Err(format!("bytes of {id:?} that no program has sent"));
    }
    streams.is_of_one_record(id, at, at + bytes.len() as u64)
}

/// One frame fits the link, or says how it is to be cut so that its pieces do.
fn sizes_are_right(tcp: &TcpFrame, frame_len: usize, offload: TxOffload, link: &EngineSpec) -> Found {
    let mtu = link.mtu as usize;
    let Some(how) = offload.segmentation else {
        return if frame_len - eth::HEADER_LEN > mtu {
            Err(format!("a datagram of {} bytes on a link of {mtu}", frame_len - eth::HEADER_LEN))
        } else {
            Ok(())
        };
    };
    if tcp.len() > link.gso_max {
        return Err(format!("{} bytes to be cut by a link that takes {}", tcp.len(), link.gso_max));
    }
    if usize::from(how.header_len) != tcp.payload_at {
        return Err(format!("headers of {} bytes are said to be {}", tcp.payload_at, how.header_len));
    }
    let piece = tcp.payload_at - eth::HEADER_LEN + usize::from(how.mss);
    if how.mss == 0 || piece > mtu {
        return Err(format!("pieces of {piece} bytes on a link of {mtu}"));
    }
    if tcp.header.flags.syn() || tcp.header.flags.rst() {
        return Err("a SYN or RST to be cut".into());
    }
    Ok(())
}

fn checksum_is_right(tcp: &TcpFrame, frame: &[u8], offload: TxOffload) -> Found {
    match offload.checksum {
        None if tcp.checksum_is_valid(frame) => Ok(()),
        None => Err("a wrong TCP checksum".into()),
        Some(partial) => {
            if usize::from(partial.start) != tcp.tcp_at || partial.offset != 16 {
                return Err(format!("the checksum of a segment at {} is left to {partial:?}", tcp.tcp_at));
            }
            // What the link computes over the segment, the pseudo-header's sum in its field, must come out right.
            let mut done = frame[tcp.tcp_at..tcp.end].to_vec();
            let sum = Sum::of(&done).checksum();
            done[16..18].copy_from_slice(&sum.to_be_bytes());
            let right = toe_wire::tcp::checksum_is_valid(&done, tcp.way.from.0, tcp.way.to.0);
            if right { Ok(()) } else { Err("a wrong sum of the pseudo-header".into()) }
        }
    }
}
